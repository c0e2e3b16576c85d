"""The boundary of a system under test: what the harness asks of it, and all that the harness knows of it.

A system is a folder below `images` whose module `system` has a value `SYSTEM` of this protocol. The runner, the faults,
the environments and the checkers speak Kafka's protocol to it and read Kafka's log segments off its disks. A
feature beyond that is a `Capability`; a spec that asks for one the system lacks is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from images.trace import TraceEvent


class Capability(StrEnum):
    """A feature that a system may offer beyond Kafka's protocol."""

    SIMULATION = "simulation"
    """Its nodes run inside the simulation (`harness.environments.sim`), too."""
    TRACE = "protocol trace"
    """Its nodes write the events of `images.trace`."""
    DECISIONS = "decisions of the controllers"
    """Its files tell what the controllers decided, as events of `images.trace`, after the run (`System.decisions`), and
    when brokers opened and cut logs (`System.log_changes`)."""
    EPOCH_CHECKPOINTS = "epoch checkpoints"
    """It writes the `leader-epoch-checkpoint` of a replica before it appends the first batch of a leader epoch."""
    RULES = "rule switches"
    """Its safety rules can be switched off, one by one."""
    CLOCKS = "clock faults"
    """Its processes run under libfaketime, which changes their clocks while they run."""
    FROZEN_CLOCKS = "frozen clocks"
    """Its processes wake from a clock that stood still: signals end their waits, and they wait anew."""
    RESIGNATION = "resignation of the controller"
    """Its active controller resigns upon EndQuorumEpoch."""
    CONFIRMED_ENDS = "confirmed end offsets"
    """ListOffsets(latest) is linearizable (docs/decisions/0010)."""
    REPLACED_REASSIGNMENTS = "replaced reassignments"
    """A reassignment of a partition takes the place of one that is under way (KIP-455)."""
    COMBINED_ROLES = "combined roles"
    """Its brokers can be the controllers, too: a cluster without nodes that are controllers alone."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A safety rule that can be switched off."""

    name: str
    protects: str
    """The promise that it keeps, in a sentence."""
    source: str
    """The document and section that demand it."""


@dataclass(frozen=True, slots=True)
class Service:
    """One node of a system as a process on a machine. All paths are on that machine, below one directory."""

    argv: tuple[str, ...]
    """The command: it runs in the foreground until SIGTERM and prints its log. `python3` is the machine's own."""
    files: Mapping[str, str]
    """Path → text; written before the first start."""
    data: str
    """The directory of all data that must survive; Kafka's log segments lie here, a directory a partition."""
    log: str
    trace: str | None
    """The file of its protocol trace, if it writes one; outside of `data`, since no fault may lose it."""
    stop_limit_s: float
    """The longest time a clean stop, by SIGTERM, may take."""
    records: Mapping[str, str] = field(default_factory=dict)
    """Further files to be collected, by their name among what a run collects of the node, for `System.decisions`."""


class RecordedEvent(NamedTuple):
    """An event that a node's own files tell of, when a run has ended."""

    time_ms: int
    """Of the unix epoch, by the clock of the node."""
    node_id: int
    """Kafka's node.id of the node whose event it is; -1 where that is not known."""
    event: TraceEvent


@dataclass(frozen=True, slots=True)
class Shipment:
    """The files that a node of a system needs on its machine, besides the base layer (`images/base`)."""

    sources: Mapping[str, Path]
    """Path on the machine, below a directory on Python's path → the file or package here. Only Python files go."""
    requirements: Path
    """A list of Python packages, one a line; pip's comments are allowed."""
    dockerfile: Path
    """Builds the node's image from the base image, the sources, the wheels of the requirements, and the jars."""
    packages: tuple[str, ...] = ()
    """Debian packages beside those of the base layer."""
    jars: tuple[str, ...] = ()
    """Maven's coordinates of Java archives, group:artefact:version; they lie in `SYSTEM/jars` beside the sources, with
    all that they need and a list of their checksums."""
    java_least: int = 0
    """The oldest release of Java, such as 17, that runs its nodes; 0 for nodes without Java."""


class System(Protocol):
    """One system under test, in one release."""

    @property
    def name(self) -> str:
        """The name in a spec, and of its folder below `images`."""

    @property
    def version(self) -> str:
        """The release; empty for a system that has but one."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The features that it offers."""

    @property
    def rules(self) -> Sequence[Rule]:
        """Its safety rules, in their order; none without Capability.RULES."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of a node whose names are known, by Kafka's broker name → value when nothing is configured."""

    @property
    def defaults(self) -> Mapping[str, str]:
        """The settings of a run whose spec does not say otherwise."""

    @property
    def recovery_limit_s(self) -> float:
        """The time within which a healed cluster must be ready again, unless the spec says otherwise: that of a start,
        of elections and of catching up, on a busy machine."""

    @property
    def memory_bytes(self) -> int:
        """The memory that a node takes, about."""

    @property
    def shipment(self) -> Shipment:
        """The files that a node needs."""

    def release(self, version: str, features: Mapping[str, str]) -> System:
        """Another release of it, with these levels of its features. Raises ValueError, in one line, for what there is
        not."""

    def check_settings(self, settings: Mapping[str, str]) -> None:
        """Raises ValueError, in one line, for a setting that is unknown or has a bad value."""

    def properties(
        self,
        *,
        node_id: int,
        role: str,
        host: str,
        port: int,
        voters: Sequence[tuple[int, str, int]],
        settings: Mapping[str, str],
        rules_off: Sequence[str] = (),
    ) -> str:
        """The configuration of one node. `role` is broker or controller; `settings` may use Kafka's broker names or its
        topic names; `voters` are (id, host, port) of the controllers, a broker that is one, too, among them. Raises
        ValueError naming what is wrong."""

    def decisions(self, controllers: Mapping[int, Path]) -> Iterator[RecordedEvent]:
        """With Capability.DECISIONS: the events of the controllers' decisions, in their order, from the files that were
        collected of each controller, by node.id. Raises ValueError, in one line, for files that cannot be read."""

    def log_changes(self, brokers: Mapping[int, Path]) -> Iterator[RecordedEvent]:
        """With Capability.DECISIONS: when brokers opened and cut the logs of their replicas (`log_recovered`,
        `truncated`), as far as the files tell that were collected of each of them, by node.id; those of one broker in
        their order."""

    def service(self, properties: str, home: str) -> Service:
        """A node with this configuration, on a machine where `home` is its own directory."""
