"""Rebalances of a group: joining, completing a generation, handing out its assignment. Pure, see `group.py`."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from images.broker.groups.group import (
    NEVER_MS,
    Caller,
    Decision,
    Group,
    GroupLimits,
    GroupState,
    Join,
    JoinAnswer,
    Member,
    Step,
    Store,
    SyncAnswer,
)


def join(group: Group, ask: Join, now_ms: int, limits: GroupLimits) -> Step:
    """A client asks to join, for the first time or again."""
    error = _refuses(group, ask, limits)
    if error is not ErrorCode.none:
        return _join_refused(group, ask.member_id, error)
    static = group.static_member(ask.instance_id)
    if not ask.member_id:
        if static is not None:
            return _replace_static(group, static, ask, now_ms, limits)
        if ask.id_required and ask.instance_id is None:
            waited_for = group._replace(pending=(*group.pending, (ask.new_id, now_ms + ask.session_timeout_ms)))
            return _join_refused(waited_for, ask.new_id, ErrorCode.member_id_required)
        return _add(group, ask.new_id, ask, now_ms, limits)
    if any(identity == ask.member_id for identity, _ in group.pending):
        awaited = tuple(item for item in group.pending if item[0] != ask.member_id)
        return _add(group._replace(pending=awaited), ask.member_id, ask, now_ms, limits)
    if static is not None and static.id != ask.member_id:
        return _join_refused(group, ask.member_id, ErrorCode.fenced_instance_id)
    member = group.member(ask.member_id)
    if member is None:
        return _join_refused(group, ask.member_id, ErrorCode.unknown_member_id)
    return _again(group, member, ask, now_ms, limits)


def sync(
    group: Group, caller: Caller, protocol: tuple[str | None, str | None], assignments: dict[str, bytes], now_ms: int
) -> Step:
    """A member asks for its assignment; the leader brings everybody's. `protocol` is (type, name) as it knows them."""
    error = check_member(group, caller)
    known = (group.protocol_type, group.protocol)
    if error is ErrorCode.none and any(
        told is not None and told != ours for told, ours in zip(protocol, known, strict=True)
    ):
        error = ErrorCode.inconsistent_group_protocol
    if error is ErrorCode.none and group.state is GroupState.PREPARING:
        error = ErrorCode.rebalance_in_progress
    member = group.member(caller.member_id)
    if error is not ErrorCode.none or member is None:
        return Step(group, answer=SyncAnswer(caller.member_id, error))
    if group.state is GroupState.STABLE:
        return Step(group.with_member(member._replace(heard_ms=now_ms)), answer=_assignment(group, member))
    waiting = group.with_member(member._replace(syncing=True, heard_ms=now_ms))
    if caller.member_id != group.leader or group.storing:
        return Step(waiting, waiting=member.id)
    assigned = tuple(item._replace(assignment=assignments.get(item.id, b"")) for item in waiting.members)
    storing = waiting._replace(members=assigned, storing=True)
    return Step(storing, (Store(group.generation),), waiting=member.id)


def stored(group: Group, generation: int, error: ErrorCode, now_ms: int) -> Step:
    """What `Store` asked for is committed, or certainly is not yet: then the generation is given up for a new one, in
    which the old assignment, should it come to be committed after all, does not count."""
    if not group.storing or group.generation != generation or group.state is not GroupState.COMPLETING:
        return Step(group)
    if error is not ErrorCode.none:
        failed = tuple(SyncAnswer(member.id, error) for member in group.members if member.syncing)
        step = prepare(group._replace(members=_answered(group.members, now_ms)), now_ms, 0)
        return step._replace(decisions=failed + step.decisions)
    answers = tuple(_assignment(group, member) for member in group.members if member.syncing)
    members = _answered(group.members, now_ms)
    stable = group._replace(state=GroupState.STABLE, members=members, storing=False, deadline_ms=NEVER_MS)
    return Step(stable, answers)


def _answered(members: tuple[Member, ...], now_ms: int) -> tuple[Member, ...]:
    """Members of whom none waits for its assignment any more; the session of one that did begins anew."""
    return tuple(
        member._replace(syncing=False, heard_ms=now_ms if member.syncing else member.heard_ms) for member in members
    )


def prepare(group: Group, now_ms: int, initial_delay_ms: int) -> Step:
    """Begin a rebalance: everybody is to join anew. Completes at once if everybody has."""
    answers = tuple(
        SyncAnswer(member.id, ErrorCode.rebalance_in_progress) for member in group.members if member.syncing
    )
    longest_ms = max((member.rebalance_timeout_ms for member in group.members), default=0)
    preparing = group._replace(
        state=GroupState.PREPARING,
        members=tuple(member._replace(assignment=b"") for member in _answered(group.members, now_ms)),
        storing=False,
        deadline_ms=now_ms + longest_ms,
        grows_until_ms=now_ms + min(initial_delay_ms, longest_ms),
    )
    step = complete_if_all_joined(preparing, now_ms)
    return step._replace(decisions=answers + step.decisions)


def complete_if_all_joined(group: Group, now_ms: int) -> Step:
    """Complete the rebalance if nobody is waited for any more."""
    if group.state is not GroupState.PREPARING or group.pending or now_ms < group.grows_until_ms:
        return Step(group)
    if not all(member.joining for member in group.members):
        return Step(group)
    return complete(group, now_ms)


def complete(group: Group, now_ms: int) -> Step:
    """Begin the next generation with the members there are, all of whom have joined."""
    generation = group.generation + 1
    if not group.members:
        empty = group._replace(
            state=GroupState.EMPTY,
            generation=generation,
            protocol=None,
            leader=None,
            deadline_ms=NEVER_MS,
        )
        return Step(empty, (Store(generation),))
    leader = group.leader if group.leader and group.member(group.leader) else group.members[0].id
    begun = group._replace(
        state=GroupState.COMPLETING,
        generation=generation,
        protocol=_vote(group.members),
        leader=leader,
        members=tuple(member._replace(joining=False, heard_ms=now_ms) for member in group.members),
        deadline_ms=now_ms + max(member.rebalance_timeout_ms for member in group.members),
    )
    return Step(begun, tuple(_joined(begun, member) for member in begun.members))


def check_member(group: Group, caller: Caller) -> ErrorCode:
    """The error for a request of somebody who is not a member of the current generation."""
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    static = group.static_member(caller.instance_id)
    if caller.instance_id is not None and static is None:
        return ErrorCode.unknown_member_id
    if static is not None and static.id != caller.member_id:
        return ErrorCode.fenced_instance_id
    if group.member(caller.member_id) is None:
        return ErrorCode.unknown_member_id
    if caller.generation != group.generation:
        return ErrorCode.illegal_generation
    return ErrorCode.none


# --- joining ----------------------------------------------------------------------------------------------------------


def _refuses(group: Group, ask: Join, limits: GroupLimits) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    if not limits.session_timeout_ms_min <= ask.session_timeout_ms <= limits.session_timeout_ms_max:
        return ErrorCode.invalid_session_timeout
    if not ask.protocol_type or not ask.protocols:
        return ErrorCode.inconsistent_group_protocol
    others = tuple(member for member in group.members if member.id != ask.member_id)
    if others:
        names = [name for name, _ in ask.protocols]
        if ask.protocol_type != group.protocol_type or not any(name in _common(others) for name in names):
            return ErrorCode.inconsistent_group_protocol
    return ErrorCode.none


def _join_refused(group: Group, member_id: str, error: ErrorCode) -> Step:
    return Step(group, answer=JoinAnswer(member_id, error))


def _add(group: Group, identity: str, ask: Join, now_ms: int, limits: GroupLimits) -> Step:
    first = group.state is GroupState.EMPTY
    member = _updated(Member(identity, client_id=ask.client_id, client_host=ask.client_host), ask, now_ms)
    grown = group._replace(protocol_type=ask.protocol_type, members=(*group.members, member))
    if group.state is GroupState.PREPARING:
        if now_ms < group.grows_until_ms:  # the group is still gathering: the newcomer may not be the last
            until_ms = min(now_ms + limits.initial_rebalance_delay_ms, group.deadline_ms)
            grown = grown._replace(grows_until_ms=max(group.grows_until_ms, until_ms))
        step = complete_if_all_joined(grown, now_ms)
    else:
        step = prepare(grown, now_ms, limits.initial_rebalance_delay_ms if first else 0)
    return step._replace(waiting=identity)


def _again(group: Group, member: Member, ask: Join, now_ms: int, limits: GroupLimits) -> Step:
    """A known member joins again: its answer was lost, its subscription changed, or a rebalance is on."""
    updated = group.with_member(_updated(member, ask, now_ms))
    if group.state is GroupState.PREPARING:
        return complete_if_all_joined(updated, now_ms)._replace(waiting=member.id)
    unchanged = member.protocols == ask.protocols
    if unchanged and (
        group.state is GroupState.COMPLETING or (group.state is GroupState.STABLE and member.id != group.leader)
    ):
        heard = member._replace(heard_ms=now_ms)
        return Step(group.with_member(heard), answer=_joined(group, heard))
    return prepare(updated, now_ms, 0)._replace(waiting=member.id)


def _replace_static(group: Group, old: Member, ask: Join, now_ms: int, limits: GroupLimits) -> Step:
    """A static member is back under a new id: it takes the old one's place, and the old id is fenced. While nothing
    changed, the others need not even notice."""
    fenced: list[Decision] = []
    if old.joining:
        fenced.append(JoinAnswer(old.id, ErrorCode.fenced_instance_id))
    if old.syncing:
        fenced.append(SyncAnswer(old.id, ErrorCode.fenced_instance_id))
    new = old._replace(id=ask.new_id, joining=False, syncing=False, heard_ms=now_ms)
    replaced = group._replace(
        members=tuple(new if member.id == old.id else member for member in group.members),
        leader=new.id if group.leader == old.id else group.leader,
    )
    if group.state is GroupState.STABLE and old.protocols == ask.protocols:
        answer = _joined(replaced, new)._replace(skip_assignment=True)
        return Step(replaced, (*fenced, Store(group.generation)), answer=answer)
    joining = replaced.with_member(_updated(new, ask, now_ms))
    step = (
        complete_if_all_joined(joining, now_ms)
        if group.state is GroupState.PREPARING
        else prepare(joining, now_ms, limits.initial_rebalance_delay_ms if group.state is GroupState.EMPTY else 0)
    )
    return step._replace(decisions=(*fenced, *step.decisions), waiting=new.id)


def _updated(member: Member, ask: Join, now_ms: int) -> Member:
    return member._replace(
        instance_id=ask.instance_id,
        session_timeout_ms=ask.session_timeout_ms,
        rebalance_timeout_ms=ask.rebalance_timeout_ms if ask.rebalance_timeout_ms >= 0 else ask.session_timeout_ms,
        protocols=ask.protocols,
        heard_ms=now_ms,
        joining=True,
    )


def _joined(group: Group, member: Member) -> JoinAnswer:
    everybody = tuple((item.id, item.instance_id, item.metadata_for(group.protocol)) for item in group.members)
    return JoinAnswer(
        member.id,
        ErrorCode.none,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        everybody if member.id == group.leader else (),
    )


def _assignment(group: Group, member: Member) -> SyncAnswer:
    return SyncAnswer(member.id, ErrorCode.none, group.protocol_type, group.protocol, member.assignment)


# --- the choice of a protocol -----------------------------------------------------------------------------------------


def _common(members: tuple[Member, ...]) -> list[str]:
    """The protocols every member knows, in the first one's order."""
    known = [dict(member.protocols) for member in members]
    return [name for name, _ in members[0].protocols if all(name in names for names in known)]


def _vote(members: tuple[Member, ...]) -> str:
    """Each member votes for the one it likes best of those all know; a draw falls to what the first member prefers."""
    candidates = _common(members)
    votes = dict.fromkeys(candidates, 0)
    for member in members:
        votes[next(name for name, _ in member.protocols if name in votes)] += 1
    return max(candidates, key=votes.__getitem__)
