"""Promises about the answers of a controller to requests for its vote, and about whom it knows as leader, for
`checkers.raft`, whose table has them.

An answer follows from the two ends of logs, the vote and the leader of the epoch (Raft §5.4.1, KIP-996), and all but
the ends are facts of one epoch: nothing of an earlier one counts. A controller that has started again may know of its
epoch what its trace does not tell, so that in this epoch its vote and its leader are not looked at.

Blind spots: whether the leader has answered a follower, of which the trace has the follower's word alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import TraceRow, trace_rows
from checkers.verdict import Finding

_ROLES: Final = ("quorum_candidate", "quorum_leader", "quorum_follower", "quorum_resigned", "quorum_unattached")
_WITHOUT_LEADER: Final = ("quorum_candidate", "quorum_unattached", "quorum_resigned")
_ANSWERS: Final = ("quorum_vote_refused", "quorum_prevote_granted")
_KINDS: Final = (*_ROLES, *_ANSWERS, "quorum_recovered", "quorum_voted", "metadata_appended")
_NOBODY: Final = -1


@dataclass(slots=True)
class _Voter:
    """One controller after its trace so far."""

    own_id: int = _NOBODY
    role: str = ""
    """The kind of the last event of a role in this life; empty before the first."""
    started_in: int = -1
    """The epoch in which it started last."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Epoch → whom it has followed there."""
    stands_in: int = -1
    """The epoch in which it has voted for itself, and has no role yet."""

    def take(self, event: TraceRow) -> None:
        if event.kind == "quorum_recovered":
            self.role, self.started_in, self.stands_in = "", event.leader_epoch, -1
        elif event.kind in _ROLES:
            self.role, self.stands_in = event.kind, -1
            if event.kind == "quorum_leader":
                self.own_id = event.leader
            elif event.kind == "quorum_follower":
                self.leaders[event.leader_epoch] = event.leader
        elif event.kind == "quorum_voted" and "candidate" not in event.details():
            self.own_id = event.broker if self.own_id == _NOBODY else self.own_id
            self.stands_in = event.leader_epoch if event.broker == self.own_id else self.stands_in


def voter_name(voter: int, ids: Mapping[str, int]) -> str:
    """A controller by the name of its node, where the ids of controllers by node have it."""
    names = (node for node, own in ids.items() if own == voter)
    return "nobody" if voter == _NOBODY else next(names, f"controller {voter}")


def vote_findings(trace: pa.Table) -> Iterator[Finding]:
    """Every broken promise in a trace (schema TRACE)."""
    events = list(trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_KINDS)))))
    tells_of_requests = any("candidate" in event.details() for event in events if event.kind == "quorum_voted")
    voters: dict[str, _Voter] = {}
    for event in events:
        voter = voters.setdefault(event.node, _Voter())
        ids = {node: one.own_id for node, one in voters.items()}
        lines: tuple[str, ...] = ()
        if event.kind == "quorum_voted":
            lines = _unasked(voter, event, ids) if tells_of_requests else ()
        elif event.kind in _ANSWERS:
            lines = _answered_wrongly(event, ids)
        elif event.kind in ("quorum_follower", "quorum_unattached"):
            lines = (_vote_kept(voter, event) if tells_of_requests else ()) or _leader_kept(voter, event, ids)
        elif event.kind == "metadata_appended":
            lines = _appended_alone(voter, event)
        if lines:
            kind, *told = lines
            yield Finding(kind, tuple(told), time_ns=event.time_ns)
        voter.take(event)


def _unasked(voter: _Voter, event: TraceRow, ids: Mapping[str, int]) -> tuple[str, ...]:
    """A vote for another is the answer to its request."""
    if "candidate" in event.details() or voter.own_id in (_NOBODY, event.broker):
        return ()
    candidate = voter_name(event.broker, ids)
    did = f"{event.node} has voted for {candidate} in controller epoch {event.leader_epoch} {event.at}"
    return "vote-unasked", did, "nobody had asked it: a vote is of the epoch of its request"


def _answered_wrongly(event: TraceRow, ids: Mapping[str, int]) -> tuple[str, ...]:
    detail = event.details()
    if "role" not in detail:  # of a version that did not trace the reason
        return ()
    up_to_date = detail["candidate"] >= detail["own"]
    follows = detail["role"] == "follower" and detail["leader_answered"]
    if detail["pre_vote"]:
        due = up_to_date and detail["role"] != "leader" and not follows
    else:
        due = (
            up_to_date
            and detail["role"] != "leader"
            and event.leader == _NOBODY
            and detail["voted"] in (_NOBODY, event.broker)
        )
    granted = event.kind == "quorum_prevote_granted"
    if granted is due:
        return ()
    (epoch, end), (own_epoch, own_end) = detail["candidate"], detail["own"]
    what = f"its {'pre-vote' if detail['pre_vote'] else 'vote'} to {voter_name(event.broker, ids)} in controller epoch"
    answered = " had answered it" if detail["leader_answered"] else ""
    leader = "without a leader" if event.leader == _NOBODY else f"its leader {voter_name(event.leader, ids)}{answered}"
    vote = "without a vote" if detail["voted"] == _NOBODY else f"its vote for {voter_name(detail['voted'], ids)}"
    return (
        "prevote-granted-wrongly" if granted else "vote-refused-wrongly",
        f"{event.node} {'granted' if granted else 'refused'} {what} {event.leader_epoch} {event.at}",
        f"the candidate's log ends at {end}, after a record of epoch {epoch}, its own at {own_end}, after one of "
        f"{own_epoch}; it was {detail['role']}, {leader}, {vote}",
    )


def _vote_kept(voter: _Voter, event: TraceRow) -> tuple[str, ...]:
    """A controller votes for itself as it stands for election, and not as it follows."""
    if event.leader_epoch != voter.stands_in:
        return ()
    did = f"{event.node} has voted for itself in controller epoch {event.leader_epoch} {event.at} ({event.kind})"
    return "vote-unasked", did, "it does not stand for election in this epoch: a vote is of one epoch"


def _leader_kept(voter: _Voter, event: TraceRow, ids: Mapping[str, int]) -> tuple[str, ...]:
    """An epoch has no leader for a controller that was told of none."""
    known = voter.leaders.get(event.leader_epoch, _NOBODY)
    if event.kind != "quorum_unattached" or event.leader in (_NOBODY, known) or event.leader_epoch == voter.started_in:
        return ()
    leader = voter_name(event.leader, ids)
    did = f"{event.node} had {leader} for the leader of controller epoch {event.leader_epoch} {event.at}"
    return "leader-of-another-epoch", did, "it had not followed that one in this epoch"


def _appended_alone(voter: _Voter, event: TraceRow) -> tuple[str, ...]:
    """A log grows by its own leadership, or by the leader of the epoch."""
    if voter.role not in _WITHOUT_LEADER:
        return ()
    did = f"{event.node} appended to its metadata log from {event.offset} to {event.log_end} {event.at}"
    return "appended-without-leader", did, f"it neither led nor followed then ({voter.role})"
