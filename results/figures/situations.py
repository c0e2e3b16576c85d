"""Figures of situations: how many so many runs of a suite have together, and how suites came to theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Literal

from results.figures.canvas import GREY, NODE_COLOURS, Figure
from results.thoroughness import ReachedSituations, Thoroughness

Against = Literal["runs", "cpu"]
RunLink = Callable[[str, str], str]
"""The address of the page of a run: its suite, its name."""
_AXES: Mapping[Against, str] = {"runs": "runs", "cpu": "seconds of processor time"}


def accumulation(thoroughness: Thoroughness) -> Figure:
    """Distinct situations over runs, and the estimate of all that such runs can show."""
    runs, distinct = zip(*thoroughness.curve(), strict=True)
    richness = thoroughness.richness
    ends = [runs[0], runs[-1]]
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": "seen",
                "x": list(runs),
                "y": [round(value, 2) for value in distinct],
                "line": {"color": NODE_COLOURS[0], "width": 2},
                "hovertemplate": "%{x} runs: %{y} situations<extra></extra>",
            },
            *(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "x": ends,
                    "y": [round(value, 2)] * 2,
                    "line": {"color": GREY, "width": 1, "dash": dash},
                    "hovertemplate": f"{name}: %{{y}}<extra></extra>",
                }
                for name, value, dash in (
                    ("can be shown, at least", richness.value, "dash"),
                    ("lower bound", richness.low, "dot"),
                    ("upper bound", richness.high, "dot"),
                )
            ),
        ],
        "layout": {
            "height": 340,
            "margin": {"l": 60, "r": 14, "t": 12, "b": 40},
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.2, "yanchor": "top"},
            "showlegend": True,
            "hovermode": "closest",
            "xaxis": {"title": {"text": "runs"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "situations"}, "rangemode": "tozero", "zeroline": False},
        },
    }


def over_time(suites: Mapping[str, ReachedSituations], against: Against, link: RunLink) -> Figure:
    """Situations that each suite had reached after so many runs, or so much processor time; a line a suite."""
    traces = []
    for number, (suite, reached) in enumerate(suites.items()):
        points = reached.curve()
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escape(suite),
                "x": [0, *(runs if against == "runs" else round(cpu_s, 1) for runs, cpu_s, _ in points)],
                "y": [0, *(distinct for _, _, distinct in points)],
                "text": ["", *(f"{runs} runs, {cpu_s:.1f} s" for runs, cpu_s, _ in points)],
                "customdata": ["", *(link(suite, reached.runs[runs - 1].run) for runs, _, _ in points)],
                "line": {"color": NODE_COLOURS[number % len(NODE_COLOURS)], "width": 2},
                "hovertemplate": f"{escape(suite)}<br>%{{text}}: %{{y}} situations<extra></extra>",
            }
        )
    return {
        "data": traces,
        "layout": {
            "height": 300 + (20 * len(suites) if len(suites) > 1 else 0),  # of a narrow legend each suite is a row
            "margin": {"l": 60, "r": 14, "t": 12, "b": 40},
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.2, "yanchor": "top"},
            "showlegend": len(suites) > 1,
            "hovermode": "closest",
            "meta": {"alone": True},
            "xaxis": {"title": {"text": _AXES[against]}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "situations"}, "rangemode": "tozero", "zeroline": False},
        },
    }
