"""Broken steps of what is not done: a partition that stands still, although nothing keeps it from going on.

Other steps look at an event; these look at the end of a run that did not recover. Faults are over by then, every live
follower fetches many times a second, and every replica applies metadata as it comes. So a state in which one event has
to follow, and that has lasted for a while, is a decision that some node does not take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from checkers.tables import TraceRow
from results.explanation.replay import BROKER_KINDS, Decision, PartitionReplay, ReplicaView
from results.explanation.story import Step, StepKind, brokers

STANDS_NS: Final = 10_000_000_000
"""So long a state has to last to be taken for one that does not end."""
_ABOUT_READERS: Final = frozenset({"acknowledged", "latest_told"})
"""Events that change nothing for replicas."""


def standing_steps(events: Iterable[TraceRow], end_ns: int) -> Iterator[Step]:
    """What the nodes of one partition leave undone at the end of a run, `end_ns`."""
    state, since_ns = PartitionReplay(), 0
    for event in events:
        state.apply(event)
        if event.kind not in _ABOUT_READERS and (
            event.number >= 0 or event.kind in ("partition_changed", *BROKER_KINDS)
        ):
            since_ns = event.time_ns
    decision = state.decision
    if decision is None or decision.leader < 0 or end_ns - since_ns < STANDS_NS:
        return
    for step in _left_undone(state, decision, since_ns, (end_ns - since_ns) / 1e9):
        yield replace(step, beliefs=state.beliefs(), decided=str(decision))


def _left_undone(state: PartitionReplay, decision: Decision, since_ns: int, lasts_s: float) -> Iterator[Step]:
    leader = state.replicas.get(f"b{decision.leader}")
    if leader is None or not state.is_active(decision.leader):
        return
    for replica in sorted(filter(state.is_active, decision.replicas)):
        member = state.replica(f"b{replica}")
        if not _follows(state, member, decision) and state.applied.get(member.node, (0, -1))[1] >= decision.offset:
            yield Step(
                StepKind.DECISION_NOT_TAKEN_OVER,
                since_ns,
                member.node,
                f"{member.node} has applied the metadata with partition epoch {decision.partition_epoch} and does not "
                f"act on it for {lasts_s:.0f} s: {member.belief()}",
                before=((decision.time_ns, str(decision)),),
            )
            return
    if leader.role != "leader" or leader.leader_epoch != decision.leader_epoch:
        return
    for replica in sorted(filter(state.is_active, decision.replicas - {decision.leader})):
        yield from _of_follower(state, decision, leader, replica, since_ns, lasts_s)


def _follows(state: PartitionReplay, member: ReplicaView, decision: Decision) -> bool:
    role = "leader" if member.node == f"b{decision.leader}" else "follower"
    return (member.role, member.leader_epoch) == (role, decision.leader_epoch)


def _of_follower(
    state: PartitionReplay, decision: Decision, leader: ReplicaView, replica: int, since_ns: int, lasts_s: float
) -> Iterator[Step]:
    member = state.replica(f"b{replica}")
    holds, end = len(member.log), len(leader.log)
    place = f"follows {leader.node} in leader epoch {leader.leader_epoch}"
    if holds < end:
        yield Step(
            StepKind.FOLLOWER_STANDS_STILL,
            since_ns,
            member.node,
            f"{member.node} is unfenced and {place}, and appends nothing for {lasts_s:.0f} s, though its log ends at "
            f"{holds} and that of {leader.node} at {end}",
        )
    elif replica not in decision.isr and leader.proposal is None:
        yield Step(
            StepKind.CAUGHT_UP_FOLLOWER_NOT_PROPOSED,
            since_ns,
            leader.node,
            f"{leader.node} does not propose {member.node} for the ISR {brokers(decision.isr)} for {lasts_s:.0f} s, "
            f"though {member.node} is unfenced, {place} and holds its whole log, up to {end}; "
            f"{_last_proposal(leader)}",
        )


def _last_proposal(leader: ReplicaView) -> str:
    settled = leader.settled
    if settled is None:
        return f"{leader.node} has proposed nothing in this leadership"
    return f"the last change that {leader.node} proposed ended {settled.at}, and it has proposed none since"
