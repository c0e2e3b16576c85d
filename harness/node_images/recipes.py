"""The inputs of node images.

    faultline/os       Debian bookworm with images/base/packages.txt
    faultline/base     the node agent and the lossy file system on top of it
    faultline/SYSTEM   a system under test on top of that, as images/SYSTEM/Dockerfile says; -VERSION where it has any

A recipe is everything that goes into an image but the image it stands on: the files of its folder, package lists, the
Dockerfile, Python packages in the versions installed here, the coordinates of Java archives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from harness.errors import EnvironmentUnavailable
from harness.node_images.jars import jars
from harness.node_images.wheels import version
from images.system import System

OS, BASE = "faultline/os", "faultline/base"
RELEASE: Final = "bookworm"

JARS_LIST: Final = "jars.txt"
"""In a build context: the coordinates of the archives that the image needs."""
_SOURCES = Path(str(files("images")))
_RECIPE = "1"
"""Counts changes of how images are built that no input file shows."""


class ImageError(EnvironmentUnavailable):
    """An image is missing, stale or cannot be built; one line that says what to do."""


def image_of(system: System) -> str:
    """The name of a system's image: each release has its own."""
    return f"faultline/{system.name}" + (f"-{system.version}" if system.version else "")


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


def recipes(systems: Sequence[System]) -> Iterator[Recipe]:
    """The recipes of all layers, the lowest first."""
    base = _SOURCES / "base"
    yield Recipe(OS, "", {name: (base / name).read_bytes() for name in ("Dockerfile.os", "packages.txt")})
    yield Recipe(BASE, OS, {**base_sources(), **_installing(base / "Dockerfile", base / "requirements.txt")})
    for system in systems:
        shipment = system.shipment
        if not shipment.dockerfile.is_file():
            raise ImageError(f"system {system.name} has no image: there is no {shipment.dockerfile}")
        installing = _installing(shipment.dockerfile, shipment.requirements)
        lists = {"packages.txt": shipment.packages, JARS_LIST: shipment.jars}
        chosen = {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in lists.items() if lines}
        yield Recipe(image_of(system), BASE, {**system_sources(system), **installing, **chosen})


def base_sources() -> dict[str, bytes]:
    """The node agent and the lossy file system: path on the machine → contents."""
    return {"images/__init__.py": b"", **_tree("images/base", _SOURCES / "base")}


def base_requirements() -> list[str]:
    """The Python packages of the base layer."""
    return _lines((_SOURCES / "base" / "requirements.txt").read_text())


def system_sources(system: System) -> dict[str, bytes]:
    """The sources that a system ships: path on the machine → contents."""
    sources: dict[str, bytes] = {}
    for path, source in system.shipment.sources.items():
        sources |= _tree(path, source) if source.is_dir() else {path: source.read_bytes()}
    return sources


def system_jars(system: System) -> Iterator[tuple[str, Path]]:
    """The Java archives that a system needs, with their checksums: path on the machine, file here. Raises JarsError."""
    if system.shipment.jars:
        for file in sorted(jars(system.shipment.jars).iterdir()):
            yield f"{system.name}/jars/{file.name}", file


def system_requirements(system: System) -> list[str]:
    """The Python packages that a system needs."""
    return _lines(system.shipment.requirements.read_text())


def _tree(name: str, folder: Path) -> dict[str, bytes]:
    """The Python sources of a folder, and the agent's script, below `name`."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in files
        if path.suffix == ".py" or path.name == "faultline-node"
    }


def _installing(dockerfile: Path, requirements: Path) -> dict[str, bytes]:
    """The Dockerfile, and the requirements in the versions installed here."""
    names = _lines(requirements.read_text())
    pinned = (f"{name}=={version(name)}\n" if version(name) else f"{name}\n" for name in names)
    return {"Dockerfile": dockerfile.read_bytes(), "requirements.txt": "".join(pinned).encode()}


def _lines(text: str) -> list[str]:
    """The entries of a list, one a line; comments begin with #."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def packages() -> list[str]:
    """The Debian packages of the operating-system layer."""
    return _lines((_SOURCES / "base" / "packages.txt").read_text())
