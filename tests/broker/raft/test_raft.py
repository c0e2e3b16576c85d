"""The Raft state machine keeps its guarantees under any schedule, and without one of its rules some schedule breaks
one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from images.broker.log.divergence import truncation_offset
from images.broker.log.leader_epochs import UNDEFINED, EpochCache, EpochEnd
from images.broker.raft.state import QuorumState
from images.broker.raft.values import (
    NO_NODE,
    ElectionState,
    EpochAndOffset,
    LogView,
    MetadataFetch,
    Moment,
    RaftRole,
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendVote,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from images.broker.rules import Rules
from tests.broker.raft.raft_model import TIMING, Broken, World

AT = Moment(0, 0.5)
LATER = Moment(10_000, 0.5)
EMPTY = EpochAndOffset(0, 0)


def controller(node_id: int = 101, **state: object) -> QuorumState:
    return replace(QuorumState(node_id, (101, 102, 103), TIMING), **state)  # type: ignore[arg-type]


def leader(epoch: int = 1) -> QuorumState:
    """101, elected with an empty log, its first record appended."""
    candidate = controller(epoch=epoch - 1, role=RaftRole.PROSPECTIVE)
    yes = VoteResponse(ErrorCode.none, epoch - 1, NO_NODE, True)
    candidate, _ = candidate.on_vote_response(102, VoteRequest(101, epoch - 1, EMPTY, True), yes, EMPTY, AT)
    elected, _ = candidate.on_vote_response(102, VoteRequest(101, epoch, EMPTY, False), yes, EMPTY, AT)
    assert elected.role is RaftRole.LEADER
    return elected.on_append(1)


LOG = LogView(0, 1, EpochCache.of((1, 0)))


# ---- elections -------------------------------------------------------------------------------------------------------


def test_a_controller_that_hears_of_no_leader_asks_first_whether_it_could_win() -> None:
    state, messages = controller().restarted(ElectionState(), 0, 0, AT).tick(EMPTY, LATER)
    assert state.role is RaftRole.PROSPECTIVE
    assert state.election_state == ElectionState()
    assert messages == tuple(SendVote(other, VoteRequest(101, 0, EMPTY, True)) for other in (102, 103))


def test_one_pre_vote_makes_a_candidate_of_three_and_one_vote_a_leader() -> None:
    prospective, _ = controller().restarted(ElectionState(), 0, 0, AT).tick(EMPTY, LATER)
    yes = VoteResponse(ErrorCode.none, 0, NO_NODE, True)
    candidate, asks = prospective.on_vote_response(102, VoteRequest(101, 0, EMPTY, True), yes, EMPTY, LATER)
    assert candidate.election_state == ElectionState(1, NO_NODE, 101)
    assert [ask.request.pre_vote for ask in asks if isinstance(ask, SendVote)] == [False, False]
    elected, begins = candidate.on_vote_response(103, VoteRequest(101, 1, EMPTY, False), yes, EMPTY, LATER)
    assert elected.election_state == ElectionState(1, 101, 101)
    assert begins == (SendBeginQuorumEpoch(102, 1), SendBeginQuorumEpoch(103, 1))


def test_a_controller_alone_elects_itself_at_once() -> None:
    alone = QuorumState(101, (101,), TIMING).restarted(ElectionState(), 0, 0, AT)
    elected, messages = alone.tick(EMPTY, AT)
    assert (elected.role, elected.epoch, messages) == (RaftRole.LEADER, 1, ())
    assert elected.on_append(1).active


def test_a_vote_is_given_once_in_an_epoch_and_repeated_to_the_same_candidate() -> None:
    state, first = controller(epoch=4).on_vote_request(VoteRequest(102, 5, EMPTY, False), EMPTY, AT)
    assert first.granted
    assert state.election_state == ElectionState(5, NO_NODE, 102)
    assert state.on_vote_request(VoteRequest(102, 5, EMPTY, False), EMPTY, AT)[1].granted
    assert not state.on_vote_request(VoteRequest(103, 5, EMPTY, False), EMPTY, AT)[1].granted


@pytest.mark.parametrize(
    ("theirs", "granted"),
    [
        (EpochAndOffset(2, 9), False),
        (EpochAndOffset(3, 6), False),
        (EpochAndOffset(3, 7), True),
        (EpochAndOffset(3, 8), True),
        (EpochAndOffset(4, 1), True),
    ],
)
def test_a_vote_goes_to_a_log_at_least_as_up_to_date(theirs: EpochAndOffset, granted: bool) -> None:
    for pre_vote in (True, False):
        asked = VoteRequest(102, 5, theirs, pre_vote)
        assert controller(epoch=4).on_vote_request(asked, EpochAndOffset(3, 7), AT)[1].granted is granted


def test_a_pre_vote_changes_nothing_on_disk() -> None:
    state = controller(epoch=5)
    after, answer = state.on_vote_request(VoteRequest(102, 5, EMPTY, True), EMPTY, AT)
    assert answer.granted
    assert after.election_state == state.election_state


def test_a_follower_whose_leader_answers_grants_no_pre_vote() -> None:
    follower, _ = controller().on_begin_quorum_epoch(1, 102, AT)
    asked = VoteRequest(103, 1, EMPTY, True)
    assert follower.on_vote_request(asked, EMPTY, AT)[1].granted
    assert not follower.on_fetch_response(0, 0, AT).on_vote_request(asked, EMPTY, AT)[1].granted


def test_a_leader_that_restarts_in_its_epoch_leads_no_more_and_votes_for_nobody() -> None:
    restarted = controller().restarted(ElectionState(5, 101, 101), 0, 0, AT)
    assert restarted.role is RaftRole.RESIGNED
    assert not restarted.on_vote_request(VoteRequest(102, 5, EpochAndOffset(9, 9), False), EMPTY, AT)[1].granted
    prospective, _ = restarted.tick(EMPTY, LATER)
    assert prospective.role is RaftRole.PROSPECTIVE
    assert not prospective.on_vote_request(VoteRequest(102, 5, EpochAndOffset(9, 9), False), EMPTY, AT)[1].granted


def test_a_controller_whose_election_state_is_behind_its_log_begins_in_the_epoch_of_that() -> None:
    """A missing file says nothing. Epoch 1 would begin once more, behind records of epoch 5."""
    restarted = controller().restarted(ElectionState(), 5, 0, AT)
    assert restarted.election_state == ElectionState(5)
    assert controller().restarted(ElectionState(5, NO_NODE, 102), 5, 0, AT).election_state.voted_for == 102


def test_a_follower_keeps_its_leader_when_its_vote_is_asked_for_again() -> None:
    voted, _ = controller(epoch=4).on_vote_request(VoteRequest(102, 5, EMPTY, False), EMPTY, AT)
    follower, _ = voted.on_begin_quorum_epoch(5, 103, AT)
    after, answer = follower.on_vote_request(VoteRequest(102, 5, EMPTY, False), EMPTY, AT)
    assert (after, answer.granted) == (follower, False)


def test_a_follower_that_cannot_win_goes_back_to_its_leader() -> None:
    follower, _ = controller().on_begin_quorum_epoch(3, 102, AT)
    prospective, _ = follower.tick(EMPTY, LATER)
    assert prospective.role is RaftRole.PROSPECTIVE
    no = VoteResponse(ErrorCode.none, 3, 102, False)
    for voter in (102, 103):
        prospective, _ = prospective.on_vote_response(voter, VoteRequest(101, 3, EMPTY, True), no, EMPTY, LATER)
    assert (prospective.role, prospective.leader, prospective.epoch) == (RaftRole.FOLLOWER, 102, 3)


def test_an_older_epoch_is_refused_with_what_the_controller_knows() -> None:
    follower, _ = controller().on_begin_quorum_epoch(3, 102, AT)
    _, answer = follower.on_vote_request(VoteRequest(103, 2, EMPTY, False), EMPTY, AT)
    assert answer == VoteResponse(ErrorCode.fenced_leader_epoch, 3, 102, False)
    assert follower.on_begin_quorum_epoch(2, 103, AT) == (follower, ErrorCode.fenced_leader_epoch)
    assert follower.on_end_quorum_epoch(2, 103, (101,), AT) == (follower, ErrorCode.fenced_leader_epoch)


def test_strangers_get_no_votes_and_lead_nothing() -> None:
    state = controller()
    assert (
        state.on_vote_request(VoteRequest(7, 9, EMPTY, False), EMPTY, AT)[1].error is ErrorCode.inconsistent_voter_set
    )
    assert state.on_begin_quorum_epoch(9, 7, AT) == (state, ErrorCode.inconsistent_voter_set)


# ---- leading ---------------------------------------------------------------------------------------------------------


def test_a_record_is_committed_once_a_majority_has_fetched_beyond_it() -> None:
    state = leader()
    assert state.high_watermark == 0
    state, _ = state.on_fetch(MetadataFetch(102, 1, 0, -1), LOG, AT)
    assert not state.active
    state, _ = state.on_fetch(MetadataFetch(102, 1, 1, 1), LOG, AT)
    assert state.high_watermark == 1
    assert state.active


def test_an_observer_counts_for_nothing() -> None:
    state, validation = leader().on_fetch(MetadataFetch(1, 1, 1, 1), LOG, AT)
    assert validation.error is ErrorCode.none
    assert state.high_watermark == 0


def test_a_fetch_without_an_epoch_is_no_voters_whatever_its_id() -> None:
    state, validation = leader().on_fetch(MetadataFetch(102, UNDEFINED, 1, UNDEFINED), LOG, AT)
    assert validation.error is ErrorCode.none
    assert state.high_watermark == 0


def test_records_of_an_older_epoch_are_committed_only_with_one_of_the_leaders_own() -> None:
    state = replace(leader(4), epoch_start_offset=2)
    log = LogView(0, 3, EpochCache.of((2, 1), (4, 2)))
    state, _ = state.on_fetch(MetadataFetch(102, 4, 2, 2), log, AT)
    assert state.high_watermark == 0
    state, _ = state.on_fetch(MetadataFetch(102, 4, 3, 4), log, AT)
    assert state.high_watermark == 3


@pytest.mark.parametrize(("epoch", "error"), [(0, ErrorCode.fenced_leader_epoch), (2, ErrorCode.unknown_leader_epoch)])
def test_a_fetch_of_another_epoch_is_refused_and_counts_for_nothing(epoch: int, error: ErrorCode) -> None:
    state, validation = leader().on_fetch(MetadataFetch(102, epoch, 1, 1), LOG, AT)
    assert validation.error is error
    assert state.high_watermark == 0


def test_without_the_fence_a_fetch_that_outlived_its_epoch_counts() -> None:
    unfenced = replace(leader(2), rules=Rules().without(["metadata_fetch_fenced"]))
    log = LogView(0, 1, EpochCache.of((2, 0)))
    assert leader(2).on_fetch(MetadataFetch(102, 1, 1, 2), log, AT)[0].high_watermark == 0
    assert unfenced.on_fetch(MetadataFetch(102, 1, 1, 2), log, AT)[0].high_watermark == 1


def test_a_diverging_follower_is_told_where_and_counts_for_nothing() -> None:
    log = LogView(0, 6, EpochCache.of((1, 0), (4, 3)))
    state, validation = replace(leader(4), epoch_start_offset=3).on_fetch(MetadataFetch(102, 4, 5, 2), log, AT)
    assert validation.diverging == EpochEnd(1, 3)
    assert state.high_watermark == 0
    assert truncation_offset(EpochCache.of((1, 0), (2, 4)), 5, EpochEnd(1, 3)) == 3


def test_whoever_is_behind_the_start_of_the_log_is_sent_to_the_snapshot() -> None:
    log = LogView(4, 6, EpochCache.of((3, 4)), (SnapshotId(4, 2),))
    state = replace(leader(4), epoch_start_offset=4)
    assert state.on_fetch(MetadataFetch(102, 4, 2, 1), log, AT)[1].snapshot == SnapshotId(4, 2)
    assert state.on_fetch(MetadataFetch(102, 4, 4, 1), log, AT)[1].snapshot == SnapshotId(4, 2)
    assert state.on_fetch(MetadataFetch(102, 4, 4, 2), log, AT)[1].snapshot is None


def test_a_leader_that_no_majority_fetches_from_resigns() -> None:
    state, messages = leader().tick(EpochAndOffset(1, 1), Moment(TIMING.fetch_ms // 2, 0.5))
    assert state.role is RaftRole.LEADER
    assert messages == (SendBeginQuorumEpoch(102, 1), SendBeginQuorumEpoch(103, 1))
    state, messages = state.tick(EpochAndOffset(1, 1), LATER)
    assert state.role is RaftRole.RESIGNED
    assert messages == (SendEndQuorumEpoch(102, 1, (102, 103)), SendEndQuorumEpoch(103, 1, (102, 103)))


def test_a_resigning_leader_prefers_the_longest_log_which_stands_at_once() -> None:
    state, _ = leader().on_fetch(MetadataFetch(103, 1, 1, 1), LOG, AT)
    resigned, messages = state.resign(AT)
    assert messages == (SendEndQuorumEpoch(103, 1, (103, 102)), SendEndQuorumEpoch(102, 1, (103, 102)))
    first, _ = controller(103).on_begin_quorum_epoch(1, 101, AT)[0].on_end_quorum_epoch(1, 101, (103, 102), AT)
    second, _ = controller(102).on_begin_quorum_epoch(1, 101, AT)[0].on_end_quorum_epoch(1, 101, (103, 102), AT)
    assert first.deadline_ms == AT.ms < second.deadline_ms
    assert resigned.on_vote_request(VoteRequest(103, 1, EpochAndOffset(1, 1), True), EpochAndOffset(1, 1), AT)[
        1
    ].granted


# ---- all of it together ----------------------------------------------------------------------------------------------


def survive(seed: int, steps: int = 700, rules: Rules | None = None, controllers: int = 3) -> World:
    world = World(seed, controllers, rules)
    world.lossy = seed % 2 == 0
    for _ in range(steps):
        world.step()
    return world


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), controllers=st.sampled_from((1, 2, 3, 3, 4, 5)))
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
    assert truncation_offset(own.epochs, own.end, EpochEnd(3, 13)) == 17
    follower = controller().on_begin_quorum_epoch(5, 103, AT)[0]
    assert follower.on_leader_contact(known).high_watermark == 0
    for seed in (2084, 2305):
        survive(seed)


def test_a_record_on_a_majority_may_still_be_overwritten_before_one_of_the_own_epoch_is() -> None:
    """Raft's figure 8: 101 leads again and its old record reaches a majority; then 103, which never saw it, leads."""
    old = replace(leader(4), epoch_start_offset=2, rules=Rules().without(["commit_only_own_epoch"]))
    log = LogView(0, 3, EpochCache.of((1, 0), (2, 1), (4, 2)))
    wrong, _ = old.on_fetch(MetadataFetch(102, 4, 2, 2), log, AT)
    assert wrong.high_watermark == 2
    successor = VoteRequest(103, 5, EpochAndOffset(3, 2), False)
    assert controller(102, epoch=4).on_vote_request(successor, EpochAndOffset(2, 2), AT)[1].granted
