"""Places in a history at which an anomaly is injected: operations that overlap others of the same partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from workloads.history import SCHEMA as HISTORY

Row = dict[str, Any]
NEVER_NS = 1 << 62


def rows_of(history: pa.Table) -> list[Row]:
    """The history's rows, in the order of invocation."""
    rows: list[Row] = history.sort_by("index").to_pylist()
    return rows


def history_of(rows: Sequence[Row]) -> pa.Table:
    """The inverse of `rows_of`."""
    return pa.Table.from_pylist(list(rows), HISTORY)


def by_partition(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """The rows of each partition, in order."""
    partitions: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        partitions.setdefault((row["topic"], row["partition"]), []).append(row)
    return partitions


def overlaps(row: Row, others: Sequence[Row]) -> bool:
    """Whether an operation of another process on the same partition was open while `row` was."""
    ended = row["completed_ns"] or NEVER_NS
    return any(
        other["process"] != row["process"]
        and (other["topic"], other["partition"]) == (row["topic"], row["partition"])
        and other["invoked_ns"] < ended
        and (other["completed_ns"] or NEVER_NS) > row["invoked_ns"]
        for other in others
    )


def shuffled(items: Sequence[Any], random: Random) -> Iterator[Any]:
    """All of `items`, in a random order."""
    yield from random.sample(items, len(items))


def overlapping(rows: Sequence[Row], random: Random, fits: Callable[[Row], bool]) -> Iterator[Row]:
    """The rows that `fits` accepts and other processes' operations overlap, in a random order."""
    yield from (row for row in shuffled([row for row in rows if fits(row)], random) if overlaps(row, rows))
