"""Evidence of small runs, written out by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from checkers.tables import FAULTS, REPLICA_ENDS, REPLICAS, TRACE
from tests.checkers.small_histories import Row, columns
from workloads.history import SCHEMA as HISTORY

S = 1_000_000_000
WHOLE = {"recovered": True, "seconds": 1.5, "limit_seconds": 30, "waiting_for": [], "final_reads": True, "crashes": []}
"""What the runner writes of a cluster that recovered, and whose records were all read back."""
STUCK = {
    "recovered": False,
    "seconds": 30.0,
    "limit_seconds": 30,
    "waiting_for": ["no leader of t-0"],
    "final_reads": False,
}
"""… of one that had no leader of a partition when the limit had passed."""


def history(main: Iterable[Row], final: Iterable[Row] = ()) -> pa.Table:
    """Rows of the main phase, then of the final reads; times in seconds."""
    rows: list[dict[str, Any]] = []
    for phase, part in (("main", list(main)), ("final", list(final))):
        for row in columns(part).to_table().to_pylist() if part else ():
            times = {name: row[name] and row[name] * S for name in ("invoked_ns", "completed_ns")}
            rows.append(row | times | {"phase": phase, "index": len(rows)})
    return pa.Table.from_pylist(rows, HISTORY)


def logs(**of_node: Iterable[tuple[int, int] | None]) -> tuple[pa.Table, pa.Table]:
    """(REPLICAS, REPLICA_ENDS): a list of (leader epoch, value) a node, None where a record is missing. The high
    watermark is the end; see `marked`."""
    records, ends = [], []
    for node, entries in of_node.items():
        end = 0
        for offset, entry in enumerate(entries):
            end = offset + 1
            if entry is not None:
                records.append(
                    {
                        "node": node,
                        "topic": "t",
                        "partition": 0,
                        "offset": offset,
                        "leader_epoch": entry[0],
                        "value": entry[1],
                        "producer_id": 1,
                        "producer_epoch": 0,
                        "sequence": entry[1],
                        "batch_base": offset,
                    }
                )
        ends.append(
            {
                "node": node,
                "topic": "t",
                "partition": 0,
                "log_start": 0,
                "log_end": end,
                "high_watermark": end,
                "unread_bytes": 0,
                "damage": "",
                "epoch_checkpoint": "",
            }
        )
    return pa.Table.from_pylist(records, REPLICAS), pa.Table.from_pylist(ends, REPLICA_ENDS)


def marked(ends: pa.Table, **high_watermarks: int) -> pa.Table:
    """The same ends with other high watermarks."""
    return _with(ends, "high_watermark", high_watermarks)


def starting(ends: pa.Table, **log_starts: int) -> pa.Table:
    """The same ends with other log starts."""
    return _with(ends, "log_start", log_starts)


def checkpointed(ends: pa.Table, **of_node: str) -> pa.Table:
    """The same ends with these epoch checkpoints."""
    return _with(ends, "epoch_checkpoint", of_node)


def _with(ends: pa.Table, column: str, values: Mapping[str, object]) -> pa.Table:
    rows = [row | {column: values.get(row["node"], row[column])} for row in ends.to_pylist()]
    return pa.Table.from_pylist(rows, REPLICA_ENDS)


def event(
    time_s: float, node: str, kind: str, detail: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """One trace event of partition t-0 (of none, for what concerns a whole broker)."""
    whole = kind == "registered" or kind.startswith(("node_", "broker_", "quorum_", "metadata_"))
    row: dict[str, Any] = dict.fromkeys(TRACE.names, -1) | {
        "time_ns": round(time_s * S),
        "node": node,
        "kind": kind,
        "topic": "" if whole else "t",
        "partition": -1 if whole else 0,
        "members": [],
        "detail": json.dumps(detail) if detail is not None else "",
    }
    return row | fields


def stalled(time_s: float, node: str, for_s: float) -> dict[str, Any]:
    """The event of a process that goes on at this time, and had not run for so long."""
    return event(time_s, node, "node_stalled", {"for_ms": round(for_s * 1000)})


def trace(*events: dict[str, Any]) -> pa.Table:
    """The events, in the order given."""
    return pa.Table.from_pylist([row | {"seq": number} for number, row in enumerate(events)], TRACE)


def fault(
    name: str, nodes: list[str], started_s: float, ended_s: float | None, evidence: Mapping[str, Any], bit: bool = True
) -> dict[str, Any]:
    return {
        "fault": name,
        "family": name,
        "nodes": nodes,
        "started_ns": round(started_s * S),
        "ended_ns": None if ended_s is None else round(ended_s * S),
        "detail": "{}",
        "evidence": json.dumps(evidence),
        "bit": bit,
        "note": "",
    }


def clock_fault(node: str, started_s: float, ended_s: float | None, **did: float) -> dict[str, Any]:
    """A fault of a node's clocks that has done what it says: `jump_ms`, `rate`, `wall_jump_ms`."""
    detail = json.dumps({"rate": 1, **did})
    return fault("clock", [node], started_s, ended_s, {"injection_seconds": 0}) | {"detail": detail}


def faults(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), FAULTS)
