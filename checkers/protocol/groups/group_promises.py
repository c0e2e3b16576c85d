"""Promises about a coordinator's groups: a reference of what a coordinator has of a group, which its trace is held to.
See `checkers.protocol.checker`. Here are its changes; `group_request_promises` has the requests of its members, and
`group_log_promises` what the coordinator loads and appends.

The reference knows of a group what the coordinator traced of it, and of the members what their requests said. Times are
those of the coordinator's own clock, in which it counts its timeouts.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkers.evidence import CheckSettings
from checkers.protocol.group_state import (
    COMPLETING,
    JOIN,
    PREPARING,
    SYNC,
    HeldGroup,
    HeldMember,
    Identity,
)
from checkers.protocol.groups.held_groups import assigned_to, check_left, check_overdue, check_recorded, described
from checkers.protocol.state import PartitionState, TraceRowHandler
from checkers.tables import TraceRow


def _group_changed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    coordinator = partition.groups.serving(event.node)
    detail = event.details()
    if coordinator is None or "at_ms" not in detail:
        return
    name, at_ms = str(detail["group"]), int(detail["at_ms"])
    check_overdue(partition, event, coordinator, at_ms)
    check_recorded(partition, event, name, coordinator.groups.get(name, HeldGroup()))
    before = coordinator.groups.get(name, HeldGroup())
    after = HeldGroup(str(detail["state"]), int(detail["generation"]), bool(detail["storing"]))
    after.pending, after.left, after.recorded = before.pending, before.left, before.recorded
    # With a generation that begins, or whose number is not used, every session begins anew.
    renews = before.state == PREPARING and (after.state == COMPLETING or after.generation > before.generation)
    for member_id, wait in detail["members"].items():
        known = before.members.get(member_id)
        identity = partition.groups.identities.get(member_id, Identity(None, 0, 0))
        contact_ms = at_ms if known is None or known.wait != wait or renews else known.contact_ms
        after.members[member_id] = HeldMember(identity, wait, contact_ms)
    after.take_over_leader(before)
    same_wait = (before.state, before.generation) == (after.state, after.generation)
    if same_wait and not (before.storing and not after.storing):
        after.since_ms, after.longest_ms, after.overdue_ms = before.since_ms, before.longest_ms, before.overdue_ms
    else:
        after.since_ms, after.longest_ms = at_ms, after.longest_timeout_ms()
    after.waited_out = before.waited_out and after.state == PREPARING and (same_wait or after.storing)
    _check_removed(partition, event, before, after, at_ms)
    _check_joined(partition, event, before, after)
    check_left(partition, event, after)
    coordinator.groups[name] = after


def _check_removed(partition: PartitionState, event: TraceRow, before: HeldGroup, after: HeldGroup, at_ms: int) -> None:
    """A member goes when it has left, when another one of its instance has its place, at the end of its session, or
    when a rebalance has waited for it as long as it may, but for a static one that has not joined."""
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
        may_join = before.state == PREPARING and (member.wait == JOIN or member.identity.instance is not None)
        if until_ms is not None and until_ms <= at_ms and not may_join and member.wait != SYNC:
            continue
        waiting = f"it waited for the answer to its {member.wait}" if member.wait else "it waited for no answer"
        partition.report(
            event,
            "member-removed",
            event.log_end,
            f"{event.node} removed {member_id} from the group {event.details()['group']} {event.at}",
            f"it had not left, its session of {member.identity.session_ms} ms had lasted "
            f"{at_ms - member.contact_ms} ms, and {waiting}: {described(before)}",
        )


def _check_joined(partition: PartitionState, event: TraceRow, before: HeldGroup, after: HeldGroup) -> None:
    """A generation begins with members that have all joined since its rebalance began, but for static ones once it has
    waited for them, and with a number of its own."""
    name = str(event.details()["group"])
    begins = after.state == COMPLETING and before.state == PREPARING
    if begins:
        stayed = {one: before.members[one] for one in after.members if one in before.members}
        after.joined = frozenset(one for one, member in stayed.items() if member.wait == JOIN)
        waited_for = {one for one, member in stayed.items() if before.waited_out and member.identity.instance}
        absent = sorted(stayed.keys() - after.joined - waited_for)
        if absent:
            partition.report(
                event,
                "generation-without-join",
                event.log_end,
                f"{event.node} began generation {after.generation} of the group {name} {event.at}",
                f"{', '.join(absent)} had not joined: {described(before)}",
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
    """All that have joined are told that a generation begins, and their answers agree: its number, one of them as
    leader, and for that all members."""
    detail = event.details()
    told = detail.get("told")
    if not isinstance(told, dict):
        return
    members = sorted(detail["members"])
    leaders = {leader for _, leader, _ in told.values()}
    coordinator, joined = partition.groups.serving(event.node), frozenset(told)
    if coordinator is not None:
        group = coordinator.groups.setdefault(str(detail["group"]), HeldGroup())
        joined = group.joined
        group.leader = str(min(leaders)) if len(leaders) == 1 else group.leader
    agree = {generation for generation, _, _ in told.values()} == {detail["generation"]}
    agree = agree and len(leaders) == 1 and leaders <= joined == told.keys()
    if not agree or any(sorted(named) != members for one, (_, leader, named) in told.items() if one == leader):
        partition.report(
            event,
            "joins-answered-otherwise",
            event.log_end,
            f"{event.node} began generation {detail['generation']} of the group {detail['group']} {event.at}, with the "
            f"members {members}, of which {sorted(joined)} had joined",
            f"it answered their joins with generation, leader and members {told}",
        )


def _assignment_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A member gets what the leader of its generation gave to it, or to the member of its instance."""
    detail = event.details()
    for member, given in detail["members"].items():
        wanted = assigned_to(partition, str(detail["group"]), int(detail["generation"]), member)
        if wanted is not None and given not in wanted:
            partition.report(
                event,
                "assignment-told-otherwise",
                event.log_end,
                f"{event.node} gave {member} the assignment {given or 'of nothing'} in generation "
                f"{detail['generation']} of the group {detail['group']} {event.at}",
                f"the leader of that had assigned {' or '.join(sorted(wanted)) or 'nothing'}",
            )


HANDLERS: Mapping[str, TraceRowHandler] = {
    "group_changed": _group_changed,
    "generation_begun": _generation_begun,
    "assignment_told": _assignment_told,
}
