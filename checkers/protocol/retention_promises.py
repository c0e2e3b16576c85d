"""Promises about retention: it deletes what the topic's settings say, and no more. See `checkers.protocol.checker`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.segments import INEXACT_NS, ClosedSegment, Overdue, RetainedLog
from checkers.protocol.state import ClusterState, PartitionState, ProtocolViolation, TraceRowHandler
from checkers.tables import TraceRow, WrongClocks, at_work_ns
from workloads.columns import Int64

_CHECKS = 2
"""A leader that is at work deletes what it has to within so many intervals of its checks …"""
_OVERDUE_NS = 3_000_000_000
"""… and this long."""


def _log_start(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    _note_overdue(partition, event, settings)
    detail = event.details()
    if detail.get("reason") == "retention_ms":
        partition.expirations.append(event)
        _check_timestamps(partition, event, settings.retention_ms)
    kept = detail.get("kept_bytes")
    if detail.get("reason") == "retention_bytes" and isinstance(kept, int) and 0 <= kept < settings.retention_bytes:
        partition.report(
            event,
            "retention-below-size",
            event.offset,
            f"{event.node} moved its log's start {detail.get('before')} → {event.offset} {event.at} (retention_bytes)",
            f"its log has {kept} bytes from there on, and retention.bytes keeps {settings.retention_bytes} at least",
        )


def _check_timestamps(partition: PartitionState, event: TraceRow, retention_ms: int) -> None:
    """No batch goes by `retention.ms` before its largest timestamp is so old, on the clock of its node."""
    detail = event.details()
    batches, now_ms = partition.batches_of(event.node).from_offset(detail.get("before", 0)), detail.get("now_ms")
    if batches is None or now_ms is None or retention_ms < 0:
        return
    gone = [batch for batch in batches if batch.base < event.offset]
    youngest = max(gone, key=lambda batch: batch.timestamp_ms, default=None)
    if youngest is not None and now_ms - youngest.timestamp_ms <= retention_ms:
        partition.report(
            event,
            "retention-unfounded",
            youngest.base,
            f"{event.node} moved its log's start {detail.get('before')} → {event.offset} {event.at} (retention_ms)",
            f"on its clock the batch at {youngest.base} was {now_ms - youngest.timestamp_ms} ms old, by the largest "
            f"timestamp of its records, and retention.ms keeps records for {retention_ms} ms",
        )


def check_ages(partition: PartitionState, appends: pa.Table, settings: CheckSettings, clocks: WrongClocks) -> None:
    """No record goes by `retention.ms` before it is so old: its timestamp is no earlier than when its append was
    invoked, but for the error of its producer's clock, and its node's clock is ahead by what faults have done to it at
    most. `appends` is the partition's history; nothing is said without acks=all, where another record than the
    acknowledged one may stand at an offset."""
    if not partition.expirations or settings.retention_ms < 0 or settings.acks != -1:
        return
    offsets, invoked_ns = _acknowledged(appends)
    for event in partition.expirations:
        before = event.details().get("before", 0)
        chosen = np.arange(*np.searchsorted(offsets, (before, event.offset)))
        chosen = chosen[invoked_ns[chosen] <= event.time_ns]  # after an unclean election others may stand there
        if not len(chosen):
            continue
        youngest = chosen[np.argmax(invoked_ns[chosen])]
        offset, age_ns = int(offsets[youngest]), event.time_ns - int(invoked_ns[youngest])
        measured_ns = age_ns + clocks.ahead_ns(event.node, event.time_ns) + INEXACT_NS
        if measured_ns < (settings.retention_ms - settings.clock_error_ms) * 1_000_000:
            partition.report(
                event,
                "retention-early",
                offset,
                f"{event.node} moved its log's start {before} → {event.offset} {event.at} (retention_ms)",
                f"the append of offset {offset} had been invoked {age_ns / 1e6:.0f} ms before, and retention.ms keeps "
                f"records for {settings.retention_ms} ms",
            )


def _acknowledged(appends: pa.Table) -> tuple[Int64, Int64]:
    """The acknowledged offsets, ascending, and when the append of each was invoked, in ns."""
    told = appends.filter((pc.field("kind") == "append") & (pc.field("outcome") == "ok") & (pc.field("offset") >= 0))
    told = told.sort_by([("offset", "ascending"), ("invoked_ns", "ascending")])
    offsets, first = np.unique(told.column("offset").to_numpy(), return_index=True)
    return offsets, told.column("invoked_ns").to_numpy()[first]


# ---- what is kept too long -------------------------------------------------------------------------------------------


def _retains_less(event: TraceRow, settings: CheckSettings) -> bool:
    """Whether it is known by which retention, and how often, the records of an event's partition are deleted."""
    is_known = settings.retains_less and settings.retention_check_ms > 0
    return is_known and not event.topic.startswith("__") and not settings.is_side_topic(event.topic)


def _appended(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    if not _retains_less(event, settings):
        return
    retained = partition.retained.setdefault(event.node, RetainedLog())
    if event.offset != len(partition.log(event.node)):
        retained.closed.clear()
    if not retained.ends_segment_above(partition.log_starts.get(event.node, 0)):
        _note_overdue(partition, event, settings)
    detail = event.details()
    if "closed_bytes" in detail:
        retained.closed.append(ClosedSegment(event.offset, event.time_ns, detail["closed_bytes"]))
    retained.untimed |= detail.get("timestamp", UNKNOWN) < 0
    retained.appended_ns = event.time_ns


def _became_leader(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    if not _retains_less(event, settings):
        return
    _note_overdue(partition, event, settings)
    retained = partition.retained.setdefault(event.node, RetainedLog())
    if event.log_end != len(partition.log(event.node)):
        retained.closed.clear()
        retained.appended_ns = UNKNOWN
    if retained.leads_since_ns < 0:
        retained.leads_since_ns = event.time_ns
    retained.high_watermarks = [(event.details().get("high_watermark", 0), event.time_ns)]


def _high_watermark(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    if event.node in partition.retained:
        partition.retained[event.node].high_watermarks.append((event.high_watermark, event.time_ns))


def _leadership_ended(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    """The node does not lead any more, or its process is another one; its log may have become shorter."""
    _note_overdue(partition, event, settings)
    if (retained := partition.retained.get(event.node)) is None:
        return
    retained.leads_since_ns = UNKNOWN
    if event.kind == "truncated":
        retained.cut(event.offset)
    elif event.kind == "log_recovered":
        retained.cut(event.log_end)
        if event.log_end > len(partition.log(event.node)):
            retained.appended_ns = UNKNOWN
    elif event.kind == "replica_deleted":
        del partition.retained[event.node]


def _note_overdue(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    """The records that a leader had to delete before this event of its own, which may end that."""
    if (retained := partition.retained.get(event.node)) is not None:
        start, end = partition.log_starts.get(event.node, 0), len(partition.log(event.node))
        if (overdue := retained.overdue(event.node, start, end, event.time_ns, settings)) is not None:
            partition.overdue.append(overdue)


def check_overdue(cluster: ClusterState, trace: pa.Table, settings: CheckSettings) -> None:
    """After the last event: no leader has kept for long, while it was at work, what its retention deletes. By its clock
    that was due later if that can be behind, and it looks for it once its timers run right. Nothing is said of topics
    with a retention of their own."""
    if not settings.retains_less:
        return
    last_ns = pc.max(trace.column("time_ns")).as_py() or 0
    configured = _retentions_changed(trace)
    patience_ns = _CHECKS * settings.retention_check_ms * 1_000_000 + _OVERDUE_NS
    for (topic, _), partition in cluster.partitions.items():
        kept = () if topic in configured else (*partition.overdue, *_overdue_at_end(partition, last_ns, settings))
        for overdue in kept:
            due_ns = due_by_clocks_ns(cluster, overdue.node, overdue.due_ns, overdue.until_ns, by_wall=overdue.by_age)
            if not is_overdue(trace, overdue.node, due_ns, overdue.until_ns, patience_ns):
                continue
            lines = (
                f"{overdue.node} led, and its log started at {overdue.start} still at {overdue.until_ns / 1e9:.6f} s",
                f"by {overdue.setting} the records below {overdue.end}, all committed, were to go at "
                f"{due_ns / 1e9:.6f} s: it looks for such every {settings.retention_check_ms} ms",
            )
            violation = ProtocolViolation("retention-overdue", overdue.start, overdue.until_ns, UNKNOWN, lines)
            partition.violations.append(violation)


def due_by_clocks_ns(cluster: ClusterState, node: str, due_ns: int, until_ns: int, *, by_wall: bool) -> int:
    """When something was due on a node by its own clocks, at the latest, if by then. A wall clock counts for what is
    due at an age (`by_wall`)."""
    if by_wall:
        due_ns = cluster.clocks.read_by_ns(node, due_ns, until_ns)
    return max([due_ns, *cluster.wrong_timers.ends_between(node, due_ns, until_ns)])


def is_overdue(trace: pa.Table, node: str, due_ns: int, until_ns: int, patience_ns: int) -> bool:
    """Whether a node was at work for longer than its patience between these times."""
    return until_ns - due_ns > patience_ns and at_work_ns(trace, node, due_ns, until_ns) > patience_ns


def _retentions_changed(trace: pa.Table) -> frozenset[str]:
    """The topics that have a retention of their own at some time."""
    changes = trace.filter(
        (pc.field("kind") == "topic_configured") & pc.match_substring(pc.field("detail"), '"retention.')
    )
    return frozenset(json.loads(detail)["name"] for detail in changes.column("detail").to_pylist())


def _overdue_at_end(partition: PartitionState, last_ns: int, settings: CheckSettings) -> Iterator[Overdue]:
    for node, retained in sorted(partition.retained.items()):
        start, end = partition.log_starts.get(node, 0), len(partition.log(node))
        if (overdue := retained.overdue(node, start, end, last_ns, settings)) is not None:
            yield overdue


HANDLERS: Mapping[str, TraceRowHandler] = {
    "log_start": _log_start,
    "appended": _appended,
    "became_leader": _became_leader,
    "high_watermark": _high_watermark,
    **dict.fromkeys(
        ("became_follower", "resigned", "truncated", "log_recovered", "replica_deleted"), _leadership_ended
    ),
}
