"""A comparison as a page: what each setting costs and saves, in words, as a picture, in numbers, and the runs behind.

It reads in this order: a sentence a setting; availability against loss; a line a setting, each number with its 95 %
interval and, below it, the difference to the reference, run by run; every run. A number links to the runs it was made
from, the worst first: the list of runs below, narrowed down to them by the page's script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any
from urllib.parse import urlencode

from results import measures
from results.comparison import ComparedCell, ComparedRun, Comparison
from results.figures.canvas import NODE_COLOURS, Figure
from results.measures import Measure
from results.number_format import compact, numeral
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


def _settings(comparison: Comparison) -> Iterable[str]:
    yield page.note(
        "With 95 % bootstrap intervals over runs; Δ is the difference to the reference, run by run, on the same seed "
        "and the same faults. Planned is rate × time; as clients draw their moments, a run can come to a little more. "
        "A number leads to the runs behind it, the worst first."
    )
    heads = ("setting", "runs", "not valid", *(measure.words for measure in measures.per_run()))
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
    numbers = "".join(f'<td class="number">{_number(measure, cell)}</td>' for measure in measures.per_run())
    note = '<span class="range">the reference</span>' if cell.name == reference else ""
    return (
        f'<tr><th scope="row">{escape(cell.name)}{note}</th>'
        f'<td class="number">{_behind(numeral(cell.runs), cell=cell.name)}</td>'
        f'<td class="number">{failed}</td>{numbers}</tr>'
    )


def _number(measure: Measure, cell: ComparedCell) -> str:
    interval, change = cell.figures.get(measure.name), cell.differences.get(measure.name)
    if interval is None:
        return ""
    value, low, high = (compact(measure.scale * it) for it in (interval.value, interval.low, interval.high))
    shown = _behind(f"{value} {measure.unit}".rstrip(), cell=cell.name, by=measure.name, first=measure.worst)
    shown += f'<span class="range">{low} – {high}</span>'
    if change is not None:
        value, bounds = measure.written_difference(change)
        shown += f'<span class="range more">Δ {escape(value)}<br>{escape(bounds)}</span>'
    return shown


def _behind(text: str, **narrowed: str) -> str:
    return page.link(text, f"#runs?{urlencode(narrowed)}")


def _runs(comparison: Comparison, link: RunLink) -> Iterable[str]:
    heads = ("verdict", "run", "setting", *(measure.words for measure in measures.per_run()))
    wanted = sorted(comparison.runs, key=lambda run: (-run.figures.get("lost", 0), run.cell, run.seed))
    yield page.note("Those that lost most first.")
    yield page.table(heads, (_run(run, link) for run in wanted[:RUNS_MAX]), "runs")
    rest = len(wanted) - RUNS_MAX
    yield page.note(f"{numeral(rest)} more are not listed." if rest > 0 else "")


def _run(run: ComparedRun, link: RunLink) -> str:
    values = [(measure, measure.value(run)) for measure in measures.per_run()]
    numbers = "".join(
        f'<td class="number" data-by="{escape(measure.name)}" data-value="{value}">'
        f"{compact(measure.scale * value)} {escape(measure.unit)}</td>"
        if value is not None
        else "<td></td>"
        for measure, value in values
    )
    valid = "yes" if run.validity == "valid" else "no"
    return (
        f'<tr data-cell="{escape(run.cell)}" data-valid="{valid}"><td>{page.pill(run.validity)}</td>'
        f'<td class="run">{page.link(f"seed {run.seed}", link(run))}</td><td>{escape(run.cell)}</td>{numbers}</tr>'
    )
