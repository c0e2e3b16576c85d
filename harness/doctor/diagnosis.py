"""The prerequisites of runs, whether each is met, and the remedy when it is not.

One line for each prerequisite: `ok` with its state, or `missing` with a remedy. A run in simulation needs disk space
only; the rest is for clusters on real nodes (Docker or SSH) and for suites (Spark). The exit code is 3 when a
prerequisite of the requested environment is missing:

- without a spec, and with one for Docker: all but Java, netem, debootstrap and fuse3;
- with a spec for SSH: the prerequisites of its hosts, and no Docker;
- with a spec for the simulation: disk space;
- with a spec for a system of Java archives (Apache Kafka): these, or Maven to fetch them, and memory for its nodes;
- with a spec whose clients are of another library than the native one: that library, and for Java's a JDK;
- netem too when the spec's script asks for links that are slow, since only netem delays packets.

Every other missing prerequisite is listed with the runs that need it. Nothing stays changed, and no privilege is
needed. If the base image is built, a container of it tests the kernel's features; otherwise the kernel's configuration
is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.text import Text

from harness.doctor.probes import Engine, Kernel, Probes
from harness.environments.docker.engine import NOTHING_ANSWERS, EngineUnreachable
from harness.errors import EnvironmentUnavailable

if TYPE_CHECKING:
    from rich.console import Console

    from harness.spec import Spec

GIB: Final = 1 << 30
STORE_BYTES_LEAST: Final = GIB
"""A run on real nodes collects every data directory; a minute leaves some ten MB, a day of runs some ten GB."""
ENGINE_BYTES_LEAST: Final = 3 * GIB
"""Images with their layers take about 1 GiB, and as much again while they are built anew."""
JAVA_LEAST: Final = 17
PACKAGE_LISTS_AGE_DAYS_MAX: Final = 14
"""Archives delete a package some time after its successor has come: older lists name files that are gone."""

FUSE_DEVICE: Final = "/dev/fuse"


class Purpose(StrEnum):
    """The runs that need a prerequisite, as the line of a missing one names them."""

    ALWAYS = "all runs"
    DOCKER = "runs in Docker"
    HOSTS = "runs over SSH"
    DELAYS = "faults that delay packets on real nodes"
    SPARK = "suites"
    ARCHIVES = "nodes of Java, whose archives Maven fetches"
    CLIENTS = "runs whose clients are of that library"
    BOOTSTRAP = "images built without a registry"
    MOUNTS = "lossy file systems mounted on this machine"


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """One line of the doctor: something that runs need, and whether it is there."""

    subject: str
    ok: bool
    state: str
    """Its state, or what is missing."""
    remedy: str = ""
    """The remedy when it is missing."""
    purpose: Purpose = Purpose.ALWAYS
    needed: bool = True
    """Whether the requested environment does not work without it."""

    def text(self) -> str:
        """The line without its first two columns."""
        if self.ok:
            return self.state
        parts = [self.state, "" if self.needed else f"only {self.purpose} need it", self.remedy]
        return "; ".join(part for part in parts if part)


def needed_purposes(spec: Spec | None) -> frozenset[Purpose]:
    """The purposes that `spec` has, or runs in Docker when there is none."""
    environment = "docker" if spec is None else spec.environment
    parts = {Purpose.ALWAYS}
    if environment == "docker":
        parts.add(Purpose.DOCKER)
    if environment == "ssh":
        parts.add(Purpose.HOSTS)
    if spec is not None and environment != "sim":
        parts |= {Purpose.ARCHIVES, Purpose.CLIENTS}
    if spec is not None and environment != "sim" and _asks_for_delays(spec):
        parts.add(Purpose.DELAYS)
    return frozenset(parts)


def _asks_for_delays(spec: Spec) -> bool:
    return any(
        getattr(planned.fault, "delay_ms", 0) or getattr(planned.fault, "jitter_ms", 0) for planned in spec.script
    )


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The sources of facts for a diagnosis: this machine, the store, the images and the hosts."""

    probes: Probes
    store: Path
    images: Callable[[], Sequence[Prerequisite]] = tuple
    """One prerequisite for each image; called only when an engine answers."""
    node: Callable[[], Mapping[str, str] | None] = lambda: None
    """Features that a container of the base image lacks, from `faultline-node describe`: feature → reason, or an empty
    text. None when there is no such image. Called only when an engine answers."""
    hosts: Callable[[], Sequence[Prerequisite]] = tuple
    """Prerequisites of the spec's hosts; empty without any."""
    system: Callable[[], Sequence[Prerequisite]] = tuple
    """Prerequisites of the spec's system beside its images; empty without a spec."""


def diagnose(diagnosis: Diagnosis, spec: Spec | None = None) -> list[Prerequisite]:
    """Every prerequisite, in the order of the lines; one whose probe fails is missing.

    Nothing missing hides another: remedies can be applied from the first line to the last.
    """
    needed = needed_purposes(spec)
    found = [replace(prerequisite, needed=prerequisite.purpose in needed) for prerequisite in _all(diagnosis)]
    return [*_package_lists(diagnosis.probes.package_lists_age_days(), found), *found]


def show(console: Console, prerequisites: Iterable[Prerequisite]) -> None:
    """Print one line for each prerequisite."""
    prerequisites = list(prerequisites)
    subject_width = max((len(prerequisite.subject) for prerequisite in prerequisites), default=0)
    for prerequisite in prerequisites:
        state, style = ("ok", "green") if prerequisite.ok else ("missing", "red" if prerequisite.needed else "yellow")
        line = Text.assemble(
            (f"{state:<7}", style), "  ", f"{prerequisite.subject:<{subject_width}}", "  ", prerequisite.text()
        )
        console.print(line, soft_wrap=True)


def all_met(prerequisites: Iterable[Prerequisite]) -> bool:
    """Whether every needed prerequisite is met."""
    return all(prerequisite.ok or not prerequisite.needed for prerequisite in prerequisites)


# ---- the prerequisites -----------------------------------------------------------------------------------------------


def _all(diagnosis: Diagnosis) -> Iterator[Prerequisite]:
    probes = diagnosis.probes
    engine: Engine | None = None
    try:
        engine = probes.engine()
        yield Prerequisite("Docker engine", True, f"{engine.version} ({engine.storage}, cgroup v{engine.cgroup})")
    except EngineUnreachable as error:
        yield Prerequisite("Docker engine", False, error.detail, _engine_remedy(error, probes), Purpose.DOCKER)
    here = probes.kernel()
    elsewhere = engine is not None and engine.kernel != here.release
    kernel = Kernel(engine.kernel, None) if engine is not None and elsewhere else here
    lacks = diagnosis.node() if engine is not None else None
    for feature in FEATURES:
        yield _tried(feature, kernel, lacks[feature.key]) if lacks is not None else _read(feature, kernel)
    if lacks is None and not elsewhere and not probes.opens(FUSE_DEVICE):
        yield Prerequisite(FUSE_DEVICE, False, "it cannot be opened", "modprobe fuse", Purpose.DOCKER)
    yield _cgroup(engine.cgroup if engine is not None else probes.cgroup())
    for program, package, purpose in _PROGRAMS:
        remedy = f"on Debian: apt-get install {package}"
        there = probes.program(program)
        yield Prerequisite(package, there, "installed" if there else "not installed", remedy, purpose)
    yield _java(probes.java())
    yield _disk("disk for runs", diagnosis.store, probes.free_bytes(diagnosis.store), STORE_BYTES_LEAST, Purpose.ALWAYS)
    if engine is not None and not elsewhere:
        root = Path(engine.root)
        yield _disk("disk for images", root, probes.free_bytes(root), ENGINE_BYTES_LEAST, Purpose.DOCKER)
    if engine is not None:
        yield from _known("images", diagnosis.images, Purpose.DOCKER)
    else:
        remedy = "start the engine, then: faultline images build"
        yield Prerequisite("images", False, "not known without an engine", remedy, Purpose.DOCKER)
    yield from diagnosis.system()
    yield from _known("hosts", diagnosis.hosts, Purpose.HOSTS)


_PROGRAMS: Final = (("debootstrap", "debootstrap", Purpose.BOOTSTRAP), ("fusermount3", "fuse3", Purpose.MOUNTS))
"""Program, Debian's package of it, and its purpose."""
_START: Final = "start it: systemctl start docker (without systemd: dockerd >/var/log/dockerd.log 2>&1 &)"


def _engine_remedy(error: EngineUnreachable, probes: Probes) -> str:
    if error.detail != NOTHING_ANSWERS:
        return error.remedy
    return _START if probes.program("dockerd") else f"install it (on Debian: apt-get install docker.io), then {_START}"


def _package_lists(age_days: float | None, prerequisites: Sequence[Prerequisite]) -> Iterator[Prerequisite]:
    """A line about apt's lists, only if they are old and a remedy on this machine installs a package."""
    installs = [
        prerequisite
        for prerequisite in prerequisites
        if not prerequisite.ok and "apt-get install" in prerequisite.remedy and prerequisite.purpose != Purpose.HOSTS
    ]
    if not installs or age_days is None or age_days <= PACKAGE_LISTS_AGE_DAYS_MAX:
        return
    first = next((prerequisite for prerequisite in installs if prerequisite.needed), installs[0])
    state = "apt has none" if math.isinf(age_days) else f"apt's are {age_days:.0f} days old"
    yield Prerequisite(
        "package lists", False, state, "before any apt-get install: apt-get update", first.purpose, first.needed
    )


def _known(subject: str, ask: Callable[[], Sequence[Prerequisite]], purpose: Purpose) -> Sequence[Prerequisite]:
    try:
        return ask()
    except EnvironmentUnavailable as error:
        return [Prerequisite(subject, False, str(error), purpose=purpose)]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature that the kernel of the nodes must have."""

    subject: str
    key: str
    """Its name in `faultline-node describe`."""
    options: tuple[tuple[str, str], ...]
    """(option, module) of the kernel's configuration; all are needed."""
    purpose: Purpose
    gives: str


FEATURES: Final = (
    Feature(
        "nftables",
        "nftables",
        (("NF_TABLES", "nf_tables"), ("NF_TABLES_INET", "nf_tables"), ("NFT_NUMGEN", "nft_numgen")),
        Purpose.DOCKER,
        "partitions and packet loss",
    ),
    Feature("netem", "netem", (("NET_SCH_NETEM", "sch_netem"),), Purpose.DELAYS, "delay and jitter of packets"),
    Feature("FUSE", "fuse", (("FUSE_FS", "fuse"),), Purpose.DOCKER, "power losses, lying and failing disks"),
)
OTHER_KERNEL: Final = "use a kernel that has it (on Debian: apt-get install linux-image-amd64)"


def _tried(feature: Feature, kernel: Kernel, lack: str) -> Prerequisite:
    """The result of a test in a container."""
    if not lack:
        return Prerequisite(feature.subject, True, f"{feature.gives}: tried in a container", purpose=feature.purpose)
    return Prerequisite(
        feature.subject, False, f"{lack.rstrip('.')} (kernel {kernel.release})", OTHER_KERNEL, feature.purpose
    )


def _read(feature: Feature, kernel: Kernel) -> Prerequisite:
    """The result of reading the kernel's configuration."""
    has = {option: kernel.feature(option, module) for option, module in feature.options}
    absent = [f"CONFIG_{option}" for option, there in has.items() if there is False]
    if absent:
        detail = f"the kernel {kernel.release} lacks {', '.join(absent)}"
        return Prerequisite(feature.subject, False, detail, OTHER_KERNEL, feature.purpose)
    unknown = dict.fromkeys(module for option, module in feature.options if has[option] is None)
    if unknown:
        detail = f"the kernel {kernel.release} does not show whether it has {', '.join(unknown)}"
        return Prerequisite(
            feature.subject, False, detail, "faultline images build, and a container will try", feature.purpose
        )
    return Prerequisite(feature.subject, True, feature.gives, purpose=feature.purpose)


def _cgroup(version: str) -> Prerequisite:
    if version:
        return Prerequisite("cgroup", True, f"v{version}", purpose=Purpose.DOCKER)
    return Prerequisite(
        "cgroup",
        False,
        "no control groups are mounted, so no container can be started or paused",
        "mount -t cgroup2 none /sys/fs/cgroup",
        Purpose.DOCKER,
    )


def _java(version: str | None) -> Prerequisite:
    remedy = f"install Java {JAVA_LEAST} (on Debian: apt-get install openjdk-17-jre-headless) or point JAVA_HOME at one"
    if version is None:
        return Prerequisite("Java", False, "not found", remedy, Purpose.SPARK)
    major = version.removeprefix("1.").split(".")[0]
    if major.isdigit() and int(major) < JAVA_LEAST:
        return Prerequisite("Java", False, f"{version} is too old for Spark", remedy, Purpose.SPARK)
    return Prerequisite("Java", True, f"{version}, for Spark", purpose=Purpose.SPARK)


def _disk(subject: str, path: Path, free: int | None, least: int, purpose: Purpose) -> Prerequisite:
    if free is None:
        return Prerequisite(subject, False, f"free space at {path} is unknown", "is it mounted and readable?", purpose)
    state = f"{free / GIB:.1f} GiB free at {path}"
    if free < least:
        return Prerequisite(subject, False, state, f"make room, at least {least / GIB:.0f} GiB", purpose)
    return Prerequisite(subject, True, state, purpose=purpose)
