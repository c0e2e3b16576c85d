"""Commands and files over one SSH connection to one host.

Calls block and may come from several threads: every command has a channel of its own on the one connection. Everything
runs as root: by `sudo -n` for any other user. Nothing that has begun is retried.
"""

from __future__ import annotations

import secrets
import select
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Self

import paramiko

from harness.cluster.hosts import Host
from harness.environments.machines.machine import CommandFailed, MachineError
from harness.environments.ssh.install import PROGRAMS
from harness.environments.ssh.login import LOGIN_LIMIT_S, logged_in, reason_of

SESSIONS: Final = 8
"""Channels open at once: sshd allows ten by default (MaxSessions)."""

_CHUNK = 1 << 16
_CONNECT_FAILED = 2  # RFC 4254, 5.1
_REFUSED_POLL_S = 0.05
_PATH = f"{PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SshConnection:
    """Open with `SshConnection.open`; close it when done."""

    def __init__(self, name: str, host: Host, transport: paramiko.Transport) -> None:
        self._name = name
        self._host = host
        self._transport = transport
        self._sessions = threading.Semaphore(SESSIONS)
        self._opening = threading.Lock()
        """One session is opened at a time: paramiko has one place for the error of a refused one."""

    @classmethod
    def open(cls, name: str, host: Host) -> Self:
        """Connect, check the host's key, log in. `name` is the node's, for messages. Raises MachineError."""
        connection = cls(name, host, logged_in(name, host))
        try:
            connection._check_root()
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def peer_address(self) -> str:
        """The host's IPv4 address."""
        address, _ = self._transport.getpeername()
        return str(address)

    def run(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> bytes:
        """See machines.Machine."""
        what = shlex.join(argv)
        status, out, err = self._execute(self._root_command(what), what, stdin, timeout_s)
        if status != 0:
            lines = err.decode(errors="replace").strip().splitlines()
            ended = f"ended with status {status}" if status > 0 else "was ended by a signal"
            raise CommandFailed(f"{self._name}: {lines[-1] if lines else f'{what} {ended}'}", status)
        return out

    def start(
        self, argv: Sequence[str], timeout_s: float
    ) -> tuple[Iterator[bytes], Callable[[bytes], None], Callable[[], None]]:
        """Start a command, which has a session for as long as it runs: what it writes, what writes to it, what ends it.
        Raises MachineError."""
        what = shlex.join(argv)
        if not self._sessions.acquire(timeout=timeout_s):
            raise MachineError(f"{self._name}: {what} has not started after {timeout_s:g} s")
        try:
            channel = self._open_session(time.monotonic() + timeout_s)
            channel.exec_command(self._root_command(what))
        except (paramiko.SSHException, OSError, EOFError) as error:
            self._sessions.release()
            raise self._cut_off(what, reason_of(error)) from None

        def written() -> Iterator[bytes]:
            try:
                while chunk := channel.recv(_CHUNK):
                    yield chunk
            finally:
                self._sessions.release()

        def send(data: bytes) -> None:
            try:
                channel.sendall(data)
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise self._cut_off(what, reason_of(error)) from None

        return written(), send, channel.close

    def put(self, contents: bytes, path: str, mode: int, timeout_s: float) -> None:
        """See machines.Machine. Goes by SFTP into a place of the user's own and is moved from there."""
        staged = f"/tmp/.faultline-{secrets.token_hex(8)}"
        move = 'mkdir -p "${2%/*}/" && chown 0:0 "$1" && chmod "$3" "$1" && mv -f "$1" "$2"'
        try:
            self._stage(contents, staged, timeout_s)
            self.run(["sh", "-c", move, "sh", staged, path, f"{mode:o}"], b"", timeout_s)
        except MachineError:
            with suppress(MachineError):
                self.run(["rm", "-f", staged], b"", LOGIN_LIMIT_S)
            raise

    def _stage(self, contents: bytes, staged: str, timeout_s: float) -> None:
        with self._sessions:
            try:
                with self._open_session(time.monotonic() + timeout_s) as channel:
                    channel.settimeout(timeout_s)
                    channel.invoke_subsystem("sftp")
                    client = paramiko.SFTPClient(channel)
                    with client.open(staged, "wx") as file:
                        file.chmod(0o600)
                        file.set_pipelined(True)  # which drops what the host says of each write
                        file.write(contents)
                    arrived = client.stat(staged).st_size
                    if arrived != len(contents):
                        raise OSError(f"{arrived} of {len(contents)} bytes could be written")
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise MachineError(f"{self._name}: SFTP to {self._host.address} failed: {reason_of(error)}") from None

    def close(self) -> None:
        """End the connection; commands that still run over it fail."""
        self._transport.close()

    def _root_command(self, what: str) -> str:
        as_root = "" if self._host.user == "root" else "sudo -n -- "
        return f"{as_root}env PATH={_PATH} {what}"

    def _check_root(self) -> None:
        try:
            user = self.run(["id", "-u"], b"", LOGIN_LIMIT_S).decode(errors="replace").strip()
        except CommandFailed as error:
            raise MachineError(
                f"{self._name}: {self._host.user} cannot become root on {self._host.address} without a password "
                f"({str(error).removeprefix(f'{self._name}: ')}); allow it in sudoers with NOPASSWD"
            ) from None
        if user != "0":
            raise MachineError(f"{self._name}: {self._host.user} is not root on {self._host.address}")

    def _execute(self, command: str, what: str, stdin: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
        """Exit status (below 0 when there is none), stdout, stderr."""
        deadline = time.monotonic() + timeout_s
        late = MachineError(f"{self._name}: {what} has not ended after {timeout_s:g} s")
        if not self._sessions.acquire(timeout=timeout_s):
            raise late
        try:
            with self._open_session(deadline) as channel:
                channel.exec_command(command)
                out, err = bytearray(), bytearray()
                unsent = memoryview(stdin)
                if not unsent:
                    channel.shutdown_write()
                while not (channel.exit_status_ready() and channel.eof_received) and not channel.closed:
                    if time.monotonic() > deadline:
                        raise late
                    if unsent and channel.send_ready():
                        unsent = unsent[channel.send(bytes(unsent[:_CHUNK])) :]
                        if not unsent:
                            channel.shutdown_write()
                    elif channel.eof_received:
                        channel.status_event.wait(0.2)
                    else:
                        # With input left the window may open at any time, which no descriptor shows.
                        select.select([channel], [], [], 0.005 if unsent else 0.2)
                    _drain(channel, out, err)
                _drain(channel, out, err)
                status = channel.exit_status
        except (paramiko.SSHException, OSError, EOFError) as error:
            if self._transport.is_active() and time.monotonic() > deadline:
                raise late from None
            raise self._cut_off(what, reason_of(error)) from None
        finally:
            self._sessions.release()
        if status < 0 and not self._transport.is_active():
            raise self._cut_off(what, "the connection broke")
        return status, bytes(out), bytes(err)

    def _open_session(self, deadline: float) -> paramiko.Channel:
        """A new session. sshd counts one that was closed for a moment longer, and refuses those beyond its limit."""
        while True:
            try:
                with self._opening:
                    return self._transport.open_session(timeout=max(deadline - time.monotonic(), 0.1))
            except paramiko.ChannelException as refused:
                if refused.code != _CONNECT_FAILED or time.monotonic() > deadline:
                    raise
                time.sleep(_REFUSED_POLL_S)

    def _cut_off(self, what: str, why: str) -> MachineError:
        return MachineError(f"{self._name}: {what} was cut off: SSH to {self._host.address}: {why}")


def _drain(channel: paramiko.Channel, out: bytearray, err: bytearray) -> None:
    while channel.recv_ready():
        out += channel.recv(_CHUNK)
    while channel.recv_stderr_ready():
        err += channel.recv_stderr(_CHUNK)
