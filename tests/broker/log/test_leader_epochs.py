"""The epoch cache answers as the protocol notes say (§1), and as a plain list of every record's epoch would."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from images.broker.log.divergence import diverging_epoch
from images.broker.log.leader_epochs import EpochCache, EpochEnd

LEADER = EpochCache.of((0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 17))
LEADER_END = 17


# ---- the vectors of the protocol notes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answer"),
    [((2, 5), (0, 2)), ((0, 4), (0, 2)), ((6, 6), (4, 13)), ((5, 9), (4, 13)), ((10, 18), (10, 17))],
)
def test_a_diverging_follower_gets_the_end_of_the_epoch_that_both_logs_have(
    asked: tuple[int, int], answer: tuple[int, int]
) -> None:
    assert LEADER.end_offset_for(asked[0], LEADER_END) == answer
    assert diverging_epoch(LEADER, LEADER_END, *asked) == answer


@pytest.mark.parametrize("asked", [(0, 2), (7, 14), (9, 17), (10, 17)])
def test_a_leader_finds_no_divergence_in_a_prefix_of_its_log(asked: tuple[int, int]) -> None:
    assert diverging_epoch(LEADER, LEADER_END, *asked) is None


def test_an_epoch_above_every_entry_is_undefined() -> None:
    assert LEADER.end_offset_for(11, LEADER_END) == (-1, -1)
    assert diverging_epoch(LEADER, LEADER_END, 11, 5) == (-1, -1)


@pytest.mark.parametrize(
    ("cache", "epoch", "log_end", "answer"),
    [
        (LEADER, -1, 17, (-1, -1)),
        (EpochCache(), 0, 0, (-1, -1)),
        (EpochCache(), -1, 0, (-1, -1)),
        (LEADER, 10, 17, (10, 17)),
        (LEADER, 10, 99, (10, 99)),
        (LEADER, 9, 17, (9, 17)),
        (LEADER, 8, 17, (7, 14)),
        (LEADER, 0, 17, (0, 2)),
        (EpochCache.of((5, 40), (7, 60)), 3, 80, (3, 40)),  # older than all the log still has
        (EpochCache.of((5, 40), (7, 60)), 6, 80, (5, 60)),
    ],
)
def test_the_end_offset_of_an_epoch(cache: EpochCache, epoch: int, log_end: int, answer: tuple[int, int]) -> None:
    assert cache.end_offset_for(epoch, log_end) == answer


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_a_later_batch_of_the_latest_epoch_changes_nothing() -> None:
    assert LEADER.assign(10, 17) is LEADER
    assert LEADER.assign(10, 400) is LEADER


@pytest.mark.parametrize(
    ("epoch", "offset", "entries"),
    [
        (11, 20, ((0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 17), (11, 20))),
        (11, 17, ((0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (11, 17))),  # 10 never wrote anything
        (10, 16, ((0, 0), (3, 2), (4, 8), (7, 13), (9, 14), (10, 16))),
        (4, 30, ((0, 0), (3, 2), (4, 30))),
        (5, 30, ((0, 0), (3, 2), (4, 8), (5, 30))),
        (12, 0, ((12, 0),)),
    ],
)
def test_assigning_drops_every_later_entry_it_contradicts(
    epoch: int, offset: int, entries: tuple[tuple[int, int], ...]
) -> None:
    assert LEADER.assign(epoch, offset) == EpochCache.of(*entries)


def test_cutting_the_end_drops_epochs_that_start_there_or_above() -> None:
    assert LEADER.truncate_end(14) == EpochCache.of((0, 0), (3, 2), (4, 8), (7, 13))
    assert LEADER.truncate_end(15) == EpochCache.of((0, 0), (3, 2), (4, 8), (7, 13), (9, 14))
    assert LEADER.truncate_end(0) == EpochCache()


def test_cutting_at_the_log_end_forgets_an_epoch_that_wrote_nothing() -> None:
    assert LEADER.truncate_end(LEADER_END).latest == 9
    assert LEADER.truncate_end(LEADER_END + 1) is LEADER


def test_advancing_the_start_keeps_the_epoch_of_the_record_before() -> None:
    assert LEADER.advance_start(9) == EpochCache.of((4, 8), (7, 13), (9, 14), (10, 17))
    assert LEADER.advance_start(8) == EpochCache.of((3, 7), (4, 8), (7, 13), (9, 14), (10, 17))
    assert LEADER.advance_start(100) == EpochCache.of((10, 99))
    assert LEADER.advance_start(0) is LEADER
    assert EpochCache().advance_start(5) == EpochCache()


def test_where_the_last_deleted_epoch_ends_is_known() -> None:
    cache = LEADER.advance_start(8)
    assert [tuple(cache.end_offset_for(epoch, LEADER_END)) for epoch in (2, 3, 4)] == [(2, 7), (3, 8), (4, 13)]
    assert EpochCache.behind(3, 8).assign(6, 8) == EpochCache.of((3, 7), (6, 8))
    assert EpochCache.behind(-1, 8) == EpochCache()


def test_a_cache_is_a_value() -> None:
    same = EpochCache()
    for epoch, start in LEADER.entries:
        same = same.assign(epoch, start)
    assert same == LEADER
    assert hash(same) == hash(LEADER)
    assert (EpochCache().latest, EpochCache().latest_start) == (-1, -1)
    assert (LEADER.latest, LEADER.latest_start) == (10, 17)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20))),
    st.sampled_from(["assign", "truncate_end", "advance_start"]),
    st.tuples(st.integers(0, 20), st.integers(0, 25)),
)
def test_epochs_and_starts_rise_strictly_whatever_is_done(
    assigned: list[tuple[int, int]], change: str, argument: tuple[int, int]
) -> None:
    cache = EpochCache()
    for epoch, offset in assigned:
        cache = cache.assign(epoch, offset)
        assert cache.latest == epoch
        assert cache.latest_start <= offset
    cache = cache.assign(*argument) if change == "assign" else getattr(cache, change)(argument[1])
    for lower, upper in zip(cache.entries, cache.entries[1:], strict=False):
        assert lower.epoch < upper.epoch
        assert lower.start < upper.start


# ---- against a list of every record's epoch --------------------------------------------------------------------------


@dataclass
class NaiveLog:
    """The epoch of every record from the last deleted one on, if there is one, and perhaps an epoch entered at the end
    without a record."""

    start: int = 0
    deleted: int = 0
    """How many of `epochs` are of deleted records: one at most."""
    epochs: list[int] = field(default_factory=list)
    empty: int | None = None

    @property
    def end(self) -> int:
        return self.start - self.deleted + len(self.epochs)

    def known(self) -> list[int]:
        return sorted({*self.epochs, *([] if self.empty is None else [self.empty])})

    def first_offset(self, epoch: int) -> int:
        return self.start - self.deleted + self.epochs.index(epoch) if epoch in self.epochs else self.end

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        known = self.known()
        if epoch == -1 or not known or epoch > known[-1]:
            return -1, -1
        above = [self.first_offset(other) for other in known if other > epoch]
        below = [other for other in known if other <= epoch]
        return (below[-1] if below else epoch), (above[0] if above else self.end)


class EpochsOfALog(RuleBasedStateMachine):
    """Records come in rising epochs; leaders take over, the end is cut, the start moves up."""

    @initialize(start=st.integers(0, 3))
    def begin(self, start: int) -> None:
        self.naive = NaiveLog(start)
        self.cache = EpochCache()

    @rule(rise=st.integers(0, 2), count=st.integers(1, 4))
    def append(self, rise: int, count: int) -> None:
        epoch = max(self.naive.known(), default=0) + rise
        self.cache = self.cache.assign(epoch, self.naive.end)
        self.naive.epochs += [epoch] * count
        self.naive.empty = None

    @rule(rise=st.integers(1, 3))
    def take_over(self, rise: int) -> None:
        epoch = max(self.naive.known(), default=0) + rise
        self.cache = self.cache.assign(epoch, self.naive.end)
        self.naive.empty = epoch

    @rule(back=st.integers(-2, 6))
    def cut_end(self, back: int) -> None:
        to = max(self.naive.start, self.naive.end - back)
        self.cache = self.cache.truncate_end(to)
        if to <= self.naive.end:
            self.naive.empty = None
            del self.naive.epochs[to - self.naive.start + self.naive.deleted :]

    @rule(by=st.integers(0, 5))
    def advance_start(self, by: int) -> None:
        to = min(self.naive.end, self.naive.start + by)
        self.cache = self.cache.advance_start(to)
        if to > self.naive.start:
            del self.naive.epochs[: to - self.naive.start + self.naive.deleted - 1]
            self.naive.start, self.naive.deleted = to, 1

    @rule()
    def clear(self) -> None:
        self.cache = EpochCache()
        self.naive = NaiveLog(self.naive.end)

    @invariant()
    def same_answers(self) -> None:
        naive, cache = self.naive, self.cache
        known = naive.known()
        assert [entry.epoch for entry in cache.entries] == known
        assert [entry.start for entry in cache.entries] == [naive.first_offset(epoch) for epoch in known]
        for epoch in range(-1, max(known, default=0) + 2):
            assert cache.end_offset_for(epoch, naive.end) == naive.end_offset_for(epoch)
            assert cache.next_lower(epoch) == max((other for other in known if other < epoch), default=-1)
        for offset in range(naive.start, naive.end):
            assert cache.epoch_at(offset) == naive.epochs[offset - naive.start + naive.deleted]
        assert cache.epoch_at(naive.start - 1) == (naive.epochs[0] if naive.deleted else -1)
        assert EpochCache.from_checkpoint(cache.to_checkpoint()) == cache


TestEpochsOfALog = EpochsOfALog.TestCase


# ---- the checkpoint --------------------------------------------------------------------------------------------------


def test_the_checkpoint_is_kafkas_text() -> None:
    assert EpochCache.of((0, 0), (3, 2)).to_checkpoint() == "0\n2\n0 0\n3 2\n"
    assert EpochCache().to_checkpoint() == "0\n0\n"


@given(st.integers(0, 40))
def test_a_torn_checkpoint_is_never_taken_for_another(length: int) -> None:
    text = LEADER.to_checkpoint()
    torn = text[:length]
    assert EpochCache.from_checkpoint(torn) == (LEADER if torn == text else None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0\n",
        "1\n0\n",
        "0\n2\n0 0\n",
        "0\n1\n0 0\n3 2\n",
        "0\n1\n0\n",
        "0\n1\n0 0 0\n",
        "0\n1\n-1 0\n",
        "0\n1\n+1 0\n",
        "0\n1\n1_0 0\n",
        "0\n2\n3 2\n3 4\n",
        "0\n2\n3 2\n4 2\n",
        "0\n1\n٣ 0\n",
        "\0\0\0\0\n",
    ],
)
def test_a_garbled_checkpoint_is_no_checkpoint(text: str) -> None:
    assert EpochCache.from_checkpoint(text) is None


def test_an_answer_names_its_parts() -> None:
    assert EpochEnd(4, 13).epoch == 4
    assert EpochEnd(4, 13).end == 13
