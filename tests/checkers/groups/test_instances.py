"""Static members: one that returns takes the place of the one before it, which is fenced."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.verdict import Validity
from tests.checkers.groups.group_history import GroupHistory, after_losing, kinds

STATIC = {"instance": "i"}


def static() -> GroupHistory:
    """Member 7 of the instance i owns the partition in generation 1, was given records 0 to 4 and committed 5."""
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0, **STATIC).poll(4, 7, 0, 5)
    return story.commit(6, 7, 1, 5, **STATIC)


def returned() -> GroupHistory:
    """Member 8 takes the place of member 7 in generation 1."""
    return static().start(8, 8, 1, 5, **STATIC)


def test_a_static_member_that_returns_owns_the_partition_of_the_one_before_it() -> None:
    verdict = returned().poll(10, 8, 5, 8).commit(12, 8, 1, 8, **STATIC).verdict()
    assert verdict.validity is Validity.VALID, verdict


@pytest.mark.parametrize("other", [{}, {"instance": "j"}])
def test_an_instance_and_any_other_member_are_two_owners(other: dict[str, Any]) -> None:
    assert kinds(static().start(8, 8, 1, 5, **other).poll(10, 8, 5, 8).verdict()) == ["owned-twice"]


def test_a_commit_of_a_fenced_member_is_a_violation() -> None:
    verdict = returned().poll(10, 8, 5, 8).commit(12, 7, 1, 5, **STATIC).verdict()
    assert kinds(verdict) == ["fenced-commit"]
    assert verdict.findings[0].operations == (3 + 8, 4 + 8 + 1)


@pytest.mark.parametrize("outcome", ["fail", "info"])
def test_a_commit_of_a_fenced_member_may_be_asked_for(outcome: str) -> None:
    story = returned().poll(10, 8, 5, 8).commit(12, 7, 1, 5, outcome, **STATIC)
    assert story.verdict().validity is Validity.VALID


def test_a_commit_on_its_way_when_its_member_was_fenced_is_none_of_a_fenced_member() -> None:
    story = static()
    story.add(7, 7, "commit", until_s=12, value=1, offset=5, **STATIC)
    assert story.start(8, 8, 1, 5, **STATIC).poll(10, 8, 5, 8).verdict().validity is Validity.VALID


def test_a_commit_of_a_fenced_member_in_an_earlier_generation_is_stale() -> None:
    story = static().start(8, 8, 2, 5, **STATIC).poll(10, 8, 5, 8).commit(12, 7, 1, 5, **STATIC)
    assert kinds(story.verdict()) == ["stale-commit"]


@pytest.mark.parametrize(("instance", "found"), [("i", ["committed-offset-lost"]), ("j", [])])
def test_a_late_commit_cannot_arrive_after_the_next_member_of_its_instance_started_elsewhere(
    instance: str, found: list[str]
) -> None:
    """Nobody knows whether member 7 has committed 8; member 8 starts at 5 in the same generation, and then 9 at 8. A
    member of another instance owns the partition twice, and its start says nothing of that commit."""
    story = static().poll(7, 7, 5, 8).commit(8, 7, 1, 8, "info", **STATIC)
    story = story.start(10, 8, 1, 5, instance=instance).start(12, 9, 2, 8)
    assert [kind for kind in kinds(story.verdict()) if kind != "owned-twice"] == found


@pytest.mark.parametrize(("lost_s", "validity"), [(7, Validity.UNKNOWN), (1, Validity.INVALID)])
def test_a_loss_of_the_record_that_fences_excuses_a_commit_of_its_member(
    lost_s: int, validity: Validity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the member had started at 2 s there was no such record."""
    after_losing(0, lost_s, "__consumer_offsets", monkeypatch)
    assert returned().poll(10, 8, 5, 8).commit(12, 7, 1, 5, **STATIC).verdict().validity is validity
