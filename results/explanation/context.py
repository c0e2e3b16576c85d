"""What surrounded a moment: the faults that were active, and the operations of clients that carried the records."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from results.run.downtime import nodes_kept_down

SHOWN: Final = 2
JUST_ENDED_NS: Final = 5_000_000_000
"""A fault that ended no longer ago than this is named when none is active: its effects may go on."""


def faults_at(faults: pa.Table, time_ns: int) -> tuple[str, ...]:
    """The faults with an effect, or that kept a node down, which were active at that time, the newest first; else those
    that ended last before."""
    if time_ns < 0:
        return ()
    kept_down = nodes_kept_down(faults)
    effective = [row for row, kept in zip(faults.to_pylist(), kept_down, strict=True) if row["bit"] or kept]
    rows = [row for row in effective if row["started_ns"] <= time_ns]
    rows.sort(key=lambda row: row["started_ns"], reverse=True)
    active = [row for row in rows if row["ended_ns"] is None or row["ended_ns"] >= time_ns]
    if active:
        return tuple(_some(f"{_name(row)} since {row['started_ns'] / 1e9:.3f} s" for row in active))
    ended = [row for row in rows if time_ns - row["ended_ns"] <= JUST_ENDED_NS]
    ended.sort(key=lambda row: row["ended_ns"], reverse=True)
    recent = tuple(_some(f"{_name(row)} until {row['ended_ns'] / 1e9:.3f} s" for row in ended))
    return recent or ("none active",)


def _name(row: dict[str, object]) -> str:
    nodes = row["nodes"] if isinstance(row["nodes"], list) else []
    return str(row["note"] or f"{row['fault']} {', '.join(nodes)}").strip()


def requests_about(
    history: pa.Table, topic: str, partition: int, offsets: Collection[int], operations: Collection[int]
) -> tuple[str, ...]:
    """The appends that wrote these records, and the other operations that the findings name, in order of invocation."""
    own = (pc.field("topic") == topic) & (pc.field("partition") == partition)
    rows = history.filter(own).filter(
        pc.field("index").isin(sorted(operations))
        | ((pc.field("kind") == "append") & pc.field("offset").isin(sorted(offsets)))
    )
    return tuple(_some(_operation(row) for row in rows.sort_by("invoked_ns").to_pylist()))


def _operation(row: dict[str, object]) -> str:
    invoked, completed = row["invoked_ns"], row["completed_ns"]
    assert isinstance(invoked, int)
    until = f"{completed / 1e9:.6f} s" if isinstance(completed, int) else "never answered"
    what = f"{row['kind']} #{row['index']}"
    if row["kind"] == "append":
        what += f" of value {row['value']}" + (f" → offset {row['offset']}" if row["offset"] is not None else "")
    elif row["offset"] is not None:
        what += f" at {row['offset']}"
    return f"{what}, {row['outcome']} ({invoked / 1e9:.6f} s to {until})"


def _some(texts: Iterator[str]) -> Iterator[str]:
    every = list(texts)
    yield from every[:SHOWN]
    if len(every) > SHOWN:
        yield f"{len(every) - SHOWN} more"
