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

log-starts-late  a log starts above everything that was ever to be deleted (`checkers.deletions`): it lacks its
                 beginning, and is compared with others only from there on. A replica that a reassignment added starts
                 no higher than its leader, whose start only deletions move. With a retention nothing is said.

leader-epoch-fell
                 along one log, a record has a lower leader epoch than the one before it. Leaders append in their own
                 epoch, which is higher than that of every record they took over, so this holds always, like Log
                 Matching.
torn-log         after recovery a log ends in a batch that is cut or damaged. Every broker was up and had recovered its
                 log, which drops such an end; while a node is down after a kill or a power loss it is legal, and
                 only counted (`torn_logs`).
corrupt-log      after recovery a batch is damaged, and more follows it in the log: the rest is lost on this replica.
disordered-log   after recovery a batch begins below the end of the one before it in the log, or below its segment:
                 offsets rise along a log, and a read finds them by that.

A system may keep each replica's `leader-epoch-checkpoint` up to date (`CheckSettings.has_epoch_checkpoints`): the epoch
cache by which a leader tells its followers where to truncate. Then, for the records from the log's start on:

epoch-checkpoint-unordered  along the file, leader epochs and their start offsets rise
epoch-checkpoint-damaged    the file can be read: it is written anew under another name, synced, and renamed
epoch-checkpoint-lacks      the leader epoch of a record has an entry that starts at the record or before it
epoch-checkpoint-stale      after recovery, no entry of a later epoch starts at a record or before it

This is what Apache Kafka's LeaderEpochFileCache keeps across a kill: the entry of an epoch is synced before the first
batch of it is appended. So there may be entries at the log's end, of an epoch in which nothing was appended, and behind
it. Truncations and deletions write the file later, in the background: entries that a truncation removed may still be
there, which is why they count after recovery only, and entries below the log's start. A first entry that starts above
the first record is legal as far as deletion was requested, since the start of a log is written down late, too. Nothing
is said about a node whose power was cut, or whose disk lied: the truncation of a log is not synced, and may be undone
after the file has lost the entries. An epoch none of whose records is left, by compaction, may have an entry.

A record is compared by offset, leader epoch, value, producer id and sequence.

The verdict is `unknown` when fewer logs than replicas were collected, and for a log that is damaged, or starts late, on
a disk that lied about fsync: a broker need not read again what it had synced.

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

from checkers.deletions import DeletionRequest, deletion_requests
from checkers.evidence import EXCUSES, EvidencePart, RunEvidence
from checkers.fault_model import lied_to, rewound, tolerances
from checkers.tables import epoch_entries, of_partition
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
    epoch_checkpoint: str
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
    unchecked = rewound(evidence.faults) if evidence.settings.has_epoch_checkpoints else None
    deletions = deletion_requests(evidence)
    verdicts = [
        check_partition(
            of_partition(evidence.replicas, topic, number),
            of_partition(ends, topic, number),
            replicas_expected=evidence.settings.replication_factor,
            recovered=evidence.whole_at_end,
            liars=liars,
            collected_ns=collected_ns,
            tolerance=tolerance[topic, number],
            checkpoints_unchecked=unchecked,
            deletable_below=NEVER if evidence.settings.retains_less else deletions.get(number, DeletionRequest()).bound,
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
    checkpoints_unchecked: Collection[str] | None = None,
    deletable_below: int = 0,
) -> Verdict:
    """The logs of one partition, collected at `collected_ns`; the disks of `liars` lied about fsync. Epoch checkpoints
    are checked but on the nodes `checkpoints_unchecked`, on none where that is None; a deletion of records below
    `deletable_below`, and of none above it, may have been asked for."""
    ends = replica_ends.sort_by("node").to_pylist()
    topic, partition = (ends[0]["topic"], ends[0]["partition"]) if ends else ("", -1)
    logs = [_log(replicas, row) for row in ends]
    differences: dict[str, list[tuple[int, Finding]]] = {
        "log-mismatch": [],
        "log-divergence": [],
        "replicas-differ": [],
        "log-starts-late": [],
        "leader-epoch-fell": [],
        "torn-log": [],
        "corrupt-log": [],
        "disordered-log": [],
        "epoch-checkpoint-unordered": [],
        "epoch-checkpoint-damaged": [],
        "epoch-checkpoint-lacks": [],
        "epoch-checkpoint-stale": [],
    }
    for one, other in itertools.combinations(logs, 2):
        for kind, offset, lines in _compare(one, other, recovered):
            finding = Finding(kind, lines, topic, partition, offsets=(offset,), time_ns=collected_ns)
            differences[kind].append((offset, finding))
    checkpoints = [log for log in logs if checkpoints_unchecked is not None and log.node not in checkpoints_unchecked]
    for log in logs:
        of_checkpoint = _checkpoint(log, recovered, deletable_below) if log in checkpoints else ()
        honest = log.node not in liars
        of_log = (
            *(_late_start(log, deletable_below) if honest else ()),
            *_falls(log),
            *_damage(log, recovered and honest),
            *of_checkpoint,
        )
        for kind, offset, lines in of_log:
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
    if checkpoints_unchecked is not None:
        figures["epoch_checkpoints"] = float(len(checkpoints))
    doubts = []
    if len(logs) < replicas_expected:
        names = ", ".join(log.node for log in logs)
        line = f"{len(logs)} of {replicas_expected} replicas' logs were collected: {names}"
        doubts.append(Finding("logs-missing", (line,), topic, partition))
    for log in logs:
        if log.node not in liars:
            continue
        reason = f"the disk of {log.node} lied about fsync, and may have lost what was synced"
        for _, offset, lines in (*_late_start(log, deletable_below), *_damage(log, recovered)):
            doubts.append(Finding("fsync-lies", (lines[0], reason), topic, partition, offsets=(offset,)))
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
        epoch_checkpoint=str(ends["epoch_checkpoint"]),
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


def _late_start(log: ReplicaLog, deletable_below: int) -> Iterator[_Difference]:
    if log.start > deletable_below:
        asked = (
            f"the records below {deletable_below} were to be deleted" if deletable_below else "nobody asked for that"
        )
        yield "log-starts-late", deletable_below, (f"{log.node}'s log starts at {log.start}, not at 0", asked)


def _falls(log: ReplicaLog) -> Iterator[_Difference]:
    """The first fall of the leader epoch along a log."""
    falls = np.flatnonzero(np.diff(log.records[:, _EPOCH]) < 0)
    if len(falls):
        before, after = log.records[falls[0]], log.records[falls[0] + 1]
        lines = (_record(log, before), _record(log, after), "leader epochs never fall along a log")
        yield "leader-epoch-fell", int(after[_OFFSET]), lines


def _checkpoint(log: ReplicaLog, recovered: bool, deletable_below: int) -> Iterator[_Difference]:
    """The errors in the epoch checkpoint of a log, the first difference of each kind."""
    entries = epoch_entries(log.epoch_checkpoint)
    if entries is None:
        rule = "a new one takes its place in one step, once it is synced"
        yield "epoch-checkpoint-damaged", log.end, (f"the leader-epoch-checkpoint of {log.node} is damaged", rule)
        return
    for before, after in itertools.pairwise(entries):
        if before[0] >= after[0] or before[1] >= after[1]:
            lines = (
                f"the leader-epoch-checkpoint of {log.node} has {_entry(*before)}, and then {_entry(*after)}",
                "epochs and start offsets rise along it",
            )
            yield "epoch-checkpoint-unordered", after[1], lines
            return
    # An end that no record reaches keeps searches within the arrays.
    epochs, starts = np.array([*entries, (NEVER, NEVER)], dtype=np.int64).T
    first = max(log.start, starts[0]) if entries and starts[0] <= deletable_below else log.start
    records = log.between(first, log.end)
    own = np.searchsorted(epochs, records[:, _EPOCH])
    held = (epochs[own] == records[:, _EPOCH]) & (starts[own] <= records[:, _OFFSET])
    later = starts[np.minimum(own + 1, len(entries))] <= records[:, _OFFSET]
    for kind, wrong in (("epoch-checkpoint-lacks", ~held), ("epoch-checkpoint-stale", held & later & recovered)):
        if wrong.any():
            at = int(np.argmax(wrong))
            record, place = records[at], int(own[at])
            near = [_entry(*entry) for entry in entries[max(0, place - 1) : place + 2]]
            has = f"its leader-epoch-checkpoint has {', '.join(near) or 'no entry'}"
            yield kind, int(record[_OFFSET]), (_record(log, record), has)


def _entry(epoch: int, start: int) -> str:
    return f"leader epoch {epoch} from offset {start}"


def _damage(log: ReplicaLog, counts: bool) -> Iterator[_Difference]:
    if log.damage and counts:
        reason = "the cluster had recovered, and every broker its log: "
        reason += "offsets rise along it" if log.damage == "disordered" else "a torn end is cut off then"
        yield f"{log.damage}-log", log.end, (_damage_line(log), reason)


def _damage_line(log: ReplicaLog) -> str:
    if log.damage == "disordered":
        below = "begin below the end of the one before them, or below their segment"
        return f"{log.node}'s log is disordered: batches of {log.unread_bytes} bytes {below}"
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
