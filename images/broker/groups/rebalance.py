"""Rebalances: joining, completing a generation, handing out its assignment. Pure, see `group.py`."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from images.broker.groups.group import (
    NEVER_MS,
    Caller,
    ClassicGroupMember,
    Decision,
    Group,
    GroupLimits,
    GroupState,
    GroupStep,
    JoinAnswer,
    JoinRequest,
    StoreGeneration,
    StoreGroup,
    StoreReplacement,
    SyncAnswer,
)

_EXTENSION_MS_MIN: Final = 100
"""By which a rebalance that nobody has joined goes on at least: a rebalance timeout may be 0."""


def join(group: Group, request: JoinRequest, now_ms: int, limits: GroupLimits) -> GroupStep:
    """A JoinGroup request of a new or a known member."""
    error = _join_error(group, request, limits)
    if error is not ErrorCode.none:
        return _refuse_join(group, request.member_id, error)
    static = group.static_member(request.instance_id)
    if not request.member_id:
        if static is not None:
            return _replace_static(group, static, request, now_ms, limits)
        if request.id_required and request.instance_id is None:
            with_pending = group._replace(
                pending=(*group.pending, (request.new_id, now_ms + request.session_timeout_ms))
            )
            return _refuse_join(with_pending, request.new_id, ErrorCode.member_id_required)
        return _add(group, request.new_id, request, now_ms, limits)
    if any(member_id == request.member_id for member_id, _ in group.pending):
        if request.instance_id is not None:  # no static member was given it, and its instance may have a member already
            return _refuse_join(group, request.member_id, ErrorCode.unknown_server_error)
        still_pending = tuple(item for item in group.pending if item[0] != request.member_id)
        return _add(group._replace(pending=still_pending), request.member_id, request, now_ms, limits)
    if static is not None and static.id != request.member_id:
        return _refuse_join(group, request.member_id, ErrorCode.fenced_instance_id)
    member = group.member(request.member_id)
    if member is None:
        return _refuse_join(group, request.member_id, ErrorCode.unknown_member_id)
    return _rejoin(group, member, request, now_ms, limits)


def sync(
    group: Group, caller: Caller, protocol: tuple[str | None, str | None], assignments: dict[str, bytes], now_ms: int
) -> GroupStep:
    """A SyncGroup request; the leader's carries the assignments of all members.

    `protocol` is the (type, name) that the member knows.
    """
    error = check_member(group, caller)
    known = (group.protocol_type, group.protocol)
    if error is ErrorCode.none and any(
        requested is not None and requested != ours for requested, ours in zip(protocol, known, strict=True)
    ):
        error = ErrorCode.inconsistent_group_protocol
    if error is ErrorCode.none and group.state is GroupState.PREPARING:
        error = ErrorCode.rebalance_in_progress
    member = group.member(caller.member_id)
    if error is not ErrorCode.none or member is None:
        return GroupStep(group, answer=SyncAnswer(caller.member_id, error))
    if group.state is GroupState.STABLE:
        return GroupStep(group.with_member(member._replace(last_contact_ms=now_ms)), answer=_sync_answer(group, member))
    waiting = group.with_member(member._replace(syncing=True, last_contact_ms=now_ms))
    if caller.member_id != group.leader or group.storing:
        return GroupStep(waiting, waiting_member_id=member.id)
    assigned = tuple(item._replace(assignment=assignments.get(item.id, b"")) for item in waiting.members)
    storing = waiting._replace(members=assigned, storing=True)
    return GroupStep(storing, (StoreGroup(group.generation),), waiting_member_id=member.id)


def stored(group: Group, generation: int, error: ErrorCode, now_ms: int) -> GroupStep:
    """The append of `StoreGroup` is committed, or has failed.

    After a failure the group starts a new generation, in which the old assignment does not count even if it is
    committed later.
    """
    if not group.storing or group.generation != generation or group.state is not GroupState.COMPLETING:
        return GroupStep(group)
    if error is not ErrorCode.none:
        failed = tuple(SyncAnswer(member.id, error) for member in group.members if member.syncing)
        step = prepare(group._replace(members=_sessions_renewed(group.members, now_ms)), now_ms, 0)
        return step._replace(decisions=failed + step.decisions)
    answers = tuple(_sync_answer(group, member) for member in group.members if member.syncing)
    members = _sessions_renewed(group.members, now_ms)
    stable = group._replace(state=GroupState.STABLE, members=members, storing=False, deadline_ms=NEVER_MS)
    return GroupStep(stable, answers)


def replacement_stored(group: Group, member_id: str, error: ErrorCode, now_ms: int) -> GroupStep:
    """The append of `StoreReplacement` is committed, or has failed.

    After a failure the old member has its place again, as in Kafka, and the new one must join again without a member
    id. If its record is committed later all the same, a new coordinator knows a member id that no client has.
    """
    new = group.member(member_id)
    if new is None or new.replaces is None:  # it has left, was replaced itself, or takes part in a rebalance
        return GroupStep(group)
    if error is not ErrorCode.none:
        old = new.replaces._replace(last_contact_ms=now_ms)
        restored = group._replace(
            members=tuple(old if member.id == new.id else member for member in group.members),
            leader=old.id if group.leader == new.id else group.leader,
        )
        return GroupStep(restored, (JoinAnswer(new.id, error, id_known=False),))
    joined = new._replace(replaces=None, joining=False, last_contact_ms=now_ms)
    stable = group.with_member(joined)
    answer = _join_answer(stable, joined)
    if joined.id == stable.leader:
        answer = answer._replace(skip_assignment=True, leader_before=new.replaces.id)
    return GroupStep(stable, (answer,))


def _sessions_renewed(members: tuple[ClassicGroupMember, ...], now_ms: int) -> tuple[ClassicGroupMember, ...]:
    """The members, none of them waiting for SyncGroup; a member that waited starts a new session."""
    return tuple(
        member._replace(syncing=False, last_contact_ms=now_ms if member.syncing else member.last_contact_ms)
        for member in members
    )


def prepare(group: Group, now_ms: int, initial_delay_ms: int) -> GroupStep:
    """Start a rebalance: all members must join again. Completes at once if all have."""
    answers = tuple(
        SyncAnswer(member.id, ErrorCode.rebalance_in_progress) for member in group.members if member.syncing
    )
    longest_ms = group.longest_rebalance_timeout_ms
    preparing = group._replace(
        state=GroupState.PREPARING,
        members=tuple(
            member._replace(assignment=b"", replaces=None) for member in _sessions_renewed(group.members, now_ms)
        ),
        storing=False,
        deadline_ms=now_ms + longest_ms,
        initial_delay_until_ms=now_ms + min(initial_delay_ms, longest_ms),
    )
    step = complete_if_all_joined(preparing, now_ms)
    return step._replace(decisions=answers + step.decisions)


def complete_if_all_joined(group: Group, now_ms: int) -> GroupStep:
    """Complete the rebalance if no more members are expected."""
    if group.state is not GroupState.PREPARING or group.pending or now_ms < group.initial_delay_until_ms:
        return GroupStep(group)
    if group.storing:
        return GroupStep(group)
    if not all(member.joining for member in group.members):
        return GroupStep(group)
    return complete(group, now_ms)


def complete(group: Group, now_ms: int) -> GroupStep:
    """The group waits for nobody any more: the next generation begins once that is stored, at once if there are no
    members. Static members that have not joined stay in it until their session ends. If no member has joined, only such
    ones are left, and the wait begins anew, as in Kafka."""
    generation = group.generation + 1
    if not group.members:
        empty = group._replace(
            state=GroupState.EMPTY,
            generation=generation,
            protocol=None,
            leader=None,
            deadline_ms=NEVER_MS,
        )
        return GroupStep(empty, (StoreGroup(generation),))
    if not any(member.joining for member in group.members):
        extension_ms = max(group.longest_rebalance_timeout_ms, _EXTENSION_MS_MIN)
        return GroupStep(group._replace(deadline_ms=now_ms + extension_ms))
    return GroupStep(group._replace(storing=True, record_outdated=False), (StoreGeneration(generation),))


def generation_record(group: Group, generation: int) -> Group:
    """The group in the record that this generation begins. Its members are those of now, so that no later coordinator
    takes the group for one without members."""
    protocol = _elect_protocol(group.members)
    return Group.stored(group.id, group.protocol_type, generation, protocol, None, group.members)


def generation_stored(group: Group, generation: int, error: ErrorCode, now_ms: int) -> GroupStep:
    """The append of `StoreGeneration` is committed, or has failed.

    The generation has the members of now. Its number is not used in three cases. After a failure all join again, since
    the record may be committed later. If all who had joined have left, the wait begins anew. And if a static member was
    replaced meanwhile, or joined, maybe after one of its instance was removed, the record has the one before it, and a
    later coordinator would fence the living one.
    """
    if group.state is not GroupState.PREPARING or not group.storing or generation != group.generation + 1:
        return GroupStep(group)
    next_group = group._replace(generation=generation, storing=False)
    if error is not ErrorCode.none:
        failed = tuple(JoinAnswer(member.id, error) for member in group.members if member.joining)
        members = tuple(member._replace(joining=False, last_contact_ms=now_ms) for member in group.members)
        step = prepare(next_group._replace(members=members), now_ms, 0)
        return step._replace(decisions=failed + step.decisions)
    has_joined = any(member.joining for member in group.members)
    return _begin(next_group, now_ms) if has_joined and not group.record_outdated else complete(next_group, now_ms)


def _begin(group: Group, now_ms: int) -> GroupStep:
    """Begin the generation with the current members. Those that have joined are told so, and one of them leads it."""
    joined = [member.id for member in group.members if member.joining]
    completing = group._replace(
        state=GroupState.COMPLETING,
        protocol=_elect_protocol(group.members),
        leader=group.leader if group.leader in joined else joined[0],
        members=tuple(member._replace(joining=False, last_contact_ms=now_ms) for member in group.members),
        deadline_ms=now_ms + group.longest_rebalance_timeout_ms,
    )
    return GroupStep(
        completing, tuple(_join_answer(completing, member) for member in completing.members if member.id in joined)
    )


def check_member(group: Group, caller: Caller) -> ErrorCode:
    """The error for a request that is not from a member of the current generation."""
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


def _join_error(group: Group, request: JoinRequest, limits: GroupLimits) -> ErrorCode:
    if not limits.session_timeout_ms_min <= request.session_timeout_ms <= limits.session_timeout_ms_max:
        return ErrorCode.invalid_session_timeout
    if not request.protocol_type or not request.protocols:
        return ErrorCode.inconsistent_group_protocol
    if group.members:
        # As in Kafka all count, the one that joins again included: it gives up no protocol for another in one step.
        common = _common_protocols(group.members)
        if request.protocol_type != group.protocol_type or not any(name in common for name, _ in request.protocols):
            return ErrorCode.inconsistent_group_protocol
    return ErrorCode.none


def _refuse_join(group: Group, member_id: str, error: ErrorCode) -> GroupStep:
    return GroupStep(group, answer=JoinAnswer(member_id, error))


def _add(group: Group, member_id: str, request: JoinRequest, now_ms: int, limits: GroupLimits) -> GroupStep:
    first = group.state is GroupState.EMPTY
    member = _updated(
        ClassicGroupMember(member_id, client_id=request.client_id, client_host=request.client_host), request, now_ms
    )
    with_newcomer = group._replace(protocol_type=request.protocol_type, members=(*group.members, member))
    if group.state is GroupState.PREPARING:
        if now_ms < group.initial_delay_until_ms:  # the initial delay is running: more members may join
            until_ms = min(now_ms + limits.initial_rebalance_delay_ms, group.deadline_ms)
            with_newcomer = with_newcomer._replace(initial_delay_until_ms=max(group.initial_delay_until_ms, until_ms))
        if group.storing and request.instance_id is not None:
            with_newcomer = with_newcomer._replace(record_outdated=True)
        step = complete_if_all_joined(with_newcomer, now_ms)
    else:
        step = prepare(with_newcomer, now_ms, limits.initial_rebalance_delay_ms if first else 0)
    return step._replace(waiting_member_id=member_id)


def _rejoin(
    group: Group, member: ClassicGroupMember, request: JoinRequest, now_ms: int, limits: GroupLimits
) -> GroupStep:
    """A known member joins again: its response was lost, its subscription changed, or a rebalance started."""
    updated = group.with_member(_updated(member, request, now_ms))
    if group.state is GroupState.PREPARING:
        return complete_if_all_joined(updated, now_ms)._replace(waiting_member_id=member.id)
    unchanged = member.protocols == request.protocols
    if unchanged and (
        group.state is GroupState.COMPLETING or (group.state is GroupState.STABLE and member.id != group.leader)
    ):
        renewed = member._replace(last_contact_ms=now_ms)
        return GroupStep(group.with_member(renewed), answer=_join_answer(group, renewed))
    return prepare(updated, now_ms, 0)._replace(waiting_member_id=member.id)


def _replace_static(
    group: Group, old: ClassicGroupMember, request: JoinRequest, now_ms: int, limits: GroupLimits
) -> GroupStep:
    """A static member returns under a new member id: it replaces the old one, whose id is fenced.

    If the group would elect the same protocol, it does not rebalance, and the new member joins once the replacement is
    stored. Should a rebalance begin before that, it takes part as one that has joined.
    """
    fenced: list[Decision] = []
    if old.joining:
        fenced.append(JoinAnswer(old.id, ErrorCode.fenced_instance_id))
    if old.syncing:
        fenced.append(SyncAnswer(old.id, ErrorCode.fenced_instance_id))
    new = old._replace(id=request.new_id, joining=False, syncing=False, last_contact_ms=now_ms)
    replaced = group._replace(
        members=tuple(new if member.id == old.id else member for member in group.members),
        leader=new.id if group.leader == old.id else group.leader,
    )
    # A replacement that is not committed yet is itself replaced: what may have to come back is the member before.
    waiting = replaced.with_member(_updated(new, request, now_ms)._replace(replaces=old.replaces or old))
    if group.state is GroupState.STABLE and _elect_protocol(waiting.members) == group.protocol:
        stores = StoreReplacement(group.generation, new.id)
        return GroupStep(waiting, (*fenced, stores), waiting_member_id=new.id)
    joining = replaced.with_member(_updated(new, request, now_ms))
    if group.state is GroupState.PREPARING and group.storing:
        joining = joining._replace(record_outdated=True)
    step = (
        complete_if_all_joined(joining, now_ms)
        if group.state is GroupState.PREPARING
        else prepare(joining, now_ms, limits.initial_rebalance_delay_ms if group.state is GroupState.EMPTY else 0)
    )
    return step._replace(decisions=(*fenced, *step.decisions), waiting_member_id=new.id)


def _updated(member: ClassicGroupMember, request: JoinRequest, now_ms: int) -> ClassicGroupMember:
    return member._replace(
        instance_id=request.instance_id,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if request.rebalance_timeout_ms >= 0
        else request.session_timeout_ms,
        protocols=request.protocols,
        last_contact_ms=now_ms,
        joining=True,
    )


def _join_answer(group: Group, member: ClassicGroupMember) -> JoinAnswer:
    everyone = tuple((item.id, item.instance_id, item.metadata_for(group.protocol)) for item in group.members)
    return JoinAnswer(
        member.id,
        ErrorCode.none,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        everyone if member.id == group.leader else (),
    )


def _sync_answer(group: Group, member: ClassicGroupMember) -> SyncAnswer:
    return SyncAnswer(member.id, ErrorCode.none, group.protocol_type, group.protocol, member.assignment)


# --- the choice of a protocol -----------------------------------------------------------------------------------------


def _common_protocols(members: tuple[ClassicGroupMember, ...]) -> list[str]:
    """The protocols that all members support, in the first member's order."""
    known = [dict(member.protocols) for member in members]
    return [name for name, _ in members[0].protocols if all(name in names for names in known)]


def _elect_protocol(members: tuple[ClassicGroupMember, ...]) -> str:
    """The protocol with most votes: each member votes for its preferred one of those all support; on a tie the first
    member's preference wins."""
    candidates = _common_protocols(members)
    votes = dict.fromkeys(candidates, 0)
    for member in members:
        votes[next(name for name, _ in member.protocols if name in votes)] += 1
    return max(candidates, key=votes.__getitem__)
