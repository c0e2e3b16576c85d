"""Static members that do not join a rebalance stay in their group until their session ends (KIP-345)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checkers.protocol.test_group_promises import (
    SERVES,
    M,
    N,
    Row,
    asks,
    beats,
    becomes,
    broken,
    joins,
    of_group,
    stored,
    tried,
)

STATIC = (
    *SERVES,
    joins(1, M, known=False),
    joins(1, N, known=False, instance="i", session_ms=9_000),
    becomes(1, "PreparingRebalance", 0, storing=True, m="join", n="join"),
    tried(1, 1),
    becomes(1.1, "CompletingRebalance", m="", n=""),
    becomes(1.2, "PreparingRebalance", m="", n=""),
    joins(1.3, M),
    becomes(1.3, "PreparingRebalance", m="join", n=""),
)
"""Of a rebalance that ends after 3.2 s the static member N has not joined; its session ends after 10.1 s."""


def begins(time_s: float, told: dict[str, Any], joined: str = M) -> list[Row]:
    """A generation with a member that has joined, and with N."""
    begun = of_group(time_s, "generation_begun", 1, high_watermark=1, generation=2, members=[joined, N], told=told)
    record = stored(1, {joined: [None, 3_000, 2_000, ""], N: ["i", 9_000, 2_000, ""]}, 2, leader=None)
    storing = becomes(time_s, "PreparingRebalance", storing=True, **{joined: "join", N: ""})
    completing = becomes(time_s, "CompletingRebalance", 2, **{joined: "", N: ""})
    return [storing, tried(time_s, 2), completing, record, begun]


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (begins(3.2, {M: [2, M, [M, N]]}), []),
        (begins(3.1, {M: [2, M, [M, N]]}), ["generation-without-join"]),
        (begins(3.2, {M: [2, N, [M, N]]}), ["joins-answered-otherwise"]),
        (begins(3.2, {M: [2, M, [M, N]], N: [2, M, []]}), ["joins-answered-otherwise"]),
        ([becomes(3.2, "PreparingRebalance", storing=True, m="join")], ["member-removed"]),
        ([becomes(10.1, "PreparingRebalance", m="join")], []),
    ],
    ids=["at the end", "before it", "leads", "is told", "removed", "session ended"],
)
def test_a_static_member_that_has_not_joined_stays_in_its_group(events: list[Row], found: list[str]) -> None:
    assert broken([*STATIC, *events]) == found


def test_the_session_of_a_static_member_that_is_absent_begins_with_the_generation() -> None:
    assigned = asks(3.3, "sync", "waits", said=2, assigned={M: "ab", N: "cd"})
    led = [*STATIC, *begins(3.2, {M: [2, M, [M, N]]}), assigned, becomes(3.3, "CompletingRebalance", 2, m="sync", n="")]
    led += [becomes(3.4, "Stable", 2, m="", n="")]
    alive = [asks(4 + tenth / 10, "heartbeat", "none", said=2) for tenth in range(100)]
    assert broken([*led, *alive[:-15]]) == [], "it lasts until 12.2 s"
    assert broken([*led, *alive]) == ["member-kept"]


def test_a_rebalance_that_nobody_has_joined_goes_on() -> None:
    """Two seconds from when the coordinator noticed that it had ended: at 6 s at the latest."""
    left = [*STATIC[:-2], asks(2, "leave", "none"), becomes(2, "PreparingRebalance", n="")]
    noticed = asks(6, "heartbeat", "unknown_member_id")
    asked = [noticed, joins(7, "o", known=False), becomes(7, "PreparingRebalance", o="join", n="")]
    goes_on = beats(7, M, error="unknown_member_id")
    assert broken([*left, *asked, *begins(8, {"o": [2, "o", ["o", N]]}, "o")]) == []
    assert broken([*left, *asked, *goes_on[:12]]) == []
    assert broken([*left, *asked, *goes_on]) == ["rebalance-overdue"]
