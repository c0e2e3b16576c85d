"""Who leads: taking over what the controller's metadata says of a partition."""

from __future__ import annotations

from images.broker.replication import truncation
from images.broker.replication.leader import advance_high_watermark
from images.broker.replication.partition import (
    BecameFollower,
    BecameLeader,
    Follower,
    IsrSettled,
    LeaderState,
    Limits,
    Partition,
    PartitionRegistration,
    PartitionStep,
    ReplicaRole,
    Resigned,
)


def apply_registration(partition: Partition, view: PartitionRegistration, now_ms: int, limits: Limits) -> PartitionStep:
    """Take over what the controller says. Metadata older than what is already known changes nothing."""
    if view.leader_epoch < partition.leader_epoch or view.partition_epoch <= partition.partition_epoch:
        return PartitionStep(partition)
    known = partition._replace(
        replicas=view.replicas,
        isr=view.isr,
        leader=view.leader,
        leader_epoch=view.leader_epoch,
        partition_epoch=view.partition_epoch,
    )
    if partition.node not in view.replicas:
        gone = known._replace(role=ReplicaRole.NONE, leadership=None)
        return PartitionStep(gone, () if partition.role is ReplicaRole.NONE else (Resigned(),))
    if view.leader != partition.node:
        followed = known._replace(role=ReplicaRole.FOLLOWER, leadership=None)
        same = partition.role is ReplicaRole.FOLLOWER and partition.leader_epoch == view.leader_epoch
        if same and partition.leader == view.leader:
            return PartitionStep(followed)
        begun = truncation.begin(followed, limits.truncation_protocol)
        return PartitionStep(begun.partition, (BecameFollower(view.leader, view.leader_epoch), *begun.decisions))
    if partition.leadership is not None and partition.leader_epoch == view.leader_epoch:
        kept = tuple(
            partition.leadership.follower(replica) or _unknown_follower(replica, view.isr, now_ms)
            for replica in view.replicas
            if replica != partition.node
        )
        settled = partition.leadership.proposed is not None
        as_leader = known._replace(
            leadership=partition.leadership._replace(followers=kept, proposed=None, unresolved_members=())
        )
        step = advance_high_watermark(as_leader, limits)
        return PartitionStep(
            step.partition, (IsrSettled(view.isr, committed=True), *step.decisions) if settled else step.decisions
        )
    return _lead(partition, known, now_ms, limits)


def _lead(before: Partition, known: Partition, now_ms: int, limits: Limits) -> PartitionStep:
    """Begin a leadership. A leader that is elected again keeps its followers' positions (the high watermark would stall
    otherwise); to join the ISR they do not suffice, that takes a fetch of its own.

    Not so when others may have led in between: metadata read late can hold several elections, 1 in epoch 1, 2 in epoch
    2, 1 in epoch 3. A follower that had offset 100 from 1 has cut its log to follow 2; were it still counted with 100,
    1 would call committed what it alone holds. Nobody has led in between if the leader epoch is the very next one.
    """
    earlier = before.leadership
    if limits.rules.positions_end_with_leadership and known.leader_epoch != before.leader_epoch + 1:
        earlier = None
    followers = []
    for replica in known.replicas:
        if replica == known.node:
            continue
        follower = earlier.follower(replica) if earlier is not None else None
        if follower is None:
            follower = _unknown_follower(replica, known.isr, now_ms)
        followers.append(follower._replace(caught_up_ms=now_ms if replica in known.isr else 0, read_index=0))
    read_index = before.leadership.read_index if before.leadership is not None else 0
    as_leader = known._replace(
        role=ReplicaRole.LEADER,
        epochs=known.epochs.assign(known.leader_epoch, known.log_end),
        leadership=LeaderState(start=known.log_end, followers=tuple(followers), read_index=read_index),
    )
    step = advance_high_watermark(as_leader, limits)
    return PartitionStep(step.partition, (BecameLeader(as_leader.leader_epoch, as_leader.log_end), *step.decisions))


def _unknown_follower(replica: int, isr: tuple[int, ...], now_ms: int) -> Follower:
    return Follower(replica, caught_up_ms=now_ms if replica in isr else 0)
