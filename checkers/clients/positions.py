"""Positions: a consumer reads on where its last read ended, unless something moved it that it reports.

A consumer asks each partition from a position. Its next poll must ask from where the records of the last one ended, or
from the same position when that returned none. Then

position-skipped     a poll asks from beyond the position: no poll of this consumer returned the records in between
position-went-back   a poll asks from below the position: the records in between are read again
refused-in-range     a poll is refused with OFFSET_OUT_OF_RANGE, although this consumer had read the records below the
                     offset that it asks for, which stay: the log has that offset

In every workload, whether consumers are alone or members of a group. A position may move, without a violation, after

- `reset` in the history: the consumer detected that the log was truncated (KIP-320) and went back to where the logs
  diverge; `assign`: its group rebalanced, and it starts at the committed offset. It then asks from that very position,
  where the history has it;
- a poll refused with OFFSET_OUT_OF_RANGE: it moves to an offset that the log has, which it does not report. Down, where
  the log ends below the position. Up, where the log begins above it, no further than to what was deleted by then; with
  `auto.offset.reset` `latest`, and where deletions are not known in full (`checkers.deletions`), anywhere.

Records that were deleted by then (`checkers.deletions`) may be skipped. No fault excuses the first two kinds, nor does
an unclean election: a position is the consumer's own, and a log that is not the one it read moves it only in these
ways. Either excuses the last one.

Operations of one consumer are compared in the order of their invocation. It has one fetch at a time for a partition,
and every answer is recorded before its next fetch is invoked; a poll without records may be left out of the history,
since it moves nothing.

The figure `passed_unread` counts records that a consumer never returned although it read on above them: at their offset
it had read another record, which an unclean election, or a loss beyond the fault model, has replaced since. It is no
violation by itself: a consumer that does not validate its positions, as before KIP-320, promises no better. `reset`
operations bring a consumer back below such records, and it reads them.

Blind spots: where a consumer begins that was assigned nothing; the refusal of an offset that this consumer had not come
to, as of a committed one; whether a reset that it reports has a cause (`checkers.loss` looks for what was truncated);
records skipped within one poll (`checkers.linearizability`); logs with
holes, as compaction and transactions leave them, whose consumers seem to skip.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.deletions import knows_all_deletions
from checkers.evidence import EXCUSES, EvidencePart, RunEvidence
from checkers.fault_model import tolerances
from checkers.tables import of_partition
from checkers.verdict import Finding, Verdict
from checkers.violations import Tolerance, Violations, merge_verdicts, verdict_of
from workloads.columns import NEVER, NOTHING, Int64, numbers, partitions
from workloads.history import OUT_OF_RANGE

NAME = "positions"
RESTS_ON = EXCUSES | {EvidencePart.HISTORY}

_KINDS = ("poll", "assign", "reset")
_NO_JUMP = ("earliest", "none")
"""The values of `auto.offset.reset` with which no consumer goes to the end of the log."""


def check(evidence: RunEvidence) -> Verdict:
    """Every partition of a run."""
    tolerance = tolerances(evidence)
    reset = evidence.settings.offset_reset if knows_all_deletions(evidence) else ""
    verdicts = [
        check_partition(
            of_partition(evidence.history, topic, number),
            topic=topic,
            partition=number,
            reset=reset,
            tolerance=tolerance[topic, number],
        )
        for topic, number, _ in partitions(evidence.history)
    ]
    return merge_verdicts(NAME, verdicts, "no operation was recorded")


def check_partition(
    history: pa.Table, *, topic: str = "", partition: int = -1, reset: str = "", tolerance: Tolerance | None = None
) -> Verdict:
    """One partition of one run; `history` with the operations of groups. `reset` is `auto.offset.reset`, or nothing
    where a consumer that is out of range may move anywhere."""
    tolerance = tolerance or Tolerance()
    history = history.filter(pc.is_in(history.column("kind"), value_set=pa.array(_KINDS)))
    history = history.sort_by([("process", "ascending"), ("index", "ascending")])
    asked, after = numbers(history.column("offset"), NOTHING), _position_after(history)
    process = numbers(history.column("process"), -1)
    is_poll = numbers(pc.equal(history.column("kind"), "poll"), 0) == 1
    follows = np.flatnonzero((process[1:] == process[:-1]) & is_poll[1:]) + 1
    known = follows[(after[follows - 1] != NOTHING) & (asked[follows] != NOTHING)]
    completed_ns = numbers(history.column("completed_ns"), NEVER)
    refused = numbers(pc.fill_null(pc.equal(history.column("error"), OUT_OF_RANGE), False), 0) == 1
    permitted = np.maximum(after[known - 1], tolerance.deleted_by(completed_ns[known]))
    permitted_at = dict(zip(known.tolist(), permitted.tolist(), strict=True))
    jumps = refused[known - 1] & (reset not in _NO_JUMP)
    skipped = known[(asked[known] > permitted) & ~jumps]
    back = known[(asked[known] < after[known - 1]) & ~refused[known - 1]]

    def violations(kind: str, rows: Int64) -> Violations:
        def explain(number: int) -> Finding:
            row = int(rows[number])
            before, poll = history.slice(row - 1, 2).to_pylist()
            position = int(after[row - 1])
            what = "was not read" if kind == "position-skipped" else "is read again"
            first, last = sorted((position, int(asked[row])))
            moved = f"only deletions below {permitted_at[row]} may move it" if refused[row - 1] else "nothing moved it"
            reason = f"its position was {position}, and {moved}: what lies from {first} up to {last} {what}"
            return Finding(
                kind,
                (_describe(before), _describe(poll), reason),
                topic,
                partition,
                (before["index"], poll["index"]),
                (position, int(asked[row])),
                poll["completed_ns"],
            )

        return Violations(kind, np.minimum(after[rows - 1], asked[rows]), completed_ns[rows], explain)

    out_of_range = np.flatnonzero(refused & is_poll & (asked >= 0))
    deleted_below = tolerance.deleted_by(completed_ns[out_of_range])
    read_to = _read_to(history)[out_of_range]
    in_range = (0 < read_to) & (asked[out_of_range] <= read_to) & (asked[out_of_range] >= deleted_below)

    def explain_refusal(number: int) -> Finding:
        poll = history.slice(int(denied[number]), 1).to_pylist()[0]
        line = f"it had read the records below {poll['offset']}, which nothing had deleted"
        operations, offsets = (poll["index"],), (poll["offset"],)
        lines = (_describe(poll), line)
        return Finding("refused-in-range", lines, topic, partition, operations, offsets, poll["completed_ns"])

    denied = out_of_range[in_range]
    found = [
        violations("position-skipped", skipped),
        violations("position-went-back", back),
        Violations("refused-in-range", np.maximum(asked[denied] - 1, 0), completed_ns[denied], explain_refusal),
    ]
    figures = {"polls_compared": float(len(known)), "passed_unread": float(_passed_unread(history))}
    return verdict_of(NAME, found, tolerance, figures)


def _passed_unread(history: pa.Table) -> int:
    """Records of the final log that a consumer passed without returning them, over all consumers; `history` is sorted
    by process and index."""
    lengths = numbers(pc.list_value_length(history.column("offsets")), 0)
    row = np.repeat(np.arange(len(lengths)), lengths)
    offset = numbers(pc.list_flatten(history.column("offsets").combine_chunks()), NOTHING)
    value = numbers(pc.list_flatten(history.column("values").combine_chunks()), NOTHING)
    final = numbers(pc.equal(history.column("phase"), "final"), 0)[row] == 1
    if not final.any() or final.all():
        return 0
    last_value = np.full(int(offset.max()) + 1, NOTHING)
    last_value[offset[final]] = value[final]
    process = numbers(history.column("process"), -1)[row]
    return sum(
        _passed(row[mine], offset[mine], value[mine], last_value)
        for each in np.unique(process[~final])
        for mine in [(process == each) & ~final]
    )


def _passed(row: Int64, offset: Int64, value: Int64, last_value: Int64) -> int:
    """The same of one consumer, whose reads are in order: offsets whose last read returned another record than the
    final log has, with a later read above that returned what the final log has."""
    _, from_end = np.unique(offset[::-1], return_index=True)
    last_read = len(offset) - 1 - from_end
    replaced = last_read[
        (last_value[offset[last_read]] != NOTHING) & (value[last_read] != last_value[offset[last_read]])
    ]
    current = np.flatnonzero(value == last_value[offset])
    if not len(current) or not len(replaced):
        return 0
    highest_after = np.maximum.accumulate(offset[current][::-1])[::-1]
    follows = np.searchsorted(row[current], row[replaced], side="right")
    read_on = follows < len(current)
    return int((highest_after[follows[read_on]] > offset[replaced[read_on]]).sum())


def _position_after(history: pa.Table) -> Int64:
    """The position of the consumer after each operation, the highest that it can have without a deletion where it was
    out of range; NOTHING where that is not known."""
    position = numbers(history.column("offset"), NOTHING).copy()
    lengths = numbers(pc.list_value_length(history.column("offsets")), 0)
    returned = np.flatnonzero(lengths)
    flat = numbers(pc.list_flatten(history.column("offsets").combine_chunks()), NOTHING)
    position[returned] = flat[np.cumsum(lengths)[returned] - 1] + 1
    not_ok = numbers(pc.not_equal(history.column("outcome"), "ok"), 0) == 1
    not_started = not_ok & (numbers(pc.equal(history.column("kind"), "poll"), 0) == 0)
    position[not_started] = NOTHING
    return position


def _read_to(history: pa.Table) -> Int64:
    """Up to which offset the consumer of each operation had read by then; 0 for nothing. `history` is sorted by process
    and index."""
    lengths = numbers(pc.list_value_length(history.column("offsets")), 0)
    returned = np.flatnonzero(lengths)
    flat = numbers(pc.list_flatten(history.column("offsets").combine_chunks()), NOTHING)
    process = numbers(history.column("process"), -1)
    end = np.zeros(len(lengths), dtype=np.int64)
    end[returned] = flat[np.cumsum(lengths)[returned] - 1] + 1
    # One running maximum for all consumers: each one's ends are lifted above all those of the one before.
    _, group = np.unique(process, return_inverse=True)
    lift = group * (int(end.max(initial=0)) + 1)
    highest = np.maximum.accumulate(end + lift)
    before = np.concatenate([np.zeros(1, dtype=np.int64), highest])[: len(highest)]
    return np.asarray(np.maximum(before - lift, 0))


def _describe(row: dict[str, Any]) -> str:
    offsets, asked = row["offsets"], row["offset"]
    what = {"poll": f"poll from {asked}", "assign": f"assigned, to start at {asked}", "reset": f"reset to {asked}"}
    answer = f"offsets {offsets[0]} to {offsets[-1]}" if offsets else row["error"] or "nothing"
    until = f"{row['completed_ns'] / 1e9:.6f} s" if row["completed_ns"] is not None else "never"
    return (
        f"#{row['index']} {what[row['kind']]} by process {row['process']} "
        f"({row['invoked_ns'] / 1e9:.6f} s to {until})" + (f" → {answer}" if row["kind"] == "poll" else "")
    )
