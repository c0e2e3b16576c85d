"""Findings in figures: a line where the cause of each story lies, and a dotted one for each thing that checks saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from results.explanation.story import Story
from results.figures.canvas import Figure

RED = "#d1495b"
RED_LINES = "A red line is a cause, a dotted one what a check saw later. "
"""What marks mean, beside a figure that has some."""
MARKS_MAX = 40
"""Lines in one figure; in the order of the stories."""


def marked(figure: Figure, stories: Sequence[Story], place: str = "") -> Figure:
    """The figure with its findings marked: all of them, or those of one partition and of the whole cluster."""
    concerned = [story for story in stories if not (place and story.place) or place in (story.place, *story.elsewhere)]
    marks = [mark for story in concerned for mark in _marks(story)][:MARKS_MAX]
    layout = dict(figure["layout"])
    layout["shapes"] = [*layout.get("shapes", ()), *(_line(time_s, dashed) for time_s, dashed, _ in marks)]
    layout["annotations"] = [*layout.get("annotations", ()), *(_sign(time_s, text) for time_s, _, text in marks)]
    return {**figure, "layout": layout}


def _marks(story: Story) -> Iterator[tuple[float, bool, str]]:
    """(seconds, whether dashed, text) of the cause, and of each finding that is later."""
    if story.time_ns >= 0:
        yield story.time_ns / 1e9, False, f"<b>{escape(story.signature.cause)}</b> {escape(story.place)}"
    for item in story.consequences:
        if item.time_ns > story.time_ns:
            yield item.time_ns / 1e9, True, f"{escape(item.check)}: {escape(item.finding)}"


def _line(time_s: float, dashed: bool) -> Figure:
    return {
        "type": "line",
        "xref": "x",
        "x0": round(time_s, 6),
        "x1": round(time_s, 6),
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": RED, "width": 1, "dash": "dot" if dashed else "solid"},
    }


def _sign(time_s: float, text: str) -> Figure:
    return {
        "xref": "x",
        "x": round(time_s, 6),
        "yref": "paper",
        "y": 1,
        "yanchor": "bottom",
        "text": "✗",
        "showarrow": False,
        "font": {"color": RED, "size": 11},
        "hovertext": f"{text}<br>{time_s:.6f} s",
        "captureevents": True,
    }
