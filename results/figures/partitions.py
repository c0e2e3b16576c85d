"""The figure of one partition: who led and who was in sync, how many were, the high watermark, and where logs ended."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import RunEvidence
from checkers.tables import of_partition
from results.figures import faults
from results.figures.canvas import (
    GREY,
    NODE_COLOURS,
    Figure,
    extremes,
    lane_line,
    layout_of,
    rounded,
    run_end_s,
    stacked,
    time_axis,
)
from workloads.columns import named_partitions

_KINDS = (
    "partition_changed",
    "high_watermark",
    "follower_high_watermark",
    "appended",
    "truncated",
    "log_recovered",
)


def _kinds(trace: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(trace["kind"], value_set=pa.array(_KINDS))


def draw(evidence: RunEvidence) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of each partition: who led and who was in sync, how many were, and where logs ended."""
    end_s = run_end_s(evidence)
    injected = faults.injected(evidence.faults, end_s)
    system = pc.starts_with(evidence.trace["topic"], "__")
    trace = evidence.trace.filter(pc.and_not(_kinds(evidence.trace), system))
    settings = evidence.settings
    if not trace.num_rows:
        return
    for topic, partition in named_partitions(trace):
        if settings.is_side_topic(topic):
            continue
        rows = of_partition(trace, topic, partition)
        yield f"{topic}-{partition}", _partition(rows, end_s, injected, settings.min_insync_replicas)


def _partition(rows: pa.Table, end_s: float, injected: Sequence[faults.DrawnFault], min_isr: int) -> Figure:
    events = rows.sort_by("seq").to_pylist()
    changes = [event for event in events if event["kind"] == "partition_changed"]
    brokers = {int(event["node"][1:]) for event in events if re.fullmatch(r"b\d+", event["node"])}
    replicas = sorted(brokers | {member for change in changes for member in change["members"]})
    names = {replica: f"b{replica}" for replica in replicas}
    minima = list(_minima(changes, min_isr))
    most = max(len(replicas), *(minimum for _, minimum in minima))
    data: list[Figure] = [
        *_membership(changes, names, end_s),
        _isr_size(changes, end_s),
        _least_isr(minima, end_s),
        *_logs(events, names, end_s),
    ]
    rows_px = (26 * max(2, len(replicas)), 62, 74, 110)
    lanes, size, marks, ends = stacked(rows_px, gap_px=16)
    layout = layout_of(height=sum(rows_px) + 16 * 3 + 74)
    layout |= {
        "xaxis": time_axis(end_s, anchor="y4"),
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
            "tickvals": sorted({0, most, *(minimum for _, minimum in minima)}),
            "fixedrange": True,
        },
        "yaxis3": {"domain": marks, "title": {"text": "HW"}, "rangemode": "tozero", "nticks": 4},
        "yaxis4": {"domain": ends, "title": {"text": "LEO − HW"}, "nticks": 6},
        "shapes": faults.bands(injected, end_s, size[1]),
    }
    return {"data": data, "layout": layout}


def _membership(changes: Sequence[Mapping[str, Any]], names: Mapping[int, str], end_s: float) -> Iterator[Figure]:
    """A lane a broker: thin while it is in the ISR, thick while it leads."""
    for number, (replica, name) in enumerate(names.items()):
        colour = NODE_COLOURS[number % len(NODE_COLOURS)]
        for what, width, member in (
            ("in sync", 5, [replica in change["members"] for change in changes]),
            ("leads", 15, [change["leader"] == replica for change in changes]),
        ):
            spans = []
            for (change, after), inside in zip(zip_longest(changes, changes[1:]), member, strict=True):
                stop = after["time_ns"] / 1e9 if after is not None else end_s
                words = f"{name} {what}, leader epoch {change['leader_epoch']}"
                if inside:
                    spans.append((round(change["time_ns"] / 1e9, 3), round(stop, 3), words))
            yield lane_line(name, spans, colour=colour, width=width, opacity=1.0 if what == "leads" else 0.45)


def _isr_size(changes: Sequence[Mapping[str, Any]], end_s: float) -> Figure:
    steps = [(change["time_ns"] / 1e9, len(change["members"])) for change in changes]
    if steps:
        steps.append((end_s, steps[-1][1]))
    return {
        "type": "scatter",
        "mode": "lines",
        "showlegend": False,
        "x": [round(time, 3) for time, _ in steps],
        "y": [size for _, size in steps],
        "yaxis": "y2",
        "line": {"color": GREY, "width": 2, "shape": "hv"},
        "hovertemplate": "%{y} in sync<extra></extra>",
    }


def _minima(changes: Sequence[Mapping[str, Any]], min_isr: int) -> Iterator[tuple[float, int]]:
    """(seconds, `min.insync.replicas`) from when on it held: the setting of the run, then as the controllers decided by
    it."""
    yield 0.0, min_isr
    for change in changes:
        minimum = json.loads(change["detail"] or "{}").get("min_isr", min_isr)
        if minimum != min_isr:
            min_isr = minimum
            yield change["time_ns"] / 1e9, minimum


def _least_isr(minima: Sequence[tuple[float, int]], end_s: float) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "showlegend": False,
        "x": [round(time, 3) for time, _ in [*minima, (end_s, 0)]],
        "y": [minimum for _, minimum in [*minima, minima[-1]]],
        "yaxis": "y2",
        "line": {"color": GREY, "width": 1, "dash": "dot", "shape": "hv"},
        "hovertemplate": "min.insync.replicas %{y}<extra></extra>",
    }


def _logs(events: Sequence[Mapping[str, Any]], names: Mapping[int, str], end_s: float) -> Iterator[Figure]:
    """The high watermark as leaders held it, and how far each replica's log end was above or below its maximum."""
    marks = _Steps.of((event["time_ns"], event["high_watermark"]) for event in events if _is(event, "high_watermark"))
    yield _line(marks, end_s, "high watermark", GREY) | {
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
        yield _line(ends.minus(highest), end_s, name, colour) | {"yaxis": "y4"}


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


def _line(steps: _Steps, end_s: float, name: str, colour: str) -> Figure:
    indices = extremes(steps.values)
    times, values = steps.times[indices], steps.values[indices]
    if len(times):
        times, values = np.append(times, max(end_s, times[-1])), np.append(values, values[-1])
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": rounded(times),
        "y": [int(value) for value in values],
        "line": {"color": colour, "width": 1.5, "shape": "hv"},
        "hovertemplate": "%{y} " + name + "<extra></extra>",
    }


def _is(event: Mapping[str, Any], *kinds: str) -> bool:
    return event["kind"] in kinds
