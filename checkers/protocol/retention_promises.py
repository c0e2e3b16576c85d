"""Promises about retention: it deletes no more than the topic's settings say. See `checkers.protocol.checker`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import CheckSettings
from checkers.protocol.state import PartitionState, TraceRowHandler
from checkers.tables import TraceRow
from workloads.columns import Int64

_INEXACT_NS = 50_000_000
"""Timestamps are in milliseconds, and a clock of the one machine may be set while it runs."""


def _log_start(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
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


def check_ages(
    partition: PartitionState, appends: pa.Table, settings: CheckSettings, wrong_clocks: Collection[str]
) -> None:
    """No record goes by `retention.ms` before it is so old: its timestamp is no earlier than when its append was
    invoked, but for the error of its producer's clock. `appends` is the partition's history; nothing is said of nodes
    with `wrong_clocks`, nor without acks=all, where another record than the acknowledged one may stand at an
    offset."""
    expirations = [event for event in partition.expirations if event.node not in wrong_clocks]
    if not expirations or settings.retention_ms < 0 or settings.acks != -1:
        return
    offsets, invoked_ns = _acknowledged(appends)
    for event in expirations:
        before = event.details().get("before", 0)
        chosen = slice(*np.searchsorted(offsets, (before, event.offset)))
        if not len(offsets[chosen]):
            continue
        youngest = int(np.argmax(invoked_ns[chosen]))
        offset, age_ns = int(offsets[chosen][youngest]), event.time_ns - int(invoked_ns[chosen][youngest])
        if age_ns + _INEXACT_NS < (settings.retention_ms - settings.clock_error_ms) * 1_000_000:
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


HANDLERS: Mapping[str, TraceRowHandler] = {"log_start": _log_start}
