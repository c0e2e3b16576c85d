"""The members of one instance, `group.instance.id`, one after another.

A static member that joins takes the place of the one before it, with its partitions and without a new generation.
The record that says so is committed before its join is answered, and the coordinator takes no commit of the earlier
member from the append on. So whatever the earlier one committed in that generation came before the later one started,
or never comes.

*A commit that was on its way is no violation.* Member 7 of an instance commits 5, member 8 joins under the same
instance id and starts, and then the commit is acknowledged: it may have been appended before the record of member 8,
and its answer was late. With the commit invoked after the start of member 8 it is a violation: member 7 was fenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from checkers.groups.operations import GroupOperation, GroupViolation


class Instances:
    """The order of the members of each instance in each generation: that of their first starts."""

    def __init__(self, starts: Iterable[GroupOperation]) -> None:
        self._first: dict[tuple[int, int], GroupOperation] = {}
        """(generation, process) → first start."""
        for start in starts:
            if start.instance:
                key = (start.generation, start.process)
                self._first[key] = min(start, self._first.get(key, start), key=lambda row: row.index)

    def follows(self, later: GroupOperation, earlier: GroupOperation) -> bool:
        """Whether `later` is of a member that took the place of the one of `earlier` in the same generation."""
        if not earlier.instance or later.instance != earlier.instance or later.generation != earlier.generation:
            return False
        before, after = self._first_of(earlier), self._first_of(later)
        return before is not None and after is not None and before.index < after.index

    def began_ns(self, operation: GroupOperation) -> int:
        """When its member had joined in its generation: nobody can have fenced it before."""
        first = self._first_of(operation)
        return -1 if first is None else first.invoked_ns

    def _first_of(self, operation: GroupOperation) -> GroupOperation | None:
        return self._first.get((operation.generation, operation.process))


def fenced_commits(
    instances: Instances, starts: Sequence[GroupOperation], commits: Sequence[GroupOperation]
) -> Iterator[GroupViolation]:
    """Each acknowledged commit that was invoked after a later member of the same instance had started."""
    for commit in commits:
        if not commit.ok or not commit.instance:
            continue
        followers = [
            start for start in starts if instances.follows(start, commit) and start.invoked_ns < commit.invoked_ns
        ]
        if followers:
            yield GroupViolation(
                "fenced-commit",
                commit.offset,
                commit.completed_ns,
                (followers[0], commit),
                f"process {followers[0].process} had taken its place as {commit.instance}, by which it was fenced",
                since_ns=instances.began_ns(commit),
            )
