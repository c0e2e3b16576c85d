"""A model of the lossy file system, in memory and built the other way round: durable states come from *applying* what
was synced, where the implementation *undoes* what was not.

After a power loss `candidates` are all trees that may be found; the caller takes the one that was as the new state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Tree = dict[str, bytes | None]
"""Path → contents, None for a directory."""


@dataclass(eq=False)
class ModelFile:
    """Contents, and every content a power loss may leave."""

    content: bytes = b""
    whole: list[bytes] = field(default_factory=lambda: [b""])
    """After each change since the last sync; the first is durable."""
    torn: list[list[bytes]] = field(default_factory=lambda: [[b""]])
    """For each of these, what it may be instead when the last write kept is torn."""

    def write(self, offset: int, data: bytes) -> None:
        self._change(_written(self.content, offset, data))
        if len(data) > 1:
            cuts = [_written(self.whole[-2], offset, data[:cut]) for cut in range(1, len(data))]
            self.torn[-1] = [*cuts, *(cut.ljust(len(self.content), b"\0") for cut in cuts)]

    def truncate(self, size: int) -> None:
        if size != len(self.content):
            self._change(self.content[:size].ljust(size, b"\0"))

    def sync(self) -> None:
        self.whole, self.torn = [self.content], [[self.content]]

    def may_be(self, content: bytes, keep: str) -> bool:
        if keep == "nothing":
            return content == self.whole[0]
        if keep == "everything":
            return content == self.content
        return content in self.whole if keep == "prefix" else any(content in torn for torn in self.torn)

    def _change(self, content: bytes) -> None:
        self.content = content
        self.whole.append(content)
        self.torn.append([content])


@dataclass(eq=False)
class ModelDirectory:
    entries: dict[str, ModelFile | ModelDirectory] = field(default_factory=dict)
    durable: dict[str, ModelFile | ModelDirectory] = field(default_factory=dict)


Entry = ModelFile | ModelDirectory
Step = tuple[ModelDirectory, str, Entry | None]


@dataclass(frozen=True, eq=False)
class ModelChange:
    steps: tuple[Step, ...]
    entries: tuple[Entry, ...]
    """The names that it creates, moves, removes or replaces."""
    removed: tuple[ModelDirectory, ...] = ()

    def places(self) -> set[ModelDirectory]:
        return {directory for directory, _, _ in self.steps} | set(self.removed)


class Model:
    """The file system. Paths are like `a/b/x`; the root is the empty path."""

    def __init__(self, strict_names: bool) -> None:
        self.strict_names = strict_names
        self.root = ModelDirectory()
        self.journal: list[ModelChange] = []

    def adopt(self, tree: Tree) -> None:
        """Everything in `tree` is durable, and there is nothing else."""
        self.root = ModelDirectory()
        self.journal = []
        for path in sorted(tree):
            directory, name = self.place(path)
            content = tree[path]
            entry = ModelDirectory() if content is None else ModelFile(content, [content], [[content]])
            directory.entries[name] = directory.durable[name] = entry

    def find(self, path: str) -> Entry | None:
        entry: Entry | None = self.root
        for name in path.split("/") if path else ():
            if not isinstance(entry, ModelDirectory):
                return None
            entry = entry.entries.get(name)
        return entry

    def place(self, path: str) -> tuple[ModelDirectory, str]:
        above, _, name = path.rpartition("/")
        directory = self.find(above)
        assert isinstance(directory, ModelDirectory)
        return directory, name

    def tree(self) -> Tree:
        return dict(_walk(self.root, ""))

    def directories(self) -> list[str]:
        return ["", *sorted(path for path, content in self.tree().items() if content is None)]

    def create(self, path: str, entry: Entry) -> None:
        directory, name = self.place(path)
        self._change(ModelChange(((directory, name, entry),), (entry,)))

    def remove(self, path: str) -> None:
        directory, name = self.place(path)
        entry = directory.entries[name]
        removed = (entry,) if isinstance(entry, ModelDirectory) else ()
        self._change(ModelChange(((directory, name, None),), (entry,), removed))

    def may_rename(self, old: str, new: str) -> bool:
        entry, replaced = self.find(old), self.find(new)
        if entry is None or new.startswith(f"{old}/"):
            return False
        if replaced is None or replaced is entry:
            return True
        if isinstance(replaced, ModelDirectory):
            return isinstance(entry, ModelDirectory) and not replaced.entries
        return isinstance(entry, ModelFile)

    def rename(self, old: str, new: str) -> None:
        if old == new:
            return
        (source, old_name), (target, new_name) = self.place(old), self.place(new)
        entry = source.entries[old_name]
        replaced = target.entries.get(new_name)
        about = (entry,) if replaced is None else (entry, replaced)
        removed = (replaced,) if isinstance(replaced, ModelDirectory) else ()
        self._change(ModelChange(((source, old_name, None), (target, new_name, entry)), about, removed))

    def sync_file(self, file: ModelFile) -> None:
        file.sync()
        if not self.strict_names:
            wanted = {change for change in self.journal if file in change.entries}
            self._sync(wanted, set(), self._above(file) if wanted else set())

    def sync_directory(self, path: str) -> None:
        directory = self.find(path)
        assert isinstance(directory, ModelDirectory)
        self._sync(set(), {directory}, {directory} | self._above(directory))

    def candidates(self, keep: str) -> Iterator[dict[str, ModelFile | None]]:
        """All trees of names that a power loss may leave."""
        changes = len(self.journal)
        for kept in {"nothing": [0], "everything": [changes]}.get(keep, range(changes + 1)):
            durable = {directory: dict(directory.durable) for directory in self._directories()}
            for change in self.journal[:kept]:
                _apply(change.steps, durable)
            yield dict(_walk_durable(self.root, durable, ""))

    def _change(self, change: ModelChange) -> None:
        for directory, name, entry in change.steps:
            if entry is None:
                directory.entries.pop(name)
            else:
                directory.entries[name] = entry
        self.journal.append(change)

    def _sync(self, wanted: set[ModelChange], places: set[ModelDirectory], named: set[ModelDirectory]) -> None:
        """To a fixed point: what is wanted, whatever came before it in the places it changes, and their names."""
        synced = set(wanted)
        last = dict.fromkeys(places, len(self.journal))
        while True:
            before = len(synced)
            for index, change in enumerate(self.journal):
                if change in synced:
                    for place in change.places():
                        last[place] = max(last.get(place, -1), index)
            for index, change in enumerate(self.journal):
                gives_names = {entry for _, _, entry in change.steps if entry is not None}
                needed = [place for place, until in last.items() if index <= until]
                if gives_names & (named | set(needed)) or change.places() & set(needed):
                    synced.add(change)
            if before == len(synced):
                break
        for change in self.journal:
            if change in synced:
                _apply(change.steps, {place: place.durable for place, _, _ in change.steps})
        self.journal = [change for change in self.journal if change not in synced]

    def _directories(self) -> set[ModelDirectory]:
        found = {self.root}
        waiting = [self.root]
        for change in self.journal:
            waiting += [place for place in change.places() if place not in found]
            waiting += [entry for entry in change.entries if isinstance(entry, ModelDirectory)]
        while waiting:
            directory = waiting.pop()
            found.add(directory)
            for entry in (*directory.entries.values(), *directory.durable.values()):
                if isinstance(entry, ModelDirectory) and entry not in found:
                    waiting.append(entry)
        return found

    def _above(self, entry: Entry) -> set[ModelDirectory]:
        """The directories above an entry, none when it has been removed."""

        def search(directory: ModelDirectory, above: frozenset[ModelDirectory]) -> frozenset[ModelDirectory]:
            above |= {directory}
            if entry in directory.entries.values():
                return above
            below = (search(each, above) for each in directory.entries.values() if isinstance(each, ModelDirectory))
            return next((found for found in below if found), frozenset())

        return set(search(self.root, frozenset()))


def _written(content: bytes, offset: int, data: bytes) -> bytes:
    return content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]


def _apply(steps: tuple[Step, ...], durable: dict[ModelDirectory, dict[str, Entry]]) -> None:
    for directory, name, entry in steps:
        if entry is None:
            durable[directory].pop(name, None)
        else:
            durable[directory][name] = entry


def _walk(directory: ModelDirectory, prefix: str) -> Iterator[tuple[str, bytes | None]]:
    for name, entry in directory.entries.items():
        if isinstance(entry, ModelFile):
            yield prefix + name, entry.content
        else:
            yield prefix + name, None
            yield from _walk(entry, f"{prefix}{name}/")


def _walk_durable(
    directory: ModelDirectory, durable: dict[ModelDirectory, dict[str, Entry]], prefix: str
) -> Iterator[tuple[str, ModelFile | None]]:
    for name, entry in durable[directory].items():
        if isinstance(entry, ModelFile):
            yield prefix + name, entry
        else:
            yield prefix + name, None
            yield from _walk_durable(entry, durable, f"{prefix}{name}/")
