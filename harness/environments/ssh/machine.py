"""A host reached by SSH, as a machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePosixPath
from typing import Self, TypeVar

from harness.cluster.hosts import Host
from harness.environments.machines.machine import MachineError, Stream
from harness.environments.machines.pumped_stream import PumpedStream
from harness.environments.ssh.connection import SESSIONS, SshConnection

T = TypeVar("T")

_START_LIMIT_S = 60.0
_TRANSFER_LIMIT_S = 300.0
_TAR = """
[ -e "$1/$2" ] || { echo "there is no $1/$2" >&2; exit 1; }
tar --warning=no-file-changed -C "$1" -cf - -- "$2"
status=$?
[ $status -le 1 ] || exit $status
"""
"""Status 1 of tar: a file grew or went while it was read. The archive has what was there when tar reached the file."""


class SshMachine:
    """See machines.Machine. One connection, and as many threads as it has sessions: paramiko's calls block."""

    def __init__(self, name: str, connection: SshConnection) -> None:
        self._name = name
        self._connection = connection
        self._threads = ThreadPoolExecutor(SESSIONS, thread_name_prefix=f"ssh-{name}")
        self._closed = False

    @classmethod
    async def connect(cls, name: str, host: Host) -> Self:
        """Log in. Raises MachineError."""
        return cls(name, await asyncio.to_thread(SshConnection.open, name, host))

    @property
    def name(self) -> str:
        """See machines.Machine."""
        return self._name

    @property
    def address(self) -> str:
        """See machines.Machine."""
        return self._connection.peer_address

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 120.0) -> bytes:
        """See machines.Machine."""
        return await self._in_thread(partial(self._connection.run, argv, stdin, timeout_s))

    async def open(self, argv: Sequence[str]) -> Stream:
        """See machines.Streams."""
        return PumpedStream(*await self._in_thread(partial(self._connection.start, argv, _START_LIMIT_S)))

    async def put(self, contents: bytes, path: str, *, mode: int = 0o644) -> None:
        """See machines.Machine."""
        await self._in_thread(partial(self._connection.put, contents, path, mode, _TRANSFER_LIMIT_S))

    async def fetch(self, path: str) -> bytes:
        """See machines.Machine."""
        place = PurePosixPath(path)
        return await self.run(
            ["sh", "-c", _TAR, "sh", str(place.parent), place.name],
            timeout_s=_TRANSFER_LIMIT_S,
        )

    async def close(self) -> None:
        """End the connection; commands that still run over it fail, and have done so on return."""
        self._closed = True
        self._connection.close()
        await asyncio.to_thread(self._threads.shutdown)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise MachineError(f"{self._name}: its SSH connection is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
