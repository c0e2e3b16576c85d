"""Promises about what a coordinator has of its groups: what it loads, what it appends, and the committed offsets. See
`checkers.protocol.checker`, and `checkers.protocol.groups.group_promises` for what it does with that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from checkers.evidence import CheckSettings
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.group_state import (
    EMPTY,
    PREPARING,
    STABLE,
    Coordinator,
    HeldGroup,
    HeldMember,
    Identity,
    Offsets,
    StoredChange,
    change_offsets,
    topic_of,
)
from checkers.protocol.state import ClusterRowHandler, ClusterState, PartitionState, TraceRowHandler
from checkers.tables import TraceRow

_NONE: Final = "none"


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
        coordinator.at_ms, coordinator.seen_ns = int(detail["at_ms"]), event.time_ns


def _coordinator_loaded(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    coordinator = partition.groups.coordinators.get(event.node)
    if coordinator is None:
        return
    coordinator.serving = True
    log = partition.log(event.node)
    coordinator.metadata_end = cluster.applied.get(event.node, UNKNOWN)
    if event.offset == 0 and event.log_end <= len(log) and UNKNOWN not in log[: event.log_end]:
        changes = partition.groups.changes_in(log, event.log_end)
        _check_loaded(partition, event, coordinator, changes)
        _forget_loaded(cluster, coordinator, changes)
    for name, detail in coordinator.loaded.items():
        group = coordinator.groups[name] = HeldGroup(str(detail["state"]), int(detail["generation"]))
        group.since_ms, group.recorded, group.leader = coordinator.at_ms, group.generation, str(detail["leader"] or "")
        for member, (instance, session_ms, rebalance_ms, _assignment) in detail["record"].items():
            identity = partition.groups.identities.setdefault(member, Identity(instance, session_ms, rebalance_ms))
            group.members[member] = HeldMember(identity, "", coordinator.at_ms)
        group.longest_ms = group.longest_timeout_ms()


def _check_loaded(
    partition: PartitionState, event: TraceRow, coordinator: Coordinator, changes: Iterable[StoredChange]
) -> None:
    """A coordinator has loaded the last record of each group and partition in its log."""
    offsets: Offsets = {}
    records: dict[str, StoredChange] = {}
    for change in changes:
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


def _forget_loaded(cluster: ClusterState, coordinator: Coordinator, changes: Iterable[StoredChange]) -> None:
    """A coordinator forgets what it has loaded of a topic that was deleted since the commit, also where there is a new
    one of its name: the commit was for the topic that its coordinator knew then."""
    known = {(group, key): change.metadata_end for change in changes for group, key, _ in change.changes}
    until = coordinator.metadata_end
    coordinator.forget(lambda group, key: cluster.topic_ended(topic_of(key), known[group, key], until))


def _as_loaded(detail: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """The facts by which a loaded group is compared: one without a record has nothing but offsets. Its state follows
    from the record: without a leader the generation only begins."""
    if detail is None:
        return EMPTY, 0, None, None, {}
    state = detail.get("state")
    if state is None:
        state = EMPTY if not detail["record"] else PREPARING if detail["leader"] is None else STABLE
    return state, detail["generation"], detail["leader"], detail["protocol"], detail["record"]


# ---- the log ---------------------------------------------------------------------------------------------------------


def _group_storing(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A record of a group has one of its members as leader, a protocol that all support, and of each what it said when
    it joined last."""
    detail = event.details()
    groups, name = partition.groups, str(detail["group"])
    coordinator = groups.serving(event.node)
    if coordinator is not None and name in coordinator.groups:
        coordinator.groups[name].recorded = int(detail["generation"])
    if detail.get("error") != _NONE or "record" not in detail:
        return
    if detail["leader"] is None:
        _check_number(partition, event, name, int(detail["generation"]))
    elif (name, int(detail["generation"])) not in groups.assigned and groups.serving(event.node) is not None:
        partition.report(
            event,
            "assignment-never-made",
            event.offset,
            f"{event.node} appended assignments of generation {detail['generation']} of the group {name} {event.at}",
            "the leader of that generation had sent none",
        )
    change = StoredChange(event.offset, event.log_end, event.leader_epoch, name, detail)
    groups.stored[event.offset, event.leader_epoch] = change
    if detail["record"] and detail["leader"] is not None and detail["leader"] not in detail["record"]:
        partition.report(
            event,
            "record-of-another-member",
            event.offset,
            f"{event.node} appended a record of the group {name} {event.at} with the leader {detail['leader']}",
            f"its members are {', '.join(sorted(detail['record']))}",
        )
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


def _check_number(partition: PartitionState, event: TraceRow, name: str, generation: int) -> None:
    """A record that a generation begins has a number above those of all records before it: also of one whose append was
    given up, which may be committed all the same."""
    log = partition.log(event.node)
    before = [one for one in partition.groups.changes_in(log, min(event.offset, len(log))) if one.of(name)]
    deleted = [number for number, one in enumerate(before) if not one.record]
    numbers = [int(one.record["generation"]) for one in before[deleted[-1] + 1 if deleted else 0 :]]
    if generation <= max(numbers, default=0):
        partition.report(
            event,
            "generation-repeated",
            event.offset,
            f"{event.node} appended that generation {generation} of the group {name} begins {event.at}",
            f"a record of generation {max(numbers)} is in its log",
        )


def _offsets_storing(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    changes = event.details()["changes"]
    applied = cluster.applied.get(event.node, UNKNOWN)
    change = StoredChange(event.offset, event.log_end, event.leader_epoch, changes=tuple(changes), metadata_end=applied)
    partition.groups.stored[event.offset, event.leader_epoch] = change
    coordinator = partition.groups.serving(event.node)
    if coordinator is None:
        return
    _forget_deleted(cluster, event, coordinator)
    _check_tombstones(partition, event, coordinator, changes)
    coordinator.uncommitted.append((event.log_end, changes))
    for group in (group for group, key, _ in changes if key is None):
        deleted = coordinator.groups.pop(group, None)
        partition.groups.begun.pop(group, None)
        if deleted is not None:
            partition.groups.forget_assigned(group, deleted.generation)


def _check_tombstones(
    partition: PartitionState, event: TraceRow, coordinator: Coordinator, changes: list[list[Any]]
) -> None:
    """The offsets of a deleted topic are deleted from the log before it has any of the next topic of its name. No other
    ones are, but with their group."""
    ended = [group for group, key, _ in changes if key is None]
    for group, key, offset in changes:
        if key is None:
            missing_of_group = [owed for owed, end in coordinator.owed.items() if owed[0] == group and end is None]
            coordinator.owed |= dict.fromkeys(missing_of_group, event.log_end)
        elif (group, key) in coordinator.owed:
            missing = coordinator.owed[group, key] is None
            if missing:
                coordinator.owed[group, key] = event.log_end
            if missing and offset is not None:
                partition.report(
                    event,
                    "tombstone-missing",
                    event.offset,
                    f"{event.node} appended the offset {offset} of {key}, committed by the group {group}, {event.at}",
                    "an offset of a deleted topic of that name stands before it, and no tombstone between them",
                )
        elif offset is None and group not in ended and coordinator.offsets is not None:
            partition.report(
                event,
                "offset-deleted-unasked",
                event.offset,
                f"{event.node} deleted the offset of {key} that the group {group} had committed {event.at}",
                "it had read of no deletion of that topic since, and nobody has deleted the group",
            )


def _topic_deleted(cluster: ClusterState, _: PartitionState, event: TraceRow) -> None:
    cluster.topic_ends.setdefault(event.topic_name, []).append(event.offset)


def _forget_deleted(cluster: ClusterState, event: TraceRow, coordinator: Coordinator) -> None:
    """A coordinator forgets the offsets of a topic when it reads that it was deleted, before it takes any of the next
    topic of its name."""
    before, applied = coordinator.metadata_end, cluster.applied.get(event.node, UNKNOWN)
    if before != applied:
        coordinator.forget(lambda _, key: cluster.topic_ended(topic_of(key), before, applied))
    coordinator.metadata_end = applied


def _offsets_shown(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """The committed offsets of a group, with an answer, are those of the records below the high watermark, without
    those of deleted topics."""
    coordinator = partition.groups.serving(event.node)
    detail = event.details()
    shown = detail.get("offsets" if event.kind == "offsets_told" else "held")
    if coordinator is None or coordinator.offsets is None or not isinstance(shown, dict):
        return
    _forget_deleted(cluster, event, coordinator)
    coordinator.commit(event.high_watermark)
    group = str(detail["group"])
    wanted = coordinator.offsets.get(group, {})
    wrong = {
        key
        for key in {*wanted, *shown}
        if wanted.get(key) != shown.get(key) and (key in shown or topic_of(key) not in cluster.topic_ends)
    }
    if wrong:
        partition.report(
            event,
            "offsets-held-otherwise",
            event.log_end,
            f"{event.node} has the committed offsets {_listed(shown)} of the group {group} {event.at}",
            f"the records below its high watermark, {event.high_watermark}, give {_listed(wanted)}",
        )
    left = sorted(key for name, key in coordinator.owed if name == group and key not in shown)
    if event.kind == "offsets_told" and left:
        partition.report(
            event,
            "deletion-told-early",
            event.high_watermark,
            f"{event.node} told the committed offsets of the group {group}, those of {', '.join(left)} as deleted, "
            f"{event.at}",
            f"no tombstones of these are below its high watermark, {event.high_watermark}: its successor may tell them",
        )


def _listed(offsets: Mapping[str, int]) -> str:
    """Committed offsets by partition."""
    return ", ".join(f"{offset} for {key}" for key, offset in sorted(offsets.items())) or "none"


HANDLERS: Mapping[str, TraceRowHandler] = {
    "became_leader": _became_leader,
    "became_follower": _ended,
    "resigned": _ended,
    "log_recovered": _ended,
    "group_loaded": _group_loaded,
    "group_storing": _group_storing,
}
CLUSTER_HANDLERS: Mapping[str, ClusterRowHandler] = {
    "partition_deleted": _topic_deleted,
    "coordinator_loaded": _coordinator_loaded,
    "offsets_storing": _offsets_storing,
    "offsets_told": _offsets_shown,
    "offsets_committed": _offsets_shown,
}
