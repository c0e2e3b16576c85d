"""Files and directories by their names, and the journal of changes of names that are not durable yet.

Only what is open, unsynced or on the way to such a thing is known here; everything else is on disk alone. A node knows
its directory and its name there, so that it can be followed through renames of any directory above it.

`Journal` decides which changes a sync makes durable; carrying changes out and taking them back is `volume.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from images.base.lossyfs.undo import UndoLog


class Node:
    """A file or directory that has or had a name."""

    __slots__ = ("gone", "name", "parent", "pending")

    def __init__(self, parent: Directory | None, name: str) -> None:
        self.parent = parent
        self.name = name
        self.pending = 0
        """Changes in the journal that concern it."""
        self.gone = False
        """Its removal is durable."""

    @property
    def path(self) -> str:
        """Where it is, from the name of the root on."""
        return self.name if self.parent is None else f"{self.parent.path}/{self.name}"

    def ancestors(self) -> Iterator[Directory]:
        """The directories above it, the nearest first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent


class File(Node):
    """Whatever is not a directory; of symbolic links and the like nothing but the name matters."""

    __slots__ = ("handles", "log", "size")

    def __init__(self, parent: Directory | None, name: str) -> None:
        super().__init__(parent, name)
        self.log = UndoLog()
        self.handles = 0
        """Open descriptors."""
        self.size = 0
        """In bytes; kept up to date while the file is open."""


class Directory(Node):
    """A node with entries. `known` are those there are nodes for; there may be any number of others."""

    __slots__ = ("attributes", "known")

    def __init__(self, parent: Directory | None, name: str) -> None:
        super().__init__(parent, name)
        self.known: dict[str, Node] = {}
        self.attributes = (0o755, 0, 0)
        """Mode, owner, group: of a removed directory, to make it anew."""

    def place(self, node: Node, name: str) -> None:
        """Give a node its name here; what had the name is no longer known."""
        node.parent, node.name = self, name
        self.known[name] = node

    def forget(self, node: Node) -> None:
        """The node is no longer known here."""
        if self.known.get(node.name) is node:
            del self.known[node.name]


Place = tuple[Directory, str]


@dataclass(frozen=True, slots=True)
class Move:
    """One node's name before and after; None: it had or has none."""

    node: Node
    source: Place | None
    target: Place | None


@dataclass(frozen=True, slots=True)
class Change:
    """Names that change together: a rename and the removal of what it replaced are one change."""

    moves: tuple[Move, ...]

    def directories(self) -> Iterator[Directory]:
        """Those whose entries it changes, and those it removes: nothing in them can matter afterwards."""
        for move in self.moves:
            for place in (move.source, move.target):
                if place is not None:
                    yield place[0]
            if move.target is None and isinstance(move.node, Directory):
                yield move.node

    def names_any(self, nodes: set[Directory]) -> bool:
        """Whether it gives one of `nodes` a name."""
        return any(move.target is not None and move.node in nodes for move in self.moves)


@dataclass(slots=True)
class Journal:
    """Changes that are not durable, oldest first."""

    changes: list[Change] = field(default_factory=list)

    def record(self, change: Change) -> None:
        """The youngest change."""
        self.changes.append(change)
        for move in change.moves:
            move.node.pending += 1

    def withdraw(self, change: Change) -> tuple[Move, ...]:
        """Forget the youngest change, which becomes part of another; gives back its moves, none if it has left."""
        if not self.changes or self.changes[-1] is not change:
            return ()
        self._taken([self.changes.pop()], self.changes)
        return change.moves

    def sync_directory(self, directory: Directory) -> list[Change]:
        """Take out what fsync of a directory makes durable."""
        return self._take(lambda _: False, {directory}, {directory, *directory.ancestors()})

    def sync_node(self, node: Node) -> list[Change]:
        """Take out what fsync of a file makes durable."""
        if not node.pending:
            return []
        return self._take(lambda change: any(move.node is node for move in change.moves), set(), set(node.ancestors()))

    def commit_oldest(self, count: int) -> list[Change]:
        """Take out the first `count` changes."""
        return self._taken(list(islice(self.changes, count)), self.changes[count:])

    def lose_youngest(self, keep: int) -> tuple[list[Change], list[Change]]:
        """Empty the journal: (its first `keep` changes, the others with the youngest first)."""
        kept, lost = self.changes[:keep], self.changes[keep:]
        self._taken(self.changes, [])
        return kept, lost[::-1]

    def _take(self, wanted: Callable[[Change], bool], touched: set[Directory], named: set[Directory]) -> list[Change]:
        """Take out the changes wanted, those in a directory touched, those naming one of `named`, and what all these
        depend on: whatever came before them in the directories they change, and the names of these directories."""
        taken: list[Change] = []
        left: list[Change] = []
        for change in reversed(self.changes):
            directories = set(change.directories())
            if wanted(change) or change.names_any(named) or not touched.isdisjoint(directories):
                taken.append(change)
                touched |= directories
                named |= directories
            else:
                left.append(change)
        return self._taken(taken[::-1], left[::-1])

    def _taken(self, taken: list[Change], left: list[Change]) -> list[Change]:
        for node in nodes_of(taken):
            node.pending -= 1
        self.changes = left
        return taken


def nodes_of(changes: Iterable[Change]) -> Iterator[Node]:
    """The node of every move, in order."""
    return (move.node for change in changes for move in change.moves)
