"""Settings compared under the same faults: one cell of the matrix a setting, one run a cell and seed.

What is told of each cell, with 95 % bootstrap intervals over its runs (`results.statistics`): the share of the writes
planned that were acknowledged (a client that waits asks for less: the share of what was asked for would flatter), the
share of the time in which writing was not possible, the share of acknowledged records that were lost, duplicates and
latency; and against the reference cell the difference, run by run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from results import page
from results.figures.canvas import Figure
from results.statistics import Interval, difference, mean, share


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one cell."""

    cell: str
    seed: int
    validity: str
    figures: Mapping[str, float]
    """As `results.metrics.measure` tells them, and `planned`: the appends that the rate asked for."""
    kept: str = ""
    """Where its directory is, if it was kept."""


@dataclass(frozen=True, slots=True)
class Cell:
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
    latency_ms: Interval
    """Mean over runs of the median."""
    more_available: Interval | None
    """Difference to the reference in that share, run by run; None for the reference itself."""
    more_lost: Interval | None
    """Difference to the reference in lost records a run."""

    def sentence(self, reference: Cell) -> str:
        """In plain words."""
        beside = "" if self is reference else f" against {reference.available.value:.1%}"
        if self.lost:
            fate = f"lost {self.lost:,} of {self.acknowledged:,} acknowledged records"
        else:
            fate = f"lost none of {self.acknowledged:,} acknowledged records"
        return f"{self.name} keeps {self.available.value:.1%} of writes available{beside}, and {fate}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All cells, the reference first among equals."""

    name: str
    reference: str
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]

    def cell(self, name: str) -> Cell:
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
            Run(
                str(run["cell"]),
                int(run["seed"]),
                str(run["validity"]),
                {str(figure): float(value) for figure, value in run["figures"].items()},
                str(run.get("kept", "")),
            )
            for run in values["runs"]
        ]
        return compare(name, str(values["reference"]), runs)
    except (AttributeError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def compare(name: str, reference: str, runs: Sequence[Run]) -> Comparison:
    """Raises ValueError unless every cell has one run of every seed."""
    by_cell: dict[str, dict[int, Run]] = {}
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


def _cell(name: str, runs: Sequence[Run], beside: Sequence[Run], *, is_reference: bool) -> Cell:
    def each(figure: str, of: Sequence[Run] = runs) -> list[float]:
        return [run.figures.get(figure, 0.0) for run in of]

    def shares(of: Sequence[Run]) -> list[float]:
        return [told / planned for told, planned in zip(each("acknowledged", of), each("planned", of), strict=True)]

    latencies = [run.figures["append_ms_p50"] for run in runs if "append_ms_p50" in run.figures]
    return Cell(
        name=name,
        runs=len(runs),
        verdicts=Counter(run.validity for run in runs),
        acknowledged=round(sum(each("acknowledged"))),
        lost=round(sum(each("lost"))),
        duplicated=round(sum(each("duplicated"))),
        available=share(each("acknowledged"), each("planned")),
        unavailable=share(each("unavailable_s"), each("main_s")),
        loss=share(each("lost"), each("acknowledged")),
        latency_ms=mean(latencies or [0.0]),
        more_available=None if is_reference else difference(shares(runs), shares(beside)),
        more_lost=None if is_reference else difference(each("lost"), each("lost", beside)),
    )


# ---- the page --------------------------------------------------------------------------------------------------------


def render(comparison: Comparison) -> str:
    """The comparison as one self-contained page."""
    return page.frame(f"{comparison.name} · Faultline", body(comparison))


def _report(run: Run) -> str:
    return f"{run.kept}/report.html" if run.kept else ""


def body(comparison: Comparison, link: Callable[[Run], str] = _report) -> str:
    """The page's sections; `link` tells the address of a run's page, empty where it has none."""
    sentences = "".join(f"<p>{escape(line)}.</p>" for line in comparison.sentences())
    head = f"<header><h1>{escape(comparison.name)}</h1>{sentences}</header>"
    picture = page.plot(
        _picture(comparison.cells), "Each setting with its 95 % intervals. Up is more available, left loses less."
    )
    return "\n".join(
        (
            head,
            page.section("Availability against loss", picture),
            page.section("Settings", _table(comparison)),
            page.section("Runs", _runs(comparison, link)),
        )
    )


def _picture(cells: Iterable[Cell]) -> Figure:
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": cell.name,
            "x": [100 * cell.loss.value],
            "y": [100 * cell.available.value],
            "error_x": _bar(cell.loss),
            "error_y": _bar(cell.available),
            "marker": {"size": 11},
        }
        for cell in cells
    ]
    layout = {
        "height": 420,
        "xaxis": {"title": {"text": "acknowledged records lost, %"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "planned writes acknowledged, %"}},
        "legend": {"orientation": "h", "y": 1.15},
        "margin": {"t": 30, "r": 20},
    }
    return {"data": traces, "layout": layout}


def _bar(interval: Interval) -> dict[str, Any]:
    above, below = 100 * (interval.high - interval.value), 100 * (interval.value - interval.low)
    return {"type": "data", "symmetric": False, "array": [above], "arrayminus": [below]}


def _table(comparison: Comparison) -> str:
    heads = (
        "setting",
        "runs",
        "verdicts",
        "available",
        "unavailable time",
        "lost",
        "duplicated",
        "median ms",
        "paired",
    )
    rows = []
    for cell in comparison.cells:
        verdicts = ", ".join(f"{count} {name}" for name, count in sorted(cell.verdicts.items()))
        paired = "the reference"
        if cell.more_available is not None and cell.more_lost is not None:
            paired = f"{percent(cell.more_available, signed=True)} available; {number(cell.more_lost)} lost a run"
        words = (
            cell.name,
            str(cell.runs),
            verdicts,
            percent(cell.available),
            percent(cell.unavailable),
            f"{cell.lost:,}: {percent(cell.loss, digits=3)}",
            f"{cell.duplicated:,}",
            number(cell.latency_ms),
            paired,
        )
        rows.append("<tr>" + "".join(f"<td>{escape(word)}</td>" for word in words) + "</tr>")
    return page.table(heads, rows)


def _runs(comparison: Comparison, link: Callable[[Run], str]) -> str:
    wanted = sorted(comparison.runs, key=lambda run: (-run.figures.get("lost", 0), run.cell, run.seed))
    rows = []
    for run in wanted:
        where = page.link("report", link(run)) if link(run) else ""
        words = (run.cell, str(run.seed), run.validity, *(f"{run.figures.get(name, 0):,.0f}" for name in _COUNTS))
        rows.append("<tr>" + "".join(f"<td>{escape(word)}</td>" for word in words) + f"<td>{where}</td></tr>")
    return page.folded(
        f"{len(wanted)} runs, those that lost most first",
        page.table(("setting", "seed", "verdict", *_COUNTS, ""), rows),
    )


_COUNTS = ("appends", "acknowledged", "lost", "duplicated")


def percent(interval: Interval, *, digits: int = 1, signed: bool = False) -> str:
    """`96.8 % (95.9 to 97.5)`."""
    sign = "+" if signed else ""
    value, low, high = (f"{100 * it:{sign}.{digits}f}" for it in (interval.value, interval.low, interval.high))
    return f"{value} % ({low} to {high})"


def number(interval: Interval) -> str:
    """`2.1 (1.8 to 2.4)`."""
    return f"{interval.value:.3g} ({interval.low:.3g} to {interval.high:.3g})"
