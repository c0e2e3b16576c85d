"""Reads: they return the records appended, no aborted ones, no duplicates, one record an offset, in order.

Every claim that "offset o holds value v" is compared with the others: acknowledged appends (acks=all), polls, and the
logs found on the replicas' disks. Then

failed-append-seen   a value whose append failed, so certainly did not happen, was read or is on a disk (aborted read)
phantom-value        a value nobody appended, or a record that no client wrote
duplicate            one value at two offsets; also within the log of one replica (idempotence)
conflicting-offset   two values at one offset (reads are not repeatable)
poll-order           a poll returned its offsets out of order, or below the position asked

Disks count as claims with a restriction. Records above the high watermark may differ between replicas, and are
truncated later. So a record on a disk counts for `conflicting-offset` and for `duplicate` between logs only below the
replica's own high watermark, or anywhere once the cluster has recovered. A failed or unknown value, and a value twice
in one log, are wrong anywhere. Below a replica's log start nothing counts for either: the records were deleted, and
those of a follower that diverged there were never compared with its leader's, which no longer had them.

With acks=1 or 0 acknowledgements are no claims either: the record may be lost and its offset reused. Topics with
unclean elections may show duplicates and conflicts; those are counted only. Beyond the fault model: see
`checkers.fault_model`.

Blind spots: a record that was read once and is nowhere else at that offset (`checkers.loss` and
`checkers.linearizability` do); anything in a record but its value; when a replica's high watermark is not known (-1),
its disk before recovery.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from checkers.evidence import EXCUSES, EvidencePart, RunEvidence
from checkers.fault_model import check_partitions
from checkers.verdict import Finding, Verdict
from checkers.violations import SecondCopies, Tolerance, Violations, verdict_of
from workloads.columns import APPEND, FAIL, FOREIGN, NEVER, NOTHING, OK, Columns, Int64, numbers

NAME = "reads"
RESTS_ON = EXCUSES | {EvidencePart.HISTORY, EvidencePart.REPLICAS, EvidencePart.RECOVERY}


def check(evidence: RunEvidence) -> Verdict:
    """Every partition of a run."""
    recovered = evidence.whole_at_end
    check_one = partial(check_partition, acks=evidence.settings.acks, recovered=recovered)
    return check_partitions(NAME, evidence, check_one, evidence.replicas, evidence.replica_ends)


def check_partition(
    history: pa.Table,
    replicas: pa.Table,
    replica_ends: pa.Table,
    *,
    topic: str = "",
    partition: int = -1,
    acks: int = -1,
    recovered: bool = False,
    tolerance: Tolerance | None = None,
) -> Verdict:
    """One partition of one run."""
    claims = _Claims(Columns.from_table(history), replicas, replica_ends, acks, recovered, topic, partition)
    figures = {"claims": float(len(claims.offset)), "claims_on_disk": float(claims.on_disk)}
    return verdict_of(NAME, claims.violations(), tolerance or Tolerance(), figures)


class _Claims:
    """Every claim that an offset holds a value: a row of the history, or a record on a disk."""

    def __init__(
        self,
        columns: Columns,
        replicas: pa.Table,
        replica_ends: pa.Table,
        acks: int,
        recovered: bool,
        topic: str,
        partition: int,
    ) -> None:
        self.columns, self.replicas, self.topic, self.partition = columns, replicas, topic, partition
        acknowledged = (columns.kind == APPEND) & (columns.outcome == OK) & (columns.offset >= 0)
        acknowledged_rows = np.flatnonzero(acknowledged) if acks == -1 else np.empty(0, dtype=np.int64)
        poll_rows = np.repeat(np.arange(len(columns)), np.diff(columns.starts))
        nodes = replicas.column("node").to_pylist()
        disk_offset = numbers(replicas.column("offset"), -1)
        disk_value = numbers(replicas.column("value"), FOREIGN)
        ends = {row["node"]: row for row in replica_ends.to_pylist()}
        bounds = [
            (ends[node]["log_start"], ends[node]["high_watermark"]) if node in ends else (0, -1) for node in nodes
        ]
        log_start, high_watermark = np.array(bounds, dtype=np.int64).reshape(-1, 2).T
        in_log = disk_offset >= log_start
        settled_on_disk = in_log & ((disk_offset < high_watermark) | recovered)
        self.offset = np.concatenate([columns.offset[acknowledged_rows], columns.poll_offset, disk_offset])
        self.value = np.concatenate([columns.value[acknowledged_rows], columns.poll_value, disk_value])
        self.row = np.concatenate([acknowledged_rows, poll_rows, np.full(len(disk_offset), -1)]).astype(np.int64)
        self.disk_row = np.concatenate(
            [np.full(len(acknowledged_rows) + len(poll_rows), -1), np.arange(len(disk_offset))]
        )
        self.settled = np.concatenate([np.ones(len(acknowledged_rows) + len(poll_rows), dtype=bool), settled_on_disk])
        self.on_disk = len(disk_offset)
        names, on_disk_from = np.array(nodes, dtype=object), len(self.offset) - self.on_disk
        self.logs = [np.flatnonzero(in_log & (names == node)) + on_disk_from for node in sorted(set(nodes))]
        """The claims of each node's log."""
        completed = columns.completed_ns[columns.completed_ns != NEVER]
        self.end_ns = int(completed.max(initial=0))

    def violations(self) -> list[Violations]:
        columns = self.columns
        appended = columns.value[columns.kind == APPEND]
        failed = columns.value[(columns.kind == APPEND) & (columns.outcome == FAIL)]
        is_failed, is_known = np.isin(self.value, failed), np.isin(self.value, appended)
        settled = np.flatnonzero(self.settled & is_known & ~is_failed)
        return [
            self._single("failed-append-seen", np.flatnonzero(is_failed & (self.value != FOREIGN))),
            self._single("phantom-value", np.flatnonzero(~is_known)),
            self._pairs("duplicate", settled, self.value, self.offset),
            self._pairs_in_one_log(),
            self._pairs("conflicting-offset", settled, self.offset, self.value),
            self._disorder(),
        ]

    def _single(self, kind: str, claims: Int64) -> Violations:
        _, first = np.unique(self.value[claims], return_index=True)
        claims = claims[np.sort(first)]
        return Violations(kind, self.offset[claims], self._times(claims), partial(self._explain_single, kind, claims))

    def _pairs(self, kind: str, claims: Int64, same: Int64, differs: Int64) -> Violations:
        """The claims that agree in `same` and not in `differs`, the earliest of each: each with the one of its group
        that was observed next. What is excused depends on when that was, and a disk has it last."""
        claims = claims[np.lexsort((self._times(claims), differs[claims], same[claims]))]
        earliest = np.ones(len(claims), dtype=bool)
        earliest[1:] = (np.diff(same[claims]) != 0) | (np.diff(differs[claims]) != 0)
        order = claims[earliest]
        order = order[np.lexsort((self._times(order), same[order]))]
        group = np.flatnonzero(same[order][1:] == same[order][:-1])
        ones, others = order[group], order[group + 1]
        falls = differs[ones] > differs[others]
        ones, others = np.where(falls, others, ones), np.where(falls, ones, others)
        return Violations(
            kind,
            np.minimum(self.offset[ones], self.offset[others]),
            np.maximum(self._times(ones), self._times(others)),
            partial(self._explain_pair, kind, ones, others),
            np.minimum(self._since(ones), self._since(others)),
            second=SecondCopies(self.offset[others], self._times(others)) if kind == "duplicate" else None,
        )

    def _pairs_in_one_log(self) -> Violations:
        """A value twice in one log is counted only where the log is not settled: elsewhere `_pairs` has it."""
        ones, others = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for claims in self.logs:
            claims = claims[self.value[claims] != FOREIGN]
            order = claims[np.lexsort((self.offset[claims], self.value[claims]))]
            twice = np.flatnonzero(self.value[order][1:] == self.value[order][:-1])
            twice = twice[~(self.settled[order[twice]] & self.settled[order[twice + 1]])]
            ones.append(order[twice])
            others.append(order[twice + 1])
        one, other = np.concatenate(ones), np.concatenate(others)
        return Violations(
            "duplicate",
            np.minimum(self.offset[one], self.offset[other]),
            self._times(other),
            partial(self._explain_pair, "duplicate", one, other),
            self._since(one),
            second=SecondCopies(self.offset[other], self._times(other)),
        )

    def _disorder(self) -> Violations:
        columns = self.columns
        falls = np.flatnonzero(np.diff(columns.poll_offset) <= 0) + 1
        falls = falls[~np.isin(falls, columns.starts)]
        polls = np.flatnonzero(np.diff(columns.starts) > 0)
        below = columns.poll_offset[columns.starts[polls]] < columns.offset[polls]
        records = np.concatenate([falls, columns.starts[polls[below]]]).astype(np.int64)
        rows = np.searchsorted(columns.starts, records, side="right") - 1

        def explain(number: int) -> Finding:
            row, record = int(rows[number]), int(records[number])
            before = (
                f"after offset {columns.poll_offset[record - 1]}"
                if record > columns.starts[row]
                else f"first, having been asked from {columns.offset[row]} on"
            )
            reason = f"it returned offset {columns.poll_offset[record]} {before}"
            return self._finding(
                "poll-order", (row,), (int(columns.poll_offset[record]),), columns.describe(row), reason
            )

        return Violations("poll-order", columns.poll_offset[records], columns.completed_ns[rows], explain)

    def _times(self, claims: Int64) -> Int64:
        rows = self.row[claims]
        return np.where(rows >= 0, self.columns.completed_ns[np.maximum(rows, 0)], NEVER) if len(self.columns) else rows

    def _since(self, claims: Int64) -> Int64:
        """When the appends of the claimed values were invoked: their records cannot have existed before."""
        return self.columns.of_appends(self.value[claims], self.columns.invoked_ns, NOTHING)

    def _describe(self, claim: int) -> str:
        row = int(self.row[claim])
        if row >= 0:
            return self.columns.describe(row)
        node, value, offset, epoch = (
            self.replicas.column(name)[int(self.disk_row[claim])].as_py()
            for name in ("node", "value", "offset", "leader_epoch")
        )
        return f"{node} holds value {value} at offset {offset}, leader epoch {epoch}"

    def _explain_single(self, kind: str, claims: Int64, number: int) -> Finding:
        columns, claim = self.columns, int(claims[number])
        value, offset = int(self.value[claim]), int(self.offset[claim])
        rows = np.flatnonzero((columns.kind == APPEND) & (columns.value == value))
        lines = [self._describe(claim)]
        if kind == "failed-append-seen":
            lines += [
                columns.describe(int(rows[0])),
                f"value {value} at offset {offset} is of an append that had failed",
            ]
        elif value == FOREIGN:
            lines.append(f"the record at offset {offset} is none that a client of this run wrote")
        else:
            lines.append(f"nobody appended value {value}, found at offset {offset}")
        involved = tuple(int(row) for row in (self.row[claim], *rows[:1]) if row >= 0)
        return self._finding(kind, involved, (offset,), *lines)

    def _explain_pair(self, kind: str, ones: Int64, others: Int64, number: int) -> Finding:
        one, other = int(ones[number]), int(others[number])
        offsets = (int(self.offset[one]), int(self.offset[other]))
        if kind == "duplicate":
            reason = f"value {self.value[one]} stands at offsets {offsets[0]} and {offsets[1]}"
        else:
            reason = f"offset {offsets[0]} holds value {self.value[one]} and value {self.value[other]}"
        rows = tuple(int(self.row[claim]) for claim in (one, other) if self.row[claim] >= 0)
        return self._finding(kind, rows, offsets, self._describe(one), self._describe(other), reason)

    def _finding(self, kind: str, rows: tuple[int, ...], offsets: tuple[int, ...], *lines: str) -> Finding:
        return Finding(
            kind=kind,
            lines=lines,
            topic=self.topic,
            partition=self.partition,
            operations=tuple(self.columns.index_of(row) for row in rows),
            offsets=offsets,
            time_ns=max((int(self.columns.completed_ns[row]) for row in rows), default=self.end_ns),
        )
