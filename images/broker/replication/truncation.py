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
from images.broker.replication.partition import NO_LEADER, Converged, Partition, Step
from images.broker.truncation_protocol import Generation


def begin(partition: Partition, generation: Generation) -> Step:
    """This replica has begun to follow a leader, which in no generation is believed before it has been asked."""
    followed = partition._replace(question=None, exchanges=0)
    if partition.leader == NO_LEADER:
        return Step(followed)
    if generation is Generation.HIGH_WATERMARK and followed.high_watermark < followed.log_end:
        return truncate(followed, followed.high_watermark)
    if generation.asks and followed.epochs.latest != UNDEFINED:
        return Step(followed._replace(question=followed.epochs.latest))
    return Step(followed)


def on_epoch_end(partition: Partition, epoch: int, end: int, generation: Generation) -> Step:
    """The leader says that the epoch asked for, or `epoch` below it, ends at `end` in its log; -1 if it knows none."""
    answered = partition._replace(exchanges=partition.exchanges + 1)
    if end == UNDEFINED:
        return _settled(partition, truncate(answered, answered.high_watermark))
    if generation is Generation.KIP101:
        return _settled(partition, truncate(answered, end))
    step = on_diverging(answered, epoch, end)
    cut = step.partition
    known = partition.epochs.end_offset_for(epoch, partition.log_end).epoch
    if known in (epoch, UNDEFINED) or cut.epochs.latest == UNDEFINED:
        return _settled(partition, step)
    return Step(cut._replace(question=cut.epochs.latest), step.decisions)


def on_divergence(partition: Partition, epoch: int, end: int) -> Step:
    """A fetch was answered with where the logs part; the next fetch shows whether they fit now."""
    return on_diverging(partition._replace(exchanges=partition.exchanges + 1), epoch, end)


def on_fit(partition: Partition) -> Step:
    """A fetch was answered with records, or with none: the logs fit."""
    if not partition.exchanges:
        return Step(partition)
    return Step(partition._replace(exchanges=0), (Converged(partition.exchanges),))


def _settled(before: Partition, step: Step) -> Step:
    """The question is answered; what cuts nothing is no truncation."""
    cut = step.partition
    fits = (cut.log_end, cut.epochs) == (before.log_end, before.epochs)
    done = Converged(cut.exchanges)
    return Step(cut._replace(question=None, exchanges=0), (done,) if fits else (*step.decisions, done))
