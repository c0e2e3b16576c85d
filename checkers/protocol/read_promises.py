"""Promises about what a leader answers only once its ISR has confirmed it: the latest offset and committed offsets,
while no later leader can have acknowledged more, and DeleteRecords, so that no later leader has the records again. See
`checkers.protocol.checker`."""

from __future__ import annotations

from collections.abc import Mapping

from checkers.evidence import CheckSettings
from checkers.protocol.state import PartitionState, ReadAnswer, TraceRowHandler, integers, names
from checkers.tables import TraceRow


def _became_leader(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.proposals.pop(event.node, None)


def _isr_proposed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    in_flight = _in_flight(partition, event)
    partition.proposals[event.node] = (_place(event), (*in_flight, frozenset(event.members)))


def _isr_rejected(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """The last proposal certainly changed nothing, if it is rolled back; otherwise it may still."""
    if event.details().get("rolled_back"):
        partition.proposals[event.node] = (_place(event), _in_flight(partition, event)[:-1])


def _place(event: TraceRow) -> tuple[int, int]:
    return event.leader_epoch, event.partition_epoch


def _in_flight(partition: PartitionState, event: TraceRow) -> tuple[frozenset[int], ...]:
    """The ISR changes whose outcome the event's leader does not know. A newer partition epoch settles all of them."""
    place, in_flight = partition.proposals.get(event.node, (_place(event), ()))
    return in_flight if place == _place(event) else ()


def _latest_asked(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    elsewhere = (int(node[1:]) for node, epoch in partition.role_epochs.items() if epoch > event.leader_epoch)
    partition.elsewhere[_read_of(event)] = frozenset(elsewhere)


def _read_of(event: TraceRow) -> tuple[str, int, object]:
    return event.node, event.leader_epoch, event.details().get("read")


def _latest_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    if event.members:  # the leader at least, but in runs of earlier versions
        _answered(partition, event, frozenset(event.members))


def _offsets_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    detail = event.details()
    if "confirmed" in detail:  # not in runs of earlier versions
        _answered(partition, event, frozenset(integers(detail, "confirmed")))


def _deletion_confirmed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    deleted = (int(node[1:]) for node, start in partition.greatest_log_starts.items() if start >= event.offset)
    _answered(partition, event, frozenset(deleted))


def _answered(partition: PartitionState, event: TraceRow, confirmed: frozenset[int]) -> None:
    proposed = frozenset().union(*_in_flight(partition, event))
    elsewhere = partition.elsewhere.get(_read_of(event), frozenset())
    partition.reads.append(ReadAnswer(event, confirmed, proposed, elsewhere))


def check_reads(partition: PartitionState) -> None:
    """After the last event: every answer was confirmed by the ISR that the leader knew, in the partition epoch that it
    names, and by the members that it had proposed.

    Where no decision of that partition epoch is in the trace, nothing is said about that. A member that was in a later
    leader epoch when the read began has sent its last fetch to this leader before.
    """
    for read in partition.reads:
        event = read.event
        if left := read.confirmed & read.elsewhere:
            why = "which were" if len(left) > 1 else "which was"
            partition.report(event, *_unconfirmed(event, names(left), f"{why} in a later leader epoch by then"))
        known = [
            decision.isr
            for decision in partition.decisions.get(event.partition_epoch, ())
            if (decision.leader, decision.leader_epoch) == (event.leader, event.leader_epoch)
        ]
        if not known:
            continue
        members = frozenset.intersection(*known) | read.proposed
        silent = members - read.confirmed - {event.leader}
        if silent:
            isr = f"of the ISR {names(members)} as it knew and had proposed it"
            partition.report(event, *_unconfirmed(event, names(silent), isr))


def _unconfirmed(event: TraceRow, silent: str, isr: str) -> tuple[str, int, str, str]:
    """The kind of the finding, the offset that it is about, and its lines."""
    if event.kind == "deletion_confirmed":
        answered = f"{event.node} answered {event.at} that the records below {event.offset} are deleted"
        log_starts = f"the logs of {silent}, {isr}, had never started there: a later leader may have the records again"
        return "deletion-unconfirmed", event.offset, answered, log_starts
    latest = event.kind == "latest_told"
    answer = "the latest offset" if latest else f"committed offsets of the group {event.details().get('group')}"
    return (
        "latest-unconfirmed" if latest else "offsets-unconfirmed",
        event.high_watermark,
        f"{event.node} told a client {answer} {event.at} in leader epoch {event.leader_epoch}, with the high watermark "
        f"{event.high_watermark}",
        f"{silent} had not fetched since the read began, {isr}: a later leader may have acknowledged more by then",
    )


HANDLERS: Mapping[str, TraceRowHandler] = {
    "became_leader": _became_leader,
    "isr_proposed": _isr_proposed,
    "isr_rejected": _isr_rejected,
    "latest_asked": _latest_asked,
    "latest_told": _latest_told,
    "offsets_told": _offsets_told,
    "deletion_confirmed": _deletion_confirmed,
}
