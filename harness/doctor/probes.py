"""Facts about this machine, as plain values; nothing is changed and no privilege is needed.

A fact that cannot be determined is None or an exception with one line, never a guess.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.environments.docker.engine import connect

_JAVA_LIMIT_S = 20
_APT_LISTS = Path("/var/lib/apt/lists")
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Engine:
    """A Docker engine that answers."""

    version: str
    kernel: str
    """Release of the kernel its containers run on."""
    storage: str
    cgroup: str
    """Version of control groups its containers are held by: `1` or `2`."""
    root: str
    """Its directory of images and containers, on its own machine."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A Linux kernel: its release, and what it was built with."""

    release: str
    options: Mapping[str, str] | None
    """Option without `CONFIG_` → `y` or `m`; None when the kernel does not publish it."""
    modules: frozenset[str] = frozenset()
    """Modules on disk for this release, and loaded ones: an option that is `m` needs its module here."""

    def feature(self, option: str, module: str) -> bool | None:
        """Whether it has the feature of `option`; None when that cannot be determined from here."""
        if self.options is None:
            return True if module in self.modules else None
        built = self.options.get(option)
        return built == "y" or (built == "m" and module in self.modules)


class Probes(Protocol):
    """The facts the doctor needs; tests implement it, too."""

    def engine(self) -> Engine:
        """Raises EngineUnreachable."""

    def kernel(self) -> Kernel: ...

    def cgroup(self) -> str:
        """`1` or `2`; empty when no control groups are mounted."""

    def opens(self, device: str) -> bool:
        """Whether the device is there and may be opened for reading and writing."""

    def program(self, name: str) -> bool:
        """Whether a program is installed, also one for root alone."""

    def package_lists_age_days(self) -> float | None:
        """The age of apt's package lists; infinite if they were never fetched, None on a machine without apt."""

    def java(self) -> str | None:
        """The version of the Java that Spark would start, such as 17.0.15; None without one."""

    def available_memory_bytes(self) -> int | None:
        """Memory that processes started now can have; None where the kernel does not say."""

    def free_bytes(self, path: Path) -> int | None:
        """Free space where `path` is, or would be made; None when nothing of it is on this machine."""


class ThisMachine:
    """Implements Probes for the machine this runs on."""

    def engine(self) -> Engine:
        """See Probes."""
        client = connect()
        try:
            info = client.info()
        finally:
            client.close()
        return Engine(
            version=str(info.get("ServerVersion", "")),
            kernel=str(info.get("KernelVersion", "")),
            storage=str(info.get("Driver", "")),
            cgroup=str(info.get("CgroupVersion", "1")),
            root=str(info.get("DockerRootDir", "")),
        )

    def kernel(self) -> Kernel:
        """See Probes."""
        release = os.uname().release
        return Kernel(release, _options(release), _modules(release))

    def cgroup(self) -> str:
        """See Probes."""
        mounted = Path("/sys/fs/cgroup")
        if (mounted / "cgroup.controllers").exists():
            return "2"
        return "1" if (mounted / "freezer").exists() else ""

    def opens(self, device: str) -> bool:
        """See Probes."""
        return os.access(device, os.R_OK | os.W_OK)

    def program(self, name: str) -> bool:
        """See Probes."""
        return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None

    def package_lists_age_days(self) -> float | None:
        """See Probes."""
        return package_lists_age_days(_APT_LISTS, time.time()) if self.program("apt-get") else None

    def java(self) -> str | None:
        """See Probes."""
        home = os.environ.get("JAVA_HOME")
        program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
        if program is None:
            return None
        try:
            ended = subprocess.run(
                [program, "-version"], capture_output=True, text=True, timeout=_JAVA_LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r'version "([^"]+)"', ended.stderr + ended.stdout)
        return match[1] if match else None

    def available_memory_bytes(self) -> int | None:
        """See Probes."""
        try:
            text = Path("/proc/meminfo").read_text(encoding="utf-8")
        except OSError:
            return None
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
        return int(match[1]) * 1024 if match else None

    def free_bytes(self, path: Path) -> int | None:
        """See Probes."""
        path = path.absolute()
        for place in (path, *path.parents):
            try:
                return shutil.disk_usage(place).free
            except FileNotFoundError:
                continue
            except OSError:
                return None
        return None


def package_lists_age_days(directory: Path, now_s: float) -> float:
    """The age of the newest package list in apt's directory of lists; infinite if there is none."""
    try:
        fetched_s = [entry.stat().st_mtime for entry in directory.iterdir() if "_Packages" in entry.name]
    except OSError:
        fetched_s = []
    # a list carries its archive's time, and the directory the time of the last update
    return (now_s - max(*fetched_s, directory.stat().st_mtime)) / _DAY_S if fetched_s else math.inf


def parse_options(text: str) -> dict[str, str]:
    """The options of a kernel's configuration file that are `y` or `m`."""
    return dict(re.findall(r"^CONFIG_(\w+)=([ym])$", text, re.MULTILINE))


def _options(release: str) -> dict[str, str] | None:
    for path, opened in ((Path("/proc/config.gz"), gzip.open), (Path(f"/boot/config-{release}"), open)):
        try:
            with opened(path, "rt", encoding="utf-8") as file:
                return parse_options(file.read())
        except OSError:
            continue
    return None


def _modules(release: str) -> frozenset[str]:
    names: set[str] = set()
    on_disk = Path("/lib/modules") / release
    for listing in (on_disk / "modules.dep", on_disk / "modules.builtin", Path("/proc/modules")):
        try:
            text = listing.read_text(encoding="utf-8")
        except OSError:
            continue
        # "kernel/net/sched/sch_netem.ko.xz: …" in the first two, "sch_netem 20480 0 …" in the last.
        words = (re.split(r"[: ]", line, maxsplit=1)[0] for line in text.splitlines())
        names.update(word.rpartition("/")[2].partition(".ko")[0].replace("-", "_") for word in words)
    return frozenset(names)
