"""Where a cluster lives: what the runner asks of an environment.

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
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Protocol, TypeVar

from images.trace import TraceEvent
from nemesis.ports import ClusterUnderTest

T = TypeVar("T")


class Role(StrEnum):
    """What a node does in the cluster."""

    BROKER = "broker"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Node:
    """One node and the address at which the others and the clients reach it."""

    name: str
    """`b1 … bN` for brokers, `c1 … cM` for controllers."""
    node_id: int
    """Kafka's node.id: 1 … N for brokers, 101 … for controllers."""
    role: Role
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes of a cluster, controllers first, and the configuration each is started with."""

    nodes: tuple[Node, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    """Node name → the text of its properties file."""
    system: str = ""
    """What is deployed, by the name of its folder below `images`."""

    @property
    def brokers(self) -> tuple[Node, ...]:
        """The brokers, in order of their ids."""
        return tuple(node for node in self.nodes if node.role is Role.BROKER)

    @property
    def controllers(self) -> tuple[Node, ...]:
        """The controllers, in order of their ids."""
        return tuple(node for node in self.nodes if node.role is Role.CONTROLLER)

    def node(self, name: str) -> Node:
        """The node called `name`. Raises KeyError naming it and the nodes there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(f"no node {name!r}; there are: {', '.join(node.name for node in self.nodes)}")

    def with_properties(self, properties: Mapping[str, str], system: str = "") -> Layout:
        """This layout with the configuration of every node of a `system`.

        Raises ValueError when one is missing or unknown."""
        names = [node.name for node in self.nodes]
        if sorted(properties) != sorted(names):
            raise ValueError(f"properties are needed for exactly {', '.join(names)}; got {', '.join(properties)}")
        return replace(self, properties=dict(properties), system=system)


BROKER_PORT = 9092
CONTROLLER_PORT = 9093
FIRST_CONTROLLER_ID = 101


def named_layout(brokers: int, controllers: int = 1) -> Layout:
    """A layout in which every node is its own host, reached by its own name."""
    return Layout(
        tuple(
            Node(f"c{i}", FIRST_CONTROLLER_ID + i - 1, Role.CONTROLLER, f"c{i}", CONTROLLER_PORT)
            for i in range(1, controllers + 1)
        )
        + tuple(Node(f"b{i}", i, Role.BROKER, f"b{i}", BROKER_PORT) for i in range(1, brokers + 1))
    )


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told what nodes do, as it happens. Called outside any node's clock and counted on to return quickly."""

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
    """The traceback, or one line when the process returned without being told to."""


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
        """What the run stands on and its spec does not say, for the record: the digest of an image, a kernel."""

    @property
    def crashes(self) -> Sequence[Crash]:
        """Processes that ended by themselves so far, in order of time."""

    @property
    def trail(self) -> Sequence[TrailPoint]:
        """Points along the run, evenly spaced; empty where runs are not reproducible."""

    async def deploy(self) -> None:
        """Start every node; returns once the processes run, not once the cluster is ready."""

    def bootstrap(self) -> list[tuple[str, int]]:
        """Addresses of all brokers, as clients reach them."""

    def alive(self, node: str) -> bool:
        """Whether the node's process runs (a paused process does)."""

    def stream(self, name: str) -> Random:
        """A stream of randomness of its own, the same for the same seed and name."""

    async def collect(self, directory: Path) -> None:
        """Copy what nodes left: `directory/<node>/data/…` as it is on disk now, and `directory/<node>/node.log`."""

    async def close(self) -> None:
        """End every process. Nothing is recovered or healed; collecting is still possible."""

    def digest(self) -> str | None:
        """Everything that happened so far in one hash; None where runs are not reproducible."""


class Environment(Protocol):
    """A place where clusters can be deployed."""

    @property
    def name(self) -> str:
        """As given to `--environment`."""

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


class EnvironmentUnavailable(Exception):
    """The environment cannot be used on this machine; the message says what is missing, in one line."""
