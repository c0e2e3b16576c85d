"""Broken steps of decisions about a partition: what controllers accept and elect, and how brokers take it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from checkers.tables import TraceRow
from results.explanation.event_facts import take_past
from results.explanation.replay import Decision, PartitionReplay, Proposal
from results.explanation.story import Step, StepKind, brokers, leader_name, listed


def proposals_of(state: PartitionReplay, before: Decision, after: Decision) -> list[Proposal]:
    """What leaders had proposed that this change may grant. Where it completes a reassignment, the replicas that are
    taken out leave the proposed ISR, too."""
    removed = before.replicas - after.replicas
    return [proposal for proposal in state.proposals if proposal.members - removed == after.isr]


def _changed(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    before, after = state.decision, Decision.of(event)
    detail = event.details()
    if before is None or event.offset < state.metadata_offset:
        return
    if event.offset == state.metadata_offset and replace(after, time_ns=before.time_ns) == before:
        return  # its controller tells late of what another one has taken over already
    first = len(state.committed)

    def step(kind: StepKind, text: str, first: int = first) -> Step:
        return Step(kind, event.time_ns, event.node, f"{event.node} {text}", first)

    if after.partition_epoch <= before.partition_epoch or after.leader_epoch < before.leader_epoch:
        was = f"partition epoch {before.partition_epoch}, leader epoch {before.leader_epoch}"
        text = f"changed the partition to partition epoch {after.partition_epoch}, leader epoch {after.leader_epoch}"
        yield step(StepKind.DECIDED_WITH_OLD_EPOCH, f"{text}, and it had {was} already")
    removed = before.replicas - after.replicas
    if removed and after.leader_epoch == before.leader_epoch:
        text = f"removed the replica {listed(removed)} and kept the leader epoch {after.leader_epoch}: its requests"
        yield step(StepKind.REPLICA_REMOVED_IN_LEADER_EPOCH, f"{text} and its position still count")
    if after.leader >= 0 and after.isr and after.leader not in after.isr:
        text = f"decided the leader b{after.leader} outside of its ISR {brokers(after.isr)}"
        yield step(StepKind.LEADER_OUTSIDE_ISR, text)
    if after.replicas and (strangers := after.isr - after.replicas):
        text = f"upon {detail.get('reason')}: it is not among the replicas {brokers(after.replicas)}"
        yield step(StepKind.ISR_OUTSIDE_REPLICAS, f"left {listed(strangers)} in the ISR {text}", 0)
    if after.leader >= 0 and after.leader != before.leader and after.leader in state.fenced | state.shutting_down:
        why = "is shutting down"
        if after.leader in state.fenced:
            why = "is fenced: it has no session, so nothing says that it lives"
        text = f"elected b{after.leader} in leader epoch {after.leader_epoch}, which {why}"
        yield step(StepKind.FENCED_BROKER_ELECTED, text)
    if detail.get("taken_over"):
        return
    joined = after.isr - before.isr
    reason = detail.get("reason")
    unasked = joined - {after.leader} if reason not in (None, "alter_partition") else frozenset[int]()
    if unasked:
        text = f"put {listed(unasked)} into the ISR upon {reason}, which no leader had proposed"
        yield step(StepKind.ISR_JOIN_UNREQUESTED, text)
    if fenced := joined & state.fenced:
        yield step(
            StepKind.FENCED_BROKER_JOINED_ISR,
            f"put {listed(fenced)} into the ISR {brokers(after.isr)}, and it is fenced",
        )
    if removed and reason not in ("reassignment", "reassignment_cancelled"):
        adding = before.adding & after.replicas
        if missing := adding - after.isr:
            text = f"completed the reassignment and removed {listed(removed)} while {listed(missing)}, which it adds,"
            yield step(StepKind.REASSIGNMENT_COMPLETED_EARLY, f"{text} is not in the ISR {brokers(after.isr)}")
    was_moving, is_moving = before.adding | before.removing, after.adding | after.removing
    if was_moving and not is_moving and reason != "reassignment":  # another one, which may be complete at once
        target, original = before.replicas - before.removing, before.replicas - before.adding
        if after.replicas not in (target, original):
            text = f"ended the reassignment of {brokers(original)} to {brokers(target)} with the replicas"
            yield step(StepKind.REASSIGNED_TO_OTHERS, f"{text} {brokers(after.replicas)}, which are neither", 0)
    if reason == "alter_partition" and (asked := proposals_of(state, before, after)):
        epoch = max(one.leader_epoch for one in asked)
        if epoch < before.leader_epoch:
            text = f"accepted the ISR {brokers(after.isr)} of a leader of epoch {epoch}"
            yield step(StepKind.ISR_CHANGE_OF_DEPOSED_LEADER, f"{text} in leader epoch {before.leader_epoch}")


def _registered(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    detail = event.details()
    known, previous = detail.get("known", -1), detail.get("previous", -1)
    if detail.get("clean") and known >= 0 and previous != known:
        presents = "no broker epoch" if previous < 0 else f"broker epoch {previous}"
        yield Step(
            StepKind.UNCLEAN_TAKEN_FOR_CLEAN,
            event.time_ns,
            event.node,
            f"{event.node} took the shutdown of b{event.broker} for clean, though it presents {presents} and was "
            f"registered with {known}: it may have lost records that it held",
        )


def _fenced(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A broker that was fenced, or shut down, in an earlier instant and is still in the ISR or leads."""
    for broker, time_ns in take_past(state.leaving, event.time_ns):
        decision = state.decision
        if decision is not None and (broker in decision.isr or broker == decision.leader):
            where = "leader" if broker == decision.leader else "member of the ISR"
            did = "fenced" if broker in state.fenced else "let shut down"
            yield Step(
                StepKind.FENCED_BROKER_KEPT,
                time_ns,
                f"b{broker}",
                f"the controllers {did} b{broker} and kept it as {where}: ISR {brokers(decision.isr)}",
                len(state.committed),
            )


def _applied(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A broker takes up its role, or the ISR, otherwise than the controllers decided in that partition epoch."""
    decision = state.decisions.get(event.partition_epoch)
    if decision is None or not event.leader_epoch >= 0:
        return
    wrong = ""
    if event.kind == "isr_committed" and frozenset(event.members) != decision.isr:
        wrong = f"counts on the ISR {brokers(frozenset(event.members))}"
    elif event.kind != "isr_committed" and (event.leader, event.leader_epoch) != (
        decision.leader,
        decision.leader_epoch,
    ):
        wrong = f"has {leader_name(event.leader)} for the leader of epoch {event.leader_epoch}"
    if wrong:
        yield Step(
            StepKind.DECISION_APPLIED_WRONGLY,
            event.time_ns,
            event.node,
            f"{event.node} {wrong} in partition epoch {event.partition_epoch}; the controllers had {decision}",
            len(state.committed),
        )


def _proposed_again(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    leader = state.replica(event.node)
    if leader.proposal is not None and leader.proposal.members != frozenset(event.members):
        yield Step(
            StepKind.ISR_PROPOSED_DURING_CHANGE,
            event.time_ns,
            event.node,
            f"{event.node} proposed the ISR {brokers(frozenset(event.members))} while its proposal "
            f"{brokers(leader.proposal.members)} was not decided yet",
            len(state.committed),
        )


ALWAYS: Final = _fenced
LOOKS: Final[Mapping[str, tuple[Callable[[PartitionReplay, TraceRow], Iterator[Step]], ...]]] = {
    "partition_changed": (_changed,),
    "broker_registered": (_registered,),
    "became_leader": (_applied,),
    "became_follower": (_applied,),
    "isr_committed": (_applied,),
    "isr_proposed": (_proposed_again,),
}
