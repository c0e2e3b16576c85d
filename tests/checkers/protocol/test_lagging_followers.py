"""Promises about followers that lag: a leader goes on without them, and takes nobody for one who does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.protocol.checker import check
from tests.checkers import small_evidence
from tests.checkers.protocol.test_protocol_replicas import BORN, Event, appended, leads
from tests.checkers.small_evidence import event

LAG_MS = 2_000
JUDGED = {"isr-shrink-early", "isr-shrink-overdue", "isr-change-not-sent-again"}
LED = {"leader": 1, "leader_epoch": 1, "partition_epoch": 0}


def written(first_s: float, last_s: float, pause_s: float = 0.25) -> list[Event]:
    """b1 appends a record at a time."""
    times = [first_s + pause_s * number for number in range(int((last_s - first_s) / pause_s) + 1)]
    return [appended(time_s, "b1", offset, offset + 1) | LED for offset, time_s in enumerate(times)]


def counted(time_s: float, *isr: int, **in_flight: Sequence[int]) -> Event:
    return event(time_s, "b1", "isr_counted", {"unresolved": [], **in_flight}, members=list(isr), **LED)


def moved(time_s: float, to: int, **positions: int) -> Event:
    ends = {"1": to} | {name.removeprefix("b"): end for name, end in positions.items()}
    place = {"offset": 0, "high_watermark": to, "members": [1, 2, 3]}
    return event(time_s, "b1", "high_watermark", {"positions": ends}, **place, **LED)


def shrunk(time_s: float) -> Event:
    detail = {"reason": "shrink", "lag_ms": {"3": LAG_MS + 1}, "lag_max_ms": LAG_MS, "positions": {}}
    return event(time_s, "b1", "isr_proposed", detail, offset=0, members=[1, 2], **LED)


def answered(time_s: float, error: str, again_ms: int = 1_000) -> Event:
    detail = {"error": error, "again_ms": again_ms}
    return event(time_s, "b1", "alter_partition_answered", detail, members=[1, 2], **LED)


def sent(time_s: float) -> Event:
    return event(time_s, "b1", "alter_partition_sent", members=[1, 2], broker_epoch=11, **LED)


def kinds(
    *parts: Iterable[Event],
    clock: Sequence[str] = (),
    clock_s: float = 4,
    lag_ms: int = LAG_MS,
    faults: Sequence[Event] = (),
) -> set[str]:
    events = sorted((event for part in parts for event in part), key=lambda event: float(event["time_ns"]))
    wrong = small_evidence.faults(*faults, *(small_evidence.fault("clock", [node], 0, clock_s, {}) for node in clock))
    settings = CheckSettings(replica_lag_ms=lag_ms)
    evidence = RunEvidence(trace=small_evidence.trace(*events), settings=settings, faults=wrong)
    return {finding.kind for finding in check(evidence).findings} & JUDGED


COUNTED = [*BORN, leads(1, "b1", 1, 0, 0) | {"members": [1, 2, 3]}, counted(1, 1, 2, 3)]
WAITING = [*COUNTED, *written(2, 8)]
"""Nobody fetches from b1, which leads, and appends all the time."""
OVERDUE, EARLY = {"isr-shrink-overdue"}, {"isr-shrink-early"}


def test_a_leader_goes_on_without_whom_it_waits_for_too_long() -> None:
    assert kinds(WAITING) == OVERDUE
    assert kinds([*COUNTED, *written(2, 5.5)]) == set()  # one and a half times the longest lag, and half a second


@pytest.mark.parametrize(
    "meanwhile",
    [
        [counted(4, 1, 2, 3, proposed=(1, 2))],
        [counted(4, 1)],
        [moved(5, 2), appended(5, "b2", 0, 13) | LED, appended(5, "b3", 0, 13) | LED],
        [event(4, "b1", "became_follower", leader=2, leader_epoch=2)],
    ],
    ids=["a change is in flight", "the ISR is too small", "the high watermark moves", "another one leads"],
)
def test_a_leader_waits_as_long_as_it_may(meanwhile: Sequence[Event]) -> None:
    assert kinds(WAITING, meanwhile) == set()


def test_a_follower_that_fetches_too_little_lags_although_the_high_watermark_moves() -> None:
    fetches = [appended(2 + 2 * number, "b3", number, number + 1) | LED for number in range(3)]
    moves = [moved(2.1 + 2 * number, number + 1) for number in range(3)]
    whole = [appended(2.1 + number / 4, "b2", number, number + 1) | LED for number in range(24)]
    assert kinds(WAITING, whole, fetches, moves) == OVERDUE
    assert kinds(WAITING, whole, fetches, moves, [appended(6.1, "b3", 3, 17) | LED]) == set()


def test_what_a_leader_has_seen_of_a_log_before_it_was_cut_is_no_lag() -> None:
    moves = [moved(2.05 + number / 4, number + 1) for number in range(12)]
    b2 = [appended(2.02 + number / 4, "b2", number, number + 1) | LED for number in range(29)]
    b3 = [appended(4.8, "b3", 0, 12) | LED]
    cut = [event(4.85, "b3", "truncated", offset=2, log_end=12, high_watermark=2, **LED)]
    assert kinds([*COUNTED, *written(2, 8.5)], moves, b2, b3, [moved(4.83, 12)], cut) == set()
    assert kinds([*COUNTED, *written(2, 9)], moves, b2, b3, [moved(4.83, 12)], cut) == OVERDUE


def test_nothing_is_overdue_while_a_leader_may_have_been_paused() -> None:
    assert kinds([*COUNTED, *written(2, 8, pause_s=2)]) == set()


def test_no_stall_of_its_process_counts_for_a_leader() -> None:
    busy = [small_evidence.stalled(3 + number / 4, "b1", 0.2) for number in range(12)]
    assert kinds(WAITING, busy) == set()
    assert kinds(WAITING, busy[:1]) == OVERDUE
    assert kinds(WAITING, [each | {"node": "b2"} for each in busy]) == OVERDUE


def test_a_leader_that_is_read_from_is_at_work_although_nobody_appends() -> None:
    reads = [event(3 + number / 4, "b1", "latest_asked", {"read": number}, **LED) for number in range(16)]
    assert kinds([*COUNTED, *written(2, 3)], reads) == OVERDUE
    assert kinds([*COUNTED, *written(2, 3)], reads[:8]) == set()


def test_lags_are_not_judged_by_a_wrong_clock_nor_without_their_limit() -> None:
    assert kinds(WAITING, clock=["b1"]) == kinds(WAITING, lag_ms=-1) == set()
    assert kinds(WAITING, clock=["b2"]) == OVERDUE
    assert kinds(WAITING, clock=["b1"], clock_s=1) == OVERDUE, "its clock has run right for long enough"
    assert kinds(COUNTED, [shrunk(2)], clock=["b1"]) == set()


def test_a_lag_is_no_longer_than_a_leaders_timers_can_have_counted() -> None:
    def found(at_s: float, began_s: float, ended_s: float, **did: float) -> bool:
        faults = [small_evidence.clock_fault("b1", began_s, ended_s, **did)]
        return kinds(COUNTED, [shrunk(at_s)], faults=faults) == EARLY

    assert not found(2, 0, 4, jump_ms=1000)
    assert found(2, 0, 4, jump_ms=900)
    assert found(2, 0, 4, jump_ms=-9000), "they count less after a jump back"
    assert found(2, 0, 4, wall_jump_ms=9000)
    assert found(2, 0, 4, rate=1.9)
    assert not found(2, 0, 4, rate=2)
    assert found(2, -9, 4, jump_ms=1000), "it has jumped long before"
    assert found(2, -9, -2, rate=9)
    assert not found(2, -9, 0, rate=9)


def test_a_clock_fault_that_was_not_injected_whole_has_jumped_at_any_time() -> None:
    """The injection took long, and failed on another node: the fault has the time at which it began with the first."""
    whole = small_evidence.clock_fault("b1", -2.9, 9, jump_ms=1000)
    assert kinds(COUNTED, [shrunk(2)], faults=[whole]) == EARLY
    assert kinds(COUNTED, [shrunk(2)], faults=[whole | {"evidence": "{}"}]) == set()


def test_a_follower_stays_in_the_isr_for_the_longest_lag_after_its_leader_has_begun() -> None:
    assert kinds(COUNTED, [shrunk(2)]) == EARLY
    assert kinds(COUNTED, [shrunk(3)]) == set()


def test_a_leader_counts_from_when_it_has_applied_that_it_leads() -> None:
    """Its disk may take its time for the new leader epoch, before it is traced."""
    applied = [event(0.9, "b1", "metadata_applied", log_end=99)]
    assert kinds(COUNTED, [shrunk(2.9)]) == EARLY
    assert kinds(applied, COUNTED, [shrunk(2.9)]) == set()
    assert kinds(applied, COUNTED, [shrunk(2.8)]) == EARLY


def test_a_follower_stays_in_the_isr_for_the_longest_lag_after_it_had_the_whole_log() -> None:
    records = [*COUNTED, *written(3, 4)]
    assert kinds(records, [moved(4.1, 4, b2=5, b3=5), shrunk(5)]) == EARLY
    assert kinds(records, [moved(4.1, 4, b2=5, b3=4), shrunk(5)]) == set()
    assert kinds(records, [moved(4.1, 4, b2=5, b3=5), shrunk(6.1)]) == set()


IN_FLIGHT = [
    *WAITING,
    event(3, "b1", "isr_proposed", offset=0, members=[1, 2], **LED),
    counted(3, 1, 2, 3, proposed=(1, 2)),
]


@pytest.mark.parametrize("error", ["lost", "not_controller", "stale_broker_epoch", "unknown_server_error"])
def test_a_change_is_sent_again_that_an_answer_has_not_ended(error: str) -> None:
    asked = [*IN_FLIGHT, sent(3), answered(4, error)]
    assert kinds(asked) == {"isr-change-not-sent-again"}
    assert kinds(asked, [sent(5)]) == set()
    assert kinds(asked, [counted(5, 1, 2)], [moved(5, 12)]) == set()
    assert kinds(IN_FLIGHT, [sent(3), answered(4, error, again_ms=2_500)]) == set()
    assert kinds(asked, clock=["b1"]) == set()
    assert kinds(asked, clock=["b1"], clock_s=1) == {"isr-change-not-sent-again"}


@pytest.mark.parametrize("error", ["none", "invalid_update_version", "fenced_leader_epoch"])
def test_metadata_ends_a_change_that_is_made_or_refused_for_what_it_is(error: str) -> None:
    assert kinds(IN_FLIGHT, [sent(3), answered(4, error)]) == set()
