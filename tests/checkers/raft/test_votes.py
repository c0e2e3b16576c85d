"""How a controller answers requests for its vote, and whom it knows as leader."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.raft.votes import vote_findings, voter_name
from tests.checkers import small_evidence

Event = dict[str, Any]


def kinds(*events: Event) -> list[str]:
    return [finding.kind for finding in vote_findings(small_evidence.trace(*events))]


def of_quorum(time_s: float, kind: str, epoch: int, leader: int = -1, **fields: Any) -> Event:
    return small_evidence.event(time_s, "c1", f"quorum_{kind}", leader_epoch=epoch, leader=leader, **fields)


def voted(time_s: float, epoch: int, candidate: int, *, asked: bool = True) -> Event:
    ends = {"candidate": [0, 0], "own": [0, 0]} if asked else {}
    return small_evidence.event(time_s, "c1", "quorum_voted", ends, leader_epoch=epoch, broker=candidate)


def answer(kind: str, candidate: tuple[int, int] = (1, 5), leader: int = -1, **facts: Any) -> Event:
    detail = {
        "pre_vote": kind == "prevote_granted",
        "candidate": list(candidate),
        "own": [1, 5],
        "voted": -1,
        "role": "unattached",
        "leader_answered": False,
    }
    return small_evidence.event(
        9, "c1", f"quorum_{kind}", detail | facts, leader_epoch=4, leader=leader, broker=102
    )  # fmt: skip


OWN_VOTE = voted(1, 1, 101, asked=False)


def test_a_vote_for_another_answers_its_request() -> None:
    assert kinds(OWN_VOTE, voted(2, 2, 102), voted(3, 3, 101, asked=False)) == []
    assert kinds(OWN_VOTE, voted(2, 2, 102), voted(3, 3, 102, asked=False)) == ["vote-unasked"]
    leads = of_quorum(1, "leader", 1, 101)
    assert kinds(leads, voted(2, 2, 102), voted(3, 3, 102, asked=False)) == ["vote-unasked"]


@pytest.mark.parametrize(("role", "right"), [("candidate", True), ("leader", True), ("follower", False)])
def test_a_vote_for_itself_is_that_of_a_candidate(role: str, right: bool) -> None:
    own = [voted(0, 0, 102), OWN_VOTE, of_quorum(1, "candidate", 1), voted(2, 2, 101, asked=False)]
    assert kinds(*own, of_quorum(2, role, 2, 103)) == ([] if right else ["vote-unasked"])
    assert kinds(*own, of_quorum(2, "recovered", 2), of_quorum(3, role, 2, 103)) == []
    assert kinds(*own, of_quorum(2, "follower", 3, 103)) == []


def test_a_vote_for_another_does_not_make_a_candidate() -> None:
    unasked = [voted(0, 0, 102), OWN_VOTE, of_quorum(1, "candidate", 1), voted(2, 2, 102, asked=False)]
    assert kinds(*unasked, of_quorum(2, "follower", 2, 102)) == ["vote-unasked"]


def test_votes_of_a_version_that_did_not_trace_requests_are_not_looked_at() -> None:
    assert kinds(OWN_VOTE, voted(2, 2, 102, asked=False)) == []


@pytest.mark.parametrize(
    "facts",
    [
        {"candidate": (1, 4)},
        {"role": "leader", "leader": 101},
        {"voted": 103},
        {"leader": 103},
        {"pre_vote": True, "role": "follower", "leader": 103, "leader_answered": True},
    ],
)
def test_a_vote_is_refused_for_a_reason(facts: dict[str, Any]) -> None:
    assert kinds(answer("vote_refused", **facts)) == []


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"voted": 102},
        {"candidate": (2, 1)},
        {"pre_vote": True, "role": "follower", "leader": 103},
        {"pre_vote": True, "voted": 103},
        {"pre_vote": True, "role": "prospective", "leader_answered": True},
    ],
)
def test_a_vote_is_not_refused_without_one(facts: dict[str, Any]) -> None:
    assert kinds(answer("vote_refused", **facts)) == ["vote-refused-wrongly"]


@pytest.mark.parametrize(
    ("facts", "right"),
    [
        ({}, True),
        ({"role": "follower", "leader": 103}, True),
        ({"role": "follower", "leader": 103, "leader_answered": True}, False),
        ({"role": "leader", "leader": 101}, False),
        ({"candidate": (1, 4)}, False),
    ],
)
def test_a_pre_vote_is_granted_to_whoever_may_win(facts: dict[str, Any], right: bool) -> None:
    assert kinds(answer("prevote_granted", **facts)) == ([] if right else ["prevote-granted-wrongly"])


def test_an_answer_without_its_reason_is_not_looked_at() -> None:
    old = small_evidence.event(9, "c1", "quorum_vote_refused", {"candidate": [1, 5], "own": [1, 5]}, broker=102)
    assert kinds(old) == []


def test_a_controller_knows_the_leader_of_an_epoch_from_that_epoch_alone() -> None:
    followed = of_quorum(1, "follower", 4, 103)
    assert kinds(followed, of_quorum(2, "unattached", 4, 103), of_quorum(3, "unattached", 5)) == []
    assert kinds(followed, of_quorum(2, "unattached", 5, 103)) == ["leader-of-another-epoch"]


def test_a_restarted_controller_may_know_the_leader_of_its_epoch_from_its_disk() -> None:
    started = of_quorum(1, "recovered", 5)
    assert kinds(started, of_quorum(2, "unattached", 5, 103)) == []
    assert kinds(started, of_quorum(2, "unattached", 6, 103)) == ["leader-of-another-epoch"]


@pytest.mark.parametrize("role", ["candidate", "unattached", "resigned"])
def test_a_log_grows_by_a_leader_alone(role: str) -> None:
    grows = small_evidence.event(3, "c1", "metadata_appended", leader_epoch=1, offset=4, log_end=6)
    before = [of_quorum(1, "follower", 1, 103), of_quorum(2, role, 1)]
    assert kinds(*before, grows) == ["appended-without-leader"]
    assert kinds(*before[:1], grows) == []
    assert kinds(*before, of_quorum(2.5, "recovered", 1), grows) == []
    assert kinds(*before, of_quorum(2.5, "leader", 2, 101), grows) == []


def test_a_sentence_names_controllers_by_their_nodes_and_says_that_there_is_none() -> None:
    ids = {"c1": 101, "c2": 102}
    assert [voter_name(voter, ids) for voter in (102, 103, -1)] == ["c2", "controller 103", "nobody"]
    (finding,) = vote_findings(small_evidence.trace(OWN_VOTE, answer("vote_refused")))
    assert finding.lines[1].endswith("it was unattached, without a leader, without a vote")
