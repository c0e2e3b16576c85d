"""The ports of a node: its file system, its randomness, its trace and its log.

A node acts on its environment only through the running event loop (time, timers, connections) and through these ports.
No module of this package uses threads, the `time` module or the `random` module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from images.trace import TraceEvent


class File(Protocol):
    """An open file. Reads see every write made through any handle, synced or not."""

    def append(self, data: bytes) -> None:
        """Write `data` at the end. Raises OSError (ENOSPC, EIO …); a short write is completed or raised."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""

    def size(self) -> int:
        """Length in bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; never extends it."""

    def fsync(self) -> None:
        """Return once every byte written so far survives a power loss."""

    def close(self) -> None:
        """Release the handle. Does not sync."""


class Files(Protocol):
    """A file system below one root. Paths are relative, `/`-separated; calls block and raise OSError."""

    def open(self, path: str) -> File:
        """Open for reading and appending; created empty, parents included, when missing."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty when it does not exist."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` atomically (a file or a whole directory)."""

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with all its content. No error if it does not exist."""

    def sync_directory(self, directory: str) -> None:
        """Return once names created, renamed and deleted in `directory` survive a power loss."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """The space on the disk of a node; -1 is unknown."""

    total_bytes: int = -1
    usable_bytes: int = -1


def loop_clock_ms() -> int:
    """The running event loop's clock in whole milliseconds."""
    return int(asyncio.get_running_loop().time() * 1000)


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports that a node gets at its start."""

    files: Files
    random: Random
    trace: Callable[[TraceEvent], None]
    """Records a protocol event, at once and in order; the receiver adds the time and the node."""
    log: Callable[[str], None]
    """Writes one line to the node's log."""
    now_ms: Callable[[], int] = loop_clock_ms
    """The wall clock, in ms, for timestamps and ages of records and for nothing that is waited for: it may be stepped.
    Unix time on a machine, time since the run began in simulation."""
    disk_space: Callable[[], DiskSpace] = DiskSpace
    """The space on the disk that `files` are on; unknown in simulation."""
