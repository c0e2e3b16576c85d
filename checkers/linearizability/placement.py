"""Placement of every operation of one partition in the log, and the operations that cannot be placed. Arrays only.

`place` is the computation behind `checkers.linearizability.checker`, whose docstring says why it decides the question.
It walks the rows a few times in chunks that fit the processor's cache. Two arrays with one slot an offset are the only
memory that grows with the history, besides the history itself (16 bytes an offset). Nothing is sorted: the log is
dense, so an offset is its own address.

Time: linear in rows, returned records and the end of the log. Rows may come in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workloads.columns import APPEND, END_OFFSET, FAIL, INFO, NOTHING, OK, POLL, Columns, Int64

CHUNK_ROWS = 1 << 17
_SPARE_SLOTS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class MisplacedRecords:
    """Records that polls returned at an offset where the log does not have them; one entry a record."""

    record: Int64
    """Position in `poll_offset` and `poll_value`."""
    row: Int64
    """The poll."""
    kind: Int64
    """One of CONFLICT, DUPLICATE, FAILED, PHANTOM."""


CONFLICT, DUPLICATE, FAILED, PHANTOM = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The log that the operations describe, and every operation that contradicts it (by row)."""

    end: int
    """One more than the greatest offset any operation speaks of."""
    too_sparse: bool
    """`end` lies so far beyond the number of appends that nothing else was looked at."""
    value_at: Int64
    """Value by offset; NOTHING where no operation shows it."""
    latest: Int64
    """By offset: the latest invocation of all that must come no later than the append at that offset."""
    filled_by: Int64
    """By offset: row of the append of unknown outcome that stands there, for the offsets in `filled`."""
    filled: Int64
    reused_values: bool
    impossible: Int64
    """Reads that returned a negative offset."""
    conflicting: Int64
    """Acknowledged appends whose offset another append was acknowledged with."""
    gaps: Int64
    """Polls that did not return one record an offset from the position asked on."""
    misplaced: MisplacedRecords
    unexplained: Int64
    """Offsets below the end that none of the appends can have taken."""
    late: Int64
    """Operations that must have taken effect before their completion and cannot have."""
    acknowledged: int
    unknown: int
    unknown_seen: int
    failed: int


def _none() -> Int64:
    return np.empty(0, dtype=np.int64)


def _joined(parts: list[Int64]) -> Int64:
    return np.concatenate(parts) if parts else _none()


class _Rows:
    """The rows of each role, recomputed chunk by chunk rather than kept: it costs less than the memory."""

    def __init__(self, columns: Columns, recency: str, offsets_binding: bool, ends_confirmed: bool) -> None:
        self.columns = columns
        self.strict = recency == "strict"
        self.offsets_binding = offsets_binding
        self.ends_confirmed = ends_confirmed

    def chunks(self) -> Iterator[slice]:
        for first in range(0, len(self.columns), CHUNK_ROWS):
            yield slice(first, min(first + CHUNK_ROWS, len(self.columns)))

    def acknowledged(self, chunk: slice) -> Int64:
        """Appends acknowledged with an offset that binds."""
        columns = self.columns
        if not self.offsets_binding:
            return _none()
        ok = (columns.kind[chunk] == APPEND) & (columns.outcome[chunk] == OK) & (columns.offset[chunk] >= 0)
        return np.flatnonzero(ok) + chunk.start

    def unknown(self, chunk: slice) -> Int64:
        """Appends that may have happened, at no offset known from them."""
        columns = self.columns
        maybe = columns.outcome[chunk] == INFO
        ok = columns.outcome[chunk] == OK
        maybe |= ok & (columns.offset[chunk] < 0) if self.offsets_binding else ok
        return np.flatnonzero(maybe & (columns.kind[chunk] == APPEND)) + chunk.start

    def failed(self, chunk: slice) -> Int64:
        columns = self.columns
        return np.flatnonzero((columns.kind[chunk] == APPEND) & (columns.outcome[chunk] == FAIL)) + chunk.start

    def ends(self, chunk: slice) -> Int64:
        """Reads that assert the end of the log to be their `offset`."""
        columns = self.columns
        asserts = columns.kind[chunk] == END_OFFSET
        if self.strict:
            empty = columns.starts[chunk.start + 1 : chunk.stop + 1] == columns.starts[chunk]
            asserts |= (columns.kind[chunk] == POLL) & empty
        asserts &= (columns.outcome[chunk] == OK) & (columns.offset[chunk] != NOTHING)
        return np.flatnonzero(asserts) + chunk.start

    def binding_ends(self, chunk: slice) -> Int64:
        """Those of `ends` that later appends must come after; where end offsets are not confirmed, a stale one may be
        told long after them."""
        read = self.ends(chunk)
        return read if self.ends_confirmed else read[self.columns.kind[read] != END_OFFSET]

    def polls(self, chunk: slice) -> Int64:
        """Polls that returned something."""
        starts = self.columns.starts
        return np.flatnonzero(starts[chunk.start + 1 : chunk.stop + 1] > starts[chunk]) + chunk.start


def place(
    columns: Columns,
    *,
    recency: str = "default",
    offsets_binding: bool = True,
    ends_confirmed: bool = True,
    copies: Sequence[range] = (),
) -> Placement:
    """Place every operation at the offset that it asserts. With `offsets_binding=False` an acknowledgement promises
    neither its offset nor that the append stays (acks=1), so that acknowledged appends count as of unknown outcome.
    With `ends_confirmed=False` an end offset says that the log was at least so long, and not that it was no longer.
    At `copies` may stand records that have another place in the log, too."""
    rows = _Rows(columns, recency, offsets_binding, ends_confirmed)
    end, impossible = 0, []
    unknown_parts, failed_parts, acknowledged = [], [], 0
    for chunk in rows.chunks():
        acked = rows.acknowledged(chunk)
        acknowledged += len(acked)
        end = max(end, int(columns.offset[acked].max(initial=-1)) + 1)
        read = rows.ends(chunk)
        asserted = columns.offset[read]
        end = max(end, int(asserted.max(initial=0)))
        impossible.append(read[asserted < 0])
        returned = columns.poll_offset[int(columns.starts[chunk.start]) : int(columns.starts[chunk.stop])]
        end = max(end, int(returned.max(initial=-1)) + 1)
        if returned.min(initial=0) < 0:
            records = np.flatnonzero(returned < 0) + int(columns.starts[chunk.start])
            impossible.append(np.unique(np.searchsorted(columns.starts, records, side="right") - 1))
        unknown_parts.append(rows.unknown(chunk))
        failed_parts.append(rows.failed(chunk))
    unknown, failed = _joined(unknown_parts), _joined(failed_parts)
    appends = acknowledged + len(unknown) + len(failed)
    too_sparse = end > 4 * appends + _SPARE_SLOTS
    slots = 0 if too_sparse else end
    value_at = np.full(slots, NOTHING, dtype=np.int64)
    latest = np.full(slots + 1, NOTHING, dtype=np.int64)
    conflicting, gaps, late = _none(), _none(), _none()
    misplaced, unexplained = (
        MisplacedRecords(_none(), _none(), _none()),
        np.arange(end - 1, end) if too_sparse else _none(),
    )
    filled, filled_by, seen = _none(), _none(), 0
    if not too_sparse:
        for chunk in rows.chunks():
            acked = rows.acknowledged(chunk)
            value_at[columns.offset[acked]] = columns.value[acked]
            latest[columns.offset[acked]] = columns.invoked_ns[acked]
        conflicting, gaps, odd = _compare(rows, value_at)
        filled, filled_by, misplaced = _place_seen(columns, value_at, unknown, failed, odd)
        seen = len(filled)
        latest[filled] = columns.invoked_ns[filled_by]
        # An offset at which a misplaced record was read is no hole: it has that finding, and needs no unseen append.
        # Nor does one where a record may stand twice.
        holes = np.setdiff1d(np.flatnonzero(value_at == NOTHING), columns.poll_offset[odd])
        for copy in copies:
            holes = holes[(holes < copy.start) | (holes >= copy.stop)]
        if len(holes):
            unseen = np.setdiff1d(unknown, filled_by, assume_unique=True)
            unseen = unseen[np.argsort(columns.invoked_ns[unseen], kind="stable")]
            taken = min(len(holes), len(unseen))
            latest[holes[:taken]] = columns.invoked_ns[unseen[:taken]]
            unexplained = holes[taken:]
            filled = np.concatenate([filled, holes[:taken]])
            filled_by = np.concatenate([filled_by, unseen[:taken]])
        for chunk in rows.chunks():
            read = rows.binding_ends(chunk)
            read = read[columns.offset[read] >= 0]
            np.maximum.at(latest, columns.offset[read], columns.invoked_ns[read])
        np.maximum.accumulate(latest, out=latest)
        late = _late(rows, latest)
    return Placement(
        end=end,
        too_sparse=too_sparse,
        value_at=value_at,
        latest=latest,
        filled_by=filled_by,
        filled=filled,
        reused_values=_reused(columns, rows),
        impossible=_joined(impossible),
        conflicting=conflicting,
        gaps=gaps,
        misplaced=misplaced,
        unexplained=unexplained,
        late=late,
        acknowledged=acknowledged,
        unknown=len(unknown),
        unknown_seen=seen,
        failed=len(failed),
    )


def _compare(rows: _Rows, value_at: Int64) -> tuple[Int64, Int64, Int64]:
    """Appends and polled records against the log: (conflicting appends, polls with gaps, records that differ)."""
    columns = rows.columns
    conflicting, gaps, odd = [], [], []
    for chunk in rows.chunks():
        acked = rows.acknowledged(chunk)
        conflicting.append(acked[value_at[columns.offset[acked]] != columns.value[acked]])
        first, last = int(columns.starts[chunk.start]), int(columns.starts[chunk.stop])
        if last == first:
            continue
        polls = rows.polls(chunk)
        begins = columns.starts[polls]
        positions = columns.offset[polls]
        if (positions == NOTHING).any():
            positions = np.where(positions == NOTHING, columns.poll_offset[begins], positions)
        returned = columns.poll_offset[first:last]
        expected = np.repeat(positions - begins, columns.starts[polls + 1] - begins)
        expected += np.arange(first, last)
        dense = expected == returned
        if not dense.all():
            records = np.flatnonzero(~dense) + first
            gaps.append(np.unique(np.searchsorted(columns.starts, records, side="right") - 1))
        if returned.min() < 0:
            possible = np.flatnonzero(returned >= 0)
            differs = possible[value_at[returned[possible]] != columns.poll_value[first:last][possible]]
        else:
            differs = np.flatnonzero(value_at[returned] != columns.poll_value[first:last])
        odd.append(differs + first)
    return _joined(conflicting), _joined(gaps), _joined(odd)


def _place_seen(
    columns: Columns, value_at: Int64, unknown: Int64, failed: Int64, odd: Int64
) -> tuple[Int64, Int64, MisplacedRecords]:
    """Give appends of unknown outcome the offset a poll saw them at. Returns those offsets, the appends' rows, and the
    records that stand nowhere. Writes `value_at`."""
    if len(odd) == 0:
        return _none(), _none(), MisplacedRecords(_none(), _none(), _none())
    order = np.argsort(columns.value[unknown], kind="stable")
    known_values = columns.value[unknown][order]
    offsets, values = columns.poll_offset[odd], columns.poll_value[odd]
    free = value_at[offsets] == NOTHING
    where = np.minimum(np.searchsorted(known_values, values), max(0, len(known_values) - 1))
    match = known_values[where] == values if len(known_values) else np.zeros(len(odd), dtype=bool)
    candidate = np.flatnonzero(match & free)
    seen_at = np.full(len(unknown), NOTHING, dtype=np.int64)
    seen_at[where[candidate][::-1]] = offsets[candidate][::-1]
    first_seen = np.flatnonzero(seen_at != NOTHING)
    value_at[seen_at[first_seen]] = known_values[first_seen]
    rest = np.flatnonzero(value_at[offsets] != values)
    stands = first_seen[value_at[seen_at[first_seen]] == known_values[first_seen]]
    if len(rest) == 0:
        return seen_at[stands], unknown[order][stands], MisplacedRecords(_none(), _none(), _none())
    kind = np.full(len(rest), PHANTOM, dtype=np.int64)
    ours, acknowledged_at = _acknowledged_offsets(columns, values[rest])
    # A record read at the very offset that its append was acknowledged with conflicts with another one there.
    kind[ours] = np.where(acknowledged_at[ours] == offsets[rest][ours], CONFLICT, DUPLICATE)
    elsewhere = free & match
    elsewhere[elsewhere] = seen_at[where[elsewhere]] != offsets[elsewhere]
    kind[match[rest]] = np.where(elsewhere[rest][match[rest]], DUPLICATE, CONFLICT)
    kind[np.isin(values[rest], columns.value[failed])] = FAILED
    polls = np.searchsorted(columns.starts, odd[rest], side="right") - 1
    return seen_at[stands], unknown[order][stands], MisplacedRecords(odd[rest], polls, kind)


def _acknowledged_offsets(columns: Columns, values: Int64) -> tuple[npt.NDArray[np.bool_], Int64]:
    """For each of `values`, whether its append was acknowledged, and with which offset."""
    acknowledged = np.flatnonzero((columns.kind == APPEND) & (columns.outcome == OK))
    if not len(acknowledged):
        return np.zeros(len(values), dtype=bool), np.full(len(values), NOTHING, dtype=np.int64)
    acknowledged = acknowledged[np.argsort(columns.value[acknowledged], kind="stable")]
    where = np.minimum(np.searchsorted(columns.value[acknowledged], values), len(acknowledged) - 1)
    return columns.value[acknowledged][where] == values, columns.offset[acknowledged][where]


def _late(rows: _Rows, latest: Int64) -> Int64:
    """Operations completed before something was invoked that must come first."""
    columns = rows.columns
    late = []
    for chunk in rows.chunks():
        acked = rows.acknowledged(chunk)
        late.append(acked[latest[columns.offset[acked]] > columns.completed_ns[acked]])
        polls = rows.polls(chunk)
        last = columns.poll_offset[columns.starts[polls + 1] - 1]
        late.append(polls[latest[np.maximum(last, 0)] > columns.completed_ns[polls]])
        read = rows.ends(chunk)
        read = read[columns.offset[read] > 0]
        late.append(read[latest[columns.offset[read] - 1] > columns.completed_ns[read]])
    return _joined(late)


def _reused(columns: Columns, rows: _Rows) -> bool:
    """Whether two appends wrote one value. Values that rise from row to row, as a counter's do, are recognised in one
    pass; others through a table of bits when their range is near their number, else by sorting."""
    previous, rising = NOTHING, True
    low, high, count = np.iinfo(np.int64).max, NOTHING, 0
    for chunk in rows.chunks():
        values = columns.value[chunk][columns.kind[chunk] == APPEND]
        if not len(values):
            continue
        rising = rising and int(values[0]) > previous and bool((values[1:] > values[:-1]).all())
        previous = int(values[-1])
        low, high, count = min(low, int(values.min())), max(high, int(values.max())), count + len(values)
    if rising:
        return False
    if high - low <= 8 * count + _SPARE_SLOTS:
        there = np.zeros(high - low + 1, dtype=bool)
        for chunk in rows.chunks():
            there[columns.value[chunk][columns.kind[chunk] == APPEND] - low] = True
        return int(np.count_nonzero(there)) != count
    return len(np.unique(columns.value[columns.kind == APPEND])) != count
