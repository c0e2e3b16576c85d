"""Temporary directories that no killed process leaves behind for long: `faultline-<purpose>-<pid>-…` in TMPDIR.

Each is locked by the process that made it, and the operating system releases the lock with the process, however it
ends, or with the last of the processes forked from it. The first one that a process makes removes those of its user
that nobody has locked any more; a locked one, and everything of another name, is never touched. One that cannot be
locked has another name.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"faultline-[a-z]+-\d+-\w+")
_UNLOCKED: Final = ".faultline-"
"""Begins the name of a directory that is not locked, so that nobody removes it."""


@contextmanager
def temporary_directory(purpose: str) -> Iterator[Path]:
    """A new directory, removed with all that is in it at the end; `purpose` is one word in small letters. OSError."""
    home = Path(tempfile.gettempdir())
    _remove_abandoned(home)
    directory, lock = Path(tempfile.mkdtemp(prefix=_UNLOCKED, dir=home)), None
    try:
        with suppress(OSError):  # not locked, it keeps the name that nobody removes
            lock = os.open(directory, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            suffix = directory.name.removeprefix(_UNLOCKED)
            directory = directory.rename(home / f"faultline-{purpose}-{os.getpid()}-{suffix}")
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@cache
def _remove_abandoned(home: Path) -> None:
    """Remove those in `home` whose process has ended without doing so; what resists stays."""
    try:
        abandoned = [path for path in home.iterdir() if _NAME.fullmatch(path.name)]
    except OSError:  # it can be written, and not listed
        return
    for path in abandoned:
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # a link, a file, or gone
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():  # root can open those of others, too
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # in use
            continue
        finally:
            os.close(lock)
