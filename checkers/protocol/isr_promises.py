"""Promises about the ISR that a leader counts: the one decided, the changes of it that may have been decided, and no
others. See `checkers.protocol.checker`.

A change that is not ended keeps a leader from the next one, and lets the high watermark wait for whoever was to join,
so that a partition may stand still for good. A run may be over before that shows, or another change may help.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkers.evidence import CheckSettings
from checkers.protocol.read_promises import changes_in_flight
from checkers.protocol.state import UNKNOWN, PartitionState, TraceRowHandler, integers, names
from checkers.tables import TraceRow

_FINAL = frozenset({"fenced_leader_epoch", "ineligible_replica", "invalid_request", "invalid_update_version"})
"""Errors that are about the change itself: sent again, it gets the same one, or is another change by then."""


def _isr_counted(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A change that is in flight, or may still be made, was proposed in the partition epoch that the leader knows:
    newer metadata has ended all others."""
    if partition.created_again:
        return
    partition.acts.append(event)
    detail = event.details()
    here = partition.proposed_in.get((event.leader_epoch, event.partition_epoch), ())
    proposed = [each.members for each in here if each.leader == event.node]
    kept = frozenset(integers(detail, "unresolved")) - frozenset[int]().union(*proposed)
    if "proposed" in detail and frozenset(integers(detail, "proposed")) not in proposed:
        kept |= frozenset(integers(detail, "proposed"))
    if kept:
        partition.report(
            event,
            "isr-change-kept",
            UNKNOWN,
            f"{event.node} knew of partition epoch {event.partition_epoch} {event.at}, with the ISR "
            f"{names(frozenset(event.members))}",
            f"it still counted {names(kept)} as of a change in flight, which it had proposed in another state: newer "
            "metadata, or the end of its leadership, has ended that",
        )


def _high_watermark(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    if partition.created_again or event.node != f"b{event.leader}":
        return
    in_flight = frozenset[int]().union(*changes_in_flight(partition, event))
    key = event.node, event.leader_epoch, event.partition_epoch, frozenset(event.members), in_flight
    partition.quorums.setdefault(key, (event, in_flight))


def check_quorums(partition: PartitionState) -> None:
    """After the last event, since a decision may be traced late: every quorum was the leader's maximal ISR. Where no
    decision of its partition epoch is in the trace, nothing is said about it."""
    for event, in_flight in partition.quorums.values():
        known = [
            decision.isr
            for decision in partition.decisions.get(event.partition_epoch, ())
            if (decision.leader, decision.leader_epoch) == (event.leader, event.leader_epoch)
        ]
        quorum = frozenset(event.members) | {event.leader}
        if not known or any(quorum == isr | in_flight | {event.leader} for isr in known):
            continue
        proposed = f", and it had proposed {names(in_flight)}" if in_flight else ""
        partition.report(
            event,
            "quorum-not-maximal-isr",
            event.offset,
            f"{event.node} moved the high watermark {event.offset} → {event.high_watermark} {event.at} with the quorum "
            f"{names(quorum)}, in partition epoch {event.partition_epoch}",
            f"the ISR was {names(known[0])} in that{proposed}",
        )


# ---- changes in flight -----------------------------------------------------------------------------------------------


def _proposed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.ended_proposals.pop(event.node, None)
    partition.lost_requests.pop(event.node, None)


def _answered(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A granted change has a partition epoch of its own: by that the leader knows that it is made."""
    detail = event.details()
    granted = detail.get("partition_epoch")
    if detail.get("sent"):
        partition.lost_requests[event.node] = event
    if detail["error"] in _FINAL:
        partition.ended_proposals[event.node] = event
    elif detail["error"] == "none" and isinstance(granted, int) and granted <= event.partition_epoch:
        partition.report(
            event,
            "partition-epoch-stood",
            UNKNOWN,
            f"the controllers granted {event.node} the ISR {names(frozenset(event.members))} {event.at}",
            f"it had proposed that in partition epoch {event.partition_epoch}, and the answer has {granted}: no leader "
            "can tell that from the state before, and the change stays in flight",
        )


def _rejected(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A leader takes a change back that is certainly not made: it was refused for its members, and no earlier request
    with it may still arrive."""
    detail, lost = event.details(), partition.lost_requests.get(event.node)
    if not detail.get("rolled_back"):
        return
    if detail["error"] != "ineligible_replica":
        why = f"it was refused with {detail['error']}: the controllers may have made it before"
    elif lost is not None and _place(lost) == _place(event):
        why = f"a request with it had no answer {lost.at}, and may be granted later, once the member may join again"
    else:
        return
    partition.report(
        event,
        "isr-change-taken-back-early",
        UNKNOWN,
        f"{event.node} took its last proposal back {event.at}, and counts the ISR {names(frozenset(event.members))}",
        why,
    )


def _place(event: TraceRow) -> tuple[int, int]:
    return event.leader_epoch, event.partition_epoch


def _sent(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A change that was refused for what it is, is not sent again before it is proposed again."""
    ended = partition.ended_proposals.get(event.node)
    if ended is None or _change(ended) != _change(event):
        return
    partition.report(
        event,
        "isr-change-sent-again",
        UNKNOWN,
        f"{event.node} sent the ISR {names(frozenset(event.members))} of partition epoch {event.partition_epoch} again "
        f"{event.at}",
        f"it had read {ended.at} that it is refused with {ended.details()['error']}: what it is to change is another "
        "state by now, or a member is in another life",
    )


def _change(event: TraceRow) -> tuple[object, ...]:
    return *_place(event), frozenset(event.members)


HANDLERS: Mapping[str, TraceRowHandler] = {
    "isr_counted": _isr_counted,
    "high_watermark": _high_watermark,
    "isr_proposed": _proposed,
    "alter_partition_answered": _answered,
    "alter_partition_sent": _sent,
    "isr_rejected": _rejected,
}
