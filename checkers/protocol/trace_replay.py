"""Replay of a protocol trace: the state of every partition after every event, and each promise broken on the way.

The promises, and the reasons for the subtle ones, are in `checkers.protocol.checker`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from checkers.decided_metadata import DecidedConfigurations
from checkers.deletions import OWN_DECISIONS, DeletionRequest
from checkers.evidence import CheckSettings
from checkers.protocol import (
    append_promises,
    controller_promises,
    decision_promises,
    divergence_promises,
    expiration_promises,
    isr_promises,
    log_knowledge_promises,
    log_promises,
    metadata_promises,
    read_promises,
    request_promises,
    retention_promises,
    watermark_promises,
)
from checkers.protocol.batches import UNKNOWN
from checkers.protocol.groups import (
    coordinator_promises,
    group_log_promises,
    group_promises,
    group_request_promises,
)
from checkers.protocol.state import ClusterRowHandler, ClusterState, PartitionState, TraceRowHandler
from checkers.tables import TraceRow, trace_rows
from checkers.unclean_elections import ElectionRequests


def replay_trace(
    trace: pa.Table,
    settings: CheckSettings,
    deletions: Mapping[int, DeletionRequest] = MappingProxyType({}),
    cluster: ClusterState | None = None,
    *,
    ended: bool = True,
) -> ClusterState:
    """The cluster after the last event of `trace` (schema TRACE). `deletions` has, by
    partition number, what administrators requested to be deleted; `cluster` what faults did to the nodes. Where the
    run had not `ended`, the trace may be cut anywhere."""
    cluster = cluster if cluster is not None else ClusterState()
    configurations = DecidedConfigurations(trace)
    now_ns = -1
    for event in trace_rows(trace):
        if event.time_ns != now_ns:
            controller_promises.check_candidates(cluster, now_ns)
            now_ns = event.time_ns
        if event.kind == "node_started":
            cluster.life_starts[event.node] = event.time_ns
            cluster.awaiting_registration.add(event.node)
            cluster.clean_lives.pop(event.node, None)
            cluster.applied.pop(event.node, None)
            log_promises.check_claim(cluster, event)
        elif event.kind == "metadata_applied":
            metadata_promises.check_deleted(cluster, event)
            cluster.applied[event.node], cluster.applied_ns[event.node] = event.log_end, event.time_ns
        elif event.kind in _OF_BROKERS:
            for of_broker in _OF_BROKERS[event.kind]:
                of_broker(cluster, event)
        elif event.topic:
            partition = cluster.partitions.get((event.topic, event.partition))
            if partition is None:
                partition = cluster.partitions[event.topic, event.partition] = PartitionState()
                partition.groups.stalls = cluster.stalls
                partition.election_requests = cluster.election_requests.get(
                    (event.topic, event.partition), ElectionRequests()
                )
                if not event.topic.startswith("__") and not settings.is_side_topic(event.topic):
                    partition.deletion_request = deletions.get(event.partition, DeletionRequest())
            partition.events += 1
            for of_cluster in _OF_CLUSTER.get(event.kind, ()):
                of_cluster(cluster, partition, event)
            in_force = settings
            if event.kind == "partition_changed":
                in_force = settings.as_configured(configurations.at(event.topic, event.offset))
            for handler in _HANDLERS.get(event.kind, ()):
                handler(partition, event, in_force)
    controller_promises.check_candidates(cluster, now_ns)
    if settings.has_trace:
        decision_promises.check_decisions(cluster, trace, settings, configurations, ended=ended)
    for partition in cluster.partitions.values():
        metadata_promises.check_acts(partition, ended=ended)
        metadata_promises.check_recoveries(cluster, partition)
        request_promises.check_requests(cluster, partition)
        read_promises.check_reads(partition)
        isr_promises.check_quorums(partition)
        isr_promises.check_granted(partition)
    return cluster


# ---- logs ------------------------------------------------------------------------------------------------------------


def _appended(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    log = partition.log(event.node)
    if event.offset != len(log):
        partition.trace_gaps += 1
        _resize(log, event.offset)
    log.extend([event.leader_epoch] * (event.log_end - event.offset))


def _truncated(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    log = partition.log(event.node)
    _resize(log, event.offset)
    start = event.details().get("log_start")
    if isinstance(start, int):
        log[:] = [UNKNOWN] * len(log)
        for epoch, offset in event.details().get("epochs") or ():
            if 0 <= offset < len(log):
                log[offset] = epoch  # of the record before the start, as its leader has it
        _set_log_start(partition, event, start, "began anew")


def _log_start(partition: PartitionState, event: TraceRow, settings: CheckSettings) -> None:
    detail = event.details()
    reason = str(detail.get("reason"))
    moved = f"{event.node} moved its log's start {detail.get('before')} → {event.offset} {event.at} ({reason})"
    committed = len(partition.committed)
    if event.offset > committed:
        above = f"no high watermark had passed {committed}, so a record deleted above may be acknowledged later"
        partition.report(event, "log-start-uncommitted", committed, moved, above)
    if reason in OWN_DECISIONS:
        requests = partition.deletion_request
        bound = requests.bound_at(event.time_ns) if requests is not None else 0
        retained_less = settings.retains_less_by(reason) and not event.topic.startswith("__")
        if not retained_less and (reason != "delete_records" or event.offset > bound):
            wanted = f"deletion below {bound} had been asked for" if reason == "delete_records" else "nothing limits it"
            partition.report(event, "log-start-unasked", bound, moved, wanted)
        partition.decided_log_start = max(partition.decided_log_start, event.offset)
        greatest = max(event.offset, partition.greatest_log_starts.get(event.node, 0))
        partition.greatest_log_starts[event.node] = greatest
    if reason == "delete_records":
        partition.deletions.append(event)
    _set_log_start(partition, event, event.offset, f"moved its start ({reason})")


def _set_log_start(partition: PartitionState, event: TraceRow, start: int, how: str) -> None:
    """The log of a node starts at `start` from now on; some leader must have decided on that offset before."""
    if start > max(partition.decided_log_start, partition.log_starts.get(event.node, 0)):
        partition.report(
            event,
            "log-start-unfounded",
            partition.decided_log_start,
            f"the log of {event.node} starts at {start} {event.at}: it {how}",
            f"no leader's log, and no retention, had moved a start beyond {partition.decided_log_start}",
        )
    log_promises.check_log_start(partition, event, start, how)
    partition.log_starts[event.node] = start
    partition.greatest_log_starts[event.node] = max(start, partition.greatest_log_starts.get(event.node, 0))


def _recovered(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    _set_log_start(partition, event, max(event.offset, 0), "was recovered so")
    log = partition.log(event.node)
    if event.log_end < len(log):
        partition.shrunk.add(event.node)
    _resize(log, event.log_end)
    partition.candidates_to_check = True


# ---- leaders ---------------------------------------------------------------------------------------------------------


def _became_leader(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    log = partition.log(event.node)
    if event.log_end >= 0 and event.log_end != len(log):
        partition.trace_gaps += 1
        _resize(log, event.log_end)
    partition.epoch_starts[event.node] = event.offset
    partition.high_watermarks[event.node] = UNKNOWN
    partition.record_leader(event, event.node)
    missing = partition.first_missing(event.node)
    # A node may learn late of an election that was followed by others; it need not hold what those leaders committed.
    if missing is not None and partition.committed_in[missing] < event.leader_epoch:
        partition.report(
            event,
            "leader-incomplete",
            missing,
            f"{event.node} became leader in leader epoch {event.leader_epoch} {event.at}, its log ends at {len(log)}",
            partition.describe_missing(missing),
        )


def _resize(log: list[int], length: int) -> None:
    del log[max(length, 0) :]
    log.extend([UNKNOWN] * (length - len(log)))


def _placed(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.log_events[event.node] = event
    partition.settled_log_starts[event.node] = partition.log_starts.get(event.node, 0)


def _resigned(partition: PartitionState, event: TraceRow, _: CheckSettings) -> None:
    partition.removed.add(event.node)


_LOGS: Mapping[str, TraceRowHandler] = {
    "appended": _appended,
    "truncated": _truncated,
    "log_recovered": _recovered,
    "log_start": _log_start,
    "became_leader": _became_leader,
    "resigned": _resigned,
}
_ENDS: Mapping[str, TraceRowHandler] = dict.fromkeys(
    (
        "appended",
        "truncated",
        "log_recovered",
        "became_leader",
        "became_follower",
        "converged",
        "follower_high_watermark",
    ),
    _placed,
)
_IN_ORDER = (
    log_promises.ON_DISK,
    log_promises.FILES,
    log_promises.HANDLERS,
    retention_promises.HANDLERS,
    append_promises.HANDLERS,
    expiration_promises.HANDLERS,
    log_knowledge_promises.HANDLERS,
    metadata_promises.HANDLERS,
    _LOGS,
    _ENDS,
    watermark_promises.HANDLERS,
    coordinator_promises.HANDLERS,
    group_log_promises.HANDLERS,
    group_request_promises.HANDLERS,
    group_promises.HANDLERS,
    read_promises.HANDLERS,
    isr_promises.HANDLERS,
    divergence_promises.HANDLERS,
    controller_promises.HANDLERS,
    request_promises.HANDLERS,
)
_HANDLERS: Mapping[str, Sequence[TraceRowHandler]] = {
    kind: [handlers[kind] for handlers in _IN_ORDER if kind in handlers]
    for kind in sorted({kind for handlers in _IN_ORDER for kind in handlers})
}
"""Kind of event → its handlers, in order: a promise about an event is checked before the event changes the logs."""
_OF_CLUSTER_IN_ORDER: Sequence[Mapping[str, ClusterRowHandler]] = (
    dict.fromkeys(("truncated", "log_closed", "log_recovered"), log_promises.forget_undone),
    metadata_promises.EXISTENCE,
    metadata_promises.TAKING_OVER,
    request_promises.CLUSTER_HANDLERS,
    isr_promises.CLUSTER_HANDLERS,
    divergence_promises.CLUSTER_HANDLERS,
    coordinator_promises.CLUSTER_HANDLERS,
    group_log_promises.CLUSTER_HANDLERS,
    log_knowledge_promises.CLUSTER_HANDLERS,
    {"log_recovered": log_promises.check_recovered, "stray_found": log_promises.check_stray},
    dict.fromkeys(("log_recovered", "truncated"), log_promises.check_no_snapshot_above),
    dict.fromkeys(("log_recovered", "became_leader", "follower_high_watermark"), watermark_promises.check_founded),
    dict.fromkeys(("log_start_written", "log_recovered"), log_knowledge_promises.check_snapshot),
    {"partition_changed": controller_promises.check_fenced},
    {"isr_proposed": watermark_promises.check_starts_of_joining},
    {"partition_changed": metadata_promises.check_told, "deletion_confirmed": read_promises.check_deletion},
    {"became_leader": read_promises.check_deletions_kept},
)
_OF_CLUSTER: Mapping[str, Sequence[ClusterRowHandler]] = {
    kind: [handlers[kind] for handlers in _OF_CLUSTER_IN_ORDER if kind in handlers]
    for kind in sorted({kind for handlers in _OF_CLUSTER_IN_ORDER for kind in handlers})
}
"""Kind of event → the handlers that need to know of the whole cluster; they come before those of `_HANDLERS`."""
_OF_BROKERS: Mapping[str, Sequence[Callable[[ClusterState, TraceRow], None]]] = {
    "broker_registered": (
        controller_promises.broker_registered,
        controller_promises.broker_changed,
        request_promises.broker_stands,
    ),
    "registered": (controller_promises.broker_told,),
    "broker_fenced": (controller_promises.broker_changed, request_promises.broker_stands),
    "broker_unfenced": (controller_promises.broker_changed, request_promises.broker_stands),
    "broker_shutting_down": (request_promises.broker_stands,),
    "fetch_session": (request_promises.check_session,),
}
"""Kind of event of a broker → what follows from it, in order."""
