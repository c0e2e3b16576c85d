"""The report of a suite: what failed and why, what each cell came to, and every run behind every number.

It reads in this order: what all of it came to; failures, by what was found; a line a cell, with 95 % intervals over its
runs; a picture of the runs; what was exercised; the runs themselves. A number links to the runs it was made from: the
list of runs below, narrowed down to them by the page's script. A run links to its own page, where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from urllib.parse import urlencode

from results import measures
from results.figures.canvas import GREY, NODE_COLOURS, Figure
from results.measures import Measure
from results.number_format import counted, numeral
from results.pages import page
from results.statistics import Interval
from results.suites import RESAMPLES, SuiteResult, SuiteRun

RunLink = Callable[[str], str]
"""The address of the page of a run of this name; empty where it has none."""
RUNS_MAX = 5000
CAUSES_MAX = 20
RUNS_OF_A_CAUSE = 5
_DRAWN = ("available", "p99")


def render(suite: SuiteResult, link: RunLink) -> str:
    """The whole page, as one file."""
    return page.frame(f"{suite.name} · Faultline", body(suite, link))


def body(suite: SuiteResult, link: RunLink, before: str = "") -> str:
    """The page's sections; `before`, which is HTML, comes after the headline."""
    return "\n".join(
        (
            _header(suite),
            before,
            _failures(suite, link),
            _cells(suite),
            _picture(suite, link),
            _coverage(suite),
            _runs(suite, link),
        )
    )


def _header(suite: SuiteResult) -> str:
    outcomes = suite.outcomes()
    worst = next(iter(outcomes))
    words = [
        f"{counted(len(suite.runs), 'run')} of {counted(len(suite.cells), 'cell')}: "
        f"{', '.join(f'{numeral(count)} {name}' for name, count in outcomes.items())}."
    ]
    if suite.planned > len(suite.runs):
        words.append(f"{numeral(suite.planned - len(suite.runs))} more were planned and are not there.")
    facts = {"started": suite.started.replace("T", " ").replace("+00:00", " UTC"), "faultline": suite.version}
    left_out = [f"left out: {file.line}" for file in suite.damaged]
    colour = "invalid" if worst == "failed" else worst.replace(" ", "-")
    return (
        f'<header class="{escape(colour)}"><div class="headline">{page.pill(worst)}<h1>{escape(suite.name)}</h1></div>'
        f"<p>{escape(' '.join(words))}</p>{page.bullets(left_out)}"
        f"{page.definitions({**facts, 'commit': suite.commit[:12]})}</header>"
    )


def _failures(suite: SuiteResult, link: RunLink) -> str:
    causes = suite.causes()
    if not causes:
        return page.section("Failures", page.note("Every run is valid."))
    rows = []
    for cause, runs in list(causes.items())[:CAUSES_MAX]:
        first = ", ".join(page.link(run.run, link(run.run)) for run in runs[:RUNS_OF_A_CAUSE])
        others = f" and {len(runs) - RUNS_OF_A_CAUSE} more" if len(runs) > RUNS_OF_A_CAUSE else ""
        rows.append(
            f"<tr><td>{page.pill(runs[0].outcome)}</td><td>{escape(cause)}</td>"
            f'<td data-head="runs">{_behind(str(len(runs)), cause=cause)}</td><td>{first}{others}</td></tr>'
        )
    rest = len(causes) - CAUSES_MAX
    return page.section(
        "Failures",
        page.table(("verdict", "what was found", "runs", "the first of them"), rows, "checks"),
        page.note(f"And {counted(rest, 'other finding')}, each in fewer runs." if rest > 0 else ""),
    )


def _cells(suite: SuiteResult) -> str:
    heads = ("cell", "runs", "not valid", *(measure.words for measure in measures.per_run()))
    rows = []
    for cell in suite.cells:
        runs = [run for run in suite.runs if run.cell == cell]
        bad = sum(1 for run in runs if run.outcome != "valid")
        cells = "".join(f'<td class="number">{_figure(measure, runs, cell)}</td>' for measure in measures.per_run())
        rows.append(
            f'<tr><th scope="row">{escape(cell)}</th>'
            f'<td class="number">{_behind(numeral(len(runs)), cell=cell)}</td>'
            f'<td class="number">{_behind(numeral(bad), cell=cell, valid="no") if bad else "0"}</td>{cells}</tr>'
        )
    return page.section(
        "Cells",
        page.note("With 95 % bootstrap intervals over runs. A number leads to the runs behind it, the worst first."),
        page.table(heads, rows, "cells"),
    )


def _figure(measure: Measure, runs: Sequence[SuiteRun], cell: str) -> str:
    interval = measure.over(runs, resamples=RESAMPLES)
    if interval is None:
        return ""
    value = _behind(measure.written(interval.value), cell=cell, by=measure.name, first=measure.worst)
    return f'{value}<span class="range">{escape(_range(measure, interval))}</span>'


def _range(measure: Measure, interval: Interval) -> str:
    return f"{measure.bare(interval.low)} – {measure.bare(interval.high)}"


def _behind(text: str, **narrowed: str) -> str:
    """A number with a link to the runs it was made from."""
    return page.link(text, f"#runs?{urlencode(narrowed)}")


def _picture(suite: SuiteResult, link: RunLink) -> str:
    figures = [
        page.plot(_scatter(suite, measure, link), f"{measure.words}, {measure.unit}: a point a run; a click opens it.")
        for measure in measures.MEASURES
        if measure.name in _DRAWN and any(measure.value(run) is not None for run in suite.runs)
    ]
    return page.section("Runs at a glance", *figures) if figures else ""


def _scatter(suite: SuiteResult, measure: Measure, link: RunLink) -> Figure:
    """Runs beside each other, in bands of their cells: sorted by value, so that a band is its own distribution."""
    traces = []
    scale = measure.scale
    for number, cell in enumerate(suite.cells):
        values = [(measure.value(run), run) for run in suite.runs if run.cell == cell]
        known = sorted(((value, run) for value, run in values if value is not None), key=lambda it: it[0])
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(cell),
                "x": [round(number + (at + 1) / (len(known) + 1), 4) for at in range(len(known))],
                "y": [round(scale * value, 4) for value, _ in known],
                "text": [escape(f"{run.run}: {run.outcome}") for _, run in known],
                "customdata": [link(run.run) for _, run in known],
                "hovertemplate": "%{text}<br>%{y}<extra></extra>",
                "marker": {
                    "size": [6 if run.outcome == "valid" else 10 for _, run in known],
                    "symbol": ["circle" if run.outcome == "valid" else "x" for _, run in known],
                    "color": NODE_COLOURS[number % len(NODE_COLOURS)],
                    "opacity": 0.75,
                    "line": {"width": 0},
                },
            }
        )
    names = list(suite.cells)
    axis = {
        "tickvals": [number + 0.5 for number in range(len(names))],
        "ticktext": [escape(name) for name in names],
        "range": [0, len(names)],
        "showgrid": False,
        "zeroline": False,
    }
    separators = [
        {"type": "line", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": {"color": GREY, "width": 0.5}}
        for at in range(1, len(names))
    ]
    return {
        "data": traces,
        "layout": {
            "height": 300,
            "margin": {"l": 60, "r": 14, "t": 12, "b": 40},
            "showlegend": False,
            "hovermode": "closest",
            "xaxis": axis,
            "yaxis": {"zeroline": False},
            "shapes": separators,
        },
    }


def _coverage(suite: SuiteResult) -> str:
    kinds: dict[str, list[str]] = {}
    for kind, name, runs, times in suite.coverage:
        kinds.setdefault(kind, []).append(page.number_row(name, (runs, times)))
    parts = [
        page.folded(f"{kind}: {numeral(len(rows))}", page.table((kind, "runs", "times in all"), rows, "numbers"))
        for kind, rows in kinds.items()
    ]
    return page.section("What was exercised", *parts) if parts else ""


def _runs(suite: SuiteResult, link: RunLink) -> str:
    heads = ("verdict", "run", "cell", *(measure.words for measure in measures.per_run()))
    shown = suite.runs[:RUNS_MAX]
    rest = len(suite.runs) - len(shown)
    return page.section(
        "Runs",
        '<p class="narrowed" aria-live="polite"></p>',
        page.table(heads, (_row(run, link) for run in shown), "runs"),
        page.note(f"{numeral(rest)} more, all of them {shown[-1].outcome}, are not listed." if rest > 0 else ""),
        anchor="runs",
    )


def _row(run: SuiteRun, link: RunLink) -> str:
    values = [(measure, measure.value(run)) for measure in measures.per_run()]
    cells = "".join(
        f'<td class="number" data-by="{measure.name}" data-value="{value}">{escape(measure.written(value))}</td>'
        if value is not None
        else "<td></td>"
        for measure, value in values
    )
    causes = "".join(f'<span class="dim">{escape(cause)}</span>' for cause in _first(run.causes))
    valid = "yes" if run.outcome == "valid" else "no"
    return (
        f'<tr data-cell="{escape(run.cell)}" data-valid="{valid}" data-cause="{escape(chr(10).join(run.causes))}">'
        f'<td>{page.pill(run.outcome)}</td><td class="run">{page.link(run.run, link(run.run))}{causes}</td>'
        f"<td>{escape(run.cell)}</td>{cells}</tr>"
    )


def _first(causes: Iterable[str]) -> list[str]:
    return list(causes)[:RUNS_OF_A_CAUSE]
