"""A container as a machine: commands, files, freezing.

Packets that came to a frozen container are counted by its network device.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from harness.environments.docker.rights import LimitsRefused, refused_limit
from harness.environments.machines.machine import CommandFailed, MachineError, MachineVanished, Stream
from harness.environments.machines.pumped_stream import PumpedStream

T = TypeVar("T")

_STARTED_LIMIT_S = 60.0
_NOT_FOUND = 404
_WHEN_TOLD: Final = ("sh", "-c", 'read -r _; exec "$@"', "sh")
"""Starts a command once it has read a line. The SDK drops whatever arrives together with the engine's answer to the
start of a command: on a busy machine that was the command's first output."""


class Container:
    """One container; `Machine`, `Streams` and `Freezer` of `harness.environments.machines.machine`.

    Commands start one at a time, and none starts while the container is being frozen or thawed: an engine that freezes
    the process it is just bringing into the container never finishes either, and answers nothing about that container
    any more. A command counts as started once it has printed something, or ended.
    """

    def __init__(self, name: str, address: str, client: Any, container_id: str, threads: ThreadPoolExecutor) -> None:
        self._name = name
        self._address = address
        self._client = client
        self._id = container_id
        self._threads = threads
        self._packets_before = 0
        self._starting = threading.Lock()

    @property
    def name(self) -> str:
        """The node's."""
        return self._name

    @property
    def address(self) -> str:
        """On the run's network."""
        return self._address

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 120.0) -> bytes:
        """See Machine.run."""
        return await self._in_thread(partial(self._run, argv, stdin, timeout_s))

    async def open(self, argv: Sequence[str]) -> Stream:
        """See Streams.open."""
        frames, send, end = await self._in_thread(partial(self._open, argv))
        return PumpedStream(frames, send, end)

    async def put(self, contents: bytes, path: str, *, mode: int = 0o644) -> None:
        """See Machine.put."""
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
        await self.run(["sh", "-c", script, "sh", path, f"{mode:o}"], stdin=contents)

    async def fetch(self, path: str) -> bytes:
        """See Machine.fetch. The engine's own archive would not see file systems mounted inside."""
        place = Path(path)
        return await self.run(["tar", "-C", str(place.parent), "-cf", "-", place.name])

    async def freeze(self) -> None:
        """`docker pause`."""
        await self._in_thread(self._freeze)

    async def thaw(self) -> int | None:
        """`docker unpause`; packets that reached the container in between, None if the engine does not tell."""
        return await self._in_thread(self._thaw)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _freeze(self) -> None:
        with as_machine_errors(self._name), self._starting:
            try:
                self._client.api.pause(self._id)
                self._packets_before = self._packets()
            except Exception:
                # An engine that has not answered in time may have frozen it all the same.
                with suppress(Exception):
                    self._client.api.unpause(self._id)
                raise

    def _thaw(self) -> int | None:
        packets = None
        with as_machine_errors(self._name), self._starting:
            # Thawed it is in any case: a container that is frozen answers nothing until the run ends.
            with suppress(Exception):
                packets = self._packets() - self._packets_before
            self._client.api.unpause(self._id)
        return packets

    def _packets(self) -> int:
        networks = self._client.api.stats(self._id, stream=False, one_shot=True).get("networks", {})
        return sum(int(network["rx_packets"]) for network in networks.values())

    def _open(self, argv: Sequence[str]) -> tuple[Iterator[bytes], Callable[[bytes], None], Callable[[], None]]:
        from docker.utils.socket import STDOUT, frames_iter

        with as_machine_errors(self._name), self._starting:
            _, response = self._begin(argv)
            connection = _connection(response)
            frames = frames_iter(connection, tty=False)
            try:
                with _limited(connection, _STARTED_LIMIT_S):
                    connection.sendall(b"\n")
                    first = next(frames, None)
                if first is None or first[0] != STDOUT:
                    words = " ".join(first[1].decode(errors="replace").split()) if first else "it ended at once"
                    raise MachineError(f"{self._name}: {argv[0]} cannot be started: {words}")
            except BaseException as error:
                response.close()
                if isinstance(error, TimeoutError):
                    late = f"{self._name}: {argv[0]} has not started after {_STARTED_LIMIT_S:g} s"
                    raise MachineError(late) from None
                raise
            connection.settimeout(None)

        def send(data: bytes) -> None:
            with as_machine_errors(self._name):
                connection.sendall(data)

        def end() -> None:
            _break(connection)
            response.close()

        return (part for stream, part in chain([first], frames) if stream == STDOUT), send, end

    def _begin(self, argv: Sequence[str]) -> tuple[str, Any]:
        """Have the engine start a command that waits for a line; its id, and the response that carries its streams."""
        command: str = self._client.api.exec_create(self._id, [*_WHEN_TOLD, *argv], stdin=True)["Id"]
        return command, self._client.api.exec_start(command, socket=True)

    def _run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> bytes:
        api = self._client.api
        with as_machine_errors(self._name), _Starting(self._starting) as starting:
            command, response = self._begin(argv)
            try:
                out, err = _exchange(_connection(response), b"\n" + stdin, timeout_s, starting.over)
            except TimeoutError:
                raise MachineError(f"{self._name}: {argv[0]} has not ended after {timeout_s:g} s") from None
            finally:
                response.close()
            status = api.exec_inspect(command)["ExitCode"]
        if status != 0:
            raise CommandFailed.of(self._name, argv[0], status, err.decode(errors="replace"))
        return out


class _Starting:
    """Holds a lock until `over` is called, or until the block ends."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._held = False

    def __enter__(self) -> Self:
        self._held = self._lock.acquire()
        return self

    def over(self) -> None:
        """Release the lock; nothing the second time."""
        if self._held:
            self._held = False
            self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.over()


def _exchange(
    connection: socket.socket, stdin: bytes, timeout_s: float, answered: Callable[[], None]
) -> tuple[bytes, bytes]:
    """Write all input of a command and read its stdout and stderr. `answered` is called at the first output.

    Raises TimeoutError.
    """
    from docker.utils.socket import STDERR, frames_iter

    out, err = bytearray(), bytearray()
    with _limited(connection, timeout_s):
        connection.sendall(stdin)
        connection.shutdown(socket.SHUT_WR)
        for stream, part in frames_iter(connection, tty=False):
            answered()
            (err if stream == STDERR else out).extend(part)
    return bytes(out), bytes(err)


@contextmanager
def _limited(connection: socket.socket, timeout_s: float) -> Iterator[None]:
    """Breaks the connection when the time is over, and raises TimeoutError then: the SDK waits without a limit."""
    connection.settimeout(timeout_s)
    timer = threading.Timer(timeout_s, partial(_break, connection))
    timer.start()
    try:
        yield
    finally:
        late = not timer.is_alive()
        timer.cancel()
    if late:
        raise TimeoutError


def _connection(response: Any) -> socket.socket:
    """The socket below what the SDK gives back for the streams of a command."""
    connection: socket.socket = getattr(response, "_sock", response)
    return connection


def _break(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def as_machine_errors(what: str) -> Iterator[None]:
    """Turns any error of the SDK into a MachineError of one line: MachineVanished where a container is not there.

    LimitsRefused where the engine objects to a limit.
    """
    try:
        yield
    except (MachineError, TimeoutError):
        raise
    except Exception as error:
        reason = one_line(error)
        if refused_limit(reason):
            raise LimitsRefused(f"{what}: {reason}") from None
        if "/dev/fuse" in reason:
            reason = "the engine's machine has no /dev/fuse, on which the data is to lie; there: modprobe fuse"
        vanished = getattr(error, "status_code", None) == _NOT_FOUND and "No such container" in reason
        raise (MachineVanished if vanished else MachineError)(f"{what}: {reason}") from None


def one_line(error: Exception) -> str:
    return " ".join(str(getattr(error, "explanation", None) or error).split())
