"""What node images are made from.

    faultline/os       Debian bookworm with images/base/packages.txt
    faultline/base     the node agent and the lossy file system on top of it
    faultline/SYSTEM   a system under test on top of that, as images/SYSTEM/Dockerfile says

A recipe is everything that goes into an image but the image it stands on: the files of its folder, package lists, the
Dockerfile, Python packages in the versions installed here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from harness.errors import EnvironmentUnavailable
from harness.node_images.wheels import version

OS, BASE = "faultline/os", "faultline/base"
RELEASE: Final = "bookworm"

_SOURCES = Path(str(files("images")))
_RECIPE = "1"
"""Counts changes of how images are built that no input file shows."""


class ImageError(EnvironmentUnavailable):
    """An image is missing, stale or cannot be built; one line that says what to do."""


def image_of(system: str) -> str:
    """The name of a system's image."""
    return f"faultline/{system}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one image is made."""

    name: str
    parent: str
    inputs: Mapping[str, bytes]
    """Path in the build context → contents."""

    @property
    def hash(self) -> str:
        """Of all that goes into it but its parent."""
        digest = hashlib.sha256(f"{_RECIPE}\n{self.name}\n{self.parent}\n".encode())
        for path, contents in sorted(self.inputs.items()):
            digest.update(f"{path}\n{len(contents)}\n".encode() + contents)
        return digest.hexdigest()


def recipes(systems: Sequence[str]) -> Iterator[Recipe]:
    """What stands on what, from the ground up."""
    base = _SOURCES / "base"
    yield Recipe(OS, "", {name: (base / name).read_bytes() for name in ("Dockerfile.os", "packages.txt")})
    yield Recipe(BASE, OS, {"images/__init__.py": b"", **_tree(base), **_installing(base)})
    for system in systems:
        folder = _SOURCES / system
        if not (folder / "Dockerfile").is_file():
            raise ImageError(f"system {system} has no image: there is no images/{system}/Dockerfile")
        yield Recipe(image_of(system), BASE, {**_shared(), **_tree(folder), **_installing(folder)})


def _tree(folder: Path) -> dict[str, bytes]:
    """The Python sources and scripts of a package below `images`, by their path in the context."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {
        f"images/{path.relative_to(_SOURCES)}": path.read_bytes()
        for path in files
        if path.suffix == ".py" or path.name == "faultline-node"
    }


def _shared() -> dict[str, bytes]:
    """The sources that are part of no system and that every system may use."""
    return {**_tree(_SOURCES / "wire"), "images/trace.py": (_SOURCES / "trace.py").read_bytes()}


def _installing(folder: Path) -> dict[str, bytes]:
    """The Dockerfile, and the requirements in the versions installed here."""
    names = _lines((folder / "requirements.txt").read_text())
    pinned = (f"{name}=={version(name)}\n" if version(name) else f"{name}\n" for name in names)
    return {"Dockerfile": (folder / "Dockerfile").read_bytes(), "requirements.txt": "".join(pinned).encode()}


def _lines(text: str) -> list[str]:
    """What a list names, a line each; comments begin with #."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def packages() -> list[str]:
    """The Debian packages of the operating-system layer."""
    return _lines((_SOURCES / "base" / "packages.txt").read_text())
