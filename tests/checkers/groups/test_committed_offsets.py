"""Where a member starts: at the committed offset, with the epoch and the text of its commit."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.verdict import Validity
from tests.checkers.groups.group_history import GroupHistory, after_losing, begun, kinds


@pytest.mark.parametrize(("lost_s", "validity"), [(11, Validity.UNKNOWN), (9, Validity.INVALID)])
@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_loss_of_committed_offsets_excuses_nothing_that_was_committed_after_it(
    acknowledged: bool, lost_s: int, validity: Validity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offset 8 is committed at 10 s; member 9 starts at 5."""
    after_losing(0, lost_s, "__consumer_offsets", monkeypatch)
    story = begun().poll(8, 7, 5, 8).commit(10, 7, 1, 8, "ok" if acknowledged else "info")
    story = story if acknowledged else story.start(12, 8, 2, 8)
    assert story.start(14, 9, 3, 5).verdict().validity is validity


@pytest.mark.parametrize("settings", [{}, {"unclean_election": True}])
def test_nothing_excuses_a_start_at_an_offset_that_nobody_committed(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    story = begun().poll(7, 7, 5, 8).start(9, 8, 2, 4)
    assert story.verdict(**settings).validity is Validity.INVALID
    after_losing(0, 8, "__consumer_offsets", monkeypatch)
    assert story.verdict(**settings).validity is Validity.INVALID


def test_a_start_at_an_overwritten_commit_is_a_lost_offset() -> None:
    story = begun().poll(8, 7, 5, 8).commit(10, 7, 1, 8).start(12, 8, 2, 5)
    assert kinds(story.verdict()) == ["committed-offset-lost"]


def test_a_start_at_0_after_an_acknowledged_commit_is_a_lost_offset() -> None:
    assert kinds(begun().poll(7, 7, 5, 8).start(8, 8, 2, 0).verdict()) == ["committed-offset-lost"]


def test_a_start_at_an_offset_never_committed_is_a_violation() -> None:
    assert kinds(begun().poll(7, 7, 5, 8).start(9, 8, 2, 4).verdict()) == ["uncommitted-start"]


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({"leader_epoch": 3, "metadata": "a"}, []),
        ({"leader_epoch": 2, "metadata": "a"}, ["committed-otherwise"]),
        ({"leader_epoch": -1, "metadata": "a"}, ["committed-otherwise"]),
        ({"leader_epoch": 3, "metadata": ""}, ["committed-otherwise"]),
        ({}, []),  # a run of an earlier version
    ],
)
@pytest.mark.parametrize("lone", [False, True])
def test_a_start_is_told_the_epoch_and_the_text_of_a_commit(told: dict[str, Any], found: list[str], lone: bool) -> None:
    committed = {"leader_epoch": 3, "metadata": "a"}
    story = GroupHistory().append(0, *range(8)).start(1, 7, 1, 0, leader_epoch=-1, metadata="").poll(2, 7, 0, 5)
    if lone:
        story = story.commit(6, 6, -1, 5, **committed).start(8, 6, -1, 5, **told)
    else:
        story = story.commit(6, 7, 1, 5, **committed).start(8, 8, 2, 5, **told)
    assert kinds(story.poll(10, 8 - lone, 5, 8).verdict(confirmed_ends=False)) == found


def test_an_epoch_that_any_commit_of_the_offset_had_may_be_told() -> None:
    story = GroupHistory().append(0, *range(8)).start(1, 7, 1, 0).poll(2, 7, 0, 8)
    story = story.commit(4, 7, 1, 8, "info", leader_epoch=1).commit(6, 7, 1, 8, leader_epoch=2)
    assert kinds(story.start(8, 8, 2, 8, leader_epoch=1).verdict()) == []


def test_a_commit_of_unknown_outcome_may_arrive_after_a_later_one_of_its_generation() -> None:
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 8)
    story = story.commit(6, 7, 1, 5, "info").commit(8, 7, 1, 8).start(10, 8, 2, 5)
    assert story.verdict().validity is Validity.VALID


def test_a_commit_of_unknown_outcome_cannot_arrive_after_one_of_a_later_generation() -> None:
    story = GroupHistory().append(0, *range(8)).start(1, 7, 1, 0).poll(2, 7, 0, 5).commit(4, 7, 1, 5, "info")
    story = story.start(6, 8, 2, 0).poll(8, 8, 0, 8).commit(10, 8, 2, 8).start(12, 9, 3, 5)
    assert kinds(story.verdict()) == ["committed-offset-lost"]


def late_commit() -> GroupHistory:
    """Member 7 of generation 1 has committed 5, nobody knows whether, and then 8."""
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 8)
    return story.commit(6, 7, 1, 5, "info").commit(8, 7, 1, 8)


def test_a_late_commit_cannot_arrive_after_a_later_generation_started_elsewhere() -> None:
    """Generation 2 starts at 8, after the late commit or without it; nothing puts 5 into force again for generation
    3."""
    story = late_commit().start(10, 8, 2, 8)
    assert story.verdict().validity is Validity.VALID
    assert kinds(story.start(12, 9, 3, 5).verdict()) == ["committed-offset-lost"]


def test_a_start_at_another_offset_that_overlaps_overwrites_nothing() -> None:
    """Generation 3 may have fetched its start before generation 2 did, and 8 have been committed between them."""
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 8).commit(6, 7, 1, 5, "info")
    story.add(10, 8, "assign", until_s=16, value=2, offset=8)
    story = story.start(10, 9, 3, 5).poll(11, 9, 5, 8).commit(13, 9, 3, 8)
    assert story.verdict().validity is Validity.VALID


def test_a_late_commit_may_be_repeated_by_a_later_generation() -> None:
    story = late_commit().start(10, 8, 2, 8).commit(12, 8, 2, 5, "info").start(14, 9, 3, 5)
    assert story.verdict().validity is Validity.VALID


def test_a_start_at_0_after_a_start_elsewhere_is_a_lost_offset() -> None:
    """The commit was never acknowledged, but the start shows that it was written."""
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 8).commit(6, 7, 1, 5, "info")
    assert kinds(story.start(10, 8, 2, 5).start(12, 9, 3, 0).verdict()) == ["committed-offset-lost"]


def test_a_start_at_a_failed_commit_is_a_violation() -> None:
    story = (
        GroupHistory().append(0, 0, 1).start(1, 7, 1, 0).poll(2, 7, 0, 2).commit(4, 7, 1, 2, "fail").start(6, 8, 2, 2)
    )
    assert kinds(story.verdict()) == ["uncommitted-start"]
