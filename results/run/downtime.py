"""When processes of nodes had ended, and which faults kept them from starting again.

A process has ended from the time that a fault measured for its node (`down_ns`, and `loss_ns` where it ended one more
by a loss), or that the run has for a process that ended by itself or with its machine, up to the next `node_started` of
that node. An event of the node before that shows
that its process went on.

A fault that strikes a node whose process has ended measures nothing there. It keeps that node down all the same where
it lasts longer than every earlier fault that ended the process: the node does not start before the last of them is
over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import RunEvidence
from workloads.columns import NEVER


@dataclass(frozen=True, slots=True)
class Downtime:
    """A time without a process on one node."""

    node: str
    since_ns: int
    until_ns: int
    """When its next process began; NEVER if none did."""


def downtimes(evidence: RunEvidence) -> tuple[Downtime, ...]:
    """Those of a run by node and time; none where the events of the trace have no order."""
    if not evidence.settings.has_ordered_trace:
        return ()
    ended_ns: dict[str, list[int]] = {}
    for node, since_ns in sorted(_ends(evidence)):
        ended_ns.setdefault(node, []).append(since_ns)
    return tuple(chain.from_iterable(_of_node(evidence.trace, node, times) for node, times in ended_ns.items()))


def down_since(downtimes: Sequence[Downtime], time_ns: int) -> dict[str, int]:
    """The nodes without a process at that time, and since when."""
    return {one.node: one.since_ns for one in downtimes if one.since_ns <= time_ns < one.until_ns}


def _ends(evidence: RunEvidence) -> Iterator[tuple[str, int]]:
    """(node, time in ns) of everything that ended a process, or would have."""
    for row in evidence.faults.to_pylist():
        for node, numbers in _measured(row).items():
            yield from ((node, int(numbers[name])) for name in ("down_ns", "loss_ns") if name in numbers)
    for name in ("crashes", "vanished"):
        yield from ((item["node"], item["time_ns"]) for item in evidence.recovery.get(name) or ())


def _of_node(trace: pa.Table, node: str, ended_ns: Sequence[int]) -> Iterator[Downtime]:
    own = trace.filter(pc.field("node") == node).sort_by("time_ns")
    times, is_start = own["time_ns"].to_numpy(), pc.equal(own["kind"], "node_started").to_numpy(zero_copy_only=False)
    until_ns = -1
    for since_ns in ended_ns:
        following = int(np.searchsorted(times, since_ns))
        went_on = following < len(times) and not is_start[following]
        if since_ns >= until_ns and not went_on:
            until_ns = int(times[following]) if following < len(times) else NEVER
            yield Downtime(node, since_ns, until_ns)


def nodes_kept_down(faults: pa.Table) -> list[tuple[str, ...]]:
    """For each row of FAULTS, the nodes that it kept from starting; none for a fault that measured an effect."""
    rows = faults.to_pylist()
    struck = [_struck(row) for row in rows]
    kept: list[tuple[str, ...]] = []
    for row, own in zip(rows, struck, strict=True):
        nodes = () if row["bit"] else sorted(own)
        kept.append(tuple(node for node in nodes if _outlasts(row, own[node], node, rows, struck)))
    return kept


def _outlasts(
    row: Mapping[str, Any],
    since_ns: int,
    node: str,
    rows: Sequence[Mapping[str, Any]],
    struck: Sequence[dict[str, int]],
) -> bool:
    """Whether a fault is over after all that had ended the process of `node` when it struck, and there is one."""
    until_ns = [
        _ended_ns(other)
        for other, ends in zip(rows, struck, strict=True)
        if ends.get(node, NEVER) < since_ns <= _ended_ns(other)
    ]
    return bool(until_ns) and max(until_ns) < _ended_ns(row)


def _ended_ns(row: Mapping[str, Any]) -> int:
    return NEVER if row["ended_ns"] is None else int(row["ended_ns"])


def _struck(row: Mapping[str, Any]) -> dict[str, int]:
    """Node → when the fault of this row ended its process, or would have."""
    return {node: int(numbers["down_ns"]) for node, numbers in _measured(row).items() if "down_ns" in numbers}


def _measured(row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Node → what the fault of this row measured there."""
    return json.loads(row["evidence"] or "{}").get("nodes") or {}
