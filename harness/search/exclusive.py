"""What a search goes on with belongs to one process at a time: a corpus, a record, a checkpoint."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from results.errors import StoreError


@contextmanager
def kept_for_this_process(owned: Path, lock_file: Path, directory: Path, taken: str) -> Iterator[None]:
    """Make the directory, and keep `owned` for this process. StoreError when another one has it, in the words of
    `taken`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = lock_file.open("w")
    except FileExistsError:
        raise StoreError(f"{directory}: is not a directory") from None
    except OSError as error:
        raise StoreError.of("write", owned, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(f"{owned}: {taken}") from None
        yield
