"""The committed offset of a partition in one group, as a register: commits write it, starts read it.

A start may return the value of any commit invoked before the start completed, unless that one was certainly
overwritten before the start was invoked. A commit is overwritten by

- *another commit* that was acknowledged, if it was invoked after the first was acknowledged, or is of a later
  generation, since a generation's commits end when the next one begins;
- *another start* that was told another offset, if it was invoked after the first was acknowledged, or is of a later
  generation: the first came before that generation, or not at all, and was replaced by the time of this start.

What is said of a later generation holds of a later member of the same instance as well (`checkers.groups.instances`).

Before any commit the offset is 0, and that is overwritten in the same way. The deletion of a group is a commit of 0.

*A late commit may arrive last, within its generation.* `commit 5` ends unknown, `commit 8` of the same generation is
ok, and the next member starts at 5. This is valid: the first commit may still have been on its way. With `commit 8` of
a later generation it is a violation: a commit that comes so late must be refused. And if a member of the next
generation had started at 8 before, it is a violation, too: `commit 5` had not come before that generation began.

A client that is no member of its group commits in no generation (NO_GENERATION). Then only real time orders commits:
the coordinator takes them whenever the group has no members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from checkers.groups.instances import Instances
from checkers.groups.operations import FORGET, NOTHING_COMMITTED, GroupOperation, GroupViolation
from workloads.history import NO_GENERATION

_BEFORE_ALL: Final = GroupOperation(
    index=-1,
    process=-1,
    kind="commit",
    invoked_ns=-1,
    completed_ns=-1,
    outcome="ok",
    generation=NO_GENERATION,
    offset=NOTHING_COMMITTED,
    end=-1,
)
"""The register before any commit: a start is then told 0."""


_REPLACED: Final = {
    "commit": ("committed-offset-lost", "since then offset {offset} stood: a commit of it had been acknowledged"),
    "assign": ("committed-offset-lost", "since then offset {offset} stood: a member had started there"),
    FORGET: ("deleted-offset-returned", "since then the group had none: its deletion had been acknowledged"),
}
"""Kind of the operation that overwrote an offset → the violation by a start there, and its reason."""


def commits_that_went_back(
    starts: Sequence[GroupOperation],
    commits: Sequence[GroupOperation],
    sent_elsewhere: Sequence[GroupOperation],
    reads: Sequence[GroupOperation],
) -> Iterator[GroupViolation]:
    """A member starts at the committed offset of its group, and none of its commits in that generation is lower than
    what it knew to be committed, unless a poll of it was `sent_elsewhere` since: told that the records are deleted.
    That counts from its start on, or from its last poll among the `reads` before the commit: until the member has asked
    where to go on, it may commit where it was."""
    last: dict[tuple[int, int], GroupOperation] = {}
    for operation in sorted((*starts, *(row for row in commits if row.ok)), key=lambda row: row.index):
        key = (operation.process, operation.generation)
        before = last.get(key)
        went_back = operation.kind == "commit" and before is not None and operation.offset < before.offset
        if (
            before is not None
            and went_back
            and before.completed_ns < operation.invoked_ns
            and not _moved_between(before, operation, sent_elsewhere, reads)
        ):
            reason = "its commits go back" if before.kind == "commit" else "its commit goes back behind its start"
            yield GroupViolation(
                "commit-went-back", operation.offset, operation.completed_ns, (before, operation), reason
            )
        last[key] = operation


def _moved_between(
    before: GroupOperation,
    after: GroupOperation,
    sent_elsewhere: Sequence[GroupOperation],
    reads: Sequence[GroupOperation],
) -> bool:
    """Whether the member of both was sent elsewhere between them, or before the first, a commit, without having read
    anything in between."""
    earlier = (poll.index for poll in reads if poll.process == after.process and poll.index < before.index)
    since = max(earlier, default=-1) if before.kind == "commit" else before.index
    return any(poll.process == after.process and since < poll.index < after.index for poll in sent_elsewhere)


def unfounded_starts(starts: Sequence[GroupOperation], commits: Sequence[GroupOperation]) -> Iterator[GroupViolation]:
    """Each start at an offset that no commit wrote, or not with that leader epoch and that text, or that was certainly
    overwritten."""
    instances = Instances(starts)
    possible = [_BEFORE_ALL, *(commit for commit in commits if commit.outcome != "fail")]
    for start in starts:
        written = [
            commit for commit in possible if commit.offset == start.offset and commit.invoked_ns < start.completed_ns
        ]
        if not written:
            reason = "nobody had committed that offset"
            yield GroupViolation("uncommitted-start", start.offset, start.completed_ns, (start,), reason)
            continue
        if not any(commit.may_have_told(start) for commit in written):
            reason = f"it was told leader epoch {start.epoch} and {start.metadata!r}, which nobody had committed there"
            operations = (written[-1], start)
            yield GroupViolation("committed-otherwise", start.offset, start.completed_ns, operations, reason)
        replaced = [
            other
            for other in (*possible, *starts)
            if other.ok and other.offset != start.offset and other.completed_ns < start.invoked_ns
        ]
        overwriting = [[other for other in replaced if _overwrites(other, commit, instances)] for commit in written]
        if all(overwriting):
            since_ns, last = min((_latest(others, possible) for others in overwriting), key=lambda latest: latest[0])

            kind, reason = _REPLACED[last.kind]
            yield GroupViolation(
                kind, start.offset, start.completed_ns, (last, start), reason.format(offset=last.offset), since_ns
            )


def _overwrites(other: GroupOperation, commit: GroupOperation, instances: Instances) -> bool:
    """Whether `commit` no longer stands once `other`, which has another offset, has been acknowledged or told."""
    later = commit.generation != NO_GENERATION and other.generation > commit.generation
    return later or instances.follows(other, commit) or (commit.ok and other.invoked_ns > commit.completed_ns)


def _latest(others: Iterable[GroupOperation], possible: Sequence[GroupOperation]) -> tuple[int, GroupOperation]:
    """The one of them whose offset was committed last, and since when it may have been: a start tells what was
    committed before."""

    def committed_ns(other: GroupOperation) -> int:
        if other.kind != "assign":
            return other.invoked_ns
        told = (commit for commit in possible if commit.offset == other.offset)
        return min((commit.invoked_ns for commit in told), default=-1)

    last = max(others, key=lambda other: (committed_ns(other), other.completed_ns))
    return committed_ns(last), last
