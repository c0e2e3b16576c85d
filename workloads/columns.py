"""A history as numbers: one NumPy array a column, for what must be fast.

`workloads.history.SCHEMA` keeps kinds and outcomes as strings, which is right for people and for Parquet and wrong
for a hundred million rows. `Columns` holds the same rows of *one partition*, row for row:

array         dtype   meaning
------------  ------  ------------------------------------------------------------------------------------------
kind          int8    APPEND, POLL, END_OFFSET
outcome       int8    OK, FAIL, INFO
invoked_ns    int64
completed_ns  int64   NEVER when the operation never completed
value         int64   append: the value; else NOTHING
offset        int64   as in the history; NOTHING for null
starts        int64   one more than there are rows: row r returned records starts[r] … starts[r+1]−1 of the next two
poll_offset   int64   offsets of all polls, one after the other
poll_value    int64   values of all polls, same order; FOREIGN for a record that no workload wrote
index         int64   empty when it is the row number
process       int32   empty when it is not known

NOTHING and FOREIGN are the two smallest int64 and never legal values or offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from workloads.history import SCHEMA, TopicPartition

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]

KINDS = ("append", "poll", "end_offset")
APPEND, POLL, END_OFFSET = 0, 1, 2
OUTCOMES = ("ok", "fail", "info")
OK, FAIL, INFO = 0, 1, 2
NOTHING: int = int(np.iinfo(np.int64).min)
FOREIGN: int = NOTHING + 1
NEVER: int = int(np.iinfo(np.int64).max)


def _no_int64() -> Int64:
    return np.empty(0, dtype=np.int64)


def _no_int32() -> Int32:
    return np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The rows of one partition of one history; see the module's table."""

    kind: Int8
    outcome: Int8
    invoked_ns: Int64
    completed_ns: Int64
    value: Int64
    offset: Int64
    starts: Int64
    poll_offset: Int64
    poll_value: Int64
    index: Int64 = field(default_factory=_no_int64)
    process: Int32 = field(default_factory=_no_int32)

    def __post_init__(self) -> None:
        rows = len(self.kind)
        lengths = {len(self.outcome), len(self.invoked_ns), len(self.completed_ns), len(self.value), len(self.offset)}
        if lengths != {rows} or len(self.starts) != rows + 1 or len(self.poll_offset) != len(self.poll_value):
            raise ValueError("columns of one history must have one length")

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def bytes_held(self) -> int:
        """Memory of all arrays, in bytes."""
        return sum(int(getattr(self, name).nbytes) for name in self.__slots__)

    def index_of(self, row: int) -> int:
        """The history's `index` of a row."""
        return int(self.index[row]) if len(self.index) else row

    def describe(self, row: int) -> str:
        """One readable phrase: operation, process, times and answer."""
        kind, outcome = int(self.kind[row]), int(self.outcome[row])
        process = f" by process {self.process[row]}" if len(self.process) else ""
        began = f"{self.invoked_ns[row] / 1e9:.6f} s"
        completed = int(self.completed_ns[row])
        lasted = f"{began} to {completed / 1e9:.6f} s" if completed != NEVER else f"from {began}, never completed"
        offset = int(self.offset[row])
        if kind == APPEND:
            what = f"append of value {self.value[row]}"
            answer = f"offset {offset}" if outcome == OK and offset >= 0 else OUTCOMES[outcome]
        elif kind == POLL:
            first, last = int(self.starts[row]), int(self.starts[row + 1])
            what = f"poll from {offset}" if offset != NOTHING else "poll"
            seen = f"offsets {self.poll_offset[first]} to {self.poll_offset[last - 1]}" if last > first else "nothing"
            answer = seen if outcome == OK else OUTCOMES[outcome]
        else:
            what = "end offset"
            answer = f"{offset}" if outcome == OK else OUTCOMES[outcome]
        return f"#{self.index_of(row)} {what}{process} ({lasted}) → {answer}"

    def of_appends(self, values: Int64, times_ns: Int64, otherwise: int) -> Int64:
        """The times, of those of all rows, at the appends of `values`; `otherwise` where there is none."""
        rows = np.flatnonzero((self.kind == APPEND) & np.isin(self.value, values))
        if not len(rows):
            return np.full(len(values), otherwise, dtype=np.int64)
        rows = rows[np.argsort(self.value[rows], kind="stable")]
        where = np.minimum(np.searchsorted(self.value[rows], values), len(rows) - 1)
        return np.where(self.value[rows][where] == values, times_ns[rows][where], otherwise)

    @classmethod
    def from_table(cls, table: pa.Table) -> Columns:
        """The rows of `table` (history schema, all of one partition). Raises ValueError for an unknown kind or
        outcome, for an append without a value, and for records where there can be none."""
        lengths = [numbers(pc.list_value_length(table.column(name)), 0) for name in ("offsets", "values")]
        if not np.array_equal(lengths[0], lengths[1]):
            raise ValueError("a poll has not as many values as offsets")
        starts = np.zeros(table.num_rows + 1, dtype=np.int64)
        np.cumsum(lengths[0], out=starts[1:])
        kind, outcome = _codes(table.column("kind"), KINDS), _codes(table.column("outcome"), OUTCOMES)
        value = numbers(table.column("value"), NOTHING)
        if ((lengths[0] > 0) & ((kind != POLL) | (outcome != OK))).any():
            raise ValueError("only a poll that is ok can have returned records")
        if ((value == NOTHING) & (kind == APPEND)).any():
            raise ValueError("an append has no value")
        return cls(
            kind=kind,
            outcome=outcome,
            invoked_ns=numbers(table.column("invoked_ns"), NEVER),
            completed_ns=numbers(table.column("completed_ns"), NEVER),
            value=value,
            offset=numbers(table.column("offset"), NOTHING),
            starts=starts,
            poll_offset=_flat(table.column("offsets"), NOTHING),
            poll_value=_flat(table.column("values"), FOREIGN),
            index=numbers(table.column("index"), NOTHING),
            process=numbers(table.column("process"), -1).astype(np.int32),
        )

    def to_table(self, topic: str = "t", partition: int = 0, phase: str = "main") -> pa.Table:
        """The same rows in the history's schema; for histories of moderate size."""
        rows = len(self)
        kind = pa.array(np.asarray(KINDS)[self.kind], pa.string())
        polled = self.kind == POLL
        ok_poll = polled & (self.outcome == OK)

        def lists(flat: Int64, null: int) -> pa.Array:
            values = pa.array(flat, pa.int64(), mask=flat == null)
            return pa.ListArray.from_arrays(pa.array(self.starts, pa.int32()), values, mask=pa.array(~ok_poll))

        columns = {
            "index": pa.array(self.index if len(self.index) else np.arange(rows), pa.int64()),
            "process": pa.array(self.process if len(self.process) else np.zeros(rows), pa.int32()),
            "kind": kind,
            "phase": pa.array([phase] * rows, pa.string()),
            "topic": pa.array([topic] * rows, pa.string()),
            "partition": pa.array(np.full(rows, partition), pa.int32()),
            "invoked_ns": pa.array(self.invoked_ns, pa.int64()),
            "completed_ns": pa.array(self.completed_ns, pa.int64(), mask=self.completed_ns == NEVER),
            "outcome": pa.array(np.asarray(OUTCOMES)[self.outcome], pa.string()),
            "value": pa.array(self.value, pa.int64(), mask=self.value == NOTHING),
            "offset": pa.array(self.offset, pa.int64(), mask=self.offset == NOTHING),
            "leader_epoch": pa.nulls(rows, pa.int32()),
            "offsets": lists(self.poll_offset, NOTHING),
            "values": lists(self.poll_value, FOREIGN),
            "error": pa.nulls(rows, pa.string()),
            "instance": pa.nulls(rows, pa.string()),
            "metadata": pa.nulls(rows, pa.string()),
        }
        return pa.table(columns, schema=SCHEMA)


def of_records(history: pa.Table) -> pa.Table:
    """The rows about records: appends, polls, end offsets; without the operations of groups."""
    of_ours = pc.is_in(history.column("kind"), value_set=pa.array(KINDS))
    return history if pc.all(of_ours).as_py() else history.filter(of_ours)


def partitions(history: pa.Table) -> Iterator[tuple[str, int, pa.Table]]:
    """(topic, partition, its rows about records in the order they came), by topic and partition."""
    history = of_records(history)
    names = named_partitions(history)
    for topic, number in names:
        own = pc.and_(pc.equal(history["topic"], topic), pc.equal(history["partition"], number))
        yield topic, number, history.filter(own) if len(names) > 1 else history


def named_partitions(table: pa.Table) -> list[TopicPartition]:
    """Every topic and partition with a row, in order."""
    keys = table.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([])
    return sorted(zip(keys["topic"].to_pylist(), keys["partition"].to_pylist(), strict=True))


def _whole(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def numbers(column: Any, null: int) -> Int64:
    """A column of whole numbers as int64, `null` in place of nulls."""
    filled = pc.fill_null(pc.cast(_whole(column), pa.int64()), null)
    return np.asarray(_whole(filled).to_numpy(zero_copy_only=False), dtype=np.int64)


def _flat(column: Any, null: int) -> Int64:
    return numbers(pc.list_flatten(_whole(column)), null)


def _codes(column: Any, names: tuple[str, ...]) -> Int8:
    codes = pc.index_in(_whole(column), value_set=pa.array(names, pa.string()))
    if codes.null_count:
        alien = pc.filter(_whole(column), pc.is_null(codes))[0].as_py()
        raise ValueError(f"{alien!r} is none of {', '.join(names)}")
    return np.asarray(codes.to_numpy(zero_copy_only=False), dtype=np.int8)
