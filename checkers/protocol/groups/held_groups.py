"""The groups as a coordinator holds them, and the promises about them that hold at any moment. See
`checkers.protocol.groups.group_promises`."""

from __future__ import annotations

from typing import Final

from checkers.protocol.group_state import AWAKE_MS_MAX, EMPTY, PREPARING, Coordinator, HeldGroup, HeldMember
from checkers.protocol.state import PartitionState
from checkers.tables import TraceRow

_OVERDUE_MS: Final = 500


def check_recorded(partition: PartitionState, event: TraceRow, name: str, group: HeldGroup) -> None:
    """A generation that is to begin, and that a group has no members any more, is in its log. A coordinator whose disk
    refuses the record appends nothing after it, since its process ends."""
    if group.state == PREPARING and group.storing and group.recorded <= group.generation:
        group.recorded = group.generation + 1
        partition.report(
            event,
            "generation-unrecorded",
            event.log_end,
            f"{event.node} has the group {name} wait for the record of its next generation {event.at}",
            f"it has not tried to append that, so that nothing ends the wait: {described(group)}",
        )
    attempt = partition.assigning.get((event.node, name))
    refused = attempt is not None and attempt.log_end >= len(partition.log(event.node))
    if group.state == EMPTY and group.generation != group.recorded and not refused:
        group.recorded = group.generation
        partition.report(
            event,
            "empty-group-unrecorded",
            event.log_end,
            f"{event.node} has the group {name} {event.at}: {described(group)}",
            "it has appended no record of that: for the next coordinator the group still has members",
        )


def check_left(partition: PartitionState, event: TraceRow, group: HeldGroup) -> None:
    """A member that has left is removed."""
    stayed = sorted(group.left & group.members.keys())
    if stayed:
        group.left -= set(stayed)
        partition.report(
            event,
            "left-member-kept",
            event.log_end,
            f"{event.node} has {', '.join(stayed)} in the group {event.details()['group']} {event.at}",
            f"it had let them leave: {described(group)}",
        )


def check_overdue(partition: PartitionState, event: TraceRow, coordinator: Coordinator, at_ms: int) -> None:
    """No member stays whose session has ended, and no rebalance waits for members beyond its timeout. While its process
    stalls, a coordinator can end neither."""
    stalled = partition.groups.stalls.between(event.node, coordinator.seen_ns, event.time_ns)
    awake_ms = 0 if stalled else min(at_ms - coordinator.at_ms, AWAKE_MS_MAX)
    coordinator.at_ms, coordinator.seen_ns = at_ms, event.time_ns
    for name, group in coordinator.groups.items():
        for member_id, member in group.members.items():
            if _falls_overdue(member, member.expires_ms(), at_ms, awake_ms):
                partition.report(
                    event,
                    "member-kept",
                    event.log_end,
                    f"{event.node} has {member_id} in the group {name} {event.at}",
                    f"it last heard of it {at_ms - member.contact_ms} ms before, and its session timeout is "
                    f"{member.identity.session_ms} ms",
                )
        group.wait_longer(at_ms)
        if _falls_overdue(group, group.waits_until_ms(), at_ms, awake_ms):
            partition.report(
                event,
                "rebalance-overdue",
                event.log_end,
                f"{event.node} has waited for members of the group {name} for {at_ms - group.since_ms} ms {event.at}",
                f"the longest rebalance timeout is {group.longest_ms} ms: {described(group)}",
            )


def _falls_overdue(held: HeldMember | HeldGroup, until_ms: int | None, at_ms: int, awake_ms: int) -> bool:
    """Whether by now the coordinator could have ended for too long what was to end at `until_ms`."""
    if until_ms is None or until_ms + AWAKE_MS_MAX >= at_ms:
        return False
    before, held.overdue_ms = held.overdue_ms, held.overdue_ms + awake_ms
    return before < _OVERDUE_MS <= held.overdue_ms


def described(group: HeldGroup) -> str:
    """The group in words."""
    members = ", ".join(f"{one} ({member.wait or 'in touch'})" for one, member in sorted(group.members.items()))
    return f"{group.state}, generation {group.generation}, members {members or 'none'}"


def assigned_to(partition: PartitionState, name: str, generation: int, member: str) -> set[str] | None:
    """The assignment that the leader gave to a member, or to one of its instance; None where it is not known."""
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
