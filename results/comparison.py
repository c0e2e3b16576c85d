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
from typing import Any, Final

from results.statistics import Interval, difference, mean, share

P50: Final = "append_ms_p50"
P99: Final = "append_ms_p99"


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of one cell."""

    cell: str
    seed: int
    validity: str
    figures: Mapping[str, float]
    """As `results.run_figures.measure` tells them, and `planned`: the appends that the rate asked for."""
    kept: str = ""
    """Where its directory is, if it was kept."""
    stored: str = ""
    """`SUITE/RUN`, where the store has it."""


@dataclass(frozen=True, slots=True)
class ComparedCell:
    """What all runs of one setting come to."""

    name: str
    runs: int
    verdicts: Mapping[str, int]
    acknowledged: int
    lost: int
    duplicated: int
    available: Interval
    """Acknowledged writes, of those planned."""
    unavailable: Interval
    """Time without acknowledgements, of the time clients were driven."""
    loss: Interval
    """Lost records among those acknowledged."""
    duplication: Interval
    """Duplicated records for each acknowledged one."""
    latency_ms: Interval | None
    """Mean over runs of the median; None where nothing was acknowledged in any."""
    latency_p99_ms: Interval | None
    """Mean over runs of the 99th percentile."""
    more_available: Interval | None
    """Difference to the reference in that share, run by run; None for the reference itself."""
    more_unavailable: Interval | None
    more_lost: Interval | None
    """Difference to the reference in lost records a run."""
    more_duplicated: Interval | None
    """In duplicated records a run."""
    more_latency_ms: Interval | None
    """Over the seeds on which both sides had something acknowledged."""
    more_latency_p99_ms: Interval | None

    def sentence(self, reference: ComparedCell) -> str:
        """In plain words."""
        beside = "" if self is reference else f" against {_percent(reference.available)}"
        if self.lost:
            fate = f"lost {self.lost:,} of {self.acknowledged:,} acknowledged records"
        else:
            fate = f"lost none of {self.acknowledged:,} acknowledged records"
        return f"{self.name} keeps {_percent(self.available)} of writes available{beside}, and {fate}"


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
        """One a cell."""
        reference = self.cell(self.reference)
        return [cell.sentence(reference) for cell in self.cells]

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "name": self.name,
            "reference": self.reference,
            "cells": [{**asdict(cell), "verdicts": dict(cell.verdicts)} for cell in self.cells],
            "runs": [{**asdict(run), "figures": dict(run.figures)} for run in self.runs],
            "sentences": self.sentences(),
        }


def from_json(name: str, values: Any) -> Comparison:
    """What `to_json` wrote, worked out anew from its runs. Raises ValueError for anything else."""
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
    except (AttributeError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def compare(name: str, reference: str, runs: Sequence[ComparedRun]) -> Comparison:
    """Raises ValueError unless every cell has one run of every seed."""
    by_cell: dict[str, dict[int, ComparedRun]] = {}
    for run in runs:
        by_cell.setdefault(run.cell, {})[run.seed] = run
    seeds = sorted(by_cell.get(reference, ()))
    for cell, found in by_cell.items():
        if sorted(found) != seeds or not seeds:
            raise ValueError(f"{cell} was not run on the seeds of {reference}")
    beside = [by_cell[reference][seed] for seed in seeds]
    cells = tuple(
        _cell(cell, [found[seed] for seed in seeds], beside, is_reference=cell == reference)
        for cell, found in by_cell.items()
    )
    return Comparison(name, reference, cells, tuple(runs))


def _cell(name: str, runs: Sequence[ComparedRun], beside: Sequence[ComparedRun], *, is_reference: bool) -> ComparedCell:
    def total(figure: str) -> int:
        return round(sum(_each(runs, figure)))

    def over(part: str, whole: str) -> Interval:
        return share(_each(runs, part), _each(runs, whole))

    def more(figure: str, whole: str = "") -> Interval | None:
        """Run by run, of those that have the figure on both sides."""
        both = [(a, b) for a, b in zip(runs, beside, strict=True) if not _lacks(a, figure) and not _lacks(b, figure)]
        if is_reference or not both:
            return None
        ours, theirs = ([_value(run, figure, whole) for run in side] for side in zip(*both, strict=True))
        return difference(ours, theirs)

    return ComparedCell(
        name=name,
        runs=len(runs),
        verdicts=Counter(run.validity for run in runs),
        acknowledged=total("acknowledged"),
        lost=total("lost"),
        duplicated=total("duplicated"),
        available=over("acknowledged", "planned"),
        unavailable=over("unavailable_s", "main_s"),
        loss=over("lost", "acknowledged"),
        duplication=over("duplicated", "acknowledged"),
        latency_ms=_mean(runs, P50),
        latency_p99_ms=_mean(runs, P99),
        more_available=more("acknowledged", "planned"),
        more_unavailable=more("unavailable_s", "main_s"),
        more_lost=more("lost"),
        more_duplicated=more("duplicated"),
        more_latency_ms=more(P50),
        more_latency_p99_ms=more(P99),
    )


def _each(runs: Sequence[ComparedRun], figure: str) -> list[float]:
    return [run.figures.get(figure, 0.0) for run in runs]


def _lacks(run: ComparedRun, figure: str) -> bool:
    """Latency is of something; of the rest none is 0."""
    return figure in (P50, P99) and figure not in run.figures


def _value(run: ComparedRun, figure: str, whole: str) -> float:
    value = run.figures.get(figure, 0.0)
    return value / run.figures[whole] if whole else value


def _mean(runs: Sequence[ComparedRun], figure: str) -> Interval | None:
    values = [run.figures[figure] for run in runs if figure in run.figures]
    return mean(values) if values else None


def _percent(interval: Interval) -> str:
    return f"{100 * interval.value:.1f} %"
