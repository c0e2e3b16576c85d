"""AlterPartition: a leader's request to change ISRs, and the checks it must pass (Kafka Replication Correctness §6.3,
6.5.1 case 3).

A proposal is based on the leader's view of a partition, which may be old, and names members whose brokers may have
restarted since. The leader epoch and the partition epoch prove that the view is current; the broker epoch of a member
proves that its fetches came from the broker process that is registered now.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from images.broker.metadata.image import ClusterImage, PartitionImage
from images.broker.rules import Rules


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """The ISR a leader proposes for the partition state (`leader_epoch`, `partition_epoch`). Members: (id, broker
    epoch)."""

    topic_id: uuid.UUID | None
    index: int
    leader_epoch: int
    partition_epoch: int
    members: tuple[tuple[int, int], ...]

    @property
    def isr(self) -> tuple[int, ...]:
        """Broker ids of the members."""
        return tuple(member for member, _ in self.members)


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """An AlterPartition request of broker `id`, registered with broker epoch `epoch`."""

    id: int
    epoch: int
    proposals: tuple[IsrProposal, ...]


@dataclass(frozen=True, slots=True)
class IsrResult:
    """Result of one proposal; `partition` is its new state, None with an error."""

    proposal: IsrProposal
    error: ErrorCode
    partition: PartitionImage | None = None


@dataclass(frozen=True, slots=True)
class AlterPartitionAnswer:
    """An error of the whole request, or a result for each proposal."""

    error: ErrorCode
    results: tuple[IsrResult, ...] = ()


def check_proposal(image: ClusterImage, request: AlterPartition, proposal: IsrProposal, rules: Rules) -> ErrorCode:
    """The first check that a proposal fails, else `none`. The sender's broker epoch has been checked before.

    In order: unknown topic (100) or partition (3); leader or partition epoch ahead of this controller (41); leader
    epoch behind (74); sender not the leader (42); partition epoch behind (95); an ISR with duplicates, with brokers
    that are not replicas, or without the leader (42); a member whose broker is unregistered, fenced, shutting down or
    in another broker epoch (107).
    """
    topic = image.topic_by_id(proposal.topic_id)
    if topic is None:
        return ErrorCode.unknown_topic_id
    known = image.partition(topic.name, proposal.index)
    if known is None:
        return ErrorCode.unknown_topic_or_partition
    if proposal.leader_epoch > known.leader_epoch or proposal.partition_epoch > known.partition_epoch:
        return ErrorCode.not_controller
    if proposal.leader_epoch < known.leader_epoch and rules.leader_epoch_checked_in_alter_partition:
        return ErrorCode.fenced_leader_epoch
    if request.id != known.leader:  # of this leader epoch only its leader proposes: for malformed requests
        return ErrorCode.invalid_request
    if proposal.partition_epoch < known.partition_epoch and rules.partition_epoch_checked_in_alter_partition:
        return ErrorCode.invalid_update_version
    isr = proposal.isr
    if len(set(isr)) < len(isr) or not set(isr) <= set(known.replicas) or known.leader not in isr:
        return ErrorCode.invalid_request
    if not all(_may_join(image, member, epoch, rules) for member, epoch in proposal.members):
        return ErrorCode.ineligible_replica
    return ErrorCode.none


def _may_join(image: ClusterImage, member: int, broker_epoch: int, rules: Rules) -> bool:
    if not image.is_active(member):
        return False
    return image.brokers[member].epoch == broker_epoch or not rules.broker_epoch_checked_in_alter_partition
