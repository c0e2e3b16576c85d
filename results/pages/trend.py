"""The trend of a suite as a page: what changed and since when, a picture a figure, and the nights behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

from results import measures
from results.figures.canvas import NODE_COLOURS, Figure
from results.measures import FAILURES, Measure
from results.number_format import counted
from results.pages import page
from results.trend import Night, Trend, TrendFlag

TICKS_MAX = 6
APART = 0.06
"""Nights between the points of two cells, so that their intervals can be told apart."""
SuiteLink = Callable[[str], str]
"""The address of the page of a suite of this name; empty where it has none."""


def render(trend: Trend, link: SuiteLink) -> str:
    """The whole page, as one file."""
    return page.frame(f"{trend.name} over time · Faultline", body(trend, link))


def body(trend: Trend, link: SuiteLink) -> str:
    """The page's sections."""
    pictures = [
        page.plot(_picture(trend, measure, link), f"{measure.words}, {measure.unit}") for measure in _told(trend)
    ]
    return "\n".join(
        (
            _header(trend),
            _changes(trend.flags, link),
            page.section(
                "Night by night",
                page.note(
                    "Each cell with its 95 % intervals over runs. A diamond is the first night after a change. "
                    "A click opens the suite."
                ),
                *pictures,
            )
            if pictures
            else "",
            *(_nights(trend, cell, nights, link) for cell, nights in trend.cells),
        )
    )


def _header(trend: Trend) -> str:
    worse = sum(flag.worse for flag in trend.flags)
    nights, cells = counted(len(trend.suites), "suite"), counted(len(trend.cells), "cell")
    left_out = [f"left out: {file.line}" for file in trend.damaged]
    notes = page.bullets([*trend.not_compared, *left_out])
    kind = "invalid" if worse else "" if trend.not_compared else "valid"
    return (
        f'<header class="{kind}"><h1>{escape(trend.name)} over time</h1>'
        f"<p>{escape(f'{nights}, {cells}: {trend.sentence()}.')}</p>{notes}</header>"
    )


def _changes(flags: Iterable[TrendFlag], link: SuiteLink) -> str:
    rows = [
        f"<tr><td>{page.pill('invalid', 'worse') if flag.worse else page.pill('valid', 'better')}</td>"
        f"<td>{escape(flag.sentence())}</td>"
        f'<td data-head="since">{page.link(flag.since, link(flag.since))}</td>'
        f'<td data-head="last before">{page.link(flag.until, link(flag.until))}</td></tr>'
        for flag in flags
    ]
    heads = ("", "what changed", "since", "last before")
    return page.section("Changes", page.table(heads, rows, "checks")) if rows else ""


def _told(trend: Trend) -> list[Measure]:
    """The figures that any night has."""
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
        told = [(night, figure) for night in nights if (figure := night.figures.get(measure.name)) is not None]
        changed = [any(flag.measure is measure for flag in trend.flags_at(cell, night.suite.name)) for night, _ in told]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": escape(cell),
                "x": [order[night.suite.name] + APART * (colour - (len(trend.cells) - 1) / 2) for night, _ in told],
                "y": [round(scale * figure.value, 5) for _, figure in told],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [round(scale * (figure.high - figure.value), 5) for _, figure in told],
                    "arrayminus": [round(scale * (figure.value - figure.low), 5) for _, figure in told],
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
                "text": [escape(_label(night)) for night, _ in told],
                "customdata": [link(night.suite.name) for night, _ in told],
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
    """What was run: the commit, or else the version."""
    return night.suite.commit[:10] or night.suite.version


def _nights(trend: Trend, cell: str, nights: tuple[Night, ...], link: SuiteLink) -> str:
    rows = []
    for night in reversed(nights):
        flags = trend.flags_at(cell, night.suite.name)
        cells = "".join(_value(night, measure, flags) for measure in measures.MEASURES)
        rows.append(
            f'<tr><td class="run">{page.link(night.suite.name, link(night.suite.name))}</td>'
            f'<td>{escape(source(night))}</td><td class="number">{len(night.runs)}</td>{cells}</tr>'
        )
    heads = ("suite", "commit", "runs", *(measure.words for measure in measures.MEASURES))
    return page.section(cell, page.table(heads, rows, "nights"))


def _value(night: Night, measure: Measure, flags: list[TrendFlag]) -> str:
    figure = night.figures.get(measure.name)
    if figure is None:
        return "<td></td>"
    if measure is FAILURES:
        text = f"{sum(run.outcome != 'valid' for run in night.runs)}"
    else:
        text = measure.written(figure.value)
    changed = [flag for flag in flags if flag.measure is measure]
    kind = "invalid" if changed and changed[0].worse else "valid"
    mark = f" {page.pill(kind, mark_of(changed[0]))}" if changed else ""
    return f'<td class="number">{escape(text)}{mark}</td>'


def mark_of(flag: TrendFlag) -> str:
    """An arrow the way it went, and the word."""
    arrow = "▲" if flag.change.after > flag.change.before else "▼"
    return f"{arrow} {'worse' if flag.worse else 'better'}"
