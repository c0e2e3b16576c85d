"""The logs of one partition's replicas side by side, offset by offset, with every difference marked.

Two replicas differ at an offset when both hold a record there and its leader epoch or its value is not the same, or
when one of them has nothing there although its log reaches further. A log that merely ends earlier, or begins later,
does not differ: it is behind, or has deleted. Stretches in which nothing differs are folded to a line, except where a
log begins or ends or a leader epoch starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup

from results.pages import page

AROUND = 2
"""Offsets shown on either side of whatever is worth a look."""
ROWS_MAX = 600
_NULL = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class ReplicaEnd:
    """The bounds of a replica's log."""

    node: str
    log_start: int
    log_end: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """One replica's record at an offset, or the reason it has none."""

    state: str
    """record · missing (a hole in its log) · ended · before (its log begins later)"""
    leader_epoch: int = -1
    value: int | None = None
    committed: bool = False
    """Below the replica's high watermark."""
    odd: bool = False
    """Different from the majority of the replicas."""


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One offset, or a folded stretch of them, in which case there are no cells."""

    first: int
    last: int
    records: int
    differs: bool = False
    cells: tuple[ReplicaRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class AlignedReplicas:
    """A partition's replicas, aligned."""

    ends: tuple[ReplicaEnd, ...]
    rows: tuple[OffsetRow, ...]
    differing: tuple[int, ...]
    """The offsets at which they differ."""
    left_out: int = 0
    """Rows beyond ROWS_MAX."""


def partitions(ends: pa.Table) -> list[tuple[str, int]]:
    """The partitions that have replicas, in order."""
    return sorted(set(zip(ends["topic"].to_pylist(), ends["partition"].to_pylist(), strict=True)))


def align(replicas: pa.Table, ends: pa.Table, topic: str, partition: int) -> AlignedReplicas:
    """Align the replicas of REPLICAS and REPLICA_ENDS side by side."""
    logs = _of(ends, topic, partition).sort_by("node").to_pylist()
    bounds = tuple(ReplicaEnd(row["node"], row["log_start"], row["log_end"], row["high_watermark"]) for row in logs)
    records = _of(replicas, topic, partition)
    offsets = np.unique(records["offset"].to_numpy())
    if not len(offsets):
        return AlignedReplicas(bounds, (), ())
    present = np.zeros((len(bounds), len(offsets)), dtype=bool)
    epochs = np.full(present.shape, -1, dtype=np.int64)
    values = np.full(present.shape, _NULL, dtype=np.int64)
    for number, end in enumerate(bounds):
        own = records.filter(pc.equal(records["node"], end.node))
        at = np.searchsorted(offsets, own["offset"].to_numpy())
        present[number, at] = True
        epochs[number, at] = own["leader_epoch"].to_numpy()
        values[number, at] = pc.fill_null(own["value"], int(_NULL)).to_numpy()
    missing = _within(bounds, offsets) & ~present
    differs = _unlike(epochs, present) | _unlike(values, present) | missing.any(axis=0)
    shown = _worth_showing(bounds, offsets, epochs, present, differs)
    odd = _odd(epochs, values, present, differs)
    rows = list(_rows(bounds, offsets, epochs, values, present, differs, shown, odd))
    return AlignedReplicas(
        bounds, tuple(rows[:ROWS_MAX]), tuple(int(it) for it in offsets[differs]), max(0, len(rows) - ROWS_MAX)
    )


def _of(table: pa.Table, topic: str, partition: int) -> pa.Table:
    return table.filter(pc.and_(pc.equal(table["topic"], topic), pc.equal(table["partition"], partition)))


Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


def _within(bounds: tuple[ReplicaEnd, ...], offsets: Numbers) -> Mask:
    """Mask of the offsets within each replica's log."""
    return np.array([(offsets >= end.log_start) & (offsets < end.log_end) for end in bounds], dtype=bool)


def _unlike(numbers: Numbers, present: Mask) -> Mask:
    """Mask of the offsets at which the present values differ."""
    least = np.where(present, numbers, np.iinfo(np.int64).max).min(axis=0)
    greatest = np.where(present, numbers, np.iinfo(np.int64).min).max(axis=0)
    return (least != greatest) & (present.sum(axis=0) > 1)


def _worth_showing(
    bounds: tuple[ReplicaEnd, ...], offsets: Numbers, epochs: Numbers, present: Mask, differs: Mask
) -> Mask:
    edges = {0, len(offsets) - 1}
    for end in bounds:
        edges |= {int(np.searchsorted(offsets, it)) for it in (end.log_start, end.log_end - 1, end.log_end)}
    newest = np.where(present, epochs, -1).max(axis=0)
    marked = differs.copy()
    marked[1:] |= newest[1:] != newest[:-1]
    marked[[edge for edge in sorted(edges) if edge < len(offsets)]] = True
    shown = marked.copy()
    for step in range(1, AROUND + 1):
        shown[step:] |= marked[:-step]
        shown[:-step] |= marked[step:]
    return shown


def _odd(epochs: Numbers, values: Numbers, present: Mask, differs: Mask) -> Mask:
    """Mask of the records that differ from the majority; of equal groups the first one wins."""
    odd = np.zeros(present.shape, dtype=bool)
    for at in np.flatnonzero(differs):
        held = [(int(e), int(v)) for e, v in zip(epochs[:, at], values[:, at], strict=True)]
        voices = [held[number] for number in range(len(held)) if present[number, at]]
        most = max(voices, key=voices.count)
        odd[:, at] = [present[number, at] and held[number] != most for number in range(len(held))]
    return odd


def _rows(
    bounds: tuple[ReplicaEnd, ...],
    offsets: Numbers,
    epochs: Numbers,
    values: Numbers,
    present: Mask,
    differs: Mask,
    shown: Mask,
    odd: Mask,
) -> Iterator[OffsetRow]:
    at = 0
    while at < len(offsets):
        if not shown[at]:
            to = at
            while to < len(offsets) and not shown[to]:
                to += 1
            yield OffsetRow(int(offsets[at]), int(offsets[to - 1]), to - at)
            at = to
            continue
        offset = int(offsets[at])
        cells = []
        for number, end in enumerate(bounds):
            if present[number, at]:
                value = None if values[number, at] == _NULL else int(values[number, at])
                committed = offset < end.high_watermark
                cells.append(ReplicaRecord("record", int(epochs[number, at]), value, committed, bool(odd[number, at])))
            elif offset >= end.log_end:
                cells.append(ReplicaRecord("ended"))
            else:
                cells.append(ReplicaRecord("before" if offset < end.log_start else "missing"))
        yield OffsetRow(offset, offset, 1, bool(differs[at]), tuple(cells))
        at += 1


def section(replicas: AlignedReplicas, name: str) -> Markup:
    """The section of one partition."""
    return page.render("replica_diff.html", replicas=replicas, name=name)
