"""Joining and leaving the ISR; each rule switched off breaks exactly what it protects."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache
from images.broker.log.retention import LogStartReason
from images.broker.replication.become_leader_or_follower import apply_registration
from images.broker.replication.leader import (
    maximal_isr,
    on_isr_committed,
    on_isr_refused,
    on_tick,
)
from images.broker.replication.log_start import advance_log_start
from images.broker.replication.partition import (
    HighWatermarkMoved,
    IsrCommitted,
    IsrRefused,
    IsrResolved,
    Partition,
    PartitionRegistration,
    PartitionStep,
    ProposeIsr,
)
from tests.broker.replication.partition_steps import (
    ACTIVE,
    ALL,
    LIMITS,
    fetch,
    fetched,
    grown,
    leader,
    proposal_in,
    without,
)

# --- joining and leaving the ISR --------------------------------------------------------------------------------------


def test_a_follower_at_the_leaders_end_is_proposed_with_the_broker_epochs_of_the_fetches() -> None:
    state = fetched(grown(leader(isr=(1, 2)), 3), 2, 3)
    proposal = proposal_in(fetch(state, 3, 3).step)
    assert (proposal.members, proposal.broker_epochs) == ((1, 2, 3), (11, 12, 13))
    assert (proposal.leader_epoch, proposal.partition_epoch) == (5, 7)


@pytest.mark.parametrize(("rules_off", "joins"), [((), False), (("leso_gates_isr_join",), True)])
def test_a_follower_below_the_leader_epoch_start_does_not_join(rules_off: tuple[str, ...], joins: bool) -> None:
    """Kafka Replication Correctness §6.5.3: the new leader's own high watermark is stale, so reaching it proves
    nothing."""
    limits = without(*rules_off)
    state = leader(isr=(1, 2), runs=((1, 4),), high_watermark=1, limits=limits)
    assert bool(fetch(state, 3, 2, limits=limits).step.decisions) is joins


@pytest.mark.parametrize(("log_start", "joins"), [(-1, False), (2, False), (3, True)])
def test_a_follower_joins_once_its_log_begins_where_its_leaders_does(log_start: int, joins: bool) -> None:
    """A leader that does not know the epoch of its last deleted record takes three records of epoch 2 for those of
    epoch 5 that it has deleted."""
    state = grown(leader(isr=(1,), limits=without("min_isr_gates_high_watermark")), 3)
    emptied = advance_log_start(state._replace(high_watermark=3), 3, LogStartReason.RETENTION_MS).partition
    emptied = emptied._replace(epochs=EpochCache.of((5, 3)))
    answer = fetch(emptied, 2, 3, last_epoch=2, log_start=log_start)
    assert (answer.error, answer.diverging) == (ErrorCode.none, None)
    assert bool(answer.step.decisions) is joins


@pytest.mark.parametrize(("rules_off", "joins"), [((), False), (("fenced_stay_out_of_isr",), True)])
def test_a_follower_of_another_broker_epoch_does_not_join(rules_off: tuple[str, ...], joins: bool) -> None:
    limits = without(*rules_off)
    step = fetch(leader(isr=(1, 2), limits=limits), 3, 0, broker_epoch=99, limits=limits).step
    assert bool(step.decisions) is joins


@pytest.mark.parametrize(("rules_off", "joins"), [((), False), (("current_epoch_fetch_gates_isr_join",), True)])
def test_a_follower_not_heard_from_in_this_leadership_does_not_join(rules_off: tuple[str, ...], joins: bool) -> None:
    """Kafka Replication Correctness §6.5.4: it may have been removed, emptied and added again, and the leader has seen
    but the end of that."""
    limits = without(*rules_off)
    state = fetched(fetched(grown(leader(limits=limits), 3), 2, 3, limits=limits), 3, 3, limits=limits)
    again = apply_registration(state, PartitionRegistration((1, 2, 3), (1, 2), 1, 6, 8), 20, limits).partition
    ticked = on_tick(again, ACTIVE, 30, limits)
    assert bool(ticked.decisions) is joins
    if joins:
        assert proposal_in(ticked).members == (1, 2, 3)


def test_one_isr_change_is_in_flight_at_a_time() -> None:
    state = fetched(leader(isr=(1,)), 2, 0)
    assert state.leader_state.proposed == (1, 2)
    assert fetch(state, 3, 0).step.decisions == ()


def test_a_member_that_has_not_reached_the_end_in_time_is_proposed_for_removal() -> None:
    state = fetched(fetched(grown(leader(), 3), 2, 3, now_ms=900), 3, 1, now_ms=900)
    assert on_tick(state, ACTIVE, 1_000, LIMITS).decisions == ()
    assert proposal_in(on_tick(state, ACTIVE, 1_001, LIMITS)).members == (1, 2)


def test_a_member_that_has_everything_stays_however_long_it_is_silent() -> None:
    state = fetched(fetched(leader(), 2, 0), 3, 0)
    assert on_tick(state, ACTIVE, 60_000, LIMITS).decisions == ()


def test_a_member_that_keeps_up_with_a_growing_log_stays() -> None:
    state = leader()
    for second in range(1, 6):
        before = state.log_end
        state = grown(state, before + 10)
        state = fetched(fetched(state, 2, before, now_ms=second * 400), 3, before, now_ms=second * 400)
    assert on_tick(state, ACTIVE, 2_400, LIMITS).decisions == ()


# --- the outcome of an ISR change -------------------------------------------------------------------------------------


def expanding() -> tuple[Partition, ProposeIsr]:
    step = fetch(leader(isr=(1, 2)), 3, 0).step
    return step.partition, proposal_in(step)


def test_a_certain_refusal_rolls_back() -> None:
    state, proposal = expanding()
    step = on_isr_refused(state, proposal, IsrRefused(ErrorCode.ineligible_replica, certain=True), LIMITS)
    assert maximal_isr(step.partition, ALL) == (1, 2)
    assert step.decisions == (IsrResolved((1, 2, 3), False, True, ErrorCode.ineligible_replica),)


def test_the_high_watermark_does_not_wait_for_who_was_refused() -> None:
    state, proposal = expanding()
    caught_up = fetched(grown(state, state.log_end + 5), 2, state.log_end + 5)
    assert caught_up.high_watermark < caught_up.log_end
    step = on_isr_refused(caught_up, proposal, IsrRefused(ErrorCode.ineligible_replica, certain=True), LIMITS)
    assert step.partition.high_watermark == caught_up.log_end
    assert any(isinstance(decision, HighWatermarkMoved) for decision in step.decisions)


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.invalid_update_version,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.not_controller,
        ErrorCode.request_timed_out,
    ],
)
def test_a_refusal_that_proves_nothing_keeps_the_maximal_isr(error: ErrorCode) -> None:
    state, proposal = expanding()
    step = on_isr_refused(state, proposal, IsrRefused(error, certain=True), LIMITS)
    assert maximal_isr(step.partition, ALL) == (1, 2, 3)


def test_an_uncertain_refusal_is_settled_by_committing_the_isr_as_it_is() -> None:
    """The first attempt may still reach the controller after the second was refused."""
    state, proposal = expanding()
    unresolved_members = on_isr_refused(
        state, proposal, IsrRefused(ErrorCode.ineligible_replica, certain=False), LIMITS
    ).partition
    assert maximal_isr(unresolved_members, ALL) == (1, 2, 3)
    assert fetch(unresolved_members, 3, 0).step.decisions == (), "nothing else is proposed before that is settled"
    step = on_tick(unresolved_members, ACTIVE, 100, LIMITS)
    assert proposal_in(step).members == (1, 2)
    assert maximal_isr(step.partition, ALL) == (1, 2, 3)
    done = on_isr_committed(step.partition, IsrCommitted((1, 2), 5, 8), LIMITS).partition
    assert maximal_isr(done, ALL) == (1, 2)


def test_an_answer_of_another_leadership_or_of_an_older_partition_epoch_is_ignored() -> None:
    state, proposal = expanding()
    assert on_isr_committed(state, IsrCommitted((1, 2, 3), 4, 9), LIMITS) == PartitionStep(state)
    assert on_isr_committed(state, IsrCommitted((1, 2, 3), 5, 7), LIMITS) == PartitionStep(state)
    settled = apply_registration(state, PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 5, 8), 0, LIMITS).partition
    late = on_isr_refused(settled, proposal, IsrRefused(ErrorCode.ineligible_replica, certain=True), LIMITS)
    assert late == PartitionStep(settled)


def test_newer_metadata_settles_a_change_in_flight() -> None:
    state, _ = expanding()
    step = apply_registration(state, PartitionRegistration((1, 2, 3), (1, 2), 1, 5, 8), 0, LIMITS)
    assert step.partition.leader_state.proposed is None
    assert maximal_isr(step.partition, ALL) == (1, 2)
