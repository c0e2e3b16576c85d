"""Schedules whose faults hold messages back until what these speak of has changed.

Many of the rules of a replicated log are about messages that were right when they were sent. A fault of random length
lets go of them at some moment; here it does so when something has happened to the node that another fault strikes
meanwhile: it is registered anew, elected, fenced, back in the ISR.

    holds     the struck node → a peer, or back, or the peer is paused  ├────────────────────┤ until it is registered, …
    strikes   kill, power loss, pause, move of replicas, …                 ├───────┤

Pairs follow each other. They overlap less than the faults of several random schedules do, so that more of them meet a
cluster that is well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Final

from nemesis.cluster_shape import ClusterShape
from nemesis.conditions import ANY_NODE, ControllerElected
from nemesis.drawing import draw_scale
from nemesis.faults.fault import Fault
from nemesis.faults.network_partition import NetworkPartition, PartitionShape
from nemesis.faults.process import Pause
from nemesis.schedule import ScheduledFault
from nemesis.swarm import draw_one
from nemesis.triggers import OCCURRENCES

HOLDING_FAMILIES: Final = (NetworkPartition.family.name, Pause.family.name)
"""The families by which messages are held."""
_GAP: Final = (0.8, 2.5)
"""From the start of one pair to that of the next. Like all times here in multiples of the cluster's patience."""
_HELD: Final = (0.3, 3.0)
"""How long messages are held at most."""
_STRUCK_WITHIN: Final = 0.3
"""How long after that the other fault strikes at most."""
_STRUCK: Final = (0.02, 1.0)
"""How long the other fault lasts."""
_VICTIM_SHARE: Final = 0.5
"""How many of the nodes that are struck may lose data."""
_CONTROLLER_SHARE: Final = 0.1
"""How many of the peers are controllers."""
_UNTIL_SHARE: Final = 0.8
"""How many of the faults that hold messages end with an occurrence, if that comes before their time is over."""
_AT_STRUCK_SHARE: Final = 0.8
"""How many of these occurrences are at the node that is struck; the others may be at any."""
_ATTEMPTS: Final = 8
"""How often the other fault is drawn until it concerns the node."""


def holds_messages(families: tuple[str, ...]) -> bool:
    """Whether faults of these families can hold messages."""
    return not {*families}.isdisjoint(HOLDING_FAMILIES)


def held_messages(
    random: Random, cluster: ClusterShape, time_limit_s: float, families: tuple[str, ...], victims: tuple[str, ...]
) -> Iterator[ScheduledFault]:
    """The faults of a run of `time_limit_s` in which these `victims` may lose data."""
    patience_s = cluster.patience_s
    at_s = random.uniform(*_GAP) * patience_s
    while at_s + _STRUCK_WITHIN * patience_s < time_limit_s:
        yield from _pair(random, cluster, at_s, families, victims)
        at_s += random.uniform(*_GAP) * patience_s


def _pair(
    random: Random, cluster: ClusterShape, at_s: float, families: tuple[str, ...], victims: tuple[str, ...]
) -> Iterator[ScheduledFault]:
    """What holds messages, and the other fault; none where no such fault is found."""
    of_victims = victims and random.random() < _VICTIM_SHARE
    struck = random.choice(victims if of_victims else cluster.brokers)
    strike = _strike(random, cluster, struck, families, victims)
    if strike is None:
        return
    until = None
    if random.random() < _UNTIL_SHARE:
        kind = random.choice([*OCCURRENCES])
        is_named = kind is not ControllerElected and struck in cluster.brokers and random.random() < _AT_STRUCK_SHARE
        until = kind(struck if is_named else ANY_NODE)
    hold = _hold(random, cluster, struck, families)
    patience_s = cluster.patience_s
    yield ScheduledFault(
        round(at_s, 3), for_s=round(draw_scale(random, *_HELD) * patience_s, 3), fault=hold, until=until
    )
    struck_s = at_s + random.uniform(0, _STRUCK_WITHIN) * patience_s
    yield ScheduledFault(round(struck_s, 3), for_s=round(draw_scale(random, *_STRUCK) * patience_s, 3), fault=strike)


def _hold(random: Random, cluster: ClusterShape, struck: str, families: tuple[str, ...]) -> Fault:
    """What holds the messages between the node that is struck and another one."""
    leaders = [f"leader/{number}" for number in range(cluster.partitions)]
    peer = random.choice([each for each in (*cluster.brokers, random.choice(leaders)) if each != struck])
    if cluster.controllers and random.random() < _CONTROLLER_SHARE:
        peer = random.choice(cluster.controllers)
    from_struck = NetworkPartition(shape=PartitionShape.ONE_WAY, nodes=(struck,), against=(peer,))
    to_struck = NetworkPartition(shape=PartitionShape.ONE_WAY, nodes=(peer,), against=(struck,))
    return random.choice([each for each in (from_struck, to_struck, Pause((peer,))) if each.family.name in families])


def _strike(
    random: Random, cluster: ClusterShape, struck: str, families: tuple[str, ...], victims: tuple[str, ...]
) -> Fault | None:
    """A fault of the node, which loses data only as a victim, or one that names no node, as changes of topics do."""
    for _ in range(_ATTEMPTS):
        alone = replace(cluster, brokers=(struck,)) if struck in cluster.brokers else cluster
        fault = draw_one(random, alone, families, victims)
        if fault is None or (struck not in victims and fault.at_risk(cluster)):
            continue
        if not fault.nodes_named() or struck in fault.nodes_named():
            return fault
    return None
