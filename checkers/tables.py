"""The tables that checkers read, besides the history: protocol trace, replica logs, replica ends and faults.

The recorder of each table writes these columns; `results` seals them as Parquet with these schemas. The history's own
schema is `workloads.history.SCHEMA`. Times are nanoseconds of true time since the run began. Offsets that are ends
(LEO, HW) are exclusive.

TRACE: one row a protocol event, `images.trace.TraceEvent` with the time and the node that its receiver adds.
`-1`, `""` and an empty list mean that a field does not apply. `seq` is the order in which the receiver took the
events: in simulation it is the order in which they happened, which settles equal times. `detail` is a JSON object
(the empty string counts as `{}`).

REPLICAS: one row a record found on a replica's disk when the run ended. `value` is null for a record that no workload
wrote; `producer_id`, `producer_epoch`, `sequence` are -1 when the batch has no producer; `batch_base` is the first
offset of the batch the record came in. Transactional control records are left out.

REPLICA_ENDS: one row a replica, also an empty one: where its log starts and ends, and the high watermark that it last
checkpointed or traced (-1 when unknown, never guessed). `unread_bytes` lie in its segments behind the last intact batch
(-1 when that was not recorded), and `damage` says why they are not read: `torn` when nothing but the rest of one batch
that was cut or damaged is there, as a power loss leaves it at the end of a log; `corrupt` when more follows; or empty.
It is `disordered` where all is intact and was read, and `unread_bytes` are those of the batches that begin below the
end of the one before them, or below their segment.
`epoch_checkpoint` is its `leader-epoch-checkpoint` as a JSON list of [leader epoch, start offset], empty when there is
none, and `damaged` when Kafka could not read it.

FAULTS: one row a fault. `nodes` are the nodes it was aimed at. `ended_ns` is null when the run ended first.
`detail` is a JSON object of the fault's own fields; one that waited for a condition in vain has `not_injected` in it,
one that could not be injected, or whose request was not done, `failed`, one that its own condition did not end
`not_ended`, each with the reason. `evidence` is a JSON object name → number, summed over the nodes, such as
`{"killed": 2, "lost_bytes": 4096}`; when more than one node was hit it may carry the same numbers a node under the key
`nodes`:
`{"lost_bytes": 4096, "nodes": {"b1": {"lost_bytes": 0}, "b2": {"lost_bytes": 4096}}}`.
`bit` says whether the evidence shows that the fault took effect; `note` is a line for the reader.

LOST: one row a lost record (`checkers.loss`), whether or not it was promised, or the verdict excuses it. `operation` is
the index of the acknowledged append, or of the poll that returned it, and `told_ns` is when that completed; `offset` is
-1 when no answer named it. `instead` is the value that the final reads found at the offset, null if none or if nothing
was finally read; `on_disk` names the replicas whose logs hold the record at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workloads.columns import NEVER

_STALLED: Final = "node_stalled"
_AT_WORK_NS = 300_000_000
"""So long after an event its node counts as at work; what comes later, it may have been paused or dead."""
_OF_LINKS: Final = ("partition", "packets")
"""Families of faults that leave every process running."""
_STALL_MARGIN_NS: Final = 2_000_000_000
"""As long before the recorded time a fault may have begun to act, longer where its injection took longer, and after it
a process may still be catching up."""
_INJECTION_NS_MIN: Final = 5_000_000_000
"""A fault may have held on the first of its nodes so long before it held on all; longer, where that was measured."""


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


TRACE = pa.schema(
    [
        _required("time_ns", pa.int64()),
        _required("node", pa.string()),
        _required("seq", pa.int64()),
        _required("kind", pa.string()),
        _required("topic", pa.string()),
        _required("partition", pa.int32()),
        _required("leader", pa.int32()),
        _required("leader_epoch", pa.int32()),
        _required("partition_epoch", pa.int32()),
        _required("broker", pa.int32()),
        _required("broker_epoch", pa.int64()),
        _required("offset", pa.int64()),
        _required("log_end", pa.int64()),
        _required("high_watermark", pa.int64()),
        _required("members", pa.list_(pa.int32())),
        _required("detail", pa.string()),
    ],
    metadata={"faultline.table": "trace", "faultline.version": "1"},
)

REPLICAS = pa.schema(
    [
        _required("node", pa.string()),
        _required("topic", pa.string()),
        _required("partition", pa.int32()),
        _required("offset", pa.int64()),
        _required("leader_epoch", pa.int32()),
        pa.field("value", pa.int64()),
        _required("producer_id", pa.int64()),
        _required("producer_epoch", pa.int32()),
        _required("sequence", pa.int32()),
        _required("batch_base", pa.int64()),
    ],
    metadata={"faultline.table": "replicas", "faultline.version": "1"},
)

REPLICA_ENDS = pa.schema(
    [
        _required("node", pa.string()),
        _required("topic", pa.string()),
        _required("partition", pa.int32()),
        _required("log_start", pa.int64()),
        _required("log_end", pa.int64()),
        _required("high_watermark", pa.int64()),
        _required("unread_bytes", pa.int64()),
        _required("damage", pa.string()),
        _required("epoch_checkpoint", pa.string()),
    ],
    metadata={"faultline.table": "replica_ends", "faultline.version": "1"},
)

ADDED_COLUMNS: Mapping[str, object] = {
    "unread_bytes": 0,
    "damage": "",
    "epoch_checkpoint": "",
    "instance": None,
    "metadata": None,
}
"""Columns that runs of earlier versions lack → the value that stands for what they did not record."""

FAULTS = pa.schema(
    [
        _required("fault", pa.string()),
        _required("family", pa.string()),
        _required("nodes", pa.list_(pa.string())),
        _required("started_ns", pa.int64()),
        pa.field("ended_ns", pa.int64()),
        _required("detail", pa.string()),
        _required("evidence", pa.string()),
        _required("bit", pa.bool_()),
        _required("note", pa.string()),
    ],
    metadata={"faultline.table": "faults", "faultline.version": "1"},
)

LOST = pa.schema(
    [
        _required("topic", pa.string()),
        _required("partition", pa.int32()),
        _required("offset", pa.int64()),
        _required("value", pa.int64()),
        _required("operation", pa.int64()),
        _required("told_ns", pa.int64()),
        pa.field("instead", pa.int64()),
        _required("on_disk", pa.string()),
    ],
    metadata={"faultline.table": "lost", "faultline.version": "1"},
)


class TraceRow(NamedTuple):
    """One row of TRACE."""

    time_ns: int
    node: str
    kind: str
    topic: str
    partition: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    broker: int
    broker_epoch: int
    offset: int
    log_end: int
    high_watermark: int
    members: list[int]
    detail: str

    @property
    def at(self) -> str:
        """The time in words."""
        return f"at {self.time_ns / 1e9:.6f} s"

    @property
    def topic_name(self) -> str:
        """Its topic as brokers name it: topics of one name, one after the other, have names of their own in the trace
        (`name#2`)."""
        return self.topic.partition("#")[0]

    @property
    def number(self) -> int:
        """The id of the broker that wrote it; -1 for a controller."""
        return int(self.node[1:]) if self.node[:1] == "b" and self.node[1:].isdigit() else -1

    @property
    def end_after(self) -> int:
        """Where the log is said to end after the event: that which cuts a log has the end before it as `log_end`."""
        return self.offset if self.kind == "truncated" else self.log_end

    @property
    def power_loss(self) -> str:
        """The effect of a power loss at its moment on files that it reports as on the disk; empty without one."""
        if '"at_risk"' not in self.detail:  # of most events, whose detail need not be read for it
            return ""
        did = "brought back" if self.kind == "replica_deleted" else "taken something of"
        return f"a loss of power would have {did} {', '.join(self.details()['at_risk'])}"

    def details(self) -> dict[str, Any]:
        """The event's further facts."""
        facts: dict[str, Any] = json.loads(self.detail) if self.detail else {}
        return facts


def with_added_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows of a table of this schema, with the columns that it has got since they were recorded."""
    for item in schema:
        if item.name in ADDED_COLUMNS and item.name not in table.column_names:
            table = table.append_column(item, pa.array([ADDED_COLUMNS[item.name]] * table.num_rows, item.type))
    return table


WITH_BYTES_BEHIND = "what it appends next lies behind them, where neither a read nor the next opening finds it"
"""The consequence for a replica that has left bytes behind the last batch in the file of a log (`bytes_behind`)."""

DAMAGED_CHECKPOINT = "damaged"
"""The value of `epoch_checkpoint` for a file that Kafka could not read."""


def epoch_entries(epoch_checkpoint: str) -> list[tuple[int, int]] | None:
    """The entries (leader epoch, start offset) of `epoch_checkpoint` in REPLICA_ENDS, in the order of the file: none
    without a file, None for a damaged one."""
    if epoch_checkpoint == DAMAGED_CHECKPOINT:
        return None
    return [(epoch, start) for epoch, start in json.loads(epoch_checkpoint or "[]")]


def trace_rows(trace: pa.Table) -> Iterator[TraceRow]:
    """The rows of a trace, in the order in which the receiver took the events."""
    for batch in trace.sort_by("seq").to_batches(max_chunksize=65_536):
        columns = (batch.column(name).to_pylist() for name in TraceRow._fields)
        yield from map(TraceRow._make, zip(*columns, strict=True))


def at_work_ns(trace: pa.Table, node: str, from_ns: int, until_ns: int) -> int:
    """For how long its events show a node at work between two times: until its process ended at the latest, and without
    its stalls."""
    of_node = trace.filter(
        (pc.field("node") == node) & (pc.field("time_ns") >= from_ns) & (pc.field("time_ns") <= until_ns)
    )
    ended_ns = pc.min(of_node.filter(pc.field("kind") == "node_started").column("time_ns")).as_py()
    times_ns = np.sort(of_node.column("time_ns").to_numpy())
    if ended_ns is not None:
        times_ns = times_ns[times_ns < ended_ns]
    worked_ns = np.minimum(np.diff(times_ns), _AT_WORK_NS)
    for began_ns, stalled_until_ns in traced_stalls(trace).times.get(node, ()):
        worked_ns[(times_ns[:-1] <= stalled_until_ns) & (times_ns[1:] >= began_ns)] = 0
    return int(worked_ns.sum())


def of_partition(table: pa.Table, topic: str, partition: int) -> pa.Table:
    """The rows of one partition."""
    return table.filter(pc.and_(pc.equal(table["topic"], topic), pc.equal(table["partition"], partition)))


# ---- when faults may have held on nodes, by what was recorded of them ------------------------------------------------


def injected_ns(fault: Mapping[str, Any]) -> int:
    """The earliest time at which the fault of this row may have held on some node: it counts from when it holds on all
    of them."""
    return int(fault["started_ns"]) - max(_INJECTION_NS_MIN, _injection_ns(fault))


def held_since(faults: pa.Table, family: str) -> dict[str, int]:
    """Node → the earliest time in ns at which a fault of this family may have held on it."""
    since: dict[str, int] = {}
    for row in faults.filter(pc.equal(faults["family"], family)).to_pylist():
        for node in row["nodes"]:
            since[node] = min(injected_ns(row), since.get(node, NEVER))
    return since


class FaultTimes(NamedTuple):
    """When faults of one kind may have held, or what a busy machine does of the same kind."""

    times: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({})
    """Node → from when to when (ns), by each fault."""

    def between(self, node: str, since_ns: int, until_ns: int) -> bool:
        """Whether one may have held on the node at some time between these."""
        times = self.times.get(node, ())
        return any(began_ns <= until_ns and since_ns <= ended_ns for began_ns, ended_ns in times)

    def ends_between(self, node: str, since_ns: int, until_ns: int) -> list[int]:
        """When the faults ended that may have held on the node between these times."""
        times = self.times.get(node, ())
        return [ended_ns for began_ns, ended_ns in times if began_ns <= until_ns and since_ns <= ended_ns]

    def longest_without_ns(self, node: str, since_ns: int, until_ns: int) -> int:
        """The longest time between these in which certainly none held on the node."""
        longest_ns, free_since_ns = 0, since_ns
        for began_ns, ended_ns in sorted(self.times.get(node, ())):
            longest_ns = max(longest_ns, min(began_ns, until_ns) - free_since_ns)
            free_since_ns = max(free_since_ns, ended_ns)
        return max(longest_ns, until_ns - free_since_ns)


def wrong_timers(faults: pa.Table) -> FaultTimes:
    """When timers may have run wrong: by the faults that change these, not wall clocks alone. A clock that was set back
    stands still until it has caught up, also after the fault."""
    struck: dict[str, list[dict[str, Any]]] = {}
    for row in faults.filter(pc.equal(faults["family"], "clock")).sort_by("started_ns").to_pylist():
        for node in row["nodes"]:
            struck.setdefault(node, []).append(row)
    times: dict[str, list[tuple[int, int]]] = {}
    for node, rows in struck.items():
        back_ns = sum(max(0, -round(json.loads(row["detail"] or "{}").get("jump_ms", 0) * 1e6)) for row in rows)
        for began_ns, ended_ns in map(_held, filter(_changes_timers, rows)):
            times.setdefault(node, []).append((began_ns, ended_ns + back_ns))
    return FaultTimes(times)


class ClockFault(NamedTuple):
    """What one fault has done to the clocks of a node, at most."""

    began_ns: int
    """The earliest time at which it may have held …"""
    jumped_ns: int
    """… the latest at which it has jumped …"""
    ended_ns: int
    """… and at which it may still hold."""
    jump_ns: int
    rate: float
    wall_jump_ns: int
    is_known: bool
    """Whether it is known what it did, and that it was healed."""

    def _gain_ns(self, since_ns: int, until_ns: int, sign: int) -> int:
        """How far it has moved the clock of timers between these times, forward for a `sign` of 1 and back for -1."""
        if self.began_ns > until_ns or self.ended_ns < since_ns:
            return 0
        if not self.is_known:
            return NEVER
        jump_ns = max(0, sign * self.jump_ns) if self.jumped_ns >= since_ns else 0
        held_ns = min(until_ns, self.ended_ns) - max(since_ns, self.began_ns)
        return jump_ns + round(max(0.0, sign * (self.rate - 1)) * held_ns)

    def fast_ns(self, since_ns: int, until_ns: int) -> int:
        """By how much more than the time between these timers may have counted: one that was set back counts less, and
        stands still."""
        return self._gain_ns(since_ns, until_ns, 1)

    def wall_error_ns(self, since_ns: int, until_ns: int, sign: int) -> int:
        """How far the wall clock is ahead by it between these times, for a `sign` of -1 behind: once it is healed a
        clock keeps what it has gained, but that a wall clock that was stepped alone is put right."""
        if not self.is_known:
            return NEVER if self.began_ns <= until_ns else 0
        holds = self.began_ns <= until_ns and since_ns <= self.ended_ns
        stepped_ns = max(0, sign * self.wall_jump_ns) if holds else 0
        return self._gain_ns(self.began_ns, until_ns, sign) + stepped_ns


class WrongClocks(NamedTuple):
    """How far the clocks of nodes can be wrong by what faults have done to them."""

    faults: Mapping[str, Sequence[ClockFault]] = MappingProxyType({})

    def fast_ns(self, node: str, since_ns: int, until_ns: int) -> int:
        """By how much more than the time between these the node's timers can have counted."""
        return sum(fault.fast_ns(since_ns, until_ns) for fault in self.faults.get(node, ()))

    def ahead_ns(self, node: str, at_ns: int) -> int:
        """How far the node's wall clock can be ahead of the time at that moment."""
        return sum(fault.wall_error_ns(at_ns, at_ns, 1) for fault in self.faults.get(node, ()))

    def behind_ns(self, node: str, since_ns: int, until_ns: int) -> int:
        """How far it can be behind at some moment between these."""
        return sum(fault.wall_error_ns(since_ns, until_ns, -1) for fault in self.faults.get(node, ()))

    def read_by_ns(self, node: str, time_ns: int, until_ns: int) -> int:
        """The latest moment at which the wall clock first reads that time, if it is one up to `until_ns`: one that is
        behind does so later, but one that was stepped back once it is put right."""
        ends_ns = [fault.ended_ns + 1 for fault in self.faults.get(node, ()) if time_ns <= fault.ended_ns < until_ns]
        return min(
            max(since_ns, time_ns + self.behind_ns(node, since_ns, until_ns)) for since_ns in (time_ns, *ends_ns)
        )


def wrong_clocks(faults: pa.Table, *, healed: bool) -> WrongClocks:
    """What faults have done to clocks; anything, where not every fault could be `healed`. Of several that hold at once
    the latest does, and the jumps of all stay: so they do no more than all of them one by one."""
    wrong: dict[str, list[ClockFault]] = {}
    for row in faults.filter(pc.equal(faults["family"], "clock")).to_pylist():
        detail = json.loads(row["detail"] or "{}")
        jump_ns, wall_jump_ns = (round(detail.get(name, 0) * 1e6) for name in ("jump_ms", "wall_jump_ms"))
        rate, ended_ns = detail.get("rate", 1.0), _held(row)[1]
        is_known = healed and (jump_ns != 0 or wall_jump_ns != 0 or rate != 1)
        # A fault counts from the end of its injection; one that was not injected whole has jumped at any time.
        is_injected = "injection_seconds" in json.loads(row["evidence"] or "{}")
        jumped_ns = row["started_ns"] + _STALL_MARGIN_NS if is_injected else ended_ns
        fault = ClockFault(injected_ns(row), jumped_ns, ended_ns, jump_ns, rate, wall_jump_ns, is_known)
        for node in row["nodes"]:
            wrong.setdefault(node, []).append(fault)
    return WrongClocks(wrong)


def stalls(faults: pa.Table, trace: pa.Table) -> FaultTimes:
    """When processes may not have run: by every fault but those of links and of wall clocks alone, and when the trace
    says so."""
    times = {node: [*of_clock] for node, of_clock in wrong_timers(faults).times.items()}
    for row in faults.select(["family", "nodes", "started_ns", "ended_ns", "evidence"]).to_pylist():
        for node in row["nodes"] if row["family"] not in (*_OF_LINKS, "clock") else ():
            times.setdefault(node, []).append(_held(row))
    for node, traced in traced_stalls(trace).times.items():
        times.setdefault(node, []).extend(traced)
    return FaultTimes(times)


def traced_stalls(trace: pa.Table) -> FaultTimes:
    """When processes did not run, or were at one and the same step, as nodes on machines have traced it: whatever was
    due then they did later."""
    times: dict[str, list[tuple[int, int]]] = {}
    rows = trace.filter(pc.field("kind") == _STALLED).select(["node", "time_ns", "detail"])
    for row in rows.to_pylist():
        stalled_ns = json.loads(row["detail"])["for_ms"] * 1_000_000
        times.setdefault(row["node"], []).append((row["time_ns"] - stalled_ns, row["time_ns"]))
    return FaultTimes(times)


def _held(fault: Mapping[str, Any]) -> tuple[int, int]:
    """From when to when the fault may have held, and a process may still have been catching up."""
    ended_ns = NEVER if fault["ended_ns"] is None else fault["ended_ns"]
    return fault["started_ns"] - max(_STALL_MARGIN_NS, _injection_ns(fault)), ended_ns + _STALL_MARGIN_NS


def _injection_ns(fault: Mapping[str, Any]) -> int:
    """How long it took until the fault held on all of its nodes, as far as that was measured: it counts from then."""
    return round(json.loads(fault["evidence"] or "{}").get("injection_seconds", 0) * 1e9)


def _changes_timers(fault: Mapping[str, Any]) -> bool:
    """Whether a fault of the family `clock` changes more than wall clocks."""
    detail = json.loads(fault["detail"] or "{}")
    return not detail.get("wall_jump_ms") or bool(detail.get("jump_ms")) or detail.get("rate", 1) != 1
