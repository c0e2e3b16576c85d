"""The partition machine keeps the protocol's rules, and each rule switched off breaks exactly what it protects."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from images.broker.replication.become_leader_or_follower import apply_registration
from images.broker.replication.follower import on_leader_high_watermark
from images.broker.replication.leader import (
    begin_latest_read,
    check_append,
    check_leader,
    confirms_latest,
    on_isr_committed,
    on_replica_fetch,
    on_tick,
    readable_end,
)
from images.broker.replication.partition import (
    BecameFollower,
    BecameLeader,
    HighWatermarkMoved,
    IsrCommitted,
    Limits,
    Partition,
    PartitionRegistration,
    PartitionStep,
    ReplicaFetch,
    ReplicaRole,
    Resigned,
)
from tests.broker.replication.partition_steps import (
    ACTIVE,
    ALL,
    LIMITS,
    fetch,
    fetched,
    grown,
    leader,
    log,
    proposal_in,
    without,
)

# --- becoming leader and follower -------------------------------------------------------------------------------------


def test_a_new_leader_enters_its_epoch_at_its_log_end_before_anything_else() -> None:
    epochs, end = log((1, 4))
    fresh = Partition(node=1, log_end=end, epochs=epochs)
    step = apply_registration(fresh, PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 5, 7), 0, LIMITS)
    assert step.decisions[0] == BecameLeader(5, 4, high_watermark=0)
    assert step.partition.epochs.latest == 5
    assert step.partition.leader_state.start == 4


def test_metadata_older_than_the_state_changes_nothing() -> None:
    state = leader(epoch=5)
    for stale in (PartitionRegistration((1, 2, 3), (2, 3), 2, 4, 9), PartitionRegistration((1, 2, 3), (1, 2), 1, 5, 7)):
        assert apply_registration(state, stale, 0, LIMITS) == PartitionStep(state)


def test_a_deposed_leader_follows_and_forgets_its_followers() -> None:
    step = apply_registration(leader(), PartitionRegistration((1, 2, 3), (2, 3), 2, 6, 8), 0, LIMITS)
    assert step.decisions == (BecameFollower(2, 6),)
    assert step.partition.role is ReplicaRole.FOLLOWER
    assert step.partition.leadership is None


def test_a_replica_taken_off_the_partition_resigns() -> None:
    step = apply_registration(leader(), PartitionRegistration((2, 3), (2, 3), 2, 6, 8), 0, LIMITS)
    assert step.decisions == (Resigned(),)
    assert step.partition.role is ReplicaRole.NONE


def test_a_leader_elected_again_keeps_its_followers_positions() -> None:
    state = fetched(grown(leader(), 3), 2, 3)
    again = apply_registration(state, PartitionRegistration((1, 2, 3), (1, 3), 1, 6, 8), 20, LIMITS).partition
    follower = again.leader_state.follower(2)
    assert follower is not None
    assert follower.log_end == 3


# --- the high watermark -----------------------------------------------------------------------------------------------


def test_the_high_watermark_waits_for_every_in_sync_replica() -> None:
    state = fetched(grown(leader(), 5), 2, 5)
    assert state.high_watermark == 0, "replica 3 has not been heard in this leadership"
    answer = fetch(state, 3, 4)
    assert answer.step.partition.high_watermark == 4
    assert HighWatermarkMoved(0, 4, (1, 2, 3)) in answer.step.decisions


def test_a_high_watermark_that_falls_within_a_leadership_is_a_violation() -> None:
    state = fetched(fetched(grown(leader(), 5), 2, 5), 3, 5)
    assert fetched(state, 3, 2).high_watermark == 5


def test_a_follower_takes_the_lower_of_the_leaders_high_watermark_and_its_own_end_even_downwards() -> None:
    state = Partition(node=2, log_end=4, high_watermark=4, role=ReplicaRole.FOLLOWER)
    assert on_leader_high_watermark(state, 9, without()).partition.high_watermark == 4
    assert on_leader_high_watermark(state, 2, without()).partition.high_watermark == 2
    begun = state._replace(log_start=3)
    assert on_leader_high_watermark(begun, 2, without()).partition.high_watermark == 3
    assert on_leader_high_watermark(begun, -1, without()).partition.high_watermark == 4


@pytest.mark.parametrize(("off", "committed"), [((), 2), (("follower_high_watermark_within_log",), 3)])
def test_a_follower_elected_uncleanly_has_its_first_append_committed_by_nobody_else_exactly_without_the_rule(
    off: tuple[str, ...], committed: int
) -> None:
    limits = without(*off)
    behind = Partition(node=2, log_end=2, leader=1, leader_epoch=1, partition_epoch=1, role=ReplicaRole.FOLLOWER)
    behind = on_leader_high_watermark(behind, 9, limits).partition
    elected = apply_registration(behind, PartitionRegistration((1, 2, 3), (2, 3), 2, 2, 2), 0, limits).partition
    state = grown(elected, 3, limits=limits)
    assert min(state.high_watermark, state.log_end) == committed


@pytest.mark.parametrize(("rules_off", "expected"), [((), 0), (("min_isr_gates_high_watermark",), 5)])
def test_the_high_watermark_stands_still_below_min_isr(rules_off: tuple[str, ...], expected: int) -> None:
    limits = without(*rules_off)
    assert grown(leader(isr=(1,), limits=limits), 5, limits).high_watermark == expected


@pytest.mark.parametrize(("rules_off", "expected"), [((), 3), (("maximal_isr",), 8)])
def test_a_proposed_member_counts_from_the_moment_it_is_proposed(rules_off: tuple[str, ...], expected: int) -> None:
    """Kafka Replication Correctness §6.5.2: the leader advances on [r1, r2] while the controller may already count
    r3."""
    limits = without(*rules_off)
    state = fetched(grown(leader(isr=(1, 2), limits=limits), 3, limits), 2, 3, limits)
    answer = fetch(state, 3, 3, limits=limits)
    assert proposal_in(answer.step).members == (1, 2, 3)
    later = fetched(grown(answer.step.partition, 8, limits), 2, 8, limits)
    assert later.high_watermark == expected


def test_a_shrink_takes_effect_only_when_committed() -> None:
    state = fetched(grown(leader(), 3), 2, 3, now_ms=5_000)
    step = on_tick(state, ACTIVE, 5_000, LIMITS)
    assert proposal_in(step).members == (1, 2)
    assert step.partition.high_watermark == 0
    done = on_isr_committed(step.partition, IsrCommitted((1, 2), 5, 8), LIMITS)
    assert done.partition.high_watermark == 3


def test_a_single_replica_commits_its_appends() -> None:
    alone = Limits(2, 1_000, ALL)
    state = apply_registration(Partition(node=1), PartitionRegistration((1,), (1,), 1, 0, 0), 0, alone).partition
    assert grown(state, 4, alone).high_watermark == 4


# --- fencing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "error"),
    [
        (4, ErrorCode.fenced_leader_epoch),
        (5, ErrorCode.none),
        (6, ErrorCode.unknown_leader_epoch),
        (-1, ErrorCode.none),
    ],
)
def test_requests_of_another_epoch_are_fenced(requested: int, error: ErrorCode) -> None:
    assert check_leader(leader(), requested, LIMITS) is error


def test_the_epoch_is_checked_before_the_leadership() -> None:
    follower = apply_registration(leader(), PartitionRegistration((1, 2, 3), (2, 3), 2, 6, 8), 0, LIMITS).partition
    assert check_leader(follower, 5, LIMITS) is ErrorCode.fenced_leader_epoch
    assert check_leader(follower, 6, LIMITS) is ErrorCode.not_leader_or_follower


def test_a_fetch_from_an_earlier_leadership_is_no_position() -> None:
    """KIP-320: B's fetch at 10 was held up; it has since truncated to 8 under another leader."""
    state = grown(leader(), 10)
    assert fetch(state, 2, 10, epoch=4).error is ErrorCode.fenced_leader_epoch
    limits = without("fence_fetch_epoch")
    recorded = fetched(state, 2, 10, limits, epoch=4).leader_state.follower(2)
    assert recorded is not None
    assert recorded.log_end == 10, "the mutant must believe it, or the rule protects nothing"


def test_a_fetch_of_a_broker_that_is_no_replica_is_answered_with_unknown_leader_epoch() -> None:
    request = ReplicaFetch(9, 99, 5, 0, -1)
    answer = on_replica_fetch(leader(), request, ACTIVE, 0, LIMITS)
    assert answer.error is ErrorCode.unknown_leader_epoch


# --- appends and reads ------------------------------------------------------------------------------------------------


def test_an_acks_all_append_needs_min_isr_and_others_do_not() -> None:
    state = leader(isr=(1,))
    assert check_append(state, -1, LIMITS) is ErrorCode.not_enough_replicas
    assert check_append(state, 1, LIMITS) is ErrorCode.none
    assert check_append(state, -1, without("min_isr_gates_append")) is ErrorCode.none


def test_a_follower_takes_no_appends() -> None:
    assert check_append(Partition(node=2, role=ReplicaRole.FOLLOWER), 1, LIMITS) is ErrorCode.not_leader_or_follower


def test_consumers_read_up_to_the_high_watermark() -> None:
    state = grown(leader(), 5)
    assert readable_end(state, LIMITS) == 0
    assert readable_end(state, without("consumer_reads_below_high_watermark")) == 5


# --- the latest offset ------------------------------------------------------------------------------------------------


def test_the_latest_offset_waits_for_every_member_to_be_heard_from_after_the_question() -> None:
    state = fetched(fetched(leader(), 2, 0), 3, 0)
    state, epoch_query = begin_latest_read(state)
    assert not confirms_latest(state, epoch_query, LIMITS)
    state = fetched(state, 2, 0, read_index=epoch_query)
    assert not confirms_latest(state, epoch_query, LIMITS)
    state = fetched(state, 3, 0, read_index=epoch_query)
    assert confirms_latest(state, epoch_query, LIMITS)


def test_the_latest_offset_is_not_returned_below_the_leader_epoch_start() -> None:
    """Kafka Replication Correctness §6.4.1: the leader's high watermark may be stale until it reaches its LESO."""
    limits = without("latest_confirmed_by_isr")
    state, epoch_query = begin_latest_read(leader(runs=((1, 4),), high_watermark=2, limits=limits))
    assert not confirms_latest(state, epoch_query, limits)
    off = without("latest_confirmed_by_isr", "applied_high_watermark")
    assert confirms_latest(state, epoch_query, off)


def test_a_leader_without_min_isr_does_not_tell_the_latest_offset() -> None:
    state, epoch_query = begin_latest_read(leader(isr=(1,)))
    assert not confirms_latest(state, epoch_query, LIMITS)


def test_equal_states_are_equal_values() -> None:
    assert leader() == leader()
    assert hash(leader()) == hash(leader())
