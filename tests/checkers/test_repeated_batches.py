"""Batches that stand twice since a deletion made the log forget them: what that explains, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checkers import reads
from checkers.evidence import CheckSettings, RunEvidence
from checkers.fault_model import tolerances
from checkers.linearizability import checker as linearizability
from checkers.linearizability.repeated_batches import offsets_of_copies
from checkers.verdict import Validity
from checkers.violations import RepeatedBatch
from tests.checkers import small_evidence
from tests.checkers.protocol.test_protocol import Event
from tests.checkers.small_histories import append, poll
from tests.checkers.test_deletions import start_moved
from workloads.columns import INFO

UNANSWERED = {"producer_id": 7, "sequence": 4}
OTHERS = {"producer_id": 8, "sequence": 0}


def batch(time_s: float, base: int, end: int, numbers: dict[str, int], *, node: str = "b1", leader: int = 1) -> Event:
    return small_evidence.event(time_s, node, "appended", numbers, leader=leader, offset=base, log_end=end)


def evidence(*events: Event, **more: Any) -> RunEvidence:
    """Four records, of which those of an unanswered batch, appended at 0 and 1, are acknowledged at 2 and 3."""
    history = small_evidence.history([append(20, 1, 9, 2), append(21, 1, 9, 3)])
    given: dict[str, Any] = {"settings": CheckSettings(retention_ms=5), "recovery": {"recovered": True}, **more}
    return RunEvidence(history=history, trace=small_evidence.trace(*events), **given)


FIRST = batch(1, 0, 2, UNANSWERED)
FORGOTTEN = start_moved(3, "b1", 0, 2, "retention_ms")
AGAIN = batch(5, 2, 4, UNANSWERED, node="b2", leader=2)


def test_a_batch_that_is_sent_again_after_its_deletion_explains_both_its_places() -> None:
    """Nobody read the first one, and only the second one is acknowledged."""
    twice = evidence(FIRST, FORGOTTEN, AGAIN)
    assert offsets_of_copies(twice) == {("t", 0): [range(2), range(2, 4)]}
    assert linearizability.check(twice).validity is Validity.VALID


@pytest.mark.parametrize(
    "events",
    [
        (FIRST, AGAIN),
        (FIRST, start_moved(3, "b1", 0, 1, "retention_ms"), AGAIN),
        (FIRST, start_moved(6, "b1", 0, 2, "retention_ms"), AGAIN),
        (FIRST, start_moved(3, "b1", 0, 3, "retention_ms"), AGAIN),
        (batch(1, 0, 2, OTHERS), FORGOTTEN, AGAIN),
        (batch(1, 0, 2, {**UNANSWERED, "producer_epoch": 1}), FORGOTTEN, AGAIN),
        (batch(1, 0, 2, {}), FORGOTTEN, batch(5, 2, 4, {}, node="b2", leader=2)),
        (FIRST, FORGOTTEN, batch(5, 2, 4, UNANSWERED, node="b2", leader=1)),
    ],
    ids=[
        "nothing was deleted",
        "its second record was kept",
        "it was deleted later",
        "both were deleted",
        "another producer's",
        "of another producer epoch",
        "of no producer",
        "a follower's copy",
    ],
)
def test_nothing_else_explains_an_offset_that_nobody_asked_for(events: tuple[Event, ...]) -> None:
    assert offsets_of_copies(evidence(*events)) == {}
    assert [found.kind for found in linearizability.check(evidence(*events)).findings] == ["unexplained-offset"] * 2


def test_a_batch_cut_away_before_it_stood_leaves_both_later_ones_explained() -> None:
    """A deposed leader had appended it where another batch stands by now."""
    cut, other = batch(0.5, 1, 3, UNANSWERED, node="b3", leader=3), batch(6, 4, 6, OTHERS, node="b2", leader=2)
    ranges = offsets_of_copies(evidence(cut, FIRST, FORGOTTEN, AGAIN, other))["t", 0]
    assert ranges == [range(2), range(2, 4)]


def test_without_a_trace_whatever_was_deleted_may_have_been_sent_again() -> None:
    untraced = CheckSettings(has_trace=False)
    asked = small_evidence.fault("delete-records", [], 3.0, 4.0, {"asked_below": 2.0})
    faults = small_evidence.faults(asked | {"family": "admin", "detail": '{"partition": 0}'})
    assert linearizability.check(evidence(settings=untraced, faults=faults)).validity is Validity.VALID
    assert linearizability.check(evidence(settings=untraced)).validity is Validity.INVALID


def forgotten(time_s: float, node: str, end: int, producer: int = 7) -> Event:
    detail = {"producers": {str(producer): 0}, "now_ms": 0}
    return small_evidence.event(time_s, node, "producers_expired", detail, log_end=end)


def cut(time_s: float, node: str, end: int) -> Event:
    return small_evidence.event(time_s, node, "truncated", {}, offset=end, log_end=4)


EXPIRING = CheckSettings(producer_id_expiration_ms=10_000)
EXPIRED = forgotten(3, "b2", 2)


def test_a_batch_that_is_sent_again_after_its_producer_expired_explains_both_its_places() -> None:
    twice = evidence(FIRST, EXPIRED, AGAIN, settings=EXPIRING)
    assert offsets_of_copies(twice) == {("t", 0): [range(2), range(2, 4)]}
    assert linearizability.check(twice).validity is Validity.VALID
    assert tolerances(twice)["t", 0].repeated == (RepeatedBatch(range(2), range(2, 4), 5_000_000_000),)


@pytest.mark.parametrize(
    "events",
    [
        (FIRST, AGAIN, forgotten(6, "b2", 2)),
        (FIRST, forgotten(3, "b1", 2), AGAIN),
        (FIRST, forgotten(3, "b2", 2, producer=8), AGAIN),
        (FIRST, forgotten(3, "b2", 1), AGAIN),
        (FIRST, EXPIRED, cut(4, "b2", 1), AGAIN),
        (batch(1, 0, 2, {**UNANSWERED, "producer_epoch": 1}), EXPIRED, AGAIN),
        (FIRST, EXPIRED, batch(5, 2, 4, UNANSWERED, node="b2", leader=1)),
    ],
    ids=[
        "it expired later",
        "another broker had forgotten it",
        "another producer had expired",
        "it expired before",
        "that log was cut to before that",
        "of another producer epoch",
        "a follower's copy",
    ],
)
def test_no_other_expiry_explains_them(events: tuple[Event, ...]) -> None:
    assert offsets_of_copies(evidence(*events, settings=EXPIRING)) == {}
    assert tolerances(evidence(*events, settings=EXPIRING))["t", 0].repeated == ()


@pytest.mark.parametrize(("places", "validity"), [((0, 2), Validity.VALID), ((0, 3), Validity.INVALID)])
def test_two_copies_of_one_record_are_excused_where_those_batches_have_it(
    places: tuple[int, int], validity: Validity
) -> None:
    polls = [poll(place, 6, 7 + number, 20) for number, place in enumerate(places)]
    history = small_evidence.history([append(20, 1, 9, outcome=INFO), append(21, 1, 9, outcome=INFO), *polls])
    run = evidence(FIRST, EXPIRED, AGAIN, settings=EXPIRING)
    assert reads.check(replace(run, history=history)).validity is validity
