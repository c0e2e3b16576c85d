"""The history: every operation of every client, with its times and its answer.

One row an operation. An operation is *invoked* and later *completed* `ok`, `fail` (it certainly did not happen) or
`info` (it may have happened, or may still happen). An operation without completion counts as `info`.

column        type           meaning
------------  -------------  -----------------------------------------------------------------------------------
index         int64          order of invocation, unique in the run; reads that came back empty leave gaps
process       int32          the client thread that asked; one operation at a time unless pipelined
kind          string         append · poll · end_offset · time_offset · assign · commit · forget (a group is deleted)
                             · reset
phase         string         main · final (what follows once the cluster has recovered)
topic         string
partition     int32
invoked_ns    int64          true time since the run began
completed_ns  int64          null when it never completed
outcome       string         ok · fail · info
value         int64          append: the unique value written; time_offset: the time asked for, in ms since the run
                             began; assign, commit, forget: the group's generation, -1 for a client that is no
                             member; else null
offset        int64          append: offset assigned (null unless ok, or when the answer named none);
                             poll: position asked;
                             end_offset: the end answered (null unless ok); time_offset: the first offset that is not
                             older (null unless ok), -1 for none; assign: where the member starts, as its
                             group had committed (0 when nothing had been); commit: the offset committed;
                             reset: where the consumer reads on after it detected a truncation (null when its reset
                             policy decides)
leader_epoch  int32          epoch of the answering leader where the answer has it; assign, commit: the epoch committed
                             with the offset; else null
offsets       list<int64>    poll: offsets returned, in the order delivered
values        list<int64>    poll: values returned, same order; a null among them for a record that no workload wrote
error         string         Kafka's error name, `timeout`, `connection` …; null when ok
instance      string         assign, commit: `group.instance.id` of a static member of the group; else null
metadata      string         assign, commit: the text committed with the offset; else null

While a run goes on the history is a file of JSON lines, `history.jsonl`, appended as things happen. A line holds its
number, from 1, so that a lost one is missed, and the columns above by name, null ones left out. What changes something,
as an append does, is two lines: its invocation (no `completed_ns`) before anything is sent, and its completion
(`index`, `completed_ns`, `outcome` and what was learnt). A read changes nothing, so it is one line, written when it
completes: a read cut short by the death of the run leaves no trace and proves nothing.
Each line is handed to the operating system in one write before the recorder returns, so that `kill -9` loses at most
the line being written, whose torn rest the reader leaves out. Operations that begin or end together may share that
write (`Recorder.together`), which is then what is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from workloads.compact_json import compact

HistoryKind = Literal["append", "poll", "end_offset", "time_offset", "assign", "commit", "forget", "reset"]
Phase = Literal["main", "final"]
OperationOutcome = Literal["ok", "fail", "info"]

KINDS: Final[tuple[str, ...]] = get_args(HistoryKind)
PHASES: Final[tuple[str, ...]] = get_args(Phase)
OUTCOMES: Final[tuple[str, ...]] = get_args(OperationOutcome)

TopicPartition = tuple[str, int]

NO_GENERATION: Final = -1
"""The generation in the commits of a client that is no member of its group."""

OUT_OF_RANGE: Final = "OFFSET_OUT_OF_RANGE"
"""The error of a poll at an offset that the log does not have."""

CHANGES: Final = ("append", "commit", "forget")
"""Kinds of operations that change the cluster, and so are never discarded."""

SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("process", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("invoked_ns", pa.int64(), nullable=False),
        pa.field("completed_ns", pa.int64()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("value", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("offsets", pa.list_(pa.int64())),
        pa.field("values", pa.list_(pa.int64())),
        pa.field("error", pa.string()),
        pa.field("instance", pa.string()),
        pa.field("metadata", pa.string()),
    ],
    metadata={"faultline.table": "history", "faultline.version": "1"},
)

_COLUMNS: Final = tuple(SCHEMA.names)


class Recorder:
    """Writes the history of one run as it happens.

    `path` is created, or emptied; without one the operations are kept in memory. `now_ns` gives the true time since the
    run began; `on_acknowledged` is called with the partition of each append that ends `ok`. Not for several threads.
    """

    def __init__(
        self,
        path: Path | None,
        now_ns: Callable[[], int],
        on_acknowledged: Callable[[int], None] = lambda partition: None,
    ) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0) if path is not None else None
        self._rows: dict[int, dict[str, Any]] = {}
        """Without a file: the operations by index."""
        self._together: list[bytes] | None = None
        self.now_ns = now_ns
        self._on_acknowledged = on_acknowledged
        self._next_index = 0
        self._next_line = 1
        self._open: dict[int, dict[str, Any]] = {}
        self._counts: dict[tuple[HistoryKind, OperationOutcome], int] = {}
        self.recorded = 0
        """Operations in the history so far, open ones included; reads that are open or were discarded are not."""

    def invoke(
        self,
        process: int,
        kind: HistoryKind,
        topic: str,
        partition: int,
        *,
        phase: Phase = "main",
        value: int | None = None,
        offset: int | None = None,
        leader_epoch: int | None = None,
        instance: str | None = None,
        metadata: str | None = None,
    ) -> int:
        """Record that an operation begins now. Returns its index, with which it is completed (or, for a read,
        discarded)."""
        index = self._next_index
        self._next_index += 1
        row: dict[str, Any] = {
            "index": index,
            "process": process,
            "kind": kind,
            "phase": phase,
            "topic": topic,
            "partition": partition,
            "invoked_ns": self.now_ns(),
        }
        if value is not None:
            row["value"] = value
        facts = {"offset": offset, "leader_epoch": leader_epoch, "instance": instance, "metadata": metadata}
        row |= {name: fact for name, fact in facts.items() if fact is not None}
        self._open[index] = row
        if kind in CHANGES:
            self._write(row)
            self.recorded += 1
        return index

    def complete(
        self,
        index: int,
        outcome: OperationOutcome,
        *,
        offset: int | None = None,
        leader_epoch: int | None = None,
        offsets: Sequence[int] | None = None,
        values: Sequence[int | None] | None = None,
        error: str | None = None,
        metadata: str | None = None,
    ) -> None:
        """Record that the operation `index` ends now. Raises KeyError when it is not open: nothing completes twice."""
        invocation = self._open.pop(index)
        kind: HistoryKind = invocation["kind"]
        row: dict[str, Any] = {"index": index} if kind in CHANGES else invocation
        row["completed_ns"] = self.now_ns()
        row["outcome"] = outcome
        if offset is not None:
            row["offset"] = offset
        if leader_epoch is not None:
            row["leader_epoch"] = leader_epoch
        if offsets is not None:
            row["offsets"] = list(offsets)
        if values is not None:
            row["values"] = list(values)
        if error is not None:
            row["error"] = error
        if metadata is not None:
            row["metadata"] = metadata
        self._write(row)
        self.recorded += kind not in CHANGES
        self._counts[kind, outcome] = self._counts.get((kind, outcome), 0) + 1
        if kind == "append" and outcome == "ok":
            self._on_acknowledged(invocation["partition"])

    def discard(self, index: int) -> None:
        """Discard a read without a result. Raises ValueError for an append or a commit: those are never discarded."""
        kind = self._open[index]["kind"]
        if kind in CHANGES:
            raise ValueError(f"operation {index} is of kind {kind}; it can only be completed")
        del self._open[index]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hand what is recorded within it to the operating system in one write, at its end. Nothing may be sent
        before that."""
        lines = self._together = []
        try:
            yield
        finally:
            self._together = None
            if lines and self._file is not None:
                self._file.write(b"".join(lines))

    def count(self, kind: HistoryKind, outcome: OperationOutcome) -> int:
        """How many operations of `kind` ended in `outcome` so far."""
        return self._counts.get((kind, outcome), 0)

    @property
    def open_appends(self) -> int:
        """How many appends were invoked and have not ended."""
        return sum(row["kind"] == "append" for row in self._open.values())

    def to_table(self) -> pa.Table:
        """The history so far, in SCHEMA, ordered by index; as a reader of the file would see it now."""
        return _table(self._rows) if self._path is None else read_jsonl(self._path)

    def close(self) -> None:
        """Release the file. Open operations stay without completion. May be called twice."""
        if self._file is not None:
            self._file.close()

    def _write(self, row: dict[str, Any]) -> None:
        if self._file is None:
            _add(self._rows, row)
            return
        line = compact({"line": self._next_line, **row}).encode() + b"\n"
        self._next_line += 1
        if self._together is not None:
            self._together.append(line)
        else:
            self._file.write(line)


def read_jsonl(path: Path) -> pa.Table:
    """The history a (perhaps killed) run left in `path`, in SCHEMA, ordered by index.

    A torn last line is left out. Raises ValueError naming the line when any other is not what a recorder writes, or is
    missing; histories of earlier versions have no numbers of lines.
    """
    with open(path, "rb") as file:
        return table_of(file)


def table_of(lines: Iterable[bytes]) -> pa.Table:
    """As `read_jsonl`, from lines that keep their line ends."""
    rows: dict[int, dict[str, Any]] = {}
    torn: tuple[int, str] | None = None
    for number, line in enumerate(lines, start=1):
        if torn is not None:
            raise ValueError(f"history line {torn[0]} is damaged: {torn[1]}")
        try:
            if not line.endswith(b"\n"):
                raise ValueError("no line end")
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("index"), int):
                raise ValueError("not an operation")
        except ValueError as error:
            torn = (number, str(error))
            continue
        if row.get("line", number) != number:
            raise ValueError(f"history line {number} is missing")
        known = rows.get(row["index"])
        if "kind" in row and known is not None:
            raise ValueError(f"history line {number} invokes operation {row['index']}, which was invoked before")
        if "kind" not in row and known is None:
            raise ValueError(f"history line {number} completes operation {row['index']}, which was never invoked")
        if known is not None and "outcome" in known:
            raise ValueError(f"history line {number} completes operation {row['index']}, which had ended before")
        _add(rows, row)
    return _table(rows)


def _add(rows: dict[int, dict[str, Any]], row: dict[str, Any]) -> None:
    """Add the invocation or the completion of an operation."""
    known = rows.setdefault(row["index"], row)
    if known is not row:
        known.update(row)


def _table(rows: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """Operations by index as a table, in SCHEMA; one without an outcome counts as `info`."""
    ordered = [rows[index] for index in sorted(rows)]
    columns = {name: [row.get(name) for row in ordered] for name in _COLUMNS}
    columns["outcome"] = [outcome or "info" for outcome in columns["outcome"]]
    return pa.table([pa.array(columns[name], SCHEMA.field(name).type) for name in _COLUMNS], schema=SCHEMA)
