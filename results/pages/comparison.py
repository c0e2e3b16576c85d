"""The page of a comparison: the cost and benefit of each setting in words, as a figure and in numbers, and the runs.

Its order: one sentence per setting; availability against loss; one line per setting, each number with its 95 % interval
and its difference to the reference, run by run; every run. A number links to the runs it was computed from, worst
first: the list of runs, narrowed down by the page's script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from results import measures
from results.comparison import ComparedCell, ComparedRun, Comparison
from results.figures.canvas import NODE_COLOURS, Figure
from results.measures import Measure
from results.number_format import compact
from results.pages import page
from results.statistics import Interval, none_in

RunLink = Callable[[ComparedRun], str]
"""The address of a run's page, empty where it has none."""
RUNS_MAX = 5000
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")


def render(comparison: Comparison) -> str:
    """The comparison as one self-contained page."""
    return page.frame(f"{comparison.name} · Faultline", body(comparison))


def _report(run: ComparedRun) -> str:
    return f"{run.kept}/report.html" if run.kept else ""


def body(comparison: Comparison, link: RunLink = _report) -> Markup:
    """The page's sections."""
    runs = sorted(comparison.runs, key=lambda run: (-run.figures.get("lost", 0), run.cell, run.seed))
    return page.render(
        "comparison.html",
        comparison=comparison,
        picture=_picture(comparison.cells),
        measures=measures.per_run(),
        written_interval=_written,
        lossless=_lossless(comparison.cells),
        runs=runs[:RUNS_MAX],
        runs_left_out=len(runs) - RUNS_MAX,
        link=link,
    )


def _picture(cells: Sequence[ComparedCell]) -> Figure:
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": escape(cell.name),
            "x": [100 * _point(cell, "lost").value],
            "y": [100 * _point(cell, "available").value],
            "error_x": _bar(_point(cell, "lost")),
            "error_y": _bar(_point(cell, "available")),
            "marker": {
                "size": 11,
                "color": NODE_COLOURS[number % len(NODE_COLOURS)],
                "symbol": _SYMBOLS[number % len(_SYMBOLS)],
            },
            "hovertemplate": f"{escape(cell.name)}<br>%{{y:.2f}} % acknowledged, %{{x:.3f}} % lost<extra></extra>",
        }
        for number, cell in enumerate(cells)
        if "available" in cell.figures
    ]
    furthest = max([100 * _point(cell, "lost").high for cell in cells]) or 1.0
    layout = {
        "height": 440,
        "margin": {"l": 64, "r": 14, "t": 30, "b": 48},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"},
        "hovermode": "closest",
        # Not from 0: a point of a setting that lost nothing is to be seen whole.
        "xaxis": {"title": {"text": "acknowledged records lost, %"}, "range": [-0.03 * furthest, 1.04 * furthest]},
        "yaxis": {"title": {"text": "planned writes acknowledged, %"}, "zeroline": False},
    }
    return {"data": traces, "layout": layout}


def _point(cell: ComparedCell, measure: str) -> Interval:
    return cell.figures.get(measure, Interval(0.0, 0.0, 0.0))


def _bar(interval: Interval) -> dict[str, Any]:
    above, below = 100 * (interval.high - interval.value), 100 * (interval.value - interval.low)
    return {"type": "data", "symmetric": False, "array": [above], "arrayminus": [below], "thickness": 1.5}


def _written(measure: Measure, interval: Interval) -> tuple[str, str]:
    """`96.8 %` and `95.9 – 97.5`."""
    value, low, high = (compact(measure.scale * number) for number in (interval.value, interval.low, interval.high))
    return f"{value} {measure.unit}".rstrip(), f"{low} – {high}"


def _lossless(cells: Sequence[ComparedCell]) -> str:
    """The bound that runs without any loss support; empty when every setting lost records."""
    lossless = [cell for cell in cells if cell.measured and not cell.lost]
    if not lossless:
        return ""
    runs = min(cell.measured for cell in lossless)
    return (
        f"Nothing was lost in any of {runs} runs: with 95 % confidence, fewer than {100 * none_in(runs):.2g} % of such "
        f"runs lose anything ({'; '.join(cell.name for cell in lossless)})."
    )
