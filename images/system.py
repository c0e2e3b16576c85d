"""The boundary of a system under test: what the harness asks of it, and all that the harness knows of it.

A system is a folder below `images` whose module `system` has a value `SYSTEM` of this protocol. The runner, the faults,
the environments and the checkers speak Kafka's protocol to it and read Kafka's log segments off its disks. A
feature beyond that is a `Capability`; a spec that asks for one the system lacks is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class Capability(StrEnum):
    """A feature that a system may offer beyond Kafka's protocol."""

    SIMULATION = "simulation"
    """Its nodes run inside the simulation (`harness.environments.sim`), too."""
    TRACE = "protocol trace"
    """Its nodes write the events of `images.trace`."""
    RULES = "rule switches"
    """Its safety rules can be switched off, one by one."""


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


@dataclass(frozen=True, slots=True)
class Shipment:
    """The files that a node of a system needs on its machine, besides the base layer (`images/base`)."""

    sources: Mapping[str, Path]
    """Path on the machine, below a directory on Python's path → the file or package here. Only Python files go."""
    requirements: Path
    """A list of Python packages, one a line; pip's comments are allowed."""
    dockerfile: Path
    """Builds the node's image from the base image, the sources and the wheels of the requirements."""


class System(Protocol):
    """One system under test."""

    @property
    def name(self) -> str:
        """The name in a spec, and of its folder below `images`."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The features that it offers."""

    @property
    def rules(self) -> Sequence[Rule]:
        """Its safety rules, in their order; none without Capability.RULES."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Every setting of a node, by Kafka's broker name → its value when nothing is configured."""

    @property
    def defaults(self) -> Mapping[str, str]:
        """The settings of a run whose spec does not say otherwise."""

    @property
    def shipment(self) -> Shipment:
        """The files that a node needs."""

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
        topic names; `voters` are (id, host, port) of the controllers. Raises ValueError naming what is wrong."""

    def service(self, properties: str, home: str) -> Service:
        """A node with this configuration, on a machine where `home` is its own directory."""
