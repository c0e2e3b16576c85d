"""The decisions of a follower: which answers apply, where to truncate, and its high watermark."""

from __future__ import annotations

from images.broker.log.divergence import truncation_offset
from images.broker.log.leader_epochs import EpochCache, EpochEnd
from images.broker.replication.partition import (
    HighWatermarkMoved,
    Limits,
    Partition,
    PartitionStep,
    ReplicaRole,
    Truncate,
)


def answer_applies(partition: Partition, sent_offset: int, sent_epoch: int, limits: Limits) -> bool:
    """Whether the answer to a fetch from `sent_offset` in leader epoch `sent_epoch` still applies."""
    if partition.role is not ReplicaRole.FOLLOWER:
        return False
    fresh = partition.log_end == sent_offset and partition.leader_epoch == sent_epoch
    return fresh or not limits.rules.ignore_stale_fetch_answer


def on_diverging(partition: Partition, epoch: int, end: int) -> PartitionStep:
    """The leader's log diverges from this one at or before (`epoch`, `end`): truncate to the last offset that both may
    have in common, see `truncation_offset`. The next fetch may be answered with another diverging epoch."""
    to = truncation_offset(partition.epochs, partition.log_end, EpochEnd(epoch, end))
    return truncate(partition, to, (epoch, end))


def truncate(partition: Partition, to: int, answer: tuple[int, int] | None = None) -> PartitionStep:
    """Truncate the log to `to`, or to its end if that is lower, upon the leader's `answer` if there is one. High
    watermark and log start fall with it: the log of an uncleanly elected leader may end below the log start."""
    to = min(to, partition.log_end)
    cut = partition._replace(
        log_start=min(partition.log_start, to),
        log_end=to,
        epochs=partition.epochs.truncate_end(to),
        high_watermark=min(partition.high_watermark, to),
    )
    return PartitionStep(cut, (Truncate(to, partition.log_end, partition.high_watermark, answer),))


def truncated(partition: Partition, epochs: EpochCache, log_start: int, log_end: int) -> Partition:
    """The log was truncated to `log_end`: below the offset of `truncate` if that was inside a batch."""
    high_watermark = min(partition.high_watermark, log_end)
    return partition._replace(epochs=epochs, log_start=log_start, log_end=log_end, high_watermark=high_watermark)


def replicated(partition: Partition, epochs: EpochCache, log_end: int) -> Partition:
    """The follower's log grew to `log_end`."""
    return partition._replace(epochs=epochs, log_end=log_end)


def on_leader_high_watermark(partition: Partition, leader_high_watermark: int, limits: Limits) -> PartitionStep:
    """Follow the leader's high watermark, up to the own LEO. It may fall (Kafka Replication Correctness §6.4), but not
    below the log start, since what was deleted was committed: it would stand still where this replica leads, and its
    followers' logs would start too low to join the ISR."""
    after = max(leader_high_watermark, partition.log_start) if leader_high_watermark >= 0 else partition.high_watermark
    if after > partition.log_end and limits.rules.follower_high_watermark_within_log:
        after = partition.log_end
    if after == partition.high_watermark:
        return PartitionStep(partition)
    moved = HighWatermarkMoved(partition.high_watermark, after)
    return PartitionStep(partition._replace(high_watermark=after), (moved,))
