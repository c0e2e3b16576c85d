"""The Python packages a node needs, as wheels for the node's own Python, machine and C library.

Versions are those installed here, so that a node runs what the tests ran. Wheels are fetched by pip once and kept in
`~/.cache/faultline` (XDG_CACHE_HOME), so that later runs need no network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import mkdtemp

from harness.node_images.cache import keep, place_of

_OLDEST_GLIBC_MINOR = 17
"""manylinux2014: nothing we need is built for older ones alone."""
_FETCH_LIMIT_S = 300


class WheelsError(Exception):
    """The wheels cannot be had; the message is one line."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where wheels are to run."""

    python: tuple[int, int]
    machine: str
    """As uname -m has it: x86_64, aarch64."""
    glibc_minor: int
    """Of glibc 2.x."""

    def __str__(self) -> str:
        return f"Python {self.python[0]}.{self.python[1]} on {self.machine} with glibc 2.{self.glibc_minor}"

    @property
    def platforms(self) -> tuple[str, ...]:
        """Platform tags of the wheels that run there."""
        minors = range(self.glibc_minor, _OLDEST_GLIBC_MINOR - 1, -1)
        return (*(f"manylinux_2_{minor}_{self.machine}" for minor in minors), f"manylinux2014_{self.machine}")


def wheels(packages: Sequence[str], target: Target) -> list[Path]:
    """The wheels of these packages and all they need. Raises WheelsError."""
    if not packages:
        return []
    wanted = [f"{package}=={version(package)}" if version(package) else package for package in packages]
    kept = place_of("wheels", [str(target), *wanted])
    if not kept.is_dir():
        _fetch(wanted, target, kept)
    return sorted(kept.glob("*.whl"))


def version(package: str) -> str:
    """The version installed here; empty when it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _fetch(wanted: Sequence[str], target: Target, into: Path) -> None:
    into.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(mkdtemp(prefix="wheels-", dir=into.parent))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    pip += ["--implementation=cp", f"--python-version={target.python[0]}.{target.python[1]}"]
    pip += [f"--platform={platform}" for platform in target.platforms]
    try:
        done = subprocess.run(
            [*pip, f"--dest={partial}", *wanted], capture_output=True, text=True, timeout=_FETCH_LIMIT_S, check=False
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            output = next(
                (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no word"
            )
            raise WheelsError(f"packages for {target} cannot be fetched: {output.removeprefix('ERROR: ')}")
        keep(partial, into)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WheelsError(f"packages for {target} cannot be fetched: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
