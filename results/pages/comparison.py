"""A comparison as a page: what each setting costs and saves, in words, as a picture, in numbers, and the runs behind.

It reads in this order: a sentence a setting; availability against loss; a line a setting, each number with its 95 %
interval and, below it, the difference to the reference, run by run; every run. A number links to the runs it was made
from, the worst first: the list of runs below, narrowed down to them by the page's script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlencode

from results.comparison import P50, P99, ComparedCell, ComparedRun, Comparison
from results.figures.canvas import NODE_COLOURS, Figure
from results.number_format import numeral
from results.pages import page
from results.statistics import Interval, none_in

RunLink = Callable[[ComparedRun], str]
"""The address of a run's page, empty where it has none."""
RUNS_MAX = 5000
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")


@dataclass(frozen=True, slots=True)
class _Column:
    """One of the numbers that are told of every setting."""

    words: str
    part: str
    """The figure of a run."""
    whole: str
    """What it is a share of, in percent; empty for one that is told as it is, in `unit`."""
    unit: str
    of: Callable[[ComparedCell], Interval | None]
    more: Callable[[ComparedCell], Interval | None]
    more_unit: str
    more_is_better: bool = False

    def value(self, run: ComparedRun) -> float | None:
        """Of one run; None where it has none."""
        value = run.figures.get(self.part)
        if value is None or not self.whole:
            return value
        whole = run.figures.get(self.whole)
        return 100 * value / whole if whole else None


_COLUMNS = (
    _Column(
        *("planned writes acknowledged", "acknowledged", "planned", "%"),
        *(lambda cell: cell.available, lambda cell: cell.more_available, "points"),
        more_is_better=True,
    ),
    _Column(
        *("time without acknowledgements", "unavailable_s", "main_s", "%"),
        *(lambda cell: cell.unavailable, lambda cell: cell.more_unavailable, "points"),
    ),
    _Column(
        *("acknowledged records lost", "lost", "acknowledged", "%"),
        *(lambda cell: cell.loss, lambda cell: cell.more_lost, "a run"),
    ),
    _Column(
        *("records duplicated", "duplicated", "acknowledged", "%"),
        *(lambda cell: cell.duplication, lambda cell: cell.more_duplicated, "a run"),
    ),
    _Column(
        *("append latency, median", P50, "", "ms"),
        *(lambda cell: cell.latency_ms, lambda cell: cell.more_latency_ms, "ms"),
    ),
    _Column(
        *("append latency, 99th percentile", P99, "", "ms"),
        *(lambda cell: cell.latency_p99_ms, lambda cell: cell.more_latency_p99_ms, "ms"),
    ),
)


def render(comparison: Comparison) -> str:
    """The comparison as one self-contained page."""
    return page.frame(f"{comparison.name} · Faultline", body(comparison))


def _report(run: ComparedRun) -> str:
    return f"{run.kept}/report.html" if run.kept else ""


def body(comparison: Comparison, link: RunLink = _report) -> str:
    """The page's sections."""
    picture = page.plot(
        _picture(comparison.cells), "Each setting with its 95 % intervals. Up is more available, left loses less."
    )
    return "\n".join(
        (
            _header(comparison),
            page.section("Availability against loss", picture),
            page.section("Settings", *_settings(comparison)),
            page.section(
                "Runs",
                '<p class="narrowed" aria-live="polite"></p>',
                *_runs(comparison, link),
                anchor="runs",
            ),
        )
    )


def _header(comparison: Comparison) -> str:
    sentences = "".join(f"<p>{escape(line)}.</p>" for line in comparison.sentences())
    facts = {
        "settings": len(comparison.cells),
        "runs of each": comparison.cells[0].runs,
        "reference": comparison.reference,
    }
    return f"<header><h1>{escape(comparison.name)}</h1>{sentences}{page.definitions(facts)}</header>"


def _picture(cells: Sequence[ComparedCell]) -> Figure:
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": escape(cell.name),
            "x": [100 * cell.loss.value],
            "y": [100 * cell.available.value],
            "error_x": _bar(cell.loss),
            "error_y": _bar(cell.available),
            "marker": {
                "size": 11,
                "color": NODE_COLOURS[number % len(NODE_COLOURS)],
                "symbol": _SYMBOLS[number % len(_SYMBOLS)],
            },
            "hovertemplate": f"{escape(cell.name)}<br>%{{y:.2f}} % acknowledged, %{{x:.3f}} % lost<extra></extra>",
        }
        for number, cell in enumerate(cells)
    ]
    furthest = max([100 * cell.loss.high for cell in cells]) or 1.0
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


def _bar(interval: Interval) -> dict[str, Any]:
    above, below = 100 * (interval.high - interval.value), 100 * (interval.value - interval.low)
    return {"type": "data", "symmetric": False, "array": [above], "arrayminus": [below], "thickness": 1.5}


def _settings(comparison: Comparison) -> Iterable[str]:
    yield page.note(
        "With 95 % bootstrap intervals over runs; Δ is the difference to the reference, run by run, on the same seed "
        "and the same faults. Planned is rate × time; as clients draw their moments, a run can come to a little more. "
        "A number leads to the runs behind it, the worst first."
    )
    heads = ("setting", "runs", "not valid", *(column.words for column in _COLUMNS))
    yield page.table(heads, (_row(cell, comparison.reference) for cell in comparison.cells), "cells")
    harmless = [cell for cell in comparison.cells if not cell.lost]
    if harmless:
        most = f"{100 * none_in(harmless[0].runs):.2g}"
        yield page.note(
            f"Nothing was lost in any of {harmless[0].runs} runs: with 95 % confidence, fewer than {most} % of such "
            f"runs lose anything ({'; '.join(cell.name for cell in harmless)})."
        )


def _row(cell: ComparedCell, reference: str) -> str:
    bad = cell.runs - cell.verdicts.get("valid", 0)
    failed = _behind(numeral(bad), cell=cell.name, valid="no") if bad else "0"
    numbers = "".join(f'<td class="number">{_number(column, cell)}</td>' for column in _COLUMNS)
    note = '<span class="range">the reference</span>' if cell.name == reference else ""
    return (
        f'<tr><th scope="row">{escape(cell.name)}{note}</th>'
        f'<td class="number">{_behind(numeral(cell.runs), cell=cell.name)}</td>'
        f'<td class="number">{failed}</td>{numbers}</tr>'
    )


def _number(column: _Column, cell: ComparedCell) -> str:
    found, more = column.of(cell), column.more(cell)
    if found is None:
        return ""
    factor = 100 if column.whole else 1
    value, low, high = (bare(factor * it) for it in (found.value, found.low, found.high))
    worst = "low" if column.more_is_better else "high"
    shown = _behind(f"{value} {column.unit}", cell=cell.name, by=column.part, first=worst)
    shown += f'<span class="range">{low} – {high}</span>'
    if more is not None:
        factor = 100 if column.more_unit == "points" else 1
        value, low, high = (bare(factor * it, sign="+") for it in (more.value, more.low, more.high))
        shown += f'<span class="range more">Δ {value} {column.more_unit}<br>{low} to {high}</span>'
    return shown


def bare(value: float, sign: str = "") -> str:
    """With as many digits as say something, and its sign where `+` asks for it."""
    if abs(value) >= 100:
        return f"{value:{sign}.0f}"
    return f"{value:{sign}.1f}" if abs(value) >= 10 else f"{value:{sign}.2f}" if value else "0"


def _behind(text: str, **narrowed: str) -> str:
    return page.link(text, f"#runs?{urlencode(narrowed)}")


def _runs(comparison: Comparison, link: RunLink) -> Iterable[str]:
    heads = ("verdict", "run", "setting", *(column.words for column in _COLUMNS))
    wanted = sorted(comparison.runs, key=lambda run: (-run.figures.get("lost", 0), run.cell, run.seed))
    yield page.note("Those that lost most first.")
    yield page.table(heads, (_run(run, link) for run in wanted[:RUNS_MAX]), "runs")
    rest = len(wanted) - RUNS_MAX
    yield page.note(f"{numeral(rest)} more are not listed." if rest > 0 else "")


def _run(run: ComparedRun, link: RunLink) -> str:
    values = [(column, column.value(run)) for column in _COLUMNS]
    numbers = "".join(
        f'<td class="number" data-by="{column.part}" data-value="{value}">{bare(value)} {column.unit}</td>'
        if value is not None
        else "<td></td>"
        for column, value in values
    )
    valid = "yes" if run.validity == "valid" else "no"
    return (
        f'<tr data-cell="{escape(run.cell)}" data-valid="{valid}"><td>{page.pill(run.validity)}</td>'
        f'<td class="run">{page.link(f"seed {run.seed}", link(run))}</td><td>{escape(run.cell)}</td>{numbers}</tr>'
    )
