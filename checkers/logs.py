"""Replica logs: they match (Log Matching), agree below the high watermark, and are equal after recovery.

The logs on the replicas' disks at the end of the run are compared, two at a time, where both have records.

log-mismatch     two records with one offset and one leader epoch differ; or they are equal, and a record before them
                 is not. A leader writes one record an offset, and followers copy prefixes, so this holds always: for
                 uncommitted records, before recovery, after unclean elections, after power losses.
log-divergence   before recovery, two records differ below both replicas' high watermarks: one replica does not
                 have the committed record. Counted when the topic allows unclean elections; excused beyond the
                 fault model.
replicas-differ  after recovery the logs are not equal from the later of their starts to the end. Clients have stopped
                 by then and every replica is in the ISR, so nothing is left to be copied or truncated; nothing excuses
                 it.

leader-epoch-fell
                 along one log, a record has a lower leader epoch than the one before it. Leaders append in their own
                 epoch, which is higher than that of every record they took over, so this holds always, like Log
                 Matching.
torn-log         after recovery a log ends in a batch that is cut or damaged. Every broker was up and had recovered its
                 log, which drops such an end; while a node is down after a kill or a power loss it is legal, and
                 only counted (`torn_logs`).
corrupt-log      after recovery a batch is damaged, and more follows it in the log: the rest is lost on this replica.

A record is compared by offset, leader epoch, value, producer id and sequence.

The verdict is `unknown` when fewer logs than replicas were collected, and for a damaged log on a disk that lied about
fsync: a broker need not read again what it had synced.

Blind spots: the same error on all replicas; divergence that was repaired before the end; a replica
whose high watermark is not known (-1) is compared below it only after recovery.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import EXCUSES, EvidencePart, RunEvidence
from checkers.fault_model import lied_to, tolerances
from checkers.tables import of_partition
from checkers.verdict import Finding, Verdict
from checkers.violations import Tolerance, Violations, merge_verdicts, verdict_of
from workloads.columns import FOREIGN, NEVER, Int64, named_partitions, numbers

NAME = "logs"
RESTS_ON = EXCUSES | {EvidencePart.REPLICAS, EvidencePart.RECOVERY}

_COMPARED = ("offset", "leader_epoch", "value", "producer_id", "sequence")
_OFFSET, _EPOCH, _VALUE = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaLog:
    """One replica's log."""

    node: str
    start: int
    end: int
    high_watermark: int
    unread_bytes: int
    damage: str
    records: Int64
    """A row a record, ordered by offset; columns as `_COMPARED`."""

    def between(self, first: int, last: int) -> Int64:
        """The records with offsets in [first, last)."""
        low, high = np.searchsorted(self.records[:, _OFFSET], [first, last])
        return self.records[low:high]


def check(evidence: RunEvidence, collected_ns: int | None = None) -> Verdict:
    """Every partition of which a replica was found. The logs were collected at `collected_ns`, else when the last
    operation completed."""
    tolerance = tolerances(evidence)
    ends = evidence.replica_ends
    if collected_ns is None:
        collected_ns = pc.max(evidence.history.column("completed_ns")).as_py() or 0
    liars = lied_to(evidence.faults)
    verdicts = [
        check_partition(
            of_partition(evidence.replicas, topic, number),
            of_partition(ends, topic, number),
            replicas_expected=evidence.settings.replication_factor,
            recovered=bool(evidence.recovery.get("recovered")),
            liars=liars,
            collected_ns=collected_ns,
            tolerance=tolerance[topic, number],
        )
        for topic, number in named_partitions(ends)
    ]
    return merge_verdicts(NAME, verdicts, "no replica's log was collected")


def check_partition(
    replicas: pa.Table,
    replica_ends: pa.Table,
    *,
    replicas_expected: int,
    recovered: bool,
    liars: Collection[str] = (),
    collected_ns: int = 0,
    tolerance: Tolerance | None = None,
) -> Verdict:
    """The logs of one partition, collected at `collected_ns`; the disks of `liars` lied about fsync."""
    ends = replica_ends.sort_by("node").to_pylist()
    topic, partition = (ends[0]["topic"], ends[0]["partition"]) if ends else ("", -1)
    logs = [_log(replicas, row) for row in ends]
    differences: dict[str, list[tuple[int, Finding]]] = {
        "log-mismatch": [],
        "log-divergence": [],
        "replicas-differ": [],
        "leader-epoch-fell": [],
        "torn-log": [],
        "corrupt-log": [],
    }
    for one, other in itertools.combinations(logs, 2):
        for kind, offset, lines in _compare(one, other, recovered):
            finding = Finding(kind, lines, topic, partition, offsets=(offset,), time_ns=collected_ns)
            differences[kind].append((offset, finding))
    for log in logs:
        for kind, offset, lines in (*_falls(log), *_damage(log, recovered and log.node not in liars)):
            finding = Finding(kind, lines, topic, partition, offsets=(offset,), time_ns=collected_ns)
            differences[kind].append((offset, finding))
    violations = [
        Violations(
            kind,
            np.array([offset for offset, _ in entries], dtype=np.int64),
            np.full(len(entries), NEVER, dtype=np.int64),
            lambda number, entries=entries: entries[number][1],  # type: ignore[misc]
        )
        for kind, entries in differences.items()
    ]
    torn_logs = float(sum(bool(log.damage) for log in logs))
    figures = {"logs": float(len(logs)), "records": float(replicas.num_rows), "torn_logs": torn_logs}
    doubts = []
    if len(logs) < replicas_expected:
        names = ", ".join(log.node for log in logs)
        line = f"{len(logs)} of {replicas_expected} replicas' logs were collected: {names}"
        doubts.append(Finding("logs-missing", (line,), topic, partition))
    for log in logs:
        if recovered and log.damage and log.node in liars:
            lines = (_damage_line(log), f"the disk of {log.node} lied about fsync, and may have lost what was synced")
            doubts.append(Finding("fsync-lies", lines, topic, partition, offsets=(log.end,)))
    return verdict_of(NAME, violations, tolerance or Tolerance(), figures, doubts)


def _log(replicas: pa.Table, ends: dict[str, object]) -> ReplicaLog:
    rows = replicas.filter(pc.field("node") == ends["node"])
    filled = [numbers(rows.column(name), FOREIGN) for name in _COMPARED]
    records = np.stack(filled, axis=1) if rows.num_rows else np.empty((0, len(_COMPARED)), dtype=np.int64)
    return ReplicaLog(
        node=str(ends["node"]),
        start=int(str(ends["log_start"])),
        end=int(str(ends["log_end"])),
        high_watermark=int(str(ends["high_watermark"])),
        unread_bytes=int(str(ends["unread_bytes"])),
        damage=str(ends["damage"]),
        records=records[np.argsort(records[:, _OFFSET], kind="stable")],
    )


_Difference = tuple[str, int, tuple[str, ...]]


def _compare(one: ReplicaLog, other: ReplicaLog, recovered: bool) -> list[_Difference]:
    """(kind, offset, lines) of the first difference of each kind between two logs."""
    first, last = max(one.start, other.start), min(one.end, other.end)
    ours, theirs = one.between(first, last), other.between(first, last)
    offsets = np.union1d(ours[:, _OFFSET], theirs[:, _OFFSET])
    ours, theirs = _spread(ours, offsets), _spread(theirs, offsets)
    differs = (ours != theirs).any(axis=1)
    differences: list[_Difference] = []
    if differs.any():
        at = int(np.argmax(differs))
        same_epoch = (ours[:, _EPOCH] == theirs[:, _EPOCH]) & (np.arange(len(offsets)) >= at)
        if same_epoch.any():
            match = int(np.argmax(same_epoch))
            lines = _both(one, other, ours, theirs, at)
            if match > at:
                lines += (
                    f"yet at offset {offsets[match]} both hold a record of leader epoch {ours[match, _EPOCH]}, so "
                    "everything before it should be the same",
                )
            differences.append(("log-mismatch", int(offsets[at]), lines))
        committed = min(one.high_watermark, other.high_watermark)
        if offsets[at] < committed and not recovered:
            reason = (
                f"both high watermarks ({one.high_watermark} and {other.high_watermark}) are above offset {offsets[at]}"
            )
            differences.append(("log-divergence", int(offsets[at]), (*_both(one, other, ours, theirs, at), reason)))
        if recovered:
            reason = "the cluster had recovered, and both replicas were in sync"
            differences.append(("replicas-differ", int(offsets[at]), (*_both(one, other, ours, theirs, at), reason)))
    elif recovered and one.end != other.end:
        short, long = sorted((one, other), key=lambda log: log.end)
        lines = (
            f"{short.node}'s log ends at {short.end}, {long.node}'s at {long.end}",
            "the cluster had recovered, and both replicas were in sync",
        )
        differences.append(("replicas-differ", short.end, lines))
    return differences


def _falls(log: ReplicaLog) -> Iterator[_Difference]:
    """The first fall of the leader epoch along a log."""
    falls = np.flatnonzero(np.diff(log.records[:, _EPOCH]) < 0)
    if len(falls):
        before, after = log.records[falls[0]], log.records[falls[0] + 1]
        lines = (_record(log, before), _record(log, after), "leader epochs never fall along a log")
        yield "leader-epoch-fell", int(after[_OFFSET]), lines


def _damage(log: ReplicaLog, counts: bool) -> Iterator[_Difference]:
    if log.damage and counts:
        reason = "the cluster had recovered, and every broker its log: a torn end is cut off then"
        yield f"{log.damage}-log", log.end, (_damage_line(log), reason)


def _damage_line(log: ReplicaLog) -> str:
    return (
        f"{log.node}'s log is {log.damage}: {log.unread_bytes} bytes follow the last intact batch, at offset {log.end}"
    )


def _spread(records: Int64, offsets: Int64) -> npt.NDArray[np.int64]:
    """One row for each of `offsets`; FOREIGN in all columns but the offset where there is no record."""
    spread = np.full((len(offsets), len(_COMPARED)), FOREIGN, dtype=np.int64)
    spread[:, _OFFSET] = offsets
    spread[np.searchsorted(offsets, records[:, _OFFSET])] = records
    return spread


def _both(one: ReplicaLog, other: ReplicaLog, ours: Int64, theirs: Int64, at: int) -> tuple[str, ...]:
    return _record(one, ours[at]), _record(other, theirs[at])


def _record(log: ReplicaLog, record: Int64) -> str:
    if record[_EPOCH] == FOREIGN:
        return f"{log.node} has no record at offset {record[_OFFSET]}, though its log ends at {log.end}"
    value = "no client's value" if record[_VALUE] == FOREIGN else f"value {record[_VALUE]}"
    return f"{log.node} holds {value} at offset {record[_OFFSET]}, written in leader epoch {record[_EPOCH]}"
