"""What an administrator is told, held against what the controllers decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.raft import checker as raft
from checkers.raft.administration import administration_findings
from tests.checkers import small_evidence
from tests.checkers.small_evidence import S

SIDE = "side"
SETTINGS = CheckSettings(side_topics=(SIDE,))


def decided(time_s: float, reason: str, topic: str = "t", **detail: Any) -> dict[str, Any]:
    facts = {"replicas": [1, 2, 3], "min_isr": 2, "reason": reason} | detail
    return small_evidence.event(
        time_s, "c1", "partition_changed", facts, topic=topic, leader=1, members=[1], offset=round(time_s)
    )


def deleted(time_s: float, topic: str = SIDE, **detail: Any) -> dict[str, Any]:
    return small_evidence.event(time_s, "c1", "partition_deleted", detail, topic=topic, offset=round(time_s))


def configured(time_s: float, config: dict[str, str]) -> dict[str, Any]:
    return small_evidence.event(time_s, "c1", "topic_configured", {"name": "t", "id": "x", "config": config}, topic="")


def asked(
    change: str,
    began_s: float,
    ended_s: float | None,
    outcome: str = "",
    *,
    in_doubt: bool = False,
    topic: str = "t",
    partition: int = -1,
    wanted: Any = None,
) -> dict[str, Any]:
    return {
        "change": change,
        "topic": topic,
        "partition": partition,
        "wanted": wanted,
        "began_ns": round(began_s * S),
        "ended_ns": None if ended_s is None else round(ended_s * S),
        "outcome": outcome,
        "in_doubt": in_doubt,
    }


def kinds(requests: list[dict[str, Any]], *events: dict[str, Any]) -> list[str]:
    trace = small_evidence.trace(*events)
    return [finding.kind for finding in administration_findings(trace, {"requests": requests}, SETTINGS)]


CREATED = decided(10, "created", SIDE)
EXISTS = asked("create", 9, 11, "TOPIC_ALREADY_EXISTS", topic=SIDE)
DROPPED = asked("create", 9, 11, "TOPIC_ALREADY_EXISTS", topic=SIDE, in_doubt=True)


@pytest.mark.parametrize(
    ("requests", "right"),
    [
        ([asked("create", 9, 11, topic=SIDE)], True),
        ([EXISTS], False),
        ([DROPPED], True),
        ([asked("create", 3, None, "UNANSWERED", topic=SIDE, in_doubt=True)], True),
        ([asked("create", 12, None, "UNANSWERED", topic=SIDE, in_doubt=True)], False),
        ([asked("create", 3, 4, "UNANSWERED", topic=SIDE)], False),
        ([EXISTS, asked("create", 9.5, 12, topic=SIDE)], True),
    ],
)
def test_a_topic_is_created_upon_a_request_that_was_not_refused(requests: list[dict[str, Any]], right: bool) -> None:
    assert kinds(requests, CREATED) == ([] if right else ["change-unasked"])


def test_a_request_that_is_answered_as_done_is_carried_out_once() -> None:
    once, again = deleted(10), deleted(12, f"{SIDE}#2")
    request = asked("delete", 9, 13, topic=SIDE)
    assert kinds([request], once) == []
    assert kinds([request], once, again) == ["change-unasked"]
    assert kinds([request | {"in_doubt": True}], once, again) == []


def test_of_several_requests_each_has_its_change() -> None:
    requests = [asked("delete", 9, 20, topic=SIDE), asked("delete", 9.5, 11, topic=SIDE)]
    assert kinds(requests, deleted(10), deleted(12, f"{SIDE}#2")) == []


def test_topics_that_faults_do_not_create_are_created_by_others() -> None:
    assert kinds([EXISTS], decided(10, "created")) == []


def test_what_a_successor_finds_committed_may_have_been_answered_before() -> None:
    late = decided(30, "created", SIDE, taken_over=True)
    assert kinds([asked("create", 9, 11, topic=SIDE)], late) == []
    assert kinds([EXISTS], late) == ["change-unasked"]


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (asked("configure", 8, 9, "INVALID_CONFIG", wanted=["min.insync.replicas", "2"]), "configured"),
        (asked("reassign", 8, 9, "INVALID_REPLICA_ASSIGNMENT", partition=0, wanted=[1, 2, 3]), "reassignment"),
        (asked("cancel", 8, 9, "NO_REASSIGNMENT_IN_PROGRESS", partition=0), "reassignment_cancelled"),
        (asked("elect", 8, 9, "ELECTION_NOT_NEEDED", partition=0), "preferred_election"),
        (asked("elect-unclean", 8, 9, "ELECTION_NOT_NEEDED", partition=0), "unclean_election"),
    ],
)
def test_what_was_refused_is_not_done(refused: dict[str, Any], reason: str) -> None:
    made = decided(8, reason)
    assert kinds([refused], made) == ["change-unasked"]
    assert "change-unasked" not in kinds([refused | {"outcome": ""}], made)
    assert kinds([refused], decided(8, "elected")) == []


@pytest.mark.parametrize(
    ("done", "held", "not_held"),
    [
        (asked("create", 9, 11, topic=SIDE), CREATED, decided(5, "created", SIDE)),
        (asked("delete", 9, 11, topic=SIDE), deleted(10), deleted(5)),
        (
            asked("configure", 9, 11, wanted=["min.insync.replicas", "3"]),
            configured(10, {"min.insync.replicas": "3"}),
            configured(10, {"min.insync.replicas": "2"}),
        ),
        (
            asked("reassign", 9, 11, partition=0, wanted=[2, 3]),
            decided(10, "reassignment", replicas=[2, 3, 1], removing=[1]),
            decided(10, "reassignment", replicas=[3, 2, 1], removing=[1]),
        ),
        (
            asked("cancel", 9, 11, partition=0),
            decided(10, "reassignment_cancelled"),
            decided(10, "reassignment_cancelled", adding=[3]),
        ),
        (
            asked("elect", 9, 11, partition=0),
            decided(10, "preferred_election"),
            decided(10, "preferred_election", replicas=[2, 1]),
        ),
        (
            asked("elect-unclean", 9, 11, partition=0),
            decided(10, "unclean_election"),
            decided(10, "unclean_election") | {"leader": -1},
        ),
    ],
)
def test_what_is_answered_as_done_has_been_decided(
    done: dict[str, Any], held: dict[str, Any], not_held: dict[str, Any]
) -> None:
    assert kinds([done], held) == []
    assert "answered-undone" in kinds([done], not_held)


def added(number: int, topic: str = SIDE, replicas: Sequence[int] = (1, 2, 3), **detail: Any) -> dict[str, Any]:
    return decided(10, "created", topic, replicas=list(replicas), **detail) | {"partition": number}


BORN = [asked("create", 3, 6, topic=SIDE)], decided(5, "created", SIDE)
"""The request for a topic, and its first partition."""


@pytest.mark.parametrize(
    ("request_", "partitions", "found"),
    [
        (asked("grow", 9, 11, topic=SIDE, wanted=3), (1, 2), []),
        (asked("grow", 9, 11, topic=SIDE, wanted=2), (1, 2), ["change-unasked", "answered-undone"]),
        (asked("grow", 9, 11, topic=SIDE, wanted=4), (1, 2), ["change-unasked", "answered-undone"]),
        (asked("grow", 9, 11, topic=SIDE, wanted=3), (), ["answered-undone"]),
        (asked("grow", 9, 11, "INVALID_PARTITIONS", topic=SIDE, wanted=3), (1, 2), ["change-unasked"]),
        (asked("grow", 9, None, "UNANSWERED", topic=SIDE, wanted=3, in_doubt=True), (1, 2), []),
        (asked("grow", 9, None, "UNANSWERED", topic=SIDE, wanted=2, in_doubt=True), (1, 2), ["change-unasked"]),
        (asked("grow", 9, 11, topic=SIDE, wanted=3), (2,), ["partitions-added-otherwise"]),
    ],
)
def test_as_many_partitions_are_added_as_were_asked_for(
    request_: dict[str, Any], partitions: Sequence[int], found: list[str]
) -> None:
    requests, first = BORN
    assert kinds([*requests, request_], first, *map(added, partitions)) == found


def test_a_wrong_number_of_partitions_is_named() -> None:
    requests, first = BORN
    grown = [*requests, asked("grow", 9, 11, topic=SIDE, wanted=2)]
    trace = small_evidence.trace(first, added(1), added(2))
    _, undone = administration_findings(trace, {"requests": grown}, SETTINGS)
    assert "grow side to 2" in undone.lines[0]
    assert "grow side to 3" in undone.lines[1]


def test_an_added_partition_has_as_many_replicas_as_the_first() -> None:
    requests, first = BORN
    grown = [*requests, asked("grow", 9, 11, topic=SIDE, wanted=2)]
    assert kinds(grown, first, added(1, replicas=(3, 1, 2))) == []
    assert kinds(grown, first, added(1, replicas=(3, 1))) == ["partitions-added-otherwise"]


def test_a_run_without_recorded_requests_says_nothing_of_them() -> None:
    assert list(administration_findings(small_evidence.trace(CREATED), {}, SETTINGS)) == []


def test_the_verdict_of_the_controllers_has_it() -> None:
    began = small_evidence.event(1, "c1", "quorum_recovered", {}, topic="", leader_epoch=1, offset=0, log_end=0)
    evidence = RunEvidence(
        trace=small_evidence.trace(began, CREATED),
        settings=SETTINGS,
        recovery={"requests": [EXISTS]},
    )
    assert [finding.kind for finding in raft.check(evidence).findings] == ["change-unasked"]


@pytest.mark.parametrize(
    ("events", "right"),
    [
        ([decided(5, "elected", replicas=[2, 1]), decided(6, "elected")], True),
        ([decided(5, "elected"), decided(6, "elected", replicas=[2, 1])], False),
        ([decided(5, "elected", replicas=[2, 1]), decided(12, "elected")], False),
    ],
)
def test_what_is_so_already_need_not_be_done(events: list[dict[str, Any]], right: bool) -> None:
    assert kinds([asked("elect", 9, 11, partition=0)], *events) == ([] if right else ["answered-undone"])


# --- unclean elections ------------------------------------------------------------------------------------------------


def led_by(time_s: float, leader: int) -> dict[str, Any]:
    return decided(time_s, "fenced") | {"leader": leader, "members": [leader] if leader > 0 else []}


def broker(time_s: float, kind: str, number: int = 3) -> dict[str, Any]:
    return small_evidence.event(time_s, "c1", f"broker_{kind}", broker=number, offset=round(time_s), topic="")


FENCED = [broker(1, "registered", number) for number in (1, 2, 3)]
ABLE = [*FENCED, broker(2, "unfenced")]
NOT_NEEDED, NOBODY = "ELECTION_NOT_NEEDED", "ELIGIBLE_LEADERS_NOT_AVAILABLE"


def test_an_unclean_election_that_is_done_was_decided_upon_the_request() -> None:
    """That the partition has a leader already is no election."""
    request = asked("elect-unclean", 9, 11, partition=0)
    assert kinds([request], led_by(5, -1), decided(10, "unclean_election")) == []
    assert kinds([request], led_by(5, 1)) == ["answered-undone"]
    assert kinds([request], led_by(5, -1)) == ["answered-undone"]


@pytest.mark.parametrize(
    ("outcome", "events", "right"),
    [
        (NOT_NEEDED, [*ABLE, led_by(5, 1)], True),
        (NOT_NEEDED, [*ABLE, led_by(5, -1)], False),
        (NOT_NEEDED, [*FENCED, led_by(5, -1)], False),
        (NOT_NEEDED, [*ABLE, led_by(5, -1), led_by(10, 1)], True),
        (NOT_NEEDED, [*ABLE, led_by(5, 1), led_by(10, -1)], True),
        (NOT_NEEDED, [*ABLE, led_by(5, -1), led_by(12, 1)], False),
        (NOBODY, [*FENCED, led_by(5, -1)], True),
        (NOBODY, [*ABLE, led_by(5, -1)], False),
        (NOBODY, [*ABLE, broker(3, "shutting_down"), led_by(5, -1)], True),
        (NOBODY, [*FENCED, led_by(5, -1), broker(10, "unfenced")], True),
        (NOBODY, [*FENCED, led_by(5, -1), broker(8, "unfenced")], False),
        (NOBODY, [*ABLE, led_by(5, -1), broker(10, "fenced")], True),
        (NOBODY, [broker(2, "unfenced"), led_by(5, -1)], True),
        (NOBODY, [*ABLE], True),
        ("UNKNOWN_TOPIC_OR_PARTITION", [*ABLE, led_by(5, -1)], True),
    ],
    ids=[
        *("led", "led by nobody", "led by nobody, and nobody able", "led since", "led before", "led too late"),
        *("nobody able", "one able", "shutting down", "able since", "able before", "able until then"),
        *("brokers not known", "partition not known", "another error"),
    ],
)
def test_an_unclean_election_is_refused_where_there_is_a_leader_or_nobody_who_may_lead(
    outcome: str, events: list[dict[str, Any]], right: bool
) -> None:
    assert kinds([asked("elect-unclean", 9, 11, outcome, partition=0)], *events) == (
        [] if right else ["election-refused"]
    )
