"""How a follower comes to agree with its leader: five generations of the protocol behind one interface.

    generation          on becoming a follower                                                    known flaw
    ------------------  ------------------------------------------------------------------------  -------------------
    high_watermark      cuts its log to its own stored high watermark, then fetches               loses acknowledged
                                                                                                  records, diverges
    kip101              asks the leader where its latest epoch ends (an offset alone) and cuts    diverges, or is stuck,
                        there                                                                     after a fast fail-over
    kip279              the answer is (epoch, offset); cuts to the end of what it has of that     no fencing: a zombie
                        epoch, and asks again while it does not know the answered epoch           keeps fetching
    kip320              the same; requests carry the leader epoch they are meant for              none known
    truncate_on_fetch   just fetches: a fetch carries the last fetched epoch, and the leader      none known
                        answers a fetch that does not fit with where the logs part

Until the question of the middle three is settled the follower does not fetch. An *exchange* is one question and its
answer, or one fetch answered with a divergence; how many a follower needed is traced when it fits again (`converged`).
An answer that knows no such epoch cuts to the follower's high watermark, as KIP-101 and KIP-279 say.

The generations before kip320 send no leader epoch with what they ask, so that nothing is fenced, and take whatever
epoch the records that come back carry.
"""

from __future__ import annotations

from images.broker.log.leader_epochs import UNDEFINED
from images.broker.replication.follower import on_diverging, truncate
from images.broker.replication.partition import NO_LEADER, Converged, Partition, PartitionStep
from images.broker.truncation_protocol import TruncationProtocol


def begin(partition: Partition, truncation_protocol: TruncationProtocol) -> PartitionStep:
    """This replica has begun to follow a leader, which in no generation is believed before it has been asked."""
    followed = partition._replace(epoch_query=None, truncation_rounds=0)
    if partition.leader == NO_LEADER:
        return PartitionStep(followed)
    if truncation_protocol is TruncationProtocol.HIGH_WATERMARK and followed.high_watermark < followed.log_end:
        return truncate(followed, followed.high_watermark)
    if truncation_protocol.queries_epoch_end and followed.epochs.latest != UNDEFINED:
        return PartitionStep(followed._replace(epoch_query=followed.epochs.latest))
    return PartitionStep(followed)


def on_epoch_end(partition: Partition, epoch: int, end: int, truncation_protocol: TruncationProtocol) -> PartitionStep:
    """The leader says that the epoch asked for, or `epoch` below it, ends at `end` in its log; -1 if it knows none."""
    answered = partition._replace(truncation_rounds=partition.truncation_rounds + 1)
    if end == UNDEFINED:
        return _settled(partition, truncate(answered, answered.high_watermark))
    if truncation_protocol is TruncationProtocol.KIP101:
        return _settled(partition, truncate(answered, end))
    step = on_diverging(answered, epoch, end)
    cut = step.partition
    known = partition.epochs.end_offset_for(epoch, partition.log_end).epoch
    if known in (epoch, UNDEFINED) or cut.epochs.latest == UNDEFINED:
        return _settled(partition, step)
    return PartitionStep(cut._replace(epoch_query=cut.epochs.latest), step.decisions)


def on_divergence(partition: Partition, epoch: int, end: int) -> PartitionStep:
    """A fetch was answered with where the logs part; the next fetch shows whether they fit now."""
    return on_diverging(partition._replace(truncation_rounds=partition.truncation_rounds + 1), epoch, end)


def on_fit(partition: Partition) -> PartitionStep:
    """A fetch was answered with records, or with none: the logs fit."""
    if not partition.truncation_rounds:
        return PartitionStep(partition)
    return PartitionStep(partition._replace(truncation_rounds=0), (Converged(partition.truncation_rounds),))


def _settled(before: Partition, step: PartitionStep) -> PartitionStep:
    """The question is answered; what cuts nothing is no truncation."""
    cut = step.partition
    fits = (cut.log_end, cut.epochs) == (before.log_end, before.epochs)
    done = Converged(cut.truncation_rounds)
    return PartitionStep(
        cut._replace(epoch_query=None, truncation_rounds=0), (done,) if fits else (*step.decisions, done)
    )
