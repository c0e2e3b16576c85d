"""Divergence of logs, and answers that a follower applies; each rule switched off breaks exactly what it protects."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache
from images.broker.replication.become_leader_or_follower import apply_registration
from images.broker.replication.follower import answer_applies, on_diverging
from images.broker.replication.partition import (
    Partition,
    PartitionRegistration,
    PartitionStep,
    ReplicaRole,
    Truncate,
)
from images.broker.rules import WatchedRules
from tests.broker.replication.partition_steps import LIMITS, fetch, fetched, grown, leader, log, without

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


def test_a_fetch_below_the_log_start_is_out_of_range_whether_or_not_the_logs_diverge() -> None:
    read: list[str] = []
    limits = replace(LIMITS, rules=WatchedRules(LIMITS.rules, read.append))
    state = vector_leader()._replace(log_start=10)
    assert fetch(state, 2, 9, last_epoch=5, epoch=10, limits=limits).error is ErrorCode.offset_out_of_range
    assert "truncate_on_divergence" not in read, "it made no difference"
    assert fetch(state, 2, 10, last_epoch=5, epoch=10, limits=limits).diverging == (4, 13)
    assert "truncate_on_divergence" in read


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
    assert step.decisions == (Truncate(3, 5, 4, (1, 3)),)
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
