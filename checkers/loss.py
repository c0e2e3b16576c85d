"""Loss: no acknowledged record is lost, and no record that a consumer read.

A record is *promised* once its append was acknowledged with acks=all, or once any poll returned it: consumers read
below the high watermark, and records below it stay, whatever `acks` their producer used. A promised record is *lost*
if, at the end of the run,

- the final reads were completed (each partition read from its start to the end offset answered) and did not return it;
  or
- the log of every replica was collected and none holds it. This needs no recovery: a record on no disk is gone.

An append may be acknowledged without an offset (the leader knows it for a duplicate and no longer where it stands). Its
record is promised all the same and is looked for by its value. It stands above every record that was acknowledged or
read before it was invoked; where that does not rule out that it was deleted, it is taken for deleted, and losses beyond
the fault model excuse it at any offset.

A record below the offset up to which deletion is permitted is deleted and not lost (`checkers.deletions`); it is
counted as `deleted`.

With acks=1 or 0 an acknowledged record that was never read is not promised; those lost are counted as
`acknowledged_lost_allowed`. Partitions that had an unclean election, where the topic permits it, promise nothing, so
what they lose is counted as `allowed` (`checkers.unclean_elections`). When more replicas lost data at one time than the
protocol survives, records that existed then at the offsets concerned are excused, which makes the verdict `unknown`
(`checkers.fault_model`).

The verdict is `unknown` too when neither test was possible for a promised record: there were no final reads, and the
record is still on some disk, from where it may return or be truncated.

`lost_records` lists every lost record, also one that was acknowledged and not promised, by value and offset, with the
replicas that still hold it; the verdict explains a few.

Blind spots: loss of a record whose acknowledgement never reached the client, and that was never read; loss that is
repaired before the run ends (`checkers.linearizability` checks the reads in between); whether a
record is on enough replicas (`checkers.logs`). It trusts that one value is one record.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkers.deletions import deletable_below
from checkers.evidence import EXCUSES, CheckSettings, EvidencePart, RunEvidence
from checkers.fault_model import check_partitions
from checkers.tables import LOST, of_partition
from checkers.verdict import Finding, Verdict
from checkers.violations import Tolerance, Violations, verdict_of
from workloads.columns import APPEND, FOREIGN, NEVER, OK, POLL, Columns, Int64, numbers, partitions

NAME = "loss"
LOST_FIGURES = ("lost", "acknowledged_lost_allowed")
"""They count the records that `lost_records` lists."""
RESTS_ON = EXCUSES | {EvidencePart.HISTORY, EvidencePart.REPLICAS, EvidencePart.RECOVERY}


def check(evidence: RunEvidence) -> Verdict:
    """Every partition of a run."""
    check_one = partial(check_partition, settings=evidence.settings, finally_read=_finally_read(evidence))
    return check_partitions(NAME, evidence, check_one, evidence.replicas, evidence.replica_ends)


def lost_records(evidence: RunEvidence) -> pa.Table:
    """Every record that is lost, promised or acknowledged, in the order of offsets, by the schema
    `checkers.tables.LOST`."""
    lost_rows = []
    deleted, finally_read = deletable_below(evidence), _finally_read(evidence)
    for topic, number, history in partitions(evidence.history):
        replicas, replica_ends = (
            of_partition(table, topic, number) for table in (evidence.replicas, evidence.replica_ends)
        )
        deleted_below = deleted.get((topic, number), 0)
        promises = _promises(history, replicas, replica_ends, evidence.settings, finally_read, deleted_below)
        columns, lost, unpromised = promises.columns, promises.lost, promises.unpromised_lost
        rows = np.concatenate([promises.rows[lost], unpromised])
        if not len(rows):
            continue
        values = np.concatenate([promises.values[lost], columns.value[unpromised]])
        offsets = np.concatenate([promises.offsets[lost], columns.offset[unpromised]])
        placed = np.concatenate([promises.placed[lost], columns.offset[unpromised] >= 0])
        read_values, read_offsets, _ = _returned(columns, promises.final)
        instead = dict(zip(read_offsets.tolist(), read_values.tolist(), strict=True))
        for which in np.argsort(offsets, kind="stable"):
            row, value, offset = (int(each[which]) for each in (rows, values, offsets))
            lost_rows.append(
                {
                    "topic": topic,
                    "partition": number,
                    "offset": offset if placed[which] else -1,
                    "value": value,
                    "operation": columns.index_of(row),
                    "told_ns": int(columns.completed_ns[row]),
                    "instead": instead.get(offset),
                    "on_disk": " ".join(_holders(replicas, value)),
                }
            )
    return pa.Table.from_pylist(lost_rows, LOST)


def _finally_read(evidence: RunEvidence) -> bool:
    return bool(evidence.recovery.get("final_reads"))


def check_partition(
    history: pa.Table,
    replicas: pa.Table,
    replica_ends: pa.Table,
    *,
    topic: str,
    partition: int,
    settings: CheckSettings,
    finally_read: bool,
    tolerance: Tolerance,
) -> Verdict:
    """One partition of one run, whose final reads were completed or not."""
    promises = _promises(history, replicas, replica_ends, settings, finally_read, tolerance.deleted_below)
    columns, values, offsets, rows = promises.columns, promises.values, promises.offsets, promises.rows
    lost = promises.lost

    def explain(number: int) -> Finding:
        which = int(lost[number])
        row, offset, is_placed = int(rows[which]), int(offsets[which]), bool(promises.placed[which])
        return Finding(
            kind="lost-append" if columns.kind[row] == APPEND else "lost-read",
            lines=(
                columns.describe(row),
                *(() if is_placed else ("it was acknowledged without an offset",)),
                *promises.found_instead(int(values[which]), offset if is_placed else -1),
            ),
            topic=topic,
            partition=partition,
            operations=(columns.index_of(row),),
            offsets=(offset,) if is_placed else (),
            time_ns=int(columns.completed_ns[row]),
        )

    kind = columns.kind[rows[lost]]
    violations = []
    for name, code in (("lost-append", APPEND), ("lost-read", POLL)):
        chosen = np.flatnonzero(kind == code)
        violations.append(
            Violations(
                name,
                np.where(promises.placed[lost[chosen]], offsets[lost[chosen]], NEVER),
                np.full(len(chosen), NEVER, dtype=np.int64),
                lambda number, chosen=chosen: explain(int(chosen[number])),  # type: ignore[misc]
                columns.invoked_ns[_appended_by(columns, values[lost[chosen]], rows[lost[chosen]])],
            )
        )
    deleted = offsets < promises.deleted_below
    figures = {
        "promised": float(len(values)),
        "lost": float(len(lost)),
        "deleted": float(deleted.sum()),
        "acknowledged_lost_allowed": float(len(promises.unpromised_lost)),
    }
    undecided = np.setdiff1d(np.flatnonzero(~deleted), lost)
    doubts = []
    if len(undecided) and not finally_read:
        unread = f"{len(undecided)} records promised to stay were not read back: the final reads were not completed"
        if replica_ends.num_rows:
            on_disk = f"{int(promises.on_disk[undecided].sum())} of them are on at least one replica's disk"
        else:
            on_disk = "no replica's log was collected, either"
        doubts.append(Finding("not-finally-read", (unread, on_disk), topic, partition))
    return verdict_of(NAME, violations, tolerance, figures, doubts)


@dataclass(frozen=True, slots=True, eq=False)
class _Promises:
    """The promised records of one partition: an entry each in `values`, `offsets`, `rows` (witnesses) and `on_disk`."""

    columns: Columns
    replicas: pa.Table
    acks: int
    finally_read: bool
    every_log: bool
    """Whether the log of every replica was collected."""
    deleted_below: int
    final: npt.NDArray[np.bool_]
    """Which operations are final reads."""
    values: Int64
    offsets: Int64
    """Where a record stands; the least possible offset of one that is not `placed`."""
    placed: npt.NDArray[np.bool_]
    """Whether the offset is known."""
    rows: Int64
    on_disk: npt.NDArray[np.bool_]
    lost: Int64
    """Which of them are lost: missing, and not deleted."""
    kept: tuple[Int64, ...]
    """The values that the final reads returned, if they were completed, and those in the logs, if all are there."""

    @property
    def unpromised_lost(self) -> Int64:
        """The rows of the acknowledged appends whose records are lost, and were not promised."""
        if self.acks == -1:
            return np.zeros(0, dtype=np.int64)
        columns = self.columns
        acknowledged = (columns.kind == APPEND) & (columns.outcome == OK)
        rows = np.flatnonzero(acknowledged & ~((columns.offset >= 0) & (columns.offset < self.deleted_below)))
        values = columns.value[rows]
        return rows[_missing(values, self.kept) & ~np.isin(values, self.values)]

    def found_instead(self, value: int, offset: int) -> tuple[str, ...]:
        """The records at `offset` (-1: not known) in place of `value`, by the final reads and on the disks."""
        lines = []
        if self.finally_read:
            values, offsets, _ = _returned(self.columns, self.final)
            instead = values[offsets == offset]
            end = int(offsets.max(initial=-1)) + 1
            lines.append(
                f"the final reads did not return value {value}: "
                + (f"offset {offset} held value {instead[0]}" if len(instead) else f"they ended at {end}")
            )
        if self.replicas.num_rows or self.every_log:
            holders = _holders(self.replicas, value)
            nowhere = "on no replica" if self.every_log else "in none of the logs collected, which are not all"
            lines.append(f"on disk at the end: {', '.join(holders) if holders else nowhere}")
        return tuple(lines)


def _promises(
    history: pa.Table,
    replicas: pa.Table,
    replica_ends: pa.Table,
    settings: CheckSettings,
    finally_read: bool,
    deleted_below: int,
) -> _Promises:
    columns = Columns.from_table(history)
    final = np.asarray(pc.equal(history.column("phase"), "final").to_numpy(zero_copy_only=False), dtype=bool)
    final_values, _, _ = _returned(columns, final)
    stored = numbers(pc.drop_null(replicas.column("value")), FOREIGN)
    values, offsets, rows = _promised(columns, settings.acks)
    placed = offsets >= 0
    offsets = np.where(placed, offsets, _least_offsets(columns, rows))
    every_log = bool(replica_ends.num_rows >= max(1, settings.replication_factor))
    on_disk = np.isin(values, stored)
    kept = (*((final_values,) if finally_read else ()), *((stored,) if every_log else ()))
    return _Promises(
        columns,
        replicas,
        settings.acks,
        finally_read,
        every_log,
        deleted_below,
        final,
        values,
        offsets,
        placed,
        rows,
        on_disk,
        np.flatnonzero(_missing(values, kept) & (offsets >= deleted_below)),
        kept,
    )


def _missing(values: Int64, kept: tuple[Int64, ...]) -> npt.NDArray[np.bool_]:
    """Which of these values are not in all that was `kept`."""
    missing = np.zeros(len(values), dtype=bool)
    for each in kept:
        missing |= ~np.isin(values, each)
    return missing


def _returned(columns: Columns, chosen: npt.NDArray[np.bool_]) -> tuple[Int64, Int64, Int64]:
    """(values, offsets, poll rows) of all records that the chosen polls returned."""
    lengths = np.diff(columns.starts)
    mask = np.repeat(chosen, lengths)
    rows = np.repeat(np.arange(len(columns)), lengths)[mask]
    return columns.poll_value[mask], columns.poll_offset[mask], rows


def _promised(columns: Columns, acks: int) -> tuple[Int64, Int64, Int64]:
    """(values, offsets, witness rows) of all promised records, a value once, acknowledged appends before polls. The
    offset of an append that was acknowledged without one is NOTHING, unless a poll returned its record."""
    acknowledged = np.flatnonzero((columns.kind == APPEND) & (columns.outcome == OK))
    acknowledged = acknowledged if acks == -1 else acknowledged[:0]
    seen_values, seen_offsets, seen_rows = _returned(columns, np.ones(len(columns), dtype=bool))
    values = np.concatenate([columns.value[acknowledged], seen_values])
    offsets = np.concatenate([columns.offset[acknowledged], seen_offsets])
    rows = np.concatenate([acknowledged, seen_rows])
    known, any_offset = _offset_by_value(values, offsets)
    _, first = np.unique(values, return_index=True)
    first = np.sort(first)
    values, offsets, rows = values[first], offsets[first], rows[first]
    place = np.minimum(np.searchsorted(known, values), max(0, len(known) - 1))
    found = np.isin(values, known)
    offsets = np.where((offsets < 0) & found, any_offset[place], offsets) if len(known) else offsets
    return values, offsets, rows


def _offset_by_value(values: Int64, offsets: Int64) -> tuple[Int64, Int64]:
    """(values in order, an offset each) of the records whose offset is known."""
    known = np.flatnonzero(offsets >= 0)
    ordered, first = np.unique(values[known], return_index=True)
    return ordered, offsets[known][first]


def _least_offsets(columns: Columns, rows: Int64) -> Int64:
    """For the append in each of `rows` the least offset that it can have: above every record that was acknowledged or
    read before it was invoked."""
    lengths = np.diff(columns.starts)
    last = np.full(len(columns), -1, dtype=np.int64)
    last[lengths > 0] = columns.poll_offset[columns.starts[1:][lengths > 0] - 1]
    acknowledged = (columns.kind == APPEND) & (columns.outcome == OK)
    last[acknowledged] = columns.offset[acknowledged]
    order = np.argsort(columns.completed_ns, kind="stable")
    highest = np.maximum.accumulate(np.concatenate([[-1], last[order]]))
    before = np.searchsorted(columns.completed_ns[order], columns.invoked_ns[rows], side="left")
    return np.asarray(highest[before] + 1, dtype=np.int64)


def _appended_by(columns: Columns, values: Int64, otherwise: Int64) -> Int64:
    """The rows that appended `values`; those in `otherwise` where there is none."""
    appends = np.flatnonzero(columns.kind == APPEND)
    if not len(appends):
        return otherwise
    order = appends[np.argsort(columns.value[appends], kind="stable")]
    where = np.minimum(np.searchsorted(columns.value[order], values), len(order) - 1)
    return np.where(columns.value[order][where] == values, order[where], otherwise)


def _holders(replicas: pa.Table, value: int) -> list[str]:
    """The places at which logs hold `value`: b1@17 is offset 17 of b1."""
    return [f"{row['node']}@{row['offset']}" for row in replicas.filter(pc.field("value") == value).to_pylist()]
