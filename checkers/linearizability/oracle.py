"""The oracle of linearizability: a general search on small histories, simple enough to be trusted.

This is the checker of Wing and Gong with Lowe's memory of configurations already tried. It knows nothing of offsets,
sorting or scans. It is exponential and meant for a dozen operations; it is the oracle that
`checkers.linearizability` is tested against.

The object is a log, a tuple of values with no holes:

append(v) → o           o is the length before; v is at the end afterwards
poll(p) → values        the values from p on, as many as were returned, each at the offset it was returned with.
                        An empty answer means nothing (`recency: default`) or that p is the end (`strict`)
end_offset → h          h is the length

An operation takes effect at one instant between its invocation and its completion, both included: `a` is before `b`
only if `a` completed *strictly* before `b` was invoked. An append of unknown outcome (`info`), or one acknowledged
without an offset, takes effect at an instant from its invocation to the end of time, or never. A failed append has no
effect. Reads without an answer say nothing.

Blind spots: those of `checkers.linearizability.checker`, which decides the same question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workloads.columns import APPEND, END_OFFSET, FAIL, NEVER, NOTHING, OK, POLL, Columns

LogValues = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that had, or may have had, an effect or an answer."""

    kind: int
    invoked_ns: int
    deadline_ns: int
    """When it completed; NEVER if it need not have taken effect by then."""
    optional: bool
    """It may never take effect."""
    value: int = NOTHING
    offset: int = NOTHING
    records: tuple[tuple[int, int], ...] = ()


def operations(columns: Columns) -> list[Operation]:
    """The operations to place: every operation of `columns` but failed appends and reads without an answer."""
    placed = []
    for row in range(len(columns)):
        kind, outcome = int(columns.kind[row]), int(columns.outcome[row])
        offset = int(columns.offset[row])
        if outcome == FAIL or (kind != APPEND and outcome != OK) or (kind == END_OFFSET and offset == NOTHING):
            continue
        span = slice(int(columns.starts[row]), int(columns.starts[row + 1]))
        records = zip(columns.poll_offset[span].tolist(), columns.poll_value[span].tolist(), strict=True)
        unknown = kind == APPEND and (outcome != OK or offset < 0)
        placed.append(
            Operation(
                kind=kind,
                invoked_ns=int(columns.invoked_ns[row]),
                deadline_ns=NEVER if unknown else int(columns.completed_ns[row]),
                optional=unknown,
                value=int(columns.value[row]),
                offset=NOTHING if unknown else offset,
                records=tuple(records),
            )
        )
    return placed


def step(log: LogValues, operation: Operation, recency: str) -> LogValues | None:
    """The log after `operation`, or None when it could not have been answered so."""
    if operation.kind == APPEND:
        return (*log, operation.value) if operation.offset in (NOTHING, len(log)) else None
    if operation.kind == END_OFFSET:
        return log if operation.offset == len(log) else None
    assert operation.kind == POLL
    if not operation.records:
        asserts_the_end = recency == "strict" and operation.offset != NOTHING
        return log if not asserts_the_end or operation.offset == len(log) else None
    first = operation.records[0][0] if operation.offset == NOTHING else operation.offset
    for expected, (offset, value) in enumerate(operation.records, first):
        if offset != expected or not 0 <= offset < len(log) or log[offset] != value:
            return None
    return log


def linearizable(placed: Sequence[Operation], recency: str = "default") -> bool:
    """Whether one order of `placed` obeys real time and the log."""
    required = sum(1 << number for number, operation in enumerate(placed) if not operation.optional)
    tried: set[tuple[int, LogValues]] = set()
    stack: list[tuple[int, LogValues]] = [(0, ())]
    while stack:
        done, log = stack.pop()
        if done & required == required:
            return True
        if (done, log) in tried:
            continue
        tried.add((done, log))
        left = [number for number in range(len(placed)) if not done >> number & 1]
        earliest_deadline_ns = min(placed[number].deadline_ns for number in left)
        for number in left:
            operation = placed[number]
            if operation.invoked_ns > earliest_deadline_ns:
                continue
            after = step(log, operation, recency)
            if after is not None:
                stack.append((done | 1 << number, after))
    return False
