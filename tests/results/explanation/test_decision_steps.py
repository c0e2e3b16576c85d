"""Steps that compare a decision, an answer or a refusal with the facts that it has to rest on: a few events with the
mistake, and the same events done right, which show no step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from checkers.tables import trace_rows
from results.explanation.client_steps import read_steps
from results.explanation.group_steps import group_steps
from results.explanation.metadata_steps import metadata_steps
from results.explanation.steps import broken_steps
from tests.checkers import small_evidence
from tests.checkers.small_histories import end_offset, poll
from tests.results.explanation.test_steps import acknowledged, changed, kinds, of_broker
from tests.results.explanation.test_stories import (
    BORN,
    CONTROLLERS,
    Event,
    appended,
    decided,
    event,
    leads,
    proposed,
)


def applied(time_s: float, broker: int, end: int) -> Event:
    return event(time_s, f"b{broker}", "metadata_applied", offset=0, log_end=end)


def registered(time_s: float, broker: int, epoch: int, **detail: Any) -> Event:
    return {**of_broker(time_s, "broker_registered", broker, clean=True, **detail), "broker_epoch": epoch}


def unfenced(time_s: float, broker: int, **detail: Any) -> Event:
    epoch = detail.pop("epoch", broker)
    return {**of_broker(time_s, "broker_unfenced", broker, **detail), "broker_epoch": epoch}


ALIVE = [
    *(registered(0.1 * broker, broker, broker) for broker in (1, 2, 3)),
    *(unfenced(0.5 + 0.1 * broker, broker, metadata_offset=9) for broker in (1, 2, 3)),
]


def watermark(time_s: float, partition_epoch: int) -> Event:
    place = {"leader": 1, "leader_epoch": 0, "partition_epoch": partition_epoch, "members": [1, 2, 3]}
    positions = {"positions": {"2": 5, "3": 5}}
    return event(time_s, "b1", "high_watermark", positions, offset=5, high_watermark=5, **place)


def refused_isr(error: str, partition_epoch: int, known: list[int], epochs: dict[str, int]) -> Event:
    detail = {"error": error, "known": known, "epochs": epochs}
    place = {
        "broker": 1,
        "leader_epoch": 0,
        "partition_epoch": partition_epoch,
        "members": [int(one) for one in epochs],
    }
    return event(4, "c1", "alter_partition_refused", detail, **place)


def refused_fetch(error: str, requested: int, position: int, last_epoch: int) -> Event:
    detail = {"api": "fetch", "requested": requested, "error": error, "replica": 2, "broker_epoch": 2}
    place = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0, "offset": position, "log_end": 5}
    return event(4, "b1", "request_fenced", {**detail, "last_epoch": last_epoch}, **place)


def refused_registration(time_s: float, contact_ms: int) -> Event:
    return of_broker(time_s, "registration_refused", 2, incarnation="new", contact_ms=contact_ms)


def stays_fenced(offset: int, *, shutting_down: bool = False) -> Event:
    event = of_broker(4, "broker_stays_fenced", 2, metadata_offset=offset, shutting_down=shutting_down)
    return {**event, "broker_epoch": 7}


def fenced(silent_ms: int) -> Event:
    detail = {"reason": "session_timeout", "silent_ms": silent_ms, "session_timeout_ms": 3000}
    return of_broker(4, "broker_fenced", 2, **detail)


def shrinks(lag_ms: int) -> Event:
    change = proposed(4, "b1", 0, (1, 2), 0, 5)
    detail = {"reason": "shrink", "positions": {}, "lag_ms": {"3": lag_ms}, "lag_max_ms": 1000}
    return {**change, "detail": json.dumps(detail), "partition_epoch": 0}


def given_up(error: str) -> list[Event]:
    rejected = {"error": error, "rolled_back": True}
    place = {"leader": 1, "leader_epoch": 0, "partition_epoch": 1, "members": [1, 2, 3]}
    return [*BORN, proposed(4, "b1", 0, (1, 2, 3), 0, 5), event(5, "b1", "isr_rejected", rejected, **place)]


def refused_batch(sequence: int) -> Event:
    detail = {"producer_id": 4, "sequence": sequence, "error": "out_of_order_sequence_number", "last": 3}
    return event(5, "b1", "append_refused", detail, leader=1, leader_epoch=0, partition_epoch=0, log_end=6)


def diverges(*times_s: float) -> list[Event]:
    detail = {"replica": 2, "epoch": 0, "fetched": [0, 7]}
    place = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0, "offset": 5}
    longer = appended(3.5, "b2", 2, 0, 5, 7)
    return [*BORN, longer, *(event(time_s, "b1", "diverging", detail, **place) for time_s in times_s)]


WITH_BATCH = event(4, "b1", "appended", {"producer_id": 4, "sequence": 7, "crc": 99}, leader=1, leader_epoch=0,
                   offset=5, log_end=6)  # fmt: skip
AGAIN = {"leader": 1, "leader_epoch": 2}
LATER = [*BORN, appended(4, "b1", 1, 0, 5, 6), leads(5, "b1", 2, 2, 6, (1, 2, 3))]
ELECTED_LATE = changed(5, -1, 1, 1, (1,), min_isr=1, reason="alter_partition")
WATERMARK_OF_FOLLOWER = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0}
STARTED = event(4, "b2", "log_start", {"before": 0, "reason": "leader"}, leader=1, leader_epoch=0, offset=3, log_end=5,
                high_watermark=5)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("append_unacknowledged", {"acks": -1, "error": "x"}),
        ("request_fenced", {"api": "fetch", "requested": 0, "error": "not_leader_or_follower", "replica": -1}),
    ],
)
@pytest.mark.parametrize(("resigns", "steps"), [(True, []), (False, ["decision-not-taken-over"])])
def test_a_replica_that_was_taken_away_answers_what_waited_in_its_last_state(
    kind: str, detail: dict[str, Any], resigns: bool, steps: list[str]
) -> None:
    place = {"leader_epoch": 0, "partition_epoch": 0}
    resigned = [event(5, "b1", "resigned", log_end=5, **place)] if resigns else []
    answered = event(5.2, "b1", kind, detail, offset=4, log_end=5, **place)
    assert kinds([*BORN, changed(4, 1, 0, 7, (1, 2, 3)), applied(5, 1, 7), *resigned, answered]) == steps


def opened(start: int, end: int = 5) -> list[Event]:
    later = event(4.5, "b2", "follower_high_watermark", offset=3, high_watermark=5, **WATERMARK_OF_FOLLOWER)
    recovered = event(5, "b2", "log_recovered", offset=start, log_end=end, high_watermark=5)
    of_leader = {**STARTED, "node": "b1", "detail": json.dumps({"before": 0, "reason": "delete_records"})}
    return [*BORN, of_leader, STARTED, later, recovered]


CASES: dict[str, tuple[Sequence[Event], Sequence[Event]]] = {
    "decision-not-taken-over": (
        [*BORN, changed(4, 1, 0, 7, (1, 2, 3)), applied(5, 1, 7), watermark(6, 0)],
        [*BORN, changed(4, 1, 0, 7, (1, 2, 3)), applied(5, 1, 6), watermark(6, 0), applied(7, 1, 7), watermark(8, 7)],
    ),
    "proposal-kept-after-decision": (
        [*BORN, proposed(4, "b1", 0, (1, 2, 3), 0, 5), decided(5, 1, 0, 2, (1, 2), "fenced"), watermark(6, 2)],
        [*BORN, proposed(4, "b1", 0, (1, 2, 3), 0, 5), watermark(6, 1)],
    ),
    "proposal-dropped-undecided": tuple(
        [
            *BORN,
            decided(4, 1, 0, 1, (1, 2), "fenced"),
            proposed(5, "b1", 0, (1, 2, 3), 1, 5),
            decided(5.5, 1, 0, 2, (1, 2, 3), "alter_partition"),
            event(6, "b1", "isr_committed", leader=1, leader_epoch=0, partition_epoch=epoch, members=members),
        ]
        for epoch, members in ((1, [1, 2]), (2, [1, 2, 3]))
    ),
    "change-never-decided": (
        [
            *BORN,
            applied(4, 1, 1),
            event(5, "b1", "isr_committed", leader=1, leader_epoch=0, partition_epoch=1, members=[1, 2]),
        ],
        [
            *BORN,
            applied(4, 1, 1),
            decided(4, 1, 0, 1, (1, 2), "alter_partition"),
            event(5, "b1", "isr_committed", leader=1, leader_epoch=0, partition_epoch=1, members=[1, 2]),
        ],
    ),
    "isr-members-dropped": (
        [*BORN, changed(4, 1, 0, 1, (1,), elr=[2, 3], reason="fenced")],
        [*BORN, changed(4, 1, 0, 1, (1, 2), reason="fenced")],
    ),
    "elr-lacks-member": (
        [*BORN, changed(4, 1, 0, 1, (1, 2)), changed(5, 1, 0, 2, (1,), elr=[])],
        [*BORN, changed(4, 1, 0, 1, (1, 2)), changed(5, 1, 0, 2, (1,), elr=[2])],
    ),
    "eligible-leader-not-elected": (
        [*ALIVE, *BORN, ELECTED_LATE, applied(6, 2, 1)],
        [*ALIVE, *BORN, ELECTED_LATE, of_broker(5, "broker_shutting_down", 1)],
    ),
    "reassignment-not-completed": (
        [*ALIVE, *BORN, changed(4, 1, 0, 1, (1, 2, 3), adding=[3], reason="alter_partition")],
        [*ALIVE, *BORN, changed(4, 1, 0, 1, (1, 2), adding=[3], reason="fenced")],
    ),
    "reassigned-to-others": tuple(
        [
            *ALIVE,
            *BORN,
            changed(4, 1, 0, 1, (1, 2, 3), replicas=[1, 2, 3, 4], adding=[4], removing=[3]),
            changed(5, 1, 1, 2, (1, 2), replicas=after, reason="reassignment_cancelled"),
        ]
        for after in ([1, 2], [1, 2, 3])
    ),
    "isr-change-refused-wrongly": (
        [*BORN, refused_isr("invalid_update_version", 3, [1, 0, 3], {"1": 1, "2": 2})],
        [*BORN, refused_isr("invalid_update_version", 2, [1, 0, 3], {"1": 1, "2": 2})],
    ),
    "session-of-ended-process-renewed": (
        [*BORN, *(refused_registration(4 + 0.1 * number, 1000 + number) for number in range(3))],
        [*BORN, *(refused_registration(4 + 0.1 * number, 1000) for number in range(3))],
    ),
    "fenced-within-session": ([*BORN, fenced(500)], [*BORN, fenced(3000)]),
    "registered-within-session": (
        [*ALIVE, *BORN, registered(4, 2, 9, silent_ms=10, session_timeout_ms=3000)],
        [*ALIVE, *BORN, registered(4, 2, 9, silent_ms=3000, session_timeout_ms=3000)],
    ),
    "broker-kept-fenced": (
        [*BORN, stays_fenced(7)],
        [*BORN, stays_fenced(6), of_broker(4, "broker_shutting_down", 2), stays_fenced(7, shutting_down=True)],
    ),
    "unfenced-before-registration-read": (
        [*BORN, unfenced(4, 2, epoch=7, metadata_offset=6)],
        [*BORN, applied(3.5, 2, 8), unfenced(4, 2, epoch=7, metadata_offset=7)],
    ),
    "isr-shrink-of-caught-up-member": ([*BORN, shrinks(900)], [*BORN, shrinks(1001)]),
    "isr-change-given-up-uncertain": (given_up("unknown_server_error"), given_up("ineligible_replica")),
    "fetch-refused-wrongly": (
        [*BORN, refused_fetch("offset_out_of_range", 0, 5, 0)],
        [*BORN, refused_fetch("offset_out_of_range", 0, 6, 0), refused_fetch("unknown_leader_epoch", 1, 5, 0)],
    ),
    "fetch-answered-from-elsewhere": (
        [
            *BORN,
            appended(4, "b1", 1, 0, 5, 7),
            event(5, "b2", "records_refused", offset=3, log_end=5, **AGAIN | {"leader_epoch": 0}),
        ],
        [*BORN, event(5, "b2", "records_refused", offset=3, log_end=5, **AGAIN | {"leader_epoch": 0})],
    ),
    "batch-refused-wrongly": ([*BORN, WITH_BATCH, refused_batch(8)], [*BORN, WITH_BATCH, refused_batch(9)]),
    "acknowledged-in-later-epoch": (
        [*LATER, {**acknowledged(5, 5), **AGAIN}],
        [*LATER, appended(5.5, "b1", 1, 2, 6, 7), {**acknowledged(6, 5), **AGAIN}],
    ),
    "led-from-wrong-start": (
        [*BORN, decided(4, 2, 1, 1, (1, 2, 3), "elected"), {**leads(5, "b2", 1, 1, 5, (1, 2, 3)), "offset": 3}],
        [*BORN, decided(4, 2, 1, 1, (1, 2, 3), "elected"), leads(5, "b2", 1, 1, 5, (1, 2, 3))],
    ),
    "divergence-repeated": (diverges(4, 5, 6), diverges(4, 5)),
    "follower-high-watermark-above-leader": (
        [*BORN, event(4, "b2", "follower_high_watermark", offset=5, high_watermark=6, **WATERMARK_OF_FOLLOWER)],
        [*BORN, event(4, "b2", "follower_high_watermark", offset=3, high_watermark=5, **WATERMARK_OF_FOLLOWER)],
    ),
    "log-start-fell": (opened(0), opened(3)),
}


def test_the_batches_of_a_producer_that_has_expired_count_no_more() -> None:
    for producer, told in ((4, []), (5, ["batch-refused-wrongly"])):
        expired = event(4.5, "b1", "producers_expired", {"producers": {str(producer): 0}, "now_ms": 0}, log_end=6)
        assert kinds([*BORN, WITH_BATCH, expired, refused_batch(8)]) == told


def test_an_emptied_log_brings_no_deleted_records_back() -> None:
    assert kinds(opened(0, end=0)) == ["log-came-back-shorter"]


def test_another_reassignment_may_be_complete_at_once() -> None:
    moving = changed(4, 1, 0, 1, (1, 2, 3), replicas=[1, 2, 3, 4], adding=[4], removing=[3])
    assert not kinds([*ALIVE, *BORN, moving, changed(5, 1, 1, 2, (1, 2), replicas=[1, 2], reason="reassignment")])


@pytest.mark.parametrize("kind", CASES)
def test_a_decision_that_contradicts_its_facts_is_told_and_no_other(kind: str) -> None:
    with_it, without = CASES[kind]
    assert kind in kinds(with_it)
    assert kinds(without) == []


def test_a_stale_partition_epoch_is_told_with_what_the_decision_changed() -> None:
    events = [*BORN, changed(4, 1, 0, 7, (1, 2, 3), elr=[], min_isr=3), applied(5, 1, 7), watermark(6, 0)]
    (step,) = broken_steps(trace_rows(small_evidence.trace(*events)))
    assert "in leader epoch 0, partition epoch 0, and had applied the metadata with partition epoch 7" in step.text
    assert "→ 3): it did not take that decision over" in step.text


@pytest.mark.parametrize(("registered", "known"), [(9, "in 9"), (-1, "in none"), (2, "")])
def test_an_isr_of_an_earlier_life_that_is_refused_for_what_it_proposes_is_told(registered: int, known: str) -> None:
    refused = refused_isr("invalid_update_version", 2, [1, 0, 3], {"1": 1, "2": 2}) | {"broker_epoch": 2}
    refused["detail"] = json.dumps(json.loads(refused["detail"]) | {"registered": registered})
    steps = broken_steps(trace_rows(small_evidence.trace(*BORN, refused)))
    assert [step.text.endswith(f"sent in broker epoch 2, and the controller had it {known}") for step in steps] == (
        [True] if known else []
    )


def test_a_diverging_fetch_with_another_epoch_than_that_of_the_last_record_is_told_once() -> None:
    events = [row if row["kind"] != "diverging" else {**row, "detail": row["detail"].replace("[0, 7]", "[3, 7]")}
              for row in diverges(4, 5, 6)]  # fmt: skip
    wrong, again = broken_steps(trace_rows(small_evidence.trace(*events)))
    assert str(wrong.kind) == "fetch-gave-wrong-epoch"
    assert "with 3 as the epoch of the record before, which is of epoch 0 in its log" in wrong.text
    assert "gives epoch 3 again as that of its last record, which is of epoch 0" in again.text


@pytest.mark.parametrize(("start", "expected"), [(5, ["producer-state-contradicts-log"]), (6, [])])
def test_producers_of_batches_below_the_log_start_may_be_lost_with_them(start: int, expected: list[str]) -> None:
    detail = {"clean": False, "epochs": [[0, start - 1]], "producers": {}}
    recovered = event(5, "b1", "log_recovered", detail, offset=start, log_end=6, high_watermark=5)
    assert kinds([*BORN, WITH_BATCH, recovered]) == expected


@pytest.mark.parametrize(("answer", "cause"), [(4, "4 is the high watermark of an earlier moment"), (5, "")])
def test_a_latest_offset_below_what_was_committed_before_is_told_with_its_leader(answer: int, cause: str) -> None:
    told = event(5, "b1", "latest_told", leader=1, leader_epoch=0, high_watermark=5, members=[2, 3])
    history = small_evidence.history([end_offset(4, 6, answer)])
    steps = list(read_steps(list(trace_rows(small_evidence.trace(*BORN, told))), history, "t", 0))
    assert [cause in step.text for step in steps] == ([True] if cause else [])


def test_a_poll_above_every_high_watermark_is_told_with_the_leader_that_had_the_record() -> None:
    history = small_evidence.history([poll(5, 5, 6, 17)])
    (step,) = read_steps(list(trace_rows(small_evidence.trace(*BORN, appended(4, "b1", 1, 0, 5, 6)))), history, "t", 0)
    assert step.node == "b1"
    assert "b1, which led in epoch 0, had its high watermark at 5 and its log end at 6" in step.text


METADATA: dict[str, tuple[Sequence[Event], Sequence[Event]]] = {
    "metadata-applied-before-commit": (
        [*CONTROLLERS[:6], applied(2.5, 1, 4)],
        [*CONTROLLERS[:6], event(2.4, "c1", "metadata_committed", {"positions": {"102": 4, "103": 4}}, leader_epoch=1,
                                 offset=0, high_watermark=4), applied(2.5, 1, 4)],
    ),
    "voted-twice-in-epoch": (
        [event(1, "c1", "quorum_voted", leader_epoch=1, broker=102), event(2, "c1", "quorum_voted", leader_epoch=1,
                                                                            broker=103)],
        [event(1, "c1", "quorum_voted", leader_epoch=1, broker=102), event(2, "c1", "quorum_voted", leader_epoch=2,
                                                                            broker=103)],
    ),
    "two-controllers-in-one-epoch": (
        [CONTROLLERS[0], event(2, "c2", "quorum_leader", leader=102, leader_epoch=1)],
        [CONTROLLERS[0], event(2, "c2", "quorum_leader", leader=102, leader_epoch=2)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", METADATA)
def test_a_decision_of_the_quorum_that_contradicts_its_facts_is_told_and_no_other(kind: str) -> None:
    with_it, without = (
        [str(step.kind) for step in metadata_steps(small_evidence.trace(*events))] for events in METADATA[kind]
    )
    assert kind in with_it
    assert without == []


@pytest.mark.parametrize(
    ("kind", "place"),
    [("metadata_snapshot", "log_end"), ("metadata_trimmed", "offset"), ("metadata_restored", "offset")],
)
def test_a_snapshot_that_stands_for_more_than_is_committed_is_told_and_no_other(kind: str, place: str) -> None:
    committed = event(2.4, "c1", "metadata_committed", {"positions": {"102": 4, "103": 4}}, leader_epoch=1, offset=0,
                      high_watermark=4)  # fmt: skip
    for end, told in ((4, []), (5, ["metadata-trimmed-before-commit"])):
        steps = metadata_steps(
            small_evidence.trace(*CONTROLLERS[:6], committed, event(2.5, "c2", kind, **{place: end}))
        )
        assert [str(step.kind) for step in steps] == told


def group(time_s: float, state: str, *, storing: bool, **members: str) -> Event:
    detail = {"group": "g", "state": state, "generation": 3, "storing": storing, "members": members}
    return event(time_s, "b1", "group_changed", detail, leader_epoch=1)


def group_stored(time_s: float, end: int, watermark: int) -> Event:
    detail = {"group": "g", "generation": 3, "error": "none"}
    return event(time_s, "b1", "group_stored", detail, leader_epoch=1, offset=7, log_end=end, high_watermark=watermark)


COMPLETING, STABLE = group(1, "CompletingRebalance", storing=True, m="sync"), group(3, "Stable", storing=False, m="")


def gives(high_watermark: int, *members: str) -> list[Event]:
    """Members have a partition by records up to 6, and one that takes the place of another by one up to 8; each is told
    it at last."""
    rows = []
    for time_s, end, names in ((1, 6, ("m", "n")), (2, 8, ("m", "o"))):
        facts = {"group": "g", "generation": 3, "error": "none", "leader": "m", "members": dict.fromkeys(names, "")}
        place = {"topic": "__consumer_offsets", "leader": 1, "leader_epoch": 1, "log_end": end, "high_watermark": 6}
        rows += [event(time_s, "b1", kind, facts, **place) for kind in ("group_assigned", "group_storing")]
        place |= {"high_watermark": high_watermark}
    told = {**facts, "members": dict.fromkeys(members, "")}
    return [*rows, event(3, "b1", "assignment_told", told, **place)]


GROUPS: dict[str, list[tuple[Sequence[Event], Sequence[Event]]]] = {
    "group-waits-for-no-write": [
        ([group(1, "PreparingRebalance", storing=True, m="", n="join")],
         [group(1, "PreparingRebalance", storing=True, m="join", n="join")]),
    ],
    "group-record-not-committed": [
        ([COMPLETING, STABLE], [COMPLETING, group_stored(2, 8, 8), STABLE]),
        ([group_stored(2, 8, 7)], [group_stored(2, 8, 8)]),
        (gives(7, "o"), gives(8, "o")),
        (gives(5, "m"), gives(7, "m", "n")),
    ],
}  # fmt: skip


def test_a_group_that_waits_for_a_write_that_failed_is_told_with_its_error() -> None:
    failed = {**group_stored(0.5, 8, 7), "detail": json.dumps({"group": "g", "generation": 3, "error": "timed_out"})}
    waits = group(1, "PreparingRebalance", storing=True, m="", n="join")
    (step,) = group_steps(small_evidence.trace(failed, waits), "t", 0)
    assert "(the record of generation 3 failed with TIMED_OUT at 0.500000 s)" in step.text


def test_a_group_that_writes_a_generation_waits_for_no_static_member_unless_nobody_has_joined() -> None:
    record = {"group": "g", "generation": 2, "error": "none", "record": {"n": ["i", 1, 1, ""], "m": [None, 1, 1, ""]}}
    known = event(0.5, "b1", "group_storing", record, topic="__consumer_offsets", leader=1, leader_epoch=1, log_end=6)
    for waits, told in (
        ({"m": "join", "n": ""}, []),
        ({"m": "", "n": "join"}, ["group-waits-for-no-write"]),
        ({"n": ""}, ["group-waits-for-no-write"]),
    ):
        trace = small_evidence.trace(known, group(1, "PreparingRebalance", storing=True, **waits))
        assert [str(step.kind) for step in group_steps(trace, "t", 0)] == told


def test_a_decision_that_two_controllers_trace_is_one() -> None:
    by_its_successor = changed(4, 1, 1, 2, (1, 2))
    late = {**by_its_successor, "time_ns": 4_100_000_000, "node": "c2"}
    another = {**late, "members": [1]}
    assert kinds([*BORN, by_its_successor, late]) == []
    assert "decided-with-old-epoch" in kinds([*BORN, by_its_successor, another])


@pytest.mark.parametrize("kind", GROUPS)
def test_a_group_that_acts_before_its_record_is_written_is_told_and_no_other(kind: str) -> None:
    for cases in GROUPS[kind]:
        with_it, without = (
            [str(step.kind) for step in group_steps(small_evidence.trace(*events), "t", 0)] for events in cases
        )
        assert with_it == [kind]
        assert without == []


def test_a_leader_whose_replica_is_removed_keeps_no_proposal() -> None:
    removed = event(5, "b1", "resigned", leader=-1, leader_epoch=0, partition_epoch=2)
    assert kinds([*BORN, proposed(4, "b1", 0, (1, 2, 3), 0, 5), removed]) == []
    stays = event(5, "b1", "converged", leader=1, leader_epoch=0, partition_epoch=2)
    assert kinds([*BORN, proposed(4, "b1", 0, (1, 2, 3), 0, 5), stays]) == ["proposal-kept-after-decision"]
