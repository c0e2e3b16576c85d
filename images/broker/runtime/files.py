"""The operating system's files, as the `Files` door: every path lies below one root directory.

Calls block, and on the event loop they are meant to: nothing in a node uses threads. Errors are the operating system's
OSError, naming the path. Nothing is cached here: what a call returned is what the kernel was told.

`write_durably` and `read_whole` work through any `Files`: small files such as checkpoints go through them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath

from images.broker.ports import Files

TEMPORARY_SUFFIX = ".tmp"


def write_durably(files: Files, path: str, data: bytes) -> None:
    """Make `path` hold `data`: after a power loss at any moment it is there whole, old or new.

    On return the new content survives one too. A crash may leave `path` + `.tmp` behind.
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


def read_whole(files: Files, path: str) -> bytes | None:
    """All that `path` holds, None when it is missing."""
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


class RealFile:
    """An open file; appends go to its end at the time of the call, reads to any place."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, data: bytes) -> None:
        """Write all of `data` at the end. After an OSError part of it may be there."""
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
        """Length in bytes."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes; a file that is shorter stays as it is."""
        try:
            if size < self.size():
                os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._named(error) from None

    def fsync(self) -> None:
        """Return once every byte written so far survives a power loss."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        """The same error with the path, which the system leaves out where it was given a descriptor."""
        return OSError(error.errno, error.strerror, str(self._path))

    def close(self) -> None:
        """Release the handle; again does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __repr__(self) -> str:
        return f"RealFile({str(self._path)!r})"


class RealFiles:
    """The file system below `root`, which is created when missing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        self._root.mkdir(parents=True, exist_ok=True)

    def open(self, path: str) -> RealFile:
        """Open for reading and appending; created empty, parents included, when missing."""
        real = self._below_root(path)
        try:
            return RealFile(real)
        except FileNotFoundError:
            real.parent.mkdir(parents=True, exist_ok=True)
            return RealFile(real)

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        return self._below_root(path).exists()

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty when it does not exist."""
        try:
            return sorted(os.listdir(self._below_root(directory)))
        except FileNotFoundError:
            return []

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` atomically (a file, or a directory where none stands)."""
        self._below_root(source).replace(self._below_root(target))

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with all below it. Nothing happens when it is missing."""
        real = self._below_root(path)
        try:
            if real.is_dir() and not real.is_symlink():
                shutil.rmtree(real)
            else:
                real.unlink(missing_ok=True)
        except FileNotFoundError:
            return

    def sync_directory(self, directory: str) -> None:
        """Return once names created, renamed and deleted in `directory` survive a power loss."""
        descriptor = os.open(self._below_root(directory), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _below_root(self, path: str) -> Path:
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"{path!r} is not a path below the root")
        return self._root / relative
