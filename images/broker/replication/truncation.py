"""Truncation: how a follower makes its log match its leader's, in six versions of the protocol.

    protocol            on becoming a follower                                                    known flaw
    ------------------  ------------------------------------------------------------------------  -------------------
    high_watermark      truncates to its own stored high watermark, then fetches                  loses acknowledged
                                                                                                  records, diverges
    kip101              gets the end offset of its latest epoch from the leader (an offset        diverges, or is stuck,
                        alone) and truncates to it                                                after a fast fail-over
    kip279              gets (epoch, offset), truncates to the end of that epoch in its own log,  no fencing: a zombie
                        and repeats while its log has no records of that epoch                    keeps fetching
    kip320_first_try    the same; the query and the first fetch in a leader epoch have that       a zombie is not
                        epoch, which the leader checks                                            fenced later
    kip320              the same; every request has the current leader epoch                      none known
    truncate_on_fetch   fetches at once: a fetch has the last fetched epoch, and the leader       none known
                        answers a diverging fetch with the point of divergence

With the middle four the follower does not fetch before its epoch query is answered. A *truncation round* is one epoch
query and its answer, or one fetch answered with a divergence; the trace has their number once the logs match
(`converged`). If the leader has no such epoch the follower truncates to its high watermark, as KIP-101 and KIP-279
require. With kip101 and kip279 so does a follower whose query fails, be it by a timeout; from kip320 on it repeats the
query.

The protocols before kip320_first_try send no leader epoch with their requests, so nothing is fenced. Those before
kip320 append fetched records of any epoch. kip101 sends OffsetForLeaderEpoch v0, whose answer has no epoch; kip279
sends v1.

Brokers of one cluster may have different protocols, as while it is upgraded: `faultline.protocol` is what a broker
sends as a follower (Kafka's inter.broker.protocol.version), `faultline.release` the newest protocol whose epoch queries
it answers as a leader (Kafka's release). KIP-279 upgrades in two steps: first every broker's release, then every
broker's protocol.
"""

from __future__ import annotations

from images.broker.log.leader_epochs import UNDEFINED
from images.broker.replication.follower import on_diverging, truncate
from images.broker.replication.partition import Converged, Partition, PartitionStep
from images.broker.truncation_protocol import TruncationProtocol
from images.wire.field_values import NO_LEADER


def begin(partition: Partition, truncation_protocol: TruncationProtocol) -> PartitionStep:
    """This replica begins to follow a leader. No protocol takes its log to match the leader's without a request."""
    followed = partition._replace(epoch_query=None, truncation_rounds=0)
    if partition.leader == NO_LEADER:
        return PartitionStep(followed)
    if truncation_protocol is TruncationProtocol.HIGH_WATERMARK and followed.high_watermark < followed.log_end:
        return truncate(followed, followed.high_watermark)
    if truncation_protocol.queries_epoch_end and followed.epochs.latest != UNDEFINED:
        return PartitionStep(followed._replace(epoch_query=followed.epochs.latest))
    return PartitionStep(followed)


def on_epoch_end(partition: Partition, epoch: int, end: int, truncation_protocol: TruncationProtocol) -> PartitionStep:
    """The leader's answer to an epoch query: `epoch`, the queried one or the next below, ends at `end`; -1 for none."""
    answered = partition._replace(truncation_rounds=partition.truncation_rounds + 1)
    if end == UNDEFINED:
        return _answered(partition, truncate(answered, answered.high_watermark))
    if truncation_protocol is TruncationProtocol.KIP101:
        return _answered(partition, truncate(answered, end))
    step = on_diverging(answered, epoch, end)
    cut = step.partition
    known = partition.epochs.end_offset_for(epoch, partition.log_end).epoch
    next_query = partition.epochs.next_lower(epoch)
    if known in (epoch, UNDEFINED) or next_query == UNDEFINED:
        return _answered(partition, step)
    return PartitionStep(cut._replace(epoch_query=next_query), step.decisions)


def on_divergence(partition: Partition, epoch: int, end: int) -> PartitionStep:
    """A fetch was answered with the point of divergence. The next fetch shows whether the logs match then."""
    return on_diverging(partition._replace(truncation_rounds=partition.truncation_rounds + 1), epoch, end)


def on_fit(partition: Partition) -> PartitionStep:
    """A fetch was answered without a divergence: the logs match."""
    if not partition.truncation_rounds:
        return PartitionStep(partition)
    return PartitionStep(partition._replace(truncation_rounds=0), (Converged(partition.truncation_rounds),))


def _answered(before: Partition, step: PartitionStep) -> PartitionStep:
    """The epoch query is answered. A truncation that removes nothing is left out."""
    cut = step.partition
    unchanged = (cut.log_end, cut.epochs) == (before.log_end, before.epochs)
    done = Converged(cut.truncation_rounds)
    return PartitionStep(
        cut._replace(epoch_query=None, truncation_rounds=0), (done,) if unchanged else (*step.decisions, done)
    )
