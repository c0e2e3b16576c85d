"""The shrinker: asks of smaller and smaller specs whether they fail the same way, and keeps the smallest that does.

    attempt 1: all passes, over and over, until none finds anything smaller
    attempt 2: the same, where a candidate may fail with one of the next seeds instead of its own

Three rules keep it fast. A candidate that is shorter than the smallest spec may fail with one of the next seeds in both
attempts, as many as take about as long together: a rare failure is looked for where looking costs least. One that fails
of the same cause with another finding gets more of them: it is where the failure is likely. And a run that goes on for
long after its finding ends there before anything else is tried.

It is pure: a predicate runs a candidate, and the same answers lead to the same result. Guarantees:

- the result fails, as the predicate has seen, and is never larger than the spec it began with;
- every accepted candidate is smaller than the one before (`spec_size`), so it ends;
- when it was not cut short, what the docstring of each pass promises is true of the result, for every seed tried;
- no spec is asked about twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from harness.shrinking.passes import PASSES, Pass, Reproducer, Sighting, ended_at_finding
from harness.shrinking.spec_size import size_of
from harness.spec import SEEDS, Spec

NEIGHBOURS: Final = 4
"""Seeds from a candidate's own on with which it is run in the second attempt, even if it takes as long as the smallest
spec."""
_FIXED_S: Final = 5.0
"""The time limit whose share of a run takes as long as all else: deploying, recovery and checks."""
_LONG_AFTER: Final = 0.75
"""A run whose finding comes before this share of its time limit ends at it."""
_MORE_SEEDS: Final = 1
"""Seeds that a candidate gets in addition, for each time that the smallest spec takes longer than it does."""
_MORE_SEEDS_IF_PROMISING: Final = 6
"""The same, once it has failed of the same cause with another finding."""

Predicate = Callable[[Spec], Sighting | None]
"""What a run of a spec shows if it fails the same way, or of the same cause with another finding."""


@dataclass(frozen=True, slots=True)
class ShrinkProgress:
    """The state of shrinking at one moment, for a display."""

    smallest: Spec
    candidate: Spec
    pass_name: str
    runs: int
    accepted: bool


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The result of shrinking."""

    smallest: Reproducer
    runs: int
    complete: bool
    """Whether every pass has come to its end; False when the budget was used up before."""


class _BudgetExhausted(Exception):
    """The budget is used up."""


class Shrinker:
    """Shrinks one spec, once. `exhausted`, asked before each run with the number of runs so far, ends it early."""

    def __init__(
        self,
        start: Reproducer,
        predicate: Predicate,
        *,
        passes: Sequence[Pass] = PASSES,
        exhausted: Callable[[int], bool] = lambda runs: False,
        on_progress: Callable[[ShrinkProgress], None] = lambda progress: None,
    ) -> None:
        self.smallest = start
        """The smallest spec that fails, at any moment."""
        self._predicate = predicate
        self._passes = passes
        self._exhausted = exhausted
        self._on_progress = on_progress
        self._asked: set[str] = {start.spec.to_yaml()}
        self._runs = 0

    def shrink(self) -> Shrunk:
        """Run all passes until none of them finds anything smaller, or the budget is used up."""
        try:
            self._end_at_finding()
            for seeds in (1, NEIGHBOURS):
                before = None
                while before is not self.smallest:
                    before = self.smallest
                    for each in self._passes:
                        self._run(each, seeds)
        except _BudgetExhausted:
            return Shrunk(self.smallest, self._runs, complete=False)
        return Shrunk(self.smallest, self._runs, complete=True)

    def _run(self, each: Pass, seeds: int) -> None:
        candidates = each(self.smallest)
        candidate = next(candidates, None)
        while candidate is not None:
            plain, promising = (
                seeds * self._seeds_for(candidate, more) for more in (_MORE_SEEDS, _MORE_SEEDS_IF_PROMISING)
            )
            accepted = self._try(each.__name__, candidate, plain, promising)
            if accepted:
                self._end_at_finding()
            try:
                candidate = candidates.send(self.smallest if accepted else None)
            except StopIteration:
                return

    def _end_at_finding(self) -> None:
        """Cut what comes long after the finding. With its own seed the run is the same until then."""
        limited = ended_at_finding(self.smallest)
        if limited is not None and limited.time_limit_s <= _LONG_AFTER * self.smallest.spec.time_limit_s:
            self._try(ended_at_finding.__name__, limited, seeds=1, if_promising=1)

    def _try(self, pass_name: str, candidate: Spec, seeds: int, if_promising: int) -> bool:
        """Whether the candidate fails the same way with one of its seeds; it is the smallest then. It gets
        `if_promising` seeds once it has failed of the same cause with another finding."""
        if not size_of(candidate) < size_of(self.smallest.spec):
            return False
        number, limit = 0, seeds
        while number < limit:
            neighbour = replace(candidate, seed=(candidate.seed + number) % SEEDS)
            number += 1
            key = neighbour.to_yaml()
            if key in self._asked:
                continue
            if self._exhausted(self._runs):
                raise _BudgetExhausted
            self._asked.add(key)
            self._runs += 1
            sighting = self._predicate(neighbour)
            accepted = sighting is not None and sighting.same_finding
            if sighting is not None and accepted:
                self.smallest = Reproducer(neighbour, sighting)
            self._on_progress(ShrinkProgress(self.smallest.spec, neighbour, pass_name, self._runs, accepted))
            if accepted:
                return True
            if sighting is not None:
                limit = if_promising
        return False

    def _seeds_for(self, candidate: Spec, more: int) -> int:
        """How many seeds a candidate gets: one, and `more` for each time that the smallest spec takes longer."""
        longer = (self.smallest.spec.time_limit_s + _FIXED_S) / (candidate.time_limit_s + _FIXED_S)
        return 1 + max(0, math.ceil(more * (longer - 1)))
