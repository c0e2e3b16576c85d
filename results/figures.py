"""The figures of a report, as plain Plotly JSON: `{"data": [...], "layout": {...}}`.

Colours of text and grid are left to the page, which knows whether it is light or dark. Everything that comes from the
run and is shown as text is escaped here, since Plotly reads a little HTML in labels. Large runs are thinned before
they are drawn, never before they are judged: rates and latencies per bin are exact, and of single points and steps
the figure keeps at most POINTS_MAX a series, extremes included.

Time is in seconds of true time since the run began, on one axis for all figures.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import RunEvidence

Figure = dict[str, Any]

POINTS_MAX = 1500
BINS = 120
OUTCOMES = ("ok", "fail", "info")
OUTCOME_COLOURS = {"ok": "#2f9e6e", "fail": "#e0982f", "info": "#8b6fd1"}
FAMILY_COLOURS = {
    "partition": "#d1495b",
    "kill": "#7a5195",
    "power-loss": "#b5541c",
    "pause": "#3d7ea6",
    "clock": "#a08a1c",
    "packets": "#5c8f3e",
    "choreography": "#c26ea8",
    "power-loss-all": "#8c3b12",
    "fsync-lies": "#4f6d7a",
}
OTHER_FAMILY_COLOUR = "#7d8590"
NODE_COLOURS = ("#3b82c4", "#d9762b", "#2f9e6e", "#c2548f", "#8b6fd1", "#a08a1c", "#3aa6a6", "#b04a4a")


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted, in seconds."""

    began: float
    ended: float


def run_end_s(evidence: RunEvidence) -> float:
    """When the last thing recorded happened, in seconds; at least 1, so that an axis can be drawn."""
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


def operations(evidence: RunEvidence) -> Figure:
    """Faults as bars a family, appends a second by outcome, and the latency of appends, one below the other."""
    end = run_end_s(evidence)
    faults = _fault_rows(evidence.faults, end)
    data = [*_fault_bars(faults), *_rates(evidence.history, end), *_latencies(evidence.history)]
    families = list(dict.fromkeys(row["family"] for row in faults))
    rows_px = (24 * max(1, len(families)), 130, 130)
    lanes, rates, latencies = _stacked(rows_px, gap_px=18)
    layout = _layout(height=sum(rows_px) + 18 * 2 + 74)
    layout |= {
        "barmode": "stack",
        "bargap": 0,
        "xaxis": _time_axis(end, anchor="y3"),
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
        "shapes": _fault_bands(faults, rates[1]),
    }
    return {"data": data, "layout": layout}


def partitions(evidence: RunEvidence) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of each partition: who led and who was in sync, how many were, and where logs ended."""
    end = run_end_s(evidence)
    bands = _fault_rows(evidence.faults, end)
    system = pc.starts_with(evidence.trace["topic"], "__")
    trace = evidence.trace.filter(pc.and_not(_kinds(evidence.trace), system))
    if not trace.num_rows:
        return
    places = trace.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([])
    for place in sorted(zip(places["topic"].to_pylist(), places["partition"].to_pylist(), strict=True)):
        topic, partition = place
        chosen = pc.and_(pc.equal(trace["topic"], topic), pc.equal(trace["partition"], partition))
        rows = trace.filter(chosen)
        yield f"{topic}-{partition}", _partition(rows, end, bands, evidence.settings.min_insync_replicas)


_PARTITION_KINDS = (
    "partition_changed",
    "high_watermark",
    "follower_high_watermark",
    "appended",
    "truncated",
    "log_recovered",
)


def _kinds(trace: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(trace["kind"], value_set=pa.array(_PARTITION_KINDS))


# ---- operations ------------------------------------------------------------------------------------------------------


def _rates(history: pa.Table, end: float) -> Iterator[Figure]:
    appends = history.filter(pc.equal(history["kind"], "append"))
    seconds = appends["invoked_ns"].to_numpy() / 1e9
    width = _bin_width(end)
    edges = np.arange(0, end + width, width)
    for outcome in OUTCOMES:
        counts, _ = np.histogram(seconds[_with_outcome(appends, outcome)], bins=edges)
        yield {
            "type": "bar",
            "name": outcome,
            "legendgroup": outcome,
            "x": _rounded(edges[:-1] + width / 2),
            "y": _rounded(counts / width),
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
        kept = _extremes(latency_ms[chosen])
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": outcome,
            "legendgroup": outcome,
            "showlegend": False,
            "x": _rounded(invoked[chosen][kept] / 1e9),
            "y": _rounded(latency_ms[chosen][kept]),
            "yaxis": "y3",
            "marker": {"color": OUTCOME_COLOURS[outcome], "size": 4, "opacity": 0.65},
            "hovertemplate": "%{y} ms " + outcome + "<br>invoked at %{x} s<extra></extra>",
        }


def _with_outcome(history: pa.Table, outcome: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask: np.ndarray[Any, np.dtype[np.bool_]] = pc.equal(history["outcome"], outcome).to_numpy()
    return mask


# ---- faults ----------------------------------------------------------------------------------------------------------


def _fault_rows(faults: pa.Table, end: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for row in faults.sort_by("started_ns").to_pylist():
        began = row["started_ns"] / 1e9
        ended = row["ended_ns"] / 1e9 if row["ended_ns"] is not None else end
        rows.append({**row, "span": Span(began, max(began, ended))})
    return rows


def _fault_bars(faults: Sequence[Mapping[str, Any]]) -> Iterator[Figure]:
    for family in dict.fromkeys(row["family"] for row in faults):
        rows = [row for row in faults if row["family"] == family]
        yield {
            "type": "bar",
            "orientation": "h",
            "showlegend": False,
            "offsetgroup": "faults",
            "base": [round(row["span"].began, 3) for row in rows],
            "x": [round(max(row["span"].ended - row["span"].began, 0.15), 3) for row in rows],
            "y": [escape(family)] * len(rows),
            "width": 0.7,
            "marker": {
                "color": family_colour(family),
                "opacity": [1.0 if row["bit"] else 0.35 for row in rows],
                "line": {"width": 0},
            },
            "customdata": [_fault_hover(row) for row in rows],
            "hovertemplate": "%{customdata}<extra></extra>",
        }


def _fault_hover(row: Mapping[str, Any]) -> str:
    span = row["span"]
    words = [
        f"<b>{escape(row['fault'])}</b> {escape(', '.join(row['nodes']))}",
        f"{span.began:.2f} – {span.ended:.2f} s" + ("" if row["bit"] else ", did not bite"),
    ]
    if row["note"]:
        words.append(escape(row["note"]))
    return "<br>".join(words)


def _fault_bands(faults: Sequence[Mapping[str, Any]], height: float) -> list[Figure]:
    """A translucent band behind the figure a fault; `height` is the share of the figure that the bands fill."""
    return [
        {
            "type": "rect",
            "layer": "below",
            "xref": "x",
            "yref": "paper",
            "x0": round(row["span"].began, 3),
            "x1": round(max(row["span"].ended, row["span"].began + 0.05), 3),
            "y0": 0,
            "y1": height,
            "fillcolor": family_colour(row["family"]),
            "opacity": 0.10,
            "line": {"width": 0},
        }
        for row in faults
    ]


def family_colour(family: str) -> str:
    """The colour of a fault family throughout the report."""
    return FAMILY_COLOURS.get(family, OTHER_FAMILY_COLOUR)


# ---- partitions ------------------------------------------------------------------------------------------------------


def _partition(rows: pa.Table, end: float, faults: Sequence[Mapping[str, Any]], min_isr: int) -> Figure:
    events = rows.sort_by("seq").to_pylist()
    changes = [event for event in events if event["kind"] == "partition_changed"]
    brokers = {int(event["node"][1:]) for event in events if re.fullmatch(r"b\d+", event["node"])}
    replicas = sorted(brokers | {member for change in changes for member in change["members"]})
    names = {replica: f"b{replica}" for replica in replicas}
    most = max(len(replicas), min_isr)
    data: list[Figure] = [*_membership(changes, names, end), _isr_size(changes, end), *_logs(events, names, end)]
    rows_px = (26 * max(2, len(replicas)), 62, 74, 110)
    lanes, size, marks, ends = _stacked(rows_px, gap_px=16)
    layout = _layout(height=sum(rows_px) + 16 * 3 + 74)
    layout |= {
        "xaxis": _time_axis(end, anchor="y4"),
        "yaxis": {
            "domain": lanes,
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [names[replica] for replica in reversed(replicas)],
            "range": [-0.6, len(replicas) - 0.4],
            "showgrid": False,
            "fixedrange": True,
        },
        "yaxis2": {
            "domain": size,
            "title": {"text": "ISR"},
            "range": [-0.2, most + 0.4],
            "tickvals": sorted({0, min_isr, most}),
            "fixedrange": True,
        },
        "yaxis3": {"domain": marks, "title": {"text": "HW"}, "rangemode": "tozero", "nticks": 4},
        "yaxis4": {"domain": ends, "title": {"text": "LEO − HW"}, "nticks": 6},
        "shapes": [
            *_fault_bands(faults, size[1]),
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "yref": "y2",
                "y0": min_isr,
                "y1": min_isr,
                "line": {"color": OTHER_FAMILY_COLOUR, "width": 1, "dash": "dot"},
            },
        ],
    }
    return {"data": data, "layout": layout}


def _membership(changes: Sequence[Mapping[str, Any]], names: Mapping[int, str], end: float) -> Iterator[Figure]:
    """A lane a broker: thin while it is in the ISR, thick while it leads."""
    for number, (replica, name) in enumerate(names.items()):
        colour = NODE_COLOURS[number % len(NODE_COLOURS)]
        for what, width, member in (
            ("in sync", 5, [replica in change["members"] for change in changes]),
            ("leads", 15, [change["leader"] == replica for change in changes]),
        ):
            x: list[float | None] = []
            text: list[str] = []
            for change, after, inside in zip(changes, [*changes[1:], None], member, strict=True):
                if not inside:
                    continue
                hover = f"{name} {what}, leader epoch {change['leader_epoch']}"
                stop = after["time_ns"] / 1e9 if after is not None else end
                x += [round(change["time_ns"] / 1e9, 3), round(stop, 3), None]
                text += [hover, hover, ""]
            yield {
                "type": "scatter",
                "mode": "lines",
                "showlegend": False,
                "x": x,
                "y": [name if value is not None else None for value in x],
                "line": {"color": colour, "width": width},
                "opacity": 1.0 if what == "leads" else 0.45,
                "text": text,
                "hovertemplate": "%{text}<br>%{x} s<extra></extra>",
            }


def _isr_size(changes: Sequence[Mapping[str, Any]], end: float) -> Figure:
    steps = [(change["time_ns"] / 1e9, len(change["members"])) for change in changes]
    if steps:
        steps.append((end, steps[-1][1]))
    return {
        "type": "scatter",
        "mode": "lines",
        "showlegend": False,
        "x": [round(time, 3) for time, _ in steps],
        "y": [size for _, size in steps],
        "yaxis": "y2",
        "line": {"color": OTHER_FAMILY_COLOUR, "width": 2, "shape": "hv"},
        "hovertemplate": "%{y} in sync<extra></extra>",
    }


def _logs(events: Sequence[Mapping[str, Any]], names: Mapping[int, str], end: float) -> Iterator[Figure]:
    """The high watermark as leaders held it, and how far each replica's log end was above or below its maximum."""
    marks = _Steps.of((event["time_ns"], event["high_watermark"]) for event in events if _is(event, "high_watermark"))
    yield _line(marks, end, "high watermark", OTHER_FAMILY_COLOUR) | {
        "yaxis": "y3",
        "fill": "tozeroy",
        "fillcolor": "rgba(125,133,144,0.22)",
    }
    highest = _Steps(marks.times, np.maximum.accumulate(marks.values)) if len(marks.times) else marks
    for number, name in enumerate(names.values()):
        ends = _Steps.of(
            (event["time_ns"], event["offset"] if event["kind"] == "truncated" else event["log_end"])
            for event in events
            if event["node"] == name and _is(event, "appended", "truncated", "log_recovered")
        )
        colour = NODE_COLOURS[number % len(NODE_COLOURS)]
        yield _line(ends.minus(highest), end, name, colour) | {"yaxis": "y4"}


@dataclass(frozen=True, slots=True)
class _Steps:
    """A value over time that holds until it changes. `times` in seconds, ascending."""

    times: np.ndarray[Any, np.dtype[np.float64]]
    values: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, changes: Iterable[tuple[int, int]]) -> _Steps:
        """From (time in ns, value) pairs in order."""
        table = np.asarray(list(changes), dtype=np.int64).reshape(-1, 2)
        return cls(table[:, 0] / 1e9, table[:, 1])

    def minus(self, other: _Steps) -> _Steps:
        """The difference wherever this one has a value; the other counts as 0 before its first."""
        if not len(self.times):
            return self
        times = np.unique(np.concatenate([self.times, other.times[other.times > self.times[0]]]))
        mine = self.values[np.searchsorted(self.times, times, side="right") - 1]
        theirs = np.concatenate([[0], other.values])[np.searchsorted(other.times, times, side="right")]
        return _Steps(times, mine - theirs)


def _line(steps: _Steps, end: float, name: str, colour: str) -> Figure:
    kept = _extremes(steps.values)
    times, values = steps.times[kept], steps.values[kept]
    if len(times):
        times, values = np.append(times, max(end, times[-1])), np.append(values, values[-1])
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": _rounded(times),
        "y": [int(value) for value in values],
        "line": {"color": colour, "width": 1.5, "shape": "hv"},
        "hovertemplate": "%{y} " + name + "<extra></extra>",
    }


def _is(event: Mapping[str, Any], *kinds: str) -> bool:
    return event["kind"] in kinds


# ---- shared ----------------------------------------------------------------------------------------------------------


def _layout(height: int) -> Figure:
    return {
        "height": height,
        "margin": {"l": 78, "r": 14, "t": 30, "b": 44},
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"},
        "hovermode": "closest",
        "showlegend": True,
    }


def _stacked(rows_px: Sequence[int], gap_px: int) -> list[list[float]]:
    """The vertical domain of each row, from the top down, as shares of the drawing's height."""
    whole = sum(rows_px) + gap_px * (len(rows_px) - 1)
    domains, top = [], whole
    for row_px in rows_px:
        domains.append([round(max(0, top - row_px) / whole, 4), round(top / whole, 4)])
        top -= row_px + gap_px
    return domains


def _time_axis(end: float, anchor: str) -> Figure:
    return {"range": [0, round(end, 3)], "title": {"text": "seconds"}, "anchor": anchor, "zeroline": False}


def _bin_width(end: float) -> float:
    """The smallest of 0.5, 1, 2, 5, 10 … seconds that needs no more than BINS bins."""
    width, factors = 0.5, (2.0, 2.0, 2.5)
    for number in range(40):
        if end / width <= BINS:
            break
        width *= factors[number % 3]
    return width


def _extremes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Indices to draw, in order: all when few, else the ends and the least and greatest of each stretch."""
    if len(values) <= POINTS_MAX:
        return np.arange(len(values))
    kept = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(len(values)), POINTS_MAX // 2 - 1):
        kept.add(int(stretch[np.argmin(values[stretch])]))
        kept.add(int(stretch[np.argmax(values[stretch])]))
    return np.asarray(sorted(kept))


def _rounded(values: np.ndarray[Any, Any]) -> list[float]:
    return [round(float(value), 3) for value in values]


def to_json(figure: Figure) -> str:
    """The figure as JSON that may stand inside a script element."""
    text = json.dumps(figure, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
