"""Promises about a coordinator's groups: a reference of what a coordinator has of a group, which its trace is held to.
See `checkers.protocol.checker`, and `checkers.protocol.groups.group_log_promises` for what it loads and appends.

The reference knows of a group what the coordinator traced of it, and of the members what their requests said. Times are
those of the coordinator's own clock, in which it counts its timeouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from checkers.evidence import CheckSettings
from checkers.protocol.group_state import (
    AWAKE_MS_MAX,
    COMPLETING,
    EMPTY,
    JOIN,
    PREPARING,
    STABLE,
    SYNC,
    Coordinator,
    HeldGroup,
    HeldMember,
    Identity,
)
from checkers.protocol.state import PartitionState, TraceRowHandler
from checkers.tables import TraceRow
from workloads.history import NO_GENERATION

_OVERDUE_MS: Final = 500
_NONE, _WAITS = "none", "waits"
_REBALANCE, _UNKNOWN_MEMBER = "rebalance_in_progress", "unknown_member_id"
_FENCED, _ILLEGAL = "fenced_instance_id", "illegal_generation"
_NON_EMPTY, _NOT_FOUND = "non_empty_group", "group_id_not_found"
_OF_CONTENT: Final = frozenset({"inconsistent_group_protocol", "invalid_session_timeout"})
"""Errors of what a member wants, which the trace does not have."""
_DEAD: Final = "Dead"
_ANYTHING: Final = frozenset({_NONE, _WAITS})
_NEW_MEMBER: Final = _ANYTHING | {"member_id_required"}


# ---- requests --------------------------------------------------------------------------------------------------------


def _group_request(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    coordinator = partition.groups.serving(event.node)
    if coordinator is None:
        return
    detail = event.details()
    name, api, error, at_ms = str(detail["group"]), detail["api"], str(detail["error"]), int(detail["at_ms"])
    group = coordinator.groups.setdefault(name, HeldGroup())
    _check_overdue(partition, event, coordinator, at_ms)
    _check_recorded(partition, event, name, group)
    _check_open(partition, event, group, detail)
    if api == "describe":
        _check_description(partition, event, group, detail)
        return
    wanted = _answers_to_join(group, event, detail) if api == "join" else _answers(group, detail)
    if error not in wanted:
        said = f" in generation {detail['said']}" if "said" in detail else ""
        partition.report(
            event,
            "request-misjudged",
            event.log_end,
            f"{event.node} answered a {api} of {detail['member'] or 'nobody'}{said} of the group {name} with {error} "
            f"{event.at}",
            f"as the group was ({_described(group)}) it had to be {' or '.join(sorted(wanted))}",
        )
    if api == "leave":
        coordinator.leaves.append([detail["member"], detail["instance"], error])
    _check_new_id(partition, event, detail)
    _learn(partition, event, group, detail)


def _check_new_id(partition: PartitionState, event: TraceRow, detail: Mapping[str, Any]) -> None:
    """A client that joins without a member id gets one that nobody had before."""
    if detail["api"] != "join" or detail["member"] or detail["error"] not in _NEW_MEMBER:
        return
    given, known = str(detail["as"]), partition.groups.member_ids
    if given in known:
        partition.report(
            event,
            "member-id-repeated",
            event.log_end,
            f"{event.node} gave a new member of the group {detail['group']} the id {given} {event.at}",
            "another one had got it before",
        )
    known.add(given)


def _check_recorded(partition: PartitionState, event: TraceRow, name: str, group: HeldGroup) -> None:
    """That a group has no members any more is in its log, with the generation of that. A coordinator whose disk refuses
    the record appends nothing after it, since its process ends."""
    attempt = partition.assigning.get((event.node, name))
    refused = attempt is not None and attempt.log_end >= len(partition.log(event.node))
    if group.state == EMPTY and group.generation != group.recorded and not refused:
        group.recorded = group.generation
        partition.report(
            event,
            "empty-group-unrecorded",
            event.log_end,
            f"{event.node} has the group {name} {event.at}: {_described(group)}",
            "it has appended no record of that: for the next coordinator the group still has members",
        )


def _check_open(partition: PartitionState, event: TraceRow, group: HeldGroup, detail: Mapping[str, Any]) -> None:
    """A JoinGroup or a SyncGroup has its answer once the group does not let its sender wait for that any more."""
    for member_id, api in detail.get("open", ()):
        member = group.members.get(member_id)
        if member is None or member.wait != api:
            partition.report(
                event,
                "answer-missing",
                event.log_end,
                f"{event.node} had not answered a {api} of {member_id} in the group {detail['group']} {event.at}",
                f"the group lets it wait for nothing of the kind: {_described(group)}",
            )


def _check_description(partition: PartitionState, event: TraceRow, group: HeldGroup, detail: Mapping[str, Any]) -> None:
    """DescribeGroups tells the state of the group, and all members, with their partitions once these are given out; a
    group that never had a member may not exist."""
    told, state, error = dict(detail["told"]), detail["state"], detail["error"]
    wanted = {member_id: member.identity.instance for member_id, member in group.members.items()}
    exists = (state, error) == (group.state, _NONE)
    unknown = state == _DEAD and error in (_NONE, _NOT_FOUND) and not wanted and group.generation == 0
    if told != wanted or not (exists or unknown):
        partition.report(
            event,
            "group-described-otherwise",
            event.log_end,
            f"{event.node} described the group {detail['group']} {event.at} as {state} with {told}: {error}",
            f"it was {_described(group)}",
        )
    for member, given in detail.get("assignments", {}).items():
        assigned = _assigned_to(partition, str(detail["group"]), group.generation, member)
        if group.state == STABLE and assigned is not None and given not in assigned:
            partition.report(
                event,
                "group-described-otherwise",
                event.log_end,
                f"{event.node} described {member} of the group {detail['group']} {event.at} with the assignment "
                f"{given or 'of nothing'}",
                f"in generation {group.generation} it was given {' or '.join(sorted(assigned)) or 'nothing'}",
            )


def _leave_answered(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """The answer to LeaveGroup has each member that it names, with the error that it was judged with, and who was let
    go is no member any more."""
    coordinator = partition.groups.serving(event.node)
    if coordinator is None:
        return
    detail = event.details()
    judged, coordinator.leaves = coordinator.leaves, []
    if detail["told"] != judged or [one[:2] for one in judged] != detail["asked"]:
        partition.report(
            event,
            "leave-answered-otherwise",
            event.log_end,
            f"{event.node} was asked to remove {detail['asked']} from the group {detail['group']}, and answered "
            f"{detail['told']} {event.at}",
            f"it had judged {judged}",
        )
    _check_left(partition, event, coordinator.groups.get(str(detail["group"]), HeldGroup()))


def _check_left(partition: PartitionState, event: TraceRow, group: HeldGroup) -> None:
    """Who has left is no member any more."""
    stayed = sorted(group.left & group.members.keys())
    if stayed:
        group.left -= set(stayed)
        partition.report(
            event,
            "left-member-kept",
            event.log_end,
            f"{event.node} has {', '.join(stayed)} in the group {event.details()['group']} {event.at}",
            f"it had let them leave: {_described(group)}",
        )


def _groups_listed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """ListGroups tells every group in one of the states that it asks for, and no other; one that never had a member may
    not exist."""
    coordinator = partition.groups.serving(event.node)
    if coordinator is None:
        return
    detail = event.details()
    asked, told = detail["asked"], detail["told"]
    held = {
        name: group.state for name, group in coordinator.groups.items() if not asked or group.state.lower() in asked
    }
    known = {name for name in held if coordinator.groups[name].generation or coordinator.groups[name].members}
    wanted = {name: state for name, state in held.items() if name in known or name in told}
    if told != wanted:
        partition.report(
            event,
            "groups-listed-otherwise",
            event.log_end,
            f"{event.node} listed its groups {'in ' + ', '.join(asked) if asked else 'in any state'} {event.at} as "
            f"{dict(sorted(told.items()))}",
            f"they were {dict(sorted(wanted.items()))}",
        )


def _described(group: HeldGroup) -> str:
    members = ", ".join(f"{one} ({member.wait or 'in touch'})" for one, member in sorted(group.members.items()))
    return f"{group.state}, generation {group.generation}, members {members or 'none'}"


def _answers(group: HeldGroup, detail: Mapping[str, Any]) -> frozenset[str]:
    """The answers that a request but a join may get in this state of the group."""
    api, member, instance = detail["api"], str(detail["member"]), detail["instance"]
    holder = group.holder(instance)
    if api == "delete":
        occupied = group.members or group.state != EMPTY
        return frozenset({_NON_EMPTY} if occupied else {_NONE, _NOT_FOUND})
    if api == "leave":
        if holder is not None and member and holder != member:
            return frozenset({_FENCED})
        if holder is not None or member in group.members:
            return frozenset({_NONE})
        return frozenset({_NONE, _UNKNOWN_MEMBER} if member in group.pending else {_UNKNOWN_MEMBER})
    generation = int(detail["said"])
    if api == "commit" and not group.members and group.state == EMPTY:
        return frozenset({_NONE} if generation == NO_GENERATION else {_ILLEGAL, _UNKNOWN_MEMBER})
    error = _standing(group, member, generation, instance, holder)
    if error != _NONE:
        return frozenset({error})
    if api == "heartbeat":
        return frozenset({_REBALANCE if group.state == PREPARING else _NONE})
    if api == "commit":
        return frozenset({_REBALANCE if group.state == COMPLETING else _NONE})
    if group.state == PREPARING:
        return frozenset({_REBALANCE, *_OF_CONTENT})
    return frozenset({_NONE if group.state == STABLE else _WAITS, *_OF_CONTENT})


def _answers_to_join(group: HeldGroup, event: TraceRow, detail: Mapping[str, Any]) -> frozenset[str]:
    """A member that joins again is answered at once where it has said the same before, and its group waits for no
    member; whatever else it says is for another generation."""
    member, instance = str(detail["member"]), detail["instance"]
    holder = group.holder(instance)
    if not member:
        return frozenset({_WAITS, *_OF_CONTENT} | ({"member_id_required"} if instance is None else set()))
    if member in group.pending:
        return frozenset({_WAITS, _UNKNOWN_MEMBER, *_OF_CONTENT})
    if holder is not None and holder != member:
        return frozenset({_FENCED, *_OF_CONTENT})
    if member not in group.members:
        return frozenset({_UNKNOWN_MEMBER, *_OF_CONTENT})
    # The leader of a stable group may have seen other partitions: it is to assign them in another generation.
    rebalances = group.state == PREPARING or (group.state == STABLE and member == group.leader)
    said, wants = group.members[member].identity.wants, _wants(event, detail)
    leader_is_known = group.leader or group.state != STABLE
    if not rebalances and not (leader_is_known and wants and said[:2] == wants[:2]):
        return _ANYTHING | _OF_CONTENT
    return frozenset({*_OF_CONTENT, _WAITS if rebalances or said != wants else _NONE})


def _wants(event: TraceRow, detail: Mapping[str, Any]) -> tuple[object, ...]:
    if "subscriptions" not in detail:
        return ()
    return event.node, event.leader_epoch, *zip(detail["protocols"], detail["subscriptions"], strict=True)


def _standing(group: HeldGroup, member: str, generation: int, instance: str | None, holder: str | None) -> str:
    """Whether the sender of a request is a member of the current generation."""
    if instance is not None and holder != member:
        return _UNKNOWN_MEMBER if holder is None else _FENCED
    if member not in group.members:
        return _UNKNOWN_MEMBER
    return _NONE if generation == group.generation else _ILLEGAL


def _learn(partition: PartitionState, event: TraceRow, group: HeldGroup, detail: Mapping[str, Any]) -> None:
    """What follows from a request that is judged, before the group changes."""
    api, error, member = detail["api"], detail["error"], str(detail["member"])
    at_ms = int(detail["at_ms"])
    if api == "join":
        if error == "member_id_required":
            group.pending.add(str(detail["as"]))
        elif error in _ANYTHING:
            rebalance_ms = int(detail["rebalance_ms"]) if detail["rebalance_ms"] >= 0 else int(detail["session_ms"])
            protocols = frozenset(detail["protocols"]) if "protocols" in detail else None
            wants = _wants(event, detail)
            identity = Identity(detail["instance"], int(detail["session_ms"]), rebalance_ms, protocols, wants)
            member = str(detail["as"])
            group.pending.discard(member)
            partition.groups.identities[member] = identity
            if member in group.members:
                group.members[member].identity = identity
    elif api == "leave" and error == _NONE:
        holder = group.holder(detail["instance"])
        group.left.add(holder if holder is not None else member)
    elif api == SYNC and error == _WAITS and detail["assigned"]:
        by_epoch = partition.groups.assigned.setdefault((str(detail["group"]), group.generation), {})
        by_epoch.setdefault(event.leader_epoch, detail["assigned"])
    if member in group.members and (error in _ANYTHING or (api == "heartbeat" and error == _REBALANCE)):
        group.members[member].contact_ms = at_ms
        group.members[member].overdue_ms = 0


def _check_overdue(partition: PartitionState, event: TraceRow, coordinator: Coordinator, at_ms: int) -> None:
    """No member stays whose session has ended, and no rebalance waits for members beyond its timeout."""
    awake_ms = min(at_ms - coordinator.at_ms, AWAKE_MS_MAX)
    coordinator.at_ms = at_ms
    for name, group in coordinator.groups.items():
        for member_id, member in group.members.items():
            expires_ms = member.expires_ms()
            if expires_ms is None or expires_ms + AWAKE_MS_MAX >= at_ms:
                continue
            before, member.overdue_ms = member.overdue_ms, member.overdue_ms + awake_ms
            if before < _OVERDUE_MS <= member.overdue_ms:
                partition.report(
                    event,
                    "member-kept",
                    event.log_end,
                    f"{event.node} has {member_id} in the group {name} {event.at}",
                    f"it last heard of it {at_ms - member.contact_ms} ms before, and its session timeout is "
                    f"{member.identity.session_ms} ms",
                )
        until_ms = group.waits_until_ms()
        if until_ms is None or until_ms + AWAKE_MS_MAX >= at_ms:
            continue
        before, group.overdue_ms = group.overdue_ms, group.overdue_ms + awake_ms
        if before < _OVERDUE_MS <= group.overdue_ms:
            partition.report(
                event,
                "rebalance-overdue",
                event.log_end,
                f"{event.node} has waited for members of the group {name} for {at_ms - group.since_ms} ms {event.at}",
                f"the longest rebalance timeout is {group.longest_ms} ms: {_described(group)}",
            )


# ---- changes of groups -----------------------------------------------------------------------------------------------


def _group_changed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    coordinator = partition.groups.serving(event.node)
    detail = event.details()
    if coordinator is None or "at_ms" not in detail:
        return
    name, at_ms = str(detail["group"]), int(detail["at_ms"])
    _check_overdue(partition, event, coordinator, at_ms)
    _check_recorded(partition, event, name, coordinator.groups.get(name, HeldGroup()))
    before = coordinator.groups.get(name, HeldGroup())
    after = HeldGroup(str(detail["state"]), int(detail["generation"]), bool(detail["storing"]))
    after.pending, after.left, after.recorded = before.pending, before.left, before.recorded
    for member_id, wait in detail["members"].items():
        known = before.members.get(member_id)
        identity = partition.groups.identities.get(member_id, Identity(None, 0, 0))
        contact_ms = at_ms if known is None or known.wait != wait else known.contact_ms
        after.members[member_id] = HeldMember(identity, wait, contact_ms)
    after.take_over_leader(before)
    same_wait = (before.state, before.generation) == (after.state, after.generation)
    if same_wait and not (before.storing and not after.storing):
        after.since_ms, after.longest_ms, after.overdue_ms = before.since_ms, before.longest_ms, before.overdue_ms
    else:
        after.since_ms, after.longest_ms = at_ms, after.longest_timeout_ms()
    _check_removed(partition, event, before, after, at_ms)
    _check_joined(partition, event, before, after)
    _check_left(partition, event, after)
    coordinator.groups[name] = after


def _check_removed(partition: PartitionState, event: TraceRow, before: HeldGroup, after: HeldGroup, at_ms: int) -> None:
    """A member goes when it has left, when another one of its instance has its place, at the end of its session, or
    when a rebalance has waited for it as long as it may."""
    came = {
        member.identity.instance
        for member_id, member in after.members.items()
        if member_id not in before.members and member.identity.instance is not None
    }
    until_ms = before.waits_until_ms()
    for member_id, member in before.members.items():
        if member_id in after.members or member_id in before.left or member.identity.instance in came:
            continue
        expires_ms = member.expires_ms()
        if expires_ms is not None and expires_ms <= at_ms:
            continue
        asked = JOIN if before.state == PREPARING else SYNC
        if until_ms is not None and until_ms <= at_ms and member.wait != asked:
            continue
        waiting = f"it waited for the answer to its {member.wait}" if member.wait else "it waited for no answer"
        partition.report(
            event,
            "member-removed",
            event.log_end,
            f"{event.node} removed {member_id} from the group {event.details()['group']} {event.at}",
            f"it had not left, its session of {member.identity.session_ms} ms had lasted "
            f"{at_ms - member.contact_ms} ms, and {waiting}: {_described(before)}",
        )


def _check_joined(partition: PartitionState, event: TraceRow, before: HeldGroup, after: HeldGroup) -> None:
    """A generation begins with members that have all joined since its rebalance began, and with a number of its own."""
    name = str(event.details()["group"])
    begins = after.state == COMPLETING and before.state == PREPARING
    if begins:
        absent = sorted(one for one in after.members if one in before.members and before.members[one].wait != JOIN)
        if absent:
            partition.report(
                event,
                "generation-without-join",
                event.log_end,
                f"{event.node} began generation {after.generation} of the group {name} {event.at}",
                f"{', '.join(absent)} had not joined: {_described(before)}",
            )
        begun = partition.groups.begun.setdefault(name, [])
        known = [generation for epoch, generation in begun if epoch <= event.leader_epoch]
        if after.generation <= max(known, default=0):
            partition.report(
                event,
                "generation-repeated",
                event.log_end,
                f"{event.node} began generation {after.generation} of the group {name} {event.at}",
                f"generation {max(known)} had begun before",
            )
        begun.append((event.leader_epoch, after.generation))
    elif after.generation < before.generation:
        partition.report(
            event,
            "generation-repeated",
            event.log_end,
            f"{event.node} went back to generation {after.generation} of the group {name} {event.at}",
            f"it was in generation {before.generation}",
        )


def _generation_begun(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """The answers to the joins of a generation agree: its number, one of its members as leader, and for that all
    members."""
    detail = event.details()
    told = detail.get("told")
    if not isinstance(told, dict):
        return
    members = sorted(detail["members"])
    leaders = {leader for _, leader, _ in told.values()}
    coordinator = partition.groups.serving(event.node)
    if coordinator is not None and len(leaders) == 1:
        coordinator.groups.setdefault(str(detail["group"]), HeldGroup()).leader = str(min(leaders))
    agree = {generation for generation, _, _ in told.values()} == {detail["generation"]}
    agree = agree and len(leaders) == 1 and leaders <= set(members) and sorted(told) == members
    if not agree or any(sorted(named) != members for one, (_, leader, named) in told.items() if one == leader):
        partition.report(
            event,
            "joins-answered-otherwise",
            event.log_end,
            f"{event.node} began generation {detail['generation']} of the group {detail['group']} {event.at}, with the "
            f"members {members}",
            f"it answered their joins with generation, leader and members {told}",
        )


def _assignment_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A member gets what the leader of its generation gave to it, or to the member of its instance."""
    detail = event.details()
    for member, given in detail["members"].items():
        wanted = _assigned_to(partition, str(detail["group"]), int(detail["generation"]), member)
        if wanted is not None and given not in wanted:
            partition.report(
                event,
                "assignment-told-otherwise",
                event.log_end,
                f"{event.node} gave {member} the assignment {given or 'of nothing'} in generation "
                f"{detail['generation']} of the group {detail['group']} {event.at}",
                f"the leader of that had assigned {' or '.join(sorted(wanted)) or 'nothing'}",
            )


def _assigned_to(partition: PartitionState, name: str, generation: int, member: str) -> set[str] | None:
    """What the leader of the generation gave to a member, or to one of its instance; None where that is not known."""
    groups = partition.groups
    of_generation = groups.assigned.get((name, generation))
    if of_generation is None:
        return None
    instance = groups.identities[member].instance if member in groups.identities else None
    given: set[str] = set()
    for assigned in of_generation.values():
        known = {one: groups.identities[one].instance for one in assigned if one in groups.identities}
        same = [one for one, other in known.items() if instance is not None and other == instance]
        given |= {assigned[one] for one in ([member] if member in assigned else same)} or {""}
    return given


HANDLERS: Mapping[str, TraceRowHandler] = {
    "group_request": _group_request,
    "leave_answered": _leave_answered,
    "groups_listed": _groups_listed,
    "group_changed": _group_changed,
    "generation_begun": _generation_begun,
    "assignment_told": _assignment_told,
}
