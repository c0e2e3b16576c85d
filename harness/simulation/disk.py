"""A simulated disk: what a process sees of its files, and what a power loss leaves of them.

Two images are kept. The *page cache* is what every read sees; it survives the death of the process. The *durable*
image is what was synced. Between them lie, in order, the writes of each file since its last fsync and one journal
of directory changes (create, rename, delete). A power loss keeps, as `nemesis.ports.Keep` says:

- of each file's unsynced writes and truncations a prefix, each file for itself; with TORN the last write kept may
  be cut;
- of the journal a prefix: a file whose creation was lost has vanished with its contents, a rename left either the
  old or the new, whole, and deleting a directory may have got halfway.

`fsync` makes a file's contents durable but not its name. `sync_directory` makes durable the changes in that
directory, what they depend on (earlier changes of the directories they touch) and the directory's own creation, as
journaling file systems do. A lying disk acknowledges both and does neither. Dirty pages are never written back by
themselves: what was not synced is at risk for ever. Calls take no virtual time: they block in a real process, so
nothing else could run in it meanwhile anyhow.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from harness.simulation.digest import DISK
from harness.simulation.fuse import Fuse
from harness.simulation.inodes import (
    Change,
    Directory,
    Entry,
    Inode,
    creates,
    lies_below,
    names_of,
    settle_entries,
    walk,
)
from images.base.lossyfs.keeping import draw_prefix
from nemesis.ports import Keep


@dataclass(frozen=True, slots=True)
class PowerLossReport:
    """What a power loss did to a disk."""

    unsynced_bytes: int
    """Written and not synced when the power went."""
    lost_bytes: int
    """Of these, and of files whose names were lost, the bytes that are gone."""
    lost_changes: int
    """Directory changes (create, rename, delete) that are gone."""


@dataclass(slots=True)
class DiskCounters:
    """What was done to a disk since the run began."""

    bytes_written: int = 0
    fsyncs: int = 0
    lies: int = 0
    """Syncs acknowledged and not kept."""


@dataclass(slots=True, eq=False)
class SimDisk:
    """The disk of one machine; processes reach it through `mount`."""

    index: int = 0
    """The machine's index in the world, for the digest."""
    digest_buffer: bytearray = field(default_factory=bytearray)
    capacity_bytes: int | None = None
    lying: bool = False
    counters: DiskCounters = field(default_factory=DiskCounters)
    _root: Directory = field(default_factory=lambda: Directory(None, ""))
    _journal: list[Change] = field(default_factory=list)
    _used_bytes: int = 0
    _serial: int = 0

    def mount(self, fuse: Fuse | None = None) -> SimFiles:
        """A view for one process. It stops having effects once it is unmounted."""
        return SimFiles(self, fuse or Fuse())

    def files(self) -> Iterator[tuple[str, bytes]]:
        """(path, contents) of every file as processes see it, in the order of paths."""
        for path, file in walk(self._root, ""):
            yield path, bytes(file.data)

    def unsynced_bytes(self) -> int:
        """Bytes written to existing files that a power loss may take."""
        return sum(file.unsynced_bytes() for _, file in walk(self._root, ""))

    def lose_power(self, keep: Keep, random: Random) -> PowerLossReport:
        """Drop what was not synced, as far as `keep` says; draws from `random`."""
        before = [file for _, file in walk(self._root, "")]
        unsynced = {file.serial: file.unsynced_bytes() for file in before}
        kept_changes = draw_prefix(len(self._journal), keep, random)
        lost_changes = len(self._journal) - kept_changes
        for change in self._journal[:kept_changes]:
            change.apply()
        self._journal.clear()
        settle_entries(self._root)
        kept_bytes = 0
        remaining: dict[int, None] = {}
        for _, file in walk(self._root, ""):
            kept = _draw_writes(file.pending, keep, random)
            kept_bytes += sum(len(change) for change in kept if isinstance(change, bytes))
            file.settle(kept)
            remaining[file.serial] = None
        vanished = sum(
            max(0, len(file.data) - unsynced[file.serial]) for file in before if file.serial not in remaining
        )
        self._used_bytes = sum(len(file.data) for _, file in walk(self._root, ""))
        total = sum(unsynced.values())
        return PowerLossReport(total, max(0, total - kept_bytes) + vanished, lost_changes)

    def wipe(self) -> int:
        """Put an empty disk in the place of this one. Returns the bytes of the files that were on it."""
        lost = self._used_bytes
        self._root = Directory(None, "")
        self._journal.clear()
        self._used_bytes = 0
        self._record(0, "wipe", b"")
        return lost

    # What SimFiles and SimFile do, once they are allowed to.

    def find(self, path: str) -> Entry | None:
        entry: Entry = self._root
        for name in names_of(path):
            if isinstance(entry, Inode):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            below = entry.entries.get(name)
            if below is None:
                return None
            entry = below
        return entry

    def directory(self, names: list[str], path: str, *, create: bool) -> Directory:
        directory = self._root
        for name in names:
            entry = directory.entries.get(name)
            if entry is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
                entry = Directory(directory, name)
                self.change("mkdir", path, (directory, name, entry))
            if not isinstance(entry, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            directory = entry
        return directory

    def new_file(self) -> Inode:
        self._serial += 1
        return Inode(self._serial)

    def change(self, kind: str, path: str, *steps: tuple[Directory, str, Entry | None]) -> None:
        for directory, name, entry in steps:
            if entry is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = entry
        self._journal.append(Change(steps))
        self._record(0, kind, path.encode())

    def delete(self, path: str, directory: Directory, name: str) -> None:
        entry = directory.entries[name]
        if isinstance(entry, Directory):
            for child in sorted(entry.entries):
                self.delete(f"{path}/{child}", entry, child)
        else:
            self._used_bytes -= len(entry.data)
        self.change("delete", path, (directory, name, None))

    def append(self, file: Inode, data: bytes) -> None:
        error = None
        if self.capacity_bytes is not None and self._used_bytes + len(data) > self.capacity_bytes:
            data = data[: max(0, self.capacity_bytes - self._used_bytes)]
            error = OSError(errno.ENOSPC, "No space left on device")
        if data:
            file.data += data
            file.pending.append(data)
            self._used_bytes += len(data)
            self.counters.bytes_written += len(data)
            self._record(file.serial, "append", data)
        if error is not None:
            raise error

    def truncate(self, file: Inode, size: int) -> None:
        if size < len(file.data):
            self._used_bytes -= len(file.data) - size
            del file.data[size:]
            file.pending.append(size)
            self._record(file.serial, "truncate", size.to_bytes(8, "little"))

    def fsync(self, file: Inode) -> None:
        self.counters.fsyncs += 1
        self._record(file.serial, "fsync", b"")
        if self.lying:
            self.counters.lies += 1
        else:
            file.sync()

    def sync_directory(self, directory: Directory, path: str) -> None:
        self.counters.fsyncs += 1
        self._record(0, "sync", path.encode())
        if self.lying:
            self.counters.lies += 1
            return
        needed = [directory]
        while needed[-1].parent is not None:
            needed.append(needed[-1].parent)
        own_creation = needed[1:]
        touched = [directory]
        kept: list[Change] = []
        synced: list[Change] = []
        for change in reversed(self._journal):
            if change.touches(touched) or creates(change, needed, own_creation):
                synced.append(change)
                touched += [place for place, _, _ in change.steps if place not in touched]
            else:
                kept.append(change)
        for change in reversed(synced):
            change.apply()
        self._journal = kept[::-1]

    def release(self, file: Inode) -> None:
        self._used_bytes -= len(file.data)

    def _record(self, serial: int, kind: str, data: bytes) -> None:
        buffer = self.digest_buffer
        buffer.append(DISK)
        buffer.append(self.index)
        buffer += serial.to_bytes(4, "little")
        buffer += kind.encode()
        buffer += len(data).to_bytes(4, "little")
        buffer += data


class SimFile:
    """An open file of a mounted disk; `doors.File`."""

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
        """Make the contents durable."""
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
    """A disk as one process sees it; `doors.Files`. Once unmounted, what would change the disk does nothing."""

    __slots__ = ("_fuse", "_mounted", "disk")

    def __init__(self, disk: SimDisk, fuse: Fuse) -> None:
        self.disk = disk
        self._fuse = fuse
        self._mounted = True

    def unmount(self) -> None:
        """The process is dead: no more effects."""
        self._mounted = False

    def takes_effect(self) -> bool:
        """Whether a change may go ahead now; burns the fuse."""
        if self._fuse.armed and self._mounted:
            self._fuse.burn()
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
        if isinstance(entry, Directory) and lies_below(target_directory, entry):
            raise OSError(errno.EINVAL, "Invalid argument", target)
        if isinstance(replaced, Directory):
            if isinstance(entry, Directory) or lies_below(source_directory, replaced):
                if replaced.entries:
                    raise OSError(errno.ENOTEMPTY, "Directory not empty", target)
            else:
                raise IsADirectoryError(errno.EISDIR, "Is a directory", target)
        elif isinstance(replaced, Inode) and isinstance(entry, Directory):
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
            if isinstance(entry, Directory):
                entry.parent, entry.name = target_directory, target_name

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with all below it. Nothing happens when it is missing."""
        if self.disk.find(path) is None:
            return
        *parents, name = names_of(path)
        if self.takes_effect():
            self.disk.delete(path, self.disk.directory(parents, path, create=False), name)

    def sync_directory(self, directory: str) -> None:
        """Make the changes in a directory durable."""
        if not self._mounted:
            return
        place = self.disk.directory(names_of(directory), directory, create=False)
        if self.takes_effect():
            self.disk.sync_directory(place, directory)


def _draw_writes(pending: list[bytes | int], keep: Keep, random: Random) -> list[bytes | int]:
    kept = pending[: draw_prefix(len(pending), keep, random)]
    if keep is Keep.TORN and kept:
        last = kept[-1]
        if isinstance(last, bytes) and len(last) > 1:
            kept[-1] = last[: random.randint(1, len(last) - 1)]
    return kept
