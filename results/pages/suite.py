"""The page of a suite: failures and their causes, the measures of each cell, and the runs behind every number.

Its order: outcomes; failures by finding; one line per cell, with 95 % intervals over its runs; a figure of the runs;
situations of the protocol; coverage; the list of runs. A number links to the runs it was computed from: the list of
runs, narrowed down by the page's script. A run links to its own page, where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from markupsafe import Markup

from results import measures
from results.figures.canvas import GREY, NODE_COLOURS, Figure
from results.figures.situations import accumulation
from results.measures import Measure
from results.number_format import counted, numeral
from results.pages import page
from results.suites import RESAMPLES, SuiteResult

RunLink = Callable[[str], str]
"""The address of the page of a run of this name; empty where it has none."""
RUNS_MAX = 5000
CAUSES_MAX = 20
RUNS_OF_A_CAUSE = 5
_DRAWN = ("available", "p99")
_BAND_PX = 60
"""Height of a cell in a figure."""
_POINTS_SHARE = 0.7
"""Share of a band for its points; the name of the cell is above them."""


def render(suite: SuiteResult, link: RunLink) -> str:
    """The whole page, as one file."""
    return page.frame(f"{suite.name} · Faultline", body(suite, link))


def body(suite: SuiteResult, link: RunLink, situations: str = "") -> Markup:
    """The page's sections; `situations` is the address of the page of its situations, where it has one."""
    outcomes = suite.outcomes()
    worst = (
        "invalid" if suite.missed_mutants else "valid" if all(run.good for run in suite.runs) else next(iter(outcomes))
    )
    causes, signatures = list(suite.causes().items()), list(suite.signatures().items())
    return page.render(
        "suite.html",
        suite=suite,
        worst=worst,
        colour="invalid" if worst == "failed" else worst.replace(" ", "-"),
        sentence=_sentence(suite, outcomes),
        left_out=[f"left out: {file.line}" for file in suite.damaged],
        facts={
            "started": suite.started.replace("T", " ").replace("+00:00", " UTC"),
            "faultline": suite.version,
            "commit": suite.commit[:12],
        },
        signatures=signatures[:CAUSES_MAX],
        other_signatures=len(signatures) - CAUSES_MAX,
        causes=causes[:CAUSES_MAX],
        other_causes=len(causes) - CAUSES_MAX,
        runs_of_a_cause=RUNS_OF_A_CAUSE,
        measures=measures.per_run(),
        cells=[_cell(suite, cell) for cell in suite.cells],
        pictures=_pictures(suite, link),
        situations=situations,
        accumulation=suite.thoroughness and accumulation(suite.thoroughness),
        coverage=_coverage(suite),
        runs=suite.runs[:RUNS_MAX],
        runs_left_out=len(suite.runs) - RUNS_MAX,
        link=link,
    )


def _sentence(suite: SuiteResult, outcomes: Mapping[str, int]) -> str:
    counts = ", ".join(f"{numeral(count)} {name}" for name, count in outcomes.items())
    sentence = f"{counted(len(suite.runs), 'run')} of {counted(len(suite.cells), 'cell')}: {counts}."
    missing = suite.planned - len(suite.runs)
    if suite.mutants:
        found = len(suite.mutants) - len(suite.missed_mutants)
        sentence += f" {numeral(found)} of {counted(len(suite.mutants), 'mutant')} found"
        sentence += f"; not found: {', '.join(suite.missed_mutants)}." if suite.missed_mutants else "."
    return f"{sentence} {numeral(missing)} more were planned and are missing." if missing else sentence


def _cell(suite: SuiteResult, cell: str) -> dict[str, Any]:
    runs = [run for run in suite.runs if run.cell == cell]
    return {
        "name": cell,
        "runs": len(runs),
        "bad": sum(not run.good for run in runs),
        "figures": [(measure, measure.over(runs, resamples=RESAMPLES)) for measure in measures.per_run()],
    }


def _coverage(suite: SuiteResult) -> dict[str, list[tuple[str, int, int]]]:
    kinds: dict[str, list[tuple[str, int, int]]] = {}
    for kind, name, runs, times in suite.coverage:
        kinds.setdefault(kind, []).append((name, runs, times))
    return kinds


def _pictures(suite: SuiteResult, link: RunLink) -> list[tuple[Measure, Figure]]:
    return [
        (measure, _scatter(suite, measure, link))
        for measure in measures.per_run()
        if measure.name in _DRAWN and any(measure.value(run) is not None for run in suite.runs)
    ]


def _scatter(suite: SuiteResult, measure: Measure, link: RunLink) -> Figure:
    """One band of points per cell, below its name; sorted by value, so that each band shows a distribution."""
    traces, names = [], []
    scale = measure.scale
    for number, cell in enumerate(suite.cells):
        values = [(measure.value(run), run) for run in suite.runs if run.cell == cell]
        known = sorted(((value, run) for value, run in values if value is not None), key=lambda it: it[0])
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": escape(cell),
                "x": [round(scale * value, 4) for value, _ in known],
                "y": [round(number + 1 - _POINTS_SHARE * (at + 1) / (len(known) + 1), 4) for at in range(len(known))],
                "text": [escape(f"{run.run}: {run.outcome}") for _, run in known],
                "customdata": [link(run.run) for _, run in known],
                "hovertemplate": "%{text}<br>%{x}<extra></extra>",
                "marker": {
                    "size": [6 if run.good else 10 for _, run in known],
                    "symbol": ["circle" if run.good else "x" for _, run in known],
                    "color": NODE_COLOURS[number % len(NODE_COLOURS)],
                    "opacity": 0.75,
                    "line": {"width": 0},
                },
            }
        )
        names.append(
            {
                "xref": "paper",
                "x": 0,
                "xanchor": "left",
                "y": number,
                "yanchor": "top",
                "text": escape(cell),
                "showarrow": False,
            }
        )
    separators = [
        {"type": "line", "xref": "paper", "y0": at, "y1": at, "x0": 0, "x1": 1, "line": {"color": GREY, "width": 0.5}}
        for at in range(1, len(names))
    ]
    return {
        "data": traces,
        "layout": {
            "height": 64 + _BAND_PX * len(names),
            "margin": {"l": 14, "r": 14, "t": 12, "b": 52},
            "showlegend": False,
            "hovermode": "closest",
            "meta": {"alone": True},
            "xaxis": {"zeroline": False, "title": {"text": measure.unit}},
            "yaxis": {
                "range": [len(names), 0],
                "showticklabels": False,
                "showgrid": False,
                "zeroline": False,
                "fixedrange": True,
            },
            "annotations": names,
            "shapes": separators,
        },
    }
