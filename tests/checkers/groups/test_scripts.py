"""Clients that are no members: each has a group of its own, whose offsets it commits and deletes."""

from __future__ import annotations

import pytest

from checkers.verdict import Validity
from tests.checkers.groups.group_history import GroupHistory, begun, kinds

SCRIPT = 3
"""The process of a script's client, which commits in no generation, -1."""


def test_the_client_of_a_script_has_a_group_of_its_own() -> None:
    """Members start where members committed, it where it did; and it may be sent back and commit again."""
    story = begun().commit(7, SCRIPT, -1, 3).start(8, SCRIPT, -1, 3).start(8, 8, 2, 5).poll(10, 8, 5, 8)
    story = story.commit(12, SCRIPT, -1, 2).start(14, SCRIPT, -1, 2).start(16, 9, 3, 5)
    verdict = story.verdict()
    assert verdict.validity is Validity.VALID, verdict
    assert verdict.figures["starts"] == 3
    assert verdict.figures["lone_starts"] == 2


def test_a_record_that_only_a_script_read_is_not_delivered() -> None:
    assert kinds(begun().commit(7, SCRIPT, -1, 0).poll(8, SCRIPT, 5, 8).verdict()) == ["not-delivered"] * 3


@pytest.mark.parametrize(("told", "found"), [(0, ["committed-offset-lost"]), (4, ["uncommitted-start"]), (6, [])])
def test_a_script_resumes_at_its_latest_commit_with_any_workload(told: int, found: list[str]) -> None:
    story = GroupHistory().append(0, *range(8)).commit(2, SCRIPT, -1, 3).commit(4, SCRIPT, -1, 6)
    assert kinds(story.start(6, SCRIPT, -1, told).verdict(groups=False)) == found


def test_without_generations_only_real_time_orders_commits() -> None:
    story = GroupHistory().append(0, *range(8)).commit(2, SCRIPT, -1, 3, "info").commit(4, SCRIPT, -1, 6)
    story = story.start(6, SCRIPT, -1, 6).start(8, SCRIPT, -1, 3)
    assert story.verdict(groups=False).validity is Validity.VALID
    assert kinds(story.start(10, SCRIPT, -1, 0).verdict(groups=False)) == ["committed-offset-lost"]


@pytest.mark.parametrize(
    ("outcome", "told", "found"),
    [
        ("ok", 0, []),
        ("ok", 3, ["deleted-offset-returned"]),
        ("fail", 3, []),
        ("fail", 0, ["committed-offset-lost"]),
        ("info", 0, []),
        ("info", 3, []),
    ],
)
def test_a_client_that_deleted_its_group_starts_anew(outcome: str, told: int, found: list[str]) -> None:
    story = GroupHistory().append(0, *range(8)).commit(2, SCRIPT, -1, 3)
    story.add(4, SCRIPT, "forget", outcome, value=-1)
    assert kinds(story.start(8, SCRIPT, -1, told).verdict(groups=False)) == found


def test_an_offset_that_is_committed_after_a_deletion_stands() -> None:
    story = GroupHistory().append(0, *range(8)).commit(2, SCRIPT, -1, 3)
    story.add(4, SCRIPT, "forget", value=-1)
    story = story.commit(6, SCRIPT, -1, 2)
    assert story.start(8, SCRIPT, -1, 2).verdict(groups=False).validity is Validity.VALID
    assert kinds(story.start(10, SCRIPT, -1, 0).verdict(groups=False)) == ["committed-offset-lost"]


def test_clients_that_are_no_members_have_a_group_each() -> None:
    other = SCRIPT + 1
    story = begun().commit(7, SCRIPT, -1, 3).commit(7, other, -1, 2)
    story.add(9, SCRIPT, "forget", value=-1)
    story = story.start(11, SCRIPT, -1, 0).start(11, other, -1, 2).start(12, 8, 2, 5).poll(14, 8, 5, 8)
    verdict = story.verdict()
    assert verdict.validity is Validity.VALID, verdict
    figures = {name: verdict.figures[f"lone_{name}"] for name in ("starts", "commits_acknowledged", "deletions")}
    assert figures == {"starts": 2, "commits_acknowledged": 2, "deletions": 1}
    assert kinds(story.start(16, other, -1, 0).verdict()) == ["committed-offset-lost"]


@pytest.mark.parametrize(("told", "validity"), [(3, Validity.VALID), (4, Validity.INVALID)])
def test_a_script_may_resume_at_an_old_commit_where_no_coordinator_confirms_it(told: int, validity: Validity) -> None:
    story = GroupHistory().append(0, *range(8)).commit(2, SCRIPT, -1, 3).commit(4, SCRIPT, -1, 6)
    verdict = story.start(6, SCRIPT, -1, told).verdict(groups=False, confirmed_ends=False)
    assert verdict.validity is validity


def test_a_script_that_never_commits_breaks_no_promise() -> None:
    assert GroupHistory().append(0, 1).verdict(groups=False, script_commits=True).validity is Validity.VALID
