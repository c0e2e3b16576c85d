"""Reassignment of a partition: start, replace, complete, or cancel (docs/protocol.md, section 5).

*Start*: the replicas become target ∪ original, the target first; ISR and leader epoch stay. Replicas only in the target
are `adding`, replicas not in the target are `removing`.

*Replace*: a new target takes the place of the one under way. Adding replicas that are in it, too, stay what they are;
the others are removed at once. If one of these is in ISR, ELR or LastKnownELR, then at least min.isr of the replicas
that remain must be in the ISR. The same target once more changes nothing.

*Complete*: in the change that brings the last adding replica into the ISR, if |ISR ∩ target| ≥ min.isr and one of these
is eligible as leader. Earlier, the target might lack committed records, or hold them too few times.

*Cancel*: the adding replicas are removed at once. If one of them is in ISR, ELR or LastKnownELR, committed records may
depend on it; then at least min.isr of the original replicas must be in the ISR, unless the topic allows unclean
election. Where ISR and ELR are empty, the LastKnownELR alone says who may hold all that is committed.

The removal of a replica bumps the leader epoch, so that earlier requests and state of that replica are not attributed
to a later replica on the same broker (Kafka Replication Correctness §6.5.4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from images.broker.controller.unclean_recovery import unclean_election_allowed
from images.broker.metadata.image import PartitionImage, TopicImage
from images.broker.rules import Rules


def start_reassignment(partition: PartitionImage, target: tuple[int, ...]) -> PartitionImage:
    """`partition` with a reassignment to `target`, in place of one that is in progress. Epochs do not change."""
    original = _original(partition)
    leaving = tuple(replica for replica in original if replica not in target)
    return _without_removed(
        replace(
            partition,
            replicas=target + leaving,
            adding=tuple(replica for replica in target if replica not in original),
            removing=leaving,
        )
    )


def may_replace(topic: TopicImage, partition: PartitionImage, target: tuple[int, ...], rules: Rules) -> bool:
    """Whether the replicas that `target` leaves hold committed records often enough, also where the topic allows
    unclean election: nobody asks for one."""
    return _may_remove(topic, partition, frozenset(partition.adding) - frozenset(target), rules)


def may_cancel(topic: TopicImage, partition: PartitionImage, rules: Rules) -> bool:
    """Whether the original replicas alone hold committed records often enough."""
    return unclean_election_allowed(topic) or _may_remove(topic, partition, frozenset(partition.adding), rules)


def cancel_reassignment(partition: PartitionImage) -> PartitionImage:
    """`partition` with its original replicas. Epochs do not change."""
    return _without_removed(replace(partition, replicas=_original(partition), adding=(), removing=()))


def complete_reassignment(
    topic: TopicImage, partition: PartitionImage, isr: tuple[int, ...], eligible: Callable[[int], bool], rules: Rules
) -> PartitionImage | None:
    """`partition` with the target as its replicas, if a reassignment can complete with `isr` as the next ISR; else
    None."""
    if not partition.reassigning:
        return None
    target = tuple(replica for replica in partition.replicas if replica not in partition.removing)
    in_sync = [replica for replica in isr if replica in target]
    joined = set(partition.adding) <= set(isr) and len(in_sync) >= topic.min_isr_of(len(target))
    ready = joined and any(map(eligible, in_sync))
    if not ready and (not any(map(eligible, target)) or rules.reassignment_waits_for_isr):
        return None
    return _without_removed(replace(partition, replicas=target, adding=(), removing=()))


def _original(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas but those that a reassignment is adding."""
    return tuple(replica for replica in partition.replicas if replica not in partition.adding)


def _may_remove(topic: TopicImage, partition: PartitionImage, removed: frozenset[int], rules: Rules) -> bool:
    depended_on = {*partition.isr, *partition.elr, *partition.last_known_elr}
    if depended_on.isdisjoint(removed):
        return True
    remaining = [replica for replica in partition.replicas if replica not in removed]
    in_sync = [replica for replica in remaining if replica in partition.isr]
    return len(in_sync) >= topic.min_isr_of(len(remaining)) or not rules.cancel_needs_min_isr


def _without_removed(partition: PartitionImage) -> PartitionImage:
    """`partition` with ISR, ELR and LastKnownELR in replica order, without brokers that are not replicas."""

    def ordered(members: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(replica for replica in partition.replicas if replica in members)

    return replace(
        partition,
        isr=ordered(partition.isr),
        elr=ordered(partition.elr),
        last_known_elr=ordered(partition.last_known_elr),
    )
