"""What decides where a log starts: deletion asked for, retention, the leader, and a log that has to begin anew.

The start of a log moves forward only, and only up to the high watermark: what is not committed is not deleted, or a
record could be acknowledged that is nowhere. A leader decides for itself (DeleteRecords, retention); a follower applies
retention to its own log, and takes over the start that its leader tells with every answer to a fetch that fits.
DeleteRecords is done once the low watermark, the lowest start among the leader and all replicas that are in sync or
alive, has reached the offset asked for.

A follower whose end lies below its leader's start has nothing to go on from: it drops everything and begins where the
leader's log does. That is also how an empty replica begins. The start falls only with a cut below it, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache
from images.broker.log.retention import LogStartReason
from images.broker.replication.leader import check_leader, maximal_isr
from images.broker.replication.partition import (
    NO_EPOCH,
    Limits,
    LogStartAdvanced,
    Partition,
    PartitionStep,
    ReplicaRole,
    TruncateFullyAndStartAt,
)

TO_HIGH_WATERMARK = -1
"""The offset by which DeleteRecords asks for everything below the high watermark."""
UNKNOWN_START = -1


def delete_records(partition: Partition, offset: int, limits: Limits) -> tuple[ErrorCode, int, PartitionStep]:
    """A client asks that the log start at `offset`: an error, or the offset that the low watermark has to reach."""
    error = check_leader(partition, NO_EPOCH, limits)
    if error is not ErrorCode.none:
        return error, UNKNOWN_START, PartitionStep(partition)
    bound = highest_start(partition, limits)
    wanted = bound if offset == TO_HIGH_WATERMARK else offset
    if not 0 <= wanted <= bound:
        return ErrorCode.offset_out_of_range, UNKNOWN_START, PartitionStep(partition)
    return ErrorCode.none, wanted, move_start(partition, wanted, LogStartReason.DELETE_RECORDS)


def highest_start(partition: Partition, limits: Limits) -> int:
    """Where the log may start at most."""
    if limits.rules.log_start_never_above_high_watermark:
        return partition.high_watermark
    return partition.log_end


def retained_from(partition: Partition, limits: Limits) -> int:
    """Retention removes only what lies below."""
    return partition.high_watermark if limits.rules.retention_stops_at_high_watermark else partition.log_end


def move_start(partition: Partition, to: int, reason: LogStartReason) -> PartitionStep:
    """The log starts at `to` from now on; a start that has come as far already stays."""
    if to <= partition.log_start:
        return PartitionStep(partition)
    moved = partition._replace(log_start=to, epochs=partition.epochs.advance_start(to))
    return PartitionStep(moved, (LogStartAdvanced(partition.log_start, to, reason),))


def on_leader_log_start(partition: Partition, leader_log_start: int, limits: Limits) -> PartitionStep:
    """The leader's log starts there, as it said with an answer that fits."""
    return move_start(partition, min(leader_log_start, highest_start(partition, limits)), LogStartReason.LEADER)


def truncate_fully_and_start_at(partition: Partition, at: int) -> PartitionStep:
    """Drop everything and begin at `at`, where the leader's log begins: what it deleted was committed."""
    anew = partition._replace(log_start=at, log_end=at, epochs=EpochCache(), high_watermark=at)
    return PartitionStep(anew, (TruncateFullyAndStartAt(at, partition.log_end, partition.high_watermark),))


def low_watermark(partition: Partition, active: Mapping[int, int], limits: Limits) -> int:
    """The lowest start of all logs that count, -1 while one has not told. `active` has the brokers that are alive."""
    if partition.role is not ReplicaRole.LEADER:
        return UNKNOWN_START
    members = maximal_isr(partition, limits.rules)
    followers = partition.leader_state.followers
    starts = [follower.log_start for follower in followers if follower.id in members or follower.id in active]
    return min([partition.log_start, *starts])
