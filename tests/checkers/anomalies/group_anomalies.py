"""Anomalies of a group's coordinator: answers before their records are committed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import RunEvidence
from checkers.tables import TRACE
from tests.checkers.anomalies.anomaly import Anomaly, Injection
from tests.checkers.anomalies.places import Row, history_of, overlapping, rows_of, shuffled

_OFFSETS_TOPIC = "__consumer_offsets"


def _first_commit_possible_ns(evidence: RunEvidence, since_ns: int) -> int | None:
    """When the high watermark of `__consumer_offsets` first passed a record that was appended after `since_ns`."""
    events = evidence.trace.filter(pc.field("topic") == _OFFSETS_TOPIC).sort_by("seq").to_pylist()
    appended: dict[int, int] = {}
    reached: dict[int, int] = {}
    for event in events:
        partition = event["partition"]
        if event["kind"] == "appended" and event["node"] == f"b{event['leader']}" and event["time_ns"] >= since_ns:
            appended[partition] = min(event["offset"], appended.get(partition, event["offset"]))
        reached[partition] = max(event["high_watermark"], reached.get(partition, 0))
        if partition in appended and reached[partition] > appended[partition]:
            return int(event["time_ns"])
    return None


def _is_commit(row: Row) -> bool:
    return row["kind"] == "commit" and row["outcome"] == "ok"


def acknowledge_commit_early(evidence: RunEvidence, random: Random) -> Injection | None:
    """A commit is acknowledged a moment before its record can have been committed."""
    rows = rows_of(evidence.history)
    for commit in overlapping(rows, random, _is_commit):
        possible_ns = _first_commit_possible_ns(evidence, commit["invoked_ns"])
        if possible_ns is None or possible_ns <= commit["invoked_ns"] + 1:
            continue
        early = commit | {"completed_ns": random.randint(commit["invoked_ns"] + 1, possible_ns - 1)}
        changed = replace(evidence, history=history_of([early if row is commit else row for row in rows]))
        line = f"#{commit['index']} is acknowledged at {early['completed_ns'] / 1e9:.6f} s"
        return Injection(changed, line, commit["topic"], commit["partition"], commit["offset"], commit["index"])
    return None


def tell_offset_early(evidence: RunEvidence, random: Random) -> Injection | None:
    """A new member starts at an offset whose commit is only on its way."""
    rows = rows_of(evidence.history)
    assigns = [row for row in rows if row["kind"] == "assign" and row["outcome"] == "ok"]
    for commit in overlapping(rows, random, _is_commit):
        possible_ns = _first_commit_possible_ns(evidence, commit["invoked_ns"])
        same = [
            row
            for row in rows
            if row["kind"] == "commit"
            and (row["partition"], row["offset"]) == (commit["partition"], commit["offset"])
            and row["index"] < commit["index"]
        ]
        if not assigns or same or possible_ns is None or possible_ns <= commit["invoked_ns"] + 1:
            continue
        told = random.choice(assigns) | {
            "index": rows[-1]["index"] + 1,
            "process": 1 + max(row["process"] for row in rows),
            "partition": commit["partition"],
            "invoked_ns": commit["invoked_ns"],
            "completed_ns": random.randint(commit["invoked_ns"] + 1, possible_ns - 1),
            "offset": commit["offset"],
        }
        changed = replace(evidence, history=history_of([*rows, told]))
        line = f"a member is told offset {commit['offset']} of #{commit['index']} at {told['completed_ns'] / 1e9:.6f} s"
        return Injection(changed, line, commit["topic"], commit["partition"], commit["offset"], told["index"])
    return None


def hand_out_assignment_early(evidence: RunEvidence, random: Random) -> Injection | None:
    """By the moment at which a member is told its assignment, the high watermark of `__consumer_offsets` is too low. A
    rebalance is so rare that any will do, overlapped or not."""
    rows = rows_of(evidence.history)
    first: dict[int, Row] = {}
    for row in rows:
        if row["kind"] == "assign" and row["outcome"] == "ok":
            first.setdefault(row["value"], row)
    for assign in shuffled(list(first.values()), random):
        told = sum(row["invoked_ns"] <= assign["invoked_ns"] for row in first.values())
        told += sum(_is_commit(row) and row["completed_ns"] < assign["invoked_ns"] for row in rows)
        events = [
            event | {"high_watermark": min(event["high_watermark"], told - 1)}
            if event["topic"] == _OFFSETS_TOPIC and event["time_ns"] <= assign["invoked_ns"]
            else event
            for event in evidence.trace.to_pylist()
        ]
        changed = replace(evidence, trace=pa.Table.from_pylist(events, TRACE))
        line = f"#{assign['index']}: {told} answers, and a high watermark of {told - 1}"
        return Injection(changed, line, operation=assign["index"])
    return None


GROUP_ANOMALIES = (
    Anomaly("commit-acknowledged-early", "coordinator", "commit-uncommitted", acknowledge_commit_early),
    Anomaly("offset-told-early", "coordinator", "offset-uncommitted", tell_offset_early),
    Anomaly("assignment-handed-out-early", "coordinator", "assignment-uncommitted", hand_out_assignment_early),
)
