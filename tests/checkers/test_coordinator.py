"""A group's coordinator tells members what its log has committed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from checkers.clients import coordinator
from checkers.evidence import CheckSettings, RunEvidence
from checkers.verdict import Validity, Verdict
from tests.checkers.small_evidence import S, event, trace
from workloads.history import SCHEMA


def operation(kind: str, invoked_s: float, completed_s: float, offset: int, generation: int = 1) -> dict[str, Any]:
    return {
        "kind": kind,
        "process": 5,
        "phase": "main",
        "topic": "t",
        "partition": 0,
        "invoked_ns": round(invoked_s * S),
        "completed_ns": round(completed_s * S),
        "outcome": "ok",
        "offset": offset,
        "value": generation,
    }


def appended(time_s: float, offset: int, *, leader: int = 1, node: str = "b1") -> dict[str, Any]:
    whole = {"topic": "__consumer_offsets", "offset": offset, "log_end": offset + 1, "leader": leader}
    return event(time_s, node, "appended", **whole)


def moved(time_s: float, high_watermark: int, node: str = "b1") -> dict[str, Any]:
    return event(time_s, node, "high_watermark", topic="__consumer_offsets", high_watermark=high_watermark)


def check(operations: list[dict[str, Any]], *events: dict[str, Any], unclean: bool = False) -> Verdict:
    rows = [row | {"index": index} for index, row in enumerate(operations)]
    settings = CheckSettings(groups=True, unclean_election=unclean)
    return coordinator.check(
        RunEvidence(
            history=pa.Table.from_pylist(rows, SCHEMA),
            trace=trace(*events),
            settings=settings,
            recovery={"recovered": True},
        )
    )


def kinds(verdict: Verdict) -> list[str]:
    return [finding.kind for finding in verdict.findings]


GENERATION_1 = (appended(1, 0), moved(2, 1))
START = operation("assign", 3, 4, 0)


def test_a_group_is_told_what_is_committed() -> None:
    commit, start = operation("commit", 5, 8, 7), operation("assign", 11, 12, 7, generation=2)
    events = (*GENERATION_1, appended(6, 1), moved(8, 2), appended(9, 2), moved(10, 3))
    assert check([START, commit, start], *events).validity is Validity.VALID


def test_a_commit_is_acknowledged_once_its_record_is_committed() -> None:
    commit = operation("commit", 5, 7, 7)
    verdict = check([START, commit], *GENERATION_1, moved(5.5, 5), appended(6, 5), moved(8, 6))
    assert kinds(verdict) == ["commit-uncommitted"]
    assert verdict.findings[0].operations == (1,)
    never_appended = check([START, commit], *GENERATION_1, moved(5.5, 5))
    assert kinds(never_appended) == ["commit-uncommitted"]


def test_an_append_of_a_deposed_leader_does_not_hide_the_committed_one() -> None:
    deposed, follower = appended(5.5, 9, leader=2, node="b2"), appended(6.2, 1, leader=3, node="b1")
    events = (*GENERATION_1, deposed, appended(6, 1, leader=3, node="b3"), follower, moved(6.5, 2, node="b3"))
    assert check([START, operation("commit", 5, 7, 7)], *events).validity is Validity.VALID


def test_a_member_starts_at_an_offset_that_is_committed() -> None:
    unknown = operation("commit", 5, 9, 7) | {"outcome": "info"}
    early = operation("assign", 5, 7, 7)
    events = (*GENERATION_1, moved(5.5, 5), appended(6, 5), moved(8, 6))
    verdict = check([START, unknown, early], *events)
    assert kinds(verdict) == ["offset-uncommitted"]
    assert verdict.findings[0].operations == (1, 2)
    assert check([START, unknown, operation("assign", 8, 9, 7)], *events).validity is Validity.VALID


def test_members_are_told_no_more_than_is_committed() -> None:
    again = operation("assign", 5, 6, 0, generation=2)
    verdict = check([START, again], *GENERATION_1, appended(4, 1), moved(7, 2))
    assert kinds(verdict) == ["assignment-uncommitted"]
    assert verdict.findings[0].operations == (1,)
    assert check([START, again], *GENERATION_1, appended(4, 1), moved(7, 2), unclean=True).validity is Validity.VALID


def test_without_the_log_of_the_coordinator_the_verdict_is_unknown() -> None:
    assert check([START]).validity is Validity.UNKNOWN
    assert check([]).validity is Validity.UNKNOWN
