"""Trace events for changes that a new controller finds committed.

A change is traced by the controller that commits it. If a controller appends a change and is deposed before the commit,
its successor commits the change, and knows the records but not the reasons. It traces them with `taken_over`, perhaps a
second time; the reader of both traces keeps the events with a new `offset`. An election of a last known leader, and one
of an unclean recovery, are recognised by the state before: nobody led, and nobody in ISR or ELR was elected. Who
registers with the same change may have lost its place in both. Nothing tells by which log ends a recovery elected. With
`unclean.leader.election.enable`, where that counts, any leader from outside ISR and ELR is elected uncleanly, for an
unknown reason. Where neither elects such a one and nobody led, an administrator asked for it. A request of a leader for
another ISR is recognised by who joins it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from images.broker.controller.unclean_recovery import (
    LAST_KNOWN_LEADER_ELECTED,
    UNCLEAN_ELECTION,
    UNCLEAN_RECOVERY,
    Strategy,
    recovery_needed,
    strategy_of,
    unclean_election_allowed,
)
from images.broker.metadata.image import (
    ChangeBroker,
    ClusterImage,
    PartitionImage,
    Record,
    RegisterBroker,
    RemoveTopic,
    TopicConfigRecord,
    TopicImage,
)
from images.broker.metadata.image_trace import partition_changed, partitions_deleted, topic_configured
from images.broker.raft.log import decode_records
from images.trace import TraceEvent
from images.wire import batch as batches
from images.wire.field_values import NO_LEADER


def committed_changes(image: ClusterImage, data: bytes) -> Iterator[tuple[ClusterImage, list[TraceEvent]]]:
    """For each batch in `data`, which continues the log after `image`: the image after it, and its trace events."""
    for header, batch in batches.iterate(data):
        before, records = image, decode_records(batch)
        image = image.apply_all(records, header.base_offset)
        registered = frozenset(record.id for record in records if isinstance(record, RegisterBroker))
        events = [event for record in records for event in _events(before, image, record, registered)]
        yield image, [event._replace(offset=image.offset) for event in events]


def _events(before: ClusterImage, after: ClusterImage, record: Record, registered: frozenset[int]) -> list[TraceEvent]:
    if isinstance(record, RegisterBroker):
        id, epoch = record.id, after.brokers[record.id].epoch
        return [TraceEvent("broker_registered", broker=id, broker_epoch=epoch, detail={"taken_over": True})]
    if isinstance(record, ChangeBroker):
        kind = "broker_shutting_down" if record.shutting_down else "broker_unfenced"
        kind = "broker_fenced" if record.fenced else kind
        reason = {"taken_over": True, "reason": "taken_over"}
        return [TraceEvent(kind, broker=record.id, broker_epoch=record.epoch, detail=reason)]
    if isinstance(record, PartitionImage):
        return [_partition(before, after, record, registered)]
    if isinstance(record, TopicConfigRecord):
        configured = topic_configured(after.topics[record.name])
        return [configured._replace(detail={**configured.detail, "taken_over": True})]
    if isinstance(record, RemoveTopic):
        return [event._replace(detail={"taken_over": True}) for event in partitions_deleted(before.topics[record.name])]
    return []


def _partition(
    before: ClusterImage, after: ClusterImage, partition: PartitionImage, registered: frozenset[int]
) -> TraceEvent:
    before_change = before.partition(partition.topic, partition.index)
    topic = after.topics.get(partition.topic)
    reason = _reason(topic, before_change, partition, registered)
    permitted = topic is not None and unclean_election_allowed(topic) and reason == "taken_over"
    unclean = permitted and before_change is not None and _leads_from_outside(before_change, partition)
    unclean = unclean or reason in (LAST_KNOWN_LEADER_ELECTED, UNCLEAN_RECOVERY, UNCLEAN_ELECTION)
    return partition_changed(topic, partition, reason=reason, unclean=unclean, taken_over=True)


def _leads_from_outside(before: PartitionImage, after: PartitionImage) -> bool:
    """Whether a partition is led by a replica that was neither in the ISR nor in the ELR before."""
    return after.leader not in (NO_LEADER, *before.isr, *before.elr)


def _reason(
    topic: TopicImage | None, before: PartitionImage | None, after: PartitionImage, registered: frozenset[int]
) -> str:
    if before is None:
        return "created"
    # Only AlterPartition, a request of the leader, adds members to an ISR, but for a leader elected from outside it.
    # It may complete a reassignment, so that one of those who join leads at once; nobody joins by a cancelled one.
    joined = set(after.isr) - set(before.isr)
    target = tuple(replica for replica in before.replicas if replica not in before.removing)
    completed = before.reassigning and not after.reassigning and after.replicas == target
    if joined - {after.leader} or (joined and completed):
        return "alter_partition"
    if topic is None or not _leads_from_outside(before, after):
        return "taken_over"
    isr, elr = (tuple(member for member in each if member not in registered) for each in (before.isr, before.elr))
    before = replace(before, isr=isr, elr=elr)
    if (
        strategy_of(topic) is Strategy.LAST_KNOWN_LEADER
        and (before.leader, before.isr, before.elr) == (NO_LEADER, (), ())
        and before.last_known_elr == (after.leader,)
    ):
        return LAST_KNOWN_LEADER_ELECTED
    recovery = recovery_needed(topic, before)
    if recovery is not None and after.leader in recovery.replicas:
        return UNCLEAN_RECOVERY
    requested = before.leader == NO_LEADER and not unclean_election_allowed(topic)
    return UNCLEAN_ELECTION if requested else "taken_over"
