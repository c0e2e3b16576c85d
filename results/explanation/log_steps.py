"""Broken steps of one replica's log: what it fetched, cut, appended and knows about its records.

At the turning points of a log the trace has its epoch cache and its producers' last sequence numbers. It also has the
fetch that a leader took for a position, and the answer upon which a follower truncated. Each is compared with the
records that the log holds at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from checkers.evidence import SEQUENCE_MODULUS
from checkers.protocol.log_knowledge_promises import CachedEpoch, epoch_cache_instead, epoch_cache_of
from checkers.tables import TraceRow
from results.explanation.event_facts import batch_of
from results.explanation.replay import UNKNOWN, BatchCopy, PartitionReplay, ReplicaView
from results.explanation.story import Step, StepKind, brokers, span

_NEVER_EXPIRES_MS: Final = 600_000
"""A log that forgets idle producers no sooner than this forgets none during a run."""


def end_of_epoch(entries: list[CachedEpoch], log_end: int, epoch: int) -> tuple[int, int]:
    """Where `epoch`, or the greatest one below it, ends: the lookup of a leader epoch cache."""
    above = [start for number, start in entries if number > epoch]
    known = [number for number, _ in entries if number <= epoch]
    if not entries or (not above and known[-1] != epoch):
        return UNKNOWN, UNKNOWN
    return (known[-1] if known else epoch), (above[0] if above else log_end)


def truncation_of(entries: list[CachedEpoch], log_end: int, epoch: int, end: int) -> int:
    """Where a log with these epochs is truncated upon the answer that `epoch` ends at `end` in the leader's."""
    own_epoch, own_end = end_of_epoch(entries, log_end, epoch)
    return min(log_end, end if own_end == UNKNOWN else own_end if own_epoch != epoch else min(own_end, end))


def _knowledge(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """Epoch cache and producer state of a log that was truncated or recovered, or that a new leader begins with."""
    detail, replica = event.details(), state.replica(event.node)
    end = event.end_after
    undone = event.kind == "log_recovered" and not detail.get("clean") and replica.cut_to < end
    if "epochs" not in detail or "log_start" in detail or end > len(replica.log) or undone:
        return
    did = {
        "truncated": f"{event.node} cut its log {event.log_end} → {event.offset}",
        "log_recovered": f"{event.node} opened its log, which ends at {end}",
    }.get(event.kind, f"{event.node} became leader in epoch {event.leader_epoch}")
    start = max(event.offset, 0) if event.kind == "log_recovered" else replica.log_start
    cached = [CachedEpoch(int(epoch), int(first)) for epoch, first in detail["epochs"]]
    entered = CachedEpoch(event.leader_epoch, event.offset) if event.kind == "became_leader" else None
    expected = epoch_cache_instead(cached, replica.log[:end], start, entered)
    if expected is not None:
        wrong = min(first for _, first in set(cached) ^ set(expected))
        yield Step(
            StepKind.EPOCH_CACHE_CONTRADICTS_LOG,
            event.time_ns,
            event.node,
            f"{did}, and its epoch cache has {_cache(cached)}, where its log has {_cache(expected)}: its fetches and "
            "its answers to them name the wrong epochs from now on",
            wrong,
        )
    if detail.get("producer_expiration_ms", _NEVER_EXPIRES_MS) >= _NEVER_EXPIRES_MS:
        yield from _producers(replica, event, range(start, end), did, detail["producers"])


def _cache(entries: list[CachedEpoch]) -> str:
    return "{" + ", ".join(f"epoch {epoch} from {first}" for epoch, first in entries) + "}"


def _producers(
    replica: ReplicaView, event: TraceRow, offsets: range, did: str, known: Mapping[str, int]
) -> Iterator[Step]:
    """The producer state against the batches at these offsets. Of batches below the log start it may be lost with the
    log itself, and behind a batch that the trace does not have, as of a process that was killed when it had written it,
    nothing is said."""
    last: dict[int, tuple[int, int]] = {}
    for (producer, sequence, _), copy in replica.batches.items():
        if copy.offset in offsets and copy.end <= offsets.stop and copy.offset >= last.get(producer, (-1, 0))[0]:
            last[producer] = copy.offset, (sequence + copy.end - copy.offset - 1) % SEQUENCE_MODULUS
    for producer, (offset, sequence) in sorted(last.items()):
        if known.get(str(producer)) == sequence or UNKNOWN in replica.log[offset : offsets.stop]:
            continue
        knows = f"{known[str(producer)]} for its last one" if str(producer) in known else "nothing of it"
        yield Step(
            StepKind.PRODUCER_STATE_CONTRADICTS_LOG,
            event.time_ns,
            event.node,
            f"{did}, and its producer state is not that of its log: of producer id {producer} its log holds sequence "
            f"{sequence} at {offset}, the state has {knows}, so a retry is taken for new, or the next batch for a gap",
            offset,
        )
        return


# ---- fetches ---------------------------------------------------------------------------------------------------------


def _fetch_accepted(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    detail, leader = event.details(), state.replica(event.node)
    name, position, epoch = f"b{detail['replica']}", event.offset, detail["last_epoch"]
    follower = state.replicas.get(name)

    def step(kind: StepKind, text: str, first: int) -> Step:
        return Step(kind, event.time_ns, event.node, text, first)

    if detail["requested"] not in (UNKNOWN, event.leader_epoch):
        held = f"; the log of {name} ends at {len(follower.log)} now" if follower is not None else ""
        yield step(
            StepKind.FETCH_OF_OTHER_EPOCH_ACCEPTED,
            f"{event.node} took a fetch of {name} from {position}, sent in leader epoch {detail['requested']}, for its "
            f"position in leader epoch {event.leader_epoch}, and did not refuse it{held}",
            0,
        )
        return
    if not 0 < position or (epoch < 0 and not state.fetches_give_epochs):
        return
    held_epoch = _epoch_at(follower, position - 1)
    theirs = _epoch_at(leader, position - 1)
    if held_epoch not in (UNKNOWN, epoch) and state.leaders.get(epoch) != name:
        yield step(
            StepKind.FETCH_GAVE_WRONG_EPOCH,
            f"{name} fetched from {position} with {_given(epoch)} as the epoch of the record before, which is of epoch "
            f"{held_epoch} in its log, and its leader {event.node}, which has one of epoch {theirs} there, accepted "
            "it: so a divergence goes unnoticed",
            position - 1,
        )
    elif epoch < 0:
        return
    elif theirs not in (UNKNOWN, epoch) or position > len(leader.log):
        there = f"holds a record of epoch {theirs}" if theirs != UNKNOWN else f"ends at {len(leader.log)}"
        yield step(
            StepKind.DIVERGING_FETCH_ACCEPTED,
            f"{event.node} accepted the fetch of {name} from {position} behind a record of epoch {epoch}, where its "
            f"own log {there}: the logs diverge, and it did not answer so (its high watermark is "
            f"{leader.high_watermark})",
            position - 1,
        )


def _given(epoch: int) -> str:
    """The epoch that a fetch gave, in words."""
    return "none" if epoch < 0 else str(epoch)


def _epoch_at(replica: ReplicaView | None, offset: int) -> int:
    """The epoch of a record that a log has, deleted ones left out."""
    if replica is None or not replica.log_start <= offset < len(replica.log):
        return UNKNOWN
    return replica.log[offset]


def _diverging(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    detail, leader = event.details(), state.replica(event.node)
    entries = epoch_cache_of(leader.log, leader.log_start)
    if "fetched" not in detail or entries is None or leader.role != "leader":
        return
    if not entries or entries[-1][0] != leader.leader_epoch:
        entries.append(CachedEpoch(leader.leader_epoch, leader.epoch_start))
    epoch, offset = detail["fetched"]
    yield from _of_wrong_epoch(state, event, epoch, offset)
    answered, right = (detail["epoch"], event.offset), end_of_epoch(entries, len(leader.log), epoch)
    if answered != right and right[1] != UNKNOWN:
        yield Step(
            StepKind.WRONG_DIVERGENCE_ANSWERED,
            event.time_ns,
            event.node,
            f"{event.node} answered the fetch of b{detail['replica']} from {offset}, behind a record of epoch {epoch}, "
            f"with the end of epoch {answered[0]} at {answered[1]}; in its log epoch {right[0]} ends at {right[1]}",
            min(answered[1], right[1]),
        )


def _of_wrong_epoch(state: PartitionReplay, event: TraceRow, epoch: int, offset: int) -> Iterator[Step]:
    """A fetch from the end of its follower's log that diverges by an epoch which is not that of the last record."""
    name = f"b{event.details()['replica']}"
    follower = state.replicas.get(name)
    held_epoch = _epoch_at(follower, offset - 1)
    if follower is None or len(follower.log) != offset or held_epoch in (UNKNOWN, epoch):
        return
    if state.leaders.get(epoch) == name or (event.leader_epoch, epoch, offset) in follower.divergences:
        return  # one that led gives its own epoch, with records or without; and it is told once
    yield Step(
        StepKind.FETCH_GAVE_WRONG_EPOCH,
        event.time_ns,
        event.node,
        f"{name} fetched from {offset}, the end of its log, with {_given(epoch)} as the epoch of the record before, "
        f"which is of epoch {held_epoch} in its log; its leader {event.node} answered that the logs part at "
        f"{event.offset}: so it cuts what both may have",
        event.offset,
    )


def _truncated(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """The cut upon a leader's answer: to the last offset that both logs may share."""
    detail, replica = event.details(), state.replica(event.node)
    entries = epoch_cache_of(replica.log, replica.log_start)
    if "answer" not in detail or "log_start" in detail or entries is None:
        return
    epoch, end = detail["answer"]
    right = truncation_of(entries, len(replica.log), epoch, end)
    inside_batch = any(copy.offset == event.offset and copy.end > right for copy in replica.batches.values())
    if event.offset == right or (event.offset < right and inside_batch):
        return
    side = "more" if event.offset < right else "less"
    yield Step(
        StepKind.TRUNCATED_TO_WRONG_OFFSET,
        event.time_ns,
        event.node,
        f"{event.node} cut its log {len(replica.log)} → {event.offset}, {side} than diverges: its leader "
        f"b{event.leader} answered that epoch {epoch} ends at {end}, so that both logs may share the records below "
        f"{right}",
        min(event.offset, right),
    )


# ---- appends and acknowledgements ------------------------------------------------------------------------------------


def _appended(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    replica, log = state.replica(event.node), state.replica(event.node).log

    def step(kind: StepKind, text: str) -> Step:
        return Step(
            kind, event.time_ns, event.node, f"{event.node} appended {records}{text}", event.offset, event.log_end
        )

    records = span(event.offset, event.log_end)
    if event.offset != len(log):
        yield step(StepKind.APPENDED_OUT_OF_PLACE, f" to a log that ends at {len(log)}")
    leader = state.replicas.get(f"b{event.leader}")
    if event.leader == event.number or leader is None:
        yield from _sequence(replica, event, step)
        return
    if leader.role != "leader" or leader.leader_epoch != replica.leader_epoch or replica.role != "follower":
        return
    theirs = _epoch_at(leader, event.offset)
    if event.log_end > len(leader.log):
        text = (
            f" as follower of {leader.node} in epoch {replica.leader_epoch}, whose log ends at {len(leader.log)}: they"
        )
        yield step(StepKind.APPENDED_RECORDS_NOT_OF_LEADER, f"{text} are the answer of an earlier fetch")
    elif theirs not in (UNKNOWN, event.leader_epoch):
        text = (
            f" of epoch {event.leader_epoch} as follower of {leader.node} in epoch {replica.leader_epoch}, which holds"
        )
        yield step(StepKind.APPENDED_RECORDS_NOT_OF_LEADER, f"{text} one of epoch {theirs} there")


def _sequence(replica: ReplicaView, event: TraceRow, step: Callable[[StepKind, str], Step]) -> Iterator[Step]:
    batch = batch_of(event)
    if batch is None or batch[1] <= 0 or batch in replica.batches:
        return
    of_producer = [(copy, key[1]) for key, copy in replica.batches.items() if key[0] == batch[0]]
    if of_producer:
        copy, sequence = max(of_producer, key=lambda one: one[0].offset)
        if UNKNOWN in replica.log[copy.end : event.offset]:
            return  # a loss of power may have undone a cut: what stands there may be of this producer
        same_epoch = copy.producer_epoch == event.details().get("producer_epoch", 0)
        expected = (sequence + copy.end - copy.offset) % SEQUENCE_MODULUS if same_epoch else 0
        if batch[1] != expected:
            text = (
                f" with sequence {batch[1]} of producer id {batch[0]}, whose last batch in its log asks for {expected}"
            )
            yield step(StepKind.SEQUENCE_GAP_APPENDED, text)


def _acknowledged(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    replica, detail = state.replica(event.node), event.details()
    retry = detail.get("retry")
    if retry is None or replica.role != "leader":
        return
    producer, sequence = retry[:2]
    if producer in replica.expired:
        return
    copies = {key: copy for key, copy in replica.batches.items() if key[:2] == (producer, sequence)}
    offsets = [copy.offset for copy in copies.values()]
    first = next((copy for copy in copies.values() if copy.offset == event.offset), None)
    if first is not None and len(retry) > 2 and tuple(retry) not in copies:
        yield from _other_batch(event, first, detail)
    elif event.offset not in offsets and len(replica.log) and UNKNOWN not in replica.log:
        held = (
            f"it holds it at {offsets[0]}"
            if offsets
            else f"its log, which ends at {len(replica.log)}, does not hold it"
        )
        yield Step(
            StepKind.RETRY_ACKNOWLEDGED_WITHOUT_BATCH,
            event.time_ns,
            event.node,
            f"{event.node} took a batch for a retry, sequence {sequence} of producer id {producer}, and acknowledged "
            f"it at {event.offset}: {held}",
            event.offset,
        )


def _other_batch(event: TraceRow, first: BatchCopy, detail: Mapping[str, Any]) -> Iterator[Step]:
    """A retry of other bytes than the batch for which it was taken."""
    (producer, sequence, _), epoch = detail["retry"], detail.get("producer_epoch", 0)
    taken = f"sequence {sequence} of producer id {producer} in producer epoch {epoch}"
    kind = StepKind.RETRY_ACKNOWLEDGED_WITHOUT_BATCH
    if epoch == first.producer_epoch:
        kind = StepKind.SEQUENCE_NUMBER_REUSED
        text = f"the client of producer id {producer} sent other records under a number that it had used, {taken}: "
        text += f"{event.node} holds the first ones at {first.offset}, and acknowledged these as a retry of them"
    else:
        text = f"{event.node} took a batch for a retry, {taken}, and acknowledged it at {event.offset}, where it holds "
        text += f"one of producer epoch {first.producer_epoch}: numbers begin anew in each producer epoch"
    yield Step(kind, event.time_ns, event.node, text, event.offset)


def _unmoved(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A leader acts on a high watermark that it never moved there."""
    leader, named = state.replica(event.node), event.offset if event.kind == "high_watermark" else event.high_watermark
    if leader.role == "leader" and 0 <= leader.high_watermark < named:
        did = {"high_watermark": "moved on", "latest_told": "answered a read of the latest offset"}.get(
            event.kind, "acknowledged"
        )
        yield Step(
            StepKind.HIGH_WATERMARK_NOT_COUNTED,
            event.time_ns,
            event.node,
            f"{event.node} {did} with the high watermark {named} in epoch {leader.leader_epoch}, and had counted its "
            f"replicas up to {leader.high_watermark} only",
            leader.high_watermark,
        )


def _latest_told(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    leader = state.replica(event.node)
    known = state.decisions.get(event.partition_epoch)
    silent = sorted((known.isr if known is not None else frozenset()) - {event.number} - set(event.members))
    latest, committed = event.high_watermark, len(state.committed)
    if leader.role == "leader" and silent and leader.epoch_start <= latest < committed:
        who = ", ".join(f"b{member}" for member in silent)
        yield Step(
            StepKind.LATEST_OFFSET_UNCONFIRMED,
            event.time_ns,
            event.node,
            f"{event.node} reported {latest} as the latest offset in epoch {event.leader_epoch}, and "
            f"{who} of its ISR had not fetched since the read began: a later leader had committed up to {committed}",
            latest,
            committed,
        )


def _led(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A leader's epoch starts at the end of its log."""
    if 0 <= event.offset != event.log_end >= 0:
        yield Step(
            StepKind.LED_FROM_WRONG_START,
            event.time_ns,
            event.node,
            f"{event.node} became leader in epoch {event.leader_epoch} and takes {event.offset} for the start of its "
            f"epoch, and its log ends at {event.log_end}",
            min(event.offset, event.log_end),
        )


def _took_over(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A new leader begins with the high watermark that it had: only counting its ISR moves it."""
    replica, taken = state.replica(event.node), event.details().get("high_watermark", -1)
    known = max(replica.high_watermark, replica.log_start, 0)
    if taken > known:
        whole = ", the end of its log" if taken == event.log_end else ""
        yield Step(
            StepKind.HIGH_WATERMARK_SET_AT_TAKEOVER,
            event.time_ns,
            event.node,
            f"{event.node} set its high watermark to {taken}{whole}, when it became leader in epoch "
            f"{event.leader_epoch}: it had known {known}, and had no fetch of its followers in this epoch yet, so that "
            f"nobody has counted whether the ISR {brokers(frozenset(event.members))} holds "
            f"{span(known, taken)}",
            known,
        )


def _follower_high_watermark(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    replica, after = state.replica(event.node), event.high_watermark
    leader = state.replicas.get(f"b{event.leader}")
    passed = max(len(state.committed), leader.high_watermark if leader is not None else 0)
    if after > passed and leader is not None:
        yield Step(
            StepKind.FOLLOWER_HIGH_WATERMARK_ABOVE_LEADER,
            event.time_ns,
            event.node,
            f"{event.node} took {after} for the high watermark as follower of {leader.node}, its log ending at "
            f"{len(replica.log)}, and no leader had moved its high watermark above {passed}",
            passed,
        )


LOOKS: Final[Mapping[str, tuple[Callable[[PartitionReplay, TraceRow], Iterator[Step]], ...]]] = {
    "log_recovered": (_knowledge,),
    "became_leader": (_took_over, _knowledge, _led),
    "follower_high_watermark": (_follower_high_watermark,),
    "truncated": (_truncated, _knowledge),
    "fetch_accepted": (_fetch_accepted,),
    "diverging": (_diverging,),
    "appended": (_appended,),
    "acknowledged": (_unmoved, _acknowledged),
    "high_watermark": (_unmoved,),
    "latest_told": (_unmoved, _latest_told),
}
