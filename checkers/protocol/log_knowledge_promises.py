"""Promises about what a replica knows of its own log: its epoch cache, and the state of its producers.
See `checkers.protocol.checker`.

Both follow from the log alone, on leaders and followers, but for the producers that have expired, which each replica
tells (`checkers.protocol.expiration_promises`): it knows none of their earlier batches any more. Where it opens its log
or cuts it, its state is made anew from an older one, which may be from before or after that, and the batches behind.

A replica tells of both when it opens its log, cuts it, or begins to lead; and a leader shows what it knows of a
producer with each batch that it appends, refuses, or takes for a retry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from checkers.evidence import SEQUENCE_MODULUS, CheckSettings
from checkers.protocol.batches import BATCHES_KEPT, UNKNOWN, ReplicaBatch, ReplicaBatches
from checkers.protocol.state import ClusterRowHandler, ClusterState, PartitionState, TraceRowHandler
from checkers.tables import TraceRow

_OUT_OF_ORDER, _EARLIER_EPOCH = "out_of_order_sequence_number", "invalid_producer_epoch"


class CachedEpoch(NamedTuple):
    """One entry of an epoch cache."""

    epoch: int
    start: int
    """Offset of its first record."""


def epoch_cache_of(log: list[int], start: int = 0) -> list[CachedEpoch] | None:
    """The epoch cache of a log that has these leader epochs by offset and starts at `start`, with that of the record
    before, if it is known; None if one of its own records is not known."""
    entries: list[CachedEpoch] = []
    first = start if is_before_unknown(log, start) else max(start - 1, 0)
    for offset in range(first, len(log)):
        if log[offset] == UNKNOWN:
            return None
        if not entries or entries[-1].epoch != log[offset]:
            entries.append(CachedEpoch(log[offset], offset))
    return entries


def is_before_unknown(log: list[int], start: int) -> bool:
    """Whether a log that starts at `start` has deleted a record right before whose leader epoch is not known."""
    return start > len(log) or (start > 0 and log[start - 1] == UNKNOWN)


def epoch_cache_instead(
    entries: list[CachedEpoch], log: list[int], start: int, entered: CachedEpoch | None
) -> list[CachedEpoch] | None:
    """The epoch cache that a log should have in place of `entries`; None where these are right, or it is not known. A
    new leader has `entered` its epoch. The epoch of the last deleted record may be any if it is not known."""
    if entries and entries[0].start == start - 1 and is_before_unknown(log, start):
        log = [*log[: start - 1], entries[0].epoch, *log[start:]]
    expected = epoch_cache_of(log, start)
    if expected is None:
        return None
    if entered is not None and (not expected or expected[-1].epoch != entered.epoch):
        expected.append(entered)
    return None if entries == expected else expected


def truncation_end(log: list[int], start: int, answer: CachedEpoch) -> int | None:
    """Where a log that has these leader epochs by offset, and starts at `start`, is to be cut after a leader's `answer`
    of a diverging epoch and where that ends (docs/protocol.md, section 1); None if one of its records is not known."""
    entries = epoch_cache_of(log, start)
    if entries is None:
        return None
    shared = [entry.epoch for entry in entries if entry.epoch <= answer.epoch]
    if not shared:
        return min(answer.start, len(log))
    own_end = next((entry.start for entry in entries if entry.epoch > answer.epoch), len(log))
    return own_end if shared[-1] < answer.epoch else min(own_end, answer.start)


# ---- what a replica tells --------------------------------------------------------------------------------------------


def check_knowledge(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A log was opened or cut, or a leader begins with it: its epoch cache and its producers are those of its records.
    A disk that lied about fsync may have older ones, by which batches are then taken, too; and a log that comes back
    empty may have begun anew."""
    detail, end = event.details(), event.end_after
    lied, emptied = cluster.lied(event.node, event.time_ns), _is_emptied(cluster, partition, event)
    state = detail.get("producers")
    if isinstance(state, dict) and event.kind in ("log_recovered", "truncated"):
        _take_state(partition, event, state, detail.get("batches", {}))
    if emptied or (lied and event.kind == "log_recovered"):
        partition.replica_batches[event.node] = ReplicaBatches(end, end)
        partition.snapshots.pop(event.node, None)
    if lied:
        return
    if "log_start" in detail:
        _check_empty(cluster, partition, event, detail)
        return
    if end > len(partition.log(event.node)):
        return
    start = max(event.offset, 0) if event.kind == "log_recovered" else partition.log_starts.get(event.node, 0)
    if isinstance(entries := detail.get("epochs"), list):
        _check_epoch_cache(partition, event, [CachedEpoch(*entry) for entry in entries], start)
    if "last_segment" in detail:
        _check_last_segment(partition, event, *detail["last_segment"])
    if isinstance(state, dict) and not emptied:
        if partition.batches_of(event.node).unknown_below <= start:
            _check_producers(partition, event, state, start)
            _check_batches(partition, event, detail.get("batches", {}), start)
            _check_times(partition, event, detail.get("producer_times", {}), start)
        whole = event.node in partition.opened and event.node not in partition.removed
        if event.kind == "log_recovered" and whole:
            _check_kept(partition, event, state)


def _is_emptied(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> bool:
    """Whether a log comes back without a record, and may have begun anew: after a loss it may have ended below its
    start; with a start below the former one, or above its end, it was killed while it began anew."""
    if event.kind != "log_recovered" or event.log_end > max(event.offset, 0):
        return False
    if not partition.log_starts.get(event.node, 0) <= event.log_end <= len(partition.log(event.node)):
        return True
    return cluster.lost_data(event.node, partition.opened.get(event.node, 0), event.time_ns)


def _take_state(
    partition: PartitionState, event: TraceRow, state: Mapping[str, int], told: Mapping[str, list[list[int]]]
) -> None:
    """A state that was made anew has of a producer that had expired what it says, if it can have that."""
    held, end = partition.batches_of(event.node), event.end_after
    for producer in held.expired_at:
        last, places = state.get(str(producer)), told.get(str(producer))
        begins = held.beginnings(producer, end)
        held.expired_at[producer] = [offset for offset in held.expired_at[producer] if offset <= end]
        held.forget_below(producer, 0)
        for begin in begins:
            batches = held.state_of(producer, begin, end)
            fits = places is None or [[batch.base, batch.end] for batch in batches] == places
            if fits and last == (batches[-1].last_sequence if batches else None):
                held.forget_below(producer, begin)
                break


def _check_empty(cluster: ClusterState, partition: PartitionState, event: TraceRow, detail: Mapping[str, Any]) -> None:
    """A log that begins anew has no producers, and of epochs at most that of the record before. A follower that begins
    where its leader's log starts has asked for it."""
    start, leader = event.offset, f"b{event.leader}"
    if detail["log_start"] != start:
        return
    emptied = f"it has no record, and begins at {start}"
    if detail.get("producers"):
        knows = f"{emptied}; of producers it has {detail['producers']}"
        partition.report(event, "producer-state-wrong", start, _what_happened(event), knows)
    entries = [CachedEpoch(*entry) for entry in detail.get("epochs", ())]
    known = partition.log(leader) if partition.has_log(leader) else []
    if is_before_unknown(known, start) or start == 0:
        right = not entries or entries == [CachedEpoch(entries[0].epoch, start - 1)]
    else:
        has_asked = start > event.log_end and event.node in cluster.cuts_by_answers
        right = entries == [CachedEpoch(known[start - 1], start - 1)] or not (entries or has_asked)
        emptied += f", behind a record of epoch {known[start - 1]}"
    if not right:
        knows = f"{emptied}; its epoch cache has {_epochs(entries)}"
        partition.report(event, "epoch-cache-wrong", start, _what_happened(event), knows)


def check_snapshot(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """The snapshot in place of the batches before the first segment has the last one of each producer there, and no
    later one."""
    detail, held = event.details(), partition.batches_of(event.node)
    if cluster.lied(event.node, event.time_ns) or "base" not in detail:
        return
    base, state = detail["base"], detail["producers_before"]
    partition.snapshots[event.node] = state
    for producer in sorted({*held.of_producer, *map(int, state)}):
        known = state.get(str(producer))
        states = [held.state_of(producer, begin, base) for begin in held.beginnings(producer, base)]
        if known in [each[-1].last_sequence if each else None for each in states]:
            continue
        if batches := states[-1]:
            ends = f"ends with sequence {batches[-1].last_sequence}"
        elif not held.unknown_below:
            ends = "is none"
        else:
            continue
        partition.report(
            event,
            "producer-state-wrong",
            base,
            f"{_what_happened(event)}, with the state of the producers before {base}, where its first segment begins",
            f"the last batch of producer id {producer} below {base} {ends}; the state has "
            f"{'nothing of it' if known is None else f'sequence {known}'}",
        )


def _check_kept(partition: PartitionState, event: TraceRow, state: Mapping[str, int]) -> None:
    """The producers of deleted batches are known after a restart as before, but for those that have expired: a retry of
    such a batch is one still."""
    expired = {str(producer) for producer in partition.batches_of(event.node).expired_at}
    for producer in sorted(partition.snapshots.get(event.node, {}).keys() - state.keys() - expired):
        partition.report(
            event,
            "producer-state-wrong",
            event.log_end,
            _what_happened(event),
            f"it had kept the state of producer id {producer}, whose batches it had deleted; now it has nothing of it",
        )


def _check_epoch_cache(partition: PartitionState, event: TraceRow, entries: list[CachedEpoch], start: int) -> None:
    entered = CachedEpoch(event.leader_epoch, event.offset) if event.kind == "became_leader" else None
    if entered is not None and entered.epoch not in [entry.epoch for entry in entries]:
        return  # leader-epoch-not-entered
    if event.kind == "log_start_written" and entries and entries[-1].start == event.log_end:
        entries = entries[:-1]  # of a leader without a record
    expected = epoch_cache_instead(entries, partition.log(event.node)[: event.end_after], start, entered)
    if expected is not None:
        wrong = min(entry.start for entry in {*entries} ^ {*expected})
        has = f"its epoch cache has {_epochs(entries)}; its records are of {_epochs(expected)}"
        partition.report(event, "epoch-cache-wrong", wrong, _what_happened(event), has)


def _check_producers(partition: PartitionState, event: TraceRow, state: Mapping[str, int], start: int) -> None:
    """The last sequence number of each producer, be its batch deleted or not."""
    held = partition.batches_of(event.node)
    for producer in sorted({*held.of_producer, *map(int, state)}):
        begin, known = held.forgotten_below.get(producer, 0), state.get(str(producer))
        batches = held.state_of(producer, begin, event.end_after)
        if batches and known != batches[-1].last_sequence:
            ends = f"the last batch of producer id {producer} in its log, at {batches[-1].base}, ends with sequence "
            ends += f"{batches[-1].last_sequence}"
        elif not batches and known is not None and begin:
            ends = f"its log has no batch of producer id {producer} since that has expired, at {begin}"
        elif not batches and known is not None and start == 0:
            ends = f"its log has no batch of producer id {producer}"
        else:
            continue
        knows = f"the state of its producers has {'nothing of it' if known is None else f'sequence {known}'}"
        partition.report(event, "producer-state-wrong", event.end_after, _what_happened(event), f"{ends}; {knows}")


def _check_batches(
    partition: PartitionState, event: TraceRow, state: Mapping[str, list[list[int]]], start: int
) -> None:
    """The last five batches of each producer, of its last producer epoch: where each begins and ends. Those below the
    start may be known or not. Below its start a log may hold what its leader's does not: where a batch came a second
    time the first copy counts, and nothing is said."""
    held = partition.batches_of(event.node)
    for producer, known in sorted(state.items()):
        if start > 0 and held.repeats(int(producer)):
            continue
        batches = held.state_of(int(producer), max(start, held.forgotten_below.get(int(producer), 0)), event.end_after)
        expected = [[batch.base, batch.end] for batch in batches]
        told = [[base, end] for base, end in known if base >= start]
        if told != expected or len(known) > BATCHES_KEPT:
            partition.report(
                event,
                "producer-state-wrong",
                event.end_after,
                _what_happened(event),
                f"the last batches of producer id {producer} in its log stand at {_places(expected)}; the state of its "
                f"producers has them at {_places(known)}",
            )


def _check_times(partition: PartitionState, event: TraceRow, times: Mapping[str, int], start: int) -> None:
    """A producer expires by the time of its newest batch. Where one came a second time the first copy counts."""
    held = partition.batches_of(event.node)
    for producer, time_ms in sorted(times.items()):
        begin = max(start, held.forgotten_below.get(int(producer), 0))
        batches = held.state_of(int(producer), begin, event.end_after)
        if not batches or (start > 0 and held.repeats(int(producer))):
            continue
        batch = batches[-1]
        if batch.timestamp_ms in (UNKNOWN, time_ms):
            continue
        partition.report(
            event,
            "producer-state-wrong",
            event.end_after,
            _what_happened(event),
            f"the last batch of producer id {producer} in its log, at {batch.base}, is of {batch.timestamp_ms} ms",
            f"the state of its producers has {time_ms} ms, from which it expires",
        )


def _check_last_segment(partition: PartitionState, event: TraceRow, base: int, largest_ms: int) -> None:
    """By the largest timestamp of a segment it is searched for a time, and deleted by its age."""
    held, end = partition.batches_of(event.node), event.end_after
    batches = held.from_offset(base) if end <= held.end else None
    stamps = [batch.timestamp_ms for batch in batches or () if batch.end <= end]
    if stamps and largest_ms != max(stamps):
        partition.report(
            event,
            "segment-time-wrong",
            base,
            f"{_what_happened(event)}; the largest timestamp in its last segment, which begins at {base}, is "
            f"{largest_ms} ms for it",
            f"the largest of its batches there is {max(stamps)} ms",
        )


def _places(batches: list[list[int]]) -> str:
    return ", ".join(f"{base} to {end - 1}" for base, end in batches) or "no offset"


def _what_happened(event: TraceRow) -> str:
    return {
        "truncated": f"{event.node} cut its log {event.log_end} → {event.offset} {event.at}",
        "log_recovered": f"{event.node} opened its log, which ends at {event.log_end}, {event.at}",
        "log_start_written": f"{event.node} moved its log's start to {event.offset} {event.at}",
    }.get(event.kind, f"{event.node} became leader in leader epoch {event.leader_epoch} {event.at}")


def _epochs(entries: list[CachedEpoch]) -> str:
    return ", ".join(f"epoch {entry.epoch} from {entry.start} on" for entry in entries) or "no epoch"


def _truncated(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    """A replica cuts all that its leader's answer rules out. It may cut more: batches are cut whole."""
    answer, log = event.details().get("answer"), partition.log(event.node)
    if isinstance(answer, list) and event.log_end == len(log):
        epoch, end = answer
        most = truncation_end(log, partition.log_starts.get(event.node, 0), CachedEpoch(epoch, end))
        if most is not None and event.offset > most:
            partition.report(
                event,
                "truncation-incomplete",
                most,
                f"{_what_happened(event)}: its leader's log has epoch {epoch} up to {end}, and nothing later that both "
                "may share",
                f"its own records of epoch {epoch}, or of the one before it, that the leader may have end at {most}",
            )
    _resized(partition, event, settings)


def _resized(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    begins_anew = event.kind == "truncated" and "log_start" in event.details()
    if begins_anew or (event.kind == "log_recovered" and event.log_end == 0):
        partition.snapshots.pop(event.node, None)
        partition.replica_batches[event.node] = ReplicaBatches(event.end_after, event.end_after)
    elif event.end_after >= 0:
        partition.batches_of(event.node).resize(event.end_after)


# ---- what a leader does with a batch ---------------------------------------------------------------------------------


def _appended(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A leader appends no retry, and of a producer that its log has only the batch that follows."""
    batch = ReplicaBatch.of(event)
    if event.node == f"b{event.leader}" and batch.first_sequence >= 0 and batch.producer >= 0:
        _check_appended(partition, event, batch)
    partition.batches_of(event.node).append(batch)


def _check_appended(partition: PartitionState, event: TraceRow, batch: ReplicaBatch) -> None:
    kept = _kept(partition, event, batch.producer)
    copies = [each for each in kept if each.numbers == batch.numbers]
    appended = f"{event.node} appended {_numbered(batch)} at {event.offset} {event.at}"
    if copies:
        has = f"its log has this batch at {copies[0].base}, one of the last {BATCHES_KEPT} of its producer"
        partition.report(event, "batch-appended-twice", event.offset, appended, has)
    elif kept and not _follows(batch, kept[-1]):
        last = f"the last batch of the producer in its log is {_numbered(kept[-1])}, at {kept[-1].base}"
        partition.report(event, "batch-out-of-sequence", event.offset, appended, last)


def _acknowledged(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A batch that a leader takes for a retry stands in its log, where it says."""
    if '"retry"' not in event.detail:
        return
    detail, held, start = event.details(), partition.batches_of(event.node), partition.log_starts.get(event.node, 0)
    if held.unknown_below > start or event.offset < start:
        return
    producer, sequence, _crc = detail["retry"]
    epoch = int(detail.get("producer_epoch", 0))
    there = [batch for batch in held.of_producer.get(producer, ()) if batch.base == event.offset]
    if not any((batch.producer_epoch, batch.first_sequence) == (epoch, sequence) for batch in there):
        retry = ReplicaBatch(event.offset, event.log_end, producer, epoch, sequence)
        took = f"{event.node} took {_numbered(retry)} for a retry, and acknowledged it at {event.offset} {event.at}"
        has = f"its log has {_numbered(there[0])} there" if there else "its log has no batch of this producer there"
        partition.report(event, "retry-without-batch", event.offset, took, has)


def _refused(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A batch is refused as out of order if it neither is a retry nor follows the last one of its producer, and as of
    an earlier producer epoch if it is; one of a producer without any batch is not."""
    detail = event.details()
    error = detail["error"]
    if error not in (_OUT_OF_ORDER, _EARLIER_EPOCH):
        return
    batch = ReplicaBatch(UNKNOWN, UNKNOWN, detail["producer_id"], detail.get("producer_epoch", 0), detail["sequence"])
    kept = _kept(partition, event, batch.producer)
    copies = [each for each in kept if each.numbers[:2] == batch.numbers[:2]]
    if copies:
        why = f"its log has this batch at {copies[0].base}, one of the last {BATCHES_KEPT} of its producer: a retry"
    elif kept and _follows(batch, kept[-1]):
        why = f"it follows the last batch of the producer in its log, at {kept[-1].base}"
    elif kept and (error == _EARLIER_EPOCH) is not (batch.producer_epoch < kept[-1].producer_epoch):
        why = f"the last batch of the producer in its log, at {kept[-1].base}, is {_numbered(kept[-1])}"
    elif _has_none(partition, event.node, batch.producer):
        why = "its log has no batch of this producer, and begins at 0, or none since that has expired"
    else:
        return
    refused = f"{event.node} refused {_numbered(batch)} with {error} {event.at}"
    partition.report(event, "batch-refused-wrongly", UNKNOWN, refused, why)


def _has_none(partition: PartitionState, node: str, producer: int) -> bool:
    """Whether a log has no batch of a producer: all of it is known, or all since the producer has expired."""
    held = partition.batches_of(node)
    begin = held.forgotten_below.get(producer, 0)
    return (
        (begin > 0 or not partition.log_starts.get(node, 0))
        and held.unknown_below <= begin
        and not held.state(producer)
    )


def _kept(partition: PartitionState, event: TraceRow, producer: int) -> list[ReplicaBatch]:
    """The batches in the leader's log, or deleted from it, with which one of this producer is compared: the last of its
    last producer epoch; none where they are not known."""
    held, start = partition.batches_of(event.node), partition.log_starts.get(event.node, 0)
    return [] if held.unknown_below > start else held.state(producer)


def _follows(batch: ReplicaBatch, last: ReplicaBatch) -> bool:
    if batch.producer_epoch == last.producer_epoch:
        return batch.first_sequence == (last.last_sequence + 1) % SEQUENCE_MODULUS
    return batch.producer_epoch > last.producer_epoch and batch.first_sequence == 0


def _numbered(batch: ReplicaBatch) -> str:
    return f"sequence {batch.first_sequence} of producer id {batch.producer} in producer epoch {batch.producer_epoch}"


def _removed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.snapshots.pop(event.node, None)


HANDLERS: Mapping[str, TraceRowHandler] = {
    "resigned": _removed,
    "appended": _appended,
    "truncated": _truncated,
    "log_recovered": _resized,
    "became_leader": _resized,
    "acknowledged": _acknowledged,
    "append_refused": _refused,
}
CLUSTER_HANDLERS: Mapping[str, ClusterRowHandler] = dict.fromkeys(
    ("log_recovered", "truncated", "became_leader", "log_start_written"), check_knowledge
)
