"""The disk of a machine as one of its processes sees it: implements the broker's port `Files`.

Each process has a view of its own, which has no more effects once the process is dead. Every change first asks the
crash point (`harness.simulation.crash_points`), which may end the process instead.
"""

from __future__ import annotations

import errno

from harness.simulation.crash_points import CrashPoint
from harness.simulation.storage.disk import SimDisk
from harness.simulation.storage.inodes import Inode, SimDirectory, lies_below, names_of


class SimFile:
    """An open file of a mounted disk; `ports.File`."""

    __slots__ = ("_file", "_files", "_open")

    def __init__(self, files: SimFiles, file: Inode) -> None:
        self._files = files
        self._file = file
        self._open = True

    def append(self, data: bytes) -> None:
        """Write at the end. Raises OSError ENOSPC when the disk is full, after writing what fits."""
        self._check()
        if self._files.takes_effect():
            self._files.disk.append(self._file, bytes(data))

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`."""
        self._check()
        return bytes(memoryview(self._file.data)[offset : offset + size])

    def size(self) -> int:
        """Length in bytes."""
        self._check()
        return len(self._file.data)

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes; never extends."""
        self._check()
        if self._files.takes_effect():
            self._files.disk.truncate(self._file, size)

    def fsync(self) -> None:
        """Make the contents durable. Raises OSError ENOSPC while syncs fail."""
        self._check()
        if self._files.takes_effect():
            self._files.disk.fsync(self._file)

    def close(self) -> None:
        """Release the handle; again does nothing."""
        self._open = False

    def _check(self) -> None:
        if not self._open:
            raise OSError(errno.EBADF, "Bad file descriptor")


class SimFiles:
    """A disk as one process sees it; `ports.Files`. Once unmounted, what would change the disk does nothing."""

    __slots__ = ("_crash_point", "_mounted", "disk")

    def __init__(self, disk: SimDisk, crash_point: CrashPoint | None = None) -> None:
        self.disk = disk
        self._crash_point = crash_point or CrashPoint()
        self._mounted = True

    def unmount(self) -> None:
        """The process is dead: no more effects."""
        self._mounted = False

    def takes_effect(self) -> bool:
        """Whether a change may go ahead now; reaches the crash point."""
        if self._crash_point.armed and self._mounted:
            self._crash_point.reach()
        return self._mounted

    def open(self, path: str) -> SimFile:
        """Open for reading and appending; created empty, parents included, when missing."""
        disk = self.disk
        entry = disk.find(path)
        if isinstance(entry, Inode):
            return SimFile(self, entry)
        if entry is not None:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        file = disk.new_file()
        if self.takes_effect():
            *parents, name = names_of(path)
            directory = disk.directory(parents, path, create=True)
            disk.change("create", path, (directory, name, file))
        return SimFile(self, file)

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        try:
            return self.disk.find(path) is not None
        except NotADirectoryError:
            return False

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty when it does not exist."""
        entry = self.disk.find(directory)
        if isinstance(entry, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", directory)
        return sorted(entry.entries) if entry is not None else []

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`: a file by a file, or a directory where none or an empty one stands."""
        if not self._mounted:
            return
        disk = self.disk
        *source_parents, source_name = names_of(source)
        *target_parents, target_name = names_of(target)
        source_directory = disk.directory(source_parents, source, create=False)
        target_directory = disk.directory(target_parents, target, create=False)
        entry = source_directory.entries.get(source_name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
        replaced = target_directory.entries.get(target_name)
        if replaced is entry:
            return
        if isinstance(entry, SimDirectory) and lies_below(target_directory, entry):
            raise OSError(errno.EINVAL, "Invalid argument", target)
        if isinstance(replaced, SimDirectory):
            if isinstance(entry, SimDirectory) or lies_below(source_directory, replaced):
                if replaced.entries:
                    raise OSError(errno.ENOTEMPTY, "Directory not empty", target)
            else:
                raise IsADirectoryError(errno.EISDIR, "Is a directory", target)
        elif isinstance(replaced, Inode) and isinstance(entry, SimDirectory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", target)
        if self.takes_effect():
            if isinstance(replaced, Inode):
                disk.release(replaced)
            disk.change(
                "rename",
                f"{source}\0{target}",
                (source_directory, source_name, None),
                (target_directory, target_name, entry),
            )
            if isinstance(entry, SimDirectory):
                entry.parent, entry.name = target_directory, target_name

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with all below it. Nothing happens when it is missing."""
        if self.disk.find(path) is None:
            return
        *parents, name = names_of(path)
        if self.takes_effect():
            self.disk.delete(path, self.disk.directory(parents, path, create=False), name)

    def sync_directory(self, directory: str) -> None:
        """Make the changes in a directory durable. Raises OSError ENOSPC while syncs fail."""
        if not self._mounted:
            return
        place = self.disk.directory(names_of(directory), directory, create=False)
        if self.takes_effect():
            self.disk.sync_directory(place, directory)
