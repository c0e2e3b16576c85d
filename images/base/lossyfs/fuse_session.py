"""One FUSE session, from mount to unmount: mfusepy's, with arguments that its callbacks drop.

These are: open files where libfuse gives no path, the flags of a rename, and "now" and "unchanged" among times. Writes
are passed on without a copy.
"""

from __future__ import annotations

import ctypes
import os
from time import time_ns
from typing import Any, Final

import mfusepy

from images.base.lossyfs.caller_affinity import CallerAffinity

UTIME_NOW: Final = (1 << 30) - 1
UTIME_OMIT: Final = (1 << 30) - 2
_UNCHANGED: Final = 2**32 - 1
_BUFFER_MAX: Final = ctypes.c_char * (16 << 20)
"""More than the kernel ever passes at once; only the part it passes is read."""


class FuseSession(mfusepy.FUSE):
    """Runs until the file system is unmounted; `operations` are `images.base.lossyfs.operations.Operations`."""

    def __init__(self, operations: Any, mountpoint: str, **options: Any) -> None:
        self._affinity = CallerAffinity()
        super().__init__(operations, mountpoint, **options)

    def _wrapper(self, function: Any, *arguments: Any, **named: Any) -> int:
        self._affinity.follow(_calling_thread)
        return super()._wrapper(function, *arguments, **named)

    _buffer_address = 0
    _buffer: memoryview
    """libfuse passes every write in the same memory, which is wrapped once."""

    def write(self, path: Any, buffer: Any, size: int, offset: int, file_info: Any) -> int:
        address = ctypes.addressof(buffer.contents)
        if address != self._buffer_address:
            self._buffer_address = address
            self._buffer = memoryview(_BUFFER_MAX.from_address(address))
        return self.operations.write(None, self._buffer[:size], offset, file_info.contents)

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        return self.operations.rename(os.fsdecode(old), os.fsdecode(new), flags)

    def truncate_fuse_3(self, path: bytes | None, size: int, file_info: Any) -> int:
        return self.operations.truncate(*_file(path, file_info, size))

    def chmod_fuse_3(self, path: bytes | None, mode: int, file_info: Any) -> int:
        return self.operations.chmod(*_file(path, file_info, mode))

    def chown_fuse_3(self, path: bytes | None, user: int, group: int, file_info: Any) -> int:
        return self.operations.chown(*_file(path, file_info, *(-1 if i == _UNCHANGED else i for i in (user, group))))

    def utimens_fuse_3(self, path: bytes | None, times: Any, file_info: Any) -> int:
        before = self.operations.getattr(*_file(path, file_info))
        access, change = times.contents.actime, times.contents.modtime
        ns = _ns(access, before["st_atime"]), _ns(change, before["st_mtime"])
        return self.operations.utimens(*_file(path, file_info, ns))


def _calling_thread() -> int:
    return int(mfusepy.fuse_get_context()[2])


def _ns(wanted: Any, before: int) -> int:
    if wanted.tv_nsec == UTIME_OMIT:
        return before
    return time_ns() if wanted.tv_nsec == UTIME_NOW else wanted.tv_sec * 10**9 + wanted.tv_nsec


def _file(path: bytes | None, file_info: Any, *arguments: Any) -> tuple[Any, ...]:
    return None if path is None else os.fsdecode(path), *arguments, file_info.contents if file_info else None
