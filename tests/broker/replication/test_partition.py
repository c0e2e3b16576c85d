"""The partition machine keeps the protocol's rules, and each rule switched off breaks exactly what it protects."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache
from images.broker.replication.become_leader_or_follower import apply_registration
from images.broker.replication.follower import answer_applies, on_diverging, on_leader_high_watermark
from images.broker.replication.leader import (
    FetchStep,
    appended,
    begin_latest_read,
    check_append,
    check_leader,
    confirms_latest,
    maximal_isr,
    on_isr_committed,
    on_isr_refused,
    on_replica_fetch,
    on_tick,
    readable_end,
)
from images.broker.replication.partition import (
    BecameFollower,
    BecameLeader,
    HighWatermarkMoved,
    IsrCommitted,
    IsrRefused,
    IsrResolved,
    Limits,
    Partition,
    PartitionRegistration,
    PartitionStep,
    ProposeIsr,
    ReplicaFetch,
    ReplicaRole,
    Resigned,
    Truncate,
)
from images.broker.rules import Rules

ALL = Rules()
LIMITS = Limits(min_insync_replicas=2, replica_lag_time_max_ms=1_000, rules=ALL)
ACTIVE = {1: 11, 2: 12, 3: 13}


def without(*rules: str, limits: Limits = LIMITS) -> Limits:
    return replace(limits, rules=ALL.without(rules))


def log(*runs: tuple[int, int]) -> tuple[EpochCache, int]:
    """The epoch cache and end of a log given as (epoch, count) runs: `log((1, 4))` is `1×4`."""
    cache, end = EpochCache(), 0
    for epoch, count in runs:
        cache, end = cache.assign(epoch, end), end + count
    return cache, end


def leader(
    *,
    isr: tuple[int, ...] = (1, 2, 3),
    runs: tuple[tuple[int, int], ...] = (),
    epoch: int = 5,
    high_watermark: int = 0,
    limits: Limits = LIMITS,
    now_ms: int = 0,
) -> Partition:
    epochs, end = log(*runs)
    fresh = Partition(node=1, log_end=end, epochs=epochs, high_watermark=high_watermark)
    return apply_registration(fresh, PartitionRegistration((1, 2, 3), isr, 1, epoch, 7), now_ms, limits).partition


def fetch(
    state: Partition,
    replica: int,
    offset: int,
    *,
    last_epoch: int | None = None,
    epoch: int = 5,
    broker_epoch: int | None = None,
    read_index: int = 0,
    now_ms: int = 10,
    limits: Limits = LIMITS,
) -> FetchStep:
    if last_epoch is None:
        last_epoch = state.epochs.epoch_at(offset - 1) if offset else -1
    request = ReplicaFetch(replica, broker_epoch or ACTIVE[replica], epoch, offset, last_epoch, read_index)
    return on_replica_fetch(state, request, ACTIVE, now_ms, limits)


def fetched(state: Partition, replica: int, offset: int, limits: Limits = LIMITS, **more: int) -> Partition:
    answer = fetch(state, replica, offset, limits=limits, **more)
    assert answer.error is ErrorCode.none
    assert answer.diverging is None
    return answer.step.partition


def grown(state: Partition, to: int, limits: Limits = LIMITS) -> Partition:
    return appended(state, state.epochs.assign(state.leader_epoch, state.log_end), to, limits).partition


def proposal_in(step: PartitionStep) -> ProposeIsr:
    (found,) = [decision for decision in step.decisions if isinstance(decision, ProposeIsr)]
    return found


# --- becoming leader and follower -------------------------------------------------------------------------------------


def test_a_new_leader_enters_its_epoch_at_its_log_end_before_anything_else() -> None:
    epochs, end = log((1, 4))
    fresh = Partition(node=1, log_end=end, epochs=epochs)
    step = apply_registration(fresh, PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 5, 7), 0, LIMITS)
    assert step.decisions[0] == BecameLeader(5, 4)
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
    assert HighWatermarkMoved(0, 4, (1, 2, 3), (5, 5, 4)) in answer.step.decisions


def test_a_high_watermark_that_falls_within_a_leadership_is_a_violation() -> None:
    state = fetched(fetched(grown(leader(), 5), 2, 5), 3, 5)
    assert fetched(state, 3, 2).high_watermark == 5


def test_a_follower_takes_the_lower_of_the_leaders_high_watermark_and_its_own_end_even_downwards() -> None:
    state = Partition(node=2, log_end=4, high_watermark=4, role=ReplicaRole.FOLLOWER)
    assert on_leader_high_watermark(state, 9, without()).partition.high_watermark == 4
    assert on_leader_high_watermark(state, 2, without()).partition.high_watermark == 2


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


# --- divergence -------------------------------------------------------------------------------------------------------

CACHE = ((0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 17))
"""Epoch → start, log end 17: the check vectors of the protocol notes."""


def vector_leader() -> Partition:
    cache = EpochCache()
    for epoch, start in CACHE:
        cache = cache.assign(epoch, start)
    state = Partition(node=1, log_end=17, epochs=cache)
    # The leadership of epoch 10 began at 17, which is what the cache says.
    return apply_registration(state, PartitionRegistration((1, 2, 3), (1, 2, 3), 1, 10, 7), 0, LIMITS).partition


@pytest.mark.parametrize(
    ("last_epoch", "offset", "diverging"),
    [(2, 5, (0, 2)), (0, 4, (0, 2)), (6, 6, (4, 13)), (5, 9, (4, 13)), (10, 18, (10, 17))],
)
def test_a_leader_answers_a_diverging_fetch_with_the_point_of_divergence(
    last_epoch: int, offset: int, diverging: tuple[int, int]
) -> None:
    state = vector_leader()
    answer = fetch(state, 2, offset, last_epoch=last_epoch, epoch=10)
    assert answer.diverging == diverging
    assert answer.step == PartitionStep(state), "a diverging fetch is not a position"


@pytest.mark.parametrize(("last_epoch", "offset"), [(0, 2), (7, 14), (9, 17), (10, 17)])
def test_matching_logs_do_not_diverge(last_epoch: int, offset: int) -> None:
    answer = fetch(vector_leader(), 2, offset, last_epoch=last_epoch, epoch=10)
    assert (answer.error, answer.diverging) == (ErrorCode.none, None)


def test_an_epoch_the_leader_cannot_know_is_out_of_range() -> None:
    assert fetch(vector_leader(), 2, 5, last_epoch=11, epoch=10).error is ErrorCode.offset_out_of_range


def converge(
    leader_runs: tuple[tuple[int, int], ...], follower_runs: tuple[tuple[int, int], ...], epoch: int
) -> tuple[list[int], Partition]:
    """Let a follower fetch until nothing diverges: the ends it was cut to, and what it is left with."""
    state = leader(runs=leader_runs, epoch=epoch)
    epochs, end = log(*follower_runs)
    follower = Partition(node=2, log_end=end, epochs=epochs, role=ReplicaRole.FOLLOWER, leader_epoch=epoch)
    cuts: list[int] = []
    while True:
        answer = fetch(state, 2, follower.log_end, last_epoch=follower.epochs.latest, epoch=epoch)
        assert answer.error is ErrorCode.none
        if answer.diverging is None:
            return cuts, follower
        step = on_diverging(follower, *answer.diverging)
        (cut,) = step.decisions
        assert isinstance(cut, Truncate)
        cuts.append(cut.to)
        assert step.partition != follower, "an exchange that changes nothing would go on for ever"
        follower = step.partition


@pytest.mark.parametrize(
    ("leader_runs", "follower_runs", "epoch", "cuts"),
    [
        pytest.param(((1, 4),), ((1, 2),), 2, [], id="A"),
        pytest.param(((1, 2), (2, 2)), ((1, 2),), 3, [], id="B"),
        pytest.param(((1, 2),), ((1, 4),), 2, [2], id="C"),
        pytest.param(((1, 2),), ((1, 2), (2, 1)), 3, [2], id="D"),
        pytest.param(((1, 2), (3, 2)), ((1, 2), (2, 2)), 4, [2], id="E"),
        pytest.param(((1, 2),), ((1, 1), (2, 2)), 3, [1], id="F"),
        pytest.param(((1, 1),), ((2, 2),), 3, [0], id="G"),
    ],
)
def test_the_divergence_cases_a_to_g_converge(
    leader_runs: tuple[tuple[int, int], ...],
    follower_runs: tuple[tuple[int, int], ...],
    epoch: int,
    cuts: list[int],
) -> None:
    assert converge(leader_runs, follower_runs, epoch)[0] == cuts


@st.composite
def two_reachable_logs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs, as the epoch of each offset, that elections (clean or not), lag and losses can lead to: each epoch's
    leader starts from a prefix of some log there was, and appends."""
    logs: list[list[int]] = [[]]
    for epoch in range(draw(st.integers(1, 6))):
        origin = draw(st.sampled_from(logs))
        kept = draw(st.integers(0, len(origin)))
        logs.append(origin[:kept] + [epoch] * draw(st.integers(0, 3)))
    one, other = draw(st.sampled_from(logs)), draw(st.sampled_from(logs))
    return one[: draw(st.integers(0, len(one)))], other[: draw(st.integers(0, len(other)))]


def runs_of(epochs: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple((epoch, epochs.count(epoch)) for epoch in sorted(set(epochs)))


@given(two_reachable_logs())
@settings(max_examples=500, deadline=None)
def test_any_two_logs_converge_to_their_longest_common_prefix(logs: tuple[list[int], list[int]]) -> None:
    mine, theirs = logs
    cuts, follower = converge(runs_of(mine), runs_of(theirs), epoch=9)
    common = 0
    while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
        common += 1
    assert follower.log_end == common
    assert len(cuts) <= len(set(theirs)) + 1


def test_a_cut_below_the_high_watermark_brings_it_down() -> None:
    epochs, end = log((1, 5))
    state = Partition(node=2, log_end=end, epochs=epochs, high_watermark=4, role=ReplicaRole.FOLLOWER)
    step = on_diverging(state, 1, 3)
    assert step.decisions == (Truncate(3, 5, 4),)
    assert step.partition.high_watermark == 3


def test_without_truncation_a_divergent_fetch_is_served() -> None:
    answer = fetch(vector_leader(), 2, 5, last_epoch=2, epoch=10, limits=without("truncate_on_divergence"))
    assert answer.diverging is None
    assert answer.error is ErrorCode.none


# --- answers to a follower --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent_offset", "sent_epoch", "awaited"), [(4, 5, True), (3, 5, False), (4, 4, False), (5, 5, False)]
)
def test_an_answer_applies_only_at_the_offset_and_epoch_of_its_fetch(
    sent_offset: int, sent_epoch: int, awaited: bool
) -> None:
    state = Partition(node=2, log_end=4, role=ReplicaRole.FOLLOWER, leader_epoch=5)
    assert answer_applies(state, sent_offset, sent_epoch, LIMITS) is awaited
    assert answer_applies(state, sent_offset, sent_epoch, without("ignore_stale_fetch_answer"))


@pytest.mark.parametrize(("rules_off", "end"), [((), 8), (("ignore_stale_fetch_answer",), 4)])
def test_kip_320_an_answer_of_an_earlier_leadership_cuts_committed_records_exactly_without_the_rule(
    rules_off: tuple[str, ...], end: int
) -> None:
    """Broker 1 led in epoch 3 and was asked from offset 6. Its answer, that the logs part at offset 4, is held up. In
    epoch 4 the follower was brought into line by another leader, all eight records were committed, and now, in epoch
    5, broker 1 leads again: the answer comes from whom the follower follows."""
    limits = without(*rules_off)
    state = Partition(
        node=2,
        log_end=8,
        epochs=EpochCache.of((3, 0), (4, 5)),
        high_watermark=8,
        role=ReplicaRole.FOLLOWER,
        replicas=(1, 2, 3),
        isr=(1, 2, 3),
        leader=1,
        leader_epoch=5,
    )
    if answer_applies(state, 6, 3, limits):
        state = on_diverging(state, 3, 4).partition
    assert (state.log_end, state.high_watermark) == (end, end)


@pytest.mark.parametrize("off", [(), ("fence_fetch_broker_epoch",)])
@pytest.mark.parametrize("heard", [True, False], ids=["fetched since", "registered since"])
def test_a_fetch_of_an_earlier_incarnation_counts_exactly_without_the_rule(off: tuple[str, ...], heard: bool) -> None:
    """KAFKA-15221: the follower registered again, with broker epoch 12, and may have lost what this fetch says it
    holds."""
    limits = without(*off)
    state = grown(leader(isr=(1, 2), limits=limits), 3)
    if heard:
        state = fetched(state, 2, 1, limits=limits)
    late = fetch(state, 2, 3, broker_epoch=11, limits=limits)
    if off:
        assert late.error is ErrorCode.none
        assert late.step.partition.high_watermark == 3
    else:
        assert late.error is ErrorCode.not_leader_or_follower
        assert late.step.partition == state


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
    step = on_isr_refused(state, proposal, IsrRefused(ErrorCode.ineligible_replica, certain=True))
    assert maximal_isr(step.partition, ALL) == (1, 2)
    assert step.decisions == (IsrResolved((1, 2), False, True, ErrorCode.ineligible_replica),)


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
    step = on_isr_refused(state, proposal, IsrRefused(error, certain=True))
    assert maximal_isr(step.partition, ALL) == (1, 2, 3)


def test_an_uncertain_refusal_is_settled_by_committing_the_isr_as_it_is() -> None:
    """The first attempt may still reach the controller after the second was refused."""
    state, proposal = expanding()
    unresolved_members = on_isr_refused(
        state, proposal, IsrRefused(ErrorCode.ineligible_replica, certain=False)
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
    late = on_isr_refused(settled, proposal, IsrRefused(ErrorCode.ineligible_replica, certain=True))
    assert late == PartitionStep(settled)


def test_newer_metadata_settles_a_change_in_flight() -> None:
    state, _ = expanding()
    step = apply_registration(state, PartitionRegistration((1, 2, 3), (1, 2), 1, 5, 8), 0, LIMITS)
    assert step.partition.leader_state.proposed is None
    assert maximal_isr(step.partition, ALL) == (1, 2)


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
