"""Shared parts of the figures: colours, axes, thinning.

A figure is plain Plotly JSON, `{"data": [...], "layout": {...}}`. Colours of text and grid are left to the page, which
knows whether it is light or dark. Everything that comes from the run and is shown as text is escaped by whoever draws
it, since Plotly reads a little HTML in labels.

Large runs are thinned before they are drawn, never before they are checked: rates are exact, and of single points and
steps a figure keeps at most POINTS_MAX a series, extremes included. Time is in seconds of true time since the run
began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from checkers.evidence import RunEvidence

Figure = dict[str, Any]

POINTS_MAX = 1500
GREY = "#7d8590"
NODE_COLOURS = ("#3b82c4", "#d9762b", "#2f9e6e", "#c2548f", "#8b6fd1", "#a08a1c", "#3aa6a6", "#b04a4a")


def run_end_s(evidence: RunEvidence) -> float:
    """Time of the last recorded event, in seconds; at least 1, so that an axis can be drawn."""
    times = [
        pc.max(column).as_py() or 0
        for column in (
            evidence.history["invoked_ns"],
            evidence.history["completed_ns"],
            evidence.trace["time_ns"],
            evidence.faults["started_ns"],
            evidence.faults["ended_ns"],
        )
    ]
    return max(1.0, max(times) / 1e9)


def layout_of(height: int) -> Figure:
    """The common base of figure layouts."""
    return {
        "height": height,
        "margin": {"l": 100, "r": 14, "t": 30, "b": 44},
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"},
        "hovermode": "closest",
        "showlegend": True,
    }


def stacked(rows_px: Sequence[int], gap_px: int) -> list[list[float]]:
    """The vertical domain of each row, from the top down, as shares of the drawing's height."""
    whole = sum(rows_px) + gap_px * (len(rows_px) - 1)
    domains, top = [], whole
    for row_px in rows_px:
        domains.append([round(max(0, top - row_px) / whole, 4), round(top / whole, 4)])
        top -= row_px + gap_px
    return domains


def time_axis(end_s: float, anchor: str) -> Figure:
    """The axis all figures have in common, drawn below the y axis `anchor`."""
    return {"range": [0, round(end_s, 3)], "title": {"text": "seconds"}, "anchor": anchor, "zeroline": False}


def lane_line(
    lane: str, spans: Iterable[tuple[float, float, str]], *, colour: str, width: int, opacity: float
) -> Figure:
    """A piece of the lane's line for each span: where it begins and ends, in seconds, and its words."""
    x: list[float | None] = []
    text: list[str] = []
    for begin_s, end_s, words in spans:
        x += [begin_s, end_s, None]
        text += [words, words, ""]
    return {
        "type": "scatter",
        "mode": "lines",
        "showlegend": False,
        "x": x,
        "y": [lane if value is not None else None for value in x],
        "line": {"color": colour, "width": width},
        "opacity": opacity,
        "text": text,
        "hovertemplate": "%{text}<br>%{x} s<extra></extra>",
    }


def extremes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Indices to draw, in order: all when few, else the ends and the least and greatest of each stretch."""
    if len(values) <= POINTS_MAX:
        return np.arange(len(values))
    indices = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(len(values)), POINTS_MAX // 2 - 1):
        indices.add(int(stretch[np.argmin(values[stretch])]))
        indices.add(int(stretch[np.argmax(values[stretch])]))
    return np.asarray(sorted(indices))


def rounded(values: np.ndarray[Any, Any]) -> list[float]:
    """To three digits: a millisecond on the axis of time."""
    return [round(float(value), 3) for value in values]


def to_json(figure: Figure) -> str:
    """The figure as JSON that may stand inside a script element."""
    text = json.dumps(figure, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
