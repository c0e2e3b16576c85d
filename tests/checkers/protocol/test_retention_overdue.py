"""The promise that a leader deletes what its retention says, as far as it is at work."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.protocol.checker import check
from tests.checkers import small_evidence
from tests.checkers.protocol.test_protocol_replicas import BORN, Event, appended, follows, log_start, opened, started
from tests.checkers.small_evidence import event

BY_TIME, BY_SIZE = {"retention_ms": 2_000}, {"retention_bytes": 150}


def batch(time_s: float, offset: int, end: int, node: str = "b1", **detail: int) -> Event:
    return appended(time_s, node, offset, end) | {"detail": json.dumps({"crc": offset, "timestamp": 0, **detail})}


def committed(time_s: float, to: int) -> Event:
    place = {"offset": 0, "high_watermark": to, "members": [1, 2, 3]}
    return event(time_s, "b1", "high_watermark", **place, leader=1, leader_epoch=1)


def busy(first_s: float, last_s: float, pause_s: float = 0.25) -> list[Event]:
    """Events of b1 that show it at work."""
    count = int((last_s - first_s) / pause_s) + 1
    return [event(first_s + pause_s * number, "b1", "rule_read", {"rule": "any"}) for number in range(count)]


def overdue(
    *parts: Iterable[Event],
    clock: str = "",
    clock_s: float = 0,
    did: Mapping[str, float] | None = None,
    **settings: Any,
) -> list[str]:
    """The findings, by their second lines."""
    events = sorted((event for part in parts for event in part), key=lambda event: float(event["time_ns"]))
    fault = small_evidence.fault("clock", [clock], clock_s, clock_s + 1, {})
    if did is not None:
        fault = small_evidence.clock_fault(clock, clock_s, clock_s + 1, **did)
    faults = small_evidence.faults(*([fault] if clock else []))
    evidence = RunEvidence(
        trace=small_evidence.trace(*events),
        settings=CheckSettings(**{"retention_check_ms": 1_000, **(settings or BY_TIME)}),
        faults=faults,
    )
    return [finding.lines[1] for finding in check(evidence).findings if finding.kind == "retention-overdue"]


FOLLOWERS = [batch(2, *place, node=node) for node in ("b2", "b3") for place in ((0, 5), (5, 8), (8, 9))]
ALIKE = [*BORN, *FOLLOWERS, batch(2, 0, 5)]
COPIED = [*ALIKE, batch(3, 5, 8, closed_bytes=100), batch(3.5, 8, 9, closed_bytes=150)]
"""The log of b1: two segments that are closed, and the last one, of one record."""
KEPT = [*COPIED, committed(3.5, 9)]
WORKED = busy(3.5, 10.5)


def test_a_leader_that_keeps_what_is_too_old_is_found() -> None:
    assert overdue(KEPT, WORKED) == [
        "by retention.ms=2000 the records below 5, all committed, were to go at 5.050000 s: it looks for such every "
        "1000 ms"
    ]
    assert not overdue(KEPT, busy(3.5, 9.5))
    assert not overdue(KEPT, WORKED, retention_ms=-1)
    assert not overdue(KEPT, WORKED, **BY_TIME, clock_error_ms=3_000)


def test_nothing_is_overdue_while_a_leaders_process_does_not_run() -> None:
    stalls = [small_evidence.stalled(6 + number, "b1", 0.5) for number in range(5)]
    assert not overdue(KEPT, WORKED, stalls)
    assert overdue(KEPT, WORKED, [each | {"node": "b2"} for each in stalls])
    often = [small_evidence.stalled(8 + number / 2, "b1", 0.2) for number in range(6)]
    assert not overdue(KEPT, busy(3.5, 8), often), "a stall is no work"


def test_a_leader_that_keeps_more_than_the_size_is_found() -> None:
    """The segments behind the first one have 150 bytes at least from 3.5 s on."""
    assert "retention.bytes=150 the records below 5" in overdue(KEPT, WORKED, **BY_SIZE)[0]
    assert not overdue(KEPT, busy(3.5, 8.25), **BY_SIZE)
    assert not overdue(KEPT, WORKED, retention_bytes=151)


def test_the_last_segment_goes_with_the_rest_once_all_is_too_old() -> None:
    events = [*ALIKE, batch(3, 5, 8), batch(3.5, 8, 9), committed(3.5, 9)]
    assert "the records below 9" in overdue(events, busy(3.5, 11))[0]
    assert not overdue(events, busy(3.5, 10.25))
    more = [batch(11, 9, 10)]
    assert "the records below 9" in overdue(events, busy(3.5, 11), more)[0]


def test_a_leader_that_deletes_late_is_found_all_the_same() -> None:
    gone = [log_start(11, "b1", 9, "retention_ms")]
    assert len(overdue(KEPT, busy(3.5, 11), gone)) == 1
    assert not overdue(KEPT, busy(3.5, 14), [log_start(6, "b1", 9, "retention_ms")])


EXCUSES = {
    "pauses": (KEPT, busy(3.5, 30, pause_s=2.0)),
    "has not committed it": (COPIED, [committed(3.5, 4)], WORKED),
    "leads no more": (KEPT, WORKED, [follows(9, "b1", 2, 2, 1)]),
    "is another process": (KEPT, WORKED, [started(9, "b1")]),
    "has opened its log anew": (KEPT, WORKED, [opened(9, "b1", 9)]),
    "has a segment without a timestamp": ([*ALIKE, batch(2.5, 5, 6, timestamp=-1), committed(3.5, 6)], WORKED),
}


@pytest.mark.parametrize("parts", EXCUSES.values(), ids=EXCUSES)
def test_nothing_is_said_of_a_leader_that(parts: tuple[list[Event], ...]) -> None:
    assert not overdue(*parts)


def test_nothing_is_said_where_clocks_are_wrong_or_the_interval_is_not_known() -> None:
    assert not overdue(KEPT, WORKED, clock="b1")
    assert len(overdue(KEPT, WORKED, clock="b2")) == 1
    assert len(overdue(KEPT, WORKED, clock="b1", clock_s=20)) == 1, "it was right by then"
    assert not overdue(KEPT, WORKED, **BY_TIME, retention_check_ms=-1)
    configured = event(1, "c1", "topic_configured", {"name": "t", "id": "", "config": {"retention.ms": "5000"}})
    assert not overdue(KEPT, WORKED, [configured])
    of_groups = [event | {"topic": "__consumer_offsets"} if event["topic"] else event for event in [*KEPT, *WORKED]]
    assert not overdue(of_groups)


@pytest.mark.parametrize(
    ("did", "due_s"),
    [
        ({"jump_ms": 9000}, 5.05),
        ({"jump_ms": -1500}, 6.55),
        ({"rate": 0.5}, 9.05),
        ({"wall_jump_ms": -9000}, 5.05),
    ],
    ids=["ahead", "behind", "slow, for 8 s at the most", "on the wall, and put right"],
)
def test_a_clock_that_was_wrong_long_ago_excuses_what_it_makes_late(did: Mapping[str, float], due_s: float) -> None:
    last_s = due_s + 5.25
    (found,) = overdue(KEPT, busy(3.5, last_s + 0.25), clock="b1", did=did)
    assert f"were to go at {due_s:.6f} s" in found
    assert not overdue(KEPT, busy(3.5, last_s - 0.5), clock="b1", did=did)


def test_a_leader_deletes_once_its_timers_run_right() -> None:
    """They are taken for wrong until 2 s after the fault."""
    fast = {"clock": "b1", "clock_s": 6, "did": {"rate": 2}}
    assert not overdue(KEPT, busy(3.5, 14), **fast)
    assert "were to go at 9.000000 s" in overdue(KEPT, busy(3.5, 14.5), **fast)[0]


def test_a_wall_clock_that_was_stepped_far_back_excuses_nothing_once_it_is_put_right() -> None:
    """It is taken for wrong from 5 s before the fault until 2 s after it, and retention.bytes does not go by it."""
    back: dict[str, Any] = {"clock": "b1", "clock_s": 6, "did": {"wall_jump_ms": -60_000}}
    assert not overdue(KEPT, busy(3.5, 14), **back)
    assert "were to go at 9.000000 s" in overdue(KEPT, busy(3.5, 14.5), **back)[0]
    assert "were to go at 3.500000 s" in overdue(KEPT, busy(3.5, 9), **back, **BY_SIZE)[0]
    slow: dict[str, Any] = back | {"did": {"wall_jump_ms": -60_000, "rate": 0.5}}
    assert not overdue(KEPT, busy(3.5, 14), **slow)
    assert "were to go at 9.050000 s" in overdue(KEPT, busy(3.5, 14.5), **slow)[0]


def test_segments_that_were_cut_off_are_none() -> None:
    """Of b1, which leads again, the last record alone is old; that of the other process is new."""
    cut = event(4, "b1", "truncated", offset=5, log_end=9)
    events = [*KEPT, follows(4, "b1", 2, 2, 1), cut, batch(4.5, 5, 9)]
    led = event(5, "b1", "became_leader", {"high_watermark": 9}, offset=9, log_end=9, leader=1, leader_epoch=3)
    assert "the records below 9" in overdue(events, [led], busy(5, 12))[0]
    assert not overdue(events, [led], busy(5, 11))
