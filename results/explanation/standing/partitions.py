"""Broken steps of what is not done: a partition that stands still, although nothing keeps it from going on.

Other steps look at an event; these look at the end of a run that did not recover. Faults are over by then, every live
follower fetches many times a second, and every replica applies metadata as it comes. So a state in which one event has
to follow, and that has lasted for a while, is a decision that some node does not take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from checkers.tables import TraceRow
from results.explanation.replay import BROKER_KINDS, Decision, PartitionReplay, Proposal, ReplicaView
from results.explanation.story import Step, StepKind, brokers

STANDS_NS: Final = 10_000_000_000
"""So long a state has to last to be taken for one that does not end."""
_UNDECIDED_NS: Final = 3_000_000_000
"""So long a proposal has to wait to be taken for one that nobody decides, as for the check of liveness."""
_NO_PROGRESS: Final = frozenset({
    "acknowledged", "append_unacknowledged", "latest_asked", "latest_told", "fetch_session", "fetch_accepted",
    "request_fenced", "diverging", "records_refused", "alter_partition_sent", "alter_partition_answered",
    "fetch_answered", "reads_confirmed", "fetch_refused",
})  # fmt: skip
"""Events that change nothing for replicas: requests of clients, and those that may be repeated for ever."""


def standing_steps(events: Iterable[TraceRow], end_ns: int) -> Iterator[Step]:
    """What the nodes of one partition leave undone at the end of a run, `end_ns`."""
    state, since_ns = PartitionReplay(), 0
    sessions: dict[tuple[str, int], TraceRow] = {}
    for event in events:
        if event.kind == "fetch_session":
            sessions[event.node, event.details()["replica"]] = event
        elif event.kind == "fetch_accepted":
            fetcher = event.node, event.details()["replica"]
            if fetcher not in sessions or not _asks(sessions[fetcher], state.place):
                sessions[fetcher] = event  # one without a session asks for other partitions than its last one told
        state.apply(event)
        if event.kind not in _NO_PROGRESS and (event.number >= 0 or event.kind in ("partition_changed", *BROKER_KINDS)):
            since_ns = event.time_ns
    decision = state.decision
    if decision is None or decision.leader < 0:
        return
    steps = [*_proposal(state, decision, end_ns)]
    if end_ns - since_ns >= STANDS_NS:
        steps += _left_undone(state, decision, sessions, since_ns, (end_ns - since_ns) / 1e9)
    for step in steps:
        yield replace(step, beliefs=state.beliefs(), decided=str(decision))


def _asks(session: TraceRow, place: str) -> bool:
    """Whether a follower's last fetch that is told asked for a partition."""
    return session.kind == "fetch_accepted" or place in session.details()["partitions"]


def _proposal(state: PartitionReplay, decision: Decision, end_ns: int) -> Iterator[Step]:
    """A change of the ISR that a leader has in flight, and that nobody decides: it is sent until it is answered."""
    leader = state.replica(f"b{decision.leader}")
    proposal = leader.proposal
    if proposal is None or not state.is_active(decision.leader) or end_ns - proposal.time_ns < _UNDECIDED_NS:
        return
    if leader.role != "leader" or leader.leader_epoch != decision.leader_epoch:
        return
    lasts_s = (end_ns - proposal.time_ns) / 1e9
    text = (
        f"{leader.node} has waited for {lasts_s:.0f} s for its proposal {brokers(proposal.members)}, made in partition "
    )
    text += f"epoch {proposal.partition_epoch}, to be decided, and proposes no other ISR meanwhile: "
    if proposal.refused:
        text += f"a controller refused it with {proposal.refused}, and nothing has settled it since"
    else:
        text += "no controller has accepted or refused it; "
        if proposal.sent == 0:
            text += f"{leader.node} never sent it to one (AlterPartition)"
        elif end_ns - proposal.sent_ns >= _UNDECIDED_NS:
            times = "once" if proposal.sent == 1 else f"{proposal.sent} times"
            text += (
                f"{leader.node} sent it {times} (AlterPartition), last {_at(proposal.sent_ns)}, and has not sent it "
            )
            text += f"again since{_answered(proposal)}: it gave the request up and still counts the change as in flight"
        else:
            text += f"{leader.node} sent it {proposal.sent} times (AlterPartition), last {_at(proposal.sent_ns)}"
    yield Step(StepKind.PROPOSAL_NEVER_DECIDED, proposal.time_ns, leader.node, text)


def _answered(proposal: Proposal) -> str:
    answer = proposal.answer
    return f" it was answered {str(answer.details().get('error')).upper()} {answer.at}" if answer is not None else ""


def _at(time_ns: int) -> str:
    return f"at {time_ns / 1e9:.6f} s"


def _left_undone(
    state: PartitionReplay,
    decision: Decision,
    sessions: Mapping[tuple[str, int], TraceRow],
    since_ns: int,
    lasts_s: float,
) -> Iterator[Step]:
    leader = state.replicas.get(f"b{decision.leader}")
    if leader is None or not state.is_active(decision.leader):
        return
    for replica in sorted(filter(state.is_active, decision.replicas)):
        member = state.replica(f"b{replica}")
        if not _follows(state, member, decision) and state.applied.get(member.node, (0, -1))[1] >= decision.offset:
            yield Step(
                StepKind.DECISION_NOT_TAKEN_OVER,
                since_ns,
                member.node,
                f"{member.node} has applied the metadata with partition epoch {decision.partition_epoch} and does not "
                f"act on it for {lasts_s:.0f} s: {member.belief()}",
                before=((decision.time_ns, str(decision)),),
            )
            return
    if leader.role != "leader" or leader.leader_epoch != decision.leader_epoch:
        return
    for replica in sorted(filter(state.is_active, decision.replicas - {decision.leader})):
        session = sessions.get((leader.node, replica))
        yield from _of_follower(state, decision, leader, replica, session, since_ns, lasts_s)
    yield from _high_watermark(state, decision, leader, since_ns, lasts_s)


def _high_watermark(
    state: PartitionReplay, decision: Decision, leader: ReplicaView, since_ns: int, lasts_s: float
) -> Iterator[Step]:
    """All of a large enough ISR holds the leader's log, and has fetched since: it is committed."""
    end, watermark = len(leader.log), max(leader.high_watermark, 0)
    members = [state.replica(f"b{member}") for member in sorted(decision.isr)]
    if watermark >= end or leader.proposal is not None or len(members) < decision.min_isr:
        return
    if all(len(member.log) == end and member.leader_epoch == leader.leader_epoch for member in members):
        yield Step(
            StepKind.HIGH_WATERMARK_STANDS_STILL,
            since_ns,
            leader.node,
            f"{leader.node} leaves its high watermark at {watermark} for {lasts_s:.0f} s, though its log ends at {end} "
            f"and all of the ISR {brokers(decision.isr)} follows it in leader epoch {leader.leader_epoch} and holds it",
            watermark,
        )


def _follows(state: PartitionReplay, member: ReplicaView, decision: Decision) -> bool:
    role = "leader" if member.node == f"b{decision.leader}" else "follower"
    return (member.role, member.leader_epoch) == (role, decision.leader_epoch)


def _of_follower(
    state: PartitionReplay,
    decision: Decision,
    leader: ReplicaView,
    replica: int,
    session: TraceRow | None,
    since_ns: int,
    lasts_s: float,
) -> Iterator[Step]:
    member = state.replica(f"b{replica}")
    holds, end = len(member.log), len(leader.log)
    place = f"follows {leader.node} in leader epoch {leader.leader_epoch}"
    if holds < end:
        yield Step(
            StepKind.FOLLOWER_STANDS_STILL,
            since_ns,
            member.node,
            f"{member.node} is unfenced and {place}, and appends nothing for {lasts_s:.0f} s, though its log ends at "
            f"{holds} and that of {leader.node} at {end}{_fetched(state, member, leader, session)}",
        )
    elif session is None or not _asks(session, state.place):
        yield Step(
            StepKind.FOLLOWER_STANDS_STILL,
            since_ns,
            member.node,
            f"{member.node} is unfenced and {place}, and does not fetch the partition from it for {lasts_s:.0f} s"
            f"{_fetched(state, member, leader, session)}: so {leader.node} does not know that it holds its whole log",
        )
    elif replica not in decision.isr and leader.proposal is None:
        yield Step(
            StepKind.CAUGHT_UP_FOLLOWER_NOT_PROPOSED,
            since_ns,
            leader.node,
            f"{leader.node} does not propose {member.node} for the ISR {brokers(decision.isr)} for {lasts_s:.0f} s, "
            f"though {member.node} is unfenced, {place} and holds its whole log, up to {end}; "
            f"{_last_proposal(leader)}",
        )


def _fetched(state: PartitionReplay, member: ReplicaView, leader: ReplicaView, session: TraceRow | None) -> str:
    """What its leader knows of the fetches of a follower that stands still."""
    if session is None:
        return f"; no fetch of {member.node} has reached {leader.node}"
    if not _asks(session, state.place):
        which = ", ".join(session.details()["partitions"]) or "none"
        return (
            f"; the fetches of {member.node} that reach {leader.node} do not ask for this partition since "
            f"{session.time_ns / 1e9:.6f} s, only for {which}"
        )
    if (refused := member.fetch_refused) is not None:
        return f"; {leader.node} refused a fetch of it last {refused.at}, with {refused.details()['error']}"
    return f"; its fetches from {leader.node} have asked for this partition since {session.time_ns / 1e9:.6f} s"


def _last_proposal(leader: ReplicaView) -> str:
    settled = leader.settled
    if settled is None:
        return f"{leader.node} has proposed nothing in this leadership"
    return f"the last change that {leader.node} proposed ended {settled.at}, and it has proposed none since"
