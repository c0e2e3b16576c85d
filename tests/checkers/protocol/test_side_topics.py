"""A topic that is deleted and created anew under its name: it begins anew, and a partition ends with its topic, in what
is checked of liveness, too."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.liveness import checker as liveness
from checkers.verdict import Verdict
from tests.checkers import small_evidence
from tests.checkers.protocol.test_protocol_replicas import (
    COPIED,
    MOVED,
    NODES,
    Event,
    appended,
    decided,
    kinds,
    leads,
    log_start,
    registered,
    started,
)
from tests.checkers.small_evidence import event, fault

SETTINGS = CheckSettings(side_topics=("side",), retention_bytes=100)


def deleted(time_s: float) -> Event:
    return event(time_s, "c1", "partition_deleted", offset=200)


def opened(time_s: float, node: str, end: int, high_watermark: int) -> Event:
    return event(time_s, node, "log_recovered", offset=0, log_end=end, high_watermark=high_watermark)


def leads_with(time_s: float, high_watermark: int) -> Event:
    detail = event(0, "b1", "", {"epochs": [[1, 0], [2, 5]], "high_watermark": high_watermark})["detail"]
    return leads(time_s, "b1", 2, 5) | {"detail": detail}


def of(topic: str, events: Sequence[Event]) -> list[Event]:
    return [each | ({"topic": topic} if each["topic"] else {}) for each in events]


def found(events: Sequence[Event], **evidence: object) -> set[str]:
    return set(kinds(events, settings=SETTINGS, **evidence))


COMMITTED = [*COPIED, MOVED]
FIRST = of("side", [*COMMITTED, deleted(4), *(event(4, node, "replica_deleted") for node in NODES)])
"""The first topic had the high watermark 5."""
AGAIN = of("side#2", [each | {"time_ns": each["time_ns"] + 4_000_000_000} for each in COPIED])
"""Nothing of the second one is committed."""


def test_a_checkpoint_may_be_behind_what_was_committed() -> None:
    assert found([*COMMITTED, opened(4, "b2", 5, 5)]) == set()
    assert found([*COMMITTED, opened(4, "b2", 5, 0), leads_with(5, 0)]) == set()


@pytest.mark.parametrize("back", [opened(7, "b2", 5, 5), leads_with(7, 5)], ids=["opened", "leads"])
def test_a_high_watermark_of_the_topic_before_does_not_count(back: Event) -> None:
    assert found([*FIRST, *AGAIN, *of("side#2", [back])]) == {"high-watermark-unfounded"}


def test_a_disk_that_lied_may_bring_an_old_checkpoint_back() -> None:
    lies = fault("fsync-lies", ["b2"], 1, 6, {"lies": 1}) | {"family": "fsync-lies"}
    events = [*FIRST, *AGAIN, *of("side#2", [opened(7, "b2", 5, 5)])]
    assert found(events, faults=small_evidence.faults(lies)) == set()


def test_a_topic_of_the_same_name_has_other_records_and_epochs_that_begin_anew() -> None:
    first = appended(7, "b1", 5, 6, crc=7)
    other = appended(7, "b1", 5, 6, crc=8)
    assert found([*FIRST, *of("side", [first]), *AGAIN, *of("side#2", [other])]) == set()
    assert found([*FIRST, *of("side", [first, other | {"node": "b2"}])]) == {"appended-batches-differ"}


@pytest.mark.parametrize(("end", "kinds_found"), [(deleted(4), set()), (None, {"unclean-not-excluded"})])
def test_a_partition_ends_with_its_topic(end: Event | None, kinds_found: set[str]) -> None:
    """b2 is down when the topic is deleted, and stays in its last ISR."""
    ends = [end] if end is not None else []
    events = [*COMMITTED, *ends, started(5, "b2"), registered(6, 2, False), event(7, "b1", "resigned")]
    assert found(of("side", events)) == kinds_found


def test_a_decision_that_is_traced_after_the_deletion_is_an_earlier_one() -> None:
    late = decided(5, 1, 1, 1, (1, 2, 3), reason="elected")
    events = [*COMMITTED, deleted(4), started(5, "b2"), registered(6, 2, False), late, event(7, "b1", "resigned")]
    assert found(of("side", events)) == set()


def test_a_partition_that_was_deleted_is_no_reason_for_what_is_missing() -> None:
    left = decided(4, 1, -1, 2, (), replicas=(1, 2)) | {"topic": "side"}
    waiting = {"recovered": False, "seconds": 30.0, "limit_seconds": 30, "waiting_for": ["no leader of side-0"]}
    killed = small_evidence.faults(fault("kill", ["b1", "b2"], 2, 3, {"killed": 2}))

    def found(*events: Event) -> Verdict:
        return liveness.check(RunEvidence(recovery=waiting, trace=small_evidence.trace(*events), faults=killed))

    (excused,), (not_recovered,) = found(left).findings, found(left, *of("side", [deleted(5)])).findings
    assert (excused.kind, not_recovered.kind) == ("leaderless-by-design", "not-recovered")
    assert any("its log of side-0" in line for line in excused.lines)
    assert not any("its log of side-0" in line for line in not_recovered.lines)


def test_no_administrator_has_records_of_a_side_topic_deleted() -> None:
    request = fault("delete-records", ["b1"], 1, 2, {"asked_below": 5}) | {"detail": '{"partition": 0}'}
    events = [*COMMITTED, log_start(4, "b1", 4, "delete_records")]
    assert found(events, faults=small_evidence.faults(request)) == set()
    assert found(of("side", events), faults=small_evidence.faults(request)) == {"log-start-unasked"}


@pytest.mark.parametrize(
    ("error", "kinds_found"),
    [
        ("unknown_topic_id", {"isr-change-given-up"}),
        ("unknown_topic_or_partition", {"isr-change-given-up"}),
        ("not_controller", {"isr-change-given-up"}),
        ("stale_broker_epoch", {"isr-change-given-up"}),
        ("fenced_leader_epoch", set()),
    ],
)
def test_a_leader_does_not_give_up_what_a_controller_refuses_that_may_be_older_than_the_topic(
    error: str, kinds_found: set[str]
) -> None:
    state = {"leader": 1, "leader_epoch": 1, "partition_epoch": 0, "members": [1, 2]}
    refused = event(4, "b1", "isr_rejected", {"error": error, "rolled_back": False}, **state)
    assert found([*COMMITTED, refused]) == kinds_found
