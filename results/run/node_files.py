"""The files that nodes left, below a directory of the file system or held in memory.

A run that is kept in memory (`results/run/held_tables.py`) has its nodes' files there, too, in the simulation, whose
disks are in this process: of the hundred files of a short run, making and deleting them takes as long as checking it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self


class FileTree(Protocol):
    """A file, a directory, or a name that nothing has. A Path is one."""

    @property
    def name(self) -> str: ...

    def __truediv__(self, name: str, /) -> FileTree: ...

    def iterdir(self) -> Iterable[FileTree]: ...

    def is_dir(self) -> bool: ...

    def is_file(self) -> bool: ...

    def read_bytes(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class HeldTree:
    """A FileTree in memory."""

    name: str
    content: bytes | Mapping[str, Any] | None
    """Of a file; of a directory, by name; None of a name that nothing has."""

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Self:
        """The directory below which `files` lie, by path."""
        root: dict[str, Any] = {}
        for path, contents in files.items():
            *parents, name = path.split("/")
            directory = root
            for parent in parents:
                directory = directory.setdefault(parent, {})
            directory[name] = contents
        return cls("", root)

    def __truediv__(self, name: str, /) -> HeldTree:
        return HeldTree(name, self.content.get(name) if isinstance(self.content, Mapping) else None)

    def iterdir(self) -> Iterator[HeldTree]:
        """What a directory has."""
        if not isinstance(self.content, Mapping):
            raise NotADirectoryError(20, "Not a directory", self.name)
        return (HeldTree(name, content) for name, content in self.content.items())

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return isinstance(self.content, Mapping)

    def is_file(self) -> bool:
        """Whether it is a file."""
        return isinstance(self.content, bytes)

    def read_bytes(self) -> bytes:
        """The contents of a file."""
        if not isinstance(self.content, bytes):
            raise FileNotFoundError(2, "No such file", self.name)
        return self.content


def write_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write `files`, by path, below a directory."""
    for parent in dict.fromkeys((directory / path).parent for path in files):
        parent.mkdir(parents=True, exist_ok=True)
    for path, contents in files.items():
        (directory / path).write_bytes(contents)
