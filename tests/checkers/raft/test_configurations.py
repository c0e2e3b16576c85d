"""Configurations of topics, held against what an administrator asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from checkers.evidence import CheckSettings
from checkers.raft.administration import administration_findings
from tests.checkers import small_evidence
from tests.checkers.raft.test_administration import asked

MINIMUM, LIST, SIZE = "min.insync.replicas", "leader.replication.throttled.replicas", "max.message.bytes"
BORN = {MINIMUM: "2"}
FULL = {MINIMUM: "3", LIST: "0:1,1:2"}


def configured(time_s: int, config: Mapping[str, str], topic_id: str = "x", **detail: Any) -> dict[str, Any]:
    facts = {"name": "side", "id": topic_id, "config": dict(config)} | detail
    return small_evidence.event(time_s, "c1", "topic_configured", facts, topic="", partition=-1, offset=time_s)


def wanted(key: str, value: str, operation: str, outcome: str = "", **said: Any) -> dict[str, Any]:
    return asked("configure", 9, 11, outcome, topic="side", wanted=[key, value, operation], **said)


GIVEN = asked("configure", 3, 7, "UNANSWERED", topic="side", wanted=["min.insync.replicas", "3", "set"], in_doubt=True)
LISTED = asked("configure", 3, 7, topic="side", wanted=[LIST, "0:1,1:2", "append"])
BEFORE = [configured(4, BORN), configured(5, BORN | {MINIMUM: "3"}), configured(6, FULL)]


def kinds(request: dict[str, Any], *events: dict[str, Any], mixed: bool = False) -> list[str]:
    trace = small_evidence.trace(*BEFORE, *events)
    requests = {"requests": [GIVEN, LISTED, request]}
    settings = CheckSettings(side_topics=("side",), mixed_settings=mixed)
    return [finding.kind for finding in administration_findings(trace, requests, settings)]


@pytest.mark.parametrize(
    ("key", "value", "operation", "after"),
    [
        (SIZE, "9", "set", FULL | {SIZE: "9"}),
        (LIST, "0:3", "set", FULL | {LIST: "0:3"}),
        (LIST, "0:1,2:3", "append", FULL | {LIST: "0:1,1:2,2:3"}),
        (LIST, "0:1,2:3", "subtract", FULL | {LIST: "1:2"}),
        (LIST, "", "delete", {MINIMUM: "3"}),
        (MINIMUM, "", "delete", {MINIMUM: "2", LIST: "0:1,1:2"}),
        (SIZE, "9", "replace", {MINIMUM: "2", SIZE: "9"}),
    ],
)
def test_a_configuration_becomes_what_was_asked_for(
    key: str, value: str, operation: str, after: dict[str, str]
) -> None:
    request = wanted(key, value, operation)
    assert kinds(request, configured(10, after)) == []
    assert (
        kinds(request, configured(10, after | {"retention.ms": "1"}))
        == ["configured-otherwise", "answered-undone"][: 2 if operation == "replace" else 1]
    )
    assert kinds(request) == ["answered-undone"]
    assert kinds(request | {"outcome": "INVALID_CONFIG"}, configured(10, after)) == ["configured-otherwise"]
    assert kinds(request | {"outcome": "UNANSWERED", "in_doubt": True}, configured(30, after)) == []


def test_what_is_so_already_need_not_be_decided() -> None:
    assert kinds(wanted(LIST, "1:2", "append")) == []
    assert kinds(wanted(SIZE, "", "delete")) == []


def test_a_request_explains_a_change_of_its_own_topic_and_of_its_own_time() -> None:
    after = configured(10, FULL | {SIZE: "9"})
    assert kinds(wanted(SIZE, "9", "set") | {"topic": "other"}, after)[:1] == ["configured-otherwise"]
    late = configured(12, FULL | {SIZE: "9"})
    assert kinds(wanted(SIZE, "9", "set"), late) == ["configured-otherwise", "answered-undone"]
    assert "configured-otherwise" not in kinds(
        wanted(SIZE, "9", "set"), configured(12, FULL | {SIZE: "9"}, taken_over=True)
    )


def test_each_topic_of_a_name_begins_with_a_configuration_of_its_own() -> None:
    assert kinds(wanted(SIZE, "", "delete"), configured(10, BORN, "y")) == []


def test_two_traces_of_one_change_are_one() -> None:
    again = configured(6, FULL, taken_over=True)
    assert kinds(wanted(SIZE, "", "delete"), again) == []


@pytest.mark.parametrize(
    ("request_", "given_back"),
    [
        (wanted(MINIMUM, "", "delete"), {MINIMUM: "4", LIST: "0:1,1:2"}),
        (wanted(SIZE, "9", "replace"), {MINIMUM: "4", SIZE: "9"}),
    ],
)
def test_where_settings_differ_a_default_is_that_of_any_controller(
    request_: dict[str, Any], given_back: dict[str, str]
) -> None:
    after = configured(10, given_back)
    assert kinds(request_, after)[:1] == ["configured-otherwise"]
    assert kinds(request_, after, mixed=True) == []
    assert kinds(request_, configured(10, given_back | {LIST: "1:2"}), mixed=True)[:1] == ["configured-otherwise"]
    without = {key: value for key, value in given_back.items() if key != MINIMUM}
    assert kinds(request_, configured(10, without), mixed=True)[:1] == ["configured-otherwise"]


def test_where_settings_differ_a_default_may_be_what_is_so_already() -> None:
    assert kinds(wanted(MINIMUM, "", "delete")) == ["answered-undone"]
    assert kinds(wanted(MINIMUM, "", "delete"), mixed=True) == []
    assert kinds(wanted(LIST, "", "delete"), mixed=True) == ["answered-undone"]
