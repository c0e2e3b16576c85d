"""Comparison of settings under the same faults: one cell of the matrix per setting, one run per cell and seed.

Each cell has the figures of `results.measures` with 95 % bootstrap intervals over its runs (`results.statistics`), and
the difference of each to the reference cell, run by run. Availability is the share of the *planned* writes that were
acknowledged: a client that waits requests less, so the share of the requested writes would flatter.

`results.pages.comparison` renders the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from results import measures
from results.statistics import RESAMPLES, Interval


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of one cell."""

    cell: str
    seed: int
    validity: str
    figures: Mapping[str, float]
    """Of `results.run_figures`, and `planned`: the appends that rate and time limit plan, if there are producers."""
    kept: str = ""
    """The run directory, if it was kept."""
    stored: str = ""
    """`SUITE/RUN`, if the store has it."""

    @property
    def outcome(self) -> str:
        """The verdict."""
        return self.validity


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """All runs of one setting."""

    name: str
    runs: int
    measured: int
    """Runs that have figures."""
    verdicts: Mapping[str, int]
    acknowledged: int
    lost: int
    duplicated: int
    figures: Mapping[str, Interval]
    """By the name of the measure; a measure without a value in any run is left out."""
    differences: Mapping[str, Interval]
    """The mean difference to the reference, run by run, over the seeds with a value on both sides; empty for the
    reference itself."""

    def sentence(self, reference: ComparedCell) -> str:
        """The cell in one sentence."""
        if not self.measured:
            return f"{self.name} has no figures"
        beside = ""
        if self is not reference and "available" in reference.figures:
            beside = f" against {_percent(reference.figures['available'])}"
        if self.lost:
            fate = f"lost {self.lost:,} of {self.acknowledged:,} acknowledged records"
        else:
            fate = f"lost none of {self.acknowledged:,} acknowledged records"
        if "available" not in self.figures:
            return f"{self.name} {fate}"
        return f"{self.name} keeps {_percent(self.figures['available'])} of writes available{beside}, and {fate}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All cells, the reference first among equals."""

    name: str
    reference: str
    cells: tuple[ComparedCell, ...]
    runs: tuple[ComparedRun, ...]

    def cell(self, name: str) -> ComparedCell:
        """The cell of this name. Raises KeyError."""
        return {cell.name: cell for cell in self.cells}[name]

    def sentences(self) -> list[str]:
        """One sentence per cell."""
        reference = self.cell(self.reference)
        return [cell.sentence(reference) for cell in self.cells]

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "name": self.name,
            "reference": self.reference,
            "cells": [
                {
                    **asdict(cell),
                    "verdicts": dict(cell.verdicts),
                    "figures": _as_json(cell.figures),
                    "differences": _as_json(cell.differences),
                }
                for cell in self.cells
            ],
            "runs": [{**asdict(run), "figures": dict(run.figures)} for run in self.runs],
            "sentences": self.sentences(),
        }


def from_json(name: str, values: Any) -> Comparison:
    """The comparison of the runs that `to_json` wrote. Raises ValueError for anything else."""
    try:
        runs = [
            ComparedRun(
                str(run["cell"]),
                int(run["seed"]),
                str(run["validity"]),
                {str(figure): float(value) for figure, value in run["figures"].items()},
                str(run.get("kept", "")),
                str(run.get("stored", "")),
            )
            for run in values["runs"]
        ]
        return compare(name, str(values["reference"]), runs)
    except (ArithmeticError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def compare(name: str, reference: str, runs: Sequence[ComparedRun]) -> Comparison:
    """Raises ValueError unless every cell has one run of every seed."""
    by_cell: dict[str, dict[int, ComparedRun]] = {}
    for run in runs:
        by_cell.setdefault(run.cell, {})[run.seed] = run
    seeds = sorted(by_cell.get(reference, ()))
    for cell, runs_of_cell in by_cell.items():
        if sorted(runs_of_cell) != seeds or not seeds:
            raise ValueError(f"{cell} was not run on the seeds of {reference}")
    beside = [by_cell[reference][seed] for seed in seeds]
    cells = tuple(
        _cell(cell, [runs_of_cell[seed] for seed in seeds], beside, is_reference=cell == reference)
        for cell, runs_of_cell in by_cell.items()
    )
    return Comparison(name, reference, cells, tuple(runs))


def _cell(name: str, runs: Sequence[ComparedRun], beside: Sequence[ComparedRun], *, is_reference: bool) -> ComparedCell:
    table = measures.per_run()
    values = {measure.name: measure.over(runs, resamples=RESAMPLES) for measure in table}
    differences = {measure.name: None if is_reference else measure.difference(runs, beside) for measure in table}

    def total(figure: str) -> int:
        return round(sum(run.figures.get(figure, 0.0) for run in runs))

    return ComparedCell(
        name=name,
        runs=len(runs),
        measured=sum(bool(run.figures) for run in runs),
        verdicts=Counter(run.validity for run in runs),
        acknowledged=total("acknowledged"),
        lost=total("lost"),
        duplicated=total("duplicated"),
        figures={measure: value for measure, value in values.items() if value is not None},
        differences={measure: value for measure, value in differences.items() if value is not None},
    )


def _as_json(intervals: Mapping[str, Interval]) -> dict[str, dict[str, float]]:
    return {name: asdict(interval) for name, interval in intervals.items()}


def _percent(interval: Interval) -> str:
    return f"{100 * interval.value:.1f} %"
