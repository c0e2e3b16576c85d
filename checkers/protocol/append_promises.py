"""Promises about what a leader has done before it leads and takes a batch, and a follower before it takes records. See
`checkers.protocol.checker`."""

from __future__ import annotations

from collections.abc import Mapping

from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.state import PartitionState, TraceRowHandler, names
from checkers.protocol.watermark_promises import check_positions
from checkers.tables import TraceRow

_ACKNOWLEDGED: Mapping[object, str] = {-1: "all", 1: "1"}
"""By the number in the request: what a producer asks for that waits for an acknowledgement."""


def _became_leader(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A new leader has its leader epoch in its epoch cache before it has a record of it, and the minimum of in-sync
    replicas of the metadata by which it leads."""
    first, last = partition.leads_since.get(event.node, (event.leader_epoch, UNKNOWN))
    if last != event.leader_epoch - 1:
        first = event.leader_epoch
    partition.leads_since[event.node] = first, event.leader_epoch
    partition.leading[event.node] = event.leader_epoch
    detail = event.details()
    check_positions(partition, event, detail.get("positions"), f"{event.node} became leader {event.at}")
    if event.offset != event.log_end >= 0:
        partition.report(
            event,
            "leader-epoch-not-entered",
            event.log_end,
            f"{event.node} became leader in leader epoch {event.leader_epoch} {event.at}",
            f"it takes that to start at {event.offset}, and its log ends at {event.log_end}",
        )
    decisions, minimum = partition.decisions.get(event.partition_epoch, ()), detail.get("min_isr")
    if partition.created_again:
        return  # it may lead by the metadata of the topic before
    if minimum is not None and decisions and all(one.min_isr != min(minimum, len(one.replicas)) for one in decisions):
        partition.report(
            event,
            "minimum-outdated",
            event.log_end,
            f"{event.node} became leader in partition epoch {event.partition_epoch} {event.at}, with a "
            f"min.insync.replicas of {minimum}",
            f"the controllers had decided on {decisions[0].min_isr}, with the replicas {names(decisions[0].replicas)}",
        )
    entries = detail.get("epochs")
    if isinstance(entries, list) and event.leader_epoch not in [epoch for epoch, _ in entries]:
        partition.report(
            event,
            "leader-epoch-not-entered",
            UNKNOWN,
            f"{event.node} became leader in leader epoch {event.leader_epoch} {event.at}",
            f"its epoch cache has {entries or 'nothing'}: asked where an earlier epoch ends, it would answer wrongly",
        )


def _appended(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    end = len(partition.log(event.node))
    if event.offset != end and event.node in partition.opened:
        partition.report(
            event,
            "records-out-of-place",
            min(event.offset, end),
            f"{event.node} appended records at offset {event.offset} {event.at}",
            f"its log ended at {end}",
        )
    if event.node == f"b{event.leader}":
        # One of an earlier leadership may not be answered yet, as while its request waits for another partition: then
        # nothing tells which of both an answer is of.
        earlier = partition.appended_in.get((event.node, event.offset), (UNKNOWN, event.leader_epoch))
        known = event.partition_epoch if earlier[1] == event.leader_epoch else UNKNOWN
        partition.appended_in[event.node, event.offset] = known, event.leader_epoch
        return
    partition.appended_in.pop((event.node, event.offset), None)
    if '"fetched_in"' in event.detail:
        partition.report(
            event,
            "records-out-of-place",
            event.offset,
            f"{event.node} appended records at offset {event.offset} {event.at}, as a follower of b{event.leader}",
            f"it had asked for them in leader epoch {event.details()['fetched_in']}, and had moved on since",
        )
    epochs = {decision.leader_epoch for decision in partition.decisions.get(event.partition_epoch, ())}
    followed = partition.role_epochs.get(event.node)
    if epochs and followed is not None and followed not in epochs and not partition.created_again:
        partition.report(
            event,
            "logs-not-compared",
            event.offset,
            f"{event.node} appended records of b{event.leader} at offset {event.offset} {event.at}, in leader epoch "
            f"{max(epochs)}",
            f"it had last looked for where its log and its leader's part in leader epoch {followed}",
        )


def _opened(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """No process answers what the one before it has appended."""
    _leads_no_more(partition, event, _)
    for node, offset in [place for place in partition.appended_in if place[0] == event.node]:
        del partition.appended_in[node, offset]


def _answered(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A leader alone acknowledges. With acks=all it takes a batch only while its ISR has min.insync.replicas members,
    and acknowledges it in the same leadership: in a later one another record may stand there. As long as that goes on,
    it does not say that it is over."""
    detail = event.details()
    if partition.created_again:
        return
    if event.kind == "acknowledged":
        _check_leads(partition, event, detail)
    if detail.get("acks") != -1:
        return
    appended_in, leader_epoch = UNKNOWN, event.leader_epoch
    if "retry" not in detail:
        appended_in, leader_epoch = partition.appended_in.pop((event.node, event.offset), (UNKNOWN, leader_epoch))
    leads, same_epoch = event.node == f"b{event.leader}", event.leader_epoch == leader_epoch
    is_over = detail.get("error") == "not_leader_or_follower"
    if event.kind == "acknowledged" and not same_epoch:
        partition.report(
            event,
            "acknowledged-uncommitted",
            event.offset,
            f"{event.node} acknowledged offset {event.offset} with acks=all {event.at}, as one with leader "
            f"b{event.leader} in leader epoch {event.leader_epoch}",
            f"it had taken it in leader epoch {leader_epoch}: the record there may be another one by now",
        )
    elif is_over and leads and same_epoch and appended_in != UNKNOWN:
        partition.report(
            event,
            "unacknowledged-otherwise",
            event.offset,
            f"{event.node} answered {event.at} that it does not lead: of its batch at offset {event.offset}",
            f"it had taken it in leader epoch {leader_epoch}, in which it leads: what it waits for may come",
        )
    decisions = partition.decisions.get(appended_in, ())
    if not decisions or any(len(decision.isr) >= decision.min_isr for decision in decisions):
        return
    decision = decisions[0]
    partition.report(
        event,
        "appended-below-minimum",
        event.offset,
        f"{event.node} took a batch with acks=all at offset {event.offset} in partition epoch {appended_in}, and "
        f"answered it {event.at}",
        f"the ISR was {names(decision.isr)}, and min.insync.replicas asks for {decision.min_isr}",
    )


def _check_leads(partition: PartitionState, event: TraceRow, detail: Mapping[str, object]) -> None:
    """A node takes a batch in the leadership that it has begun last, and has not ended since."""
    led = partition.leading.get(event.node, UNKNOWN)
    leads = event.node == f"b{event.leader}" and (led == event.leader_epoch or event.node not in partition.role_epochs)
    acks = _ACKNOWLEDGED.get(detail.get("acks"))
    if acks is None or leads:
        return
    knew = f"b{event.leader}" if event.leader >= 0 else "no leader"
    partition.report(
        event,
        "acknowledged-without-leading",
        event.offset,
        f"{event.node} acknowledged offset {event.offset} with acks={acks} {event.at}, as one "
        f"with {knew} in leader epoch {event.leader_epoch}",
        f"it led in leader epoch {led} then"
        if led >= 0
        else "it did not lead then: it had not begun to, or that was over",
    )


def _leads_no_more(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.leading.pop(event.node, None)


def _isr_too_small(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A batch with acks=all is refused only while the ISR has fewer members than min.insync.replicas."""
    decisions = partition.decisions.get(event.partition_epoch, ())
    if not decisions or partition.created_again or any(len(each.isr) < each.min_isr for each in decisions):
        return
    decision = decisions[0]
    partition.report(
        event,
        "refused-needlessly",
        UNKNOWN,
        f"{event.node} refused a batch with acks=all {event.at} in partition epoch {event.partition_epoch}, since its "
        f"ISR {names(frozenset(event.members))} was too small",
        f"the ISR was {names(decision.isr)}, and min.insync.replicas asks for {decision.min_isr}",
    )


def _records_refused(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """The records of an answer that a follower takes follow its log: another answer is not for it any more. But for the
    batch in which its leader's log starts: below, nobody can tell whether the logs differ, and the follower's start
    follows."""
    if event.offset < partition.log_starts.get(f"b{event.leader}", 0):
        return
    partition.report(
        event,
        "records-out-of-place",
        event.offset,
        f"{event.node} took an answer of b{event.leader} with records from offset {event.offset} on {event.at}",
        f"its log ended at {event.log_end}",
    )


def _answer_unasked(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A fetch is answered for the partitions that it has, named in it or in its session before: an answer with others
    shows that leader and follower have different sessions."""
    detail = event.details()
    partition.report(
        event,
        "answer-unasked",
        UNKNOWN,
        f"b{detail['by']} answered a fetch of {event.node}, {event.at}",
        f"the answer has the partitions {', '.join(detail['unasked'])} (by topic id), which the fetch had not",
    )


HANDLERS: Mapping[str, TraceRowHandler] = {
    "log_recovered": _opened,
    "became_leader": _became_leader,
    "became_follower": _leads_no_more,
    "resigned": _leads_no_more,
    "appended": _appended,
    "acknowledged": _answered,
    "append_unacknowledged": _answered,
    "isr_too_small": _isr_too_small,
    "answer_unasked": _answer_unasked,
    "records_refused": _records_refused,
}
