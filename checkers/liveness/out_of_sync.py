"""Why a replica is out of the ISR at the end of a run, from the protocol trace.

Each broker that the controllers' last decision about a partition leaves out of the ISR gets one line: the first of

1. its process has not registered since it started;
2. the controllers have fenced it;
3. its leader answers its fetches with a point of divergence, again and again the same one;
4. its leader proposes it for the ISR and is refused;
5. it has appended nothing for a while, or lags behind.

This explains a finding of `checkers.liveness.checker`; it finds nothing by itself.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_REPEATED = 3
"""So many equal answers are no progress."""

_KINDS = (
    "partition_changed", "node_started", "registered", "broker_fenced", "broker_unfenced", "isr_rejected",
    "diverging", "appended", "became_leader", "became_follower", "log_recovered", "truncated",
)  # fmt: skip

_Place = tuple[str, int]


def reasons(trace: pa.Table) -> list[str]:
    """A line for each replica that is out of the ISR at the end of `trace` (schema TRACE)."""
    rows = trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_KINDS))).sort_by("seq")
    changes: dict[_Place, dict[str, Any]] = {}
    nodes: dict[str, dict[str, Any]] = {}
    fenced: dict[int, dict[str, Any]] = {}
    diverging: Counter[tuple[_Place, int, int, str]] = Counter()
    refused: Counter[tuple[_Place, int, str, str]] = Counter()
    ends: dict[tuple[_Place, str], tuple[int, int]] = {}
    for row in rows.to_pylist():
        place, kind = (row["topic"], row["partition"]), row["kind"]
        if kind == "partition_changed":
            changes[place] = row
        elif kind in ("node_started", "registered"):
            nodes[row["node"]] = row
        elif kind in ("broker_fenced", "broker_unfenced"):
            fenced[row["broker"]] = row
        elif kind == "diverging":
            diverging[place, _detail(row).get("replica", -1), row["offset"], row["node"]] += 1
        elif kind == "isr_rejected":
            for member in row["members"]:
                refused[place, member, str(_detail(row).get("error")), row["node"]] += 1
        else:
            ends[place, row["node"]] = row["time_ns"], row["offset"] if kind == "truncated" else row["log_end"]
    lines = []
    for place, change in sorted(changes.items()):
        for replica in sorted(set(_detail(change).get("replicas") or ()) - set(change["members"])):
            node, of = f"b{replica}", f"{place[0]}-{place[1]}"
            lines.append(
                _life(node, nodes.get(node), fenced.get(replica))
                or _repeated(node, of, place, replica, diverging, refused)
                or _behind(node, of, ends.get((place, node)), ends.get((place, f"b{change['leader']}")))
            )
    return list(dict.fromkeys(lines))


def _life(node: str, last: Mapping[str, Any] | None, fencing: Mapping[str, Any] | None) -> str:
    if last is not None and last["kind"] == "node_started":
        return f"{node}: has not registered since it started at {last['time_ns'] / 1e9:.3f} s"
    if fencing is not None and fencing["kind"] == "broker_fenced":
        reason = _detail(fencing).get("reason", "no reason is given")
        return f"{node}: fenced by the controllers since {fencing['time_ns'] / 1e9:.3f} s ({reason})"
    return ""


def _repeated(
    node: str,
    of: str,
    place: _Place,
    replica: int,
    diverging: Counter[tuple[_Place, int, int, str]],
    refused: Counter[tuple[_Place, int, str, str]],
) -> str:
    answers = [(count, key) for key, count in diverging.items() if key[:2] == (place, replica)]
    if answers and max(answers)[0] >= _REPEATED:
        count, (_, _, offset, leader) = max(answers)
        return f"{node}: {count:,} diverging answers at one offset, {offset} of {of}, from {leader}"
    proposals = [(count, key) for key, count in refused.items() if key[:2] == (place, replica)]
    if proposals and max(proposals)[0] >= _REPEATED:
        count, (_, _, error, leader) = max(proposals)
        return f"{node}: {leader} proposed it for the ISR of {of} and was refused {count:,} times ({error})"
    return ""


def _behind(node: str, of: str, own: tuple[int, int] | None, leaders: tuple[int, int] | None) -> str:
    if own is None:
        return f"{node}: the trace has no event of its log of {of}"
    line = f"{node}: its log of {of} ends at {own[1]:,} and last changed at {own[0] / 1e9:.3f} s"
    return line + (f"; its leader's ends at {leaders[1]:,}" if leaders is not None else "; there is no leader")


def _detail(row: Mapping[str, Any]) -> dict[str, Any]:
    detail: dict[str, Any] = json.loads(row["detail"] or "{}")
    return detail
