"""The figure of a run as its clients saw it: faults, appends a second by outcome, and how long appends took."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import RunEvidence
from results.figures import faults
from results.figures.canvas import Figure, extremes, layout_of, rounded, run_end_s, stacked, time_axis

BINS = 120
OUTCOMES = ("ok", "fail", "info")
OUTCOME_COLOURS = {"ok": "#2f9e6e", "fail": "#e0982f", "info": "#8b6fd1"}


def draw(evidence: RunEvidence) -> Figure:
    """Faults as bars a family, appends a second by outcome, and the latency of appends, one below the other."""
    end_s = run_end_s(evidence)
    injected = faults.injected(evidence.faults, end_s)
    families = faults.families(injected)
    data = [*faults.bars(injected), *_rates(evidence.history, end_s), *_latencies(evidence.history)]
    rows_px = (24 * max(1, len(families)), 130, 130)
    lanes, rates, latencies = stacked(rows_px, gap_px=18)
    layout = layout_of(height=sum(rows_px) + 18 * 2 + 74)
    layout |= {
        "barmode": "stack",
        "bargap": 0,
        "xaxis": time_axis(end_s, anchor="y3"),
        "yaxis": {
            "domain": lanes,
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [escape(family) for family in reversed(families)],
            "showgrid": False,
            "fixedrange": True,
        },
        "yaxis2": {
            "domain": rates,
            "title": {"text": "appends / s"},
            "rangemode": "tozero",
            "fixedrange": True,
        },
        "yaxis3": {
            "domain": latencies,
            "title": {"text": "latency, ms"},
            "type": "log",
            "dtick": 1,
            "exponentformat": "none",
            "fixedrange": True,
        },
        "shapes": faults.bands(injected, end_s, rates[1]),
    }
    return {"data": data, "layout": layout}


def _rates(history: pa.Table, end_s: float) -> Iterator[Figure]:
    appends = history.filter(pc.equal(history["kind"], "append"))
    seconds = appends["invoked_ns"].to_numpy() / 1e9
    width = _bin_width(end_s)
    edges = np.arange(0, end_s + width, width)
    for outcome in OUTCOMES:
        counts, _ = np.histogram(seconds[_with_outcome(appends, outcome)], bins=edges)
        yield {
            "type": "bar",
            "name": outcome,
            "legendgroup": outcome,
            "x": rounded(edges[:-1] + width / 2),
            "y": rounded(counts / width),
            "width": width,
            "yaxis": "y2",
            "marker": {"color": OUTCOME_COLOURS[outcome], "line": {"width": 0}},
            "hovertemplate": "%{y} / s " + outcome + "<extra></extra>",
        }


def _latencies(history: pa.Table) -> Iterator[Figure]:
    appends = history.filter(pc.and_(pc.equal(history["kind"], "append"), pc.is_valid(history["completed_ns"])))
    invoked = appends["invoked_ns"].to_numpy()
    latency_ms = np.maximum((appends["completed_ns"].to_numpy() - invoked) / 1e6, 1e-3)
    for outcome in OUTCOMES:
        chosen = np.flatnonzero(_with_outcome(appends, outcome))
        indices = extremes(latency_ms[chosen])
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": outcome,
            "legendgroup": outcome,
            "showlegend": False,
            "x": rounded(invoked[chosen][indices] / 1e9),
            "y": rounded(latency_ms[chosen][indices]),
            "yaxis": "y3",
            "marker": {"color": OUTCOME_COLOURS[outcome], "size": 4, "opacity": 0.65},
            "hovertemplate": "%{y} ms " + outcome + "<br>invoked at %{x} s<extra></extra>",
        }


def _with_outcome(history: pa.Table, outcome: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask: np.ndarray[Any, np.dtype[np.bool_]] = pc.equal(history["outcome"], outcome).to_numpy()
    return mask


def _bin_width(end_s: float) -> float:
    """The smallest of 0.5, 1, 2, 5, 10 … seconds that needs no more than BINS bins."""
    width, factors = 0.5, (2.0, 2.0, 2.5)
    for number in range(40):
        if end_s / width <= BINS:
            break
        width *= factors[number % 3]
    return width
