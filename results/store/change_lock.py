"""The lock of a suite in the tables: held by the process that writes or removes one of its batches.

A batch without its file in `runs` is in progress while a process holds the lock. Otherwise a process has left it that
died: the system releases the lock of a process that ends in any way. The lock is that of the suite's directory in
`runs`, so nothing has to be cleaned up, and readers need no permission to write. A file system without locks goes
without: a batch in progress looks incomplete there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from results.errors import StoreError


@contextmanager
def changing(directory: Path) -> Iterator[None]:
    """Hold the lock of the suite with this directory in `runs`, which is made when missing; wait for other processes.
    Who holds it may remove the directory. StoreError when it cannot be made or opened."""
    descriptor = _locked(directory)
    try:
        yield
    finally:
        _release(descriptor)


def _locked(directory: Path) -> int:
    """A descriptor of the directory, locked. Who had the lock before may have removed it: then it is made anew."""
    while True:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory, os.O_RDONLY)
        except OSError as error:
            raise StoreError.of("write", directory, error) from error
        try:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_in_place(descriptor, directory):
                return descriptor
        except BaseException:
            _release(descriptor)
            raise
        _release(descriptor)


def _is_in_place(descriptor: int, directory: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except FileNotFoundError:
        return False


def _release(descriptor: int) -> None:
    with suppress(OSError):  # closing does not release it where a process was forked meanwhile, which has it open, too
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_changing(directory: Path) -> bool:
    """Whether another process holds the lock; it never waits."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
