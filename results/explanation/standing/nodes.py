"""Broken steps of what whole nodes leave undone: a broker that never registers or stays fenced, metadata that nobody
reads, controllers without a leader, or with one that commits nothing; and of processes that cannot start from what is
on their disk.

As in `standing_steps`, the end of a run that did not recover is looked at: every process runs, and sends heartbeats,
fetches and votes many times a second. So what has not come about for a while was left out by somebody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.fault_model import NodeFailure
from checkers.tables import TraceRow, trace_rows
from results.explanation.standing.partitions import STANDS_NS
from results.explanation.story import Step, StepKind
from workloads.history import TopicPartition

_KINDS: Final = (
    "node_started", "registered", "registration_refused", "broker_registered", "broker_fenced", "broker_unfenced",
    "broker_stays_fenced", "metadata_applied", "metadata_appended", "metadata_truncated", "metadata_committed",
    "metadata_restored", "quorum_recovered", "quorum_voted", "quorum_vote_refused", "quorum_candidate", "quorum_leader",
    "quorum_follower", "quorum_resigned", "quorum_unattached",
)  # fmt: skip
_OF_ROLES: Final = (
    "quorum_candidate", "quorum_leader", "quorum_follower", "quorum_resigned", "quorum_unattached", "quorum_recovered",
)  # fmt: skip
_OF_LOGS: Final = ("node_started", "log_recovered", "log_closed", "replica_deleted", "clean_shutdown")
_DAMAGED: Final = re.compile(r"\[Errno 5\] (?P<damage>.+): '(?P<path>[^']+)'$")
"""The last words of a process that could not use a file of its disk."""


def file_steps(crashes: Iterable[Mapping[str, Any]], failures: Iterable[NodeFailure]) -> Iterator[Step]:
    """A process ended over a damaged file, and a fault had taken what was not synced from its disk."""
    lossy = [failure for failure in failures if failure.lost_bytes > 0]
    for crash in crashes:
        found = _DAMAGED.search(crash["error"].strip())
        before = [each for each in lossy if each.node == crash["node"] and each.started_ns <= crash["time_ns"]]
        if found is None or not before:
            continue
        last = max(before, key=lambda failure: failure.started_ns)
        yield Step(
            StepKind.FILE_NOT_SYNCED,
            crash["time_ns"],
            crash["node"],
            f"{crash['node']} could not start from its disk and ended: {found['path']} {found['damage']}; it had not "
            f"been synced when {last.fault} took {last.lost_bytes:.0f} unsynced bytes from that disk at "
            f"{last.started_ns / 1e9:.6f} s, though a process relies on it at its start",
        )


def restart_steps(
    trace: pa.Table, failures: Iterable[NodeFailure], topic: str = "", partition: int = -1
) -> Iterator[Step]:
    """Processes that take the end of the one before for a clean shutdown, and a fault had killed that; with a topic
    also one log's end. One that was killed while it stopped had closed that log before, or all of them, and one that
    was killed while it started had not opened them yet: what is closed and synced is so for the next process, too.
    What processes before it had left open does not matter to one that was registered as unclean after them."""
    killed = [failure for failure in failures if failure.killed and not failure.interrupted]
    began: dict[str, tuple[int, int]] = {}
    open_logs: dict[str, dict[TopicPartition, int]] = {}  # with the start of the process that opened them
    stopped: dict[str, int] = {}
    for event in trace_rows(trace.filter(pc.field("kind").isin(_OF_LOGS))):
        before, now = began.get(event.node, (0, 0))
        place, opened = (event.topic, event.partition), open_logs.setdefault(event.node, {})
        if event.kind == "node_started":
            before, now = began[event.node] = now, event.time_ns
            clean = f"presents broker epoch {event.broker_epoch} as that of a clean shutdown"
            is_of_last = stopped.pop(event.node, event.broker_epoch + 1) == event.broker_epoch
            claims = event.broker_epoch >= 0 and (before in opened.values() if is_of_last else bool(opened))
        elif event.kind == "log_recovered":
            clean = f"opened its log of {topic}-{partition} as closed by a clean shutdown, unchecked"
            claims = place == (topic, partition) and place in opened
            claims = claims and event.details().get("clean") is True and event.log_end > 0
            opened[place] = now
        elif event.kind == "clean_shutdown":
            stopped[event.node] = event.broker_epoch
            continue
        else:
            if event.kind == "replica_deleted" or event.details().get("synced") is True:
                opened.pop(place, None)
            continue
        ends = [failure for failure in killed if failure.node == event.node and before < failure.started_ns <= now]
        if claims and ends:
            yield Step(
                StepKind.CLEAN_SHUTDOWN_CLAIMED_AFTER_KILL,
                event.time_ns,
                event.node,
                f"{event.node} {clean}, and its process had been killed ({ends[-1].fault}) at "
                f"{ends[-1].started_ns / 1e9:.6f} s: the mark is that of an earlier end, or was made too early, and "
                "says nothing about what is on the disk now",
            )


@dataclass(slots=True)
class _Nodes:
    """The last event of each kind that says how a node stands."""

    started: dict[str, TraceRow] = field(default_factory=dict)
    registered: dict[str, TraceRow] = field(default_factory=dict)
    refused: dict[int, TraceRow] = field(default_factory=dict)
    fenced: dict[int, TraceRow] = field(default_factory=dict)
    """Broker → the event since which it is fenced."""
    kept: dict[int, TraceRow] = field(default_factory=dict)
    """Broker → the last answer to a heartbeat that kept it fenced."""
    applied: dict[str, TraceRow] = field(default_factory=dict)
    roles: dict[str, TraceRow] = field(default_factory=dict)
    ends: dict[str, TraceRow] = field(default_factory=dict)
    """Controller → the last change of its log."""
    committed: TraceRow | None = None
    left_ns: int = 0
    """When a controller led last that another role of it has ended."""
    candidates: int = 0
    """Elections since a controller led."""
    vote_refused: TraceRow | None = None

    def apply(self, event: TraceRow) -> None:
        """Take in one event."""
        if event.kind == "node_started":
            self.started[event.node] = event
            self.registered.pop(event.node, None)
            self.applied.pop(event.node, None)
        elif event.kind in ("registered", "metadata_applied"):
            getattr(self, event.kind.removeprefix("metadata_"))[event.node] = event
        elif event.kind == "registration_refused":
            self.refused[event.broker] = event
        elif event.kind == "broker_stays_fenced":
            self.kept[event.broker] = event
        elif event.kind == "broker_unfenced":
            self.fenced.pop(event.broker, None)
        elif event.kind in ("broker_registered", "broker_fenced"):
            self.fenced[event.broker] = event
            self.kept.pop(event.broker, None)
        else:
            self._of_controller(event)

    def _of_controller(self, event: TraceRow) -> None:
        if event.kind in _OF_ROLES:
            if (role := self.roles.get(event.node)) is not None and role.kind == "quorum_leader":
                self.left_ns = event.time_ns
            self.roles[event.node] = event
            self.candidates += event.kind == "quorum_candidate"
        if event.kind == "quorum_leader":
            self.candidates, self.vote_refused = 0, None
        elif event.kind == "quorum_vote_refused":
            self.vote_refused = event
        elif event.kind == "metadata_committed":
            self.committed = event
        elif event.kind.startswith(("metadata_", "quorum_recovered")):
            self.ends[event.node] = event

    def log_end(self, node: str) -> int:
        """Where a controller's log ends."""
        event = self.ends.get(node)
        if event is None:
            return 0
        return event.log_end if event.kind in ("metadata_appended", "quorum_recovered") else event.offset


def node_steps(trace: pa.Table, end_ns: int) -> Iterator[Step]:
    """What whole nodes leave undone at the end of a run, `end_ns`."""
    nodes = _Nodes()
    for event in trace_rows(trace.filter(pc.field("kind").isin(_KINDS))):
        nodes.apply(event)
    leader = next((event for event in nodes.roles.values() if event.kind == "quorum_leader"), None)
    if leader is None:
        yield from _without_controller(nodes, end_ns)
        return
    yield from _uncommitted(nodes, leader, end_ns)
    for node, started in sorted(nodes.started.items()):
        if started.number >= 0:
            yield from _broker(nodes, node, started, end_ns)


def _step(kind: StepKind, since_ns: int, node: str, text: str) -> Step:
    return Step(kind, since_ns, node, text)


def _broker(nodes: _Nodes, node: str, started: TraceRow, end_ns: int) -> Iterator[Step]:
    registered, fenced = nodes.registered.get(node), nodes.fenced.get(started.number)
    if registered is None:
        if end_ns - started.time_ns >= STANDS_NS:
            yield _unregistered(nodes.refused.get(started.number), started)
    elif fenced is not None and end_ns - max(fenced.time_ns, registered.time_ns) >= STANDS_NS:
        yield _fenced(nodes.kept.get(started.number), fenced, registered)
    elif fenced is None and nodes.committed is not None:
        applied = nodes.applied.get(node)
        end, committed = applied.log_end if applied is not None else 0, nodes.committed
        if end < committed.high_watermark and end_ns - committed.time_ns >= STANDS_NS:
            yield _step(
                StepKind.METADATA_NOT_READ,
                committed.time_ns,
                node,
                f"{node} has applied the metadata up to {end} only, and the controllers have committed it up to "
                f"{committed.high_watermark} since {committed.time_ns / 1e9:.6f} s: it reads no more, or does not let "
                "take effect what it has read, and acts on old decisions",
            )


def _unregistered(refused: TraceRow | None, started: TraceRow) -> Step:
    text = f"{started.node} started {started.at} and has not registered since: "
    if refused is not None and refused.time_ns >= started.time_ns:
        text += f"{refused.node} refuses it, since the session of its earlier process (broker epoch "
        text += f"{refused.broker_epoch}) is said to last"
    else:
        text += "no controller has granted or refused it a registration"
    return _step(StepKind.BROKER_NEVER_REGISTERED, started.time_ns, started.node, text)


def _fenced(kept: TraceRow | None, fenced: TraceRow, registered: TraceRow) -> Step:
    node, epoch = registered.node, registered.broker_epoch
    since = max(fenced.time_ns, registered.time_ns)
    text = f"{node} has run with broker epoch {epoch} since {registered.time_ns / 1e9:.6f} s, and is fenced since "
    text += f"{fenced.time_ns / 1e9:.6f} s ({fenced.details().get('reason', 'registered')}): "
    if kept is None:
        text += "no heartbeat of it has reached a controller since"
    else:
        detail = kept.details()
        text += (
            f"{kept.node} answers its heartbeats and does not unfence it. They say that it has read the metadata up to "
        )
        text += f"{detail['metadata_offset']}, "
        text += "with" if detail["metadata_offset"] >= kept.broker_epoch else "not up to"
        text += f" its registration at {kept.broker_epoch}"
        if detail["shutting_down"]:
            text += ", and it counts as shutting down"
    return _step(StepKind.BROKER_NEVER_UNFENCED, since, node, text)


def _without_controller(nodes: _Nodes, end_ns: int) -> Iterator[Step]:
    """Nobody leads the controllers: the last one has resigned, and no candidate is elected."""
    since_ns = max(nodes.left_ns, nodes.committed.time_ns if nodes.committed is not None else 0)
    if not nodes.roles or end_ns - since_ns < STANDS_NS:
        return
    roles = ", ".join(f"{node} ({event.kind.removeprefix('quorum_')})" for node, event in sorted(nodes.roles.items()))
    text = (
        f"no controller has led since {since_ns / 1e9:.6f} s: {roles}; they stood for election {nodes.candidates} times"
    )
    if (refused := nodes.vote_refused) is not None:
        detail = refused.details()
        text += f", and {refused.node} refused its vote last {refused.at}, to a candidate whose log ends at "
        text += (
            f"{detail['candidate'][1]} of epoch {detail['candidate'][0]}, while its own ends at {detail['own'][1]} of "
        )
        text += f"epoch {detail['own'][0]}"
    yield _step(StepKind.NO_CONTROLLER_ELECTED, since_ns, "", text)


def _uncommitted(nodes: _Nodes, leader: TraceRow, end_ns: int) -> Iterator[Step]:
    """A leader of the controllers whose records are on a majority and are not committed."""
    end = nodes.log_end(leader.node)
    committed = nodes.committed.high_watermark if nodes.committed is not None else 0
    since_ns = max([leader.time_ns, *(event.time_ns for event in nodes.ends.values())])
    if committed >= end or end_ns - since_ns < STANDS_NS:
        return
    ends = ", ".join(f"{node} {nodes.log_end(node)}" for node in sorted(nodes.roles))
    yield _step(
        StepKind.METADATA_COMMIT_STANDS_STILL,
        since_ns,
        leader.node,
        f"{leader.node} leads controller epoch {leader.leader_epoch}, has committed the metadata up to {committed} "
        f"only, and its log ends at {end} (log ends: {ends}): it decides nothing before that is committed",
    )
