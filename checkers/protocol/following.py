"""Follows a protocol trace: the state of every partition after every event, and each promise broken on the way.

What the promises are, and why they are judged as they are, is in `checkers.protocol`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pyarrow as pa

from checkers.deletions import OWN_DECISIONS, Asked
from checkers.evidence import CheckSettings
from checkers.protocol import controller as deciding
from checkers.protocol import watermark as committing
from checkers.protocol.state import UNKNOWN, Cluster, Event, Followed, Handler

UNLIMITED = -1

_COLUMNS = (
    "time_ns", "node", "kind", "topic", "partition", "leader", "leader_epoch", "partition_epoch", "broker",
    "offset", "log_end", "high_watermark", "members", "detail",
)  # fmt: skip


def follow(trace: pa.Table, settings: CheckSettings, asked: Mapping[int, Asked] = MappingProxyType({})) -> Cluster:
    """The cluster after the last event of `trace` (schema TRACE). `asked` has, by partition number, what administrators
    asked to have deleted."""
    cluster = Cluster()
    now_ns = -1
    for event in _events(trace):
        if event.time_ns != now_ns:
            deciding.settle(cluster, now_ns)
            now_ns = event.time_ns
        if event.kind == "node_started":
            cluster.between_lives.add(event.node)
        elif event.kind == "broker_registered":
            deciding.registered(cluster, event)
        elif event.topic:
            partition = cluster.partitions.get((event.topic, event.partition))
            if partition is None:
                partition = cluster.partitions[event.topic, event.partition] = Followed()
                if not event.topic.startswith("__"):
                    partition.asked = asked.get(event.partition, Asked())
            partition.events += 1
            handler = _HANDLERS.get(event.kind)
            if handler is not None:
                handler(partition, event, settings)
    deciding.settle(cluster, now_ns)
    return cluster


def _events(trace: pa.Table) -> Iterator[Event]:
    ordered = trace.sort_by("seq")
    for batch in ordered.to_batches(max_chunksize=65_536):
        for row in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True):
            yield Event(*row)


# ---- logs ------------------------------------------------------------------------------------------------------------


def _appended(partition: Followed, event: Event, _: CheckSettings) -> None:
    log = partition.log(event.node)
    if event.offset != len(log):
        partition.gaps += 1
        _resize(log, event.offset)
    log.extend([event.leader_epoch] * (event.log_end - event.offset))


def _truncated(partition: Followed, event: Event, _: CheckSettings) -> None:
    _resize(partition.log(event.node), event.offset)
    start = event.details().get("log_start")
    if isinstance(start, int):
        _starts_at(partition, event, start, "began anew")


def _log_start(partition: Followed, event: Event, settings: CheckSettings) -> None:
    detail = event.details()
    reason = str(detail.get("reason"))
    moved = f"{event.node} moved its log's start {detail.get('before')} → {event.offset} {event.at} ({reason})"
    committed = len(partition.committed)
    if event.offset > committed:
        above = f"no high watermark had passed {committed}, so what was deleted above may be acknowledged later"
        partition.breach(event, "log-start-uncommitted", committed, moved, above)
    if reason in OWN_DECISIONS:
        bound = partition.asked.bound if partition.asked is not None else 0
        limits = {"retention_ms": settings.retention_ms, "retention_bytes": settings.retention_bytes}
        if limits.get(reason, UNLIMITED) == UNLIMITED and (reason != "delete_records" or event.offset > bound):
            wanted = f"deletion below {bound} had been asked for" if reason == "delete_records" else "nothing limits it"
            partition.breach(event, "log-start-unasked", bound, moved, wanted)
        partition.moved_start = max(partition.moved_start, event.offset)
    _starts_at(partition, event, event.offset, f"moved its start ({reason})")


def _starts_at(partition: Followed, event: Event, start: int, how: str) -> None:
    """The log of a node starts at `start` from now on, which somebody must have decided before."""
    if start > max(partition.moved_start, partition.log_starts.get(event.node, 0)):
        partition.breach(
            event,
            "log-start-unfounded",
            partition.moved_start,
            f"the log of {event.node} starts at {start} {event.at}: it {how}",
            f"no leader's log, and no retention, had moved a start beyond {partition.moved_start}",
        )
    partition.log_starts[event.node] = start


def _recovered(partition: Followed, event: Event, _: CheckSettings) -> None:
    _starts_at(partition, event, max(event.offset, 0), "was recovered so")
    log = partition.log(event.node)
    if event.log_end < len(log):
        partition.shrunk.add(event.node)
    _resize(log, event.log_end)
    partition.unsettled = True


# ---- leaders ---------------------------------------------------------------------------------------------------------


def _became_leader(partition: Followed, event: Event, _: CheckSettings) -> None:
    log = partition.log(event.node)
    if event.log_end >= 0 and event.log_end != len(log):
        partition.gaps += 1
        _resize(log, event.log_end)
    partition.starts[event.node] = event.offset
    partition.high_watermarks[event.node] = UNKNOWN
    partition.leads(event, event.node)
    missing = partition.first_missing(event.node)
    # A node may learn late of an election that others have followed since: of those commits it need know nothing.
    if missing is not None and partition.committed_in[missing] < event.leader_epoch:
        partition.breach(
            event,
            "leader-incomplete",
            missing,
            f"{event.node} became leader in leader epoch {event.leader_epoch} {event.at}, its log ends at {len(log)}",
            partition.lacks(missing),
        )


def _resize(log: list[int], length: int) -> None:
    del log[max(length, 0) :]
    log.extend([UNKNOWN] * (length - len(log)))


_HANDLERS: Mapping[str, Handler] = {
    "appended": _appended,
    "truncated": _truncated,
    "log_recovered": _recovered,
    "log_start": _log_start,
    "became_leader": _became_leader,
    **committing.HANDLERS,
    **deciding.HANDLERS,
}
