"""The group coordinator: it tells members only what the log of `__consumer_offsets` has committed.

A commit of offsets and the assignment of a generation are records of that log. The coordinator answers a commit, gives
an offset away and hands out an assignment once their record is below the high watermark. Then

commit-uncommitted      a commit is acknowledged, and of all that leaders of `__consumer_offsets` appended since it was
                        invoked nothing had been committed yet
offset-uncommitted      a member starts at an offset, and each commit of it was at most on its way: nothing that was
                        appended since that commit was invoked had been committed
assignment-uncommitted  members were told more assignments and acknowledged commits than the log had committed records

`checkers.groups` finds an offset that was told and lost later; here it is found even where the run was lucky. Appends
and high watermarks are those of the trace. The record of a commit is appended after the commit was invoked, so the
least offset that a leader appended from then on is a lower bound of where it stands, and the high watermark must have
passed that bound by the answer. Counting works because every commit of a partition's offset and every generation has a
record of its own, at an offset of its own.

No fault excuses the first two: they compare an answer with the high watermark of its moment. The count is excused where
committed records of `__consumer_offsets` may be lost, since their offsets are used again.

It applies to runs whose members form one group, with a trace whose times compare with those of the history. A script's
client commits in a group of its own, and starts in no generation; its commits are records of the same log.

Blind spots: an answer before its own record is committed, when another request's record, appended in between, already
is; generations that no member fetched offsets in; clusters that compact `__consumer_offsets` within the run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import EXCUSES, EvidencePart, RunEvidence
from checkers.fault_model import OFFSETS_TOPIC, tolerances
from checkers.verdict import Finding, Verdict
from checkers.violations import Violations, unknown_verdict, verdict_of
from workloads.columns import NEVER, NOTHING, Int64, numbers
from workloads.history import NO_GENERATION

NAME = "coordinator"
RESTS_ON = EXCUSES | {EvidencePart.HISTORY, EvidencePart.TRACE}


def check(evidence: RunEvidence) -> Verdict:
    """The group of a run."""
    history = evidence.history
    told = evidence.history_within_trace().filter(
        pc.field("kind").isin(["assign", "commit"]) & (pc.field("outcome") == "ok")
    )
    if not told.num_rows:
        return unknown_verdict(NAME, "no member was ever assigned a partition")
    log = _OffsetsLog(evidence.trace)
    if not log.partitions:
        return unknown_verdict(NAME, f"the trace has no record of {OFFSETS_TOPIC}")
    assigns = told.filter(pc.field("kind") == "assign").sort_by("index")
    commits = history.filter(pc.field("kind") == "commit").sort_by("index")
    acknowledged = told.filter(pc.field("kind") == "commit").sort_by("index")
    violations = [_commits(acknowledged, log), _offsets(assigns, commits, log), _counted(assigns, acknowledged, log)]
    figures = {"answers": float(told.num_rows), "committed": float(log.committed(NEVER))}
    return verdict_of(NAME, violations, tolerances(evidence).of_committed_offsets(), figures)


class _OffsetsLog:
    """Appends of leaders and high watermarks of every partition of `__consumer_offsets`."""

    def __init__(self, trace: pa.Table) -> None:
        trace = trace.filter(pc.field("topic") == OFFSETS_TOPIC)
        by_leader = pc.equal(trace.column("node"), pc.binary_join_element_wise("b", _text(trace, "leader"), ""))
        appends = trace.filter(pc.and_(pc.equal(trace.column("kind"), "appended"), by_leader)).sort_by("time_ns")
        marks = trace.filter(pc.field("high_watermark") >= 0).sort_by("time_ns")
        self.partitions = []
        for partition in sorted(pc.unique(appends.column("partition")).to_pylist()):
            own, passed = (table.filter(pc.field("partition") == partition) for table in (appends, marks))
            offsets = numbers(own.column("offset"), NEVER)
            least = np.append(np.minimum.accumulate(offsets[::-1])[::-1], NEVER)
            greatest = np.maximum.accumulate(numbers(passed.column("high_watermark"), 0))
            times_ns, passed_ns = (numbers(table.column("time_ns"), 0) for table in (own, passed))
            self.partitions.append((times_ns, least, passed_ns, np.insert(greatest, 0, 0)))

    def may_be_committed(self, since_ns: Int64, by_ns: Int64) -> npt.NDArray[np.bool_]:
        """Whether a record that was appended at `since_ns` or later can have been committed at `by_ns`."""
        possible = np.zeros(len(since_ns), dtype=bool)
        for times_ns, least, passed_ns, greatest in self.partitions:
            lowest = least[np.searchsorted(times_ns, since_ns, side="left")]
            possible |= lowest < greatest[np.searchsorted(passed_ns, by_ns, side="right")]
        return possible

    def committed(self, by_ns: int) -> int:
        """How many records were committed by then, in all partitions."""
        return sum(
            int(greatest[np.searchsorted(passed_ns, by_ns, side="right")])
            for _, _, passed_ns, greatest in self.partitions
        )


def _text(trace: pa.Table, name: str) -> Any:
    return pc.cast(trace.column(name), pa.string())


def _commits(commits: pa.Table, log: _OffsetsLog) -> Violations:
    invoked_ns, completed_ns = _times(commits)
    early = np.flatnonzero(~log.may_be_committed(invoked_ns, completed_ns))

    def explain(number: int) -> Finding:
        commit = commits.slice(int(early[number]), 1).to_pylist()[0]
        reason = f"nothing that was appended to {OFFSETS_TOPIC} since it was invoked had been committed"
        return _finding("commit-uncommitted", (commit,), reason)

    return Violations("commit-uncommitted", _offset(commits)[early], completed_ns[early], explain)


def _offsets(assigns: pa.Table, commits: pa.Table, log: _OffsetsLog) -> Violations:
    commits = commits.filter(pc.field("outcome") != "fail")
    partition, of_commit = (numbers(table.column("partition"), -1) for table in (assigns, commits))
    offset, committed_offset = _offset(assigns), _offset(commits)
    invoked_ns, _ = _times(commits)
    _, told_ns = _times(assigns)
    early: list[tuple[int, int]] = []
    for row in np.flatnonzero(offset > 0):
        same = (of_commit == partition[row]) & (committed_offset == offset[row]) & (invoked_ns < told_ns[row])
        rows = np.flatnonzero(same)
        if len(rows) and not log.may_be_committed(invoked_ns[rows], np.full(len(rows), told_ns[row])).any():
            early.append((int(row), int(rows[0])))
    which = np.array([row for row, _ in early], dtype=np.int64)

    def explain(number: int) -> Finding:
        row, commit = early[number]
        lines = (*commits.slice(commit, 1).to_pylist(), *assigns.slice(row, 1).to_pylist())
        reason = f"nothing that was appended to {OFFSETS_TOPIC} since that commit was invoked had been committed"
        return _finding("offset-uncommitted", lines, reason)

    return Violations("offset-uncommitted", offset[which], told_ns[which], explain)


def _counted(assigns: pa.Table, commits: pa.Table, log: _OffsetsLog) -> Violations:
    of_members = assigns.filter(pc.not_equal(assigns.column("value"), NO_GENERATION))
    _, first = np.unique(numbers(of_members.column("value"), NOTHING), return_index=True)
    generations = of_members.take(pa.array(first))
    told = pa.concat_tables([generations, commits])
    times_ns = np.concatenate([_times(generations)[0], _times(commits)[1]])
    order = np.argsort(times_ns, kind="stable")
    committed = np.array([log.committed(int(time_ns)) for time_ns in times_ns[order]], dtype=np.int64)
    beyond = np.flatnonzero(np.arange(1, len(order) + 1) > committed)

    def explain(number: int) -> Finding:
        at = int(beyond[number])
        row = told.slice(int(order[at]), 1).to_pylist()[0]
        reason = (
            f"by {times_ns[order[at]] / 1e9:.6f} s members had been told {at + 1} assignments and commits, and "
            f"{OFFSETS_TOPIC} had committed {committed[at]} records"
        )
        return _finding("assignment-uncommitted", (row,), reason)

    return Violations("assignment-uncommitted", _offset(told)[order[beyond]], times_ns[order[beyond]], explain)


def _times(table: pa.Table) -> tuple[Int64, Int64]:
    return numbers(table.column("invoked_ns"), NEVER), numbers(table.column("completed_ns"), NEVER)


def _offset(table: pa.Table) -> Int64:
    return numbers(table.column("offset"), NOTHING)


def _finding(kind: str, rows: tuple[dict[str, Any], ...], reason: str) -> Finding:
    lines = [
        f"#{row['index']} {row['kind']} {row['offset']} by process {row['process']} in generation {row['value']} "
        f"({row['invoked_ns'] / 1e9:.6f} to {row['completed_ns'] / 1e9:.6f} s)"
        if row["completed_ns"] is not None
        else f"#{row['index']} {row['kind']} {row['offset']} by process {row['process']}, never completed"
        for row in rows
    ]
    last = rows[-1]
    return Finding(
        kind,
        (*lines, reason),
        last["topic"],
        last["partition"],
        tuple(row["index"] for row in rows),
        (last["offset"],),
        last["completed_ns"],
    )
