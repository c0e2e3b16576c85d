"""What administrators are told of reassignments, held against what the controllers decided."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.raft.reassignments import reassignment_findings
from tests.checkers import small_evidence
from tests.checkers.small_evidence import S

TOPIC = "side"
MOVING: dict[str, Any] = {"replicas": [2, 3, 1], "adding": [3], "removing": [1]}
TOLD_MOVING = [[TOPIC, 0, [2, 3, 1], [3], [1]]]


def decided(time_s: float, offset: int, *, topic: str = TOPIC, **detail: Any) -> dict[str, Any]:
    facts = {"replicas": [1, 2], "reason": "reassignment"} | detail
    return small_evidence.event(time_s, "c1", "partition_changed", facts, topic=topic, partition=0, offset=offset)


def deleted(time_s: float, offset: int) -> dict[str, Any]:
    return small_evidence.event(time_s, "c1", "partition_deleted", {}, topic=TOPIC, partition=0, offset=offset)


def lines(asked_s: tuple[float, float], told: list[Any], *events: dict[str, Any]) -> list[str]:
    """What is found in an answer of b2 to a question of these times."""
    began, ended = (round(time_s * S) for time_s in asked_s)
    answer = {"broker": "b2", "began_ns": began, "ended_ns": ended, "reassignments": told}
    found = list(reassignment_findings(small_evidence.trace(*events), [answer]))
    assert {finding.kind for finding in found} <= {"reassignments-misstated"}
    return [line for finding in found for line in finding.lines]


CREATED, BEGUN, DONE = decided(1, 5), decided(10, 8, **MOVING), decided(20, 9, replicas=[2, 3])


@pytest.mark.parametrize(
    ("asked_s", "told"),
    [
        ((5, 6), []),
        ((9.5, 10.5), []),
        ((9.5, 10.5), TOLD_MOVING),
        ((12, 13), TOLD_MOVING),
        ((12, 21), []),
        ((22, 23), []),
    ],
)
def test_an_answer_of_any_moment_between_question_and_answer_is_right(
    asked_s: tuple[float, float], told: list[Any]
) -> None:
    assert not lines(asked_s, told, CREATED, BEGUN, DONE)


@pytest.mark.parametrize(
    ("asked_s", "told"),
    [
        ((12, 13), []),
        ((5, 6), TOLD_MOVING),
        ((22, 23), TOLD_MOVING),
        ((12, 13), [[TOPIC, 0, [2, 3, 1], [3], []]]),
        ((12, 13), [[TOPIC, 0, [3, 2, 1], [3], [1]]]),
        ((12, 13), [*TOLD_MOVING, ["other", 0, [1, 2], [2], []]]),
    ],
)
def test_an_answer_of_another_time_or_of_other_replicas_is_found(asked_s: tuple[float, float], told: list[Any]) -> None:
    assert lines(asked_s, told, CREATED, BEGUN, DONE)


def test_what_was_known_when_it_was_asked_is_told() -> None:
    found = lines((12, 13), [], CREATED, BEGUN, DONE)
    assert found == [
        "b2, asked from 12.000000 to 13.000000 s, told of no reassignment of side-0",
        "before it was asked, the metadata were committed up to 8",
        "decided since then: a reassignment of replicas [2, 3, 1], adding [3], removing [1], up to 8 of the metadata, "
        "decided at 10.000000 s",
    ]


def test_a_decision_that_a_paused_controller_traces_late_counts_from_its_first_trace() -> None:
    taken_over = decided(11, 8, **MOVING, taken_over=True)
    assert not lines((12, 13), TOLD_MOVING, CREATED, taken_over, decided(30, 8, **MOVING))


def test_whatever_is_before_what_was_committed_then_counts_though_it_is_traced_later() -> None:
    assert not lines((12, 13), TOLD_MOVING, CREATED, decided(30, 8, **MOVING), decided(11, 9, topic="other"))
    assert lines((12, 13), [], CREATED, decided(30, 8, **MOVING), decided(11, 9, topic="other"))


def test_a_deleted_partition_has_no_reassignment_and_the_next_of_its_name_has_its_own() -> None:
    assert lines((16, 17), TOLD_MOVING, CREATED, BEGUN, deleted(15, 9))
    assert not lines((16, 17), [], CREATED, BEGUN, deleted(15, 9))
    assert not lines((19, 20), TOLD_MOVING, CREATED, deleted(15, 9), decided(18, 10, topic=f"{TOPIC}#2", **MOVING))
