"""The lock on a data directory: one process at a time uses it.

As in Kafka the file `.lock` in the directory is locked. The operating system releases the lock with the process,
however it ends, so a file that a killed process left behind refuses nobody.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = ".lock"


class DirectoryLocked(Exception):
    """Another process uses the directory; the message is one line for the user."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock on `directory`. Raises DirectoryLocked if another process holds it, or OSError."""
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryLocked(f"log.dirs: another process uses {directory}: it has locked {LOCK_FILE}") from None
        yield
    finally:
        os.close(descriptor)
