"""What the answer to a fetch tells of a partition with nothing to read."""

from __future__ import annotations

import pytest

from tests.checkers.protocol.test_protocol_replicas import COPIED, kinds
from tests.checkers.small_evidence import event


@pytest.mark.parametrize(
    ("refusal", "told", "is_told"),
    [
        ("fenced_leader_epoch", "fenced_leader_epoch", True),
        ("diverging", "diverging", True),
        ("fenced_leader_epoch", "", False),
        ("diverging", "", False),
        ("diverging", "none", False),
        ("offset_out_of_range", "none", False),
        ("offset_out_of_range", "not_leader_or_follower", False),
    ],
)
@pytest.mark.parametrize("replica", [-1, 2])
def test_whoever_fetches_what_is_refused_is_told_so(refusal: str, told: str, is_told: bool, replica: int) -> None:
    detail = {"replica": replica, "refusal": refusal, "told": told}
    assert ("refusal-untold" in kinds([*COPIED, event(5, "b1", "fetch_refused", detail, offset=2)])) != is_told


@pytest.mark.parametrize(("told", "is_told"), [(1, True), (0, False), (-1, False)])
def test_a_follower_is_told_where_the_log_starts(told: int, is_told: bool) -> None:
    answered = event(5, "b1", "log_start_told", {"replica": 2, "told": told}, offset=1)
    assert ("log-start-untold" in kinds([*COPIED, answered])) != is_told
