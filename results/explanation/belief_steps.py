"""Broken steps of brokers that act on something else than what was decided: a decision that they have read and not
taken over, or a change that nobody has decided.

Every event of a replica names the leader epoch and the partition epoch in which it acts, whatever it is about. So these
steps do not depend on the kind of mistake: they compare what a broker acts on with the metadata that it has read,
and with what the controllers have committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from checkers.tables import TraceRow
from results.explanation.replay import Decision, PartitionReplay
from results.explanation.story import Step, StepKind, at, brokers, leader_name

_DID: Final[Mapping[str, str]] = {
    "high_watermark": "moved its high watermark",
    "follower_high_watermark": "followed a high watermark",
    "isr_proposed": "proposed an ISR",
    "isr_committed": "took over an ISR",
    "isr_rejected": "had an ISR refused",
    "acknowledged": "acknowledged",
    "became_leader": "became leader",
    "became_follower": "became follower",
    "latest_told": "told the latest offset",
    "request_fenced": "refused a request",
}

_LATE_ANSWERS: Final = ("acknowledged", "append_unacknowledged", "request_fenced")
"""Answers to requests that may have waited: appends, and fetches of consumers."""


def not_taken_over(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """Any event of a replica in a partition epoch below that of the newest decision that its broker has applied."""
    applied_ns, end = state.applied.get(event.node, (-1, -1))
    if event.partition_epoch < 0 or not 0 <= applied_ns < event.time_ns or event.kind == "alter_partition_answered":
        return  # an answer names the state in which the change was proposed
    replica = state.replicas.get(event.node)
    if event.kind in _LATE_ANSWERS and replica is not None and replica.removed:
        return  # so does that to a request which waited when the replica was taken away: the last one that it had
    decision = _newest(state, end)
    if decision is None or event.partition_epoch >= decision.partition_epoch:
        return
    known = state.decisions.get(event.partition_epoch)
    yield Step(
        StepKind.DECISION_NOT_TAKEN_OVER,
        event.time_ns,
        event.node,
        f"{event.node} {_DID.get(event.kind, f'acted ({event.kind})')} in leader epoch {event.leader_epoch}, partition "
        f"epoch {event.partition_epoch}, and had applied the metadata with partition epoch {decision.partition_epoch} "
        f"{at(applied_ns).strip()} already ({_difference(known, decision)}): it did not take that decision over, so "
        "its partition epoch is stale and its requests to the controllers are out of date",
        before=((decision.time_ns, str(decision)),),
    )


def proposal_kept(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A leader acts in a later partition epoch than that of its proposal, which so is committed or void."""
    leader = state.replicas.get(event.node)
    if (
        leader is None
        or leader.role != "leader"
        or leader.proposal is None
        or event.kind == "resigned"
        or event.kind.startswith(("isr_c", "isr_r"))
    ):
        return
    proposal = leader.proposal
    if event.leader_epoch == proposal.leader_epoch and event.partition_epoch > proposal.partition_epoch >= 0:
        yield Step(
            StepKind.PROPOSAL_KEPT_AFTER_DECISION,
            event.time_ns,
            event.node,
            f"{event.node} still waits for its proposal {brokers(proposal.members)}, made in partition epoch "
            f"{proposal.partition_epoch}, and acts in partition epoch {event.partition_epoch} already: the decision "
            "that it took over settles the proposal, and as long as it waits it proposes no other ISR",
            before=((proposal.time_ns, f"{event.node} proposed the ISR {brokers(proposal.members)}"),),
        )


def _dropped(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A leader takes a proposal for settled by metadata that is no newer than what it was proposed from."""
    leader = state.replica(event.node)
    proposal = leader.proposal
    if leader.role != "leader" or proposal is None or event.leader_epoch != proposal.leader_epoch:
        return
    if 0 <= event.partition_epoch <= proposal.partition_epoch:
        yield Step(
            StepKind.PROPOSAL_DROPPED_UNDECIDED,
            event.time_ns,
            event.node,
            f"{event.node} took its proposal {brokers(proposal.members)} for settled upon metadata of partition epoch "
            f"{event.partition_epoch}, from which it had made that proposal: nothing has been decided since, the "
            "request is still under way, and its high watermark waits for the proposed members no longer",
            len(state.committed),
            before=((proposal.time_ns, f"{event.node} proposed the ISR {brokers(proposal.members)}"),),
        )


def _settled_again(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A leader takes over metadata as the end of a proposal that earlier metadata, or an answer, has ended."""
    leader = state.replica(event.node)
    if leader.role != "leader" or leader.proposal is not None or leader.settled is None:
        return
    settled = leader.settled
    yield Step(
        StepKind.PROPOSAL_KEPT_AFTER_DECISION,
        event.time_ns,
        event.node,
        f"{event.node} took partition epoch {event.partition_epoch} for the end of its ISR change once more, and "
        f"partition epoch {settled.partition_epoch} had ended it {settled.at}, since when it has proposed none: it "
        "keeps a change in flight that newer metadata has superseded, and as long as one is in flight it proposes no "
        "other ISR",
        before=((settled.time_ns, f"{event.node} took over the ISR {brokers(frozenset(settled.members))}"),),
    )


def _newest(state: PartitionReplay, end: int) -> Decision | None:
    """The newest decision of the metadata below `end`."""
    return next((one for one in reversed(state.decisions.values()) if 0 <= one.offset <= end), None)


def _difference(before: Decision | None, after: Decision) -> str:
    """What a decision changed, in words."""
    if before is None:
        return f"ISR {brokers(after.isr)}"
    changes = [
        f"{name} {brokers(old)} → {brokers(new)}"
        for name, old, new in (
            ("replicas", before.replicas, after.replicas),
            ("ISR", before.isr, after.isr),
            ("ELR", before.elr, after.elr),
        )
        if old != new
    ]
    if before.leader != after.leader:
        changes.append(f"leader {leader_name(before.leader)} → {leader_name(after.leader)}")
    if before.min_isr != after.min_isr:
        changes.append(f"min.insync.replicas {before.min_isr} → {after.min_isr}")
    return ", ".join(changes) or "same leader, ISR and replicas"


def _never_decided(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A role, or an ISR, of a partition epoch that no controller has committed."""
    decision = state.decision
    if decision is None or event.node not in state.applied or event.partition_epoch in state.decisions:
        return
    took = {"became_leader": "became leader", "became_follower": f"began to follow {leader_name(event.leader)}"}.get(
        event.kind, f"took over the ISR {brokers(frozenset(event.members))}"
    )
    asked = state.replica(event.node).proposal
    answer = ", as the answer to its proposal said" if event.kind == "isr_committed" and asked is not None else ""
    yield Step(
        StepKind.CHANGE_NEVER_DECIDED,
        event.time_ns,
        event.node,
        f"{event.node} {took} in partition epoch {event.partition_epoch}{answer}, and no controller has committed such "
        f"a change; committed is only: {decision}",
    )


def _registered(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    known = state.broker_epochs.get(event.number)
    if known is not None and known < event.broker_epoch:
        yield Step(
            StepKind.CHANGE_NEVER_DECIDED,
            event.time_ns,
            event.node,
            f"{event.node} was answered that it is registered with broker epoch {event.broker_epoch}, and no "
            f"controller has committed such a registration: committed is only broker epoch {known}",
        )


ALWAYS: Final = (not_taken_over, proposal_kept)
LOOKS: Final[Mapping[str, tuple[Callable[[PartitionReplay, TraceRow], Iterator[Step]], ...]]] = {
    "became_leader": (_never_decided,),
    "became_follower": (_never_decided,),
    "isr_committed": (_dropped, _never_decided, _settled_again),
    "registered": (_registered,),
}
