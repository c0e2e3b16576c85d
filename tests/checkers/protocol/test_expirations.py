"""Promises about the producers that a broker forgets: none too early, and none too late."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from checkers.evidence import CheckSettings
from tests.checkers import small_evidence
from tests.checkers.protocol.test_log_knowledge import produced, told
from tests.checkers.protocol.test_protocol_replicas import BORN, Event, kinds
from tests.checkers.small_evidence import clock_fault, event

EXPIRES_MS = 10_000
SETTINGS = CheckSettings(producer_id_expiration_ms=EXPIRES_MS, expiry_check_ms=1_000, network_is_witness=True)
OVERDUE, EARLY = "producer-expiration-overdue", "producer-expired-early"


def expired(time_s: float, times: dict[int, int], *, now_ms: int | None = None, end: int = 2) -> Event:
    """b1 forgets these producers, whose newest batches have these times for it."""
    now_ms = round(1_000 * time_s) if now_ms is None else now_ms
    detail = {"producers": {str(producer): time_ms for producer, time_ms in times.items()}, "now_ms": now_ms}
    return event(time_s, "b1", "producers_expired", detail, log_end=end)


def at_work(until_s: float, since_s: float = 3) -> list[Event]:
    """b1 has an event now and then."""
    steps = range(round(10 * since_s), round(10 * until_s))
    return [event(step / 10, "b1", "rule_read", {"rule": "x"}, topic="") for step in steps]


def found(events: Iterable[Event], settings: CheckSettings = SETTINGS, **evidence: Any) -> list[str]:
    """The promises of this page that are broken, in the order of the times of the events."""
    ordered = sorted(events, key=lambda each: each["time_ns"])
    numbered = [each | {"seq": number} for number, each in enumerate(ordered)]
    broken = kinds(numbered, settings=settings, **evidence)
    return [kind for kind in broken if kind in (OVERDUE, EARLY, "producer-state-wrong")]


TWO = [*BORN, produced(2, 0, 0, timestamp=1_900), produced(2.5, 1, 1, timestamp=2_400)]
"""b1 leads, and has two batches of producer 1."""


@pytest.mark.parametrize(
    ("now_ms", "wrong"), [(12_400, []), (12_399, [EARLY])], ids=["when it is so old", "a millisecond before"]
)
def test_a_producer_expires_by_the_age_of_its_newest_batch(now_ms: int, wrong: list[str]) -> None:
    assert found([*TWO, expired(12.4, {1: 2_400}, now_ms=now_ms)]) == wrong


def test_it_does_not_expire_by_an_earlier_batch() -> None:
    assert found([*TWO, expired(12, {1: 1_900})]) == [EARLY]
    assert found([*TWO, expired(12.5, {1: 1_900})]) == ["producer-state-wrong"], "old enough, by another time"


def test_the_clock_is_no_further_ahead_than_faults_have_set_it() -> None:
    early = [*TWO, expired(6, {1: 2_400}, now_ms=12_500)]
    assert found(early) == [EARLY]
    jumped = small_evidence.faults(clock_fault("b1", 3, 9, wall_jump_ms=7_000))
    assert found(early, faults=jumped) == []
    assert found(early, CheckSettings(producer_id_expiration_ms=EXPIRES_MS, expiry_check_ms=1_000)) == []


def test_all_that_have_expired_are_forgotten_together() -> None:
    of_two = [*BORN, produced(2, 0, 0, timestamp=1_900), produced(2, 0, 1, producer=2, timestamp=1_900)]
    assert found([*of_two, expired(12, {1: 1_900, 2: 1_900})]) == []
    assert found([*of_two, expired(12, {1: 1_900})]) == [OVERDUE]
    younger = [*of_two, produced(3, 1, 2, producer=2, timestamp=2_500)]
    assert found([*younger, expired(12, {1: 1_900}, end=3)]) == []


def test_one_that_sends_again_is_forgotten_again_later() -> None:
    again = [*TWO, expired(13, {1: 2_400}), produced(14, 7, 2, timestamp=13_900)]
    assert found([*again, expired(24, {1: 13_900}, end=3)]) == []
    assert found([*again, expired(22, {1: 13_900}, end=3)]) == [EARLY]


def test_none_is_kept_for_long_by_a_broker_at_work() -> None:
    """It was to go at 12.5 s, and is overdue after two checks of a second, and 3 s more."""
    assert found([*TWO, *at_work(17.4)]) == []
    assert found([*TWO, *at_work(18)]) == [OVERDUE]
    assert found([*TWO, *at_work(18), expired(17.9, {1: 2_400})]) == [OVERDUE]
    assert found([*TWO, *at_work(18), expired(15, {1: 2_400})]) == []
    renewed = [*TWO, produced(9, 2, 2, timestamp=8_900)]
    assert found([*renewed, *at_work(18)]) == []


def test_a_broker_that_was_not_at_work_is_late() -> None:
    assert found([*TWO, *at_work(13), *at_work(22, since_s=20)]) == []
    reopened = told(17, "log_recovered", 2)
    assert found([*TWO, *at_work(14), reopened, *at_work(21, since_s=18)]) == []
    assert found([*TWO, *at_work(14), reopened, *at_work(23, since_s=17)]) == [OVERDUE], "it has it again"
    forgotten = told(17, "log_recovered", 2, producers={})
    assert "producer-state-wrong" in found([*TWO, forgotten, *at_work(23, since_s=17)])
    gone = event(14, "b1", "replica_deleted")
    assert found([*TWO, *at_work(14), gone, *at_work(23, since_s=14)]) == []


def test_a_broker_whose_clock_is_behind_or_whose_timers_run_wrong_is_late() -> None:
    kept = [*TWO, *at_work(18)]
    for did in ({"wall_jump_ms": -5_000}, {"rate": 0.5}):
        slow = small_evidence.faults(clock_fault("b1", 3, 17, **did))
        assert found(kept, faults=slow) == []


def test_nothing_is_overdue_where_clocks_of_producers_or_the_settings_are_not_known() -> None:
    kept = [*TWO, *at_work(18)]
    for unknown in ({"clock_error_ms": 5_000}, {"expiry_check_ms": -1}):
        assert (
            found(kept, CheckSettings(**{"producer_id_expiration_ms": EXPIRES_MS, "expiry_check_ms": 1_000} | unknown))
            == []
        )
