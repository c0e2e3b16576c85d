"""The decisions of a leader: fencing, divergence, the ISR, the high watermark, reads of the latest offset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.log.divergence import diverging_epoch
from images.broker.log.leader_epochs import EpochCache, EpochEnd
from images.broker.replication.partition import (
    Follower,
    HighWatermarkMoved,
    IsrCommitted,
    IsrRefused,
    IsrResolved,
    Limits,
    Partition,
    PartitionStep,
    ProposeIsr,
    ReplicaFetch,
    ReplicaRole,
)
from images.broker.rules import Rules
from images.wire.field_values import NO_EPOCH, NO_ERROR


def check_epoch(partition: Partition, requested: int, limits: Limits) -> ErrorCode:
    """Fencing (KIP-320): the error for a request of leader epoch `requested`; -1 switches the check off."""
    if requested in (NO_EPOCH, partition.leader_epoch) or not limits.rules.fence_fetch_epoch:
        return NO_ERROR
    if requested < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    return ErrorCode.unknown_leader_epoch


def check_leader(partition: Partition, requested: int, limits: Limits) -> ErrorCode:
    """The error for a request that only the leader answers. The epoch is checked before the role."""
    error = check_epoch(partition, requested, limits)
    if error is NO_ERROR and partition.role is not ReplicaRole.LEADER:
        return ErrorCode.not_leader_or_follower
    return error


def check_append(partition: Partition, acks: int, limits: Limits) -> ErrorCode:
    """The error for an append, before any record is written."""
    if partition.role is not ReplicaRole.LEADER:
        return ErrorCode.not_leader_or_follower
    if acks == -1 and not isr_suffices(partition, limits) and limits.rules.min_isr_gates_append:
        return ErrorCode.not_enough_replicas
    return NO_ERROR


def appended(partition: Partition, epochs: EpochCache, log_end: int, limits: Limits) -> PartitionStep:
    """The leader's log grew to `log_end`."""
    return advance_high_watermark(partition._replace(epochs=epochs, log_end=log_end), limits)


def readable_end(partition: Partition, limits: Limits) -> int:
    """The offset below which consumers read."""
    if partition.high_watermark != partition.log_end and limits.rules.consumer_reads_below_high_watermark:
        return partition.high_watermark
    return partition.log_end


def check_position(
    partition: Partition, last_fetched_epoch: int, offset: int, limits: Limits
) -> tuple[ErrorCode, EpochEnd | None]:
    """Check that `offset`, with the epoch of the record before it, is a position in this leader's log: an error, or the
    point of divergence; neither if it is one. A fetch without that epoch (-1) does not diverge."""
    if offset < partition.log_start:
        return ErrorCode.offset_out_of_range, None
    diverging = None
    if last_fetched_epoch != NO_EPOCH:
        diverging = diverging_epoch(partition.epochs, partition.log_end, last_fetched_epoch, offset)
    if diverging is not None and not limits.rules.truncate_on_divergence:
        diverging = None
    if offset > partition.log_end if diverging is None else diverging.undefined:
        return ErrorCode.offset_out_of_range, None
    return NO_ERROR, diverging


class FetchStep(NamedTuple):
    """A leader's answer to a follower's fetch: an error, a diverging (epoch, end offset), or permission to read."""

    step: PartitionStep
    error: ErrorCode = NO_ERROR
    diverging: tuple[int, int] | None = None


def on_replica_fetch(
    partition: Partition, fetch: ReplicaFetch, active: Mapping[int, int], now_ms: int, limits: Limits
) -> FetchStep:
    """A follower fetches. `active` has the broker epoch of every broker that may join an ISR.

    A fetch that is refused or answered with a diverging epoch does not change the state: its offset is not a position
    in this leader's log.
    """
    error = check_leader(partition, fetch.leader_epoch, limits)
    if error is NO_ERROR and partition.leader_state.follower(fetch.replica) is None:
        # A follower that gives its epoch may have read of a reassignment that this leader has not read of yet.
        known = fetch.leader_epoch == NO_EPOCH
        error = ErrorCode.not_leader_or_follower if known else ErrorCode.unknown_leader_epoch
    if error is NO_ERROR and _of_earlier_incarnation(partition, fetch, active, limits.rules):
        error = ErrorCode.not_leader_or_follower
    diverging = None
    if error is NO_ERROR:
        error, diverging = check_position(partition, fetch.last_fetched_epoch, fetch.offset, limits)
    if error is not NO_ERROR:
        return FetchStep(PartitionStep(partition), error)
    if diverging is not None:
        return FetchStep(PartitionStep(partition), diverging=diverging)
    joined = _consider_join(_record_fetch(partition, fetch, now_ms), fetch.replica, active, limits)
    candidates = {*partition.leader_state.awaited, fetch.replica}
    moved = advance_high_watermark(_await_caught_up(joined.partition, candidates, active, now_ms, limits), limits)
    return FetchStep(PartitionStep(moved.partition, joined.decisions + moved.decisions))


def _of_earlier_incarnation(partition: Partition, fetch: ReplicaFetch, active: Mapping[int, int], rules: Rules) -> bool:
    """Whether a later incarnation of the fetching broker has registered, or has fetched, since this fetch was sent."""
    follower = partition.leader_state.follower(fetch.replica)
    latest = max(active.get(fetch.replica, NO_EPOCH), follower.broker_epoch if follower is not None else NO_EPOCH)
    return NO_EPOCH != fetch.broker_epoch < latest and rules.fence_fetch_broker_epoch


def _record_fetch(partition: Partition, fetch: ReplicaFetch, now_ms: int) -> Partition:
    leadership = partition.leader_state
    followers = []
    for follower in leadership.followers:
        if follower.id == fetch.replica:
            caught_up_ms = follower.caught_up_ms
            if fetch.offset >= partition.log_end:
                caught_up_ms = max(caught_up_ms, now_ms)
            elif fetch.offset >= follower.leader_end_at_fetch:
                # It has the leader's LEO of its previous fetch: it was caught up then, even if the log grows fast.
                caught_up_ms = max(caught_up_ms, follower.fetched_ms)
            follower = Follower(
                follower.id,
                fetch.offset,
                fetch.broker_epoch,
                caught_up_ms,
                now_ms,
                partition.log_end,
                max(follower.read_index, fetch.read_index),
                fetch.log_start,
            )
        followers.append(follower)
    return partition._replace(leadership=leadership._replace(followers=tuple(followers)))


def _consider_join(partition: Partition, replica: int, active: Mapping[int, int], limits: Limits) -> PartitionStep:
    """Propose a follower for the ISR if its recorded position shows that it holds all committed records.

    Called within that follower's own fetch only: an earlier position may be that of a replica that has since been
    removed, emptied and added again (Kafka Replication Correctness §6.5.4).
    """
    leadership = partition.leader_state
    rules = limits.rules
    in_flight = leadership.proposed is not None or leadership.unresolved_members
    if replica in partition.isr or (in_flight and rules.one_isr_change_at_a_time):
        return PartitionStep(partition)
    follower = leadership.follower(replica)
    if follower is None or follower.log_end is None:
        return PartitionStep(partition)
    if follower.log_end < partition.high_watermark and rules.high_watermark_gates_isr_join:
        return PartitionStep(partition)
    if follower.log_end < leadership.start and rules.leso_gates_isr_join:
        return PartitionStep(partition)
    # A leader may not know the epoch of the last record that it has deleted, and then does not tell a log that diverges
    # there from one that does not. Kafka lets it join; once the follower has read of the log start, nothing of the kind
    # is left.
    if partition.log_start > max(follower.log_start, 0):
        return PartitionStep(partition)
    if active.get(replica) != follower.broker_epoch and rules.fenced_stay_out_of_isr:
        return PartitionStep(partition)
    members = tuple(member for member in partition.replicas if member in partition.isr or member == replica)
    if members == leadership.proposed:
        return PartitionStep(partition)
    return _propose(partition, members, active, "expand")


def _propose(partition: Partition, members: tuple[int, ...], active: Mapping[int, int], reason: str) -> PartitionStep:
    leadership = partition.leader_state
    epochs = []
    for member in members:
        follower = leadership.follower(member)
        has_fetched = follower is not None and follower.broker_epoch != -1
        # For a member that has not fetched in this leadership the metadata has the broker epoch.
        epochs.append(follower.broker_epoch if follower is not None and has_fetched else active.get(member, -1))
    return PartitionStep(
        partition._replace(leadership=leadership._replace(proposed=members)),
        (ProposeIsr(members, tuple(epochs), partition.leader_epoch, partition.partition_epoch, reason),),
    )


def _await_caught_up(
    partition: Partition, candidates: Collection[int], active: Mapping[int, int], now_ms: int, limits: Limits
) -> Partition:
    """Let the high watermark wait for those of the candidates that have caught up and may join the ISR, as Kafka's
    does. Else it would pass their positions between two fetches under steady load, and they would never join. One that
    is proposed counts as a member, or not at all (`maximal_isr`)."""
    leadership = partition.leader_state
    outside = {*candidates}.difference(partition.isr, leadership.proposed or (), leadership.unresolved_members)
    awaited = tuple(
        follower.id
        for follower in leadership.followers
        if follower.id in outside
        and follower.log_end is not None
        and active.get(follower.id) == follower.broker_epoch
        and partition.log_start <= max(follower.log_start, 0)
        and now_ms - follower.caught_up_ms <= limits.replica_lag_time_max_ms
    )
    if awaited == leadership.awaited:
        return partition
    return partition._replace(leadership=leadership._replace(awaited=awaited))


def on_tick(partition: Partition, active: Mapping[int, int], now_ms: int, limits: Limits) -> PartitionStep:
    """Time passes: the high watermark waits no longer for a follower that has fallen behind. Propose to shrink the ISR
    by members that lag too long, and resolve an unresolved change."""
    if partition.leadership is None:
        return PartitionStep(partition)
    awaited = partition.leadership.awaited
    moved = advance_high_watermark(_await_caught_up(partition, awaited, active, now_ms, limits), limits)
    proposed = _propose_in_time(moved.partition, active, now_ms, limits)
    return PartitionStep(proposed.partition, moved.decisions + proposed.decisions)


def _propose_in_time(partition: Partition, active: Mapping[int, int], now_ms: int, limits: Limits) -> PartitionStep:
    leadership = partition.leader_state
    if leadership.proposed is not None:
        return PartitionStep(partition)
    silent = [
        follower
        for follower in leadership.followers
        if follower.id in partition.isr and now_ms - follower.caught_up_ms > limits.replica_lag_time_max_ms
    ]
    lagging = {follower.id for follower in silent if follower.log_end != partition.log_end}
    # Beyond Kafka: also those that have the whole log, if they have not confirmed the last read of the latest offset,
    # which waits for them or was refused, and enough others are left to confirm reads. Else such reads would be refused
    # until something is appended.
    unconfirmed = lagging | {follower.id for follower in silent if follower.read_index < leadership.read_index}
    leaving = unconfirmed if len(partition.isr) - len(unconfirmed) >= _minimum_isr(partition, limits) else lagging
    if leaving:
        members = tuple(member for member in partition.isr if member not in leaving)
        return _propose(partition, members, active, "shrink")
    if leadership.unresolved_members:
        # Committing the ISR unchanged raises the partition epoch above that of every request still in flight.
        return _propose(partition, partition.isr, active, "settle")
    waiting = [follower.id for follower in leadership.followers if follower.id not in partition.isr]
    if waiting and not limits.rules.current_epoch_fetch_gates_isr_join:
        for replica in waiting:
            joined = _consider_join(partition, replica, active, limits)
            if joined.decisions:
                return joined
    return PartitionStep(partition)


def on_isr_committed(partition: Partition, answer: IsrCommitted, limits: Limits) -> PartitionStep:
    """The controller committed a change. An answer of another leader epoch, or older than the metadata, is ignored."""
    leadership = partition.leadership
    if (
        leadership is None
        or answer.leader_epoch != partition.leader_epoch
        or answer.partition_epoch <= partition.partition_epoch
    ):
        return PartitionStep(partition)
    committed = partition._replace(
        isr=answer.isr,
        partition_epoch=answer.partition_epoch,
        leadership=leadership._replace(proposed=None, unresolved_members=()),
    )
    step = advance_high_watermark(committed, limits)
    return PartitionStep(step.partition, (IsrResolved(answer.isr, committed=True), *step.decisions))


def still_proposes(partition: Partition, proposal: ProposeIsr) -> bool:
    """Whether `proposal` is still the change in flight."""
    leadership = partition.leadership
    return (
        leadership is not None
        and leadership.proposed == proposal.members
        and partition.partition_epoch == proposal.partition_epoch
        and partition.leader_epoch == proposal.leader_epoch
    )


def on_isr_refused(partition: Partition, proposal: ProposeIsr, answer: IsrRefused, limits: Limits) -> PartitionStep:
    """The controller refused. Only INELIGIBLE_REPLICA to the only request proves that nothing changed: the high
    watermark waits no longer for whoever was to join. In every other case the leader keeps the maximal ISR until
    metadata, or a later commit, resolves the change."""
    if not still_proposes(partition, proposal):
        return PartitionStep(partition)
    if answer.error is not ErrorCode.ineligible_replica:
        return PartitionStep(partition, (IsrResolved(proposal.members, committed=False, error=answer.error),))
    leadership = partition.leader_state
    unresolved_members = leadership.unresolved_members
    if not answer.certain:
        added = (member for member in proposal.members if member not in partition.isr)
        unresolved_members = tuple(sorted({*unresolved_members, *added}))
    settled = partition._replace(leadership=leadership._replace(proposed=None, unresolved_members=unresolved_members))
    refused = IsrResolved(proposal.members, committed=False, rolled_back=answer.certain, error=answer.error)
    step = advance_high_watermark(settled, limits)
    return PartitionStep(step.partition, (refused, *step.decisions))


# --- the high watermark -----------------------------------------------------------------------------------------------


def maximal_isr(partition: Partition, rules: Rules) -> tuple[int, ...]:
    """All replicas that may be in the controller's ISR by now; the committed ISR if the rule is off."""
    leadership = partition.leader_state
    if (leadership.proposed is None and not leadership.unresolved_members) or not rules.maximal_isr:
        return partition.isr
    return tuple(sorted({*partition.isr, *(leadership.proposed or ()), *leadership.unresolved_members}))


def isr_suffices(partition: Partition, limits: Limits) -> bool:
    """Whether the ISR has `min.insync.replicas` members, so that nobody outside of it may be elected cleanly."""
    minimum = _minimum_isr(partition, limits)
    if len(partition.isr) >= minimum:
        return True
    return len(maximal_isr(partition, limits.rules)) >= minimum and not limits.rules.min_isr_counts_committed_isr


def _minimum_isr(partition: Partition, limits: Limits) -> int:
    return min(limits.min_insync_replicas, len(partition.replicas))


def advance_high_watermark(partition: Partition, limits: Limits) -> PartitionStep:
    """Advance the high watermark to the lowest LEO in the maximal ISR and of the followers for which it waits, if the
    ISR is large enough. It never falls within a leadership, and does not advance before every member has fetched."""
    if partition.high_watermark == partition.log_end:
        return PartitionStep(partition)  # no position is above the leader's LEO
    if not isr_suffices(partition, limits) and limits.rules.min_isr_gates_high_watermark:
        return PartitionStep(partition)
    leadership = partition.leader_state
    quorum = maximal_isr(partition, limits.rules)
    positions = []
    for member in quorum:
        if member == partition.node:
            positions.append(partition.log_end)
            continue
        follower = leadership.follower(member)
        if follower is None or follower.log_end is None:
            return PartitionStep(partition)
        positions.append(follower.log_end)
    positions += [it.log_end for it in leadership.followers if it.id in leadership.awaited and it.log_end is not None]
    candidate = min(positions, default=partition.high_watermark)
    if candidate <= partition.high_watermark:
        return PartitionStep(partition)
    moved = HighWatermarkMoved(partition.high_watermark, candidate, quorum)
    return PartitionStep(partition._replace(high_watermark=candidate), (moved,))


# --- reads of the latest offset ---------------------------------------------------------------------------------------


def knows_committed(partition: Partition, limits: Limits) -> bool:
    """Whether all committed records lie below this leader's high watermark. Below the LESO the high watermark may be
    stale (Kafka Replication Correctness §6.4.2), and records above it may be committed."""
    leadership = partition.leader_state
    return partition.high_watermark >= leadership.start or not limits.rules.applied_high_watermark


def begin_latest_read(partition: Partition) -> tuple[Partition, int]:
    """Begin a read of the latest offset: the next state, and the read index of this read."""
    leadership = partition.leader_state
    number = leadership.read_index + 1
    return partition._replace(leadership=leadership._replace(read_index=number)), number


def confirms_latest(partition: Partition, read_index: int, limits: Limits) -> bool:
    """Whether the high watermark answers the read with this read index.

    It must cover all committed records. And the leader must not have been deposed without having read of it, since a
    later leader may have acknowledged more. A later leader comes from the ISR or the ELR, and acknowledges only with
    all of its own ISR. So once every member of the maximal ISR has sent a fetch of this epoch after an answer that was
    sent after the read began, no member had left this leadership when the read began, and no later leader had
    acknowledged a record by then. With fewer than min.insync.replicas in the ISR, an ELR member unknown to this leader
    may have been elected, so the read is not answered.
    """
    leadership = partition.leadership
    if leadership is None:
        return False
    if not knows_committed(partition, limits):
        return False
    if not limits.rules.latest_confirmed_by_isr:
        return True
    if not isr_suffices(partition, limits):
        return False
    members = maximal_isr(partition, limits.rules)
    return all(follower.read_index >= read_index for follower in leadership.followers if follower.id in members)


def confirmed_by(partition: Partition, read_index: int) -> tuple[int, ...]:
    """The leader, and the followers that have fetched since the read with this read index began."""
    followers = partition.leader_state.followers
    return (partition.node, *(follower.id for follower in followers if follower.read_index >= read_index))
