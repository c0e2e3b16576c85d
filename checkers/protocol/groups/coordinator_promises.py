"""Promises about group coordinators: what they serve, the generations that they give out, and whose commits they take.
See `checkers.protocol.checker`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import CheckSettings
from checkers.fault_model import OFFSETS_TOPIC
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.group_state import LateLoading, Loading
from checkers.protocol.state import ClusterRowHandler, ClusterState, PartitionState, ProtocolViolation, TraceRowHandler
from checkers.tables import TraceRow, at_work_ns
from workloads.history import NO_GENERATION

_COMPLETING: Final = "CompletingRebalance"
_CLOCK_MS: Final = 1_000
"""A clock that runs right goes no further wrong between two changes."""
_LOADING: Final = "coordinator_load_in_progress"
_LOADING_NS: Final = 3_000_000_000
"""A coordinator that is at work has read its log within so long, once all of it is committed."""


def _leads(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    _stops_loading(partition, event, settings)
    if event.topic_name == OFFSETS_TOPIC:
        held = int(event.details().get("high_watermark", UNKNOWN))
        partition.groups.loading[event.node] = Loading(
            event.log_end, event.time_ns if held >= event.log_end else UNKNOWN
        )


def _high_watermark(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    loading = partition.groups.loading.get(event.node)
    if loading is not None and loading.ready_ns < 0 and event.high_watermark >= loading.end:
        loading.ready_ns = event.time_ns


def _stops_loading(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    loading = partition.groups.loading.pop(event.node, None)
    if loading is not None and 0 <= loading.ready_ns < event.time_ns - _LOADING_NS:
        partition.groups.late.append(LateLoading(event.node, loading.ready_ns, event.time_ns))


def check_loading(cluster: ClusterState, trace: pa.Table) -> None:
    """After the last event: no leader that was at work has let its groups wait for long."""
    last_ns = pc.max(trace.column("time_ns")).as_py() or 0
    for partition in cluster.partitions.values():
        groups = partition.groups
        still = [LateLoading(node, it.ready_ns, last_ns) for node, it in groups.loading.items() if it.ready_ns >= 0]
        for late in (*groups.late, *still):
            worked_ns = at_work_ns(trace, late.node, late.ready_ns, late.until_ns)
            if worked_ns > _LOADING_NS:
                lines = (
                    f"{late.node} led, and had not loaded its groups at {late.until_ns / 1e9:.6f} s",
                    f"all that it had to load was committed at {late.ready_ns / 1e9:.6f} s, and it was at work for "
                    f"{worked_ns / 1e9:.1f} s since",
                )
                violation = ProtocolViolation("coordinator-not-loaded", UNKNOWN, late.until_ns, UNKNOWN, lines)
                partition.violations.append(violation)


def _unserved(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """A broker answers for the groups that it serves, and for no others; its clients may wait while it loads them."""
    detail, groups = event.details(), partition.groups
    if groups.serving(event.node) is not None:
        is_right, why = False, "it had loaded the groups of that partition, and led it"
    elif event.node in groups.loading:
        is_right = detail["error"] == ("none" if detail["api"] == "heartbeat" else _LOADING)
        why = "it led their partition, and had not loaded it"
    else:
        is_right, why = detail["error"] == "not_coordinator", "it did not lead their partition"
    if not is_right:
        answered = f"{event.node} answered a {detail['api']} for the group {detail['group']} with {detail['error']}"
        partition.report(event, "wrong-coordinator", UNKNOWN, f"{answered} {event.at}", why)


def _groups_listed(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A list of groups is told to be whole only by a broker that has loaded all of its partitions."""
    loading = [f"{name}-{index}" for (name, index), it in cluster.partitions.items() if event.node in it.groups.loading]
    if loading and event.details().get("error", _LOADING) != _LOADING:
        partition.report(
            event,
            "groups-listed-otherwise",
            UNKNOWN,
            f"{event.node} listed its groups {event.at}, and told of no others",
            f"it led {', '.join(loading)}, too, and had not loaded that",
        )


def _check_clock(cluster: ClusterState, partition: PartitionState, event: TraceRow) -> None:
    """A coordinator ends sessions and rebalances by a clock that runs as time does, whatever its wall clock shows."""
    coordinator, at_ms = partition.groups.coordinators.get(event.node), event.details().get("at_ms")
    if coordinator is None or not isinstance(at_ms, int):
        return
    before, coordinator.changed = coordinator.changed, (event.time_ns, at_ms)
    times = (cluster.wrong_timers, cluster.stalls)  # a process may stall between the reading and the event with it
    if before is None or any(each.between(event.node, before[0], event.time_ns) for each in times):
        return
    passed_ms, ran_ms = (event.time_ns - before[0]) / 1e6, at_ms - before[1]
    if abs(ran_ms - passed_ms) > _CLOCK_MS:
        partition.report(
            event,
            "group-time-otherwise",
            event.log_end,
            f"{event.node} changed a group {event.at}, {passed_ms:.0f} ms after the change before",
            f"its clock for sessions and rebalances had gone on by {ran_ms} ms, and no fault changed its timers",
        )


def _coordinator_loaded(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    """From this event on the coordinator answers its groups."""
    _stops_loading(partition, event, settings)
    for node, group in list(partition.group_changes):
        if node == event.node:
            del partition.group_changes[node, group]
    began = (
        f"{event.node} began to serve its groups {event.at} in leader epoch {event.leader_epoch}, and had loaded its "
        f"log up to {event.log_end}"
    )
    if event.log_end > event.high_watermark:
        watermark = f"its high watermark was {event.high_watermark}: what lies between may be lost"
        partition.report(event, "coordinator-serves-uncommitted", event.high_watermark, began, watermark)
    start = partition.epoch_starts.get(event.node, UNKNOWN)
    if event.log_end < start:
        lacking = f"its leader epoch starts at {start}: it knows nothing of what lies between"
        partition.report(event, "coordinator-incomplete", event.log_end, began, lacking)


def _group_assigned(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    detail = event.details()
    group = str(detail.get("group"))
    partition.assigned.add((group, detail.get("generation")))
    partition.assigning[event.node, group] = event


def _group_storing(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    detail = event.details()
    group, generation = str(detail.get("group")), detail.get("generation")
    if detail.get("error") == "none":
        partition.group_records[event.node, group] = event
    assigned = partition.assigning.pop((event.node, group), None)
    if assigned is None or assigned.details().get("generation") != generation:
        return
    for member in assigned.details().get("members", {}):
        before = partition.member_records.get((group, generation, member))
        if before is None or before.details().get("error") != "none":
            partition.member_records[group, generation, member] = event


def _of_generation(record: TraceRow, event: TraceRow, generation: object) -> bool:
    return record.leader_epoch == event.leader_epoch and record.details().get("generation") == generation


def _assignment_told(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """Before a member gets its partitions, a record is committed in which it has them: that of the assignment, or the
    one with which a static member takes the place of another. A member of an earlier leadership is known from what was
    loaded, which is committed, whatever the coordinator appends itself."""
    detail = event.details()
    group, generation = str(detail.get("group")), detail.get("generation")
    if (group, generation) not in partition.assigned:
        partition.report(
            event,
            "assignment-never-made",
            event.log_end,
            f"{event.node} gave members of the group {group} their partitions in generation {generation} {event.at}",
            "the leader of that generation had not assigned any: its members wait for that",
        )
    for member in detail.get("members", {}):
        record = partition.member_records.get((group, generation, member))
        if record is None or record.leader_epoch != event.leader_epoch:
            continue
        told = (
            f"{event.node} gave {member} its partitions in generation {generation} of the group {group} {event.at} in "
            f"leader epoch {event.leader_epoch}"
        )
        if record.details().get("error") != "none":
            refused = "no record with them had been appended: the next coordinator does not know this member"
            partition.report(event, "assignment-told-early", event.log_end, told, refused)
        elif record.log_end > event.high_watermark:
            uncommitted = (
                f"the record with them ends at {record.log_end}, and its high watermark was {event.high_watermark}: "
                "the next coordinator may not know this member"
            )
            partition.report(event, "assignment-told-early", record.offset, told, uncommitted)


def _generation_begun(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """Before its members get the number of a generation, the last record of the group is the one that begins it: the
    assignment of a generation is stored after that. Members who joined later may be missing in it, but none of them has
    an instance that the record gives to another member."""
    detail = event.details()
    group, generation = str(detail.get("group")), detail.get("generation")
    told = (
        f"{event.node} gave members the number of generation {generation} of the group {group} {event.at} in leader "
        f"epoch {event.leader_epoch}"
    )
    record = partition.group_records.get((event.node, group))
    if record is None or not _of_generation(record, event, generation):
        missing = (
            "no record that begins the generation had been appended: a later coordinator may give its number again"
        )
        partition.report(event, "generation-told-early", event.log_end, told, missing)
    elif record.log_end > event.high_watermark:
        uncommitted = (
            f"the record that begins the generation ends at {record.log_end}, and its high watermark was "
            f"{event.high_watermark}"
        )
        partition.report(event, "generation-told-early", record.offset, told, uncommitted)
    else:
        holders = {instance: member for member, (instance, *_) in record.details().get("record", {}).items()}
        for member in detail.get("members", ()):
            identity = partition.groups.identities.get(member)
            holder = None if identity is None or identity.instance is None else holders.get(identity.instance)
            if holder not in (None, member):
                fenced = f"the record that begins it has {holder} in its place: a later coordinator fences {member}"
                partition.report(event, "generation-told-early", record.offset, told, fenced)


def _group_changed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.group_changes.setdefault((event.node, str(event.details().get("group"))), []).append(event)


def _offsets_committed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    """The commit was taken when its record was appended, in the state in which the group was then."""
    detail = event.details()
    group, generation, current = str(detail.get("group")), detail.get("generation"), detail.get("current")
    taken = (
        f"{event.node} took a commit of {detail.get('member') or 'nobody'} in generation {generation} of the group "
        f"{group}, whose record is at {event.offset} of {event.topic}-{event.partition}, and answered it {event.at}"
    )
    if generation not in (NO_GENERATION, current):
        partition.report(event, "commit-not-fenced", event.offset, taken, f"its generation was {current} then")
    changes = partition.group_changes.get((event.node, group), [])
    place = bisect_right(changes, event.offset, key=lambda change: change.log_end)
    if place and changes[place - 1].details().get("state") == _COMPLETING:
        waiting = f"its members waited for their partitions then: they had joined {changes[place - 1].at}"
        partition.report(event, "commit-not-fenced", event.offset, taken, waiting)


HANDLERS: Mapping[str, TraceRowHandler] = {
    "became_leader": _leads,
    "high_watermark": _high_watermark,
    **dict.fromkeys(("became_follower", "resigned", "log_recovered"), _stops_loading),
    "coordinator_loaded": _coordinator_loaded,
    "group_unserved": _unserved,
    "group_assigned": _group_assigned,
    "group_storing": _group_storing,
    "assignment_told": _assignment_told,
    "generation_begun": _generation_begun,
    "group_changed": _group_changed,
    "offsets_committed": _offsets_committed,
}
CLUSTER_HANDLERS: Mapping[str, ClusterRowHandler] = {
    **dict.fromkeys(("group_loaded", "group_changed"), _check_clock),
    "groups_listed": _groups_listed,
}
