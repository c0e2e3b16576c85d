"""The quorum's decision machine keeps Raft's promises whatever happens, and each of its rules is what keeps one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache, EpochEnd
from images.broker.raft.divergence import cut
from images.broker.raft.state import Quorum
from images.broker.raft.values import (
    NOBODY,
    AskVote,
    Begin,
    Durable,
    End,
    Fetched,
    LogEnd,
    LogView,
    Moment,
    Role,
    SnapshotId,
    VoteAnswer,
    VoteAsked,
)
from images.broker.rules import Rules
from tests.broker.raft.quorum_world import TIMING, Broken, World

AT = Moment(0, 0.5)
LATER = Moment(10_000, 0.5)
EMPTY = LogEnd(0, 0)


def controller(me: int = 101, **state: object) -> Quorum:
    return replace(Quorum(me, (101, 102, 103), TIMING), **state)  # type: ignore[arg-type]


def leader(epoch: int = 1) -> Quorum:
    """101, elected with an empty log, its first record appended."""
    candidate = controller(epoch=epoch - 1, role=Role.PROSPECTIVE)
    yes = VoteAnswer(ErrorCode.none, epoch - 1, NOBODY, True)
    candidate, _ = candidate.vote_answered(102, VoteAsked(101, epoch - 1, EMPTY, True), yes, EMPTY, AT)
    elected, _ = candidate.vote_answered(102, VoteAsked(101, epoch, EMPTY, False), yes, EMPTY, AT)
    assert elected.role is Role.LEADER
    return elected.appended(1)


LOG = LogView(0, 1, EpochCache.of((1, 0)))


# ---- elections -------------------------------------------------------------------------------------------------------


def test_a_controller_that_hears_of_no_leader_asks_first_whether_it_could_win() -> None:
    state, messages = controller().started(Durable(), 0, AT).tick(EMPTY, LATER)
    assert state.role is Role.PROSPECTIVE
    assert state.durable == Durable()
    assert messages == tuple(AskVote(other, VoteAsked(101, 0, EMPTY, True)) for other in (102, 103))


def test_one_pre_vote_makes_a_candidate_of_three_and_one_vote_a_leader() -> None:
    prospective, _ = controller().started(Durable(), 0, AT).tick(EMPTY, LATER)
    yes = VoteAnswer(ErrorCode.none, 0, NOBODY, True)
    candidate, asks = prospective.vote_answered(102, VoteAsked(101, 0, EMPTY, True), yes, EMPTY, LATER)
    assert candidate.durable == Durable(1, NOBODY, 101)
    assert [ask.asked.pre_vote for ask in asks if isinstance(ask, AskVote)] == [False, False]
    elected, begins = candidate.vote_answered(103, VoteAsked(101, 1, EMPTY, False), yes, EMPTY, LATER)
    assert elected.durable == Durable(1, 101, 101)
    assert begins == (Begin(102, 1), Begin(103, 1))


def test_a_controller_alone_elects_itself_at_once() -> None:
    alone = Quorum(101, (101,), TIMING).started(Durable(), 0, AT)
    elected, messages = alone.tick(EMPTY, AT)
    assert (elected.role, elected.epoch, messages) == (Role.LEADER, 1, ())
    assert elected.appended(1).active


def test_a_vote_is_given_once_in_an_epoch_and_repeated_to_the_same_candidate() -> None:
    state, first = controller(epoch=4).asked_for_vote(VoteAsked(102, 5, EMPTY, False), EMPTY, AT)
    assert first.granted
    assert state.durable == Durable(5, NOBODY, 102)
    assert state.asked_for_vote(VoteAsked(102, 5, EMPTY, False), EMPTY, AT)[1].granted
    assert not state.asked_for_vote(VoteAsked(103, 5, EMPTY, False), EMPTY, AT)[1].granted


@pytest.mark.parametrize(
    ("theirs", "granted"),
    [(LogEnd(2, 9), False), (LogEnd(3, 6), False), (LogEnd(3, 7), True), (LogEnd(3, 8), True), (LogEnd(4, 1), True)],
)
def test_a_vote_goes_to_a_log_at_least_as_up_to_date(theirs: LogEnd, granted: bool) -> None:
    for pre_vote in (True, False):
        asked = VoteAsked(102, 5, theirs, pre_vote)
        assert controller(epoch=4).asked_for_vote(asked, LogEnd(3, 7), AT)[1].granted is granted


def test_a_pre_vote_changes_nothing_on_disk() -> None:
    state = controller(epoch=5)
    after, answer = state.asked_for_vote(VoteAsked(102, 5, EMPTY, True), EMPTY, AT)
    assert answer.granted
    assert after.durable == state.durable


def test_a_follower_whose_leader_answers_grants_no_pre_vote() -> None:
    follower, _ = controller().begun(1, 102, AT)
    asked = VoteAsked(103, 1, EMPTY, True)
    assert follower.asked_for_vote(asked, EMPTY, AT)[1].granted
    assert not follower.fetched(0, 0, AT).asked_for_vote(asked, EMPTY, AT)[1].granted


def test_a_leader_that_restarts_in_its_epoch_leads_no_more_and_votes_for_nobody() -> None:
    restarted = controller().started(Durable(5, 101, 101), 0, AT)
    assert restarted.role is Role.RESIGNED
    assert not restarted.asked_for_vote(VoteAsked(102, 5, LogEnd(9, 9), False), EMPTY, AT)[1].granted
    prospective, _ = restarted.tick(EMPTY, LATER)
    assert prospective.role is Role.PROSPECTIVE
    assert not prospective.asked_for_vote(VoteAsked(102, 5, LogEnd(9, 9), False), EMPTY, AT)[1].granted


def test_a_follower_that_cannot_win_goes_back_to_its_leader() -> None:
    follower, _ = controller().begun(3, 102, AT)
    prospective, _ = follower.tick(EMPTY, LATER)
    assert prospective.role is Role.PROSPECTIVE
    no = VoteAnswer(ErrorCode.none, 3, 102, False)
    for voter in (102, 103):
        prospective, _ = prospective.vote_answered(voter, VoteAsked(101, 3, EMPTY, True), no, EMPTY, LATER)
    assert (prospective.role, prospective.leader, prospective.epoch) == (Role.FOLLOWER, 102, 3)


def test_an_older_epoch_is_refused_with_what_the_controller_knows() -> None:
    follower, _ = controller().begun(3, 102, AT)
    _, answer = follower.asked_for_vote(VoteAsked(103, 2, EMPTY, False), EMPTY, AT)
    assert answer == VoteAnswer(ErrorCode.fenced_leader_epoch, 3, 102, False)
    assert follower.begun(2, 103, AT) == (follower, ErrorCode.fenced_leader_epoch)
    assert follower.ended(2, 103, (101,), AT) == (follower, ErrorCode.fenced_leader_epoch)


def test_strangers_get_no_votes_and_lead_nothing() -> None:
    state = controller()
    assert state.asked_for_vote(VoteAsked(7, 9, EMPTY, False), EMPTY, AT)[1].error is ErrorCode.inconsistent_voter_set
    assert state.begun(9, 7, AT) == (state, ErrorCode.inconsistent_voter_set)


# ---- leading ---------------------------------------------------------------------------------------------------------


def test_a_record_is_committed_once_a_majority_has_fetched_beyond_it() -> None:
    state = leader()
    assert state.high_watermark == 0
    state, _ = state.fetched_by(Fetched(102, 1, 0, -1), LOG, AT)
    assert not state.active
    state, _ = state.fetched_by(Fetched(102, 1, 1, 1), LOG, AT)
    assert state.high_watermark == 1
    assert state.active


def test_an_observer_counts_for_nothing() -> None:
    state, verdict = leader().fetched_by(Fetched(1, 1, 1, 1), LOG, AT)
    assert verdict.error is ErrorCode.none
    assert state.high_watermark == 0


def test_records_of_an_older_epoch_are_committed_only_with_one_of_the_leaders_own() -> None:
    state = replace(leader(4), epoch_start=2)
    log = LogView(0, 3, EpochCache.of((2, 1), (4, 2)))
    state, _ = state.fetched_by(Fetched(102, 4, 2, 2), log, AT)
    assert state.high_watermark == 0
    state, _ = state.fetched_by(Fetched(102, 4, 3, 4), log, AT)
    assert state.high_watermark == 3


@pytest.mark.parametrize(("epoch", "error"), [(0, ErrorCode.fenced_leader_epoch), (2, ErrorCode.unknown_leader_epoch)])
def test_a_fetch_of_another_epoch_is_refused_and_counts_for_nothing(epoch: int, error: ErrorCode) -> None:
    state, verdict = leader().fetched_by(Fetched(102, epoch, 1, 1), LOG, AT)
    assert verdict.error is error
    assert state.high_watermark == 0


def test_without_the_fence_a_fetch_that_outlived_its_epoch_counts() -> None:
    unfenced = replace(leader(2), rules=Rules().without(["metadata_fetch_fenced"]))
    log = LogView(0, 1, EpochCache.of((2, 0)))
    assert leader(2).fetched_by(Fetched(102, 1, 1, 2), log, AT)[0].high_watermark == 0
    assert unfenced.fetched_by(Fetched(102, 1, 1, 2), log, AT)[0].high_watermark == 1


def test_a_diverging_follower_is_told_where_and_counts_for_nothing() -> None:
    log = LogView(0, 6, EpochCache.of((1, 0), (4, 3)))
    state, verdict = replace(leader(4), epoch_start=3).fetched_by(Fetched(102, 4, 5, 2), log, AT)
    assert verdict.diverging == EpochEnd(1, 3)
    assert state.high_watermark == 0
    assert cut(LogView(0, 5, EpochCache.of((1, 0), (2, 4))), EpochEnd(1, 3)) == 3


def test_whoever_is_behind_the_start_of_the_log_is_sent_to_the_snapshot() -> None:
    log = LogView(4, 6, EpochCache.of((3, 4)), SnapshotId(4, 2))
    state = replace(leader(4), epoch_start=4)
    assert state.fetched_by(Fetched(102, 4, 2, 1), log, AT)[1].snapshot == SnapshotId(4, 2)
    assert state.fetched_by(Fetched(102, 4, 4, 1), log, AT)[1].snapshot == SnapshotId(4, 2)
    assert state.fetched_by(Fetched(102, 4, 4, 2), log, AT)[1].snapshot is None


def test_a_leader_that_no_majority_fetches_from_resigns() -> None:
    state, messages = leader().tick(LogEnd(1, 1), Moment(TIMING.fetch_ms // 2, 0.5))
    assert state.role is Role.LEADER
    assert messages == (Begin(102, 1), Begin(103, 1))
    state, messages = state.tick(LogEnd(1, 1), LATER)
    assert state.role is Role.RESIGNED
    assert messages == (End(102, 1, (102, 103)), End(103, 1, (102, 103)))


def test_who_resigns_names_the_longest_log_first_and_that_one_stands_at_once() -> None:
    state, _ = leader().fetched_by(Fetched(103, 1, 1, 1), LOG, AT)
    resigned, messages = state.resign(AT)
    assert messages == (End(103, 1, (103, 102)), End(102, 1, (103, 102)))
    first, _ = controller(103).begun(1, 101, AT)[0].ended(1, 101, (103, 102), AT)
    second, _ = controller(102).begun(1, 101, AT)[0].ended(1, 101, (103, 102), AT)
    assert first.deadline_ms == AT.ms < second.deadline_ms
    assert resigned.asked_for_vote(VoteAsked(103, 1, LogEnd(1, 1), True), LogEnd(1, 1), AT)[1].granted


# ---- all of it together ----------------------------------------------------------------------------------------------


def survive(seed: int, steps: int = 700, rules: Rules | None = None, controllers: int = 3) -> World:
    world = World(seed, controllers, rules)
    world.lossy = seed % 2 == 0
    for _ in range(steps):
        world.step()
    return world


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), controllers=st.sampled_from((1, 3, 3, 4, 5)))
def test_no_schedule_of_messages_and_restarts_breaks_a_promise(seed: int, controllers: int) -> None:
    survive(seed, controllers=controllers)


def test_schedules_elect_and_commit() -> None:
    worlds = [survive(seed) for seed in range(20)]
    assert sum(len(world.leaders) for world in worlds) > 25
    assert sum(len(world.committed) for world in worlds) > 100


@pytest.mark.parametrize(
    "rule",
    [
        "vote_once_per_epoch",
        "vote_is_synced",
        "vote_needs_up_to_date_log",
        "metadata_needs_majority",
        "metadata_is_synced",
        "metadata_cut_on_divergence",
    ],
)
def test_without_a_rule_some_schedule_breaks_a_promise(rule: str) -> None:
    rules = Rules().without([rule])
    for seed in range(300):
        try:
            survive(seed, rules=rules)
        except Broken:
            return
    pytest.fail(f"300 schedules found nothing wrong without {rule}")


def test_a_diverging_answer_tells_no_high_watermark() -> None:
    """101 holds 1×17 4×4, its leader 1×12 3×1 5×2: the first answer, (3, 13), cuts it to 17; 12 to 16 are wrong yet."""
    own, known = LogView(0, 21, EpochCache.of((1, 0), (4, 17))), Moment(1, 0.5)
    assert cut(own, EpochEnd(3, 13)) == 17
    follower = controller().begun(5, 103, AT)[0]
    assert follower.answered(known).high_watermark == 0
    for seed in (2084, 2305):
        survive(seed)


def test_a_record_on_a_majority_may_still_be_overwritten_before_one_of_the_own_epoch_is() -> None:
    """Raft's figure 8: 101 leads again and its old record reaches a majority; then 103, which never saw it, leads."""
    old = replace(leader(4), epoch_start=2, rules=Rules().without(["commit_only_own_epoch"]))
    log = LogView(0, 3, EpochCache.of((1, 0), (2, 1), (4, 2)))
    wrong, _ = old.fetched_by(Fetched(102, 4, 2, 2), log, AT)
    assert wrong.high_watermark == 2
    successor = VoteAsked(103, 5, LogEnd(3, 2), False)
    assert controller(102, epoch=4).asked_for_vote(successor, LogEnd(2, 2), AT)[1].granted
