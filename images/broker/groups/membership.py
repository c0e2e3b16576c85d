"""Members outside of rebalances: heartbeats, leaving, session expiry, commits. Pure, see `group.py`."""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from images.broker.groups.group import (
    NEVER_MS,
    NO_GENERATION,
    Caller,
    ClassicGroupMember,
    Decision,
    Group,
    GroupLimits,
    GroupState,
    GroupStep,
    JoinAnswer,
    SyncAnswer,
)
from images.broker.groups.rebalance import check_member, complete, complete_if_all_joined, prepare


def heartbeat(group: Group, caller: Caller, now_ms: int) -> tuple[Group, ErrorCode]:
    """A Heartbeat renews the session; REBALANCE_IN_PROGRESS asks the member to join again."""
    error = check_member(group, caller)
    if error is not ErrorCode.none:
        return group, error
    preparing = group.state is GroupState.PREPARING
    return _renew_session(group, caller.member_id, now_ms), (
        ErrorCode.rebalance_in_progress if preparing else ErrorCode.none
    )


def leave(group: Group, member_id: str, instance_id: str | None, now_ms: int) -> tuple[GroupStep, ErrorCode]:
    """A member leaves, or a static member is removed by its instance id."""
    static = group.static_member(instance_id)
    if static is not None and member_id and static.id != member_id:
        return GroupStep(group), ErrorCode.fenced_instance_id
    member_id = static.id if static is not None else member_id
    if group.member(member_id) is None:
        still_pending = tuple(item for item in group.pending if item[0] != member_id)
        if len(still_pending) == len(group.pending):
            return GroupStep(group), ErrorCode.unknown_member_id
        return complete_if_all_joined(group._replace(pending=still_pending), now_ms), ErrorCode.none
    if static is None and instance_id is not None:
        return GroupStep(group), ErrorCode.unknown_member_id
    return remove(group, (member_id,), now_ms), ErrorCode.none


def remove(group: Group, gone: Iterable[str], now_ms: int) -> GroupStep:
    """Remove members: their waiting requests get an error, and the others rebalance."""
    gone = tuple(gone)
    answers: list[Decision] = []
    for member in group.members:
        if member.id in gone and member.joining:
            answers.append(JoinAnswer(member.id, ErrorCode.unknown_member_id))
        if member.id in gone and member.syncing:
            answers.append(SyncAnswer(member.id, ErrorCode.unknown_member_id))
    remaining = group._replace(members=tuple(member for member in group.members if member.id not in gone))
    if group.state is GroupState.PREPARING:
        step = complete_if_all_joined(remaining, now_ms)
    else:
        step = prepare(remaining, now_ms, 0)
    return step._replace(decisions=(*answers, *step.decisions))


def on_tick(group: Group, now_ms: int) -> GroupStep:
    """Time has passed: members whose session has expired are removed, and those that a rebalance has waited for in
    vain, but for static ones, which have until the end of their session to join."""
    decisions: list[Decision] = []
    still_pending = tuple(item for item in group.pending if item[1] > now_ms)
    if still_pending != group.pending:
        group = group._replace(pending=still_pending)
    expired = [member.id for member in group.members if _expires_ms(member) <= now_ms]
    if group.state is GroupState.COMPLETING and group.deadline_ms <= now_ms and not group.storing:
        expired += [member.id for member in group.members if not member.syncing and member.id not in expired]
    if group.state is GroupState.PREPARING and group.deadline_ms <= now_ms and not group.storing:
        late = [member for member in group.members if not member.joining and member.instance_id is None]
        expired += [member.id for member in late if member.id not in expired]
        group = group._replace(pending=())
    if expired:
        step = remove(group, expired, now_ms)
        group, decisions = step.group, list(step.decisions)
    step = complete_if_all_joined(group, now_ms)
    if step.group.state is GroupState.PREPARING and step.group.deadline_ms <= now_ms and not step.group.storing:
        step = complete(step.group, now_ms)
    return GroupStep(step.group, (*decisions, *step.decisions))


def next_deadline_ms(group: Group) -> int:
    """Time of the next deadline that `on_tick` handles."""
    times = [expiry for _, expiry in group.pending]
    times += [_expires_ms(member) for member in group.members]
    if group.state in (GroupState.PREPARING, GroupState.COMPLETING) and not group.storing:
        times.append(group.deadline_ms)
    waits_for_more = group.state is GroupState.PREPARING and not group.pending and not group.storing
    if waits_for_more and all(member.joining for member in group.members):
        times.append(group.initial_delay_until_ms)
    return min(times, default=NEVER_MS)


def check_commit(
    group: Group | None, caller: Caller, now_ms: int, limits: GroupLimits
) -> tuple[Group | None, ErrorCode]:
    """Check whether the caller may commit offsets.

    Allowed are members of the current generation, and callers without a generation in a group without members
    (consumers that assign their partitions themselves).
    """
    error = _commit_error(group, caller)
    if error is not ErrorCode.none:
        return group, error if limits.rules.generation_fences_commits else ErrorCode.none
    return group and _renew_session(group, caller.member_id, now_ms), ErrorCode.none


def _commit_error(group: Group | None, caller: Caller) -> ErrorCode:
    if caller.generation == NO_GENERATION and (group is None or group.state is GroupState.EMPTY):
        return ErrorCode.none
    if group is None:
        return ErrorCode.illegal_generation
    error = check_member(group, caller)
    if error is ErrorCode.none and group.state is GroupState.COMPLETING:
        return ErrorCode.rebalance_in_progress
    return error


def check_deletion(group: Group | None) -> ErrorCode:
    """Check whether the group can be deleted: it exists, and has no members."""
    if group is None:
        return ErrorCode.group_id_not_found
    return ErrorCode.none if group.state is GroupState.EMPTY else ErrorCode.non_empty_group


def _renew_session(group: Group, member_id: str, now_ms: int) -> Group:
    member = group.member(member_id)
    return group if member is None else group.with_member(member._replace(last_contact_ms=now_ms))


def _expires_ms(member: ClassicGroupMember) -> int:
    """Expiry of a member's session; a member that waits for a response does not expire."""
    return NEVER_MS if member.joining or member.syncing else member.last_contact_ms + member.session_timeout_ms
