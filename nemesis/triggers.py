"""Triggers drawn for random faults: a fault waits for an occurrence or a state of the protocol instead of a time alone.

Moments drawn from a clock rarely fall between a proposal of the ISR and its answer, or just after a truncation. A
trigger puts a fault there: it waits from its time on, strikes when the condition holds (half of the triggers a moment
later), and often strikes the node that the occurrence happened to: "when the ISR shrinks, the power loss of the broker
that left".

- A fault of one named broker waits, in half of the draws, for an occurrence at that broker. So a broker that may lose
  data does so when it leaves the ISR, and no other does.
- A fault of a leader strikes the node of the occurrence instead (the target `trigger`), as often.
- A fault of `victim/0` prefers that node by itself, where the loss budget lets it choose (`nemesis.targets`).
- While a fault of the schedule is still to take replicas off brokers, some of the others wait for the deletion of
  one, those that lose data more often: of a named broker, for a deletion there. A fault that takes a replica off may
  itself end, and so put it back, as soon as the replica is deleted, or as soon as a broker is fenced, maybe that one.
- Three tenths of the triggers are an event that a node writes to its trace, of one of three kinds that are drawn evenly
  from all that nodes of the fault's role write. So what is done rarely is struck about as often as what is done all the
  time.
- A fault of what processes do only when they start waits, in runs with triggers, for the start of the broker that it
  names, or of any one, which it strikes.
- While a fault is still to delete records, those by which brokers lose data and that wait for nothing else wait, in
  half of the draws, until a log has its new start: what is left of the log may then end below that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Final

from images.trace import BROKER_KINDS, CONTROLLER_KINDS, GROUP_KINDS
from nemesis.cluster_shape import ClusterShape
from nemesis.conditions import (
    ANY_NODE,
    NOBODY,
    ControllerElected,
    Elected,
    Elr,
    Fenced,
    Isr,
    JoinedIsr,
    LedBy,
    LeftIsr,
    LogStartMoved,
    NodeOccurrence,
    PartitionOccurrence,
    ProposedIsr,
    Registered,
    ReplicaDeleted,
    Restarted,
    Traced,
    TriggerCondition,
    Truncated,
    Unfenced,
)
from nemesis.faults.fault import Fault
from nemesis.ports import EnvironmentCapability
from nemesis.schedule import ScheduledFault
from nemesis.targets import TRIGGER

OCCURRENCES: Final[Mapping[type[NodeOccurrence], float]] = {
    LeftIsr: 3.0,
    JoinedIsr: 2.0,
    Elected: 2.0,
    Truncated: 2.0,
    Fenced: 1.0,
    Unfenced: 1.0,
    Registered: 1.0,
    Restarted: 1.0,
    ControllerElected: 1.0,
}
"""The occurrences that are drawn, with how often, relative to each other."""
_STATE_SHARE: Final = 0.25
"""Of the triggers: a state instead of an occurrence."""
_DELETION_SHARE: Final = 0.25
"""Of the triggers, where replicas may still be taken off brokers: a deletion instead of anything else."""
_LOST_DELETION_SHARE: Final = 0.5
"""Of the faults by which brokers lose data, there and in runs with triggers: a deletion instead of all else."""
_LOST_START_SHARE: Final = 0.5
"""Of the faults by which brokers lose data, in runs with triggers where records are still to be deleted: a new log
start instead of a time alone."""
_TRACED_SHARE: Final = 0.3
"""Of the triggers: an event of the trace instead of anything else."""
_TRACED_KINDS: Final = 3
"""For so many kinds of events a fault waits: a single one mostly does not come in the rest of a short run."""
_LATER_PER_PATIENCE: Final = 10.0
"""How many mean delays after a condition are as long as the cluster's patience."""


def with_trigger(
    scheduled: ScheduledFault, random: Random, cluster: ClusterShape, *, deletions: bool = False
) -> ScheduledFault:
    """The fault with a trigger, with `deletions` maybe the deletion of a replica; as it is where the environment would
    not see the condition."""
    fault = scheduled.fault
    if random.random() < _STATE_SHARE:
        condition = _state(random, cluster)
    else:
        kind = random.choices(list(OCCURRENCES), list(OCCURRENCES.values()))[0]
        node, nodes = ANY_NODE, fault.nodes_named()
        if random.random() < 0.5 and len(nodes) == 1 and kind is not ControllerElected:
            if nodes[0] in cluster.brokers:
                node = nodes[0]
            elif nodes[0].startswith("leader"):
                fault = fault.aimed_at((TRIGGER,))
        condition = _occurrence(kind, node, random, cluster)
    then_after_s = 0.0
    if random.random() < 0.5:
        then_after_s = draw_later_s(random, cluster)
    if deletions and random.random() < _DELETION_SHARE:
        condition = _deletion(fault, cluster)
    if random.random() < _TRACED_SHARE:
        fault, condition = _traced(scheduled.fault, random, cluster)
    if not _is_seen(condition, cluster):
        return scheduled
    return replace(scheduled, fault=fault, when=condition, then_after_s=then_after_s)


def with_deletion(scheduled: ScheduledFault, random: Random, cluster: ClusterShape) -> ScheduledFault:
    """The fault, where brokers lose data by it, in a share of the draws with the deletion of a replica as its trigger,
    and at once: a deletion is at risk until the disk has it. As it is where the environment would not see that."""
    at_risk = {*scheduled.fault.at_risk(cluster)} - cluster.controller_targets
    is_drawn, deletion = random.random() < _LOST_DELETION_SHARE, _deletion(scheduled.fault, cluster)
    if not at_risk or not is_drawn or not _is_seen(deletion, cluster):
        return scheduled
    return replace(scheduled, when=deletion, then_after_s=0.0)


def with_log_start(scheduled: ScheduledFault, random: Random, cluster: ClusterShape) -> ScheduledFault:
    """The fault, where brokers lose data by it, in a share of the draws with a new log start as its trigger, at once or
    a moment later. As it is where the environment would not see that."""
    at_risk = {*scheduled.fault.at_risk(cluster)} - cluster.controller_targets
    moved = LogStartMoved(_node_of(scheduled.fault, cluster))
    is_drawn, at_once = random.random() < _LOST_START_SHARE, random.random() < 0.5
    later_s = draw_later_s(random, cluster)
    if not at_risk or not is_drawn or not _is_seen(moved, cluster):
        return scheduled
    return replace(scheduled, when=moved, then_after_s=0.0 if at_once else later_s)


def with_start(scheduled: ScheduledFault, cluster: ClusterShape) -> ScheduledFault:
    """The fault, where it strikes what processes do when they start, with the start of one as its trigger. As it is
    where the environment would not see that."""
    node = _node_of(scheduled.fault, cluster)
    started = Restarted(node)
    if not scheduled.fault.strikes_starts() or not _is_seen(started, cluster):
        return scheduled
    fault = scheduled.fault.aimed_at((TRIGGER,)) if node == ANY_NODE else scheduled.fault
    return replace(scheduled, fault=fault, when=started, then_after_s=0.0)


def _traced(fault: Fault, random: Random, cluster: ClusterShape) -> tuple[Fault, Traced]:
    """The fault, in half of the draws aimed at the node of the event, unless it takes data away: then the event is, as
    often, one of the node that it names."""
    nodes = fault.nodes_named()
    kinds: list[str] = []
    if not nodes or any(node in cluster.controllers or node == "controller" for node in nodes):
        kinds += CONTROLLER_KINDS
    if not kinds or not all(node in cluster.controllers or node == "controller" for node in nodes):
        kinds += (*BROKER_KINDS, *(GROUP_KINDS if cluster.has_groups else ()))
    events, node = tuple(random.sample(kinds, _TRACED_KINDS)), ANY_NODE
    if random.random() < 0.5 and len(nodes) == 1:
        if not fault.at_risk(cluster):
            fault = fault.aimed_at((TRIGGER,))
        elif nodes[0] in (*cluster.brokers, *cluster.controllers):
            node = nodes[0]
    return fault, Traced(node, events)


def draw_later_s(random: Random, cluster: ClusterShape) -> float:
    """How long after its condition a fault strikes that does not strike at once."""
    return round(random.expovariate(_LATER_PER_PATIENCE / cluster.patience_s), 3)


def _deletion(fault: Fault, cluster: ClusterShape) -> ReplicaDeleted:
    return ReplicaDeleted(_node_of(fault, cluster))


def _node_of(fault: Fault, cluster: ClusterShape) -> str:
    """The broker that a fault names, if it names but one."""
    nodes = fault.nodes_named()
    return nodes[0] if len(nodes) == 1 and nodes[0] in cluster.brokers else ANY_NODE


def with_end(scheduled: ScheduledFault, random: Random, cluster: ClusterShape) -> ScheduledFault:
    """The fault ended by an occurrence that a replica taken off its broker brings about, if that comes before its time
    is over; as it is where the environment would not see it."""
    condition = random.choice((ReplicaDeleted, Fenced))(ANY_NODE)
    return replace(scheduled, until=condition) if _is_seen(condition, cluster) else scheduled


def _is_seen(condition: TriggerCondition, cluster: ClusterShape) -> bool:
    return not condition.rests_on_trace() or EnvironmentCapability.LIVE_TRACE not in cluster.unsupported


def _occurrence(kind: type[NodeOccurrence], node: str, random: Random, cluster: ClusterShape) -> TriggerCondition:
    """In any partition, or in one of them."""
    if issubclass(kind, PartitionOccurrence) and random.random() < 0.5:
        return kind(node, random.randrange(cluster.partitions))
    return kind(node)


def _state(random: Random, cluster: ClusterShape) -> TriggerCondition:
    partition = random.randrange(cluster.partitions)
    return random.choice(
        (
            ProposedIsr(partition, at_least=1),
            Isr(partition, below=cluster.min_insync_replicas + 1),
            Elr(partition, at_least=1),
            LedBy(NOBODY, partition),
        )
    )
