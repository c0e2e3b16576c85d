"""Small histories for tests: written out by hand, or decided byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workloads.columns import APPEND, END_OFFSET, FAIL, INFO, NEVER, NOTHING, OK, POLL, Columns

Decide = Callable[[int], int]
"""decide(n) chooses one of 0 … n−1."""


@dataclass(frozen=True)
class Row:
    """One operation of a history written out by hand; times in whatever unit, offsets of polls by record."""

    kind: int
    invoked: int
    completed: int = NEVER
    outcome: int = OK
    value: int = NOTHING
    offset: int = NOTHING
    records: tuple[tuple[int, int], ...] = ()


def append(value: int, invoked: int, completed: int = NEVER, offset: int = NOTHING, outcome: int = OK) -> Row:
    return Row(APPEND, invoked, completed, outcome, value, offset)


def poll(position: int, invoked: int, completed: int, *values: int) -> Row:
    records = tuple(enumerate(values, position))
    return Row(POLL, invoked, completed, OK, NOTHING, position, records)


def end_offset(invoked: int, completed: int, end: int) -> Row:
    return Row(END_OFFSET, invoked, completed, OK, NOTHING, end)


def columns(rows: Sequence[Row]) -> Columns:
    """The rows as they stand."""
    records = [record for row in rows for record in row.records]
    return Columns(
        kind=np.array([row.kind for row in rows], dtype=np.int8),
        outcome=np.array([row.outcome for row in rows], dtype=np.int8),
        invoked_ns=np.array([row.invoked for row in rows], dtype=np.int64),
        completed_ns=np.array([row.completed for row in rows], dtype=np.int64),
        value=np.array([row.value for row in rows], dtype=np.int64),
        offset=np.array([row.offset for row in rows], dtype=np.int64),
        starts=np.cumsum([0, *(len(row.records) for row in rows)], dtype=np.int64),
        poll_offset=np.array([offset for offset, _ in records], dtype=np.int64),
        poll_value=np.array([value for _, value in records], dtype=np.int64),
    )


def correct(decide: Decide, size: int) -> list[Row]:
    """A history of a log that is correct: every operation takes effect at an instant inside its interval, reads may
    return an old prefix, answers get lost. Times are small, so that many are equal."""
    log: list[int] = []
    rows, now, slack = [], 3, 1 + decide(3)
    for number in range(size):
        now += decide(4)
        invoked, completed = now - decide(slack + 1), now + decide(slack + 1)
        kind = (APPEND, APPEND, APPEND, POLL, POLL, END_OFFSET)[decide(6)]
        if kind == APPEND:
            value = 100 + number
            outcome = (OK, OK, OK, INFO, INFO, FAIL)[decide(6)]
            if outcome == OK or (outcome == INFO and decide(3)):
                log.append(value)
            offset = len(log) - 1 if outcome == OK and decide(12) else NOTHING
            rows.append(append(value, invoked, completed if decide(4) else NEVER, offset, outcome))
            if outcome == OK and not rows[-1].completed < NEVER:
                rows[-1] = replace(rows[-1], completed=completed)
        elif kind == POLL:
            position = decide(len(log) + 1)
            seen = log[position : position + decide(4)] if decide(8) else []
            rows.append(poll(position, invoked, completed, *seen))
            if decide(10) == 0:
                rows[-1] = replace(rows[-1], offset=NOTHING)
            if decide(16) == 0:
                rows[-1] = replace(rows[-1], outcome=INFO, records=())
        else:
            outcome = FAIL if decide(16) == 0 else OK
            rows.append(replace(end_offset(invoked, completed, len(log)), outcome=outcome))
    return rows


def mutated(rows: list[Row], decide: Decide) -> list[Row]:
    """One row changed in a way that may, or may not, contradict the others."""
    at = decide(len(rows))
    row = rows[at]
    change = decide(6)
    if change == 0:
        shift = (-8, -4, -2, -1, 1, 2, 4, 8)[decide(8)]
        completed = row.completed + shift if row.completed != NEVER else NEVER
        row = replace(row, invoked=row.invoked + shift, completed=completed)
    elif change == 1 and row.offset != NOTHING:
        row = replace(row, offset=max(row.offset + (-1, 1, 2)[decide(3)], 0))
    elif change == 2 and row.kind == APPEND:
        outcome = decide(3)
        row = replace(row, outcome=outcome, offset=row.offset if outcome == OK else NOTHING)
    elif change == 3 and row.completed != NEVER:
        row = replace(row, completed=row.invoked + decide(2))
    elif row.records:
        records = list(row.records)
        which = decide(len(records))
        offset, value = records[which]
        what = decide(5)
        if what == 0:
            records[which] = (offset + (-1, 1)[decide(2)], value)
        elif what == 1:
            records[which] = (offset, 100 + decide(8))
        elif what == 2:
            del records[which]
        elif what == 3:
            records.append((records[-1][0] + 1, 100 + decide(8)))
        else:
            records = [(offset + 1, value) for offset, value in records]
        row = replace(row, records=tuple(records))
    elif row.kind != APPEND and row.offset != NOTHING:
        row = replace(row, offset=row.offset + 1)
    return [*rows[:at], row, *rows[at + 1 :]]
