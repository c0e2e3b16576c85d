"""A lossy file system mounted for a test, and whether that can be done here.

Without /dev/fuse such tests are skipped, unless FAULTLINE_REQUIRE_DOCKER=1: then they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from images.base.lossyfs.control import call
from images.base.lossyfs.mounting import MountOptions, start


@dataclass(frozen=True)
class Mounted:
    """A mount and its daemon."""

    backing: Path
    root: Path
    control: str
    log: Path
    pid: int

    def tell(self, command: str, **arguments: Any) -> dict[str, Any]:
        return call(self.control, command, **arguments)

    def lose_power(self, keep: str = "nothing", seed: int = 1) -> dict[str, Any]:
        return self.tell("power-loss", keep=keep, seed=seed)


def need_fuse() -> None:
    """Skip or fail where nothing can be mounted."""
    missing = ""
    if not os.path.exists("/dev/fuse"):
        missing = "/dev/fuse is missing"
    elif shutil.which("fusermount3") is None:
        missing = "fusermount3 is missing (Debian: apt-get install fuse3)"
    if missing and os.environ.get("FAULTLINE_REQUIRE_DOCKER") == "1":
        pytest.fail(f"{missing}, and FAULTLINE_REQUIRE_DOCKER=1 asks for it")
    if missing:
        pytest.skip(missing)


@contextmanager
def mounted(directory: Path, **options: bool) -> Iterator[Mounted]:
    """Mount `directory`/backing at `directory`/mount."""
    need_fuse()
    backing, root, control, log = (directory / name for name in ("backing", "mount", "control", "log"))
    for made in (backing, root):
        made.mkdir(exist_ok=True)
    with open(log, "a+b") as messages:
        pid = start(MountOptions(str(backing), str(root), str(control), **options), messages)
    try:
        yield Mounted(backing, root, str(control), log, pid)
    finally:
        subprocess.run(["fusermount3", "-uz", str(root)], capture_output=True, check=False)
    assert "Traceback" not in log.read_text(), log.read_text()
