"""`faultline doctor`: what this machine has of what runs need, and what to do about the rest.

One line a subject: `ok` with what was found, or `missing` with what to do. A run in simulation needs nothing but disk
space; the rest is for clusters on real nodes (Docker or SSH) and for suites (Spark). The exit code is 3 when something
is missing that is needed for what was asked about:

- without a spec, and with one for Docker: all but Java and netem;
- with a spec for SSH: what its hosts must have (`harness/environments/hostcheck.py`), and no Docker;
- with a spec for the simulation: disk space;
- netem too when the spec's script asks for links that are slow, since only netem delays packets.

Everything else that is missing is told and says what goes without it. The doctor changes nothing and asks for no
privilege. Kernel features are read from the kernel's own configuration; where that cannot be had, or the engine runs on
another machine, a container is asked, once the base image is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.text import Text

from harness.engine import EngineUnreachable
from harness.probes import Engine, Kernel, Probes

if TYPE_CHECKING:
    from rich.console import Console

    from harness.spec import Spec

GIB: Final = 1 << 30
STORE_BYTES_LEAST: Final = GIB
"""A run on real nodes collects every data directory; a minute leaves some ten MB, a day of runs some ten GB."""
ENGINE_BYTES_LEAST: Final = 3 * GIB
"""Images with their layers take about 1 GiB, and as much again while they are built anew."""
JAVA_LEAST: Final = 17

FUSE_DEVICE: Final = "/dev/fuse"


class Part(StrEnum):
    """What a subject is needed for, in the words of the line that misses it."""

    ALWAYS = "all runs"
    DOCKER = "runs in Docker"
    HOSTS = "runs over SSH"
    DELAYS = "faults that delay packets on real nodes"
    SPARK = "suites"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor."""

    subject: str
    ok: bool
    found: str
    """What there is, or what there is not."""
    remedy: str = ""
    """What to do when it is missing."""
    part: Part = Part.ALWAYS
    needed: bool = True
    """Whether what was asked about does not work without it."""

    def text(self) -> str:
        """The line without its first two columns."""
        if self.ok:
            return self.found
        parts = [self.found, "" if self.needed else f"only {self.part} need it", self.remedy]
        return "; ".join(part for part in parts if part)


def needed_parts(spec: Spec | None) -> frozenset[Part]:
    """What has to be there for `spec`, or for runs in Docker when there is none."""
    environment = "docker" if spec is None else spec.environment
    parts = {Part.ALWAYS}
    if environment == "docker":
        parts.add(Part.DOCKER)
    if environment == "ssh":
        parts.add(Part.HOSTS)
    if spec is not None and environment != "sim" and _asks_for_delays(spec):
        parts.add(Part.DELAYS)
    return frozenset(parts)


def _asks_for_delays(spec: Spec) -> bool:
    return any(
        getattr(planned.fault, "delay_ms", 0) or getattr(planned.fault, "jitter_ms", 0) for planned in spec.script
    )


@dataclass(frozen=True, slots=True)
class Patient:
    """What is examined: the answers of the machine, the place for runs, and the state of images and hosts."""

    probes: Probes
    store: Path
    images: Callable[[], Sequence[Finding]] = tuple
    """One finding an image; called only when an engine answers."""
    hosts: Callable[[], Sequence[Finding]] = tuple
    """Findings about the spec's hosts; empty without any."""


def examine(patient: Patient, spec: Spec | None = None) -> list[Finding]:
    """Every finding, in the order of the lines. A probe that fails is a finding, never an exception."""
    needed = needed_parts(spec)
    return [replace(finding, needed=finding.part in needed) for finding in _all(patient)]


def show(console: Console, findings: Iterable[Finding]) -> None:
    """Print one line a finding."""
    findings = list(findings)
    subject_width = max((len(finding.subject) for finding in findings), default=0)
    for finding in findings:
        state, style = ("ok", "green") if finding.ok else ("missing", "red" if finding.needed else "yellow")
        line = Text.assemble((f"{state:<7}", style), "  ", f"{finding.subject:<{subject_width}}", "  ", finding.text())
        console.print(line, soft_wrap=True)


def is_well(findings: Iterable[Finding]) -> bool:
    """Whether nothing that is needed is missing."""
    return all(finding.ok or not finding.needed for finding in findings)


# ---- the subjects ----------------------------------------------------------------------------------------------------


def _all(patient: Patient) -> Iterator[Finding]:
    probes = patient.probes
    engine: Engine | None = None
    try:
        engine = probes.engine()
        yield Finding("Docker engine", True, f"{engine.version} ({engine.storage}, cgroup v{engine.cgroup})")
    except EngineUnreachable as error:
        yield Finding("Docker engine", False, error.found, error.remedy, Part.DOCKER)
    here = probes.kernel()
    elsewhere = engine is not None and engine.kernel != here.release
    kernel = Kernel(engine.kernel, None) if engine is not None and elsewhere else here
    yield _nftables(kernel)
    yield _netem(kernel)
    yield _fuse(kernel, device=elsewhere or probes.opens(FUSE_DEVICE))
    yield _cgroup(engine.cgroup if engine is not None else probes.cgroup())
    yield _java(probes.java())
    yield _disk("disk for runs", patient.store, probes.free_bytes(patient.store), STORE_BYTES_LEAST, Part.ALWAYS)
    if engine is not None and not elsewhere:
        root = Path(engine.root)
        yield _disk("disk for images", root, probes.free_bytes(root), ENGINE_BYTES_LEAST, Part.DOCKER)
    if engine is not None:
        yield from patient.images()
    else:
        yield Finding("images", False, "not known without an engine", "start the engine first", Part.DOCKER)
    yield from patient.hosts()


def _kernel_feature(
    subject: str, kernel: Kernel, parts: Sequence[tuple[str, str]], part: Part, does: str, package: str
) -> Finding:
    """A finding on options of the kernel, all of which are needed: (option, module)."""
    has = {option: kernel.feature(option, module) for option, module in parts}
    absent = [option for option, there in has.items() if there is False]
    if absent:
        return Finding(
            subject,
            False,
            f"the kernel {kernel.release} lacks {', '.join(f'CONFIG_{option}' for option in absent)}",
            f"use a kernel that has it (on Debian: {package})",
            part,
        )
    unknown = list(dict.fromkeys(module for option, module in parts if has[option] is None))
    if unknown:
        return Finding(
            subject,
            False,
            f"the kernel {kernel.release} does not tell whether it has {', '.join(unknown)}",
            f"on its machine: modprobe {' '.join(unknown)}",
            part,
        )
    return Finding(subject, True, does, part=part)


def _nftables(kernel: Kernel) -> Finding:
    return _kernel_feature(
        "nftables",
        kernel,
        (("NF_TABLES", "nf_tables"), ("NF_TABLES_INET", "nf_tables"), ("NFT_NUMGEN", "nft_numgen")),
        Part.DOCKER,
        "partitions and packet loss",
        "apt-get install linux-image-amd64",
    )


def _netem(kernel: Kernel) -> Finding:
    return _kernel_feature(
        "netem",
        kernel,
        (("NET_SCH_NETEM", "sch_netem"),),
        Part.DELAYS,
        "delay, jitter, reordering and rate",
        "apt-get install linux-image-amd64",
    )


def _fuse(kernel: Kernel, *, device: bool) -> Finding:
    finding = _kernel_feature(
        "FUSE",
        kernel,
        (("FUSE_FS", "fuse"),),
        Part.DOCKER,
        "power losses, lying and failing disks",
        "apt-get install linux-image-amd64",
    )
    if finding.ok and not device:
        return replace(finding, ok=False, found=f"{FUSE_DEVICE} cannot be opened", remedy="modprobe fuse")
    return finding


def _cgroup(version: str) -> Finding:
    if version:
        return Finding("cgroup", True, f"v{version}", part=Part.DOCKER)
    return Finding(
        "cgroup",
        False,
        "no control groups are mounted, so no container can be started or paused",
        "mount -t cgroup2 none /sys/fs/cgroup",
        Part.DOCKER,
    )


def _java(version: str | None) -> Finding:
    remedy = f"install Java {JAVA_LEAST} (on Debian: apt-get install openjdk-17-jre-headless) or point JAVA_HOME at one"
    if version is None:
        return Finding("Java", False, "not found", remedy, Part.SPARK)
    major = version.removeprefix("1.").split(".")[0]
    if major.isdigit() and int(major) < JAVA_LEAST:
        return Finding("Java", False, f"{version} is too old for Spark", remedy, Part.SPARK)
    return Finding("Java", True, f"{version}, for Spark", part=Part.SPARK)


def _disk(subject: str, path: Path, free: int | None, least: int, part: Part) -> Finding:
    if free is None:
        return Finding(subject, False, f"free space at {path} cannot be told", "is it mounted and readable?", part)
    said = f"{free / GIB:.1f} GiB free at {path}"
    if free < least:
        return Finding(subject, False, said, f"make room, at least {least / GIB:.0f} GiB", part)
    return Finding(subject, True, said, part=part)
