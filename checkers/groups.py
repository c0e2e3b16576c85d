"""Consumer groups: owners of partitions, committed offsets, and records that no member was given.

The history of a group is made of `assign` operations (a member, which is a process of the history, owns a partition
from now on in a generation, and starts where the group had committed), the polls of those members, and their `commit`s.
One partition at a time:

owned-twice             two members own it in the same generation
commit-beyond-read      a commit of more than its member had read by then
records-skipped         a member fetched from beyond its position: no member of its generation read the records between
stale-commit            a commit of one generation is acknowledged although a later generation had begun before it was
                        invoked
commit-went-back        a member's commits in one generation, each acknowledged before the next was invoked, go back
committed-offset-lost   a member starts at an offset that was committed once, but later ones had been acknowledged since
uncommitted-start       a member starts at an offset that was never committed
not-delivered           at the end no member at all has read some acknowledged record

*The committed offset is a register.* Commits write it, starts read it. A start may return the value of any commit
invoked before the start completed, unless that one was certainly overwritten: another commit was acknowledged before
the start was invoked, and either it was invoked after the first was acknowledged, or it is of a later generation, since
a generation's commits end when the next one begins. For example: `commit 5` ends unknown, `commit 8` of the same
generation is ok, and the next member starts at 5. This is valid: the first commit may still have been on its way and
have arrived last. With `commit 8` of a later generation it is a violation: a commit that comes so late must be refused.

From starts that were committed, commits that were read, and reads without gaps it follows that no record below a start
was skipped; `not-delivered` checks the outcome alone.

Lost offsets are excused, which makes the verdict `unknown`, when more replicas of `__consumer_offsets` lost data than
the protocol survives; with unclean elections they are counted only. Commits that go back are excused by such a loss of
the partition's own records as well: their member goes back to where the log ends. `not-delivered` promises nothing for
acks=1 or 0.

Records that were deleted (`checkers.deletions`) may be skipped and need not be delivered.

Blind spots: records delivered more than once, which a group may do; a member that was assigned partitions and died
before it had fetched its start offset; members that commit nothing and die.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import EXCUSES, EvidencePart, RunEvidence
from checkers.fault_model import tolerances
from checkers.tables import of_partition
from checkers.verdict import Finding, Verdict
from checkers.violations import Tolerance, Violations, merge_verdicts, unknown_verdict, verdict_of
from workloads.columns import NEVER, named_partitions

NAME = "groups"
RESTS_ON = EXCUSES | {EvidencePart.HISTORY, EvidencePart.RECOVERY}


@dataclass(frozen=True, slots=True)
class GroupOperation:
    """One operation of the history, as far as groups go."""

    index: int
    process: int
    kind: str
    invoked_ns: int
    completed_ns: int
    """NEVER when it never completed."""
    outcome: str
    generation: int
    offset: int
    end: int
    """Poll: where the records returned end; -1 without any."""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    def __str__(self) -> str:
        until = f"{self.completed_ns / 1e9:.6f} s" if self.completed_ns != NEVER else "never"
        return (
            f"#{self.index} {self.kind} {self.offset} by process {self.process} in generation {self.generation} "
            f"({self.invoked_ns / 1e9:.6f} to {until}) → {self.outcome}"
        )


GroupViolation = tuple[str, int, int, tuple[GroupOperation, ...], str]
"""Kind, offset, when it was seen, the operations involved, the reason."""


def check(evidence: RunEvidence) -> Verdict:
    """Every partition of a run."""
    history = evidence.history
    owned = history.filter(pc.is_in(history.column("kind"), value_set=pa.array(["assign", "commit"])))
    if not owned.num_rows:
        return unknown_verdict(NAME, "no member was ever assigned a partition")
    tolerance = tolerances(evidence)
    of_offsets = tolerance.of_committed_offsets()
    generation_starts = _generation_starts(owned)
    verdicts = []
    for topic, partition in named_partitions(owned):
        rows = of_partition(history, topic, partition)
        of_records = tolerance[topic, partition]
        verdicts += _check_partition(evidence, rows, topic, partition, generation_starts, of_records, of_offsets)
    return merge_verdicts(NAME, verdicts, "no member was ever assigned a partition")


def _check_partition(
    evidence: RunEvidence,
    rows: pa.Table,
    topic: str,
    partition: int,
    generation_starts: Sequence[tuple[int, int]],
    of_records: Tolerance,
    of_offsets: Tolerance,
) -> list[Verdict]:
    operations = _rows(rows)
    starts = [row for row in operations if row.kind == "assign" and row.ok]
    commits = [row for row in operations if row.kind == "commit"]
    members = {row.process for row in starts}
    polls = [row for row in operations if row.kind == "poll" and row.ok and row.process in members]
    figures = {
        "starts": float(len(starts)),
        "commits_acknowledged": float(sum(row.ok for row in commits)),
        "generations": float(len({row.generation for row in starts})),
    }
    group = [
        *_owned_twice(starts),
        *_reading(starts, polls, commits, of_records.deleted_below),
        *_stale(commits, generation_starts),
        *_register(starts, commits),
    ]
    of_both = replace(of_offsets, exceeded=(*of_offsets.exceeded, *of_records.exceeded))
    verdicts = [
        verdict_of(NAME, _violations(group, topic, partition), of_offsets, figures),
        verdict_of(NAME, _violations([*_went_back(commits)], topic, partition), of_both),
    ]
    if evidence.settings.acks == -1:
        missing, undelivered = _undelivered(rows, members)
        if missing and not evidence.recovery.get("final_reads"):
            verdicts.append(unknown_verdict(NAME, f"{topic}-{partition}: the group was not drained to the end"))
        else:
            violations = _violations(undelivered, topic, partition)
            verdicts.append(verdict_of(NAME, violations, of_records, {"undelivered": float(missing)}))
    return verdicts


def _generation_starts(owned: pa.Table) -> list[tuple[int, int]]:
    """(generation, time at which a member first fetched its start offset in it), by generation."""
    first: dict[int, int] = {}
    for row in _rows(owned):
        if row.kind == "assign" and row.ok:
            first[row.generation] = min(row.completed_ns, first.get(row.generation, NEVER))
    return sorted(first.items())


def _rows(table: pa.Table) -> list[GroupOperation]:
    def row(values: dict[str, Any]) -> GroupOperation:
        def number(name: str, missing: int) -> int:
            value = values[name]
            return missing if value is None else int(value)

        offsets = values["offsets"]
        return GroupOperation(
            index=values["index"],
            process=values["process"],
            kind=values["kind"],
            invoked_ns=values["invoked_ns"],
            completed_ns=number("completed_ns", NEVER),
            outcome=values["outcome"],
            generation=number("value", -1),
            offset=number("offset", -1),
            end=offsets[-1] + 1 if offsets else -1,
        )

    return [row(values) for values in table.to_pylist()]


def _owned_twice(starts: Sequence[GroupOperation]) -> Iterable[GroupViolation]:
    owners: dict[int, GroupOperation] = {}
    for start in starts:
        other = owners.setdefault(start.generation, start)
        if other.process != start.process:
            yield "owned-twice", start.offset, start.completed_ns, (other, start), "both own it in one generation"


def _reading(
    starts: Sequence[GroupOperation],
    polls: Sequence[GroupOperation],
    commits: Sequence[GroupOperation],
    deleted_below: int,
) -> Iterable[GroupViolation]:
    """Each member's reading, from its start on: without gaps, and ahead of its commits. Deleted records may be
    skipped."""
    for start in starts:
        later = [other for other in starts if other.process == start.process and other.index > start.index]
        until_ns = min((other.invoked_ns for other in later), default=NEVER)
        own = [poll for poll in polls if poll.process == start.process and start.index < poll.index]
        own = sorted((poll for poll in own if poll.invoked_ns < until_ns), key=lambda poll: poll.index)
        position = start.offset
        reached = [(start.completed_ns, start.offset)]
        for poll in own:
            if poll.offset > max(position, deleted_below):
                reason = f"it stood at {position} and was asked from {poll.offset} on"
                yield "records-skipped", position, poll.completed_ns, (start, poll), reason
            position = poll.end if poll.end >= 0 else poll.offset
            reached.append((poll.completed_ns, position))
        for commit in commits:
            if commit.process == start.process and start.index < commit.index and commit.invoked_ns < until_ns:
                most = max((end for time_ns, end in reached if time_ns <= commit.invoked_ns), default=start.offset)
                if commit.offset > max(most, deleted_below):
                    reason = f"it had been given the records below {most}"
                    yield "commit-beyond-read", most, commit.invoked_ns, (start, commit), reason


def _stale(commits: Sequence[GroupOperation], generation_starts: Sequence[tuple[int, int]]) -> Iterable[GroupViolation]:
    for commit in commits:
        later = [item for item in generation_starts if item[0] > commit.generation and item[1] < commit.invoked_ns]
        if commit.ok and later:
            reason = f"generation {later[0][0]} had begun at {later[0][1] / 1e9:.6f} s"
            yield "stale-commit", commit.offset, commit.completed_ns, (commit,), reason


def _went_back(commits: Sequence[GroupOperation]) -> Iterable[GroupViolation]:
    last: dict[tuple[int, int], GroupOperation] = {}
    for commit in sorted((row for row in commits if row.ok), key=lambda row: row.index):
        key = (commit.process, commit.generation)
        before = last.get(key)
        if before is not None and commit.offset < before.offset and before.completed_ns < commit.invoked_ns:
            yield "commit-went-back", commit.offset, commit.completed_ns, (before, commit), "its commits go back"
        last[key] = commit


def _register(starts: Sequence[GroupOperation], commits: Sequence[GroupOperation]) -> Iterable[GroupViolation]:
    """Starts read the values that commits wrote; see the module's docstring."""
    possible = [commit for commit in commits if commit.outcome != "fail"]
    for start in starts:
        before = [commit for commit in possible if commit.ok and commit.completed_ns < start.invoked_ns]
        same = [
            commit for commit in possible if commit.offset == start.offset and commit.invoked_ns < start.completed_ns
        ]
        if start.offset == 0 and not before:
            continue
        if not same and start.offset != 0:
            reason = "nobody had committed that offset"
            yield "uncommitted-start", start.offset, start.completed_ns, (start,), reason
        elif not any(_may_stand(commit, before) for commit in same):
            last = max(before, key=lambda commit: commit.completed_ns)
            reason = f"since then offset {last.offset} had been acknowledged"
            yield "committed-offset-lost", start.offset, start.completed_ns, (last, start), reason


def _may_stand(commit: GroupOperation, before: Sequence[GroupOperation]) -> bool:
    """Whether `commit` may be the last one written, given those that were acknowledged before."""
    return not any(
        other.generation > commit.generation or (commit.ok and other.invoked_ns > commit.completed_ns)
        for other in before
        if other is not commit
    )


def _undelivered(rows: pa.Table, members: set[int]) -> tuple[int, list[GroupViolation]]:
    """The number of acknowledged records that no member has read, and each of them."""
    appends = rows.filter((pc.field("kind") == "append") & (pc.field("outcome") == "ok"))
    polls = rows.filter(pc.is_in(rows.column("process"), value_set=pa.array(sorted(members), pa.int32())))
    given = pc.list_flatten(polls.filter(pc.field("kind") == "poll").column("values"))
    missing = _rows(appends.filter(pc.invert(pc.is_in(appends.column("value"), value_set=given.combine_chunks()))))
    reason = "no member of the group was ever given it"
    undelivered: list[GroupViolation] = [("not-delivered", row.offset, NEVER, (row,), reason) for row in missing]
    return len(missing), undelivered


def _violations(items: Sequence[GroupViolation], topic: str, partition: int) -> list[Violations]:
    kinds: dict[str, list[GroupViolation]] = {}
    for item in items:
        kinds.setdefault(item[0], []).append(item)

    def of_kind(same: list[GroupViolation]) -> Violations:
        def explain(number: int) -> Finding:
            kind, offset, time_ns, rows, reason = same[number]
            return Finding(
                kind=kind,
                lines=(*map(str, rows), reason),
                topic=topic,
                partition=partition,
                operations=tuple(row.index for row in rows),
                offsets=(offset,),
                time_ns=time_ns if time_ns != NEVER else -1,
            )

        return Violations(
            same[0][0],
            np.array([item[1] for item in same], dtype=np.int64),
            np.array([item[2] for item in same], dtype=np.int64),
            explain,
        )

    return [of_kind(items) for items in kinds.values()]
