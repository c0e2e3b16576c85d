"""Broken steps of what group coordinators leave undone at the end of a run: a write that is never ended, and a group
that waits for nothing. The conditions are those of `standing_steps`: faults are over, and every deadline of a group
passes while members send heartbeats, so that a group whose state lasts is one that its coordinator does not carry on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.fault_model import OFFSETS_TOPIC
from checkers.tables import TraceRow, trace_rows
from results.explanation.replay import PartitionReplay
from results.explanation.standing.partitions import STANDS_NS
from results.explanation.story import Step, StepKind

_KINDS: Final = ("group_changed", "group_storing", "group_stored", "generation_begun")


@dataclass(slots=True)
class _WaitingGroup:
    """One group, as its coordinator has it."""

    changed: TraceRow | None = None
    since_ns: int = -1
    """Since when it waits for the same, whoever joined and left meanwhile."""
    storing: TraceRow | None = None
    """The record whose commit it waits for."""
    storing_detail: dict[str, Any] | None = None


def group_standing_steps(trace: pa.Table, end_ns: int) -> Iterator[Step]:
    """What coordinators leave undone at the end of a run, `end_ns`."""
    groups: dict[str, _WaitingGroup] = {}
    logs: dict[int, PartitionReplay] = {}
    for event in trace_rows(trace.filter(pc.field("topic") == OFFSETS_TOPIC)):
        if event.kind not in _KINDS:
            logs.setdefault(event.partition, PartitionReplay()).apply(event)
            continue
        detail = event.details()
        group = groups.setdefault(detail["group"], _WaitingGroup())
        if event.kind == "group_changed":
            if group.changed is None or _wait(group.changed) != _wait(event):
                group.since_ns = event.time_ns
            group.changed = event
        elif event.kind == "group_storing":
            group.storing, group.storing_detail = event, detail
        elif event.kind == "group_stored" and group.storing is not None and _same(group.storing_detail, detail):
            group.storing = None
    for name, group in sorted(groups.items()):
        changed = group.changed
        if changed is None or end_ns - group.since_ns < STANDS_NS:
            continue
        coordinator = logs.setdefault(changed.partition, PartitionReplay()).replica(changed.node)
        if coordinator.role == "leader" and coordinator.leader_epoch == changed.leader_epoch:
            lasts_s = (end_ns - group.since_ns) / 1e9
            watermark = max(coordinator.high_watermark, changed.high_watermark)
            yield from _stands(name, group, changed, watermark, lasts_s)


def _wait(changed: TraceRow) -> tuple[object, ...]:
    """What a group waits for, and at which coordinator."""
    detail = changed.details()
    return changed.node, changed.leader_epoch, detail["state"], detail["generation"], detail["storing"]


def _same(one: dict[str, Any] | None, other: dict[str, Any]) -> bool:
    return one is not None and one["generation"] == other["generation"]


def _stands(name: str, group: _WaitingGroup, changed: TraceRow, watermark: int, lasts_s: float) -> Iterator[Step]:
    detail = changed.details()
    waiting = [answer for answer in detail["members"].values() if answer]
    answers = f"{len(waiting)} of {len(detail['members'])} members wait for the answer to their "
    answers += " or ".join(f"{request.title()}Group" for request in sorted(set(waiting)))
    state, generation = detail["state"], detail["generation"]
    if state not in ("PreparingRebalance", "CompletingRebalance") or not waiting:
        return
    if detail["storing"]:
        yield Step(
            StepKind.GROUP_WRITE_NEVER_ENDED,
            group.since_ns,
            changed.node,
            f"{changed.node} keeps the group {name} in {state} after generation {generation} for {lasts_s:.0f} s, "
            f"waiting for a write (storing) {_record(group, changed, watermark)}, and neither answers its members nor "
            f"begins again: {answers}",
        )
    elif len(waiting) == len(detail["members"]):
        yield Step(
            StepKind.GROUP_STANDS_STILL,
            group.since_ns,
            changed.node,
            f"{changed.node} leaves the group {name} in {state} after generation {generation} for {lasts_s:.0f} s, "
            f"though every member has asked and nothing is being written: {answers}",
        )


def _record(group: _WaitingGroup, changed: TraceRow, watermark: int) -> str:
    """What became of the record that a group waits for."""
    storing, detail = group.storing, group.storing_detail
    if storing is None or detail is None or storing.leader_epoch != changed.leader_epoch:
        return "that is not under way"
    what = f"of generation {detail['generation']}"
    if detail["error"] != "none":
        return (
            f"{what} that failed: its append was refused with {detail['error'].upper()} {storing.at}, and the failure "
            "was not reported to the group"
        )
    end = (
        f"{what}, whose record ends at {storing.log_end} of {storing.topic}-{storing.partition} since "
        f"{storing.time_ns / 1e9:.6f} s"
    )
    if watermark >= storing.log_end:
        return f"{end} and is committed: its high watermark is {watermark}"
    return f"{end} and is not committed: its high watermark is {watermark}; nobody has given the write up"
