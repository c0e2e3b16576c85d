"""Environments: the places where a cluster is deployed, as the runner uses them.

An environment carries out one run: it lays nodes out, starts the given event loop (simulated or real) and runs the
*scenario*, the runner's one coroutine, on it, handing it a `Deployment`. A deployment is the cluster under test: it can
be deployed, talked to (`bootstrap`), broken (`nemesis.ports.ClusterUnderTest`) and collected from.

    layout = environment.layout(brokers=3, controllers=3)
    layout = layout.with_properties({node.name: system.properties(node, layout, settings) for node in layout.nodes})
    result = environment.execute(layout, scenario, seed=7, listener=listener)

The runner does not assume which system is deployed: a node's configuration is opaque text to the environment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol, TypeVar

from harness.cluster.layout import Layout
from images.trace import TraceEvent
from nemesis.ports import ClusterUnderTest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listener:
    """Receives trace events and log lines of nodes as they happen. Calls take no virtual time and return quickly."""

    on_trace: Callable[[int, str, TraceEvent], None]
    """(true time in ns since the run began, node, event), in one order for the whole cluster."""
    on_log: Callable[[str, str], None]
    """(node, line): one line of a node's log."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A node's process that ended by itself: a finding, never noise."""

    node: str
    time_ns: int
    """True time since the run began."""
    error: str
    """The traceback, or one line when the process returned without being stopped."""


@dataclass(frozen=True, slots=True)
class VanishedNode:
    """A node whose machine was removed by something outside the run: nothing of it can be collected."""

    node: str
    time_ns: int
    """True time since the run began at which that was noticed."""


@dataclass(frozen=True, slots=True)
class TrailPoint:
    """Where a run stood after `step` scheduling decisions; two runs first differ between two such points."""

    step: int
    time_ns: int
    digest: str


class Deployment(ClusterUnderTest, Protocol):
    """One cluster, deployed for one run. Everything of `nemesis.ports.ClusterUnderTest`, and:"""

    @property
    def layout(self) -> Layout: ...

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts about the run that its spec does not say: the digest of an image, a kernel."""

    @property
    def crashes(self) -> Sequence[Crash]:
        """Processes that ended by themselves so far, in order of time."""

    @property
    def vanished(self) -> Sequence[VanishedNode]:
        """Nodes whose machine vanished so far, in order of time."""

    @property
    def trail(self) -> Sequence[TrailPoint]:
        """Points along the run, evenly spaced; empty where runs are not reproducible."""

    async def deploy(self) -> None:
        """Start every node; returns once the processes run, not once the cluster is ready."""

    def bootstrap(self) -> list[tuple[str, int]]:
        """Addresses of all brokers, as clients reach them."""

    def stream(self, name: str) -> Random:
        """A stream of randomness of its own, the same for the same seed and name."""

    async def collect(self, directory: Path) -> None:
        """Copy what nodes left: `directory/<node>/data/…` as it is on disk now, and `directory/<node>/node.log`."""

    def held_files(self) -> Mapping[str, bytes] | None:
        """What `collect` copies, by its path below the directory, where this process has it in memory; or None."""

    async def close(self) -> None:
        """End every process. Nothing is recovered or healed; collecting is still possible."""

    def digest(self) -> str | None:
        """Everything that happened so far in one hash; None where runs are not reproducible."""


class Environment(Protocol):
    """A place where clusters can be deployed."""

    @property
    def name(self) -> str:
        """As given to `--environment`."""

    @property
    def injection_s(self) -> float:
        """The time that injecting a fault takes here, as measured: of a hundred injections few take longer."""

    @property
    def step_s(self) -> float:
        """The same of one step of a fault; nothing shorter lies between two steps."""

    def layout(self, brokers: int, controllers: int = 1) -> Layout:
        """Names, ids and addresses for a cluster of this size, without properties yet."""

    def execute(
        self,
        layout: Layout,
        scenario: Callable[[Deployment], Awaitable[T]],
        *,
        seed: int,
        listener: Listener,
    ) -> T:
        """Run `scenario` on this environment's event loop and give back what it returns or raise what it raises.

        Everything deployed is gone afterwards. Raises EnvironmentUnavailable when the environment cannot be used here.
        """
