"""Promises about the snapshots that a controller keeps of its metadata, for `checkers.raft`, whose table has them.

The metadata log begins at 0, or where a snapshot ends that the controller has; and it is trimmed only to one that has a
later one behind it. So whoever reads the earlier one when the later one is written goes on in the log, and so does a
controller that cannot read the later one. A log that gives way to the leader's snapshot does so once that is on the
disk: a crash in between would leave neither. A snapshot is durable before it gets its name: a controller that cannot
read one when it opens its log wrote it otherwise, though it may have all its records in the log.

What a controller has when it opens its log, it tells then: a crash may have kept what it wrote last out of the trace.

Blind spots: a controller whose disk has lied about fsync, or may have lost more than what was not synced; a damaged
snapshot that is not the latest; runs of versions that did not trace which snapshots a controller has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.fault_model import lied_since, wiped_since
from checkers.tables import TraceRow, trace_rows
from checkers.verdict import Finding
from workloads.columns import NEVER

_KINDS: Final = ("quorum_recovered", "metadata_snapshot", "metadata_trimmed", "metadata_restored")


def snapshot_findings(trace: pa.Table, faults: pa.Table) -> Iterator[Finding]:
    """Every broken promise in a trace (schema TRACE), on disks that keep what was synced."""
    lied, wiped = lied_since(faults), wiped_since(faults)
    kept: dict[str, list[int]] = {}
    for event in trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_KINDS)))):
        if min(lied.get(event.node, NEVER), wiped.get(event.node, NEVER)) <= event.time_ns:
            continue
        if event.kind == "quorum_recovered":
            yield from _damaged(event)
            kept.pop(event.node, None)
            if (snapshots := event.details().get("snapshots")) is not None:
                kept[event.node] = list(snapshots)
        if (ends := kept.get(event.node)) is not None:
            yield from _trimmed_early(event, ends)
            kept[event.node] = _kept_after(event, ends)


def _damaged(opened: TraceRow) -> Iterator[Finding]:
    if names := opened.details().get("snapshots_damaged"):
        lines = (
            f"{opened.node} opened its metadata log {opened.at}, and could not read the snapshot {', '.join(names)}",
            "no fault takes what is synced: it had got its name before it was durable",
        )
        yield Finding("metadata-snapshot-damaged", lines, time_ns=opened.time_ns)


def _trimmed_early(event: TraceRow, ends: list[int]) -> Iterator[Finding]:
    """Where the log starts by this event is the end of one of these snapshots; upon a trim there is a later one."""
    is_trim = event.kind == "metadata_trimmed"
    start = _log_start(event)
    if start > 0 and (start not in ends or (is_trim and start == max(ends))):
        lines = (
            f"the metadata log of {event.node} starts at {start} {event.at} ({event.kind})",
            f"the snapshots that it had ended at {', '.join(map(str, sorted(ends))) or 'no offset'}: a log begins "
            f"where one of them ends{', and is trimmed to one that a later one follows' if is_trim else ''}",
        )
        yield Finding("trimmed-before-snapshot", lines, time_ns=event.time_ns)


def _log_start(event: TraceRow) -> int:
    """Where the log starts by this event; 0 where that is not told, or where a snapshot takes its place."""
    if event.kind == "metadata_snapshot":
        return int(event.details().get("log_start", 0))
    return event.offset if event.kind in ("quorum_recovered", "metadata_trimmed") else 0


def _kept_after(event: TraceRow, ends: list[int]) -> list[int]:
    """Where the snapshots end that the controller has after this event."""
    if event.kind == "metadata_snapshot":
        return [*ends, event.log_end]
    if event.kind == "metadata_restored":
        return [event.offset]
    return [end for end in ends if end >= event.offset]
