"""Faults in figures: a bar a fault, and bands behind whatever happened meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import pyarrow as pa

from nemesis.registry import FAMILIES
from results.figures.canvas import GREY, Figure
from results.run.downtime import nodes_kept_down

BAND_SHARE_MAX = 0.6
"""A fault family that is active for more of the run than this has no bands: they would only dim everything."""
_SHORTEST_BAR_S = 0.15
_SHORTEST_BAND_S = 0.05


@dataclass(frozen=True, slots=True)
class DrawnFault:
    """A fault that was injected, with its times in seconds."""

    fault: str
    family: str
    nodes: tuple[str, ...]
    began_s: float
    ended_s: float
    took_effect: bool
    note: str
    kept_down: tuple[str, ...] = ()
    """The nodes that were down already, and that it kept from starting."""

    @property
    def had_effect(self) -> bool:
        """Whether it measured an effect, or kept a node down."""
        return self.took_effect or bool(self.kept_down)


def injected(faults: pa.Table, end_s: float) -> list[DrawnFault]:
    """The rows of FAULTS in order of time; those that never ended last until `end_s`."""
    rows = faults.sort_by("started_ns")
    return [
        DrawnFault(
            fault=row["fault"],
            family=row["family"],
            nodes=tuple(row["nodes"]),
            began_s=row["started_ns"] / 1e9,
            ended_s=row["ended_ns"] / 1e9 if row["ended_ns"] is not None else max(end_s, row["started_ns"] / 1e9),
            took_effect=row["bit"],
            note=row["note"],
            kept_down=kept_down,
        )
        for row, kept_down in zip(rows.to_pylist(), nodes_kept_down(rows), strict=True)
    ]


def families(faults: Sequence[DrawnFault]) -> list[str]:
    """The families that took part, in order of their first fault."""
    return list(dict.fromkeys(fault.family for fault in faults))


def family_colour(family: str) -> str:
    """The colour of a fault family throughout the report."""
    declared = FAMILIES.get(family)
    return GREY if declared is None else declared.colour


def bars(faults: Sequence[DrawnFault]) -> Iterator[Figure]:
    """A trace a family, its faults as bars along the time axis; pale where a fault had no effect."""
    for family in families(faults):
        chosen = [fault for fault in faults if fault.family == family]
        yield {
            "type": "bar",
            "orientation": "h",
            "showlegend": False,
            "offsetgroup": "faults",
            "base": [round(fault.began_s, 3) for fault in chosen],
            "x": [round(max(fault.ended_s - fault.began_s, _SHORTEST_BAR_S), 3) for fault in chosen],
            "y": [escape(family)] * len(chosen),
            "width": 0.7,
            "marker": {
                "color": family_colour(family),
                "opacity": [1.0 if fault.had_effect else 0.35 for fault in chosen],
                "line": {"width": 0},
            },
            "hovertext": [_hover(fault) for fault in chosen],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }


def bands(faults: Sequence[DrawnFault], end_s: float, height: float) -> list[Figure]:
    """Translucent bands for when each family was active; `height` is the share of the figure that they fill."""
    shapes = []
    for family in families(faults):
        spans = _united([(fault.began_s, fault.ended_s) for fault in faults if fault.family == family])
        if sum(ended - began for began, ended in spans) > BAND_SHARE_MAX * end_s:
            continue
        shapes += [
            {
                "type": "rect",
                "layer": "below",
                "xref": "x",
                "yref": "paper",
                "x0": round(began, 3),
                "x1": round(max(ended, began + _SHORTEST_BAND_S), 3),
                "y0": 0,
                "y1": height,
                "fillcolor": family_colour(family),
                "opacity": 0.12,
                "line": {"width": 0},
            }
            for began, ended in spans
        ]
    return shapes


def _united(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time in spans that do not overlap."""
    united: list[tuple[float, float]] = []
    for began, ended in sorted(spans):
        if united and began <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], ended))
        else:
            united.append((began, ended))
    return united


def _hover(fault: DrawnFault) -> str:
    kept = f", kept {', '.join(fault.kept_down)} down" if fault.kept_down else ", had no effect"
    words = [
        f"<b>{escape(fault.fault)}</b> {escape(', '.join(fault.nodes))}",
        f"{fault.began_s:.2f} – {fault.ended_s:.2f} s" + ("" if fault.took_effect else escape(kept)),
    ]
    if fault.note:
        words.append(escape(fault.note))
    return "<br>".join(words)
