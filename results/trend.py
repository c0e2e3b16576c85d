"""Figures over the nights of a suite: each cell's figures per night, and the nights where they changed.

Nights are the suites of one series, in the order of their start. Each cell is compared with itself over the nights that
have it, so a cell added later shifts nothing. `results.change_points` describes how a change point is found; the level
is divided by the number of cells and measures, so that without any change the probability of any flag is about ALPHA at
most. A flag says that runs came out differently, not why: a change of the cell's spec is reported with the flag.

Mutants are not compared: what a broken protocol loses is no figure of the system. A night that misses one is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from results import measures
from results.change_points import UNITS_MIN, ChangePoint, Mask, Matrix, change_points
from results.measures import Measure
from results.number_format import counted
from results.statistics import Interval
from results.store.tables import DamagedFile, read
from results.suites import RESAMPLES, SuiteResult, SuiteRun, no_such_suite, read_suite, series, suite_names

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class TrendFlag:
    """A change point of one figure of one cell."""

    cell: str
    measure: Measure
    since: str
    """The first suite after it."""
    until: str
    """The last suite before it."""
    change: ChangePoint
    other_spec: bool
    """True when the cell's spec has changed as well."""

    @property
    def worse(self) -> bool:
        """True when the figure changed for the worse."""
        return (self.change.after > self.change.before) is not self.measure.more_is_better

    def sentence(self) -> str:
        """In plain words."""
        measure, change = self.measure, self.change
        went = "rose" if change.after > change.before else "fell"
        chance = f"p = {change.p:.4f}" if change.p >= 0.001 else "p < 0.001"
        spec = "; its spec changed as well" if self.other_spec else ""
        unit = "points" if measure.unit == "%" else measure.unit
        by = f"{measure.bare(change.low)} to {measure.bare(change.high)} {unit}".rstrip()
        return (
            f"{self.cell}: {measure.words} {went} from {measure.written(change.before)} to "
            f"{measure.written(change.after)} (difference {by}, {chance}){spec}"
        )


@dataclass(frozen=True, slots=True)
class Night:
    """One cell's runs and figures in one suite."""

    suite: SuiteResult
    runs: tuple[SuiteRun, ...]
    figures: Mapping[str, Interval]
    """By the name of the measure; measures without a value are left out."""


@dataclass(frozen=True, slots=True)
class Trend:
    """All nights of one name."""

    name: str
    suites: tuple[SuiteResult, ...]
    cells: tuple[tuple[str, tuple[Night, ...]], ...]
    flags: tuple[TrendFlag, ...]
    """The latest first, what went the wrong way first within a night."""
    not_compared: tuple[str, ...] = ()
    """Cells that cannot be compared yet, each with the reason."""
    damaged: tuple[DamagedFile, ...] = ()
    """Files that had to be left out."""
    missed_mutants: tuple[str, ...] = ()
    """Nights with mutants that none of their runs found, in words; the latest first."""

    def sentence(self) -> str:
        """The number of changes, in words."""
        if self.flags:
            changes = "1 change" if len(self.flags) == 1 else f"{len(self.flags)} changes"
            return f"{changes}, {sum(flag.worse for flag in self.flags)} for the worse"
        return "nothing to compare yet" if len(self.not_compared) == len(self.cells) else "no change beyond chance"

    def flags_at(self, cell: str, suite: str) -> list[TrendFlag]:
        """Of this cell, with this suite the first after it."""
        return [flag for flag in self.flags if (flag.cell, flag.since) == (cell, suite)]


def read_trend(store: Path, name: str, *, seed: int = 0) -> Trend:
    """The trend of all suites of this name. BadName when there is none."""
    every = suite_names(store)
    results = [read_suite(store, suite) for suite in every if series(suite) == name]
    suites = [suite for suite in results if suite is not None]
    if not suites:
        raise no_such_suite(store, name, every)
    result = trend(name, suites, seed=seed)
    unread = (file for suite in every if series(suite) == name for file in read(store, "runs", suite).damaged)
    damaged = (*unread, *(file for suite in suites for file in suite.damaged))
    return replace(result, damaged=tuple(dict.fromkeys(damaged)))


def trend(name: str, suites: Sequence[SuiteResult], *, seed: int = 0) -> Trend:
    """Follow each cell through the nights, and find where its figures changed."""
    ordered = sorted(suites, key=lambda suite: (suite.started, suite.name))
    mutants = {cell for suite in ordered for cell in suite.mutants}
    cells = sorted({cell for suite in ordered for cell in suite.cells} - mutants)
    nights = {cell: tuple(_night(suite, cell) for suite in ordered if cell in suite.cells) for cell in cells}
    level = ALPHA / (len(cells) * len(measures.MEASURES)) if cells else ALPHA
    flags = [flag for cell in cells for flag in _flags(cell, nights[cell], level, seed)]
    order = {suite.name: number for number, suite in enumerate(ordered)}
    flags.sort(key=lambda flag: (-order[flag.since], not flag.worse, flag.cell, flag.measure.name))
    not_compared = tuple(f"{cell}: {why}" for cell in cells if (why := _reason_not_compared(nights[cell])))
    missed = tuple(
        f"{suite.name} did not find {counted(len(suite.missed_mutants), 'mutant')}: {', '.join(suite.missed_mutants)}"
        for suite in reversed(ordered)
        if suite.missed_mutants
    )
    return Trend(name, tuple(ordered), tuple(nights.items()), tuple(flags), not_compared, missed_mutants=missed)


def _reason_not_compared(nights: Sequence[Night]) -> str:
    if len(nights) < 2:
        return "only one night has it"
    seeds = len({run.seed for night in nights for run in night.runs})
    if seeds < UNITS_MIN:
        return f"{seeds} seeds are too few to tell a change from chance; {UNITS_MIN} are needed"
    return ""


def _night(suite: SuiteResult, cell: str) -> Night:
    runs = tuple(run for run in suite.runs if run.cell == cell)
    values = {measure.name: measure.over(runs, resamples=RESAMPLES) for measure in measures.MEASURES}
    return Night(suite, runs, {name: value for name, value in values.items() if value is not None})


def _flags(cell: str, nights: Sequence[Night], level: float, seed: int) -> list[TrendFlag]:
    vary = any(not run.simulated for night in nights for run in night.runs)
    same = _same(nights)
    flags = []
    for number, measure in enumerate(measures.MEASURES):
        parts, wholes = _units(nights, measure)
        for change in change_points(parts, wholes, same, level=level, nights_vary=vary, seed=seed + number):
            before, after = nights[change.at - 1], nights[change.at]
            flags.append(
                TrendFlag(cell, measure, after.suite.name, before.suite.name, change, _differ_in_spec(before, after))
            )
    return flags


def _differ_in_spec(before: Night, after: Night) -> bool:
    """Whether a seed that both nights have was run with another spec: those of other seeds may have other worlds, so
    that nothing is said of nights that share none."""
    settings = {run.seed: run.setting for run in before.runs}
    return any(settings.get(run.seed, run.setting) != run.setting for run in after.runs)


def _same(nights: Sequence[Night]) -> Mask:
    """Mask of the runs that repeat the night before: simulated, with every figure the same to the last digit."""
    seeds = sorted({run.seed for night in nights for run in night.runs})
    same = np.zeros((len(seeds), len(nights)), dtype=bool)
    rows = {seed: row for row, seed in enumerate(seeds)}
    last: dict[int, SuiteRun] = {}
    for column, night in enumerate(nights):
        for run in night.runs:
            before = last.get(run.seed)
            same[rows[run.seed], column] = before is not None and _is_same(run, before)
            last[run.seed] = run
    return same


def _is_same(run: SuiteRun, before: SuiteRun) -> bool:
    figures = (run.outcome, run.figures) == (before.outcome, before.figures)
    return run.simulated and figures and bool(run.figures or run.digest == before.digest != "")


def _units(nights: Sequence[Night], measure: Measure) -> tuple[Matrix, Matrix]:
    """Parts and wholes, a row a seed and a column a night."""
    rows = {seed: row for row, seed in enumerate(sorted({run.seed for night in nights for run in night.runs}))}
    parts, wholes = np.zeros((len(rows), len(nights))), np.zeros((len(rows), len(nights)))
    for column, night in enumerate(nights):
        for run in night.runs:
            pair = measure.pair(run)
            if pair is not None:
                parts[rows[run.seed], column] += pair[0]
                wholes[rows[run.seed], column] += pair[1]
    return parts, wholes
