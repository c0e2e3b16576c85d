"""The cost of the lossy file system: appends through it against appends straight to a directory beside its backing one.

Two files grow side by side to 64 MiB each, anew for every round, in short turns that change places, so that whatever
else the machine does meets both. A program that logs is imitated: one descriptor opened with O_APPEND, no sync.
`ratio` is the median of the ratios of neighbouring turns. `undisturbed_ratio` compares the lower quartiles of either
side, which is what the file system costs where nothing else wants the processor: other work only makes a turn slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

APPEND_BYTES = 64 * 1024
SIZES = (4 * 1024, APPEND_BYTES, 1024 * 1024)
FILE_BYTES = 64 << 20
ROUNDS = 10
TURNS = 16


@dataclass(frozen=True, slots=True)
class Appends:
    """One size of append, measured."""

    append_bytes: int
    direct_us: tuple[float, ...]
    """Microseconds an append straight to the directory took, by turn."""
    lossy_us: tuple[float, ...]
    """The same through the lossy file system, each the neighbour of the one above."""

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return median(lossy / direct for direct, lossy in zip(self.direct_us, self.lossy_us, strict=True))

    @property
    def undisturbed_ratio(self) -> float:
        """The lower quartile through the file system against the lower quartile straight."""
        return quantiles(self.lossy_us)[0] / quantiles(self.direct_us)[0]


def measure(append_bytes: int = APPEND_BYTES, *, rounds: int = ROUNDS, directory: Path | None = None) -> Appends:
    """Measure appends of one size on a mount of its own, in `directory`. Raises RuntimeError when it cannot mount."""
    data = os.urandom(append_bytes)
    direct: list[float] = []
    lossy: list[float] = []
    with _mount(directory) as (backing, mountpoint):
        straight = backing.parent / "straight"  # the same disk, and nothing the file system should notice
        straight.mkdir()
        for _ in range(rounds):
            with _fresh(straight) as straight_file, _fresh(mountpoint) as lossy_file:
                for number in range(TURNS):
                    pair = [(straight_file, direct), (lossy_file, lossy)]
                    for file, times in pair if number % 2 else reversed(pair):
                        times.append(_turn(file, data))
    return Appends(append_bytes, tuple(direct), tuple(lossy))


def _turn(file: int, data: bytes) -> float:
    """Microseconds an append took."""
    appends = FILE_BYTES // TURNS // len(data)
    began = time.perf_counter()
    for _ in range(appends):
        os.write(file, data)
    return (time.perf_counter() - began) / appends * 1e6


@contextmanager
def _fresh(directory: Path) -> Iterator[int]:
    path = directory / "appended"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


@contextmanager
def _mount(below: Path | None) -> Iterator[tuple[Path, Path]]:
    """(backing directory, mount point)"""
    with TemporaryDirectory(prefix="faultline-bench-", dir=below) as name:
        backing, mountpoint, control = (Path(name) / part for part in ("backing", "mount", "control"))
        backing.mkdir()
        mountpoint.mkdir()
        _lossyfs("mount", str(backing), str(mountpoint), "--control", str(control))
        try:
            yield backing, mountpoint
        finally:
            _lossyfs("unmount", str(mountpoint), "--control", str(control))


def _lossyfs(*arguments: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "images.base.lossyfs", *arguments], capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise RuntimeError(ended.stderr.strip())
