"""Consumer groups: owners of partitions, committed offsets, and records that no member was given.

The history of a group is made of `assign` operations (a member, which is a process of the history, owns a partition
from now on in a generation, and starts where the group had committed), the polls of those members, and their `commit`s.
One partition at a time:

owned-twice             two members own it in the same generation; members of one instance are one owner
fenced-commit           a commit is acknowledged although a later member of the same instance had started in the same
                        generation before it was invoked (`checkers.groups.instances`)
commit-beyond-read      a commit of more than its member had read by then
records-skipped         a member fetched from beyond its position: no member of its generation read the records between
stale-commit            a commit of one generation is acknowledged although a later generation had begun before it was
                        invoked
commit-went-back        a member's commits in one generation, each acknowledged before the next was invoked, go back, or
                        its first one lies below its start, although no leader has told it that the records are deleted
committed-offset-lost   a member starts at an offset that was committed once, but since then later ones had been
                        acknowledged, or another member had started at one
deleted-offset-returned a client starts at an offset that its group had committed before it was deleted
uncommitted-start       a member starts at an offset that was never committed
committed-otherwise     … or is told a leader epoch or a text with it that no commit of that offset had
not-delivered           at the end no member at all has read some acknowledged record

*The committed offset is a register*, which commits write and starts read (`checkers.groups.committed_offset`).

Standalone consumers and the client of a script commit and resume without being a member (NO_GENERATION), each in a
group of its own: its register is checked, and nothing else, since the client may go wherever the script sends it. That
is done with any workload. A standalone consumer deletes its group now and then, which leaves nothing committed. Where
the system does not confirm what it reads (`CheckSettings.confirmed_ends`), such a client may ask a coordinator that was
deposed long ago, so its starts are only held to offsets that were committed once; the coordinator of a member has just
stored its generation, or that it has returned.

From starts that were committed, commits that were read, and reads without gaps it follows that no record below a start
was skipped; `not-delivered` checks the outcome alone.

Lost offsets are excused, which makes the verdict `unknown`, when more replicas of `__consumer_offsets` lost data than
the protocol survives, after the commits that are gone were made; with unclean elections they are counted only. Nothing
excuses a start at an offset that was never committed. Commits that go back are excused by such a loss, or such an
election, of the partition's own records as well: their member goes back to where the log ends. `not-delivered`
promises nothing for acks=1 or 0.

Records that were deleted (`checkers.deletions`) may be skipped from then on,
and need not be delivered.

Blind spots: records delivered more than once, which a group may do; a member that was assigned partitions and died
before it had fetched its start offset; members that commit nothing and die.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import EXCUSES, EvidencePart, RunEvidence
from checkers.fault_model import tolerances
from checkers.groups.committed_offset import commits_that_went_back, unfounded_starts
from checkers.groups.instances import Instances, fenced_commits
from checkers.groups.operations import FORGET, GroupOperation, GroupViolation, operations_of
from checkers.tables import of_partition
from checkers.verdict import Finding, Validity, Verdict
from checkers.violations import Tolerance, by_kind, merge_verdicts, unknown_verdict, verdict_of
from workloads.columns import NEVER, named_partitions
from workloads.history import NO_GENERATION, OUT_OF_RANGE

NAME = "groups"
RESTS_ON = EXCUSES | {EvidencePart.HISTORY, EvidencePart.RECOVERY}
_NEVER_COMMITTED: Final = frozenset({"uncommitted-start", "committed-otherwise"})
"""Violations by answers that no coordinator may give, also one that was deposed."""


def check(evidence: RunEvidence) -> Verdict:
    """Every partition of a run."""
    history = evidence.history
    owned = history.filter(pc.is_in(history.column("kind"), value_set=pa.array(["assign", "commit", FORGET])))
    of_members = pc.not_equal(pc.fill_null(owned.column("value"), NO_GENERATION), NO_GENERATION)
    if evidence.settings.groups and not pc.any(of_members).as_py():
        return unknown_verdict(NAME, "no member was ever assigned a partition")
    if not owned.num_rows:
        return Verdict(NAME, Validity.VALID, (Finding("no-commits", ("the script's client never committed",)),))
    tolerance = tolerances(evidence)
    of_offsets = tolerance.of_committed_offsets()
    generation_starts = _generation_starts(owned.filter(of_members))
    verdicts = []
    for topic, partition in named_partitions(owned.filter(of_members)):
        rows = of_partition(history, topic, partition)
        of_records = tolerance[topic, partition]
        verdicts += _check_partition(evidence, rows, topic, partition, generation_starts, of_records, of_offsets)
    of_others = owned.filter(pc.invert(of_members))
    for topic, partition in named_partitions(of_others):
        rows = of_partition(of_others, topic, partition)
        verdicts.append(_check_others(rows, topic, partition, evidence.settings.confirmed_ends, of_offsets))
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
    operations = operations_of(rows)
    starts, commits = _starts_and_commits(row for row in operations if row.generation != NO_GENERATION)
    members = {row.process for row in starts}
    polls = [row for row in operations if row.kind == "poll" and row.ok and row.process in members]
    figures = {
        "starts": float(len(starts)),
        "commits_acknowledged": float(sum(row.ok for row in commits)),
        "generations": float(len({row.generation for row in starts})),
    }
    group = [
        *_owned_twice(starts),
        *_reading(starts, polls, commits, of_records),
        *_stale(commits, generation_starts),
        *fenced_commits(Instances(starts), starts, commits),
        *unfounded_starts(starts, commits),
    ]
    explain = partial(_explain, topic=topic, partition=partition)
    of_both = Tolerance.of_any((of_offsets, of_records))
    went_back = [*commits_that_went_back(starts, commits, _sent_elsewhere(operations, of_records), polls)]
    verdicts = [
        verdict_of(NAME, by_kind(group, explain), of_offsets, figures),
        verdict_of(NAME, by_kind(went_back, explain), of_both),
    ]
    if evidence.settings.acks == -1:
        undelivered = _undelivered(rows, members, operations, of_records.deleted_below)
        if undelivered and not evidence.recovery.get("final_reads"):
            verdicts.append(unknown_verdict(NAME, f"{topic}-{partition}: the group was not drained to the end"))
        else:
            figures = {"undelivered": float(len(undelivered))}
            verdicts.append(verdict_of(NAME, by_kind(undelivered, explain), of_records, figures))
    return verdicts


def _sent_elsewhere(operations: Sequence[GroupOperation], of_records: Tolerance) -> list[GroupOperation]:
    """The polls that were told to go where a log starts, by a leader that may have deleted what they asked for. Another
    leader's log may start lower: it has not heard of the deletion."""
    polls = [row for row in operations if row.kind == "poll" and row.error == OUT_OF_RANGE]
    below = of_records.deleted_by(np.array([poll.completed_ns for poll in polls], dtype=np.int64))
    return [poll for poll, deleted_below in zip(polls, below, strict=True) if poll.offset < deleted_below]


def _check_others(rows: pa.Table, topic: str, partition: int, confirmed: bool, of_offsets: Tolerance) -> Verdict:
    """The clients that are no members, each in a group of its own. `confirmed`: whether each start was told the latest
    commit."""
    by_process: dict[int, list[GroupOperation]] = {}
    for operation in operations_of(rows):
        by_process.setdefault(operation.process, []).append(operation)
    unfounded: list[GroupViolation] = []
    for operations in by_process.values():
        unfounded += unfounded_starts(*_starts_and_commits(operations))
    acknowledged = [row for operations in by_process.values() for row in operations if row.ok]
    figures = {
        f"lone_{figure}": float(sum(row.kind == kind for row in acknowledged))
        for figure, kind in (("starts", "assign"), ("commits_acknowledged", "commit"), ("deletions", FORGET))
    }
    found = [item for item in unfounded if confirmed or item.kind in _NEVER_COMMITTED]
    explain = partial(_explain, topic=topic, partition=partition)
    return verdict_of(NAME, by_kind(found, explain), of_offsets, figures)


def _starts_and_commits(rows: Iterable[GroupOperation]) -> tuple[list[GroupOperation], list[GroupOperation]]:
    operations = list(rows)
    starts = [row for row in operations if row.kind == "assign" and row.ok]
    return starts, [row for row in operations if row.kind in ("commit", FORGET)]


def _generation_starts(owned: pa.Table) -> list[tuple[int, int]]:
    """(generation, time at which a member first fetched its start offset in it), by generation."""
    first: dict[int, int] = {}
    for row in operations_of(owned):
        if row.kind == "assign" and row.ok:
            first[row.generation] = min(row.completed_ns, first.get(row.generation, NEVER))
    return sorted(first.items())


def _owned_twice(starts: Sequence[GroupOperation]) -> Iterable[GroupViolation]:
    owners: dict[int, GroupOperation] = {}
    for start in starts:
        other = owners.setdefault(start.generation, start)
        if other.owner != start.owner:
            yield GroupViolation(
                "owned-twice", start.offset, start.completed_ns, (other, start), "both own it in one generation"
            )


def _reading(
    starts: Sequence[GroupOperation],
    polls: Sequence[GroupOperation],
    commits: Sequence[GroupOperation],
    of_records: Tolerance,
) -> Iterable[GroupViolation]:
    """Each member's reading, from its start on: without gaps, and ahead of its commits in that generation, late ones
    among them. Records that may have been deleted by then may be skipped."""

    def deleted_by(time_ns: int) -> int:
        return int(of_records.deleted_by(np.array([time_ns]))[0])

    for start in starts:
        later = [other for other in starts if other.process == start.process and other.index > start.index]
        until_ns = min((other.invoked_ns for other in later), default=NEVER)
        again_ns = min((other.invoked_ns for other in later if other.generation == start.generation), default=NEVER)
        own = [poll for poll in polls if poll.process == start.process and start.index < poll.index]
        own = sorted((poll for poll in own if poll.invoked_ns < until_ns), key=lambda poll: poll.index)
        position = start.offset
        reached = [(start.completed_ns, start.offset)]
        for poll in own:
            if poll.offset > max(position, deleted_by(poll.completed_ns)):
                reason = f"it stood at {position} and was asked from {poll.offset} on"
                yield GroupViolation("records-skipped", position, poll.completed_ns, (start, poll), reason)
            position = poll.end if poll.end >= 0 else poll.offset
            reached.append((poll.completed_ns, position))
        for commit in commits:
            of_start = commit.process == start.process and commit.generation == start.generation
            if of_start and start.index < commit.index and commit.invoked_ns < again_ns:
                most = max((end for time_ns, end in reached if time_ns <= commit.invoked_ns), default=start.offset)
                if commit.offset > max(most, deleted_by(commit.invoked_ns)):
                    reason = f"it had been given the records below {most}"
                    yield GroupViolation("commit-beyond-read", most, commit.invoked_ns, (start, commit), reason)


def _stale(commits: Sequence[GroupOperation], generation_starts: Sequence[tuple[int, int]]) -> Iterable[GroupViolation]:
    for commit in commits:
        later = [item for item in generation_starts if item[0] > commit.generation and item[1] < commit.invoked_ns]
        if commit.ok and later:
            reason = f"generation {later[0][0]} had begun at {later[0][1] / 1e9:.6f} s"
            yield GroupViolation("stale-commit", commit.offset, commit.completed_ns, (commit,), reason)


def _undelivered(
    rows: pa.Table, members: set[int], operations: Sequence[GroupOperation], deleted_below: int
) -> list[GroupViolation]:
    """The acknowledged records that no member has read. When the final ones are appended, the group has read to the
    end. One that was acknowledged without an offset stands at the least that it can have where that may be a deleted
    one, else anywhere up to the end: what was lost at any offset may be it."""
    acknowledged = (pc.field("kind") == "append") & (pc.field("outcome") == "ok")
    appends = rows.filter(acknowledged & (pc.field("phase") == "main"))
    polls = rows.filter(pc.is_in(rows.column("process"), value_set=pa.array(sorted(members), pa.int32())))
    given = pc.list_flatten(polls.filter(pc.field("kind") == "poll").column("values"))
    missing = operations_of(
        appends.filter(pc.invert(pc.is_in(appends.column("value"), value_set=given.combine_chunks())))
    )
    reason = "no member of the group was ever given it"
    undelivered = []
    for row in missing:
        least = row.offset if row.offset >= 0 else _least_offset(row, operations)
        offset = NEVER if row.offset < 0 and least >= deleted_below else least
        undelivered.append(GroupViolation("not-delivered", offset, NEVER, (row,), reason, since_ns=row.invoked_ns))
    return undelivered


def _least_offset(append: GroupOperation, operations: Sequence[GroupOperation]) -> int:
    """An append stands above every record that was acknowledged or read before it was invoked."""
    before = [row for row in operations if row.ok and row.completed_ns < append.invoked_ns]
    ends = [row.offset + 1 if row.kind == "append" else row.end for row in before if row.kind in ("append", "poll")]
    return max([0, *ends])


def _explain(violation: GroupViolation, topic: str, partition: int) -> Finding:
    return Finding(
        kind=violation.kind,
        lines=(*(str(row) for row in violation.operations if row.index >= 0), violation.reason),
        topic=topic,
        partition=partition,
        operations=tuple(row.index for row in violation.operations if row.index >= 0),
        offsets=(violation.offset,) if violation.offset != NEVER else (),
        time_ns=violation.time_ns if violation.time_ns != NEVER else -1,
    )
