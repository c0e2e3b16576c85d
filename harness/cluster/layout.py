"""The nodes of a cluster: names, ids, roles and addresses, and the configuration each node starts with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from images.system import System


class NodeRole(StrEnum):
    """The role of a node in the cluster."""

    BROKER = "broker"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One node and the address at which the others and the clients reach it."""

    name: str
    """`b1 … bN` for brokers, `c1 … cM` for controllers."""
    node_id: int
    """Kafka's node.id: 1 … N for brokers, 101 … for controllers."""
    role: NodeRole
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The nodes of a cluster, controllers first, and the configuration each is started with."""

    nodes: tuple[ClusterNode, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    """ClusterNode name → the text of its properties file."""
    system: System | None = None
    """The system under test; None for a layout that is not configured for any."""

    @property
    def deployed_system(self) -> System:
        """The system under test. Raises ValueError for a layout that is not configured for any."""
        if self.system is None:
            raise ValueError("the layout is not configured for a system")
        return self.system

    @property
    def brokers(self) -> tuple[ClusterNode, ...]:
        """The brokers, in order of their ids."""
        return tuple(node for node in self.nodes if node.role is NodeRole.BROKER)

    @property
    def controllers(self) -> tuple[ClusterNode, ...]:
        """The nodes that are controllers alone, in order of their ids."""
        return tuple(node for node in self.nodes if node.role is NodeRole.CONTROLLER)

    def node(self, name: str) -> ClusterNode:
        """The node called `name`. Raises KeyError naming it and the nodes there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(f"no node {name!r}; there are: {', '.join(node.name for node in self.nodes)}")

    def with_properties(self, properties: Mapping[str, str], system: System | None = None) -> Layout:
        """This layout with the configuration of every node of a `system`.

        Raises ValueError when one is missing or unknown."""
        names = [node.name for node in self.nodes]
        if sorted(properties) != sorted(names):
            raise ValueError(f"properties are needed for exactly {', '.join(names)}; got {', '.join(properties)}")
        return replace(self, properties=dict(properties), system=system)


BROKER_PORT = 9092
CONTROLLER_PORT = 9093
"""Of a node that is a controller, alone or beside being a broker."""
FIRST_CONTROLLER_ID = 101


def cluster_layout(
    brokers: int,
    controllers: int = 1,
    address: Callable[[ClusterNode], tuple[str, int]] = lambda node: (node.host, node.port),
) -> Layout:
    """A layout of this size. `address` gives the host and port of each node.

    Without it every node is its own host, reached by its own name at Kafka's usual ports.
    """
    nodes = [
        *(
            ClusterNode(f"c{i}", FIRST_CONTROLLER_ID + i - 1, NodeRole.CONTROLLER, f"c{i}", CONTROLLER_PORT)
            for i in range(1, controllers + 1)
        ),
        *(ClusterNode(f"b{i}", i, NodeRole.BROKER, f"b{i}", BROKER_PORT) for i in range(1, brokers + 1)),
    ]
    placed = [(node, address(node)) for node in nodes]
    return Layout(tuple(replace(node, host=host, port=port) for node, (host, port) in placed))
