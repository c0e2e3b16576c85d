"""Promises about the requests of a group's members and of its administrators: each is answered as the group is then.
See `checkers.protocol.groups.group_promises`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from checkers.evidence import CheckSettings
from checkers.protocol.group_state import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    SYNC,
    HeldGroup,
    Identity,
)
from checkers.protocol.groups.held_groups import assigned_to, check_left, check_overdue, check_recorded, described
from checkers.protocol.state import PartitionState, TraceRowHandler
from checkers.tables import TraceRow
from workloads.history import NO_GENERATION

_NONE, _WAITS = "none", "waits"
_REBALANCE, _UNKNOWN_MEMBER = "rebalance_in_progress", "unknown_member_id"
_FENCED, _ILLEGAL = "fenced_instance_id", "illegal_generation"
_NON_EMPTY, _NOT_FOUND = "non_empty_group", "group_id_not_found"
_MISTAKEN: Final = "unknown_server_error"
_OF_CONTENT: Final = frozenset({"inconsistent_group_protocol", "invalid_session_timeout"})
"""Errors of what a member wants, which the trace does not have."""
_DEAD: Final = "Dead"
_ANYTHING: Final = frozenset({_NONE, _WAITS})
_NEW_MEMBER: Final = _ANYTHING | {"member_id_required"}


def _group_request(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    coordinator = partition.groups.serving(event.node)
    if coordinator is None:
        return
    detail = event.details()
    name, api, error, at_ms = str(detail["group"]), detail["api"], str(detail["error"]), int(detail["at_ms"])
    group = coordinator.groups.setdefault(name, HeldGroup())
    check_overdue(partition, event, coordinator, at_ms)
    check_recorded(partition, event, name, group)
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
            f"{event.node} answered a {api} of {detail['member'] or 'nobody'}{said} of the group {name} "
            f"{_answer_words(error)} {event.at}",
            f"as the group was ({described(group)}) it had to answer {' or '.join(map(_answer_words, sorted(wanted)))}",
        )
    if api == "leave":
        coordinator.leaves.append([detail["member"], detail["instance"], error])
    _check_new_id(partition, event, detail)
    _learn(partition, event, group, detail)


def _answer_words(error: str) -> str:
    """How a request was, or had to be, answered."""
    return {_NONE: "without an error", _WAITS: "by letting it wait"}.get(error, f"with {error}")


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
                f"the group lets it wait for nothing of the kind: {described(group)}",
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
            f"it was {described(group)}",
        )
    for member, given in detail.get("assignments", {}).items():
        assigned = assigned_to(partition, str(detail["group"]), group.generation, member)
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
    check_left(partition, event, coordinator.groups.get(str(detail["group"]), HeldGroup()))


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
        if holder is None and instance is not None and member in group.members:
            return frozenset({_UNKNOWN_MEMBER})
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
    if member in group.pending and instance is None:
        return frozenset({_WAITS, _UNKNOWN_MEMBER, *_OF_CONTENT})
    if member in group.pending:  # an id that no static member was given, or that has expired
        return frozenset({_MISTAKEN, _UNKNOWN_MEMBER if holder is None else _FENCED, *_OF_CONTENT})
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
    """Note the effects of a request that is checked, before the group changes."""
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


HANDLERS: Mapping[str, TraceRowHandler] = {
    "group_request": _group_request,
    "leave_answered": _leave_answered,
    "groups_listed": _groups_listed,
}
