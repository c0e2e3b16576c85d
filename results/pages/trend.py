"""The page of a trend: the changes and their nights, a figure per measure, and the nights of each cell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape

from markupsafe import Markup

from results import measures
from results.figures.canvas import NODE_COLOURS, Figure
from results.measures import FAILURES, Measure
from results.pages import page
from results.trend import Night, Trend, TrendFlag

TICKS_MAX = 6
APART = 0.06
"""Offset between the points of two cells, in nights, so that their intervals stay apart."""
SuiteLink = Callable[[str], str]
"""The address of the page of a suite of this name; empty where it has none."""


def render(trend: Trend, link: SuiteLink) -> str:
    """The whole page, as one file."""
    return page.frame(f"{trend.name} over time · Faultline", body(trend, link))


def body(trend: Trend, link: SuiteLink) -> Markup:
    """The page's sections."""
    worse = any(flag.worse for flag in trend.flags) or bool(trend.missed_mutants)
    return page.render(
        "trend.html",
        trend=trend,
        colour="invalid" if worse else "" if trend.not_compared else "valid",
        notes=[*trend.missed_mutants, *trend.not_compared, *(f"left out: {file.line}" for file in trend.damaged)],
        measures=measures.MEASURES,
        pictures=[(measure, _picture(trend, measure, link)) for measure in _with_values(trend)],
        link=link,
        source=source,
        value=partial(_value, trend),
        mark_of=mark_of,
    )


def _with_values(trend: Trend) -> list[Measure]:
    """The measures that any night has."""
    return [
        measure
        for measure in measures.MEASURES
        if any(measure.name in night.figures for _, nights in trend.cells for night in nights)
    ]


def _picture(trend: Trend, measure: Measure, link: SuiteLink) -> Figure:
    order = {suite.name: at for at, suite in enumerate(trend.suites)}
    scale = measure.scale
    traces = []
    for colour, (cell, nights) in enumerate(trend.cells):
        values = [(night, figure) for night in nights if (figure := night.figures.get(measure.name)) is not None]
        changed = [
            any(flag.measure is measure for flag in trend.flags_at(cell, night.suite.name)) for night, _ in values
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": escape(cell),
                "x": [order[night.suite.name] + APART * (colour - (len(trend.cells) - 1) / 2) for night, _ in values],
                "y": [round(scale * figure.value, 5) for _, figure in values],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [round(scale * (figure.high - figure.value), 5) for _, figure in values],
                    "arrayminus": [round(scale * (figure.value - figure.low), 5) for _, figure in values],
                    "thickness": 1,
                    "width": 0,
                },
                "line": {"width": 1.5},
                "marker": {
                    "size": [13 if it else 6 for it in changed],
                    "symbol": ["diamond" if it else "circle" for it in changed],
                    "color": NODE_COLOURS[colour % len(NODE_COLOURS)],
                    "line": {"width": 0},
                    "opacity": 1,
                },
                "text": [escape(_label(night)) for night, _ in values],
                "customdata": [link(night.suite.name) for night, _ in values],
                "hovertemplate": "%{text}<br>%{y}<extra></extra>",
            }
        )
    step = -(-len(trend.suites) // TICKS_MAX)
    one_year = len({suite.started[:4] for suite in trend.suites}) == 1
    axis = {
        "tickvals": list(range(0, len(trend.suites), step)),
        "ticktext": [escape(suite.started[5 if one_year else 2 : 10]) for suite in trend.suites[::step]],
        "range": [-0.5, len(trend.suites) - 0.5],
        "zeroline": False,
    }
    layout = {
        "height": 230,
        "margin": {"l": 64, "r": 14, "t": 30, "b": 30},
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"},
        "showlegend": len(trend.cells) > 1,
        "hovermode": "closest",
        "xaxis": axis,
        "yaxis": {"zeroline": False},
    }
    return {"data": traces, "layout": layout}


def _label(night: Night) -> str:
    return f"{night.suite.name}, {source(night)}, {len(night.runs)} runs"


def source(night: Night) -> str:
    """The commit of the night, or else the version."""
    return night.suite.commit[:10] or night.suite.version


def _value(trend: Trend, cell: str, night: Night, measure: Measure) -> tuple[str, TrendFlag | None]:
    """The text of a measure in one night, and the flag of a change since that night."""
    interval = night.figures.get(measure.name)
    if interval is None:
        return "", None
    flags = [flag for flag in trend.flags_at(cell, night.suite.name) if flag.measure is measure]
    if measure is FAILURES:
        return str(sum(not run.good for run in night.runs)), next(iter(flags), None)
    return measure.written(interval.value), next(iter(flags), None)


def mark_of(flag: TrendFlag) -> str:
    """An arrow in the direction of the change, and the word."""
    arrow = "▲" if flag.change.after > flag.change.before else "▼"
    return f"{arrow} {'worse' if flag.worse else 'better'}"
