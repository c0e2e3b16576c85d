"""The files of a node as one tar. Each file is read whole, so a growing file is a whole entry."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

HIDDEN = ".lossyfs"
"""Directory of the lossy file system's own files."""


def collect(sources: Sequence[str], out: BinaryIO) -> None:
    """Write a tar of NAME=PATH pairs: each file or directory under its name. Missing paths are left out."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for source in sources:
            name, _, path = source.partition("=")
            for file in _files(Path(path)):
                name_in_tar = name if file == Path(path) else f"{name}/{file.relative_to(path)}"
                try:
                    contents = file.read_bytes()
                except OSError:  # deleted since it was listed, or unreadable: left out
                    continue
                entry = tarfile.TarInfo(name_in_tar)
                entry.size, entry.mode = len(contents), 0o644
                archive.addfile(entry, io.BytesIO(contents))


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for directory, directories, names in os.walk(path):
        directories[:] = sorted(name for name in directories if name != HIDDEN)
        for name in sorted(names):
            file = Path(directory, name)
            if file.is_file() and not file.is_symlink():
                yield file
