"""Moving a partition to other replicas: grow, catch up, complete at once, or cancel (protocol notes §5).

*Begin*: the replicas become target ∪ current, the target first; ISR and leader epoch stay. Whoever is in the target
only is `adding`, whoever is not in it is `removing`. A reassignment that replaces another one cancels that one first.

*Complete*: in the very change that brings the last adding replica into the ISR, if by then |ISR ∩ target| ≥ min.isr and
somebody of them may lead. Before, the target might lack committed records, or hold them too few times.

*Cancel*: the adding replicas go at once. Where ISR or ELR count on one of them, what is committed may rest on it; then
at least min.isr of the original replicas must be in the ISR, unless the topic allows unclean election.

Whenever a replica is removed the leader epoch rises, so that nothing that is known of it, or that it has sent, is taken
for news of the replica that may one day be added again under its name (Kafka Replication Correctness §6.5.4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from images.broker.metadata.image import PartitionImage, TopicImage
from images.broker.rules import Rules


def start_reassignment(partition: PartitionImage, target: tuple[int, ...]) -> PartitionImage:
    """`partition` on its way to `target`; it must not be on its way elsewhere. Epochs are as before."""
    leaving = tuple(replica for replica in partition.replicas if replica not in target)
    return _without_removed(
        replace(
            partition,
            replicas=target + leaving,
            adding=tuple(replica for replica in target if replica not in partition.replicas),
            removing=leaving,
        )
    )


def may_cancel(topic: TopicImage, partition: PartitionImage, rules: Rules) -> bool:
    """Whether the original replicas alone still hold what is committed as often as was promised."""
    if topic.unclean_election or not rules.cancel_needs_min_isr:
        return True
    if not any(replica in partition.isr or replica in partition.elr for replica in partition.adding):
        return True
    original = [replica for replica in partition.replicas if replica not in partition.adding]
    in_sync = [replica for replica in original if replica in partition.isr]
    return len(in_sync) >= topic.min_isr_of(len(original))


def cancel_reassignment(partition: PartitionImage) -> PartitionImage:
    """`partition` with its original replicas. Epochs are as before."""
    original = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    return _without_removed(replace(partition, replicas=original, adding=(), removing=()))


def complete_reassignment(
    topic: TopicImage, partition: PartitionImage, isr: tuple[int, ...], eligible: Callable[[int], bool], rules: Rules
) -> PartitionImage | None:
    """`partition` on its target alone, if it is on its way and `isr`, its next ISR, allows it; else None."""
    if not partition.reassigning:
        return None
    target = tuple(replica for replica in partition.replicas if replica not in partition.removing)
    in_sync = [replica for replica in isr if replica in target]
    if rules.reassignment_waits_for_isr and (
        not set(partition.adding) <= set(isr) or len(in_sync) < topic.min_isr_of(len(target))
    ):
        return None
    if not any(map(eligible, in_sync if rules.reassignment_waits_for_isr else target)):
        return None
    return _without_removed(replace(partition, replicas=target, adding=(), removing=()))


def _without_removed(partition: PartitionImage) -> PartitionImage:
    """With ISR, ELR and LastKnownELR in replica order and without those that are no replicas."""

    def ordered(members: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(replica for replica in partition.replicas if replica in members)

    return replace(
        partition,
        isr=ordered(partition.isr),
        elr=ordered(partition.elr),
        last_known_elr=ordered(partition.last_known_elr),
    )
