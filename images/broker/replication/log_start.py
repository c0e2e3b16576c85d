"""The log start: DeleteRecords, retention, the leader's log start, and starting again at it.

The log start advances only, and at most to the high watermark: uncommitted records are not deleted, since a record
could then be acknowledged that no replica has. A leader advances its log start upon DeleteRecords and by retention. A
follower applies retention to its own log, and follows the log start in its leader's answers to fetches that do not
diverge. DeleteRecords is complete once the low watermark, the lowest log start among the leader and all replicas that
are in sync or on active brokers, has reached its offset, and the ISR has `min.insync.replicas` members. With fewer a
member of the ELR, which may know nothing of the deletion, may be elected, or lead already: Kafka answers all the same.

A follower whose log ends below its leader's log start deletes all records and starts at the leader's log start. An
empty replica begins in the same way. Both learn the leader epoch of the last record that the leader has deleted
(`fetcher.py`). A log that starts above 0 keeps that epoch: of a follower whose log ends right there it tells whether
its records are those that the leader has deleted. If not, their logs diverge as any others, and it begins anew: the
producers of other records would count as known, and a batch that was never committed as a duplicate. If they are, it
keeps its producers: a retry of a deleted batch would be appended once more where it leads. As in Kafka the log start
falls only with a truncation below it.

**Choice**: Kafka keeps none that ends at the log start (docs/decisions/0026-a-log-keeps-the-epoch-before-its-start.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache
from images.broker.log.retention import LogStartReason
from images.broker.replication.leader import check_leader, isr_suffices, maximal_isr
from images.broker.replication.partition import (
    Limits,
    LogStartAdvanced,
    Partition,
    PartitionStep,
    ReplicaRole,
    TruncateFullyAndStartAt,
)
from images.wire.field_values import NO_EPOCH

TO_HIGH_WATERMARK = -1
"""DeleteRecords with this offset deletes all records below the high watermark."""
UNKNOWN_START = -1


def delete_records(partition: Partition, offset: int, limits: Limits) -> tuple[ErrorCode, int, PartitionStep]:
    """DeleteRecords: an error, or the offset that the low watermark has to reach."""
    error = check_leader(partition, NO_EPOCH, limits)
    if error is not ErrorCode.none:
        return error, UNKNOWN_START, PartitionStep(partition)
    bound = highest_start(partition, limits)
    new_start = bound if offset == TO_HIGH_WATERMARK else offset
    if not 0 <= new_start <= bound:
        return ErrorCode.offset_out_of_range, UNKNOWN_START, PartitionStep(partition)
    return ErrorCode.none, new_start, advance_log_start(partition, new_start, LogStartReason.DELETE_RECORDS)


def highest_start(partition: Partition, limits: Limits) -> int:
    """The highest offset to which the log start may advance."""
    if partition.high_watermark != partition.log_end and limits.rules.log_start_never_above_high_watermark:
        return partition.high_watermark
    return partition.log_end


def retention_limit(partition: Partition, limits: Limits) -> int:
    """The offset below which retention may delete."""
    if partition.high_watermark != partition.log_end and limits.rules.retention_stops_at_high_watermark:
        return partition.high_watermark
    return partition.log_end


def advance_log_start(partition: Partition, to: int, reason: LogStartReason) -> PartitionStep:
    """Advance the log start to `to`; no change if it is there or above."""
    if to <= partition.log_start:
        return PartitionStep(partition)
    moved = partition._replace(log_start=to, epochs=partition.epochs.advance_start(to))
    return PartitionStep(moved, (LogStartAdvanced(partition.log_start, to, reason),))


def on_leader_log_start(partition: Partition, leader_log_start: int, limits: Limits) -> PartitionStep:
    """The leader's log start in the answer to a fetch that did not diverge."""
    return advance_log_start(partition, min(leader_log_start, highest_start(partition, limits)), LogStartReason.LEADER)


def truncate_fully_and_start_at(partition: Partition, at: int, epoch_before: int = NO_EPOCH) -> PartitionStep:
    """Delete all records and start at `at`, the leader's log start: the records that it deleted were committed, and the
    last one of `epoch_before`, if that is known."""
    epochs = EpochCache.behind(epoch_before, at)
    empty = partition._replace(log_start=at, log_end=at, epochs=epochs, high_watermark=at)
    return PartitionStep(
        empty, (TruncateFullyAndStartAt(at, partition.log_end, partition.high_watermark, epoch_before),)
    )


def low_watermark(partition: Partition, active: Mapping[int, int], limits: Limits) -> int:
    """The lowest log start of the in-sync replicas and those on `active` brokers; -1 while one is unknown, or while the
    ISR is too small to say who may lead."""
    if partition.role is not ReplicaRole.LEADER or not isr_suffices(partition, limits):
        return UNKNOWN_START
    members = maximal_isr(partition, limits.rules)
    followers = partition.leader_state.followers
    starts = [follower.log_start for follower in followers if follower.id in members or follower.id in active]
    return min([partition.log_start, *starts])
