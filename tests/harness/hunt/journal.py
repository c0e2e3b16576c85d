"""The runs of a range that is being made, on disk: interrupted, even killed, it goes on after the last whole one.

A range of an hour takes two, and its searches are deterministic from what their runs have shown. So the steps that were
made are enough to be where it was.
"""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.harness.hunt.searches import Step

_LENGTH: Final = struct.Struct("<I")


class Journal:
    """The steps of a range, by search, in a file of this process alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: dict[str, list[Step]] = {}
        whole = 0
        data = path.read_bytes() if path.exists() else b""
        while (begin := whole + _LENGTH.size) <= len(data):
            end = begin + _LENGTH.unpack_from(data, whole)[0]
            if end > len(data):
                break
            search, step = pickle.loads(zlib.decompress(data[begin:end]))
            self._steps.setdefault(search, []).append(step)
            whole = end
        if whole < len(data):
            with path.open("r+b") as file:
                file.truncate(whole)

    def steps(self, search: str) -> Sequence[Step]:
        """What a search has made before, in its order."""
        return tuple(self._steps.get(search, ()))

    def kept(self, name: str, search: Iterator[Step]) -> Iterator[Step]:
        """The steps of a search that begins with those that it has made before; what is new is kept."""
        known = len(self.steps(name))
        for number, step in enumerate(search):
            if number >= known:
                entry = zlib.compress(pickle.dumps((name, step)))
                with self._path.open("ab") as file:
                    file.write(_LENGTH.pack(len(entry)) + entry)
            yield step

    def close(self) -> None:
        """Delete it, once the range is made."""
        self._path.unlink(missing_ok=True)
