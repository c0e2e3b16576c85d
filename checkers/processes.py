"""Processes: each ended only when it was stopped, and heard what was told to it.

process-crashed  a node's process ended by itself: a finding even where it broke no promise about the log

node-vanished    a node's machine was removed by something outside the run, so nobody knows how its process ended;
                 the verdict is then `unknown`, unless another process crashed

A node whose disk a fault filled may end, until shortly after that fault: one that says in one line that it has no space
has not crashed. Kafka says it
in the last error of its log: a fatal fault that want of space caused, or that all its log directories have failed, one
of them for want of space.

answer-unheard   a node's process gives up a connection although it has read the answer to each of its requests, as the
                 simulated network witnesses (`answer_unheard`): it has not found an answer in the bytes, however these
                 came in pieces, or not taken it for that of its request

The verdict is `unknown` when the run ended before that was recorded. In simulation alone it rests on the trace, too.

Blind spots: a process that hangs; a request that a server has read and never takes up, which looks like one that takes
its time; an answer on a connection with another request that has none, as those with acks=0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow.compute as pc

from checkers.evidence import EvidencePart, RunEvidence
from checkers.tables import injected_ns, trace_rows
from checkers.verdict import Finding, Validity, Verdict
from checkers.violations import SHOWN_IN_ALL

NAME = "processes"
RESTS_ON = frozenset({EvidencePart.RECOVERY, EvidencePart.FAULTS, EvidencePart.TRACE})

_NO_SPACE: Final = re.compile(r"failed: \[Errno 28\]")
"""Not the last line of a traceback, which names the exception before the number."""
_FILLING: Final = ("disk-full", "failing-sync", "late-log-end")
"""Faults after which a disk has no room."""
_KAFKA_ENTRY: Final = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+ (?=[A-Z]+ )", re.MULTILINE)
"""Where an entry of Kafka's log begins, whose lines are those of a trace, too."""
_KAFKA_NO_SPACE: Final = "No space left on device"
_KAFKA_FATAL: Final = "Encountered fatal fault: "
_KAFKA_LOGS_FAILED: Final = "Shutdown broker because all log dirs in "
_ENDING_NS_MAX: Final = 60_000_000_000
"""A node that could not write may take so long to end after there is room again."""


def check(evidence: RunEvidence) -> Verdict:
    """The whole run."""
    recovery = evidence.recovery
    if "crashes" not in recovery:
        note = Finding("unfinished", ("the run ended before its processes were accounted for",))
        return Verdict(NAME, Validity.UNKNOWN, (note,))
    crashes = [crash for crash in recovery["crashes"] if not _ended_over_full_disk(crash, evidence)]
    findings = tuple(
        Finding(
            kind="process-crashed",
            lines=(f"{crash['node']} ended by itself at {crash['time_ns'] / 1e9:.3f} s", *_last_line(crash["error"])),
            time_ns=crash["time_ns"],
        )
        for crash in crashes[:12]
    )
    vanished = tuple(
        Finding("node-vanished", (f"{item['node']}: its machine was gone at {item['time_ns'] / 1e9:.3f} s",))
        for item in recovery.get("vanished") or ()
    )
    unheard = tuple(_unheard(evidence))
    validity = Validity.INVALID if crashes or unheard else Validity.UNKNOWN if vanished else Validity.VALID
    return Verdict(NAME, validity, (*findings, *unheard[:SHOWN_IN_ALL], *vanished), {"crashes": float(len(crashes))})


def _unheard(evidence: RunEvidence) -> Iterator[Finding]:
    for event in trace_rows(evidence.trace.filter(pc.field("kind") == "answer_unheard")):
        lines = (
            f"{event.node} gave up a connection to {event.details()['peer']} {event.at}, as if an answer were missing",
            "its process had read the answer to each request that it had sent on it",
        )
        yield Finding("answer-unheard", lines, time_ns=event.time_ns)


def _ended_over_full_disk(crash: dict[str, Any], evidence: RunEvidence) -> bool:
    """Whether its last words are about want of space, and a fault filled its disk, or had just done so."""
    lines = crash["error"].strip().splitlines()
    if not lines or not (_NO_SPACE.search(lines[-1]) or _kafka_had_no_space(crash["error"])):
        return False
    return any(
        row["fault"] in _FILLING
        and crash["node"] in row["nodes"]
        and injected_ns(row) <= crash["time_ns"]
        and (row["ended_ns"] is None or crash["time_ns"] <= row["ended_ns"] + _ENDING_NS_MAX)
        for row in evidence.faults.to_pylist()
    )


def _kafka_had_no_space(log: str) -> bool:
    errors = [entry for entry in _KAFKA_ENTRY.split(log) if entry.startswith("ERROR ")]
    if not errors:
        return False
    if _KAFKA_LOGS_FAILED in errors[-1]:
        return any(_KAFKA_NO_SPACE in entry for entry in errors)
    return _KAFKA_FATAL in errors[-1] and _KAFKA_NO_SPACE in errors[-1]


def _last_line(error: str) -> tuple[str, ...]:
    """The error at the end of a traceback, and its place: in that of an exception group those of its last member."""
    lines = [line for line in map(_unruled, error.splitlines()) if line]
    where = [line for line in lines if line.startswith("File ")]
    return (*lines[-1:], *where[-1:])


def _unruled(line: str) -> str:
    """A line without the rulers that tracebacks of exception groups are drawn with."""
    return line.strip(" \t|+-")
