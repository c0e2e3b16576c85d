"""Promises about a coordinator's groups: a reference of what a coordinator has of a group, which its trace is held to.
See `checkers.protocol.checker`.

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
    Offsets,
    StoredChange,
    change_offsets,
)
from checkers.protocol.state import UNKNOWN, ClusterRowHandler, ClusterState, PartitionState, TraceRowHandler
from checkers.tables import TraceRow
from workloads.history import NO_GENERATION

_OVERDUE_MS: Final = 500
_NONE, _WAITS = "none", "waits"
_REBALANCE, _UNKNOWN_MEMBER = "rebalance_in_progress", "unknown_member_id"
_FENCED, _ILLEGAL = "fenced_instance_id", "illegal_generation"
_OF_CONTENT: Final = frozenset({"inconsistent_group_protocol", "invalid_session_timeout"})
"""Errors of what a member wants, which the trace does not have."""
_ANYTHING: Final = frozenset({_NONE, _WAITS})


# ---- loading ---------------------------------------------------------------------------------------------------------


def _became_leader(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.groups.coordinators[event.node] = Coordinator()


def _ended(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.groups.coordinators.pop(event.node, None)


def _group_loaded(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    coordinator = partition.groups.coordinators.get(event.node)
    if coordinator is not None:
        detail = event.details()
        coordinator.loaded[str(detail["group"])] = detail
        coordinator.at_ms = int(detail["at_ms"])


def _coordinator_loaded(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    coordinator = partition.groups.coordinators.get(event.node)
    if coordinator is None:
        return
    coordinator.serving = True
    log = partition.log(event.node)
    if event.offset == 0 and event.log_end <= len(log) and UNKNOWN not in log[: event.log_end]:
        _check_loaded(partition, event, coordinator)
    for name, detail in coordinator.loaded.items():
        group = coordinator.groups[name] = HeldGroup(str(detail["state"]), int(detail["generation"]))
        group.since_ms = coordinator.at_ms
        for member, (instance, session_ms, rebalance_ms, _assignment) in detail["record"].items():
            identity = partition.groups.identities.setdefault(member, Identity(instance, session_ms, rebalance_ms))
            group.members[member] = HeldMember(identity, "", coordinator.at_ms)
        group.longest_ms = _longest_ms(group)


def _check_loaded(partition: PartitionState, event: TraceRow, coordinator: Coordinator) -> None:
    """What a coordinator has loaded is what the records of its log say, the last one of each group and partition."""
    offsets: Offsets = {}
    records: dict[str, StoredChange] = {}
    for change in partition.groups.changes_in(partition.log(event.node), event.log_end):
        change_offsets(offsets, change.changes)
        for gone in (group for group, key, _ in change.changes if key is None):
            records.pop(gone, None)
        if change.group:
            records[change.group] = change
    coordinator.offsets = offsets
    for group in sorted({*records, *coordinator.loaded}):
        stored = records.get(group)
        wanted = _as_loaded(stored.record if stored is not None else None)
        found = _as_loaded(coordinator.loaded.get(group))
        if wanted != found:
            partition.report(
                event,
                "group-loaded-otherwise",
                stored.base if stored is not None else event.log_end,
                f"{event.node} loaded the group {group} as {found}, and began to serve it {event.at}",
                f"by the records of its log it is {wanted}",
            )
    held = {name: of_group for name, of_group in event.details().items() if of_group}
    wanted_offsets = {name: of_group for name, of_group in offsets.items() if of_group}
    if held != wanted_offsets:
        partition.report(
            event,
            "offsets-held-otherwise",
            event.log_end,
            f"{event.node} began to serve its groups {event.at}, with the committed offsets {held}",
            f"by the records of its log they are {wanted_offsets}",
        )


def _as_loaded(detail: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """What counts of a group that is loaded: one without a record has nothing but offsets. Its state follows from the
    record: without a leader the generation only begins."""
    if detail is None:
        return EMPTY, 0, None, None, {}
    state = detail.get("state")
    if state is None:
        state = EMPTY if not detail["record"] else PREPARING if detail["leader"] is None else STABLE
    return state, detail["generation"], detail["leader"], detail["protocol"], detail["record"]


# ---- requests --------------------------------------------------------------------------------------------------------


def _group_request(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    coordinator = partition.groups.serving(event.node)
    if coordinator is None:
        return
    detail = event.details()
    name, api, error, at_ms = str(detail["group"]), detail["api"], str(detail["error"]), int(detail["at_ms"])
    group = coordinator.groups.setdefault(name, HeldGroup())
    _check_overdue(partition, event, coordinator, at_ms)
    wanted = _answers(group, detail)
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
    _learn(partition, group, detail)


def _described(group: HeldGroup) -> str:
    members = ", ".join(f"{one} ({member.wait or 'in touch'})" for one, member in sorted(group.members.items()))
    return f"{group.state}, generation {group.generation}, members {members or 'none'}"


def _answers(group: HeldGroup, detail: Mapping[str, Any]) -> frozenset[str]:
    """The answers that a request may get in this state of the group."""
    api, member, instance = detail["api"], str(detail["member"]), detail["instance"]
    holder = group.holder(instance)
    if api == "join":
        return _answers_to_join(group, member, instance, holder)
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


def _answers_to_join(group: HeldGroup, member: str, instance: str | None, holder: str | None) -> frozenset[str]:
    if not member:
        return frozenset({_WAITS, *_OF_CONTENT} | ({"member_id_required"} if instance is None else set()))
    if member in group.pending:
        return frozenset({_WAITS, _UNKNOWN_MEMBER, *_OF_CONTENT})
    if holder is not None and holder != member:
        return frozenset({_FENCED, *_OF_CONTENT})
    if member not in group.members:
        return frozenset({_UNKNOWN_MEMBER, *_OF_CONTENT})
    return frozenset({*_OF_CONTENT, *({_WAITS} if group.state == PREPARING else _ANYTHING)})


def _standing(group: HeldGroup, member: str, generation: int, instance: str | None, holder: str | None) -> str:
    """Whether the sender of a request is a member of the current generation."""
    if instance is not None and holder != member:
        return _UNKNOWN_MEMBER if holder is None else _FENCED
    if member not in group.members:
        return _UNKNOWN_MEMBER
    return _NONE if generation == group.generation else _ILLEGAL


def _learn(partition: PartitionState, group: HeldGroup, detail: Mapping[str, Any]) -> None:
    """What follows from a request that is judged, before the group changes."""
    api, error, member = detail["api"], detail["error"], str(detail["member"])
    at_ms = int(detail["at_ms"])
    if api == "join":
        if error == "member_id_required":
            group.pending.add(str(detail["as"]))
        elif error in _ANYTHING:
            rebalance_ms = int(detail["rebalance_ms"]) if detail["rebalance_ms"] >= 0 else int(detail["session_ms"])
            protocols = frozenset(detail["protocols"]) if "protocols" in detail else None
            identity = Identity(detail["instance"], int(detail["session_ms"]), rebalance_ms, protocols)
            member = str(detail["as"])
            group.pending.discard(member)
            partition.groups.identities[member] = identity
            if member in group.members:
                group.members[member].identity = identity
    elif api == "leave" and error == _NONE:
        holder = group.holder(detail["instance"])
        group.left.add(holder if holder is not None else member)
    elif api == SYNC and error == _WAITS and detail["assigned"]:
        partition.groups.assigned.setdefault((str(detail["group"]), group.generation), detail["assigned"])
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
    before = coordinator.groups.get(name, HeldGroup())
    after = HeldGroup(str(detail["state"]), int(detail["generation"]), bool(detail["storing"]))
    after.pending = before.pending
    for member_id, wait in detail["members"].items():
        known = before.members.get(member_id)
        identity = partition.groups.identities.get(member_id, Identity(None, 0, 0))
        contact_ms = at_ms if known is None or known.wait != wait else known.contact_ms
        after.members[member_id] = HeldMember(identity, wait, contact_ms)
    same_wait = (before.state, before.generation) == (after.state, after.generation)
    if same_wait and not (before.storing and not after.storing):
        after.since_ms, after.longest_ms, after.overdue_ms = before.since_ms, before.longest_ms, before.overdue_ms
    else:
        after.since_ms, after.longest_ms = at_ms, _longest_ms(after)
    _check_removed(partition, event, before, after, at_ms)
    _check_joined(partition, event, before, after)
    coordinator.groups[name] = after


def _longest_ms(group: HeldGroup) -> int:
    return max((member.identity.rebalance_ms for member in group.members.values()), default=0)


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
    groups = partition.groups
    assigned = groups.assigned.get((str(detail["group"]), int(detail["generation"])))
    if assigned is None:
        return
    for member, given in detail["members"].items():
        instance = groups.identities[member].instance if member in groups.identities else None
        known = {one: groups.identities[one].instance for one in assigned if one in groups.identities}
        same = [one for one, other in known.items() if instance is not None and other == instance]
        wanted = {assigned[one] for one in ([member] if member in assigned else same)} or {""}
        if given not in wanted:
            partition.report(
                event,
                "assignment-told-otherwise",
                event.log_end,
                f"{event.node} gave {member} the assignment {given or 'of nothing'} in generation "
                f"{detail['generation']} of the group {detail['group']} {event.at}",
                f"the leader of that had assigned {' or '.join(sorted(wanted)) or 'nothing'}",
            )


# ---- the log ---------------------------------------------------------------------------------------------------------


def _group_storing(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A record of a group has of its members what they said when they joined last, and a protocol that all support."""
    detail = event.details()
    if detail.get("error") != _NONE or "record" not in detail:
        return
    groups, name = partition.groups, str(detail["group"])
    change = StoredChange(event.offset, event.log_end, event.leader_epoch, name, detail)
    groups.stored[event.offset, event.leader_epoch] = change
    for member, (instance, session_ms, rebalance_ms, _assignment) in detail["record"].items():
        said = groups.identities.get(member)
        if said is None or groups.serving(event.node) is None:
            continue
        shared = said.protocols is None or detail["protocol"] in said.protocols
        if not shared or (instance, session_ms, rebalance_ms) != (said.instance, said.session_ms, said.rebalance_ms):
            partition.report(
                event,
                "record-of-another-member",
                event.offset,
                f"{event.node} appended a record of the group {name} {event.at} with the protocol "
                f"{detail['protocol']}, and {member} with instance {instance}, session timeout {session_ms} ms, "
                f"rebalance timeout {rebalance_ms} ms",
                f"it had joined with instance {said.instance}, {said.session_ms} ms, {said.rebalance_ms} ms, and the "
                f"protocols {sorted(said.protocols or ())}",
            )


def _offsets_storing(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    changes = event.details()["changes"]
    change = StoredChange(event.offset, event.log_end, event.leader_epoch, changes=tuple(changes))
    partition.groups.stored[event.offset, event.leader_epoch] = change
    coordinator = partition.groups.serving(event.node)
    if coordinator is None:
        return
    coordinator.uncommitted.append((event.log_end, changes))
    for group in (group for group, key, _ in changes if key is None):
        coordinator.groups.pop(group, None)
        partition.groups.begun.pop(group, None)


def _topic_deleted(cluster: ClusterState, _: PartitionState, event: TraceRow) -> None:
    cluster.deleted_topics.add(event.topic)


def _offsets_shown(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """The committed offsets of a group, with an answer, are those of the records below the high watermark; of topics
    that are deleted nothing is known."""
    coordinator = partition.groups.serving(event.node)
    detail = event.details()
    shown = detail.get("offsets" if event.kind == "offsets_told" else "held")
    if coordinator is None or coordinator.offsets is None or not isinstance(shown, dict):
        return
    coordinator.commit(event.high_watermark)
    group = str(detail["group"])
    wanted = coordinator.offsets.get(group, {})
    wrong = {
        key
        for key in {*wanted, *shown}
        if wanted.get(key) != shown.get(key) and key.rpartition("-")[0] not in cluster.deleted_topics
    }
    if wrong:
        partition.report(
            event,
            "offsets-held-otherwise",
            event.log_end,
            f"{event.node} has the committed offsets {shown} of the group {group} {event.at}",
            f"the records below its high watermark, {event.high_watermark}, give {wanted}",
        )


HANDLERS: Mapping[str, TraceRowHandler] = {
    "became_leader": _became_leader,
    "became_follower": _ended,
    "resigned": _ended,
    "log_recovered": _ended,
    "group_loaded": _group_loaded,
    "coordinator_loaded": _coordinator_loaded,
    "group_request": _group_request,
    "group_changed": _group_changed,
    "generation_begun": _generation_begun,
    "assignment_told": _assignment_told,
    "group_storing": _group_storing,
    "offsets_storing": _offsets_storing,
}
CLUSTER_HANDLERS: Mapping[str, ClusterRowHandler] = {
    "partition_deleted": _topic_deleted,
    "offsets_told": _offsets_shown,
    "offsets_committed": _offsets_shown,
}
