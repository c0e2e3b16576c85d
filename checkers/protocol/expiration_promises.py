"""Promises about the producers that a broker forgets. See `checkers.protocol.checker`.

The state of a producer expires `producer.id.expiration.ms` after the largest timestamp in its newest batch, on the wall
clock of each replica's node, which looks for such every `producer.id.expiration.check.interval.ms`, in all of its logs,
and tells which it has found and what the clock read.

Blind spots: a log that a check leaves out, and a later one soon takes; a state that is kept for too long where clocks
of producers may be wrong for as long, where nodes have settings of their own, on a node that has shown no event for
most of that time, and of a log whose batches are not known. Where no clock is known to be right (on machines), it is
taken to read what it tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN, KeptProducer, ReplicaBatch
from checkers.protocol.retention_promises import due_by_clocks_ns, is_overdue
from checkers.protocol.segments import INEXACT_NS
from checkers.protocol.state import ClusterState, PartitionState, ProtocolViolation, TraceRowHandler
from checkers.tables import TraceRow

_CHECKS = 2
"""A broker that is at work forgets a producer that has expired within so many intervals of its checks …"""
_OVERDUE_NS = 3_000_000_000
"""… and this long."""


def _expired(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    """The newest batch of each producer that is forgotten was so old, and of no other one in the log."""
    partition.forgotten.append(event)
    detail, held = event.details(), partition.batches_of(event.node)
    told = {int(producer): time_ms for producer, time_ms in detail["producers"].items()}
    _note_kept(partition, event, settings, told)
    start = partition.log_starts.get(event.node, 0)
    if held.unknown_below <= start and not settings.mixed_settings:
        for producer in sorted(held.of_producer):
            if (newest := _newest(partition, event.node, producer)) is not None:
                _check_age(partition, event, settings, newest, told.get(producer))
    for producer in told:
        held.expire(producer)
        partition.renewed.get(event.node, {}).pop(producer, None)


def _newest(partition: PartitionState, node: str, producer: int) -> ReplicaBatch | None:
    """The newest batch in the state of a producer; None where it has none, or its time is not known. Of a batch that
    came a second time the first copy counts, which may have been deleted before anything was known of it."""
    held = partition.batches_of(node)
    if partition.log_starts.get(node, 0) > 0 and held.repeats(producer):
        return None
    state = held.state(producer)
    return state[-1] if state and state[-1].timestamp_ms != UNKNOWN else None


def _check_age(
    partition: PartitionState, event: TraceRow, settings: CheckSettings, newest: ReplicaBatch, time_ms: int | None
) -> None:
    now_ms, expiration_ms = event.details()["now_ms"], settings.producer_id_expiration_ms
    age_ms = now_ms - newest.timestamp_ms
    is_old, found = age_ms >= expiration_ms, f"{event.node} looked for producers that have expired {event.at}"
    batch = f"the newest batch of producer id {newest.producer} in its log, at {newest.base}, was {age_ms} ms old then"
    kept = f"by the node's clock, and producer.id.expiration.ms is {expiration_ms}"
    if time_ms is not None and not is_old:
        partition.report(event, "producer-expired-early", newest.base, f"{found}, and forgot one", batch, kept)
    elif time_ms is not None and time_ms != newest.timestamp_ms:
        lines = f"that batch is of {newest.timestamp_ms} ms; the state of its producers has {time_ms} ms"
        partition.report(event, "producer-state-wrong", newest.base, f"{found}, and forgot one", batch, lines)
    elif time_ms is None and is_old:
        partition.report(event, "producer-expiration-overdue", newest.base, f"{found}, and kept one", batch, kept)


def _appended(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    batch = ReplicaBatch.of(event)
    if batch.is_numbered and _is_judged(settings):
        _note_kept(partition, event, settings, (batch.producer,))
        partition.renewed.setdefault(event.node, {})[batch.producer] = event.time_ns


def _made_anew(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    """The states of a node that opens its log, or cuts it, are those of an earlier time; it has them since now."""
    renewed = partition.renewed.get(event.node, {})
    _note_kept(partition, event, settings, renewed)
    if not _is_judged(settings):
        return
    told = map(int, event.details().get("producers") or ())
    anew_ns = event.time_ns - _kept_ns(settings)
    partition.renewed[event.node] = {producer: max(renewed.get(producer, event.time_ns), anew_ns) for producer in told}


def _gone(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    _note_kept(partition, event, settings, partition.renewed.get(event.node, ()))
    partition.renewed.pop(event.node, None)


def _is_judged(settings: CheckSettings) -> bool:
    return settings.expiry_check_ms > 0


def _kept_ns(settings: CheckSettings) -> int:
    """How long after its append a batch is so old at the latest, by a true clock."""
    return (settings.producer_id_expiration_ms + settings.clock_error_ms) * 1_000_000 + INEXACT_NS


def _patience_ns(settings: CheckSettings) -> int:
    return _CHECKS * settings.expiry_check_ms * 1_000_000 + _OVERDUE_NS


def _note_kept(partition: PartitionState, event: TraceRow, settings: CheckSettings, producers: Iterable[int]) -> None:
    """The states that a node had for too long before this event of its own, which ends that."""
    renewed = partition.renewed.get(event.node, {})
    kept = {producer: renewed[producer] for producer in producers if producer in renewed}
    partition.kept_producers += _kept_too_long(event.node, kept, event.time_ns, settings)


def _kept_too_long(
    node: str, renewed: Mapping[int, int], until_ns: int, settings: CheckSettings
) -> Iterator[KeptProducer]:
    for producer, renewed_ns in renewed.items():
        due_ns = renewed_ns + _kept_ns(settings)
        if until_ns - due_ns > _patience_ns(settings):
            yield KeptProducer(node, producer, due_ns, until_ns)


def check_kept(cluster: ClusterState, trace: pa.Table, settings: CheckSettings) -> None:
    """After the last event: no broker has kept a state for long that had expired, while it was at work. By its clock
    that was due later if that can be behind, and it looks for it once its timers run right. No clock reads a later time
    than faults can have made it to, where it reads the time of the run else."""
    last_ns = pc.max(trace.column("time_ns")).as_py() or 0
    for partition in cluster.partitions.values():
        if settings.network_is_witness:
            partition.violations += _read_too_late(cluster, partition)
        if not _is_judged(settings):
            continue
        kept = list(partition.kept_producers)
        for node, renewed in sorted(partition.renewed.items()):
            kept += _kept_too_long(node, renewed, last_ns, settings)
        for each in kept:
            due_ns = due_by_clocks_ns(cluster, each.node, each.due_ns, each.until_ns, by_wall=True)
            if is_overdue(trace, each.node, due_ns, each.until_ns, _patience_ns(settings)):
                lines = (
                    f"{each.node} had a state of producer id {each.producer} still at {each.until_ns / 1e9:.6f} s",
                    f"by producer.id.expiration.ms={settings.producer_id_expiration_ms} it was to go at "
                    f"{due_ns / 1e9:.6f} s: it looks for such every {settings.expiry_check_ms} ms",
                )
                kind = "producer-expiration-overdue"
                partition.violations.append(ProtocolViolation(kind, UNKNOWN, each.until_ns, UNKNOWN, lines))


def _read_too_late(cluster: ClusterState, partition: PartitionState) -> Iterator[ProtocolViolation]:
    for event in partition.forgotten:
        now_ms, ahead_ns = event.details()["now_ms"], cluster.clocks.ahead_ns(event.node, event.time_ns)
        if now_ms * 1_000_000 > event.time_ns + ahead_ns + INEXACT_NS:
            lines = (
                f"{event.node} looked for producers that have expired {event.at}, by a clock that read {now_ms} ms",
                f"faults can have set that ahead by {ahead_ns // 1_000_000} ms at most",
            )
            yield ProtocolViolation("producer-expired-early", UNKNOWN, event.time_ns, UNKNOWN, lines)


HANDLERS: Mapping[str, TraceRowHandler] = {
    "producers_expired": _expired,
    "appended": _appended,
    **dict.fromkeys(("log_recovered", "truncated"), _made_anew),
    **dict.fromkeys(("resigned", "replica_deleted"), _gone),
}
