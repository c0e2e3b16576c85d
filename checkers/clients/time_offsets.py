"""Offsets by time: a client that asks for what is not older than a time is sent to the first such record, and no later.

A record's timestamp lies between the invocation and the completion of its append, but for the error of its producer's
clock (`CheckSettings.clock_error_ms`). A leader answers from the records
below its high watermark, which stay, so also one that was deposed answers rightly with an offset. Then

time-offset-early    the record at the answered offset had been appended before the time asked for: it is older
time-offset-late     a record below the answered offset was appended after the time asked for: whoever starts at the
                     answer never reads it
time-offset-missing  the answer is that there is none, although a poll had returned such a record before, by a leader
                     of the same leader epoch or an earlier one: a leader that does not know yet how far records are
                     committed answers with an error

Records that were deleted by then (`checkers.deletions`) may be passed over. An unclean election, and a loss beyond the
fault model, excuse what they may have caused.

Where a record stands is taken from polls and, with acks=all, from acknowledged appends.

Blind spots: records whose append has no known end may be of any time since its invocation; clocks are compared to
within `_ACCURACY_MS`; the timestamp in the answer, which the history does not have; that there is none, said by a
deposed leader or by one whose epoch is not known.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import EXCUSES, EvidencePart, RunEvidence
from checkers.fault_model import tolerances
from checkers.tables import of_partition
from checkers.verdict import Finding, Verdict
from checkers.violations import Tolerance, Violations, merge_verdicts, verdict_of
from workloads.columns import APPEND, NEVER, NOTHING, OK, Columns, Int64, numbers, partitions

NAME = "time_offsets"
RESTS_ON = EXCUSES | {EvidencePart.HISTORY}

_ACCURACY_MS: Final = 20
"""A timestamp is in whole milliseconds, of a clock that was compared with that of the history once."""
_NS_PER_MS: Final = 1_000_000
_UNKNOWN_EPOCH: Final = -1


def check(evidence: RunEvidence) -> Verdict:
    """Every partition of a run."""
    tolerance = tolerances(evidence)
    verdicts = [
        check_partition(
            rows,
            of_partition(evidence.history, topic, number),
            topic=topic,
            partition=number,
            acks=evidence.settings.acks,
            clock_error_ms=evidence.settings.clock_error_ms,
            tolerance=tolerance[topic, number],
        )
        for topic, number, rows in partitions(evidence.history)
    ]
    return merge_verdicts(NAME, verdicts, "no operation was recorded")


def check_partition(
    records: pa.Table,
    history: pa.Table,
    *,
    topic: str = "",
    partition: int = -1,
    acks: int = -1,
    clock_error_ms: int = 0,
    tolerance: Tolerance | None = None,
) -> Verdict:
    """One partition of one run: its rows about records, and all of them."""
    tolerance = tolerance or Tolerance()
    answers = history.filter((pc.field("kind") == "time_offset") & (pc.field("outcome") == "ok"))
    places = _Places(records, acks, clock_error_ms)
    answered_ns = numbers(answers.column("completed_ns"), NEVER)
    deleted_below = tolerance.deleted_by(answered_ns)
    found: dict[str, list[tuple[int, int]]] = {f"time-offset-{what}": [] for what in ("early", "late", "missing")}
    for row, answer in enumerate(answers.to_pylist()):
        for what, place in places.contradictions(answer, int(deleted_below[row])):
            found[f"time-offset-{what}"].append((row, place))

    def explain(kind: str, pairs: list[tuple[int, int]], number: int) -> Finding:
        row, place = pairs[number]
        answer = answers.slice(row, 1).to_pylist()[0]
        append = places.append_row[place]
        offset = int(places.offset[place])
        older = "older" if kind == "time-offset-early" else "not older"
        lines = (
            _describe(answer),
            places.columns.describe(int(append)),
            f"the record at {offset} is {older} than {answer['value'] / 1e3:.3f} s",
        )
        operations = (answer["index"], places.columns.index_of(int(append)))
        return Finding(kind, lines, topic, partition, operations, (offset,), answer["completed_ns"])

    violations = [
        Violations(
            kind,
            places.offset[[place for _, place in pairs]],
            np.maximum(answered_ns[[row for row, _ in pairs]], places.told_ns[[place for _, place in pairs]]),
            partial(explain, kind, pairs),
            places.appended_after_ns[[place for _, place in pairs]],
        )
        for kind, pairs in found.items()
        if pairs
    ]
    return verdict_of(NAME, violations, tolerance, {"time_offsets": float(answers.num_rows)})


class _Places:
    """The records whose offset and append are known, one place for each claim about one: offsets of acknowledged
    appends, and of polls."""

    def __init__(self, records: pa.Table, acks: int, clock_error_ms: int) -> None:
        self._slack_ns = (_ACCURACY_MS + clock_error_ms) * _NS_PER_MS
        self.columns = columns = Columns.from_table(records)
        acknowledged = np.flatnonzero(
            (columns.kind == APPEND) & (columns.outcome == OK) & (columns.offset >= 0) & (acks == -1)
        )
        poll = np.repeat(np.arange(len(columns)), np.diff(columns.starts))
        offset = np.concatenate([columns.offset[acknowledged], columns.poll_offset])
        value = np.concatenate([columns.value[acknowledged], columns.poll_value])
        epochs = numbers(records.column("leader_epoch"), _UNKNOWN_EPOCH)
        appended = np.flatnonzero(columns.kind == APPEND)
        appended = appended[np.argsort(columns.value[appended], kind="stable")]
        which = np.searchsorted(columns.value[appended], value)
        known = np.flatnonzero(which < len(appended))
        known = known[columns.value[appended][which[known]] == value[known]]
        self.offset: Int64 = offset[known]
        self.append_row: Int64 = appended[which[known]]
        self.appended_after_ns: Int64 = columns.invoked_ns[self.append_row]
        ended = columns.outcome[self.append_row] == OK
        self.appended_before_ns: Int64 = np.where(ended, columns.completed_ns[self.append_row], NEVER)
        told_by = np.concatenate([np.full(len(acknowledged), NOTHING), poll])[known]
        polled = told_by != NOTHING
        self.polled_ns: Int64 = np.where(polled, columns.completed_ns[told_by * polled], NEVER)
        """When the poll of a record ended; NEVER for an append."""
        self.told_ns: Int64 = np.where(polled, self.polled_ns, self.appended_before_ns)
        """When the operation ended that says where the record stands: only then an election may have put it there."""
        self.polled_epoch: Int64 = np.where(polled, epochs[told_by * polled], _UNKNOWN_EPOCH)

    def contradictions(self, answer: dict[str, Any], deleted_below: int) -> list[tuple[str, int]]:
        """How an answer contradicts the records, each with a place that shows it."""
        asked_ns, told = answer["value"] * _NS_PER_MS, answer["offset"]
        not_older = (self.appended_after_ns >= asked_ns + self._slack_ns) & (self.offset >= deleted_below)
        if told >= 0:
            early = (self.offset == told) & (self.appended_before_ns < asked_ns - self._slack_ns)
            wrong = {"early": early, "late": not_older & (self.offset < told)}
        else:
            epoch = _UNKNOWN_EPOCH if answer["leader_epoch"] is None else answer["leader_epoch"]
            told_before = (self.polled_ns < answer["invoked_ns"]) & (self.polled_epoch != _UNKNOWN_EPOCH)
            wrong = {"missing": not_older & told_before & (self.polled_epoch <= epoch)}
        return [(what, self._first(which)) for what, which in wrong.items() if which.any()]

    def _first(self, which: npt.NDArray[np.bool_]) -> int:
        """The place that was told first, which least of all excuses; of those the one with the least offset."""
        places = np.flatnonzero(which)
        return int(places[np.lexsort((self.offset[places], self.told_ns[places]))[0]])


def _describe(answer: dict[str, Any]) -> str:
    told = f"offset {answer['offset']}" if answer["offset"] >= 0 else "there is none"
    return (
        f"#{answer['index']} first offset not older than {answer['value'] / 1e3:.3f} s, asked by process "
        f"{answer['process']} ({answer['invoked_ns'] / 1e9:.6f} s to {answer['completed_ns'] / 1e9:.6f} s) → {told}"
    )
