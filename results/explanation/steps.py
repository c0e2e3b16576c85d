"""Broken steps: events of the trace that a node which keeps the replication protocol never writes.

Each function looks at one kind of event together with what the nodes believed just before it (`replay`), and names the
step by what was done, never by a switch or a setting: `high-watermark-without-proposed-member` is a leader that moves
its high watermark while a replica that it has proposed for the ISR lacks the records. Steps are candidates: `stories`
takes one for a cause only where a check found something about the same records at that time or later. So a step here
may be lenient where a checker is strict.

A step says which fact the trace does not have. The trace has no fetch requests: what a leader counted for a follower is
in it, the request that told the leader is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from checkers.protocol.state import differs
from checkers.tables import TraceRow
from results.explanation import (
    belief_steps,
    decision_steps,
    election_steps,
    log_bounds_steps,
    log_steps,
    refusal_steps,
)
from results.explanation.decision_steps import proposals_of
from results.explanation.event_facts import batch_of, is_unclean_election, positions_of, take_past
from results.explanation.replay import (
    UNKNOWN,
    Decision,
    PartitionReplay,
    ReplicaView,
)
from results.explanation.story import Belief, Step, StepKind, brokers, listed, span

NO_FETCHES: Final = "the trace has no fetch requests"


def broken_steps(events: Iterable[TraceRow]) -> list[Step]:
    """Every broken step of one partition, in the order of its events."""
    state, steps = PartitionReplay(), []
    for event in events:
        fresh = [
            *(step for look in _ALWAYS for step in look(state, event)),
            *(step for looks in _ALL_LOOKS for look in looks.get(event.kind, ()) for step in look(state, event)),
        ]
        state.apply(event)
        decided = str(state.decision) if state.decision is not None else ""
        steps += [replace(step, beliefs=state.beliefs(), decided=decided) for step in fresh]
    return steps


def beliefs_at(events: Iterable[TraceRow], time_ns: int) -> tuple[tuple[Belief, ...], str]:
    """What each node believed of a partition at a moment, and what the controllers had decided last."""
    state = PartitionReplay()
    for event in events:
        if event.time_ns > time_ns:
            break
        state.apply(event)
    return state.beliefs(), str(state.decision) if state.decision is not None else ""


# ---- the high watermark and what rests on it -------------------------------------------------------------------------


def _high_watermark(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    leader = state.replica(event.node)
    before, after = max(event.offset, 0), event.high_watermark
    quorum = frozenset(event.members) | {event.number}
    moved = f"{event.node} moved its high watermark {before} → {after} with the quorum {brokers(quorum)}"

    def step(kind: StepKind, text: str, **more: object) -> Step:
        return Step(kind, event.time_ns, event.node, text, before, max(after, before + 1), **more)  # type: ignore[arg-type]

    if after < before or (after < leader.high_watermark and leader.role == "leader"):
        yield step(StepKind.HIGH_WATERMARK_FELL, f"{moved}: it had been {max(before, leader.high_watermark)}")
    if after > len(leader.log):
        yield step(StepKind.HIGH_WATERMARK_ABOVE_LOG_END, f"{moved}: its own log ends at {len(leader.log)}")
    counted = list(_counted_wrongly(state, leader, event, quorum))
    yield from (step(kind, f"{moved}: {why}", before=events, lacking=lacking) for kind, why, events, lacking in counted)
    proposal, decision = leader.proposal, state.decided_in(event.leader_epoch)
    if proposal is not None and (left_out := proposal.members - quorum):
        asked = ((proposal.time_ns, f"{event.node} proposed the ISR {brokers(proposal.members)}"),)
        why = f"without {listed(left_out)}, which it had proposed for the ISR and which may be a member already"
        yield step(StepKind.HIGH_WATERMARK_WITHOUT_PROPOSED_MEMBER, f"{moved}, {why}", before=asked)
    if decision is None:
        return
    left_out = decision.isr - quorum
    if left_out and len(decision.isr) >= decision.min_isr:
        why = f"without {listed(left_out)}, which the controllers have in the ISR"
        if proposal is not None and not left_out & proposal.members:
            why += (
                f": {event.node} has proposed the ISR {brokers(proposal.members)} and counts on it before it is decided"
            )
        yield step(
            StepKind.HIGH_WATERMARK_WITHOUT_ISR_MEMBER,
            f"{moved}, {why}",
            before=((decision.time_ns, f"the controllers decided the ISR {brokers(decision.isr)}"),),
        )
    if len(quorum) < decision.min_isr and decision is state.decision and state.has_read(event.node, decision):
        yield step(StepKind.HIGH_WATERMARK_WITH_SMALL_QUORUM, f"{moved}: min.insync.replicas is {decision.min_isr}")


def _counted_wrongly(
    state: PartitionReplay, leader: ReplicaView, event: TraceRow, quorum: frozenset[int]
) -> Iterator[tuple[StepKind, str, tuple[tuple[int, str], ...], str]]:
    """(kind, why, events before, fact that is lacking) for each member of the quorum that lacks the records, or was not
    counted as far."""
    before, after, positions = max(event.offset, 0), event.high_watermark, positions_of(event)
    for number in sorted(quorum - {event.number}):
        if positions.get(number, after) < 0:
            why = f"it had no fetch of b{number} yet, whose position it does not know"
            yield StepKind.UNKNOWN_POSITION_COUNTED, why, (), ""
            continue
        if positions.get(number, after) < after:
            why = f"it had counted b{number} at {positions[number]} only"
            yield StepKind.HIGH_WATERMARK_ABOVE_COUNTED_POSITION, why, (), ""
            continue
        member = state.replicas.get(f"b{number}")
        if member is None or state.removed_after(number, event.partition_epoch):
            continue  # it held the records until it was removed: nothing rests on it since, and it may be added anew
        place = differs(member.log[before:after], leader.log[before:after])
        if place is None:
            continue
        name, counted, lacks = member.node, positions.get(number), before + place
        position = f"at {counted}" if counted is not None else "in the quorum"
        lacking = f"which request told {event.node} the position of {name}: {NO_FETCHES}"
        if lacks < len(member.log):
            held = f"holds another record at {lacks}, of epoch {member.log[lacks]}"
            why = f"it counted {name} {position}, and {name} {held}"
            yield StepKind.DIVERGING_POSITION_COUNTED, why, (), lacking
        elif (cut := _cut(member, after)) is not None:
            if (
                member.shortened
                and member.shortened.kind == "log_recovered"
                and not state.knows_life(event.node, number)
            ):
                continue  # it cannot know yet that a restart has taken records from the follower
            why = f"it counted {name} {position}, where it had been before; the log of {name} ends at {len(member.log)}"
            yield StepKind.STALE_POSITION_COUNTED, why, (cut,), lacking
        else:
            why = f"it counted {name} {position}, and the log of {name} ends at {len(member.log)}"
            yield StepKind.POSITION_AHEAD_OF_LOG_COUNTED, why, (), lacking


def _cut(member: ReplicaView, position: int) -> tuple[int, str] | None:
    """The event that shortened a log which had reached `position` once, for a story; None if none did."""
    event = member.shortened
    if event is None or member.greatest_end < position:
        return None
    if event.kind == "log_recovered":
        return event.time_ns, f"the log of {member.node} came back ending at {event.log_end}"
    return event.time_ns, f"{member.node} cut its log {event.log_end} → {event.offset}"


def _acknowledged(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    end = max(event.log_end, event.offset + 1)  # there is a record at the offset that is told, whatever its end
    acknowledged = f"{event.node} acknowledged {span(event.offset, end)}"

    def step(kind: StepKind, text: str, before: tuple[tuple[int, str], ...] = ()) -> Step:
        return Step(kind, event.time_ns, event.node, text, event.offset, end, before=before)

    replica = state.replica(event.node)
    if replica.role == "follower":
        role = f"followed b{replica.leader}" if replica.leader >= 0 else "had no leader"
        held = f"its log ends at {len(replica.log)}"
        if event.offset < len(replica.log):
            held = f"its log holds a record of epoch {replica.log[event.offset]} there"
        cut = _cut(replica, event.offset)
        yield step(
            StepKind.ACKNOWLEDGED_WITHOUT_LEADERSHIP,
            f"{acknowledged} while it {role} in epoch {replica.leader_epoch}: {held}",
            (cut,) if cut is not None else (),
        )
    elif end > event.high_watermark and event.details().get("acks", -1) == -1:
        batch = ", to a retry of a batch that it holds," if "retry" in event.details() else ""
        yield step(
            StepKind.ACKNOWLEDGED_ABOVE_HIGH_WATERMARK,
            f"{acknowledged} with acks=all{batch} while its high watermark was {event.high_watermark}",
        )


def _latest_told(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    leader = state.replica(event.node)
    start, watermark = leader.epoch_start, leader.high_watermark
    if event.high_watermark < start:
        later = f", although its high watermark was {watermark} by then" if watermark >= start else ""
        yield Step(
            StepKind.LATEST_OFFSET_BELOW_EPOCH_START,
            event.time_ns,
            event.node,
            f"{event.node} reported {event.high_watermark} as the latest offset, below the start {start} of its leader "
            f"epoch {event.leader_epoch}{later}: what lies between may be committed",
            max(event.high_watermark, 0),
            start,
        )


# ---- the ISR ---------------------------------------------------------------------------------------------------------


def _isr_proposed(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    leader = state.replica(event.node)
    for number, position in sorted(positions_of(event).items()):
        name, member = f"b{number}", state.replicas.get(f"b{number}")
        seen = "never" if position < 0 else f"at {position}"
        proposed = f"{event.node} proposed {name} for the ISR, and had seen it {seen}"
        bound = max(event.high_watermark, event.offset)
        step = Step(StepKind.ISR_JOIN_BELOW_EPOCH_START, event.time_ns, event.node, "", max(position, 0), bound)
        step = replace(step, lacking=f"which request told {event.node} the position of {name}: {NO_FETCHES}")
        if position < event.offset:
            where = f"below the start {event.offset} of its leader epoch {event.leader_epoch}"
            yield replace(step, text=f"{proposed}, {where}")
        elif position < bound:
            where = f"below its high watermark {event.high_watermark}"
            yield replace(step, kind=StepKind.ISR_JOIN_BELOW_HIGH_WATERMARK, text=f"{proposed}, {where}")
        elif member is not None and (place := differs(member.log[:bound], leader.log[:bound])) is not None:
            if place < member.log_start:
                continue
            held = f"the log of {name} ends at {len(member.log)}"
            if place < len(member.log):
                held = f"{name} holds another record at {place}, of epoch {member.log[place]}"
            cut = _cut(member, position)
            before = (cut,) if cut is not None else ()
            kind = StepKind.ISR_JOIN_OF_INCOMPLETE_LOG
            yield replace(step, kind=kind, text=f"{proposed}; {held}", first=place, before=before)


def _partition_changed(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    before = state.decision
    if event.offset < state.metadata_offset or before is None:
        return
    yield from _kept_in_elr(state, Decision.of(event), event)
    yield from _joined_elr(state, before, event)
    if event.leader >= 0 and event.leader_epoch != before.leader_epoch:
        yield from _elected(state, event)
    elif event.leader >= 0 and (led := state.leaders.get(event.leader_epoch, f"b{event.leader}")) != f"b{event.leader}":
        epoch = f"leader epoch {event.leader_epoch}, in which {led} had led"
        text = f"{event.node} made b{event.leader} leader in {epoch}"
        kind = StepKind.LEADER_CHANGED_IN_LEADER_EPOCH
        yield Step(kind, event.time_ns, event.node, text, len(state.committed))
    joined = frozenset(event.members) - before.isr
    if event.details().get("reason") != "alter_partition":
        return
    members = frozenset(event.members)
    fitting = proposals_of(state, before, Decision.of(event))
    current = [proposal for proposal in fitting if proposal.partition_epoch == before.partition_epoch]
    if not fitting:
        return
    proposal = (current or fitting)[-1]
    asked = f"the leader had proposed {brokers(members)} from partition epoch {proposal.partition_epoch}"
    accepted = f"{event.node} accepted the ISR {brokers(members)}"
    if not current:
        yield Step(
            StepKind.ISR_CHANGE_FROM_STALE_PARTITION_EPOCH,
            event.time_ns,
            event.node,
            f"{accepted} in partition epoch {before.partition_epoch}, proposed from the earlier partition epoch "
            f"{proposal.partition_epoch}",
            before=((proposal.time_ns, asked),),
        )
    for member in sorted(joined):
        registered = state.broker_epochs.get(member, UNKNOWN)
        proposed_in = proposal.epochs.get(member, registered)
        if proposed_in != registered:
            started_ns = state.started_ns.get(member, proposal.time_ns)
            yield Step(
                StepKind.ISR_JOIN_OF_EARLIER_LIFE,
                event.time_ns,
                event.node,
                f"{accepted}, proposed before b{member} started anew: in broker epoch {proposed_in}, and b{member} is "
                f"registered in {registered}",
                before=((proposal.time_ns, asked), (started_ns, f"b{member} started anew")),
            )


def _kept_in_elr(state: PartitionReplay, decision: Decision, event: TraceRow) -> Iterator[Step]:
    if decision.elr and len(decision.isr) >= decision.min_isr:
        yield Step(
            StepKind.ELR_BESIDE_FULL_ISR,
            event.time_ns,
            event.node,
            f"{event.node} kept {listed(decision.elr)} in the ELR beside the ISR {brokers(decision.isr)}, which "
            f"commits without it: min.insync.replicas is {decision.min_isr}",
            len(state.committed),
        )


def _joined_elr(state: PartitionReplay, before: Decision, event: TraceRow) -> Iterator[Step]:
    """Replicas that enter the ELR from elsewhere than the ISR. What a new controller has taken over may be several
    changes at once."""
    if event.details().get("taken_over"):
        return
    for broker in sorted(Decision.of(event).elr - before.isr - before.elr):
        missing = _missing_committed(state, broker)
        first, end = missing or (len(state.committed), -1)
        lacks = f"; its log lacks the committed {span(*missing)}" if missing else ""
        yield Step(
            StepKind.ELR_JOIN_FROM_OUTSIDE,
            event.time_ns,
            event.node,
            f"{event.node} put b{broker} into the ELR, which was neither in the ISR {brokers(before.isr)} nor in the "
            f"ELR {brokers(before.elr)}{lacks}",
            first,
            end,
        )


def _elected(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    before = state.decision
    assert before is not None
    elected = f"{event.node} elected b{event.leader} in leader epoch {event.leader_epoch}"
    held = f"the ISR was {brokers(before.isr)} and the ELR {brokers(before.elr)}"
    missing = _missing_committed(state, event.leader)
    first, end = missing or (len(state.committed), -1)
    lacks = f"; b{event.leader} lacks the committed {span(*missing)}" if missing else ""
    if event.leader not in before.isr | before.elr | frozenset(event.members if _requested(event) else ()):
        kind = StepKind.UNCLEAN_ELECTION if is_unclean_election(event) else StepKind.ELECTED_OUTSIDE_ISR
        yield Step(kind, event.time_ns, event.node, f"{elected}, outside of ISR and ELR: {held}{lacks}", first, end)
    elif missing:
        yield Step(
            StepKind.ELECTED_WITHOUT_COMMITTED_RECORDS,
            event.time_ns,
            event.node,
            f"{elected}{lacks}; {held}",
            first,
            end,
        )


def _missing_committed(state: PartitionReplay, broker: int) -> tuple[int, int] | None:
    """From the first committed record that a broker does not hold to the end of what is committed; None if it has all,
    or nothing is known of it."""
    replica = state.replicas.get(f"b{broker}")
    first = state.first_missing(replica) if replica is not None else None
    return (first, len(state.committed)) if first is not None else None


def _requested(event: TraceRow) -> bool:
    return event.details().get("reason") == "alter_partition"


def _kept_unclean(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    """A broker that registered after an unclean shutdown, and is still a member once that instant is over."""
    for broker, time_ns in take_past(state.unclean, event.time_ns):
        decision = state.decision
        if decision is None or broker not in decision.isr | decision.elr:
            continue
        where = "ISR" if broker in decision.isr else "ELR"
        missing = _missing_committed(state, broker)
        first, end = missing or (0, -1)
        lacks = f"; its log lacks the committed {span(*missing)}" if missing else ""
        yield Step(
            StepKind.UNCLEAN_BROKER_KEPT,
            time_ns,
            f"b{broker}",
            f"b{broker} registered after an unclean shutdown and stayed in the {where}{lacks}",
            first,
            end,
        )


# ---- logs ------------------------------------------------------------------------------------------------------------


def _appended(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    replica = state.replica(event.node)
    if event.leader == event.number or event.leader < 0:
        batch = batch_of(event)
        if batch is not None and (copy := replica.batches.get(batch)) is not None and copy.offset < event.offset:
            yield Step(
                StepKind.BATCH_APPENDED_AGAIN,
                event.time_ns,
                event.node,
                f"{event.node} appended a batch at {event.offset} that it holds {copy}: producer id {batch[0]}, "
                f"sequence {batch[1]}",
                copy.offset,
                event.log_end,
            )
        return
    since, leader = replica.following_since, state.replicas.get(f"b{event.leader}")
    if since is not None and leader is not None:
        yield from appended_behind(replica, leader, since, event)


def appended_behind(replica: ReplicaView, leader: ReplicaView, since: TraceRow, event: TraceRow) -> Iterator[Step]:
    """The step of a follower, at the first append `event` since it followed, if the records before it are not those of
    its leader."""
    low, end = max(replica.log_start, leader.log_start), min(event.offset, len(replica.log))
    place = differs(replica.log[low:end], leader.log[low:end])
    if place is None:
        return
    first, cut = low + place, replica.shortened
    how = "and had cut nothing since it followed"
    if cut is not None and cut.kind in ("truncated", "metadata_truncated") and cut.time_ns >= since.time_ns:
        how = f"and had cut its log to {cut.offset} only"
    theirs = f", where {leader.node} holds one of epoch {leader.log[first]}" if first < len(leader.log) else ""
    followed = f"{event.node} followed {leader.node} in epoch {since.leader_epoch}, its log ending at {since.log_end}"
    yield Step(
        StepKind.APPENDED_BEHIND_DIVERGING_RECORDS,
        event.time_ns,
        event.node,
        f"{event.node} appended {span(event.offset, event.log_end)} of its leader {leader.node} behind a record of "
        f"epoch {replica.log[first]} at {first}{theirs}, {how}",
        first,
        event.log_end,
        before=((since.time_ns, followed),),
    )


def _truncated(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    replica = state.replica(event.node)
    end = min(len(replica.log), len(state.committed))
    if "log_start" in event.details() or event.offset >= end:
        return
    held = differs(replica.log[event.offset : end], state.committed[event.offset : end])
    if held == 0 or replica.log[event.offset] == UNKNOWN:
        return  # other records than the committed ones, or nobody knows which: a power loss may have undone a cut
    watermark = f", its own high watermark was {event.high_watermark}" if event.high_watermark >= 0 else ""
    if (answer := event.details().get("answer")) is not None:
        watermark += f"; its leader had answered that epoch {answer[0]} ends at {answer[1]}"
    yield Step(
        StepKind.COMMITTED_RECORDS_TRUNCATED,
        event.time_ns,
        event.node,
        f"{event.node} cut its log {len(replica.log)} → {event.offset} as follower of b{event.leader}, and with it the "
        f"committed {span(event.offset, end if held is None else event.offset + held)}{watermark}",
        event.offset,
        end if held is None else event.offset + held,
        lacking="" if event.high_watermark >= 0 else f"why it cut there: {NO_FETCHES}",
    )


def _became_leader(state: PartitionReplay, event: TraceRow) -> Iterator[Step]:
    replica = state.replica(event.node)
    led_before = state.leaders.get(event.leader_epoch, event.node)
    if led_before != event.node:
        yield Step(
            StepKind.TWO_LEADERS_IN_ONE_EPOCH,
            event.time_ns,
            event.node,
            f"{event.node} led in leader epoch {event.leader_epoch}, in which {led_before} had led before",
            max(event.offset, 0),
        )
    missing = state.first_missing(replica)
    last = max((decision.leader_epoch for decision in state.decisions.values()), default=-1)  # also of a deleted topic
    if missing is not None and event.leader_epoch >= last:
        yield Step(
            StepKind.LED_WITHOUT_COMMITTED_RECORDS,
            event.time_ns,
            event.node,
            f"{event.node} became leader in epoch {event.leader_epoch} without the committed "
            f"{span(missing, len(state.committed))}",
            missing,
            len(state.committed),
        )


_ALWAYS: Final = (_kept_unclean, decision_steps.ALWAYS, election_steps.ALWAYS, *belief_steps.ALWAYS)
"""Looks at every event."""
_LOOKS: Final[Mapping[str, tuple[Callable[[PartitionReplay, TraceRow], Iterator[Step]], ...]]] = {
    "high_watermark": (_high_watermark,),
    "acknowledged": (_acknowledged,),
    "latest_told": (_latest_told,),
    "isr_proposed": (_isr_proposed,),
    "partition_changed": (_partition_changed,),
    "appended": (_appended,),
    "truncated": (_truncated,),
    "became_leader": (_became_leader,),
}
_ALL_LOOKS: Final = (
    belief_steps.LOOKS, log_steps.LOOKS, log_bounds_steps.LOOKS, decision_steps.LOOKS, election_steps.LOOKS,
    refusal_steps.LOOKS, _LOOKS,
)  # fmt: skip
