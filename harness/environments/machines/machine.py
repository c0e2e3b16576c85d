"""Nodes on machines: whatever can run a command may be a machine, a container as well as a host.

A `Machine` is the least an environment must offer: run a command, put a file there, fetch what is there. Everything
else that an environment needs of a node is done *on* the machine by the node agent, the command `faultline-node`
(images/base/agent), which every image carries and which the SSH environment installs:

    describe                what the machine can do: kernel, nftables, netem, FUSE, libfaketime, and its true clock
    prepare                 JSON on stdin: files, directories, the disk to mount; then as describe
    start                   JSON on stdin: argv, environment, log …; starts the system's process under a supervisor
    stop, kill              SIGTERM and wait, SIGKILL and wait
    power-off               SIGKILL and wait, then the disk drops what was not synced
    wipe                    SIGKILL and wait, then all data is deleted
    pause, resume           SIGSTOP, SIGCONT; what had arrived and waited in between
    status, wait            whether the process runs and how earlier ones ended; return once it has ended
    network                 JSON on stdin: every link to be cut or degraded; replaces the rules at once, gives counters
    clock                   read, set, reset: libfaketime's live file; the offset read back inside
    disk                    mount, unmount, and requests to the lossy file system under the data
    serve                   all of these but the next, a line on stdin each, answered by a line on stdout
    collect                 a tar of data, log and trace on stdout, as processes on the machine see them
    remove                  ends what was started, unmounts, deletes the rules: the machine is as it was

Every other command prints one JSON object on stdout and exits 0, or prints one line on stderr and exits 1.
`harness.environments.machines.deployment` is the cluster made of such machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

from harness.errors import EnvironmentUnavailable


class MachineError(EnvironmentUnavailable):
    """A command on a machine failed; the message is one line naming the machine and what went wrong."""


class MachineVanished(MachineError):
    """The machine is no longer there: something outside the run removed it."""


class CommandFailed(MachineError):
    """A command ran on the machine and ended with a status other than 0; the message ends in its last output."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @classmethod
    def of(cls, machine: str, command: str, status: int | None, err: str) -> Self:
        """The failure of a command whose last line of output says why, in its own name; None: its status is unknown."""
        lines = err.strip().splitlines()
        why = lines[-1].removeprefix(f"{command}: ") if lines else f"{command} ended with status {status}"
        return cls(f"{machine}: {why}", -1 if status is None else status)


class Machine(Protocol):
    """One container or host. Calls may overlap: several commands run at the same time. Nothing here retries."""

    @property
    def name(self) -> str:
        """The node's name: b1, c1 …"""

    @property
    def address(self) -> str:
        """The IPv4 address at which the other nodes and the clients reach it; packets it sends come from there."""

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 120.0) -> bytes:
        """Run a command as root, `stdin` being all it reads, and give back its stdout once it has ended.

        `argv` is not interpreted by a shell. Raises CommandFailed for a status that is not 0, and MachineError when
        the machine cannot be reached or the command has not ended after `timeout_s` (it may still go on then). When
        the caller is cancelled the command may go on as well.
        """

    async def put(self, contents: bytes, path: str, *, mode: int = 0o644) -> None:
        """Make the file `path` hold `contents`; directories above it are made. Raises MachineError."""

    async def fetch(self, path: str) -> bytes:
        """`path` and all below it as an uncompressed tar whose names are relative to `path`'s parent.

        As a process on the machine sees it, file systems mounted there included. Raises MachineError.
        """


class Stream(Protocol):
    """The stdin and stdout of a command that runs on a machine."""

    async def send(self, data: bytes) -> None:
        """Write to its stdin. Raises MachineError once it cannot be."""

    async def receive(self) -> bytes:
        """What it wrote next; nothing once it has ended or cannot be reached."""

    def close(self) -> None:
        """End its stdin, and whatever waits in `receive`."""


@runtime_checkable
class Streams(Protocol):
    """A machine on which a command can be talked to while it runs."""

    async def open(self, argv: Sequence[str]) -> Stream:
        """Start a command as `Machine.run` does. What it writes to stderr is lost. Raises MachineError."""


@runtime_checkable
class Freezer(Protocol):
    """A machine that can also be frozen from outside, with everything on it (the cgroup freezer: docker pause)."""

    async def freeze(self) -> None:
        """Freeze every process. No command runs on the machine until `thaw`. Raises MachineError."""

    async def thaw(self) -> int | None:
        """Let them run again; gives back how many packets had reached the machine meanwhile, None if that cannot be
        read. Raises MachineError, and it is frozen still."""
