"""The operating system's files as the `Files` port: all paths are below one root directory.

Calls block the event loop on purpose: a node uses no threads. Errors are the operating system's OSError, with the path.
Nothing is cached: a call returns after the system call.

`write_durably`, `sync_parents` and `read_whole` work on any `Files`; small files such as checkpoints are written with
them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath

from images.broker.ports import DiskSpace, Files

TEMPORARY_SUFFIX = ".tmp"


def write_durably(files: Files, path: str, data: bytes) -> None:
    """Make `path` hold `data`: after a power loss at any time the file is whole, old or new.

    On return the new content is durable. A crash may leave `path` + `.tmp` behind.
    """
    temporary = path + TEMPORARY_SUFFIX
    files.delete(temporary)
    file = files.open(temporary)
    try:
        file.append(data)
        file.fsync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_directory(path.rpartition("/")[0])


def sync_parents(files: Files, directory: str) -> None:
    """Return once the names of `directory` and of all directories above it are durable."""
    while directory:
        directory = directory.rpartition("/")[0]
        files.sync_directory(directory)


def read_whole(files: Files, path: str) -> bytes | None:
    """The content of `path`, None if it does not exist."""
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


class RealFile:
    """An open file; appends go to its end at the time of the call, reads anywhere."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, data: bytes) -> None:
        """Append all of `data`. After an OSError a part of it may be in the file."""
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):  # a signal or a nearly full disk: go on, so that the caller sees all or an error
                rest = memoryview(data)[written:]
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise self._named(error) from None

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""
        try:
            data = os.pread(self._descriptor, size, offset)
            if not data or len(data) == size:
                return data
            parts = [data]
            have = len(data)
            while have < size and (data := os.pread(self._descriptor, size - have, offset + have)):
                parts.append(data)
                have += len(data)
        except OSError as error:
            raise self._named(error) from None
        return b"".join(parts)

    def size(self) -> int:
        """Size in bytes."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes; a shorter file stays unchanged."""
        try:
            if size < self.size():
                os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._named(error) from None

    def fsync(self) -> None:
        """Return once all bytes written so far are durable."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        """The error with the path, which the system leaves out for a descriptor."""
        return OSError(error.errno, error.strerror, str(self._path))

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __repr__(self) -> str:
        return f"RealFile({str(self._path)!r})"


class RealFiles:
    """The file system below `root`, which is created if missing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        self._root.mkdir(parents=True, exist_ok=True)

    def open(self, path: str) -> RealFile:
        """Open for reading and appending; creates an empty file and its parents if missing."""
        real = self._below_root(path)
        try:
            return RealFile(real)
        except FileNotFoundError:
            real.parent.mkdir(parents=True, exist_ok=True)
            return RealFile(real)

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists."""
        return self._below_root(path).exists()

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty if it does not exist."""
        try:
            return sorted(os.listdir(self._below_root(directory)))
        except FileNotFoundError:
            return []

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically, replacing a file."""
        self._below_root(source).replace(self._below_root(target))

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content. No effect if missing."""
        real = self._below_root(path)
        try:
            if real.is_dir() and not real.is_symlink():
                shutil.rmtree(real)
            else:
                real.unlink(missing_ok=True)
        except FileNotFoundError:
            return

    def sync_directory(self, directory: str) -> None:
        """Return once names created, renamed and deleted in `directory` are durable."""
        descriptor = os.open(self._below_root(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def disk_space(self) -> DiskSpace:
        """The space on the file system of the root directory."""
        usage = shutil.disk_usage(self._root)
        return DiskSpace(usage.total, usage.free)

    def _below_root(self, path: str) -> Path:
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"{path!r} is not a path below the root")
        return self._root / relative
