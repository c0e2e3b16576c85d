"""The tree of a simulated file system: inodes, directories, and changes that are seen but not durable yet."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass


class Inode:
    """An inode. `pending` holds what fsync has not seen: bytes that were appended, or a size that was cut to."""

    __slots__ = ("data", "durable", "pending", "serial")

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[bytes | int] = []

    def sync(self) -> None:
        for change in self.pending:
            _replay(self.durable, change)
        self.pending.clear()

    def unsynced_bytes(self) -> int:
        return sum(len(change) for change in self.pending if isinstance(change, bytes))

    def settle(self, kept: list[bytes | int]) -> None:
        """Become the durable contents after `kept` of the pending changes."""
        for change in kept:
            _replay(self.durable, change)
        self.pending.clear()
        self.data = bytearray(self.durable)


class SimDirectory:
    __slots__ = ("durable", "entries", "name", "parent")

    def __init__(self, parent: SimDirectory | None, name: str) -> None:
        self.parent = parent
        self.name = name
        self.entries: dict[str, Inode | SimDirectory] = {}
        self.durable: dict[str, Inode | SimDirectory] = {}


Entry = Inode | SimDirectory


@dataclass(frozen=True, slots=True)
class DirectoryChange:
    """Directory entries that change together: (directory, name, new entry or None)."""

    steps: tuple[tuple[SimDirectory, str, Entry | None], ...]

    def touches(self, directories: list[SimDirectory]) -> bool:
        return any(directory in directories for directory, _, _ in self.steps)

    def apply(self) -> None:
        for directory, name, entry in self.steps:
            if entry is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = entry


def names_of(path: str) -> list[str]:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if path.startswith("/") or ".." in names:
        raise ValueError(f"{path!r} is not a path below the root")
    return names


def _replay(contents: bytearray, change: bytes | int) -> None:
    if isinstance(change, bytes):
        contents += change
    else:
        del contents[change:]


def walk(directory: SimDirectory, prefix: str) -> Iterator[tuple[str, Inode]]:
    for name in sorted(directory.entries):
        entry = directory.entries[name]
        if isinstance(entry, Inode):
            yield prefix + name, entry
        else:
            yield from walk(entry, f"{prefix}{name}/")


def at_risk(
    directory: SimDirectory, prefix: str, changed: Container[tuple[SimDirectory, str]], *, is_named: bool
) -> Iterator[str]:
    """Paths of the files below `directory` of which a power loss may take something: of their contents, or their names,
    as it may where a name on the way is among the `changed` ones, and of all files unless that of the directory itself
    `is_named` durably."""
    for name in sorted(directory.entries):
        entry, keeps_name = directory.entries[name], is_named and (directory, name) not in changed
        if not isinstance(entry, Inode):
            yield from at_risk(entry, f"{prefix}{name}/", changed, is_named=keeps_name)
        elif entry.pending or not keeps_name:
            yield prefix + name


def settle_entries(directory: SimDirectory) -> None:
    """Reduce every directory to its durable entries."""
    directory.entries = dict(directory.durable)
    for name, entry in directory.entries.items():
        if isinstance(entry, SimDirectory):
            entry.parent, entry.name = directory, name
            settle_entries(entry)


def lies_below(directory: SimDirectory | None, ancestor: SimDirectory) -> bool:
    while directory is not None:
        if directory is ancestor:
            return True
        directory = directory.parent
    return False


def creates(change: DirectoryChange, wanted: list[SimDirectory], places: list[SimDirectory]) -> bool:
    """Whether `change` gives one of the directories `wanted` its name in one of `places`."""
    return any(place in places and entry in wanted for place, _, entry in change.steps)
