"""Histories of any size from a seed, for measuring and testing checkers.

`history` makes what a workload of producers, tailing consumers and end-offset readers would have recorded against a log
that is correct: every operation takes effect at one instant inside its interval. It is vectorised and made in blocks of
time, so a hundred million operations take a minute and no more memory than their own columns.

Of the operations about 70 % are appends (of which 1 % end `info`, half of those in the log, and 0.5 % `fail`), 25 % are
polls which together return nearly every record twice, and 5 % read the end offset. Rows are in the order of invocation,
but for a few at the boundaries of blocks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from workloads.columns import APPEND, END_OFFSET, FAIL, INFO, NEVER, NOTHING, OK, POLL, Columns, Int64

BLOCK = 1 << 20
APPENDS, POLLS = 0.70, 0.25
CONSUMERS = 2
_INFO, _INFO_IN_LOG, _FAIL = 0.01, 0.5, 0.005
_SPACING_NS = 1_000
"""Mean time between two operations."""
_LATENCY_NS = 40_000
"""Longest time between an operation's invocation and its instant, and again to its completion."""


def history(operations: int, seed: int) -> Columns:
    """A linearizable history of one partition, the same for the same arguments."""
    return history_and_log(operations, seed)[0]


def history_and_log(operations: int, seed: int) -> tuple[Columns, Int64]:
    """`history`, and the values that stand in the log at its end, in order."""
    random = np.random.default_rng([seed, operations])
    rows = Columns(
        kind=np.empty(operations, dtype=np.int8),
        outcome=np.empty(operations, dtype=np.int8),
        invoked_ns=np.empty(operations, dtype=np.int64),
        completed_ns=np.empty(operations, dtype=np.int64),
        value=np.empty(operations, dtype=np.int64),
        offset=np.empty(operations, dtype=np.int64),
        starts=np.zeros(operations + 1, dtype=np.int64),
        poll_offset=np.empty(0, dtype=np.int64),
        poll_value=np.empty(0, dtype=np.int64),
    )
    poll_offset, poll_value, logs = [rows.poll_offset], [rows.poll_value], [rows.poll_value]
    end, now_ns, value = 0, 0, 0
    for first in range(0, operations, BLOCK):
        block, log, now_ns, value = _block(random, min(BLOCK, operations - first), end, now_ns, value)
        end += len(log)
        logs.append(log)
        last = first + len(block)
        for name in ("kind", "outcome", "invoked_ns", "completed_ns", "value", "offset"):
            getattr(rows, name)[first:last] = getattr(block, name)
        rows.starts[first + 1 : last + 1] = rows.starts[first] + block.starts[1:]
        poll_offset.append(block.poll_offset)
        poll_value.append(block.poll_value)
    whole = replace(rows, poll_offset=np.concatenate(poll_offset), poll_value=np.concatenate(poll_value))
    return whole, np.concatenate(logs)


def with_violation(columns: Columns, seed: int) -> Columns:
    """The same history with the offsets of two acknowledged appends exchanged, so far apart that real time forbids
    it. Raises ValueError when there are too few appends."""
    random = np.random.default_rng([seed, 1])
    acknowledged = np.flatnonzero((columns.kind == APPEND) & (columns.outcome == OK))
    if len(acknowledged) < 1_000:
        raise ValueError(f"{len(acknowledged)} acknowledged appends are too few to exchange two that are far apart")
    early = acknowledged[random.integers(0, len(acknowledged) // 4)]
    late = acknowledged[random.integers(3 * len(acknowledged) // 4, len(acknowledged))]
    offset = columns.offset.copy()
    offset[[early, late]] = offset[[late, early]]
    return replace(columns, offset=offset)


def _block(
    random: np.random.Generator, rows: int, end: int, now_ns: int, value: int
) -> tuple[Columns, Int64, int, int]:
    """One stretch of time, what it puts into the log, and where it leaves the clock and the last value used."""
    instants = now_ns + np.cumsum(random.integers(1, 2 * _SPACING_NS, rows))
    draw = random.random(rows)
    kind = np.full(rows, END_OFFSET, dtype=np.int8)
    kind[draw < APPENDS + POLLS] = POLL
    kind[draw < APPENDS] = APPEND
    appends, polls = np.flatnonzero(kind == APPEND), np.flatnonzero(kind == POLL)
    outcome = np.full(rows, OK, dtype=np.int8)
    fate = random.random(len(appends))
    outcome[appends[fate < _INFO + _FAIL]] = FAIL
    outcome[appends[fate < _INFO]] = INFO
    in_log = np.zeros(rows, dtype=bool)
    in_log[appends] = (fate >= _INFO + _FAIL) | (fate < _INFO * _INFO_IN_LOG)
    length = end + np.cumsum(in_log)
    values = np.full(rows, NOTHING, dtype=np.int64)
    values[appends] = value + 1 + np.arange(len(appends))
    offset = np.where(kind == END_OFFSET, length, NOTHING)
    acknowledged = in_log & (outcome == OK)
    offset[acknowledged] = length[acknowledged] - 1
    log = values[in_log]
    starts, poll_offset = _tail(polls, length, end, offset, rows)
    invoked_ns = instants - random.integers(0, _LATENCY_NS, rows)
    completed_ns = instants + random.integers(0, _LATENCY_NS, rows)
    lost = outcome == INFO
    completed_ns[lost] = np.where(random.random(int(lost.sum())) < 0.5, NEVER, completed_ns[lost])
    order = np.argsort(invoked_ns, kind="stable")
    lengths = np.diff(starts)
    where = np.repeat(starts[:-1][order] - _begins(lengths[order]), lengths[order]) + np.arange(len(poll_offset))
    poll_offset = poll_offset[where]
    block = Columns(
        kind=kind[order],
        outcome=outcome[order],
        invoked_ns=invoked_ns[order],
        completed_ns=completed_ns[order],
        value=values[order],
        offset=offset[order],
        starts=np.concatenate([[0], np.cumsum(lengths[order])]),
        poll_offset=poll_offset,
        poll_value=log[poll_offset - end],
    )
    return block, log, int(instants[-1]), value + len(appends)


def _begins(lengths: Int64) -> Int64:
    return np.cumsum(lengths) - lengths


def _tail(polls: Int64, length: Int64, end: int, offset: Int64, rows: int) -> tuple[Int64, Int64]:
    """Consumers take turns; each poll returns all from where its consumer stopped to the end it finds. Records
    appended after a consumer's last poll of a block are skipped. Writes the positions asked into `offset`."""
    lengths = np.zeros(rows, dtype=np.int64)
    first = np.zeros(rows, dtype=np.int64)
    for consumer in range(CONSUMERS):
        mine = polls[consumer::CONSUMERS]
        position = np.concatenate([[end], length[mine][:-1]]) if len(mine) else mine
        offset[mine] = position
        first[mine] = position
        lengths[mine] = length[mine] - position
    starts = np.concatenate([[0], np.cumsum(lengths)])
    where = np.repeat(first - starts[:-1], lengths) + np.arange(int(starts[-1]))
    return starts, where
