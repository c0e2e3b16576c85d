"""Network partitions: links that deliver nothing.

A partition is a set of one-way links that deliver nothing, made from a *shape*. In the `held` flavour open connections
hang and what was sent arrives after healing, late and in order; in the `reset` flavour they break at once.

Shape                    cut, both ways unless said otherwise                        nodes unless given
-----------------------  -----------------------------------------------------------  ------------------------
isolate                  each of `nodes` from every other node                        any
minority                 `nodes` together from all others; the controllers stay with  minority
                         the majority
halves                   the first half of the brokers, beginning with `nodes`, from  brokers, in drawn order
                         the rest; the controllers stay with the first half
bridge                   as halves, but the first of `nodes` sees both and every      any
                         broker sees the controllers
ring                     each broker from all but its neighbours in the ring of       brokers
                         brokers; of three brokers each only hears the one before it
one-way                  what `nodes` send to `against`, one direction only; to all   any → all
                         where `against` turn out to be the same nodes
leader-only              `nodes` from the other brokers, but not from the             leader/0
                         controllers: it stays leader and cannot replicate
controller-from-brokers  the controllers from `nodes`, which see each other           brokers
controllers-apart        `nodes` from the other controllers; all brokers see them     controller

With a `channel` only the connections of that name are cut. `client` cuts `nodes` from the clients, both ways (isolate)
or in what the nodes send (one-way), and takes no other shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, draw_channel
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import CLIENTS, ChannelName, EnvironmentCapability, Link, both_ways, on_channel, one_way


class PartitionShape(StrEnum):
    """See the module's docstring."""

    ISOLATE = "isolate"
    MINORITY = "minority"
    HALVES = "halves"
    BRIDGE = "bridge"
    RING = "ring"
    ONE_WAY = "one-way"
    LEADER_ONLY = "leader-only"
    CONTROLLER_FROM_BROKERS = "controller-from-brokers"
    CONTROLLERS_APART = "controllers-apart"


class ConnectionFate(StrEnum):
    """Fate of open connections."""

    HELD = "held"
    RESET = "reset"


DEFAULT_NODES = {
    PartitionShape.ISOLATE: ("any",),
    PartitionShape.MINORITY: ("minority",),
    PartitionShape.HALVES: (),
    PartitionShape.BRIDGE: ("any",),
    PartitionShape.RING: (),
    PartitionShape.ONE_WAY: ("any",),
    PartitionShape.LEADER_ONLY: ("leader/0",),
    PartitionShape.CONTROLLER_FROM_BROKERS: ("brokers",),
    PartitionShape.CONTROLLERS_APART: ("controller",),
}


_OF_CLIENTS: Final = (PartitionShape.ISOLATE, PartitionShape.ONE_WAY)
_SIDES: Final = {
    PartitionShape.MINORITY: (("brokers",), ("all",)),
    PartitionShape.HALVES: (("brokers",), ("all",)),
    PartitionShape.BRIDGE: (("brokers",), ("brokers",)),
    PartitionShape.RING: (("brokers",), ("brokers",)),
    PartitionShape.LEADER_ONLY: (("brokers",), ("brokers",)),
    PartitionShape.CONTROLLER_FROM_BROKERS: (("brokers",), ("controllers",)),
    PartitionShape.CONTROLLERS_APART: (("controllers",), ("controllers",)),
}
"""What the shapes cut from each other; the others cut `nodes` from `against`, or from all."""

_FAMILY = Family(number=1, name="partition", colour="#d1495b")


@dataclass(frozen=True, slots=True)
class NetworkPartition(Fault):
    """A network partition of some shape."""

    name: ClassVar[str] = "partition"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("held", "refused", "reset")
    acts_within: ClassVar[float] = 1.0

    shape: PartitionShape = PartitionShape.ISOLATE
    nodes: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    """Nodes that do not hear `nodes`; for `one-way` alone, and `all` when empty."""
    flavour: ConnectionFate = ConnectionFate.HELD
    channel: ChannelName | None = None

    def __post_init__(self) -> None:
        if self.channel is ChannelName.CLIENT and (self.shape not in _OF_CLIENTS or self.against):
            raise ValueError(f"channel: client takes shape isolate or one-way, without against, not {self.shape}")
        if self.against and self.shape is not PartitionShape.ONE_WAY:
            raise ValueError(f"against: only shape one-way takes it, not {self.shape}")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some shape around a leader, any broker, or a controller."""
        random, cluster = draws.random, draws.cluster
        needed = {PartitionShape.CONTROLLERS_APART: 2, PartitionShape.CONTROLLER_FROM_BROKERS: 1}
        shape = random.choice([shape for shape in PartitionShape if len(cluster.controllers) >= needed.get(shape, 0)])
        broker = draws.broker()
        nodes: tuple[str, ...] = ()
        against: tuple[str, ...] = ()
        match shape:
            case PartitionShape.ISOLATE:
                nodes = (draws.controller() if cluster.controllers and random.random() < 0.25 else broker,)
            case PartitionShape.MINORITY:
                size = max(1, (len(cluster.brokers) - 1) // 2)
                nodes = tuple(random.sample(cluster.brokers, size)) if size > 1 else (broker,)
            case PartitionShape.BRIDGE | PartitionShape.HALVES:
                nodes = (broker,)
            case PartitionShape.RING:
                nodes = tuple(random.sample(cluster.brokers, len(cluster.brokers)))
            case PartitionShape.ONE_WAY:
                everyone = cluster.brokers + cluster.controllers
                nodes = (broker if random.random() < 0.7 else random.choice(everyone),)
                others = [node for node in everyone if node not in nodes]
                against = () if random.random() < 0.4 or not others else (random.choice(others),)
            case PartitionShape.LEADER_ONLY:
                nodes = (f"leader/{random.randrange(cluster.partitions)}",)
            case PartitionShape.CONTROLLER_FROM_BROKERS:
                nodes = draws.some(cluster.brokers) if random.random() < 0.5 else (broker,)
            case PartitionShape.CONTROLLERS_APART:
                nodes = (draws.controller(),)
        held = random.random() < draws.profile.held_share
        flavour = ConnectionFate.HELD if held else ConnectionFate.RESET
        return cls(shape=shape, nodes=nodes, against=against, flavour=flavour)

    async def inject(self, handle: FaultHandle) -> None:
        """Cut every link of the shape."""
        brokers, controllers = handle.cluster.brokers, handle.cluster.controllers
        nodes = await handle.targets.resolve(self.nodes or DEFAULT_NODES[self.shape])
        if self.shape in (PartitionShape.HALVES, PartitionShape.RING):
            rest = [broker for broker in brokers if broker not in nodes]
            handle.random.shuffle(rest)
            nodes = (*nodes, *rest)
            handle.targets.add(nodes)
        is_one_way = self.shape is PartitionShape.ONE_WAY
        against = await handle.targets.resolve_peers(self.against or ("all",)) if is_one_way else ()
        if self.channel is ChannelName.CLIENT:
            cut = one_way(nodes, (CLIENTS,)) if is_one_way else both_ways(nodes, (CLIENTS,))
        else:
            cut = links(self.shape, nodes, brokers, controllers, against)
        await handle.cut(on_channel(cut, self.channel), reset=self.flavour is ConnectionFate.RESET)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """Two nodes may have nothing to say to each other: two brokers share no leader, or a controller is not the
        active one; and a connection of one name may have nothing to carry."""
        if self.channel is not None or self.against:
            return False
        if self.shape is PartitionShape.LEADER_ONLY:
            return cluster.replication_factor > 1
        if self.shape is PartitionShape.CONTROLLER_FROM_BROKERS:
            return bool(cluster.controllers)
        return self.shape not in (PartitionShape.BRIDGE, PartitionShape.RING)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Connections that can be told apart, if it is limited to some."""
        return frozenset({EnvironmentCapability.CHANNELS} if self.channel is not None else ())

    def limited(self, random: Random, cluster: ClusterShape) -> Self:
        """One of the channels between the nodes that the shape cuts apart; from all nodes also that of the clients."""
        ones, others = _SIDES.get(self.shape, (self.nodes, self.against or ("all",)))
        with_clients = self.shape in _OF_CLIENTS and not self.against
        return replace(self, channel=draw_channel(random, cluster, ones, others, with_clients))

    def describe(self) -> str:
        """PartitionShape, targets and flavour."""
        words = [str(self.shape), *self.nodes]
        if self.against:
            words += ["→", *self.against]
        if self.channel is not None:
            words.append(f"on {self.channel}")
        return " ".join([*words, f"({self.flavour})"])


def links(
    shape: PartitionShape,
    nodes: Sequence[str],
    brokers: Sequence[str],
    controllers: Sequence[str],
    against: Sequence[str] = (),
) -> tuple[Link, ...]:
    """The links a partition of `shape` around `nodes` cuts. Pure; every node given is one of the cluster's."""
    everyone = (*brokers, *controllers)
    others = [node for node in everyone if node not in nodes]
    match shape:
        case PartitionShape.ISOLATE:
            cut = both_ways(nodes, everyone)
        case PartitionShape.MINORITY:
            cut = both_ways(nodes, others)
        case PartitionShape.HALVES:
            order = _beginning_with(nodes, brokers)
            middle = (len(order) + 1) // 2
            cut = both_ways((*order[:middle], *controllers), order[middle:])
        case PartitionShape.BRIDGE:
            order = _beginning_with(nodes, brokers)[1:]
            middle = (len(order) + 1) // 2
            cut = both_ways(order[:middle], order[middle:])
        case PartitionShape.RING:
            cut = _ring(_beginning_with(nodes, brokers))
        case PartitionShape.ONE_WAY:
            cut = one_way(nodes, [node for node in against if node not in nodes] or everyone)
        case PartitionShape.LEADER_ONLY:
            cut = both_ways(nodes, [broker for broker in brokers if broker not in nodes])
        case PartitionShape.CONTROLLER_FROM_BROKERS:
            cut = both_ways(controllers, nodes)
        case PartitionShape.CONTROLLERS_APART:
            cut = both_ways(nodes, [controller for controller in controllers if controller not in nodes])
    # Two isolated nodes meet in both their lists.
    return tuple(dict.fromkeys(cut))


def _beginning_with(nodes: Sequence[str], brokers: Sequence[str]) -> list[str]:
    first = [node for node in nodes if node in brokers]
    return first + [broker for broker in brokers if broker not in first]


def _ring(order: Sequence[str]) -> tuple[Link, ...]:
    size = len(order)
    open_steps = (1,) if size == 3 else (1, size - 1)
    return tuple(
        Link(order[here], order[there])
        for here in range(size)
        for there in range(size)
        if here != there and (there - here) % size not in open_steps
    )
