"""Schedules in which what happens to a node makes a second fault strike it.

Many of the rules of a replicated log are about what a node has begun when its process ends, or when nobody hears from
it any more. A random schedule brings what is rare about rarely, and then hits that node at that moment more rarely
still. Here it is drawn first what is to happen, everything as often as everything else: an election, a change of the
ISR, a registration, a new start of a log, the deletion of a replica. Then two faults are drawn for it:

    changes   what may bring it about: for a deletion a move of replicas, …   ├──────────────────────┤
    strikes   power loss, kill, pause, partition, … of the node that it happens to   ·  ·  ·├────┤ when it has happened

Pairs follow each other. A strike waits as long as the run lasts, so it also meets what others have brought about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Final

from nemesis.cluster_shape import ClusterShape
from nemesis.conditions import (
    ANY_NODE,
    ControllerElected,
    LogStartMoved,
    NodeOccurrence,
    ReplicaDeleted,
    ReplicaResigned,
)
from nemesis.drawing import draw_scale
from nemesis.faults.fault import Fault
from nemesis.schedule import ScheduledFault
from nemesis.swarm import draw_one
from nemesis.targets import TRIGGER
from nemesis.triggers import OCCURRENCES, draw_later_s

_GAP: Final = (0.3, 1.2)
"""From the start of one pair to that of the next. Like all times here in multiples of the cluster's patience."""
_CHANGED: Final = (0.3, 3.0)
"""How long the first fault lasts."""
_STRUCK: Final = (0.02, 1.0)
"""How long the second one lasts."""
_AT_ONCE_SHARE: Final = 0.5
"""How many strikes are not a moment later than what has happened."""
_LOSING_SHARE: Final = 0.5
"""How many of the strikes are such that a node loses data, where any may and the families have such faults."""
_ATTEMPTS: Final = 64
"""How often a fault is drawn until it is one of those that are looked for."""


def _moves_replicas(fault: Fault) -> bool:
    return fault.removes_replicas


def _deletes_records(fault: Fault) -> bool:
    return fault.deletes_records


def _does_neither(fault: Fault) -> bool:
    return not (fault.removes_replicas or fault.deletes_records)


_BRINGS_ABOUT: Final[Mapping[type[NodeOccurrence], Callable[[Fault], bool]]] = {
    **dict.fromkeys(OCCURRENCES, _does_neither),
    ReplicaDeleted: _moves_replicas,
    ReplicaResigned: _moves_replicas,
    LogStartMoved: _deletes_records,
}
"""What is to happen → whether a fault may bring it about."""


def struck_changes(
    random: Random, cluster: ClusterShape, time_limit_s: float, families: tuple[str, ...], victims: tuple[str, ...]
) -> Iterator[ScheduledFault]:
    """The faults of a run of `time_limit_s` in which these `victims` may lose data."""
    patience_s = cluster.patience_s
    at_s = random.uniform(*_GAP) * patience_s
    while at_s < time_limit_s:
        yield from _pair(random, cluster, round(at_s, 3), families, victims)
        at_s += random.uniform(*_GAP) * patience_s


def _pair(
    random: Random, cluster: ClusterShape, at_s: float, families: tuple[str, ...], victims: tuple[str, ...]
) -> Iterator[ScheduledFault]:
    """What changes something, and what strikes; none where the families have no such faults."""
    kind = random.choice([*_BRINGS_ABOUT])
    change = _drawn(random, cluster, families, victims, _BRINGS_ABOUT[kind])
    strike = None
    if victims and random.random() < _LOSING_SHARE:
        strike = _drawn(random, cluster, families, victims, lambda fault: _strikes(fault, cluster, loses=True))
    node = ANY_NODE
    if strike is not None and kind is not ControllerElected and strike.nodes_named()[0] in cluster.brokers:
        (node,) = strike.nodes_named()
    if strike is None:
        strike = _drawn(random, cluster, families, victims, lambda fault: _strikes(fault, cluster, loses=False))
        strike = strike and strike.aimed_at((TRIGGER,))
    if change is None or strike is None:
        return
    patience_s = cluster.patience_s
    later_s = 0.0 if random.random() < _AT_ONCE_SHARE else draw_later_s(random, cluster)
    yield ScheduledFault(at_s, for_s=round(draw_scale(random, *_CHANGED) * patience_s, 3), fault=change)
    yield ScheduledFault(
        at_s,
        for_s=round(draw_scale(random, *_STRUCK) * patience_s, 3),
        fault=strike,
        when=kind(node),
        then_after_s=later_s,
    )


def _strikes(fault: Fault, cluster: ClusterShape, *, loses: bool) -> bool:
    """Whether it strikes a single broker at one moment, which loses data by it or not."""
    nodes = {*fault.nodes_named()}
    of_broker = len(nodes) == 1 and nodes.isdisjoint(("controller", *cluster.controllers))
    return of_broker and not fault.in_steps and bool(fault.at_risk(cluster)) == loses


def _drawn(
    random: Random,
    cluster: ClusterShape,
    families: tuple[str, ...],
    victims: tuple[str, ...],
    is_meant: Callable[[Fault], bool],
) -> Fault | None:
    """A fault that is meant, if a few attempts find any."""
    for _ in range(_ATTEMPTS):
        fault = draw_one(random, cluster, families, victims)
        if fault is not None and is_meant(fault):
            return fault
    return None
