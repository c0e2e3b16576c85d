"""Become leader or follower, as the metadata has it."""

from __future__ import annotations

from images.broker.replication import truncation
from images.broker.replication.leader import advance_high_watermark
from images.broker.replication.partition import (
    BecameFollower,
    BecameLeader,
    Follower,
    IsrResolved,
    LeaderState,
    Limits,
    Partition,
    PartitionRegistration,
    PartitionStep,
    ReplicaRole,
    Resigned,
)


def apply_registration(
    partition: Partition, registration: PartitionRegistration, now_ms: int, limits: Limits
) -> PartitionStep:
    """Apply the metadata of a partition. Metadata older than the partition's state changes nothing."""
    if registration.leader_epoch < partition.leader_epoch or registration.partition_epoch <= partition.partition_epoch:
        return PartitionStep(partition)
    updated = partition._replace(
        replicas=registration.replicas,
        isr=registration.isr,
        leader=registration.leader,
        leader_epoch=registration.leader_epoch,
        partition_epoch=registration.partition_epoch,
    )
    if partition.node not in registration.replicas:
        resigned = updated._replace(role=ReplicaRole.NONE, leadership=None)
        return PartitionStep(resigned, () if partition.role is ReplicaRole.NONE else (Resigned(),))
    if registration.leader != partition.node:
        follower = updated._replace(role=ReplicaRole.FOLLOWER, leadership=None)
        same_epoch = partition.leader_epoch == registration.leader_epoch
        same_leader = partition.role is ReplicaRole.FOLLOWER and partition.leader == registration.leader
        if same_leader and (same_epoch or not limits.rules.truncate_in_every_leader_epoch):
            return PartitionStep(follower)
        step = truncation.begin(follower, limits.truncation_protocol)
        return PartitionStep(
            step.partition, (BecameFollower(registration.leader, registration.leader_epoch), *step.decisions)
        )
    if partition.leadership is not None and partition.leader_epoch == registration.leader_epoch:
        kept = tuple(
            partition.leadership.follower(replica) or _unknown_follower(replica, registration.isr, now_ms)
            for replica in registration.replicas
            if replica != partition.node
        )
        resolved = partition.leadership.proposed is not None
        as_leader = updated._replace(
            leadership=partition.leadership._replace(followers=kept, proposed=None, unresolved_members=())
        )
        step = advance_high_watermark(as_leader, limits)
        return PartitionStep(
            step.partition,
            (IsrResolved(registration.isr, committed=True), *step.decisions) if resolved else step.decisions,
        )
    return _lead(partition, updated, now_ms, limits)


def _lead(before: Partition, updated: Partition, now_ms: int, limits: Limits) -> PartitionStep:
    """Become leader. A leader that is elected again in the next leader epoch keeps its followers' positions, since the
    high watermark would stall otherwise. A position is not enough to join the ISR: that takes a fetch.

    If the new leader epoch is not the next one, another broker may have led in between: metadata that is read late can
    contain several elections, of 1 in epoch 1, of 2 in epoch 2, of 1 in epoch 3. A follower that had offset 100 from 1
    may have truncated its log to follow 2. With its position still at 100, broker 1 would take records for committed
    that it alone holds.
    """
    earlier = before.leadership
    follows_on = updated.leader_epoch == before.leader_epoch + 1
    if earlier is not None and not follows_on and limits.rules.positions_end_with_leadership:
        earlier = None
    followers = []
    for replica in updated.replicas:
        if replica == updated.node:
            continue
        follower = earlier.follower(replica) if earlier is not None else None
        if follower is None:
            follower = _unknown_follower(replica, updated.isr, now_ms)
        followers.append(follower._replace(caught_up_ms=now_ms if replica in updated.isr else 0, read_index=0))
    read_index = before.leadership.read_index if before.leadership is not None else 0
    epochs = updated.epochs
    if limits.rules.enter_leader_epoch_start:
        epochs = epochs.assign(updated.leader_epoch, updated.log_end)
    as_leader = updated._replace(
        role=ReplicaRole.LEADER,
        epochs=epochs,
        leadership=LeaderState(start=updated.log_end, followers=tuple(followers), read_index=read_index),
    )
    step = advance_high_watermark(as_leader, limits)
    became = BecameLeader(as_leader.leader_epoch, as_leader.log_end, as_leader.high_watermark)
    return PartitionStep(step.partition, (became, *step.decisions))


def _unknown_follower(replica: int, isr: tuple[int, ...], now_ms: int) -> Follower:
    return Follower(replica, caught_up_ms=now_ms if replica in isr else 0)
