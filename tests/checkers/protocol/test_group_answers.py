"""How a coordinator describes and lists its groups, and whom it tells that they have left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checkers.protocol.test_group_promises import SERVES, STABLE, M, N, Row, asks, becomes, broken, of_group


@pytest.mark.parametrize(
    ("state", "told", "kept"),
    [
        ("Stable", [[M, None], [N, None]], True),
        ("Empty", [[M, None], [N, None]], False),
        ("Stable", [[M, None]], False),
        ("Stable", [[M, "i"], [N, None]], False),
    ],
)
def test_a_group_is_described_as_it_is(state: str, told: list[Any], kept: bool) -> None:
    description = asks(2, "describe", "none", "", state=state, told=told)
    assert broken([*STABLE, description]) == ([] if kept else ["group-described-otherwise"])


@pytest.mark.parametrize(("given", "kept"), [("ab", True), ("cd", False), ("", False)])
def test_a_description_has_the_assignments_that_members_were_given(given: str, kept: bool) -> None:
    described = {"state": "Stable", "told": [[M, None], [N, None]], "assignments": {M: given, N: "cd"}}
    found = broken([*STABLE, asks(2, "describe", "none", "", **described)])
    assert found == ([] if kept else ["group-described-otherwise"])


@pytest.mark.parametrize(
    ("state", "error", "kept"),
    [("Dead", "group_id_not_found", True), ("Dead", "none", True), ("Stable", "none", False)],
)
def test_a_group_that_nobody_knows_may_be_described_as_dead(state: str, error: str, kept: bool) -> None:
    description = asks(2, "describe", error, "", state=state, told=[])
    assert broken([*SERVES, description]) == ([] if kept else ["group-described-otherwise"])
    assert broken([*STABLE, description]) == ["group-described-otherwise"]


def leave_answered(*told: list[Any], asked: tuple[list[Any], ...] = ([M, None], ["x", None])) -> Row:
    return of_group(2.1, "leave_answered", asked=list(asked), told=list(told))


LEAVING = (
    *STABLE,
    asks(2, "leave", "none"),
    becomes(2, "PreparingRebalance", n=""),
    asks(2, "leave", "unknown_member_id", "x"),
)
LEFT, UNKNOWN = [M, None, "none"], ["x", None, "unknown_member_id"]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (leave_answered(LEFT, UNKNOWN), True),
        (leave_answered(LEFT), False),
        (leave_answered(LEFT, ["x", None, "none"]), False),
        (leave_answered(LEFT, UNKNOWN, asked=([M, None], ["x", None], [N, None])), False),
    ],
)
def test_a_leave_group_is_answered_for_each_of_its_members(answer: Row, kept: bool) -> None:
    assert broken([*LEAVING, answer]) == ([] if kept else ["leave-answered-otherwise"])


def test_who_has_left_is_no_member_any_more() -> None:
    again = becomes(2.2, "PreparingRebalance", m="", n="")
    assert broken([*LEAVING, again]) == ["left-member-kept"]
    stays = [*STABLE, asks(2, "leave", "none"), leave_answered(LEFT, asked=([M, None],))]
    assert broken(stays) == ["left-member-kept"]


def listed(told: dict[str, str], *asked: str) -> Row:
    return of_group(2, "groups_listed", group="", asked=list(asked), told=told)


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (listed({"g": "Stable"}), True),
        (listed({"g": "Stable"}, "stable"), True),
        (listed({}, "empty"), True),
        (listed({}), False),
        (listed({}, "stable"), False),
        (listed({"g": "Stable"}, "empty"), False),
        (listed({"g": "Empty"}), False),
        (listed({"g": "Stable", "h": "Empty"}), False),
    ],
)
def test_the_groups_in_a_state_are_listed(answer: Row, kept: bool) -> None:
    assert broken([*STABLE, answer]) == ([] if kept else ["groups-listed-otherwise"])
