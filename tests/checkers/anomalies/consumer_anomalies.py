"""Anomalies of consumers: positions that skip records or go back, records read too early."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pyarrow.compute as pc

from checkers.deletions import deletable_below
from checkers.evidence import RunEvidence
from tests.checkers.anomalies.anomaly import Anomaly, Injection
from tests.checkers.anomalies.places import Row, history_of, overlapping, rows_of


def _is_read(row: Row) -> bool:
    return row["kind"] == "poll" and bool(row["offsets"])


def _neighbours(rows: list[Row], poll: Row) -> tuple[Row | None, Row | None]:
    """The operations of the same consumer on the same partition before and after `poll`."""
    own = [row for row in rows if all(row[name] == poll[name] for name in ("process", "topic", "partition"))]
    at = own.index(poll)
    return own[at - 1] if at else None, own[at + 1] if at + 1 < len(own) else None


def _changed(evidence: RunEvidence, rows: list[Row], poll: Row, by: Row) -> RunEvidence:
    return replace(evidence, history=history_of([by if row is poll else row for row in rows]))


def skip_records(evidence: RunEvidence, random: Random) -> Injection | None:
    """A poll did not return its last records, and the consumer reads on behind them all the same."""
    rows, deleted = rows_of(evidence.history), deletable_below(evidence)
    for poll in overlapping(rows, random, _is_read):
        _, after = _neighbours(rows, poll)
        below = deleted.get((poll["topic"], poll["partition"]), 0)
        if after is None or after["kind"] != "poll" or poll["offset"] < below:
            continue
        kept = random.randrange(len(poll["offsets"]))
        position = poll["offsets"][kept]
        shorter = poll | {"offsets": poll["offsets"][:kept], "values": poll["values"][:kept]}
        line = (
            f"#{poll['index']} returned nothing from {position} on, and #{after['index']} asks from {after['offset']}"
        )
        changed = _changed(evidence, rows, poll, shorter)
        return Injection(changed, line, poll["topic"], poll["partition"], position, after["index"])
    return None


def refuse_in_range(evidence: RunEvidence, random: Random) -> Injection | None:
    """A poll was refused as out of range although the log had its offset, and the consumer reads on further up."""
    rows, deleted = rows_of(evidence.history), deletable_below(evidence)
    for poll in overlapping(rows, random, _is_read):
        _, after = _neighbours(rows, poll)
        below = deleted.get((poll["topic"], poll["partition"]), 0)
        if after is None or after["kind"] != "poll" or after["offset"] <= max(poll["offset"], below):
            continue
        refused = {"outcome": "fail", "error": "OFFSET_OUT_OF_RANGE", "offsets": None, "values": None}
        line = (
            f"#{poll['index']} was refused offset {poll['offset']}, and #{after['index']} asks from {after['offset']}"
        )
        changed = _changed(evidence, rows, poll, poll | refused | {"leader_epoch": None})
        return Injection(changed, line, poll["topic"], poll["partition"], poll["offset"], after["index"])
    return None


def read_again(evidence: RunEvidence, random: Random) -> Injection | None:
    """A poll asked from below the consumer's position, and returned what an earlier one had returned."""
    rows = rows_of(evidence.history)
    for poll in overlapping(rows, random, _is_read):
        before, _ = _neighbours(rows, poll)
        if before is None or not _is_read(before) or before["offsets"][-1] + 1 != poll["offset"]:
            continue
        again = random.randint(1, len(before["offsets"]))
        offsets, values = before["offsets"][-again:] + poll["offsets"], before["values"][-again:] + poll["values"]
        longer = poll | {"offset": offsets[0], "offsets": offsets, "values": values}
        line = f"#{poll['index']} asks from {offsets[0]} instead of {poll['offset']}"
        changed = _changed(evidence, rows, poll, longer)
        return Injection(changed, line, poll["topic"], poll["partition"], offsets[0], poll["index"])
    return None


def read_uncommitted(evidence: RunEvidence, random: Random) -> Injection | None:
    """A poll returns the next record, too, before any high watermark has passed it; later it is committed."""
    if not evidence.settings.has_ordered_trace:
        return None
    rows = rows_of(evidence.history)
    values = {
        (row["topic"], row["partition"], offset): value
        for row in rows
        for offset, value in zip(row["offsets"] or (), row["values"] or (), strict=True)
    }
    marks = evidence.trace.filter(pc.field("high_watermark") >= 0)
    marks = marks.select(["topic", "partition", "time_ns", "high_watermark"]).to_pylist()
    for poll in overlapping(rows, random, _is_read):
        place, offset = (poll["topic"], poll["partition"]), poll["offsets"][-1] + 1
        passed_ns = min(
            (
                mark["time_ns"]
                for mark in marks
                if (mark["topic"], mark["partition"]) == place and mark["high_watermark"] > offset
            ),
            default=None,
        )
        if passed_ns is None or passed_ns <= poll["completed_ns"] or (*place, offset) not in values:
            continue
        longer = poll | {
            "offsets": [*poll["offsets"], offset],
            "values": [*poll["values"], values[(*place, offset)]],
        }
        early_ms = (passed_ns - poll["completed_ns"]) / 1e6
        line = f"#{poll['index']} returned offset {offset}, {early_ms:.3f} ms before it was committed"
        changed = _changed(evidence, rows, poll, longer)
        return Injection(changed, line, *place, offset, poll["index"])
    return None


CONSUMER_ANOMALIES = (
    Anomaly("records-skipped", "positions", "position-skipped", skip_records),
    Anomaly("position-refused", "positions", "position-skipped", refuse_in_range),
    Anomaly("records-read-again", "positions", "position-went-back", read_again),
    Anomaly("uncommitted-record-read", "visibility", "read-above-high-watermark", read_uncommitted),
)
