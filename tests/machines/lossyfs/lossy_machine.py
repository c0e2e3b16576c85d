"""A Hypothesis state machine that does the same to a lossy file system and to its model and compares them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Protocol

import hypothesis.strategies as st
import pytest
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.machines.lossyfs.lossy_model import Model, ModelDirectory, ModelFile, Tree

KEEPS = ("nothing", "prefix", "torn", "everything")
NAMES = ("x", "y", "z")

directories = st.integers(0, 5)
names = st.sampled_from(NAMES)
contents = st.binary(min_size=1, max_size=6)


class LossyDisk(Protocol):
    """The file system that is compared with the model. Paths are like `a/x`; the root is the empty path."""

    strict_names: bool

    def open(self, path: str, create: bool) -> int: ...
    def close(self, file: int) -> None: ...
    def write(self, file: int, offset: int, data: bytes) -> None: ...
    def append(self, path: str, data: bytes) -> None: ...
    def truncate(self, path: str, size: int) -> None: ...
    def truncate_open(self, file: int, size: int) -> None: ...
    def size(self, file: int) -> int: ...
    def sync(self, file: int, data_only: bool) -> None: ...
    def sync_directory(self, path: str) -> None: ...
    def mkdir(self, path: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def tree(self) -> Tree: ...
    def lose_power(self, keep: str, seed: int) -> None: ...
    def lie(self, on: bool) -> None: ...
    def unsynced(self) -> tuple[int, int]:
        """(bytes, changes of names) that a power loss could take."""

    def end(self) -> None:
        """The example is over."""


class LossyMachine(RuleBasedStateMachine):
    """`make` gives an empty disk."""

    make: Callable[[], LossyDisk]

    @initialize()
    def mount(self) -> None:
        self.disk = type(self).make()
        self.model = Model(self.disk.strict_names)
        self.lying = False
        self.open_files: list[tuple[int, ModelFile]] = []

    def path(self, directory: int, name: str) -> str:
        places = self.model.directories()
        above = places[directory % len(places)]
        return f"{above}/{name}" if above else name

    def refused(self, act: Callable[[], object], *errors: int) -> None:
        with pytest.raises(OSError) as raised:
            act()
        assert raised.value.errno in errors, raised.value

    @rule(directory=directories, name=names, data=contents)
    def append(self, directory: int, name: str, data: bytes) -> None:
        path = self.path(directory, name)
        entry = self.model.find(path)
        if isinstance(entry, ModelDirectory):
            self.refused(lambda: self.disk.append(path, data), errno.EISDIR)
            return
        self.disk.append(path, data)
        if entry is None:
            entry = ModelFile()
            self.model.create(path, entry)
        entry.write(len(entry.content), data)

    @rule(directory=directories, name=names)
    def open(self, directory: int, name: str) -> None:
        path = self.path(directory, name)
        entry = self.model.find(path)
        if isinstance(entry, ModelDirectory) or len(self.open_files) == 3:
            return
        file = self.disk.open(path, create=entry is None)
        if entry is None:
            entry = ModelFile()
            self.model.create(path, entry)
        self.open_files.append((file, entry))

    @rule(which=st.integers(0, 2), offset=st.integers(0, 12), data=contents)
    def write(self, which: int, offset: int, data: bytes) -> None:
        if self.open_files:
            file, entry = self.open_files[which % len(self.open_files)]
            self.disk.write(file, offset, data)
            entry.write(offset, data)

    @rule(which=st.integers(0, 2), size=st.integers(0, 12))
    def truncate_open(self, which: int, size: int) -> None:
        if self.open_files:
            file, entry = self.open_files[which % len(self.open_files)]
            self.disk.truncate_open(file, size)
            entry.truncate(size)

    @rule(which=st.integers(0, 2))
    def size_of_open(self, which: int) -> None:
        if self.open_files:
            file, entry = self.open_files[which % len(self.open_files)]
            assert self.disk.size(file) == len(entry.content)

    @rule(which=st.integers(0, 2), data_only=st.booleans())
    def sync_open(self, which: int, data_only: bool) -> None:
        if self.open_files:
            file, entry = self.open_files[which % len(self.open_files)]
            self.disk.sync(file, data_only)
            if not self.lying:
                self.model.sync_file(entry)

    @rule(which=st.integers(0, 2))
    def close(self, which: int) -> None:
        if self.open_files:
            file, _ = self.open_files.pop(which % len(self.open_files))
            self.disk.close(file)

    @rule(directory=directories, name=names, size=st.integers(0, 12))
    def truncate(self, directory: int, name: str, size: int) -> None:
        path = self.path(directory, name)
        entry = self.model.find(path)
        if isinstance(entry, ModelFile):
            self.disk.truncate(path, size)
            entry.truncate(size)
        elif entry is None:
            self.refused(lambda: self.disk.truncate(path, size), errno.ENOENT)

    @rule(directory=directories, name=names, data_only=st.booleans())
    def sync(self, directory: int, name: str, data_only: bool) -> None:
        path = self.path(directory, name)
        entry = self.model.find(path)
        if isinstance(entry, ModelFile):
            file = self.disk.open(path, create=False)
            self.disk.sync(file, data_only)
            self.disk.close(file)
            if not self.lying:
                self.model.sync_file(entry)

    @rule(directory=directories)
    def sync_directory(self, directory: int) -> None:
        places = self.model.directories()
        path = places[directory % len(places)]
        self.disk.sync_directory(path)
        if not self.lying:
            self.model.sync_directory(path)

    @rule(directory=directories, name=names)
    def mkdir(self, directory: int, name: str) -> None:
        path = self.path(directory, name)
        if self.model.find(path) is not None:
            self.refused(lambda: self.disk.mkdir(path), errno.EEXIST)
        elif path.count("/") < 3:
            self.disk.mkdir(path)
            self.model.create(path, ModelDirectory())

    @rule(directory=directories, name=names)
    def remove(self, directory: int, name: str) -> None:
        path = self.path(directory, name)
        entry = self.model.find(path)
        if entry is None:
            self.refused(lambda: self.disk.unlink(path), errno.ENOENT)
            self.refused(lambda: self.disk.rmdir(path), errno.ENOENT)
        elif isinstance(entry, ModelFile):
            self.refused(lambda: self.disk.rmdir(path), errno.ENOTDIR)
            self.disk.unlink(path)
            self.model.remove(path)
        elif entry.entries:
            self.refused(lambda: self.disk.rmdir(path), errno.ENOTEMPTY)
        else:
            self.refused(lambda: self.disk.unlink(path), errno.EISDIR)
            self.disk.rmdir(path)
            self.model.remove(path)

    @rule(old_directory=directories, old_name=names, new_directory=directories, new_name=names)
    def rename(self, old_directory: int, old_name: str, new_directory: int, new_name: str) -> None:
        old, new = self.path(old_directory, old_name), self.path(new_directory, new_name)
        if self.model.may_rename(old, new):
            self.disk.rename(old, new)
            self.model.rename(old, new)
        else:
            wrong = (errno.ENOENT, errno.EINVAL, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR)
            self.refused(lambda: self.disk.rename(old, new), *wrong)

    @rule(on=st.booleans())
    def lie(self, on: bool) -> None:
        self.disk.lie(on)
        self.lying = on

    @rule(keep=st.sampled_from(KEEPS), seed=st.integers(0, 1000))
    def lose_power(self, keep: str, seed: int) -> None:
        self.disk.lose_power(keep, seed)
        for file, _ in self.open_files:
            self.refused(lambda file=file: self.disk.write(file, 0, b"late"), errno.EIO)  # type: ignore[misc]
            self.disk.close(file)
        self.open_files = []
        tree = self.disk.tree()
        note(f"left: {tree}")
        candidates = list(self.model.candidates(keep))
        assert any(_may_be(tree, candidate, keep) for candidate in candidates), (tree, keep)
        self.model.adopt(tree)

    @invariant()
    def looks_the_same(self) -> None:
        assert self.disk.tree() == self.model.tree()

    @invariant()
    def counts_what_is_at_risk(self) -> None:
        assert self.disk.unsynced()[1] == len(self.model.journal)

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            for file, _ in self.open_files:
                self.disk.close(file)
            self.disk.end()


def _may_be(tree: Tree, candidate: dict[str, ModelFile | None], keep: str) -> bool:
    if set(tree) != set(candidate):
        return False
    for path, file in candidate.items():
        content = tree[path]
        if (file is None) != (content is None):
            return False
        if file is not None and content is not None and not file.may_be(content, keep):
            return False
    return True


def tree_below(root: str, hidden: frozenset[str] = frozenset()) -> Tree:
    """The contents of a directory, as a process sees it."""
    found: Tree = {}
    for above, directories_here, files in os.walk(root):
        if above == root:
            directories_here[:] = [name for name in directories_here if name not in hidden]
        prefix = os.path.relpath(above, root) + "/" if above != root else ""
        found |= dict.fromkeys(prefix + name for name in directories_here)
        for name in files:
            with open(os.path.join(above, name), "rb") as file:
                found[prefix + name] = file.read()
    return found
