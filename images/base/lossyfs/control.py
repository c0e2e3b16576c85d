"""Commands to a mounted file system: one line of JSON on its Unix socket, answered by one line of JSON.

    {"command": "power-loss", "keep": "nothing" | "prefix" | "torn" | "everything", "seed": 7}
    {"command": "lie", "on": true}
    {"command": "slow", "ms": 20, "on": ["sync"]}                      on: read, write, sync, change; all by default
    {"command": "fail", "error": "EIO" | "ENOSPC", "after": 0, "path": "*.log", "on": ["sync"]}
    {"command": "fail", "error": null}                                  nothing fails any more
    {"command": "damage", "on": false}                                  all damage rests, a power loss keeps everything
    {"command": "heal"}                                                 no lies, not slow, nothing fails
    {"command": "report"}

An answer has "ok": true and what was asked for, or "ok": false and one line in "error". A connection may carry any
number of commands. Every answer but a power loss's is the report: what is unsynced, what damage is asked for, how often
it took effect, and the result of the last power loss.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from threading import Lock, Thread
from typing import Any, Final

from images.base.lossyfs.damage import ERRORS, DamageInjector, InjectedError, OperationKind
from images.base.lossyfs.power_loss import PowerLossOutcome, lose_power, unsynced
from images.base.lossyfs.survival import Survival
from images.base.lossyfs.volume import Volume

ANSWER_TIMEOUT_S: Final = 60.0
_PATH_BYTES_MAX: Final = 107
_OF_BYTES: Final = frozenset({OperationKind.READ, OperationKind.WRITE})


class ControlError(Exception):
    """A command failed; the message is one line."""


def call(socket_path: str, command: str, **arguments: Any) -> dict[str, Any]:
    """Send one command; returns its response. Raises ControlError, also without a response."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_TIMEOUT_S)
            connection.connect(socket_path)
            connection.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                line = lines.readline()
    except OSError as error:
        raise ControlError(f"no file system answers at {socket_path}: {error.strerror or error}") from None
    if not line:
        raise ControlError(f"the file system at {socket_path} went away before it answered")
    answer: dict[str, Any] = json.loads(line)
    if not answer.pop("ok"):
        raise ControlError(answer["error"])
    return answer


@dataclass(slots=True)
class Control:
    """Carries out commands on one mounted volume."""

    volume: Volume
    injector: DamageInjector
    lock: Lock
    """Held while the volume is used."""
    mountpoint: str
    last_loss: PowerLossOutcome | None = None
    _server: socket.socket | None = field(default=None, repr=False)

    def serve(self, socket_path: str) -> None:
        """Answer commands on a thread of its own from now on. Raises OSError if the socket cannot be created."""
        if len(os.fsencode(socket_path)) > _PATH_BYTES_MAX:
            raise OSError(f"--control {socket_path}: a socket's path has no more than {_PATH_BYTES_MAX} bytes")
        if os.path.exists(socket_path):
            try:
                call(socket_path, "report")
            except ControlError:
                os.unlink(socket_path)  # its owner is dead
            else:
                raise OSError(f"--control {socket_path}: another file system answers there")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(socket_path)
        os.chmod(socket_path, 0o600)
        self._server.listen()
        Thread(target=self._accept, args=(self._server,), name="control", daemon=True).start()

    def close(self, socket_path: str) -> None:
        """Stop answering commands."""
        if self._server is not None:
            self._server.close()
            os.unlink(socket_path)
            self._server = None

    def answer(self, line: bytes) -> bytes:
        """The response to one command, both without line ends."""
        try:
            request = json.loads(line)
            command = request.pop("command")
            handler = self._commands().get(command)
            if handler is None:
                raise ValueError(f"command: {command!r} is not one of {', '.join(self._commands())}")
            return json.dumps({"ok": True, **handler(request)}).encode()
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            message = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            return json.dumps({"ok": False, "error": message}).encode()

    def report(self) -> dict[str, Any]:
        """Unsynced data, requested damage and its counters, and the last power loss."""
        with self.lock:
            damage = self.injector.damage
            return {
                "mountpoint": self.mountpoint,
                "backing": self.volume.backing,
                **asdict(unsynced(self.volume)),
                "armed": damage.armed,
                "lying": damage.lying,
                "slow_ms": damage.slow_ms,
                "slow_on": sorted(damage.slow_kinds),
                "failures": [{**asdict(failure), "kinds": sorted(failure.kinds)} for failure in damage.failures],
                **asdict(self.injector.counters),
                "last_power_loss": None if self.last_loss is None else asdict(self.last_loss),
            }

    def _commands(self) -> Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        return {
            "power-loss": self._power_loss,
            "lie": self._lie,
            "slow": self._slow,
            "fail": self._fail,
            "damage": self._damage,
            "heal": self._heal,
            "report": lambda _: self.report(),
        }

    def _power_loss(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["keep"] not in tuple(Survival):
            raise ValueError(f"keep: {request['keep']!r} is not one of {', '.join(Survival)}")
        keep = Survival(request["keep"]) if self.injector.damage.armed else Survival.EVERYTHING
        seed = int(request.get("seed", 0))
        flush(self.mountpoint)
        with self.lock:
            self.last_loss = lose_power(self.volume, keep, seed)
            self.injector.counters.power_losses += 1
            return asdict(self.last_loss)

    def _lie(self, request: dict[str, Any]) -> dict[str, Any]:
        self.injector.damage = replace(self.injector.damage, lying=_flag(request))
        return self.report()

    def _slow(self, request: dict[str, Any]) -> dict[str, Any]:
        slow_ms = float(request["ms"])
        if not 0 <= slow_ms <= 60_000:
            raise ValueError(f"ms: {slow_ms:g} is not between 0 and 60000")
        kinds = _kinds(request) or frozenset(OperationKind)
        self.injector.damage = replace(self.injector.damage, slow_ms=slow_ms, slow_kinds=kinds)
        return self.report()

    def _fail(self, request: dict[str, Any]) -> dict[str, Any]:
        error = request["error"]
        if error is None:
            self.injector.damage = replace(self.injector.damage, failures=())
        elif error not in ERRORS:
            raise ValueError(f"error: {error!r} is not one of {', '.join(ERRORS)}, null")
        else:
            after, kinds = int(request.get("after") or 0), _kinds(request)
            if error == "ENOSPC" and OperationKind.READ in kinds:
                raise ValueError("on: a read needs no room, and never fails with ENOSPC")
            if after and kinds and kinds.isdisjoint(_OF_BYTES):
                raise ValueError(f"after: on {', '.join(sorted(kinds))}: only reads and writes have bytes to count")
            self.injector.fail(error, InjectedError(error, after, request.get("path"), kinds))
        return self.report()

    def _damage(self, request: dict[str, Any]) -> dict[str, Any]:
        self.injector.damage = replace(self.injector.damage, armed=_flag(request))
        return self.report()

    def _heal(self, request: dict[str, Any]) -> dict[str, Any]:
        self.injector.damage = replace(self.injector.damage, lying=False, slow_ms=0.0, failures=())
        return self.report()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed
                return
            with connection, connection.makefile("rwb") as lines:
                try:
                    for line in lines:
                        lines.write(self.answer(line) + b"\n")
                        lines.flush()
                except OSError:  # the client has gone
                    continue


def flush(mountpoint: str) -> None:
    """Make the kernel write back shared mappings, so that their pages are unsynced writes."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc.syncfs(descriptor)  # an error is the damage's doing, and a power loss's no business
    finally:
        os.close(descriptor)


def _flag(request: dict[str, Any]) -> bool:
    on = request["on"]
    if not isinstance(on, bool):
        raise ValueError(f"on: {on!r} is not true or false")
    return on


def _kinds(request: dict[str, Any]) -> frozenset[OperationKind]:
    return frozenset(OperationKind(name) for name in request.get("on") or ())
