"""A consumer finds out that the log it read is not there any more, and exactly from where on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from images.broker.log.leader_epochs import EpochCache
from workloads.clients.consumer_rules import ConsumerRules
from workloads.clients.positions import (
    EpochEndQuery,
    FetchPosition,
    OffsetAndEpoch,
    Truncation,
    first_query,
    interpret_answer,
    required_before_fetch,
)

Log = tuple[int, ...]
"""The epoch of the record at each offset."""


def cache(log: Log, leader_epoch: int) -> EpochCache:
    """A leader's epoch cache: its own epoch begins where its log ended when it was elected."""
    entries = EpochCache()
    for offset, epoch in enumerate(log):
        entries = entries.assign(epoch, offset)
    return entries.assign(leader_epoch, len(log))


def read(log: Log, first: int = 0) -> FetchPosition:
    """A consumer that read `log` from `first` to its end."""
    epochs = tuple(
        OffsetAndEpoch(log.index(epoch), epoch) if log.index(epoch) >= first else OffsetAndEpoch(first, epoch)
        for epoch in sorted(set(log[first:]))
    )
    return FetchPosition(first).read(epochs, len(log), log[-1] if log else 0)


def validated(position: FetchPosition, leader: Log, leader_epoch: int) -> FetchPosition | Truncation:
    """Ask a leader until it is decided."""
    entries, asked = cache(leader, leader_epoch), first_query(position)
    for _ in range(20):
        outcome = interpret_answer(position, asked, *entries.end_offset_for(asked.epoch, len(leader)), ConsumerRules())
        if not isinstance(outcome, EpochEndQuery):
            return outcome
        assert outcome.epoch < asked.epoch
        asked = outcome
    raise AssertionError("it goes on asking for ever")


def test_a_valid_position_is_unchanged() -> None:
    position = read((1, 1, 2))
    assert validated(position, (1, 1, 2, 2), 3) is position


def test_a_log_truncated_and_grown_past_the_position_is_detected() -> None:
    outcome = validated(read((1, 1, 1, 1)), (1, 1, 2, 2, 2, 2), 2)
    assert outcome == Truncation(OffsetAndEpoch(4, 1), OffsetAndEpoch(2, 1))


def test_an_end_after_the_position_proves_nothing_when_it_is_of_another_epoch() -> None:
    # Epoch 2 was read at offset 3, the leader has epoch 1 there: it answers (1, 5), and 5 is after the position 4.
    outcome = validated(read((1, 1, 1, 2)), (1, 1, 1, 1, 1, 3), 3)
    assert outcome == Truncation(OffsetAndEpoch(4, 2), OffsetAndEpoch(3, 1))


def test_the_divergence_after_several_unclean_elections_is_found_epoch_by_epoch() -> None:
    # Of epochs 2 and 4 the leader knows nothing, of 3 the consumer; they agree on the first two records.
    outcome = validated(read((1, 1, 2, 2, 4, 4)), (1, 1, 3, 3, 3, 3, 5), 5)
    assert outcome == Truncation(OffsetAndEpoch(6, 4), OffsetAndEpoch(2, 1))


def test_a_leader_that_knows_no_epoch_leaves_the_divergence_unknown() -> None:
    position = FetchPosition.sought(7, 3)
    assert interpret_answer(position, first_query(position), -1, -1, ConsumerRules()) == Truncation(
        OffsetAndEpoch(7, 3), None
    )


def test_an_answer_without_an_epoch_neither_proves_nor_disproves() -> None:
    position = FetchPosition.sought(7, 3)
    assert interpret_answer(position, first_query(position), -1, 5, ConsumerRules()) is position


@pytest.mark.parametrize(
    ("position", "leader_epoch", "what"),
    [
        (FetchPosition(4), 9, "fetch"),
        (FetchPosition.sought(4, 2), -1, "fetch"),
        (FetchPosition.sought(4, 2), 2, "validate"),
        (FetchPosition.sought(4, 2), 3, "validate"),
        (FetchPosition.sought(4, 5), 3, "wait"),
        (FetchPosition(4, 2, validated_in=3), 3, "fetch"),
        (FetchPosition(4, 2, validated_in=3), 4, "validate"),
    ],
)
def test_the_precondition_of_a_fetch_depends_on_both_epochs(
    position: FetchPosition, leader_epoch: int, what: str
) -> None:
    assert required_before_fetch(position, leader_epoch, ConsumerRules()) == what


LOGS = st.lists(st.integers(0, 5), max_size=10).map(lambda epochs: tuple(sorted(epochs)))


def common(left: Log, right: Log) -> int:
    """How far two logs agree. Two logs that hold the same epoch at an offset agree up to there (Log Matching)."""
    agree = [offset + 1 for offset, (one, other) in enumerate(zip(left, right, strict=False)) if one == other]
    return max(agree, default=0)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Log, Log]:
    """The log read and a leader's log, as elections leave them: an epoch in both begins at the same offset."""
    base = draw(LOGS)
    cut = draw(st.integers(0, len(base)))
    low = base[cut - 1] + 1 if cut else 0
    new = tuple(epoch + low for epoch in draw(LOGS))
    taken = set(base[cut:])
    return base, base[:cut] + tuple(epoch for epoch in new if epoch not in taken)


@settings(max_examples=500, deadline=None)
@given(histories())
def test_a_consumer_that_read_from_the_start_finds_the_exact_divergence(logs: tuple[Log, Log]) -> None:
    mine, theirs = logs
    if not mine:
        return
    leader_epoch = max((*mine, *theirs)) + 1
    outcome = validated(read(mine), theirs, leader_epoch)
    agree = common(mine, theirs)
    if agree == len(mine):
        assert isinstance(outcome, FetchPosition)
    else:
        assert isinstance(outcome, Truncation)
        assert outcome.divergence is not None
        assert outcome.divergence.offset == agree


@settings(max_examples=300, deadline=None)
@given(histories(), st.integers(0, 9))
def test_a_consumer_that_read_a_part_never_goes_on_in_another_log(logs: tuple[Log, Log], first: int) -> None:
    mine, theirs = logs
    if first >= len(mine):
        return
    outcome = validated(read(mine, first), theirs, max((*mine, *theirs)) + 1)
    agree = common(mine, theirs)
    if agree == len(mine):
        assert isinstance(outcome, FetchPosition)
    else:
        assert isinstance(outcome, Truncation)
        assert outcome.divergence is not None
        assert outcome.divergence.offset <= max(agree, first)
