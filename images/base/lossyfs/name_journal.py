"""Files and directories by name, and the journal of name changes that are not durable yet.

Only entries that are open, unsynced or on the path of such an entry are in memory; all others are only on disk. An
entry knows its directory and its name there, so that it can be found after renames of any directory above it.

`NameJournal` decides which changes a sync makes durable; `volume.py` carries changes out and undoes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from images.base.lossyfs.undo import UndoLog


class TreeEntry:
    """A file or directory that has or had a name."""

    __slots__ = ("name", "parent", "pending", "removed")

    def __init__(self, parent: DirectoryEntry | None, name: str) -> None:
        self.parent = parent
        self.name = name
        self.pending = 0
        """Number of journal changes that involve it."""
        self.removed = False
        """Its removal is durable."""

    @property
    def path(self) -> str:
        """Its path, starting with the path of the root."""
        return self.name if self.parent is None else f"{self.parent.path}/{self.name}"

    def ancestors(self) -> Iterator[DirectoryEntry]:
        """Its ancestor directories, the nearest first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent


class FileEntry(TreeEntry):
    """An entry that is not a directory; of symbolic links and the like only the name matters."""

    __slots__ = ("handles", "log", "size")

    def __init__(self, parent: DirectoryEntry | None, name: str) -> None:
        super().__init__(parent, name)
        self.log = UndoLog()
        self.handles = 0
        """Number of open descriptors."""
        self.size = 0
        """Size in bytes; up to date while the file is open."""


class DirectoryEntry(TreeEntry):
    """A directory. `known` are its entries in memory; there may be any number of others."""

    __slots__ = ("attributes", "known")

    def __init__(self, parent: DirectoryEntry | None, name: str) -> None:
        super().__init__(parent, name)
        self.known: dict[str, TreeEntry] = {}
        self.attributes = (0o755, 0, 0)
        """Mode, owner and group of a removed directory, needed to create it again."""

    def place(self, node: TreeEntry, name: str) -> None:
        """Give an entry its name here, replacing any entry of that name."""
        node.parent, node.name = self, name
        self.known[name] = node

    def forget(self, node: TreeEntry) -> None:
        """Drop the entry from memory."""
        if self.known.get(node.name) is node:
            del self.known[node.name]


EntryLocation = tuple[DirectoryEntry, str]


@dataclass(frozen=True, slots=True)
class NameMove:
    """One entry's name before and after; None: no name."""

    node: TreeEntry
    source: EntryLocation | None
    target: EntryLocation | None


@dataclass(frozen=True, slots=True)
class NameChange:
    """Names that change together: a rename and the removal of the replaced file are one change."""

    moves: tuple[NameMove, ...]

    def directories(self) -> Iterator[DirectoryEntry]:
        """Directories whose entries it changes, and directories it removes: later changes in them do not matter."""
        for move in self.moves:
            for place in (move.source, move.target):
                if place is not None:
                    yield place[0]
            if move.target is None and isinstance(move.node, DirectoryEntry):
                yield move.node

    def gives_name_to(self, nodes: set[DirectoryEntry]) -> bool:
        """Whether it gives one of `nodes` a name."""
        return any(move.target is not None and move.node in nodes for move in self.moves)


@dataclass(slots=True)
class NameJournal:
    """Changes that are not durable, oldest first."""

    changes: list[NameChange] = field(default_factory=list)

    def record(self, change: NameChange) -> None:
        """Add the youngest change."""
        self.changes.append(change)
        for move in change.moves:
            move.node.pending += 1

    def withdraw(self, change: NameChange) -> tuple[NameMove, ...]:
        """Remove the youngest change, to merge it into another; returns its moves, none if it is no longer in the
        journal."""
        if not self.changes or self.changes[-1] is not change:
            return ()
        self._remove([self.changes.pop()], self.changes)
        return change.moves

    def sync_directory(self, directory: DirectoryEntry) -> list[NameChange]:
        """Remove and return the changes that fsync of a directory makes durable."""
        return self._extract(lambda _: False, {directory}, {directory, *directory.ancestors()})

    def sync_node(self, node: TreeEntry) -> list[NameChange]:
        """Remove and return the changes that fsync of a file makes durable."""
        if not node.pending:
            return []
        return self._extract(
            lambda change: any(move.node is node for move in change.moves), set(), set(node.ancestors())
        )

    def commit_oldest(self, count: int) -> list[NameChange]:
        """Remove and return the first `count` changes."""
        return self._remove(list(islice(self.changes, count)), self.changes[count:])

    def drop_youngest(self, keep: int) -> tuple[list[NameChange], list[NameChange]]:
        """Empty the journal: (its first `keep` changes, the others with the youngest first)."""
        kept, lost = self.changes[:keep], self.changes[keep:]
        self._remove(self.changes, [])
        return kept, lost[::-1]

    def _extract(
        self, selected: Callable[[NameChange], bool], changed: set[DirectoryEntry], named: set[DirectoryEntry]
    ) -> list[NameChange]:
        """Remove and return the selected changes, those in a `changed` directory, those naming one of `named`, and
        their dependencies: all earlier changes in the directories they change, and the names of these directories."""
        extracted: list[NameChange] = []
        remaining: list[NameChange] = []
        for change in reversed(self.changes):
            directories = set(change.directories())
            if selected(change) or change.gives_name_to(named) or not changed.isdisjoint(directories):
                extracted.append(change)
                changed |= directories
                named |= directories
            else:
                remaining.append(change)
        return self._remove(extracted[::-1], remaining[::-1])

    def _remove(self, extracted: list[NameChange], remaining: list[NameChange]) -> list[NameChange]:
        for node in nodes_of(extracted):
            node.pending -= 1
        self.changes = remaining
        return extracted


def nodes_of(changes: Iterable[NameChange]) -> Iterator[TreeEntry]:
    """The entry of every move, in order."""
    return (move.node for change in changes for move in change.moves)
