"""Random choices from which a fault is drawn: its targets, its severity, and what the faults of a run have in common.

Each fault is drawn from a stream of its own (`nemesis.swarm`), so a change of its draw changes no other fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeVar

from nemesis.cluster_shape import ClusterShape
from nemesis.ports import ChannelName, KeepUnsynced

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunProfile:
    """Properties of a whole run, drawn once."""

    victims: tuple[str, ...]
    """The only brokers that may lose data, or targets that stand for one each: the loss budget."""
    leader_bias: float
    """Probability that a fault of one broker hits a leader."""
    held_share: float
    """Share of partitions that hold packets; the others reset connections."""
    keeps: tuple[KeepUnsynced, ...]
    """The amounts of unsynced writes that power losses may keep."""


def some(random: Random, items: Sequence[T]) -> list[T]:
    """At least one of `items`, in their order; every number of them is equally likely."""
    count = random.randint(1, len(items))
    return [items[index] for index in sorted(random.sample(range(len(items)), count))]


def draw_scale(random: Random, least: float, most: float) -> float:
    """A number between two; every order of magnitude of it is equally likely."""
    return least * (most / least) ** random.random()


_TO_CONTROLLERS: Final = (
    ChannelName.METADATA,
    ChannelName.HEARTBEAT,
    ChannelName.ALTER_PARTITION,
    ChannelName.FORWARDING,
)
_IDLE: Final = frozenset({ChannelName.FORWARDING})
"""Channels that carry something now and then."""
_IDLE_WEIGHT: Final = 0.3
"""How often those are drawn, relative to the others."""
_BROKER, _CONTROLLER = "broker", "controller"


def draw_channel(
    random: Random, cluster: ClusterShape, ones: Sequence[str], others: Sequence[str], with_clients: bool
) -> ChannelName | None:
    """A channel between these targets, or, where brokers are among `ones`, of the clients; None where there is none.
    Clients ask nothing of a node that is a controller alone."""
    one, other = _roles(ones, cluster), _roles(others, cluster)
    names: list[ChannelName] = []
    if _BROKER in one and _BROKER in other:
        names.append(ChannelName.FETCH)
    if (_BROKER in one and _CONTROLLER in other) or (_CONTROLLER in one and _BROKER in other):
        names += _TO_CONTROLLERS
    if _CONTROLLER in one and _CONTROLLER in other and len(cluster.controllers) > 1:
        names.append(ChannelName.QUORUM)
    if with_clients and _BROKER in one:
        names.append(ChannelName.CLIENT)
    return random.choices(names, [_IDLE_WEIGHT if name in _IDLE else 1.0 for name in names])[0] if names else None


def _roles(targets: Sequence[str], cluster: ClusterShape) -> frozenset[str]:
    """The roles of the nodes that some targets stand for."""
    controllers = ("controller", "controllers", *cluster.controllers)
    roles = {_CONTROLLER if target in controllers else _BROKER for target in targets}
    return frozenset(roles | ({_CONTROLLER} if "all" in targets and cluster.controllers else set()))


class Draws:
    """Choices for one fault."""

    def __init__(self, random: Random, cluster: ClusterShape, profile: RunProfile) -> None:
        self.random = random
        self.cluster = cluster
        self.profile = profile

    def partition(self) -> int:
        """A partition of the topic."""
        return self.random.randrange(self.cluster.partitions)

    def written(self, partition: int) -> int:
        """The partition, or where it may be idle the first one, to which clients always write: of a fault that waits
        for appends, or for a follower to lag."""
        return partition if self.cluster.always_written else 0

    def victim(self) -> str:
        """A broker that may lose data. Only for runs that have victims."""
        return self.random.choice(self.profile.victims)

    def keep(self) -> KeepUnsynced:
        """The amount of unsynced writes that a power loss keeps."""
        return self.random.choice(self.profile.keeps)

    @property
    def patience_ms(self) -> float:
        """The patience of the cluster, as faults take it."""
        return self.cluster.patience_s * 1000

    @property
    def isr_patience_ms(self) -> float:
        """The same of a fault that waits for a follower to leave the ISR."""
        return self.cluster.isr_patience_s * 1000

    def broker(self) -> str:
        """The leader of a partition, as often as the profile says, else any broker."""
        if self.random.random() < self.profile.leader_bias:
            return f"leader/{self.random.randrange(self.cluster.partitions)}"
        return self.random.choice(self.cluster.brokers)

    def controller(self) -> str:
        """Mostly the active controller, since the loss of another one changes less."""
        return "controller" if self.random.random() < 0.6 else self.random.choice(self.cluster.controllers)

    def controllers(self) -> tuple[str, ...]:
        """One controller, less often several."""
        if self.random.random() < 0.7:
            return (self.controller(),)
        return self.some(self.cluster.controllers)

    def unclean_restarts(self) -> tuple[str, ...]:
        """Nodes that may restart uncleanly: controllers, victims or, where unclean recovery is on, any brokers."""
        any_broker, victims = self.cluster.unclean_recovery, self.profile.victims
        if self.cluster.controllers and (not (any_broker or victims) or self.random.random() < 0.25):
            return self.controllers()
        if any_broker and (not victims or self.random.random() < 0.7):
            return self.some(self.cluster.brokers)
        return self.some(victims)

    def some(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """At least one of `nodes`."""
        return tuple(some(self.random, nodes))
