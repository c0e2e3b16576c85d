"""Links that are slow or lossy.

Everything still arrives, and in order, since the connections are streams: a lost packet shows as the delay of its
retransmission. Slow links widen every window in which two nodes believe different things.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, draw_channel, draw_scale, some
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import CLIENTS, ChannelName, EnvironmentCapability, LinkQuality, both_ways, on_channel, one_way

_SURE_LOSS: Final = 0.4
"""A broker that sends nothing but heartbeats loses one of them, or of their answers."""
_OF_CONTROLLERS: Final = 0.3
"""Share of the faults that concern the links between controllers, where these read snapshots in several parts."""
_SLOW_SHARE: Final = 0.6
"""Share of the runs in which connections of one name are slow all the time, where any are told apart."""
_METADATA_MS: Final = (30.0, 1_500.0)
"""The least and the longest delay of metadata then."""
_FETCH_MS: Final = (10.0, 500.0)
"""Of fetches."""


def _slow_throughout(random: Random, cluster: ClusterShape) -> list[Fault]:
    """In six of ten draws the connections of one name are slow all the time. Either some brokers read late of what is
    decided, and of several changes at once: a topic that is deleted and created anew, a partition and its
    configuration. Or some followers fetch slowly, and what is appended is under way when the next change comes."""
    needs = {EnvironmentCapability.DELAY, EnvironmentCapability.CHANNELS}
    if random.random() >= _SLOW_SHARE or not cluster.controllers or needs & frozenset(cluster.unsupported):
        return []
    nodes = tuple(some(random, cluster.brokers))
    if len(cluster.brokers) > 1 and random.random() < 0.5:
        delay_ms = round(draw_scale(random, *_FETCH_MS))
        return [Packets(nodes=nodes, against=("brokers",), delay_ms=delay_ms, channel=ChannelName.FETCH)]
    delay_ms = round(draw_scale(random, *_METADATA_MS))
    return [Packets(nodes=nodes, against=("controllers",), delay_ms=delay_ms, channel=ChannelName.METADATA)]


@dataclass(frozen=True, slots=True)
class Packets(Fault):
    """Degrade the links between `nodes` and `against`, in both directions unless `one_way`."""

    name: ClassVar[str] = "packets"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(number=6, name="packets", colour="#5c8f3e", background=_slow_throughout)
    proof: ClassVar[tuple[str, ...]] = ("delayed", "lost")
    acts_within: ClassVar[float] = 2.0

    nodes: tuple[str, ...] = ("any",)
    against: tuple[str, ...] = ("all",)
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    one_way: bool = False
    """Only what `nodes` send."""
    channel: ChannelName | None = None
    """Only the connections of this name; `client` has the clients in place of `against`."""

    def __post_init__(self) -> None:
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss: {self.loss} is not a share from 0 to below 1")
        if self.delay_ms < 0 or self.jitter_ms < 0:
            raise ValueError(f"delay_ms, jitter_ms: {self.delay_ms}, {self.jitter_ms} are not both 0 or more")
        if not (self.delay_ms or self.jitter_ms or self.loss):
            raise ValueError("delay_ms, jitter_ms, loss: all are 0, so the links stay as they are")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """One broker against all nodes, some role or one broker; or a controller against the others."""
        random, cluster = draws.random, draws.cluster
        delay_ms = round(10 ** random.uniform(0.3, 3.0), 1)
        slow, lossy = random.choice(((True, False), (False, True), (True, True)))
        against = "all" if random.random() < 0.4 else random.choice(("brokers", "controllers", *cluster.brokers))
        node = draws.broker()
        if node == against:
            against = "all"
        packets = cls(
            nodes=(node,),
            against=(against,),
            delay_ms=delay_ms if slow else 0.0,
            jitter_ms=round(delay_ms * random.uniform(0, 1.5), 1) if slow else 0.0,
            loss=_loss(random) if lossy else 0.0,
            one_way=random.random() < 0.3,
        )
        of_controllers = cluster.snapshots_have_parts and len(cluster.controllers) > 1
        if of_controllers and random.random() < _OF_CONTROLLERS:
            return replace(packets, nodes=(draws.controller(),), against=("controllers",))
        return packets

    async def inject(self, handle: FaultHandle) -> None:
        """Degrade every link."""
        nodes = await handle.targets.resolve(self.nodes)
        of_clients = self.channel is ChannelName.CLIENT
        against = (CLIENTS,) if of_clients else await handle.targets.resolve_peers(self.against)
        links = one_way(nodes, against) if self.one_way else both_ways(nodes, against)
        await handle.degrade(
            on_channel(dict.fromkeys(links), self.channel),
            LinkQuality(delay_ms=self.delay_ms, jitter_ms=self.jitter_ms, loss=self.loss),
        )

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """A leader may be the very broker that it is to be cut from, and two brokers may share no partition; a
        connection of one name may have nothing to carry; and a link that loses a few packets may lose none of the few
        that an idle broker sends."""
        sure = bool(self.delay_ms or self.jitter_ms) or self.loss >= _SURE_LOSS
        return self.against == ("all",) and self.channel is None and sure

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Loss alone needs nothing, on links that are not limited to some connections."""
        needs = {EnvironmentCapability.DELAY} if self.delay_ms or self.jitter_ms else set()
        return frozenset(needs | ({EnvironmentCapability.CHANNELS} if self.channel is not None else set()))

    def limited(self, random: Random, cluster: ClusterShape) -> Self:
        """One of the channels of the links; if they are to all nodes also that of the clients."""
        return replace(self, channel=draw_channel(random, cluster, self.nodes, self.against, self.against == ("all",)))

    def adapted(self, unsupported: Collection[EnvironmentCapability], random: Random) -> Self | None:
        """Loss alone where links cannot be slowed, so much that it has as sure an effect."""
        missing = self.needs() & frozenset(unsupported)
        if EnvironmentCapability.CHANNELS in missing:
            return None
        if not missing:
            return self
        loss = self.loss if self.loss >= _SURE_LOSS else _loss(random, _SURE_LOSS)
        return replace(self, delay_ms=0.0, jitter_ms=0.0, loss=loss)

    def describe(self) -> str:
        """Targets, and how bad their links are."""
        arrow = "→" if self.one_way else "↔"
        bad = [f"+{self.delay_ms:.0f}±{self.jitter_ms:.0f} ms"] if self.delay_ms or self.jitter_ms else []
        bad += [f"{self.loss:.0%} lost"] if self.loss else []
        bad += [f"on {self.channel}"] if self.channel is not None else []
        return f"packets {' '.join(self.nodes)} {arrow} {' '.join(self.against)} {' '.join(bad)}"


def _loss(random: Random, least: float = 0.02) -> float:
    """The share of packets lost on a lossy link."""
    return round(random.uniform(least, 0.5), 3)
