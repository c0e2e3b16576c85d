"""Who may commit offsets of a group."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from images.broker.groups.group import Caller, Group
from images.broker.groups.membership import check_commit
from images.broker.rules import Rules
from tests.broker.groups.test_group import LIMITS, ask, join, joined, stable


@pytest.mark.parametrize(
    ("caller", "error"),
    [
        (Caller("m1", 1), ErrorCode.none),
        (Caller("m1", 0), ErrorCode.illegal_generation),
        (Caller("m1", -1), ErrorCode.illegal_generation),
        (Caller("m9", 1), ErrorCode.unknown_member_id),
        (Caller("", -1), ErrorCode.unknown_member_id),
    ],
)
def test_only_members_of_the_current_generation_commit(caller: Caller, error: ErrorCode) -> None:
    assert check_commit(stable("m1"), caller, 6_000, LIMITS)[1] is error


def test_without_the_rule_a_member_of_an_old_generation_commits() -> None:
    lax = replace(LIMITS, rules=Rules().without(["generation_fences_commits"]))
    assert check_commit(stable("m1"), Caller("m1", 0), 6_000, lax)[1] is ErrorCode.none


def test_a_group_without_members_takes_commits_of_nobody_in_particular() -> None:
    assert check_commit(None, Caller("", -1), 0, LIMITS)[1] is ErrorCode.none
    assert check_commit(Group("g"), Caller("", -1), 0, LIMITS)[1] is ErrorCode.none
    assert check_commit(None, Caller("m1", 3), 0, LIMITS)[1] is ErrorCode.illegal_generation


def test_a_commit_waits_for_the_new_assignment_but_not_for_a_rebalance_that_has_only_begun() -> None:
    assert check_commit(joined("m1"), Caller("m1", 1), 5_000, LIMITS)[1] is ErrorCode.rebalance_in_progress
    preparing = join(stable("m1"), ask(new="m2"), 6_000, LIMITS).group
    assert check_commit(preparing, Caller("m1", 1), 6_000, LIMITS)[1] is ErrorCode.none
