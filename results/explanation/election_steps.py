"""Broken steps of how controllers change a partition: who leaves the ISR, who is eligible then, and who leads.

What has to follow from a change is worked out again from what was decided before it, and from the brokers that are
fenced or shut down: the docstrings have the rules. A change that may have followed from another one that the trace has
as one event (`taken_over`) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from checkers.tables import TraceRow
from results.explanation.replay import Decision, PartitionReplay
from results.explanation.story import Step, StepKind, brokers, listed

_OF_ONE_BROKER: Final = frozenset({"fenced", "controlled_shutdown", "registered"})
"""Reasons for which one broker leaves the ISR."""
_WITHOUT_LEAVING: Final = frozenset({"elected", "configured", "preferred_election"})
"""Reasons for which nobody does."""


def _step(kind: StepKind, event: TraceRow, text: str) -> Step:
    return Step(kind, event.time_ns, event.node, f"{event.node} {text}")


def _changed(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    before, after, detail = state.decision, Decision.of(event), event.details()
    if before is None or event.offset < state.metadata_offset or detail.get("taken_over"):
        return
    reason = detail.get("reason")
    if detail.get("unclean") is not True:
        yield from _left_isr(event, before, after, reason)
        yield from _left_elr(event, before, after, reason)
    else:
        yield from _recovered(state, event, after, detail.get("told") or {})
    yield from _still_reassigning(state, event, after)


def _recovered(
    state: PartitionReplay, event: TraceRow, after: Decision, told: Mapping[str, list[int]]
) -> Iterator[Step]:
    """An unclean recovery elects the replica with the longest log: by the last leader epoch, then by the log end. A
    report counts while the log is still so and its broker may lead."""
    elected = told.get(str(after.leader))
    current = [
        (replica, log)
        for replica, log in told.items()
        if state.is_active(int(replica)) and len(state.replica(f"b{replica}").log) == log[1]
    ]
    longest = max(current, key=lambda one: one[1], default=None)
    if elected is not None and longest is not None and elected < longest[1]:
        ends = ", ".join(f"b{replica} {end} of epoch {epoch}" for replica, (epoch, end) in sorted(told.items()))
        text = f"recovered the partition with the leader b{after.leader}, and b{longest[0]} had reported a longer log: "
        yield _step(StepKind.RECOVERED_SHORTER_LOG, event, f"{text}the log ends are {ends}")


def _left_isr(event: TraceRow, before: Decision, after: Decision, reason: object) -> Iterator[Step]:
    """The ISR loses the broker that is fenced, shuts down or registers, and nobody else."""
    left = before.isr - after.isr if after.replicas >= before.replicas else frozenset[int]()
    allowed = 1 if reason in _OF_ONE_BROKER else 0
    if reason in _OF_ONE_BROKER | _WITHOUT_LEAVING and len(left) > allowed:
        text = f"took {listed(left)} out of the ISR {brokers(before.isr)} upon {reason}, which concerns "
        text += "one broker" if allowed else "no member"
        yield _step(StepKind.ISR_MEMBERS_DROPPED, event, text)


def _left_elr(event: TraceRow, before: Decision, after: Decision, reason: object) -> Iterator[Step]:
    """While the ISR is smaller than min.insync.replicas nothing is committed, so each former member of ISR or ELR stays
    eligible; but not a broker that registers after an unclean shutdown."""
    if len(after.isr) >= after.min_isr or not after.replicas:
        return
    gone = ((before.isr | before.elr) & after.replicas) - after.isr - after.elr
    if len(gone) > (reason == "registered"):
        text = f"left {listed(gone)} out of the ELR upon {reason}, which was in the ISR {brokers(before.isr)} or the "
        text += f"ELR {brokers(before.elr)} before: the new ISR {brokers(after.isr)} is smaller than "
        text += f"min.insync.replicas, {after.min_isr}, and commits nothing, so {listed(gone)} holds all that is "
        text += f"committed and has to stay eligible; the ELR is {brokers(after.elr)}"
        yield _step(StepKind.ELR_LACKS_MEMBER, event, text)


def _still_reassigning(state: PartitionReplay, event: TraceRow, after: Decision) -> Iterator[Step]:
    """A reassignment completes in the change with which all added replicas are in the ISR."""
    target = after.replicas - after.removing
    in_sync = after.isr & target
    enough = len(in_sync) >= min(after.min_isr, len(target))
    if (after.adding or after.removing) and after.adding <= after.isr and enough and any(map(state.is_active, in_sync)):
        yield _step(
            StepKind.REASSIGNMENT_NOT_COMPLETED,
            event,
            f"did not complete the reassignment to {brokers(target)}, "
            f"although all replicas that it adds are in the ISR {brokers(after.isr)}",
        )


def leaderless(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A partition without a leader, once the instant of the last change is over, while a broker may lead it: a member
    of the ISR, or with an empty ISR one of the ELR."""
    decision = state.decision
    if decision is None or decision.leader >= 0 or event.time_ns <= state.last_change_ns:
        return
    may_lead = frozenset(filter(state.is_active, decision.isr or decision.elr))
    if may_lead and decision is not state.leaderless:
        state.leaderless = decision
        where = "ISR" if decision.isr else "ELR"
        known = {f"b{broker}": state.unfenced_ns[broker] for broker in sorted(may_lead) if broker in state.unfenced_ns}
        since = "".join(f" ({name} since {time_ns / 1e9:.6f} s)" for name, time_ns in known.items())
        yield Step(
            StepKind.ELIGIBLE_LEADER_NOT_ELECTED,
            state.last_change_ns,
            "",
            f"the controllers left the partition without a leader, although {listed(may_lead)} of the {where} "
            f"{brokers(decision.isr or decision.elr)} is registered and unfenced{since}, and elected nobody then",
            before=((decision.time_ns, str(decision)),),
        )


ALWAYS: Final = leaderless
LOOKS: Final[Mapping[str, tuple[Callable[[PartitionReplay, TraceRow], Iterator[Step]], ...]]] = {
    "partition_changed": (_changed,),
}
