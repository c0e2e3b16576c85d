"""Dry runs of an administrator, held against the requests after them and what the controllers decided."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.evidence import CheckSettings
from checkers.raft.administration import administration_findings
from tests.checkers import small_evidence
from tests.checkers.small_evidence import S

SIDE = "side"
REFUSED = "INVALID_PARTITIONS"
SET = ["min.insync.replicas", "3", "set"]


def asked(change: str, began_s: float, outcome: str = "", *, wanted: Any = 2, **fields: Any) -> dict[str, Any]:
    """A request that lasts for a second."""
    return {
        "change": change,
        "topic": SIDE,
        "partition": -1,
        "wanted": wanted,
        "began_ns": round(began_s * S),
        "ended_ns": round((began_s + 1) * S),
        "outcome": outcome,
        "in_doubt": False,
        "created_topic": None,
    } | fields


def decided(time_s: float, partition: int = 0, offset: int = 0, **detail: Any) -> dict[str, Any]:
    facts = {"replicas": [1, 2, 3], "min_isr": 2, "reason": "created"} | detail
    return small_evidence.event(
        time_s, "c1", "partition_changed", facts, topic=SIDE, partition=partition, offset=offset or round(time_s)
    )


def configured(time_s: float, config: dict[str, str]) -> dict[str, Any]:
    facts = {"name": SIDE, "id": "x", "config": config}
    return small_evidence.event(time_s, "c1", "topic_configured", facts, topic="", offset=round(time_s))


def broker(time_s: float, kind: str = "broker_fenced") -> dict[str, Any]:
    return small_evidence.event(time_s, "c1", kind, {}, broker=1, broker_epoch=1, offset=round(time_s))


def kinds(
    dry_runs: list[dict[str, Any]], requests: list[dict[str, Any]], *events: dict[str, Any], mixed: bool = False
) -> list[str]:
    recovery = {"requests": requests, "dry_runs": dry_runs}
    settings = CheckSettings(side_topics=(SIDE,), mixed_settings=mixed)
    return [each.kind for each in administration_findings(small_evidence.trace(*events), recovery, settings)]


GROWN = decided(14.5, 1)
"""The change of a request that began after 14 s."""


@pytest.mark.parametrize(
    ("dry", "real", "events"),
    [("", REFUSED, ()), (REFUSED, "", (GROWN,)), ("INVALID_REPLICATION_FACTOR", REFUSED, ())],
)
def test_a_dry_run_has_the_answer_of_the_request_after_it(
    dry: str, real: str, events: tuple[dict[str, Any], ...]
) -> None:
    created, creation = decided(2), asked("create", 1.5, wanted=3)
    request = asked("grow", 14, real)
    assert kinds([asked("grow", 10, dry)], [creation, request], created, *events) == ["dry-run-otherwise"]
    assert kinds([asked("grow", 10, real)], [creation, request], created, *events) == []


@pytest.mark.parametrize(
    "between",
    [
        broker(12),
        broker(12, "broker_unfenced"),
        decided(12, 1, reason="created"),
        decided(12, reason="reassignment"),
        small_evidence.event(12, "c1", "partition_deleted", {}, topic=SIDE, offset=12),
        configured(12, {}),
    ],
)
def test_what_changes_in_between_may_be_why_the_answers_differ(between: dict[str, Any]) -> None:
    others = [
        asked("grow", 11.5, in_doubt=True),
        asked("delete", 11.5, in_doubt=True),
        asked("reassign", 11.5, in_doubt=True, partition=0),
    ]
    requests = [asked("grow", 14, REFUSED), *others]
    dry_runs = [asked("grow", 10)]
    assert "dry-run-otherwise" not in kinds(dry_runs, requests, between)
    early = between | {"time_ns": 9 * S}
    assert "dry-run-otherwise" in kinds(dry_runs, requests, early)


def test_what_changes_while_the_request_lasts_may_be_another_change() -> None:
    """Both have taken effect by the answer, and the trace does not say which was first."""
    dry_runs, requests = [asked("grow", 10, REFUSED)], [asked("grow", 14), asked("grow", 13.8, wanted=3)]
    alone, both = (GROWN,), (decided(14.2, 2, offset=13), GROWN)
    assert "dry-run-otherwise" in kinds(dry_runs, requests, *alone)
    assert "dry-run-otherwise" not in kinds(dry_runs, requests, *both)


def test_the_one_change_while_the_request_lasts_may_be_that_of_another_one() -> None:
    """A configuration that is as it was brings about none; and no topic grows by the change that creates it."""
    unset = ["segment.ms", "", "delete"]
    refused, done = (
        asked("configure", 10, "UNKNOWN_TOPIC_OR_PARTITION", wanted=unset),
        asked("configure", 14, wanted=unset),
    )
    creation = asked("create", 13.5, wanted=3)
    assert kinds([refused], [done, creation], decided(14.2), configured(14.2, {})) == []
    grown = kinds([asked("grow", 10, REFUSED)], [asked("grow", 14), creation], decided(14.2))
    assert "dry-run-otherwise" not in grown
    added = kinds([asked("create", 10, REFUSED, wanted=3)], [asked("create", 14, wanted=3), asked("grow", 13.8)], GROWN)
    assert "dry-run-otherwise" not in added


def test_no_answer_about_a_configuration_rests_on_a_broker_or_on_the_isr() -> None:
    dry_runs = [asked("configure", 10, "INVALID_CONFIG", wanted=SET)]
    requests = [asked("configure", 14, wanted=SET)]
    first, then = configured(2, {SET[0]: "2"}), configured(14.5, {SET[0]: "3"})
    assert kinds(dry_runs, requests, first, broker(12), decided(12, reason="elected"), then) == ["dry-run-otherwise"]


@pytest.mark.parametrize("reason", ["elected", "alter_partition"])
@pytest.mark.parametrize(
    "wanted", [["unclean.recovery.strategy", "balanced", "set"], ["max.message.bytes", "1000000", "replace"]]
)
def test_but_one_about_a_strategy_of_unclean_recovery_may_rest_on_the_isr(wanted: list[str], reason: str) -> None:
    dry_runs, requests = (
        [asked("configure", 10, "INVALID_CONFIG", wanted=wanted)],
        [asked("configure", 14, wanted=wanted)],
    )
    first, then = configured(2, {wanted[0]: "x"}), configured(14.5, {wanted[0]: wanted[1]})
    assert "dry-run-otherwise" in kinds(dry_runs, requests, first, then)
    assert "dry-run-otherwise" not in kinds(dry_runs, requests, first, decided(12, reason=reason), then)


@pytest.mark.parametrize(
    ("dry", "real"),
    [
        ({"outcome": "UNANSWERED", "in_doubt": True, "ended_ns": None}, {}),
        ({"outcome": "REQUEST_TIMED_OUT"}, {}),
        ({}, {"outcome": REFUSED, "in_doubt": True}),
        ({}, {"outcome": "UNANSWERED", "in_doubt": True}),
        ({}, {"outcome": REFUSED, "wanted": 3}),
        ({}, {"outcome": REFUSED, "began_ns": 8 * S}),
    ],
)
def test_an_answer_that_nobody_has_decided_and_another_request_say_nothing(
    dry: dict[str, Any], real: dict[str, Any]
) -> None:
    events = () if real else (GROWN,)
    found = kinds([asked("grow", 10) | dry], [asked("grow", 14) | real], *events)
    assert "dry-run-otherwise" not in found


def test_a_topic_is_to_be_created_as_the_dry_run_has_told() -> None:
    told, otherwise = [1, 3, {"min.insync.replicas": "2"}], [1, 3, {}]
    request, created = asked("create", 14, wanted=3, created_topic=told), decided(14.5)
    assert kinds([asked("create", 10, wanted=3, created_topic=told)], [request], created) == []
    wrong = [asked("create", 10, wanted=3, created_topic=otherwise)]
    assert kinds(wrong, [request], created) == ["dry-run-otherwise"]
    assert kinds(wrong, [request], created, mixed=True) == []


def test_a_dry_run_that_takes_effect_is_named_where_no_request_accounts_for_the_change() -> None:
    dry_run, refused = asked("create", 10, wanted=3), asked("create", 12, "TOPIC_ALREADY_EXISTS", wanted=3)
    assert kinds([dry_run], [refused], decided(10.5)) == ["dry-run-otherwise"]
    assert kinds([dry_run], [asked("create", 9, "UNANSWERED", wanted=3, in_doubt=True), refused], decided(10.5)) == []
    assert kinds([dry_run], [refused], decided(11.5)) == ["change-unasked"]
    assert kinds([dry_run | {"in_doubt": True}], [refused], decided(11.5)) == ["dry-run-otherwise"]


def test_a_dry_run_that_changes_a_configuration_is_named_where_no_request_accounts_for_it() -> None:
    dry_run, other = asked("configure", 10, wanted=SET), asked("configure", 10, wanted=["segment.ms", "1", "set"])
    request = asked("configure", 14, wanted=SET)
    events = configured(2, {SET[0]: "2"}), configured(10.5, {SET[0]: "3"})
    assert kinds([dry_run], [request], *events) == ["dry-run-otherwise"]
    assert kinds([other], [request], *events) == ["configured-otherwise"]
