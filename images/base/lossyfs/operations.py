"""FUSE operations, called by libfuse through mfusepy: each checks the damage, then uses the volume.

One operation runs at a time (libfuse's single-threaded loop). Delays are slept before the lock is taken, so that
control commands are answered meanwhile. The kernel never caches names, and caches file contents only while a file is
open: a file opened or looked up after a power loss has the content that the loss left.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import mfusepy

from images.base.lossyfs.damage import DamageInjector, OperationKind
from images.base.lossyfs.volume import FileHandle, Owner, Volume

ATTRIBUTES_CACHED_S: Final = 1000.0
"""All changes pass through the kernel, which keeps them up to date; a look-up by name fetches them in any case."""
MIXED_DIRECT_IO_SINCE: Final = (7, 39)
"""Kernels from Linux 6.6 on keep cached pages in step with writes past the cache."""
RENAME_NOREPLACE: Final = 1
_SPLICING: Final = (1 << 7) | (1 << 8) | (1 << 9)


class Operations(mfusepy.Operations):
    """The operations that mfusepy calls. `file_info` is libfuse's record of an open file; its `fh` is the backing
    descriptor."""

    use_ns = True

    def __init__(
        self,
        volume: Volume,
        injector: DamageInjector,
        lock: Lock,
        *,
        cached: bool,
        through: bool,
    ) -> None:
        self._volume = volume
        self._injector = injector
        self._lock = lock
        self._direct = not cached
        self._through = through

    def init_with_config(self, connection: Any, config: Any) -> None:
        """Set the options of the kernel connection and of libfuse."""
        config.use_ino = 1
        config.nullpath_ok = 1
        config.entry_timeout = config.negative_timeout = 0.0
        config.attr_timeout = ATTRIBUTES_CACHED_S
        connection.want &= ~_SPLICING
        self._direct &= (connection.proto_major, connection.proto_minor) >= MIXED_DIRECT_IO_SINCE

    # ---- what changes nothing ----------------------------------------------------------------------------------------

    def getattr(self, path: str | None, file_info: Any = None) -> dict[str, int]:
        with self._lock:
            if file_info is not None:
                return _attributes(os.fstat(file_info.fh))
            return _attributes(os.lstat(self._volume.backing_path(_existing_path(path))))

    def readlink(self, path: str) -> str:
        with self._lock:
            return os.readlink(self._volume.backing_path(path))

    def opendir(self, path: str) -> int:
        with self._lock:
            return os.open(self._volume.backing_path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def readdir(self, path: str | None, descriptor: int) -> list[tuple[str, dict[str, int], int]]:
        with self._lock:
            entries = [(".", {}), ("..", {}), *self._volume.list(descriptor)]
            return [(name, attributes, 0) for name, attributes in entries]

    def releasedir(self, path: str | None, descriptor: int) -> int:
        os.close(descriptor)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self._volume.backing)
        return {name: getattr(status, name) for name in dir(status) if name.startswith("f_")}

    # ---- contents ----------------------------------------------------------------------------------------------------

    def create(self, path: str, mode: int, file_info: Any) -> int:
        with self._change(path, grows=True):
            return self._open_handle(self._volume.create(path, file_info.flags, mode, _caller()), file_info)

    def open(self, path: str, file_info: Any) -> int:
        with self._lock:
            return self._open_handle(self._volume.open(path, file_info.flags), file_info)

    def read(self, path: str | None, size: int, offset: int, file_info: Any) -> bytes:
        self._injector.delay(OperationKind.READ)
        with self._lock:
            handle, _ = self._check_handle(file_info.fh, OperationKind.READ, size)
            return os.pread(handle.descriptor, size, offset)

    def write(self, path: str | None, data: memoryview, offset: int, file_info: Any) -> int:
        if self._injector.damage.acts:
            self._injector.delay(OperationKind.WRITE)
        with self._lock:
            handle, allowed = self._check_handle(file_info.fh, OperationKind.WRITE, len(data), offset)
            return self._volume.write(handle, data if allowed == len(data) else data[:allowed], offset)

    def truncate(self, path: str | None, size: int, file_info: Any = None) -> int:
        self._injector.delay(OperationKind.WRITE)
        with self._lock:
            if file_info is not None:
                handle, _ = self._check_handle(file_info.fh, OperationKind.WRITE)
                self._volume.truncate_open(handle, size)
            else:
                known = _existing_path(path)
                self._injector.allow(OperationKind.WRITE, lambda: known)
                self._volume.truncate(known, size)
        return 0

    def fallocate(self, path: str | None, mode: int, offset: int, size: int, file_info: Any) -> int:
        if mode != 0:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        self._injector.delay(OperationKind.WRITE)
        with self._lock:
            handle, allowed = self._check_handle(file_info.fh, OperationKind.WRITE, size, offset)
            if allowed < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._volume.allocate(handle, offset, size)
        return 0

    def release(self, path: str | None, file_info: Any) -> int:
        with self._lock:
            self._volume.release(self._volume.handles[file_info.fh])
        return 0

    # ---- durability --------------------------------------------------------------------------------------------------

    def fsync(self, path: str | None, data_only: int, file_info: Any) -> int:
        self._injector.delay(OperationKind.SYNC)
        with self._lock:
            handle, _ = self._check_handle(file_info.fh, OperationKind.SYNC)
            if not self._injector.lies():
                if self._through:
                    os.fsync(handle.descriptor)
                self._volume.sync_file(handle.node)
        return 0

    def fsyncdir(self, path: str | None, data_only: int, descriptor: int) -> int:
        self._injector.delay(OperationKind.SYNC)
        with self._lock:
            self._injector.allow(OperationKind.SYNC, lambda: self._volume.path_of_directory(descriptor) or "")
            if not self._injector.lies():
                if self._through:
                    os.fsync(descriptor)
                self._volume.sync_directory(descriptor)
        return 0

    # ---- names -------------------------------------------------------------------------------------------------------

    def mkdir(self, path: str, mode: int) -> int:
        with self._change(path, grows=True):
            self._volume.mkdir(path, mode, _caller())
        return 0

    def mknod(self, path: str, mode: int, device: int) -> int:
        with self._change(path, grows=True):
            self._volume.mknod(path, mode, device, _caller())
        return 0

    def symlink(self, path: str, target: str) -> int:
        with self._change(path, grows=True):
            self._volume.symlink(path, target, _caller())
        return 0

    def unlink(self, path: str) -> int:
        with self._change(path):
            self._volume.unlink(path)
        return 0

    def rmdir(self, path: str) -> int:
        with self._change(path):
            self._volume.rmdir(path)
        return 0

    def rename(self, old: str, new: str, flags: int = 0) -> int:
        if flags & ~RENAME_NOREPLACE:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        with self._change(new):
            self._volume.rename(old, new, replace=not flags & RENAME_NOREPLACE)
        return 0

    def link(self, target: str, source: str) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))  # what file systems without hard links answer

    # ---- what is durable at once -------------------------------------------------------------------------------------

    def chmod(self, path: str | None, mode: int, file_info: Any = None) -> int:
        os.chmod(self._target(path, file_info), mode)
        return 0

    def chown(self, path: str | None, user: int, group: int, file_info: Any = None) -> int:
        target = self._target(path, file_info)
        os.chown(target, user, group, follow_symlinks=isinstance(target, int))
        return 0

    def utimens(self, path: str | None, times: tuple[int, int], file_info: Any = None) -> int:
        target = self._target(path, file_info)
        os.utime(target, ns=times, follow_symlinks=isinstance(target, int))
        return 0

    # ---- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _change(self, path: str, *, grows: bool = False) -> Iterator[None]:
        """Context of a change of names."""
        self._injector.delay(OperationKind.CHANGE)
        with self._lock:
            self._injector.allow(OperationKind.CHANGE, lambda: path, grows=grows)
            yield

    def _check_handle(
        self, descriptor: int, kind: OperationKind, size: int = 0, offset: int = 0
    ) -> tuple[FileHandle, int]:
        """The open file, and how many bytes of the operation go through; the lock is held."""
        handle = self._volume.handles[descriptor]
        if handle.stale:
            raise OSError(errno.EIO, "opened before the power went")
        if not self._injector.damage.acts:
            return handle, size
        node = handle.node
        grows = kind is OperationKind.WRITE and offset + size > node.size
        return handle, self._injector.allow(kind, lambda: self._volume.path_of(node), size, grows=grows)

    def _open_handle(self, handle: FileHandle, file_info: Any) -> int:
        file_info.fh = handle.descriptor
        flags = file_info.flags
        # The kernel follows a write to an O_SYNC or O_DSYNC handle with fsync, unless it went past the page cache.
        synchronous = flags & os.O_DSYNC
        if self._direct and not synchronous and (flags & os.O_APPEND or flags & os.O_ACCMODE == os.O_WRONLY):
            file_info.direct_io = 1
        return 0

    def _target(self, path: str | None, file_info: Any) -> str | int:
        return self._volume.backing_path(_existing_path(path)) if file_info is None else int(file_info.fh)


def _existing_path(path: str | None) -> str:
    if path is None:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    return path


def _caller() -> Owner:
    user, group, _ = mfusepy.fuse_get_context()
    return user, group


def _attributes(status: os.stat_result) -> dict[str, int]:
    return {
        "st_mode": status.st_mode,
        "st_ino": status.st_ino,
        "st_nlink": status.st_nlink,
        "st_uid": status.st_uid,
        "st_gid": status.st_gid,
        "st_rdev": status.st_rdev,
        "st_size": status.st_size,
        "st_blocks": status.st_blocks,
        "st_blksize": status.st_blksize,
        "st_atime": status.st_atime_ns,
        "st_mtime": status.st_mtime_ns,
        "st_ctime": status.st_ctime_ns,
    }
