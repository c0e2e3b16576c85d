"""Broken steps of the controllers' metadata log: a follower that appends behind records which its leader does not hold.

Everything else that can break there is named by the findings of `raft` themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import TraceRow, trace_rows
from results.explanation.replay import ReplicaView
from results.explanation.steps import appended_behind
from results.explanation.story import Step

_KINDS: Final = (
    "quorum_recovered", "quorum_leader", "quorum_follower", "quorum_resigned",
    "metadata_appended", "metadata_truncated", "metadata_restored",
)  # fmt: skip


def metadata_steps(trace: pa.Table) -> Iterator[Step]:
    """The broken steps of the metadata log, in the order of its events."""
    controllers: dict[str, ReplicaView] = {}
    leaders: dict[int, ReplicaView] = {}
    for event in trace_rows(trace.filter(pc.field("kind").isin(_KINDS))):
        controller = controllers.setdefault(event.node, ReplicaView(event.node))
        if event.kind == "metadata_appended":
            since, leader = controller.following_since, leaders.get(controller.leader)
            if since is not None and leader is not None and _still_leads(leader, since):
                yield from appended_behind(controller, leader, since, event)
            controller.following_since = None
        elif event.kind == "quorum_leader":
            leaders[event.leader] = controller
        _apply(controller, event)


def _still_leads(leader: ReplicaView, since: TraceRow) -> bool:
    """Whether the log of a leader is still that of the epoch in which it is followed."""
    return leader.role == "leader" and leader.leader_epoch == since.leader_epoch


def _apply(controller: ReplicaView, event: TraceRow) -> None:
    if event.kind == "metadata_appended":
        controller.resize(event.offset)
        controller.log += [event.leader_epoch] * (event.log_end - event.offset)
    elif event.kind == "metadata_truncated":
        controller.resize(event.offset)
        controller.shortened = event
    elif event.kind == "metadata_restored":
        controller.resize(0)
        controller.resize(event.offset)
    elif event.kind == "quorum_recovered":
        controller.role = ""
        controller.resize(event.log_end)
    else:
        controller.role = event.kind.removeprefix("quorum_")
        controller.leader, controller.leader_epoch = event.leader, event.leader_epoch
        controller.following_since = event if controller.role == "follower" else None
