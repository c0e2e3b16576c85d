"""What a campaign says of each mutant: found by which search, after how many runs, and by which box.

The figures of a box are medians over the ranges of seeds. A range in which the box did not find the mutant counts as
one with more runs than any other, so that a median of `inf` says: not found in half of the ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from harness.search.mutants.explorations import DEPTHS, reads_no_rule_of, scopes_of
from harness.search.mutants.mutant import LIMITS, Method, Mutant, MutantKind
from harness.search.mutants.record import FULL_PROTOCOL, CampaignRecord, Exploration, SeedRange
from harness.suites.boxes import BOXES
from results.statistics import Interval, median

EXCEPTIONS_MOST: Final = 5
"""Rules that random runs may miss, if another search finds them."""


@dataclass(frozen=True, slots=True)
class BoxFigures:
    """What one box found in the ranges of one search."""

    ranges: int
    """Ranges in which it is known whether it finds the mutant."""
    found: int
    runs: Interval | None
    """To the first find; None without any range."""
    cpu_s: Interval | None
    check: str
    """The finding that was first most often; empty without any."""


@dataclass(frozen=True, slots=True)
class SearchFigures:
    """One search for one mutant."""

    method: Method
    complete: int
    """Ranges that need no more runs."""
    runs: int
    """In all ranges."""
    not_made: int
    """Those of them that are runs of the full protocol."""
    first_find: int | None
    """The number of the run that found it first, all ranges in order; None when none did."""
    boxes: dict[str, BoxFigures]

    def is_within(self, limit: int) -> bool | None:
        """Whether it was found in so many runs; None when too few were made to say no."""
        if self.first_find is not None and self.first_find <= limit:
            return True
        return False if self.runs >= limit else None


@dataclass(frozen=True, slots=True)
class MutantFigures:
    """All searches for one mutant."""

    mutant: Mutant
    searches: dict[Method, SearchFigures]
    explored: str
    """The outcome of the explorations, in words."""
    broken_in: str
    """The scope in which a promise is broken; empty without any."""

    @property
    def first_check(self) -> str:
        """Of each box the finding that was first most often, in words."""
        return "; ".join(f"{box}: {check or 'nothing'}" for box, check in self.checks.items())

    @property
    def checks(self) -> dict[str, str]:
        """Box → the finding that was first most often in its ranges, over all searches; empty without any."""
        return {box: _most(it.boxes[box].check for it in self.searches.values()) for box in BOXES}

    @property
    def found(self) -> bool:
        """Whether any search found it."""
        return bool(self.broken_in) or any(each.first_find is not None for each in self.searches.values())


def figures(record: CampaignRecord, mutants: Sequence[Mutant]) -> list[MutantFigures]:
    """Of every mutant; those found by nobody first, then those found late."""
    every = [_mutant_figures(record, mutant) for mutant in mutants]
    return sorted(every, key=lambda it: (it.found, -(it.searches[Method.RANDOM].first_find or inf), it.mutant.name))


def promise(every: Sequence[MutantFigures]) -> list[str]:
    """How far the campaign shows that every rule is found in time, in sentences."""
    rules = [each for each in every if each.mutant.kind is MutantKind.RULE]
    lines = []
    for method, limit in LIMITS.items():
        within = [each.searches[method].is_within(limit) for each in rules]
        lines.append(
            f"Of {len(rules)} rules `{method}` finds {within.count(True)} within {limit} runs and misses "
            f"{within.count(False)}; {within.count(None)} have too few runs to say."
        )
    missed = [each for each in rules if each.searches[Method.RANDOM].is_within(LIMITS[Method.RANDOM]) is not True]
    others = [each for each in missed if each.broken_in or each.searches[Method.HUNT].first_find is not None]
    lines.append(
        f"Of the {len(missed)} that `random` has not found within {LIMITS[Method.RANDOM]} runs, `hunt` or `explore` "
        f"finds {len(others)}. "
        f"At most {EXCEPTIONS_MOST} may stay, all of them found by those."
    )
    return lines


def find_words(search: SearchFigures) -> str:
    """The first find of a search, or how many runs were made without one."""
    if search.first_find is not None:
        return f"run {search.first_find}"
    if not search.runs:
        return "no run yet"
    return f"not in {search.runs}" + (f" ({search.not_made} not made)" if search.not_made else "")


def _mutant_figures(record: CampaignRecord, mutant: Mutant) -> MutantFigures:
    explorations = record.explorations.get(mutant.name, {})
    broken_in = next((scope for scope, each in explorations.items() if each.broken), "")
    return MutantFigures(
        mutant,
        {method: _search_figures(method, record.ranges(mutant.name, method)) for method in Method},
        _explored(record, mutant, broken_in),
        broken_in,
    )


def _explored(record: CampaignRecord, mutant: Mutant, broken_in: str) -> str:
    explorations, full = record.explorations.get(mutant.name, {}), record.explorations.get(FULL_PROTOCOL, {})
    if broken_in:
        each = explorations[broken_in]
        return f"found in `{broken_in}`, {each.depth} steps, {each.cpu_s:.1f} s"
    explored = [scope for scope in scopes_of(mutant) if scope in explorations]
    if not explored:
        return "not explored yet"
    expressed = [scope for scope in explored if not _is_as_in(full.get(scope), explorations[scope], mutant)]
    left = len(scopes_of(mutant)) - len(explored)
    later = f"; {left} scope{'s' if left > 1 else ''} to go" if left else ""
    if not expressed:
        return f"no scope expresses it{later}"
    return f"every promise kept in {', '.join(map(_scope_words, expressed))}{later}"


def _is_as_in(full: Exploration | None, exploration: Exploration, mutant: Mutant) -> bool:
    """Whether a mutant's exploration is that of the full protocol. Where the scopes of their commits may differ, other
    counts say nothing; that nobody reads the mutant's rule is known from the full protocol alone."""
    same = full is not None and (full.states, full.steps) == (exploration.states, exploration.steps)
    return same or (full is not None and reads_no_rule_of(mutant, full))


def _scope_words(scope: str) -> str:
    return f"`{scope}`" + (f" {DEPTHS[scope]} steps deep" if scope in DEPTHS else "")


def _search_figures(method: Method, ranges: Sequence[SeedRange]) -> SearchFigures:
    before, first_find = 0, None
    for each in ranges:
        if each.together is not None:
            first_find = before + each.together.runs
            break
        before += each.runs
    return SearchFigures(
        method,
        sum(each.complete for each in ranges),
        sum(each.runs for each in ranges),
        sum(each.not_made for each in ranges),
        first_find,
        {box: _box_figures(box, ranges) for box in BOXES},
    )


def _box_figures(box: str, ranges: Sequence[SeedRange]) -> BoxFigures:
    found = [getattr(each, box) for each in ranges if getattr(each, box) is not None]
    missed = sum(each.complete and getattr(each, box) is None for each in ranges)
    known = len(found) + missed
    return BoxFigures(
        known,
        len(found),
        median([*(each.runs for each in found), *[inf] * missed]) if known else None,
        median([*(each.cpu_s for each in found), *[inf] * missed]) if known else None,
        _most(each.check for each in found),
    )


def _most(checks: Iterable[str]) -> str:
    """The most frequent one, the first of several; empty where there is none."""
    return next((check for check, _ in Counter(filter(None, checks)).most_common(1)), "")
