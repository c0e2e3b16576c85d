"""Broken steps of the controllers' metadata log: votes, elections, commits, truncations and appends.

A controller's log is that of its own events. Voters have ids of their own: the vote that a candidate casts for itself
tells which node has which, and of the others the order of the names, which is that of the ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.protocol.log_knowledge_promises import epoch_cache_of
from checkers.protocol.state import differs
from checkers.tables import TraceRow, trace_rows
from results.explanation.event_facts import positions_of
from results.explanation.log_bounds_steps import bytes_left, live_segment_deleted
from results.explanation.log_steps import truncation_of
from results.explanation.replay import UNKNOWN, ReplicaView
from results.explanation.steps import appended_behind
from results.explanation.story import Step, StepKind, span

_KINDS: Final = (
    "quorum_recovered", "quorum_voted", "quorum_vote_refused", "quorum_candidate", "quorum_leader", "quorum_follower",
    "quorum_resigned", "metadata_appended", "metadata_truncated", "metadata_restored", "metadata_committed",
    "metadata_applied", "metadata_snapshot", "metadata_trimmed",
)  # fmt: skip
_REPLACED: Final = {
    "metadata_snapshot": "wrote a snapshot of its metadata log",
    "metadata_trimmed": "put a snapshot in the place of its metadata log",
    "metadata_restored": "took its leader's snapshot in place of its metadata log",
}
"""How a snapshot stands for the metadata log below an offset."""


@dataclass(slots=True)
class _Quorum:
    """The controllers after the events so far."""

    controllers: dict[str, ReplicaView] = field(default_factory=dict)
    leaders: dict[int, ReplicaView] = field(default_factory=dict)
    """By the id of the voter."""
    nodes: dict[int, str] = field(default_factory=dict)
    """Id of a voter → its node."""
    votes: dict[int, dict[str, int]] = field(default_factory=dict)
    """Controller epoch → node → the voter for which it voted last."""
    led: dict[int, str] = field(default_factory=dict)
    """Controller epoch → the node that led it first."""
    committed: list[int] = field(default_factory=list)
    """Epoch by offset of what leaders committed."""
    segments: set[tuple[str, int]] = field(default_factory=set)
    """Controller, and where a file of its log began."""
    counted: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Node → the furthest log end at which a leader counted it for a commit, and that leader."""

    def controller(self, node: str) -> ReplicaView:
        return self.controllers.setdefault(node, ReplicaView(node))

    def name_voters(self, leader: str, positions: Mapping[int, int]) -> None:
        """Learn from a leader's positions which node has which id."""
        own = next((voter for voter, node in self.nodes.items() if node == leader), None)
        if own is not None and len(positions) + 1 == len(self.controllers) > len(self.nodes):
            self.nodes.update(zip(sorted({own, *positions}), sorted(self.controllers), strict=True))


def metadata_steps(trace: pa.Table) -> Iterator[Step]:
    """The broken steps of the metadata log, in the order of its events."""
    quorum = _Quorum()
    for event in trace_rows(trace.filter(pc.field("kind").isin(_KINDS))):
        if event.kind == "metadata_applied":
            yield from _applied(quorum, event)
            continue
        controller = quorum.controller(event.node)
        yield from _look(quorum, controller, event)
        _apply(quorum, controller, event)


def _look(quorum: _Quorum, controller: ReplicaView, event: TraceRow) -> Iterator[Step]:
    if event.kind == "metadata_appended":
        since, leader = controller.following_since, quorum.leaders.get(controller.leader)
        if since is not None and leader is not None and _still_leads(leader, since):
            yield from appended_behind(controller, leader, since, event)
    elif event.kind == "quorum_voted":
        yield from _voted(quorum, controller, event)
    elif event.kind == "quorum_vote_refused":
        yield from _vote_refused(quorum, event)
    elif event.kind == "quorum_leader":
        yield from _elected(quorum, event)
    elif event.kind == "metadata_committed":
        yield from _committed(quorum, controller, event)
    elif event.kind == "metadata_truncated":
        yield from _truncated(quorum, controller, event)
    elif event.kind in _REPLACED:
        yield from _replaced(quorum, controller, event)
    elif event.kind == "quorum_recovered":
        if deleted := live_segment_deleted(event):
            yield _step(StepKind.LIVE_SEGMENT_DELETED, event, f"{deleted[2]} (metadata log)")
        if left := bytes_left(event):
            yield _step(StepKind.BYTES_LEFT_BEHIND_LOG_END, event, f"{left[1]} (metadata log)")
        yield from _vote_forgotten(quorum, event)
        end, leader_name = quorum.counted.get(event.node, (0, ""))
        if event.log_end < min(end, len(controller.log)):
            text = (
                f"the metadata log of {event.node} came back ending at {event.log_end}, and {leader_name} had counted "
                f"it at {end} for a commit: its fetch had counted before the records were on its disk"
            )
            if (event.node, event.log_end) in quorum.segments:
                text += f". It had begun another file (segment) at {event.log_end}, and nothing of that came back: a "
                text += "file whose name is not on the disk (its directory was not synced) is lost with all that is "
                text += "synced in it"
            yield _step(StepKind.COUNTED_METADATA_LOST, event, text)


def _step(kind: StepKind, event: TraceRow, text: str) -> Step:
    return Step(kind, event.time_ns, event.node, text)


def _end(controller: ReplicaView) -> tuple[int, int]:
    """The end of a log as votes compare it: the epoch of the last record, and the log end."""
    return (controller.log[-1] if controller.log else 0), len(controller.log)


def _applied(quorum: _Quorum, event: TraceRow) -> Iterator[Step]:
    """A broker applies metadata: only what is below the high watermark of the quorum."""
    committed = len(quorum.committed)
    if committed < event.log_end:
        yield _step(
            StepKind.METADATA_APPLIED_BEFORE_COMMIT,
            event,
            f"{event.node} applied the metadata up to {event.log_end}, and the controllers had committed it up to "
            f"{committed} only: a controller answered the fetch of a broker with records above the high watermark of "
            "the quorum, which another leader may replace",
        )


def _voted(quorum: _Quorum, voter: ReplicaView, event: TraceRow) -> Iterator[Step]:
    earlier = quorum.votes.get(event.leader_epoch, {}).get(event.node, event.broker)
    if earlier != event.broker:
        names = quorum.nodes.get(earlier, f"voter {earlier}"), quorum.nodes.get(event.broker, f"voter {event.broker}")
        text = f"{voter.node} voted for {names[1]} in controller epoch {event.leader_epoch}, and had voted for "
        text += f"{names[0]} in the same epoch: its vote was not kept"
        yield _step(StepKind.VOTED_TWICE_IN_EPOCH, event, text)
    candidate = quorum.controllers.get(quorum.nodes.get(event.broker, ""))
    if candidate is None or candidate is voter or UNKNOWN in (_end(candidate)[0], _end(voter)[0]):
        return
    if _end(candidate) < _end(voter):
        yield _step(
            StepKind.VOTE_FOR_OLDER_LOG,
            event,
            f"{voter.node} voted for {candidate.node} in controller epoch {event.leader_epoch}, whose log ends at "
            f"{_end(candidate)[1]} with epoch {_end(candidate)[0]}: its own, which ends at {_end(voter)[1]} with epoch "
            f"{_end(voter)[0]}, is more up to date",
        )


def _vote_refused(quorum: _Quorum, event: TraceRow) -> Iterator[Step]:
    """A vote is refused by a leader, to a second candidate in one epoch, where a leader is known, or to an older log; a
    pre-vote by a follower whose leader answers."""
    detail = event.details()
    if "role" not in detail or detail["candidate"] < detail["own"] or detail["role"] == "leader":
        return
    if detail["pre_vote"]:
        justified = detail["role"] == "follower" and detail["leader_answered"]
    else:
        justified = event.leader >= 0 or detail["voted"] not in (-1, event.broker)
    if not justified:
        candidate = quorum.nodes.get(event.broker, f"voter {event.broker}")
        what = "pre-vote" if detail["pre_vote"] else "vote"
        (epoch, end), (own_epoch, own_end) = detail["candidate"], detail["own"]
        yield _step(
            StepKind.VOTE_REFUSED_WRONGLY,
            event,
            f"{event.node} refused its {what} to {candidate} in controller epoch {event.leader_epoch}, whose log ends "
            f"at {end} with epoch {epoch}: its own, which ends at {own_end} with epoch {own_epoch}, is not more up to "
            f"date, and it ({detail['role']}) had neither voted for another nor a leader",
        )


def _vote_forgotten(quorum: _Quorum, event: TraceRow) -> Iterator[Step]:
    """A vote is on the disk before it is sent: a controller comes back with its last epoch and its vote in that."""
    epochs = [epoch for epoch, votes in quorum.votes.items() if event.node in votes]
    if not epochs or event.leader_epoch > (last := max(epochs)):
        return
    voted = quorum.votes[last][event.node]
    if event.leader_epoch < last or event.details().get("voted", voted) != voted:
        name = quorum.nodes.get(voted, f"voter {voted}")
        yield _step(
            StepKind.VOTE_FORGOTTEN,
            event,
            f"{event.node} came back in controller epoch {event.leader_epoch}, and had voted for {name} in epoch "
            f"{last}: its vote was not on disk before it was sent, so it may vote again in that epoch",
        )


def _elected(quorum: _Quorum, event: TraceRow) -> Iterator[Step]:
    led = quorum.led.setdefault(event.leader_epoch, event.node)
    if led != event.node:
        text = f"{event.node} became the leader of controller epoch {event.leader_epoch}, which {led} had led already"
        yield _step(StepKind.TWO_CONTROLLERS_IN_ONE_EPOCH, event, text)
    votes = quorum.votes.get(event.leader_epoch, {})
    voters = sorted(node for node, voted in votes.items() if quorum.nodes.get(voted) == event.node)
    known = len(quorum.controllers)
    if 0 < len(voters) < known // 2 + 1:
        yield _step(
            StepKind.CONTROLLER_WITHOUT_MAJORITY,
            event,
            f"{event.node} became the leader of controller epoch {event.leader_epoch} with the votes of "
            f"{', '.join(voters)} alone, of {known} controllers",
        )


def _committed(quorum: _Quorum, leader: ReplicaView, event: TraceRow) -> Iterator[Step]:
    end, positions = event.high_watermark, positions_of(event)
    quorum.name_voters(event.node, positions)
    committed = f"{event.node} committed metadata up to {end} in controller epoch {event.leader_epoch}"
    last = leader.log[end - 1] if 0 < end <= len(leader.log) else UNKNOWN
    if last not in (UNKNOWN, event.leader_epoch):
        yield _step(
            StepKind.METADATA_OF_EARLIER_EPOCH_COMMITTED,
            event,
            f"{committed}, the last of it of epoch {last}, without a record of its own epoch: records of earlier "
            "epochs may be on a majority and still be overwritten",
        )
    counted = {voter for voter, position in positions.items() if position >= end}
    if positions and 1 + len(counted) < (1 + len(positions)) // 2 + 1:
        held = ", ".join(f"{quorum.nodes.get(voter, voter)} at {at}" for voter, at in sorted(positions.items()))
        yield _step(
            StepKind.METADATA_COMMITTED_WITHOUT_MAJORITY,
            event,
            f"{committed} and had counted {held}: that is no majority of {1 + len(positions)} controllers",
        )
    for voter in sorted(counted):
        member = quorum.controllers.get(quorum.nodes.get(voter, ""))
        place = differs(member.log[:end], leader.log[:end]) if member is not None else None
        if member is not None and place is not None:
            lacks = f"ends at {len(member.log)}" if place >= len(member.log) else f"has another record at {place}"
            yield _step(
                StepKind.METADATA_POSITION_NOT_HELD,
                event,
                f"{committed} and counted {member.node} at {positions[voter]}, whose log {lacks}",
            )


def _truncated(quorum: _Quorum, controller: ReplicaView, event: TraceRow) -> Iterator[Step]:
    answer, entries = event.details().get("answer"), epoch_cache_of(controller.log)
    if answer and entries and event.offset != (right := truncation_of(entries, len(controller.log), *answer)):
        side = "more" if event.offset < right else "less"
        yield _step(
            StepKind.TRUNCATED_TO_WRONG_OFFSET,
            event,
            f"{event.node} cut its metadata log {event.log_end} → {event.offset}, {side} than diverges: its leader "
            f"answered that epoch {answer[0]} ends at {answer[1]}, so that both logs may share the records below "
            f"{right}",
        )
    if lost := _committed_behind(quorum, controller, event.offset):
        yield _step(
            StepKind.COMMITTED_METADATA_TRUNCATED,
            event,
            f"{event.node} cut its metadata log {event.log_end} → {event.offset} in controller epoch "
            f"{event.leader_epoch}, and with it the committed {lost}",
        )


def _committed_behind(quorum: _Quorum, controller: ReplicaView, offset: int) -> str:
    """The committed records that a log has from `offset` on, in words; empty where it has none, or others there."""
    end = min(len(controller.log), len(quorum.committed))
    held = differs(controller.log[offset:end], quorum.committed[offset:end])
    last = end if held is None else offset + held
    return span(offset, last) if offset < last else ""


def _replaced(quorum: _Quorum, controller: ReplicaView, event: TraceRow) -> Iterator[Step]:
    """A snapshot stands for records that are committed, and for no later ones."""
    committed = len(quorum.committed)
    end = event.log_end if event.kind == "metadata_snapshot" else event.offset
    if event.kind == "metadata_restored" and (lost := _committed_behind(quorum, controller, event.offset)):
        text = f"{event.node} took its leader's snapshot that ends at {event.offset} in place of its metadata log, and "
        text += f"with that lost the committed {lost}"
        yield _step(StepKind.COMMITTED_METADATA_TRUNCATED, event, text)
    if end > committed:
        did = f"{_REPLACED[event.kind]} below {end}"
        text = f"{event.node} {did}, and the controllers had committed it up to {committed} only: "
        text += "what lies between may be replaced, and the snapshot has it for good"
        yield _step(StepKind.METADATA_TRIMMED_BEFORE_COMMIT, event, text)


def _still_leads(leader: ReplicaView, since: TraceRow) -> bool:
    """Whether the log of a leader is still that of the epoch in which it is followed."""
    return leader.role == "leader" and leader.leader_epoch == since.leader_epoch


def _apply(quorum: _Quorum, controller: ReplicaView, event: TraceRow) -> None:
    if event.kind == "metadata_appended":
        controller.resize(event.offset)
        controller.log += [event.leader_epoch] * (event.log_end - event.offset)
        if event.details().get("segment"):
            quorum.segments.add((event.node, event.offset))
        controller.following_since = None
    elif event.kind == "metadata_truncated":
        controller.resize(event.offset)
        controller.shortened = event
        quorum.counted.pop(event.node, None)
    elif event.kind == "metadata_restored":
        controller.resize(0)
        controller.resize(event.offset)
    elif event.kind in ("metadata_snapshot", "metadata_trimmed"):
        pass  # the records below stay known
    elif event.kind == "metadata_committed":
        quorum.committed += controller.log[len(quorum.committed) : event.high_watermark]
        for voter, position in positions_of(event).items():
            if (node := quorum.nodes.get(voter)) is not None and position > 0:
                quorum.counted[node] = position, event.node
    elif event.kind == "quorum_recovered":
        controller.role = ""
        controller.resize(event.log_end)
        for epoch, start in event.details().get("epochs") or ():
            controller.log[max(start, 0) :] = [epoch] * (event.log_end - max(start, 0))
    elif event.kind == "quorum_voted":
        quorum.votes.setdefault(event.leader_epoch, {})[event.node] = event.broker
    else:
        controller.role = event.kind.removeprefix("quorum_")
        controller.leader, controller.leader_epoch = event.leader, event.leader_epoch
        controller.following_since = event if controller.role == "follower" else None
        if event.kind == "quorum_candidate":
            quorum.nodes[quorum.votes[event.leader_epoch][event.node]] = event.node
        elif event.kind == "quorum_leader":
            quorum.leaders[event.leader] = controller
            quorum.nodes[event.leader] = event.node
