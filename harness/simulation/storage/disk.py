"""A simulated disk: its contents, and the part that survives a power loss.

Two images are kept. The *page cache* is what every read sees; it survives the death of the process. The *durable*
image is what was synced. Between them lie, in order, the writes of each file since its last fsync and one journal
of directory changes (create, rename, delete). A power loss keeps, as `nemesis.ports.KeepUnsynced` says:

- of each file's unsynced writes and truncations a prefix, each file for itself; with TORN the last write kept is cut,
  and every other time the file is as long as with all of it, the rest being zeros;
- of the journal a prefix: a file whose creation was lost has vanished with its contents, a rename left either the
  old or the new, whole, and deleting a directory may have got halfway.

`fsync` makes a file's contents durable but not its name. `sync_directory` makes durable the changes in that directory,
what they depend on (earlier changes of the directories they touch) and the directory's own creation, as journaling file
systems do. A lying disk acknowledges both and does neither. Dirty pages are never written back by themselves: what was
not synced is at risk for ever. A sync may fail, as that of a disk which took a write and finds no room when it is to
keep it: then nothing of what it was for has become durable, and a later one may succeed. Calls return at once. A real
process is blocked for as long as a call takes and does nothing else meanwhile; so where a disk is slow, the process
stalls for that long as soon as the callback that made the calls has ended (`SimNode`). Its messages leave before the
stall, not after.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from harness.simulation.digest import DISK
from harness.simulation.storage.inodes import (
    DirectoryChange,
    Entry,
    Inode,
    SimDirectory,
    at_risk,
    creates,
    names_of,
    settle_entries,
    walk,
)
from images.base.lossyfs.survival import draw_surviving_prefix, draw_tear
from nemesis.ports import KeepUnsynced


@dataclass(frozen=True, slots=True)
class PowerLossReport:
    """Data that a power loss took from a disk."""

    unsynced_bytes: int
    """Written and not synced when the power went."""
    lost_bytes: int
    """Of these, and of files whose names were lost, the bytes that are gone."""
    lost_names: int
    """Changes of directories (create, rename, delete) that are gone."""


@dataclass(slots=True)
class DiskCounters:
    """Operations on a disk since the run began."""

    bytes_written: int = 0
    fsyncs: int = 0
    lies: int = 0
    """Syncs acknowledged and not kept."""
    refused_writes: int = 0
    """Writes that failed for want of room."""
    failed_syncs: int = 0
    """Syncs that failed for want of room."""
    delayed_operations: int = 0
    delayed_ns: int = 0

    @property
    def refused(self) -> int:
        """Writes and syncs that failed for want of room."""
        return self.refused_writes + self.failed_syncs


@dataclass(slots=True, eq=False)
class SimDisk:
    """The disk of one machine; processes reach it through `harness.simulation.storage.files`."""

    index: int = 0
    """The machine's index in the world, for the digest."""
    digest_buffer: bytearray = field(default_factory=bytearray)
    capacity_bytes: int | None = None
    delay_ns: int = 0
    """How long each write and each sync takes."""
    on_delay: Callable[[int], None] | None = None
    """Called with every such delay: the process that asked waits for so long."""
    lying: bool = False
    failing_syncs: int = 0
    """How many of the next syncs fail."""
    counters: DiskCounters = field(default_factory=DiskCounters)
    _root: SimDirectory = field(default_factory=lambda: SimDirectory(None, ""))
    _journal: list[DirectoryChange] = field(default_factory=list)
    _used_bytes: int = 0
    _serial: int = 0

    def files(self) -> Iterator[tuple[str, bytes]]:
        """(path, contents) of every file as processes see it, in the order of paths."""
        for path, file in walk(self._root, ""):
            yield path, bytes(file.data)

    def unsynced_bytes(self) -> int:
        """Bytes written to existing files that a power loss may take."""
        return sum(file.unsynced_bytes() for _, file in walk(self._root, ""))

    def at_risk(self, path: str) -> list[str]:
        """Files below a directory of which a power loss may take something, or their names; none without it."""
        changed, directory, is_named = self._changed_names(), self._root, True
        for name in names_of(path):
            below = directory.entries.get(name)
            if not isinstance(below, SimDirectory):
                return []
            is_named = is_named and (directory, name) not in changed
            directory = below
        return list(at_risk(directory, "", changed, is_named=is_named))

    def may_come_back(self, name: str) -> bool:
        """Whether a power loss may bring back what was deleted, or renamed, at the root."""
        return name not in self._root.entries and (self._root, name) in self._changed_names()

    def _changed_names(self) -> frozenset[tuple[SimDirectory, str]]:
        return frozenset((place, name) for change in self._journal for place, name, _ in change.steps)

    def lose_power(self, keep: KeepUnsynced, random: Random) -> PowerLossReport:
        """Drop what was not synced, as far as `keep` says; draws from `random`."""
        before = [file for _, file in walk(self._root, "")]
        unsynced = {file.serial: file.unsynced_bytes() for file in before}
        kept_changes = draw_surviving_prefix(len(self._journal), keep, random)
        lost_names = len(self._journal) - kept_changes
        for change in self._journal[:kept_changes]:
            change.apply()
        self._journal.clear()
        settle_entries(self._root)
        # A file that vanishes loses all that it held. One that comes back, since its deletion was lost, had been given
        # up: what it keeps makes up for nothing that others lose.
        lost = {file.serial: max(len(file.data), unsynced[file.serial]) for file in before}
        for _, file in walk(self._root, ""):
            kept, zeros = _draw_writes(file.pending, keep, random)
            if file.serial in lost:
                kept_bytes = sum(len(change) for change in kept if isinstance(change, bytes))
                lost[file.serial] = unsynced[file.serial] - kept_bytes
            file.settle([*kept, bytes(zeros)])
        self._used_bytes = sum(len(file.data) for _, file in walk(self._root, ""))
        return PowerLossReport(sum(unsynced.values()), sum(lost.values()), lost_names)

    def fill(self, room_bytes: int) -> None:
        """Leave room for so many bytes, until `capacity_bytes` is None again; deleting makes room."""
        self.capacity_bytes = self._used_bytes + room_bytes

    def wipe(self) -> int:
        """Put an empty disk in the place of this one. Returns the bytes of the files that were on it."""
        lost = self._used_bytes
        self._root = SimDirectory(None, "")
        self._journal.clear()
        self._used_bytes = 0
        self._record(0, "wipe", b"")
        return lost

    # Operations of SimFiles and SimFile.

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

    def directory(self, names: list[str], path: str, *, create: bool) -> SimDirectory:
        directory = self._root
        for name in names:
            entry = directory.entries.get(name)
            if entry is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
                entry = SimDirectory(directory, name)
                self.change("mkdir", path, (directory, name, entry))
            if not isinstance(entry, SimDirectory):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            directory = entry
        return directory

    def new_file(self) -> Inode:
        self._serial += 1
        return Inode(self._serial)

    def change(self, kind: str, path: str, *steps: tuple[SimDirectory, str, Entry | None]) -> None:
        for directory, name, entry in steps:
            if entry is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = entry
        self._journal.append(DirectoryChange(steps))
        self._record(0, kind, path.encode())

    def delete(self, path: str, directory: SimDirectory, name: str) -> None:
        entry = directory.entries[name]
        if isinstance(entry, SimDirectory):
            for child in sorted(entry.entries):
                self.delete(f"{path}/{child}", entry, child)
        else:
            self._used_bytes -= len(entry.data)
        self.change("delete", path, (directory, name, None))

    def append(self, file: Inode, data: bytes) -> None:
        self._delay()
        error = None
        if self.capacity_bytes is not None and self._used_bytes + len(data) > self.capacity_bytes:
            data = data[: max(0, self.capacity_bytes - self._used_bytes)]
            error = OSError(errno.ENOSPC, "No space left on device")
            self.counters.refused_writes += 1
        if data:
            file.data += data
            file.pending.append(data)
            self._used_bytes += len(data)
            self.counters.bytes_written += len(data)
            self._record(file.serial, "append", data)
        if error is not None:
            raise error

    def truncate(self, file: Inode, size: int) -> None:
        self._delay()
        if size < len(file.data):
            self._used_bytes -= len(file.data) - size
            del file.data[size:]
            file.pending.append(size)
            self._record(file.serial, "truncate", size.to_bytes(8, "little"))

    def fsync(self, file: Inode) -> None:
        self._delay()
        self.counters.fsyncs += 1
        self._record(file.serial, "fsync", b"")
        self._refuse_sync()
        if self.lying:
            self.counters.lies += 1
        else:
            file.sync()

    def sync_directory(self, directory: SimDirectory, path: str) -> None:
        self._delay()
        self.counters.fsyncs += 1
        self._record(0, "sync", path.encode())
        self._refuse_sync()
        if self.lying:
            self.counters.lies += 1
            return
        needed = [directory]
        while needed[-1].parent is not None:
            needed.append(needed[-1].parent)
        own_creation = needed[1:]
        touched = [directory]
        kept: list[DirectoryChange] = []
        synced: list[DirectoryChange] = []
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

    def _refuse_sync(self) -> None:
        if self.failing_syncs:
            self.failing_syncs -= 1
            self.counters.failed_syncs += 1
            raise OSError(errno.ENOSPC, "No space left on device")

    def _delay(self) -> None:
        if self.delay_ns and self.on_delay is not None:
            self.counters.delayed_operations += 1
            self.counters.delayed_ns += self.delay_ns
            self.on_delay(self.delay_ns)

    def _record(self, serial: int, kind: str, data: bytes) -> None:
        buffer = self.digest_buffer
        buffer.append(DISK)
        buffer.append(self.index)
        buffer += serial.to_bytes(4, "little")
        buffer += kind.encode()
        buffer += len(data).to_bytes(4, "little")
        buffer += data


def _draw_writes(pending: list[bytes | int], keep: KeepUnsynced, random: Random) -> tuple[list[bytes | int], int]:
    """The changes that are kept, and how many zeros follow them."""
    kept = pending[: draw_surviving_prefix(len(pending), keep, random)]
    if keep is KeepUnsynced.TORN and kept:
        last = kept[-1]
        if isinstance(last, bytes) and len(last) > 1:
            tear = draw_tear(len(last), random)
            kept[-1] = last[: tear.kept_bytes]
            return kept, (len(last) - tear.kept_bytes) * tear.zeros
    return kept, 0
