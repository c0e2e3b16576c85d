"""Linearizability of appends, polls and end-offset reads, a partition at a time, in linear time.

The model is a log: `append(v)` puts v at the end and returns its offset, `poll(p)` returns the values from p on, as
many as it likes, `end_offset` returns the length. The log has no holes: workloads here neither compact nor write
transactions, so every offset below the end holds a record some append wrote. A history is linearizable iff every
operation can be given one instant between invocation and completion so that the operations, in the order of their
instants, are a run of that log. `checkers.linearizability.oracle` says the same by search; the two are tested to agree.

No search is needed, because the broker returns offsets: the order of appends is known.

Records deleted from its start change nothing: they have been appended and keep their offsets; a read of them is
refused, and a refused read returned nothing.

1. An acknowledged append stands at its offset. An append of unknown outcome that a poll returned stands where the poll
   says. A read of end h stands between the appends at h−1 and h.
2. An offset below the greatest that anything speaks of, at which nothing stands, was taken by an append of unknown
   outcome that nobody saw. Which one? The earliest invoked ones, in the order of the offsets. They have no deadline, so
   only their invocations matter, and exchanging any other choice for this one never invokes anything later. If there
   are not enough of them, somebody else wrote to the log. An offset of a batch that stands twice since a deletion
   (`checkers.linearizability.repeated_batches`) needs none.
3. With everything in one order, a run exists iff nothing completed before something was invoked that stands before it.
   So: keep the running maximum of invocations along the offsets, and compare it with every deadline.
   - an append's deadline is its own completion;
   - a poll that returned offset o proves that o, and all before it, were appended by the poll's completion: the running
     maximum up to and including o must not exceed it. A poll has no other duty: it may return an old prefix, since
     more records after those it returned do not contradict it. So it adds nothing to the running maximum;
   - a read of end h must not complete before the running maximum up to h−1, and its own invocation counts for the
     appends from h on.
4. A failed append must not be seen; nor a value nobody appended; one offset holds one value, one value one offset; a
   poll returns the records from the position asked, each offset once and in order.

Subtle choices, each with the history that the other choice gets wrong:

*Equal times are concurrent*: `a` is before `b` only if a.completed < b.invoked, strictly.
    A: append(1)  [0, 5] → 1
    B: append(2)  [5, 9] → 0
In simulation many things happen at one virtual instant. B may have been invoked before A completed, both at 5, and the
log may have taken B first. With ≤ this run of a correct broker would be invalid.

*Reads of one end are unordered among themselves*: the deadline of a read of h looks at what stands before h, and not
at other reads of h.
    C: end_offset [0, 1] → 0
    D: end_offset [5, 6] → 0
In table order D, C a running maximum over both would hold 5 > 1 against C. They commute; C was simply first.

*An acknowledged append that no poll returned still has its deadline, one of unknown outcome has none, even when its
`info` came at a known time*: the request may still be on its way.
    A: append(1)  [0, 3] → info
    B: append(2)  [5, 6] → 0
    C: poll(0)    [8, 9] → 2, 1
A's request was delivered after B was acknowledged. Holding A to 3 would make it invalid.

*A poll's deadline covers the whole prefix, not just what it returned*:
    A: append(1)  [7, 8] → 0
    B: append(2)  [0, 9] → 1
    C: poll(1)    [3, 4] → 2
C saw offset 1 at 4 at the latest; the record below it was invoked at 7. Checked record by record this passes.

*A later poll need not return more than an earlier one*: positions are the client's, and brokers may serve old prefixes.
Only with `recency: strict` does an empty poll at p assert that the end was p, exactly as a read of end p.

*A system may not confirm end offsets* (`CheckSettings.confirmed_ends`): a deposed leader of Apache Kafka tells the end
that it knows, long after a later one has acknowledged more. A read of h is then as a poll that returned what is below
h: the log was so long by its completion, and nothing says that it was no longer.

Acknowledgements that bind nothing: with acks=1 or 0 an acknowledged append may be lost and its offset given to another.
It then counts as one of unknown outcome, in `appends_not_promised` with those; polls and end offsets are still checked,
because consumers read below the high watermark whatever `acks` the producer used. `checkers.violations` and
`checkers.fault_model` say what unclean elections and losses beyond the fault model excuse.

Blind spots: a stale empty poll (by default); order between operations of clients without a common clock; a record
of unknown outcome that disappears before anybody sees it; anything in the records but their value; loss of the end of
the log that nobody read afterwards (`checkers.loss` checks that). It says `unknown` if the workload reused a value.

Cost: about 16 bytes an offset and a few passes over the columns; `harness/bench/checking.py` measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from checkers.evidence import EXCUSES, EvidencePart, RunEvidence
from checkers.fault_model import check_partitions
from checkers.linearizability.placement import CONFLICT, DUPLICATE, FAILED, PHANTOM, Placement, place
from checkers.linearizability.repeated_batches import offsets_of_copies
from checkers.verdict import Finding, Verdict
from checkers.violations import Tolerance, Violations, unknown_verdict, verdict_of
from workloads.columns import APPEND, FOREIGN, NEVER, NOTHING, OK, Columns, Int64
from workloads.history import TopicPartition

NAME = "linearizability"
RESTS_ON = EXCUSES | {EvidencePart.HISTORY}

_MISPLACED_KINDS = {
    CONFLICT: "conflicting-offset",
    DUPLICATE: "duplicate",
    FAILED: "failed-append-seen",
    PHANTOM: "phantom-value",
}
_MISPLACED_REASONS = {
    CONFLICT: "offset {offset} holds value {stands} elsewhere, and value {value} here",
    DUPLICATE: "value {value} stands at another offset than {offset}, where this poll returned it",
    FAILED: "value {value}, returned at offset {offset}, is of an append that had failed",
    PHANTOM: "nobody appended value {value}, returned at offset {offset}",
}


def check(evidence: RunEvidence) -> Verdict:
    """Every partition of a run."""
    settings = evidence.settings
    check_one = partial(
        check_partition,
        recency=settings.recency,
        offsets_binding=settings.acks == -1,
        ends_confirmed=settings.confirmed_ends,
        copies=offsets_of_copies(evidence),
    )
    return check_partitions(NAME, evidence, check_one)


def check_partition(
    columns: Columns | pa.Table,
    *,
    topic: str = "",
    partition: int = -1,
    recency: str = "default",
    offsets_binding: bool = True,
    ends_confirmed: bool = True,
    copies: Mapping[TopicPartition, Sequence[range]] = MappingProxyType({}),
    tolerance: Tolerance | None = None,
) -> Verdict:
    """One partition of one run, as `Columns` or as a table with the history's schema, in any order of rows."""
    if not isinstance(columns, Columns):
        columns = Columns.from_table(columns)
    placement = place(
        columns,
        recency=recency,
        offsets_binding=offsets_binding,
        ends_confirmed=ends_confirmed,
        copies=copies.get((topic, partition), ()),
    )
    if placement.reused_values:
        return unknown_verdict(
            NAME, "two appends wrote the same value, so a value does not tell which of them was seen"
        )
    figures = {
        "operations": float(len(columns)),
        "records_returned": float(len(columns.poll_offset)),
        "appends_promised": float(placement.acknowledged),
        "appends_not_promised": float(placement.unknown),
        "appends_not_promised_seen": float(placement.unknown_seen),
        "appends_failed": float(placement.failed),
    }
    violations = _Explainer(columns, placement, topic, partition).violations()
    return verdict_of(NAME, violations, tolerance or Tolerance(), figures)


class _Explainer:
    """Explains violations by the operations involved. Looks rows up by scanning: only the few shown cost that."""

    def __init__(self, columns: Columns, placement: Placement, topic: str, partition: int) -> None:
        self.columns = columns
        self.placement = placement
        self.topic = topic
        self.partition = partition

    def violations(self) -> list[Violations]:
        """All of them, the most telling kind first."""
        columns, placement, misplaced = self.columns, self.placement, self.placement.misplaced
        violations = []
        for code in (FAILED, PHANTOM, DUPLICATE, CONFLICT):
            chosen = np.flatnonzero(misplaced.kind == code)
            offsets = columns.poll_offset[misplaced.record[chosen]]
            times = columns.completed_ns[misplaced.row[chosen]]
            values = columns.poll_value[misplaced.record[chosen]]
            since = None
            if code == CONFLICT:
                times = np.maximum(times, self._appended_ns(placement.value_at[offsets]))
                since = np.minimum(self._invoked_ns(values), self._invoked_ns(placement.value_at[offsets]))
            elif code == DUPLICATE:
                # The pair concerns the lower of its two offsets.
                offsets = np.minimum(offsets, self._stands_at(values, offsets))
                times = np.maximum(times, self._appended_ns(values))
                since = self._invoked_ns(values)
            violations.append(
                Violations(_MISPLACED_KINDS[code], offsets, times, partial(self._misplaced, chosen, code), since)
            )
        offsets = columns.offset[placement.conflicting]
        times = np.maximum(columns.completed_ns[placement.conflicting], self._appended_ns(placement.value_at[offsets]))
        since = np.minimum(columns.invoked_ns[placement.conflicting], self._invoked_ns(placement.value_at[offsets]))
        violations.append(Violations("conflicting-offset", offsets, times, self._conflict, since))
        invoked = placement.latest[self._slots(placement.late)]
        # The pair concerns the lower of its two offsets, which is the one invoked too late; so does what excuses it.
        # An append may be invoked before the loss that excuses it, and find its place in the log after it.
        offsets = np.searchsorted(placement.latest, invoked)
        times, placed = invoked.copy(), offsets < len(placement.value_at)
        times[placed] = np.maximum(times[placed], self._appended_ns(placement.value_at[offsets[placed]]))
        since = columns.invoked_ns[placement.late]
        violations.append(Violations("real-time-order", offsets, times, self._late, since))
        if len(placement.unexplained):
            # The time at which such a record was written is unknown: it counts as the last.
            times = np.full(len(placement.unexplained), NEVER, dtype=np.int64)
            violations.append(Violations("unexplained-offset", placement.unexplained, times, self._unexplained))
        rows = placement.gaps
        violations.append(Violations("poll-gap", self._ends(rows), self._times(rows), self._gap))
        rows = placement.impossible
        violations.append(Violations("impossible-offset", self._ends(rows), self._times(rows), self._impossible))
        return violations

    def _times(self, rows: Int64) -> Int64:
        return self.columns.completed_ns[rows]

    def _appended_ns(self, values: Int64) -> Int64:
        """Completion times of the appends of `values`; NEVER where one did not complete, or there is none."""
        return self.columns.of_appends(values, self.columns.completed_ns, NEVER)

    def _invoked_ns(self, values: Int64) -> Int64:
        """Since when records with `values` can have existed: always, where no append of one is known."""
        return self.columns.of_appends(values, self.columns.invoked_ns, NOTHING)

    def _stands_at(self, values: Int64, otherwise: Int64) -> Int64:
        """The offsets at which `values` stand in the log; those in `otherwise` where one does not."""
        value_at = self.placement.value_at
        if not len(values) or not len(value_at):
            return otherwise
        order = np.argsort(value_at, kind="stable")
        where = np.minimum(np.searchsorted(value_at[order], values), len(order) - 1)
        return np.where(value_at[order][where] == values, order[where], otherwise)

    def _ends(self, rows: Int64) -> Int64:
        """The offset that an operation asserts; the last one of a poll."""
        columns = self.columns
        returned = columns.starts[rows + 1] > columns.starts[rows]
        ends = columns.offset[rows].copy()
        ends[returned] = columns.poll_offset[columns.starts[rows[returned] + 1] - 1]
        return ends

    def _slots(self, rows: Int64) -> Int64:
        """The last offset whose running maximum is held against each of these rows."""
        columns = self.columns
        slots = self._ends(rows)
        reads = (columns.kind[rows] != APPEND) & (columns.starts[rows + 1] == columns.starts[rows])
        slots[reads] -= 1
        return slots

    def _finding(self, kind: str, rows: tuple[int, ...], offsets: tuple[int, ...], *lines: str) -> Finding:
        completed = [int(self.columns.completed_ns[row]) for row in rows]
        return Finding(
            kind=kind,
            lines=lines,
            topic=self.topic,
            partition=self.partition,
            operations=tuple(self.columns.index_of(row) for row in rows),
            offsets=offsets,
            time_ns=max((time_ns for time_ns in completed if time_ns != NEVER), default=-1),
        )

    def _appended(self, value: int) -> int | None:
        rows = np.flatnonzero((self.columns.value == value) & (self.columns.kind == APPEND))
        return int(rows[0]) if len(rows) else None

    def _misplaced(self, chosen: Int64, code: int, number: int) -> Finding:
        columns, misplaced = self.columns, self.placement.misplaced
        row, record = int(misplaced.row[chosen[number]]), int(misplaced.record[chosen[number]])
        offset, value = int(columns.poll_offset[record]), int(columns.poll_value[record])
        stands = int(self.placement.value_at[offset]) if 0 <= offset < len(self.placement.value_at) else None
        reason = _MISPLACED_REASONS[code].format(offset=offset, value=value, stands=stands)
        if value == FOREIGN:
            reason = f"the record at offset {offset} is none that a client of this run wrote"
        lines = [columns.describe(row)]
        other = self._appended(stands) if code == CONFLICT and stands is not None else self._appended(value)
        if other is not None:
            lines.append(columns.describe(other))
        rows = (row,) if other is None else (row, other)
        return self._finding(_MISPLACED_KINDS[code], rows, (offset,), *lines, reason)

    def _conflict(self, number: int) -> Finding:
        columns = self.columns
        row = int(self.placement.conflicting[number])
        offset = int(columns.offset[row])
        same = (columns.offset == offset) & (columns.kind == APPEND) & (columns.outcome == OK)
        rows = (row, *(int(other) for other in np.flatnonzero(same) if other != row))[:2]
        lines = [columns.describe(involved) for involved in rows]
        return self._finding(
            "conflicting-offset", rows, (offset,), *lines, f"both were acknowledged with offset {offset}"
        )

    def _late(self, number: int) -> Finding:
        columns, placement = self.columns, self.placement
        rows = placement.late[number : number + 1]
        row, slot = int(rows[0]), int(self._slots(rows)[0])
        time_ns = int(placement.latest[slot])
        culprit_slot = int(np.searchsorted(placement.latest, time_ns))
        culprit = self._invoked_at(time_ns, culprit_slot)
        what = f"offset {culprit_slot}"
        if culprit is None:
            lines: tuple[str, ...] = (columns.describe(row),)
            involved: tuple[int, ...] = (row,)
        else:
            lines = (columns.describe(row), columns.describe(culprit))
            involved = (row, culprit)
            if int(columns.kind[culprit]) != APPEND:
                what = f"the read of end {int(columns.offset[culprit])}"
            elif self._fills(culprit):
                what += ", which an append that nobody saw must hold, this one at best,"
        reason = (
            f"{what} comes before what #{columns.index_of(row)} returned, but was invoked at {time_ns / 1e9:.6f} s, "
            f"{(time_ns - int(columns.completed_ns[row])) / 1e9:.6f} s after #{columns.index_of(row)} had completed"
        )
        return self._finding("real-time-order", involved, (slot, culprit_slot), *lines, reason)

    def _fills(self, row: int) -> bool:
        """Whether an append of unknown outcome was given an offset only because some append must stand there."""
        return bool((self.placement.filled_by[self.placement.unknown_seen :] == row).any())

    def _invoked_at(self, time_ns: int, slot: int) -> int | None:
        """The row that put `time_ns` into the running maximum at `slot`."""
        columns, placement = self.columns, self.placement
        for row in np.flatnonzero(columns.invoked_ns == time_ns):
            filled = placement.filled[placement.filled_by == row]
            if len(filled):
                if int(filled[0]) == slot:
                    return int(row)
            elif int(columns.outcome[row]) == OK and int(columns.offset[row]) == slot:
                return int(row)
        return None

    def _unexplained(self, number: int) -> Finding:
        columns, placement = self.columns, self.placement
        offset = int(placement.unexplained[number])
        if placement.too_sparse:
            reason = f"the log would end at {placement.end}, far beyond all {placement.acknowledged} appends"
        else:
            reason = (
                f"offset {offset} lies below the end, and none of the {placement.unknown} appends of unknown outcome "
                "is left that can have taken it: something wrote a record that no client can have asked for"
            )
        beyond = np.flatnonzero((self._ends(np.arange(len(columns))) > offset) & (columns.outcome == OK))
        witness = (int(beyond[np.argmin(columns.completed_ns[beyond])]),) if len(beyond) else ()
        return self._finding("unexplained-offset", witness, (offset,), *map(columns.describe, witness), reason)

    def _gap(self, number: int) -> Finding:
        columns = self.columns
        row = int(self.placement.gaps[number])
        returned = columns.poll_offset[int(columns.starts[row]) : int(columns.starts[row + 1])]
        first = int(returned[0]) if int(columns.offset[row]) < 0 else int(columns.offset[row])
        at = int(np.flatnonzero(returned != first + np.arange(len(returned)))[0])
        reason = f"it returned offset {int(returned[at])} where offset {first + at} was due"
        return self._finding("poll-gap", (row,), (first + at, int(returned[at])), columns.describe(row), reason)

    def _impossible(self, number: int) -> Finding:
        row = int(self.placement.impossible[number])
        reason = "an offset below 0 is none"
        return self._finding("impossible-offset", (row,), (), self.columns.describe(row), reason)
