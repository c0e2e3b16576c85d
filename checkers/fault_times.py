"""When faults may have held on nodes, by what was recorded of them.

A fault counts from when it holds on all of its nodes, so it may have held on the first of them before; and processes
that it stopped catch up after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from workloads.columns import NEVER

_OF_LINKS: Final = ("partition", "packets")
"""Families of faults that leave every process running."""
_STALL_MARGIN_NS: Final = 2_000_000_000
"""As long before the recorded time a fault may have begun to act, and after it a process may still be catching up."""
_INJECTION_NS_MIN: Final = 5_000_000_000
"""A fault may have held on the first of its nodes so long before it held on all; longer, where that was measured."""


def injected_ns(fault: Mapping[str, Any]) -> int:
    """The earliest time at which the fault of this row may have held on some node: it counts from when it holds on all
    of them."""
    injection_s = json.loads(fault["evidence"] or "{}").get("injection_seconds", 0)
    return int(fault["started_ns"]) - max(_INJECTION_NS_MIN, round(injection_s * 1e9))


def held_since(faults: pa.Table, family: str) -> dict[str, int]:
    """Node → the earliest time in ns at which a fault of this family may have held on it."""
    since: dict[str, int] = {}
    for row in faults.filter(pc.equal(faults["family"], family)).to_pylist():
        for node in row["nodes"]:
            since[node] = min(injected_ns(row), since.get(node, NEVER))
    return since


class FaultTimes(NamedTuple):
    """When faults of one kind may have held."""

    times: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({})
    """Node → from when to when (ns), by each fault."""

    def between(self, node: str, since_ns: int, until_ns: int) -> bool:
        """Whether one may have held on the node at some time between these."""
        return bool(self.ends_between(node, since_ns, until_ns))

    def ends_between(self, node: str, since_ns: int, until_ns: int) -> list[int]:
        """When the faults ended that may have held on the node between these times."""
        times = self.times.get(node, ())
        return [ended_ns for began_ns, ended_ns in times if began_ns <= until_ns and since_ns <= ended_ns]


def wrong_timers(faults: pa.Table) -> FaultTimes:
    """When timers may have run wrong: by the faults that change these, not wall clocks alone. A clock that was set back
    stands still until it has caught up, also after the fault."""
    struck: dict[str, list[dict[str, Any]]] = {}
    for row in faults.filter(pc.equal(faults["family"], "clock")).sort_by("started_ns").to_pylist():
        for node in row["nodes"]:
            struck.setdefault(node, []).append(row)
    times: dict[str, list[tuple[int, int]]] = {}
    for node, rows in struck.items():
        back_ns = sum(max(0, -round(json.loads(row["detail"] or "{}").get("jump_ms", 0) * 1e6)) for row in rows)
        for began_ns, ended_ns in map(_held, filter(_changes_timers, rows)):
            times.setdefault(node, []).append((began_ns - _STALL_MARGIN_NS, ended_ns + back_ns + _STALL_MARGIN_NS))
    return FaultTimes(times)


def stalls(faults: pa.Table) -> FaultTimes:
    """When processes may not have run: by every fault but those of links and of wall clocks alone."""
    times = {node: [*of_clock] for node, of_clock in wrong_timers(faults).times.items()}
    for row in faults.select(["family", "nodes", "started_ns", "ended_ns"]).to_pylist():
        for node in row["nodes"] if row["family"] not in (*_OF_LINKS, "clock") else ():
            times.setdefault(node, []).append(_held(row, _STALL_MARGIN_NS))
    return FaultTimes(times)


def _held(fault: Mapping[str, Any], margin_ns: int = 0) -> tuple[int, int]:
    """From when to when the fault held, and so long before and after."""
    ended_ns = NEVER if fault["ended_ns"] is None else fault["ended_ns"]
    return fault["started_ns"] - margin_ns, ended_ns + margin_ns


def _changes_timers(fault: Mapping[str, Any]) -> bool:
    """Whether a fault of the family `clock` changes more than wall clocks."""
    detail = json.loads(fault["detail"] or "{}")
    return not detail.get("wall_jump_ms") or bool(detail.get("jump_ms")) or detail.get("rate", 1) != 1
