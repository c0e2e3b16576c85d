"""The figure of a suite's situations: how many so many of its runs have together."""

from __future__ import annotations

from results.figures.canvas import GREY, NODE_COLOURS, Figure
from results.thoroughness import Thoroughness


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
            "height": 300,
            "margin": {"l": 60, "r": 14, "t": 12, "b": 40},
            "showlegend": True,
            "hovermode": "closest",
            "xaxis": {"title": {"text": "runs"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "situations"}, "rangemode": "tozero", "zeroline": False},
        },
    }
