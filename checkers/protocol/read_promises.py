"""Promises about what a leader answers only once its ISR has confirmed it: the latest offset and committed offsets,
while no later leader can have acknowledged more, and DeleteRecords, so that no later leader has the records again. See
`checkers.protocol.checker`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN, ReplicaBatch
from checkers.protocol.state import (
    ClusterState,
    PartitionDecision,
    PartitionState,
    ReadAnswer,
    TraceRowHandler,
    integers,
    names,
)
from checkers.tables import TraceRow

_EARLIEST, _MAX_TIMESTAMP = -2, -3
"""The times by which ListOffsets asks for the earliest offset, and for the record with the largest timestamp."""
_ALL_COMMITTED: Final = -1
"""In place of an offset below which records are to be deleted."""
_SPECIAL: Final[Mapping[int, str]] = {_EARLIEST: "its earliest offset", _MAX_TIMESTAMP: "the newest record"}
"""The offset that each of these asks for, in the words of a finding."""


def _became_leader(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.proposals.pop(event.node, None)
    for kind in ("latest_told", "offsets_told"):
        partition.told_reads.pop((event.node, kind), None)
    for leader, follower in list(partition.confirmed_reads):
        if leader == event.node:
            del partition.confirmed_reads[leader, follower]


def _isr_proposed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    in_flight = changes_in_flight(partition, event)
    partition.proposals[event.node] = (_place(event), (*in_flight, frozenset(event.members)))


def _isr_rejected(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """The last proposal certainly changed nothing, if it is rolled back; otherwise it may still."""
    if event.details().get("rolled_back"):
        partition.proposals[event.node] = (_place(event), changes_in_flight(partition, event)[:-1])


def _place(event: TraceRow) -> tuple[int, int]:
    return event.leader_epoch, event.partition_epoch


def changes_in_flight(partition: PartitionState, event: TraceRow) -> tuple[frozenset[int], ...]:
    """The ISR changes whose outcome the event's leader does not know. A newer partition epoch settles all of them."""
    place, in_flight = partition.proposals.get(event.node, (_place(event), ()))
    return in_flight if place == _place(event) else ()


def _latest_asked(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    elsewhere = (int(node[1:]) for node, epoch in partition.role_epochs.items() if epoch > event.leader_epoch)
    partition.elsewhere[_read_of(event)] = frozenset(elsewhere)
    partition.reads_begun[event.node] = event.details().get("read")


def _fetch_answered(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    begun = partition.reads_begun.get(event.node, 0)
    partition.answered_reads[_connection_of(event)] = event.leader_epoch, begun


def _reads_confirmed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A follower's fetch confirms the reads that had begun when the last answer before it was sent to it: it was sent
    upon that, so on its connection and in its leader epoch."""
    read, follower = event.details()["read"], event.details()["replica"]
    partition.confirmed_reads[event.node, follower] = event.leader_epoch, read
    leader_epoch, begun = partition.answered_reads.get(_connection_of(event), (UNKNOWN, 0))
    if leader_epoch == event.leader_epoch and read <= begun:
        return
    replica = f"b{follower}"
    partition.report(
        event,
        "read-confirmed-early",
        UNKNOWN,
        f"a fetch of {replica} counted for {event.node} {event.at} as sent after read {read} of the latest offset had "
        f"begun, in leader epoch {event.leader_epoch}",
        f"on its connection the last answer to {replica} was of leader epoch {leader_epoch}, before which read {begun} "
        "had begun"
        if leader_epoch != UNKNOWN
        else f"nothing had been sent to {replica} on its connection since a read had begun",
    )


def _connection_of(event: TraceRow) -> tuple[str, object, object]:
    detail = event.details()
    return event.node, detail["replica"], detail["connection"]


def _read_of(event: TraceRow) -> tuple[str, int, object]:
    return event.node, event.leader_epoch, event.details().get("read")


def _latest_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    _answers_once(partition, event)
    if event.members:  # the leader at least, but in runs of earlier versions
        _answered(partition, event, frozenset(event.members))


def _offsets_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    _answers_once(partition, event)
    detail = event.details()
    if "confirmed" in detail:  # not in runs of earlier versions
        _answered(partition, event, frozenset(integers(detail, "confirmed")))


def _elected(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    if event.details().get("unclean"):
        partition.unclean_epoch = max(partition.unclean_epoch, event.leader_epoch)


def check_deletions_kept(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A broker that comes to lead has none of the records of which an earlier leader has answered that they are
    deleted, unless an unclean election has undone that, or its disk has."""
    start = partition.log_starts.get(event.node, 0)
    undone = [
        confirmed
        for confirmed in partition.confirmed_deletions
        if partition.unclean_epoch <= confirmed.leader_epoch < event.leader_epoch and confirmed.offset > start
    ]
    lost = cluster.lied(event.node, event.time_ns) or cluster.wiped(event.node, event.time_ns)
    if not undone or partition.created_again or lost:
        return
    answer = max(undone, key=lambda confirmed: confirmed.offset)
    partition.report(
        event,
        "deletion-undone",
        start,
        f"{event.node} came to lead in leader epoch {event.leader_epoch} {event.at}, with a log that starts at {start}",
        f"{answer.node} had answered in leader epoch {answer.leader_epoch} {answer.at} that the records below "
        f"{answer.offset} are deleted",
    )


def _answers_once(partition: PartitionState, event: TraceRow) -> None:
    """A read answers the request that has begun it, and no later one, for which it has begun too early."""
    told, read = partition.told_reads.setdefault((event.node, event.kind), {}), event.details().get("read")
    before = told.setdefault(read, event)
    if before is not event and isinstance(read, int) and read > 0:
        partition.report(
            event,
            "read-answers-twice",
            event.high_watermark,
            _told(event),
            f"it had answered another request {before.at} by the same read, {read}: that had begun before this one "
            "came, and a later leader may have acknowledged more since then",
        )


def _deletion_confirmed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.confirmed_deletions.append(event)
    deleted = (int(node[1:]) for node, start in partition.greatest_log_starts.items() if start >= event.offset)
    _answered(partition, event, frozenset(deleted))
    requests = partition.deletion_request
    since_ns = requests.begun_alone_at(event.time_ns) if requests is not None else None
    if since_ns is None:
        return
    moves = [each for each in partition.deletions if each.node == event.node and each.time_ns >= since_ns]
    if moves and event.offset < moves[0].offset:
        asked = f"it had moved its log's start to {moves[0].offset} for that {moves[0].at}, which it was to wait for"
        partition.report(event, "deletion-unconfirmed", event.offset, _deleted(event), asked)


def _deletion_refused(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    if _ALL_COMMITTED <= event.offset <= event.high_watermark:
        what = "all that is committed" if event.offset == _ALL_COMMITTED else f"all below {event.offset}"
        partition.report(
            event,
            "deletion-refused-wrongly",
            event.offset,
            f"{event.node}, asked to delete {what}, answered {event.at} that this is out of range",
            f"its high watermark was {event.high_watermark}, and DeleteRecords may ask for any offset up to there",
        )


def _check_fetched(partition: PartitionState, event: TraceRow, confirmed: frozenset[int]) -> None:
    """Whoever counts as having confirmed a read has fetched since it began, as was traced."""
    read = event.details().get("read")
    if not isinstance(read, int) or event.node not in partition.reads_begun:
        return  # of an earlier version, or of a deletion
    heard = {follower: partition.confirmed_reads.get((event.node, follower)) for follower in confirmed - {event.leader}}
    silent = frozenset(
        follower for follower, last in heard.items() if last is None or last[0] != event.leader_epoch or last[1] < read
    )
    if silent:
        partition.report(event, *_unconfirmed(event, names(silent), f"of which no fetch had confirmed read {read}"))


def _answered(partition: PartitionState, event: TraceRow, confirmed: frozenset[int]) -> None:
    _check_fetched(partition, event, confirmed)
    proposed = frozenset().union(*changes_in_flight(partition, event))
    elsewhere = partition.elsewhere.get(_read_of(event), frozenset())
    partition.reads.append(ReadAnswer(event, confirmed, proposed, elsewhere))


def check_deletion(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """DeleteRecords waits for the replicas on active brokers, too, in the ISR or not."""
    replicas = [decision.replicas for decision in partition.decisions.get(event.partition_epoch, ())]
    kept = []
    for replica in sorted(frozenset.intersection(*replicas)) if replicas else ():
        standing = cluster.standing_at(replica, cluster.applied.get(event.node, UNKNOWN))
        start = partition.greatest_log_starts.get(f"b{replica}", 0)
        if standing is not None and standing.active and start < event.offset and replica != event.leader:
            kept.append(replica)
    if kept and not partition.created_again:
        silent = names(frozenset(kept))
        partition.report(event, *_unconfirmed(event, silent, "on brokers that it knew as active"))


def check_reads(partition: PartitionState) -> None:
    """After the last event: every answer was confirmed by the ISR that the leader knew, in the partition epoch that it
    names, and by the members that it had proposed.

    Where no decision of that partition epoch is in the trace, nothing is said about that. A member that was in a later
    leader epoch when the read began has sent its last fetch to this leader before. And with fewer than
    `min.insync.replicas` in the ISR nobody can confirm: a member of the ELR may lead, unknown to this leader. The same
    goes for DeleteRecords.
    """
    for read in partition.reads:
        event = read.event
        if left := read.confirmed & read.elsewhere:
            why = "which were" if len(left) > 1 else "which was"
            partition.report(event, *_unconfirmed(event, names(left), f"{why} in a later leader epoch by then"))
        known = [
            decision
            for decision in partition.decisions.get(event.partition_epoch, ())
            if (decision.leader, decision.leader_epoch) == (event.leader, event.leader_epoch)
        ]
        if not known:
            continue
        _check_minimum(partition, event, known)
        members = frozenset.intersection(*(decision.isr for decision in known)) | read.proposed
        silent = members - read.confirmed - {event.leader}
        if silent:
            isr = f"of the ISR {names(members)} as it knew and had proposed it"
            partition.report(event, *_unconfirmed(event, names(silent), isr))


def _check_minimum(partition: PartitionState, event: TraceRow, known: Sequence[PartitionDecision]) -> None:
    if any(len(decision.isr) >= decision.min_isr for decision in known):
        return
    deletes = event.kind == "deletion_confirmed"
    may = "have the records again" if deletes else "have acknowledged more by then"
    partition.report(
        event,
        "deletion-below-minimum" if deletes else "read-below-minimum",
        event.offset if deletes else event.high_watermark,
        f"{_deleted(event) if deletes else _told(event)} with the ISR {names(known[0].isr)}",
        f"min.insync.replicas asks for {known[0].min_isr}: a member of the ELR may lead, and {may}",
    )


def _told(event: TraceRow) -> str:
    latest = event.kind == "latest_told"
    answer = "the latest offset" if latest else f"committed offsets of the group {event.details().get('group')}"
    return (
        f"{event.node} told a client {answer} {event.at} in leader epoch {event.leader_epoch}, with the high watermark "
        f"{event.high_watermark}"
    )


def _deleted(event: TraceRow) -> str:
    return f"{event.node} answered {event.at} that the records below {event.offset} are deleted"


def _unconfirmed(event: TraceRow, silent: str, isr: str) -> tuple[str, int, str, str]:
    """The kind of the finding, the offset that it is about, and its lines."""
    if event.kind == "deletion_confirmed":
        log_starts = f"the logs of {silent}, {isr}, had never started there: a later leader may have the records again"
        return "deletion-unconfirmed", event.offset, _deleted(event), log_starts
    return (
        "latest-unconfirmed" if event.kind == "latest_told" else "offsets-unconfirmed",
        event.high_watermark,
        _told(event),
        f"{silent} had not fetched since the read began, {isr}: a later leader may have acknowledged more by then",
    )


def _offset_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A leader answers for the earliest offset where its log starts; for a time with the first record of a batch that
    is not older, and for the largest timestamp with the first one that has it, if that is below its high watermark, and
    else with none."""
    start, epoch_start = partition.log_starts.get(event.node, 0), partition.epoch_starts.get(event.node, UNKNOWN)
    if event.offset < 0 and event.high_watermark < epoch_start:
        told = f"{event.node} answered {event.at} that it has no record not older than {event.details()['asked']} ms"
        unknown = (
            f"its high watermark was {event.high_watermark}, and its leader epoch starts at {epoch_start}: what lies "
            "between may be committed"
        )
        partition.report(event, "none-told-early", event.high_watermark, told, unknown)
    contradiction = _contradiction(partition, event, start)
    if contradiction is None:
        return
    detail = event.details()
    what = _SPECIAL.get(detail["asked"], f"the first offset not older than {detail['asked']} ms")
    told = (
        f"{event.node} answered that {what} is {event.offset}, of leader epoch {detail['epoch']} and "
        f"{detail['timestamp']} ms, {event.at}"
    )
    partition.report(event, "offset-misstated", event.offset, told, f"{contradiction}; its log starts at {start}")


def _contradiction(partition: PartitionState, event: TraceRow, start: int) -> str | None:
    """The right answer of a leader whose log starts at `start`; None if it gave that."""
    detail = event.details()
    asked, log = detail["asked"], partition.log(event.node)
    if asked == _EARLIEST:
        expected, rightly = f"its log starts at {start}", event.offset == start
    else:
        batches = partition.batches_of(event.node).from_offset(start)
        if batches is None:
            return None
        possible = _newest(batches, start) if asked == _MAX_TIMESTAMP else _not_older(batches, start, asked)
        readable = [batch for batch in possible if batch.base < event.high_watermark]
        rightly = (
            any(_is_of(event, batch, start, asked) for batch in readable)
            if event.offset >= 0
            else possible != readable or not possible or possible[0].base < start
        )
        places = " or ".join(f"from {batch.base} to {batch.end - 1}" for batch in possible) or "in no batch"
        expected = f"that record stands {places}, its high watermark is {event.high_watermark}"
    where = detail["epoch"]
    if rightly and start <= event.offset < len(log) and UNKNOWN not in (log[event.offset], where):
        expected, rightly = f"the record there is of epoch {log[event.offset]}", where == log[event.offset]
    return None if rightly else expected


def _not_older(batches: Sequence[ReplicaBatch], start: int, asked_ms: int) -> list[ReplicaBatch]:
    """The batches with the first record from `start` on that is not older: of the batch in which a log starts the
    records below it may be the only ones."""
    not_older = [batch for batch in batches if batch.timestamp_ms >= asked_ms]
    return not_older[: 1 + bool(not_older and not_older[0].base < start)]


def _newest(batches: Sequence[ReplicaBatch], start: int) -> list[ReplicaBatch]:
    """The batches with the first record from `start` on that has the largest timestamp: likewise."""
    cut = [batch for batch in batches if batch.base < start]
    whole = [batch for batch in batches if batch.base >= start]
    newest = max(whole, key=lambda batch: batch.timestamp_ms, default=None)
    if newest is None:
        return cut
    return [*(batch for batch in cut if batch.timestamp_ms >= newest.timestamp_ms), newest]


def _is_of(event: TraceRow, batch: ReplicaBatch, start: int, asked: int) -> bool:
    """Whether the answer is of a record of this batch; of the one with the largest timestamp, if it has that."""
    told_ms, most_ms = event.details()["timestamp"], batch.timestamp_ms
    newest = asked == _MAX_TIMESTAMP and batch.base >= start
    timely = told_ms == most_ms if newest else asked <= told_ms <= most_ms
    return timely and max(start, batch.base) <= event.offset < batch.end


def _consumer_moved(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A consumer that gives the epoch of its last record is told where its log and the leader's part. An answer
    OFFSET_OUT_OF_RANGE is not enough: it would go by its policy, and skip records or read all of them again."""
    detail, log, start = event.details(), partition.log(event.node), partition.log_starts.get(event.node, 0)
    told_range, last_epoch = detail["first"] < 0, detail["last_epoch"]
    is_beyond = event.offset > event.log_end == len(log)
    if told_range and is_beyond and start < len(log) and UNKNOWN < log[start] <= last_epoch:
        partition.report(
            event,
            "divergence-untold",
            event.log_end,
            f"{event.node} told a consumer {event.at} that {event.offset} is out of range; it had said that the record "
            f"before was of leader epoch {last_epoch}",
            f"its log starts with epoch {log[start]}, and so it knows where both may part: at {event.log_end} at most",
        )


HANDLERS: Mapping[str, TraceRowHandler] = {
    "became_leader": _became_leader,
    "partition_changed": _elected,
    "isr_proposed": _isr_proposed,
    "isr_rejected": _isr_rejected,
    "latest_asked": _latest_asked,
    "fetch_answered": _fetch_answered,
    "reads_confirmed": _reads_confirmed,
    "latest_told": _latest_told,
    "offsets_told": _offsets_told,
    "offset_told": _offset_told,
    "deletion_confirmed": _deletion_confirmed,
    "deletion_refused": _deletion_refused,
    "consumer_moved": _consumer_moved,
}
