"""What nodes load of the metadata, when decisions have an effect, and when brokers are fenced, unfenced, registered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkers.raft.cluster_metadata import cluster_metadata_findings
from checkers.tables import FaultTimes, stalls
from tests.checkers import small_evidence
from tests.checkers.small_evidence import S

Event = dict[str, Any]


def broker(offset: int, kind: str, number: int, epoch: int, time_s: float | None = None, **detail: Any) -> Event:
    at = offset if time_s is None else time_s
    return small_evidence.event(at, "c1", f"broker_{kind}", detail, broker=number, broker_epoch=epoch, offset=offset)


def decided(offset: int, topic: str = "t", *, leader: int = 1, elr: tuple[int, ...] = ()) -> Event:
    detail = {"elr": list(elr), "replicas": [1, 2], "min_isr": 1, "reason": "created"}
    epochs = {"leader_epoch": 0, "partition_epoch": 0}
    return small_evidence.event(
        offset, "c1", "partition_changed", detail, topic=topic, leader=leader, members=[1], offset=offset, **epochs
    )


def loaded(end: int, kind: str = "metadata_loaded", node: str = "b3", time_s: float = 9, **facts: Any) -> Event:
    partition = {"leader": 1, "leader_epoch": 0, "partition_epoch": 0, "isr": [1], "elr": [], "last_known_elr": []}
    whole = {
        "partitions": {"t-0": partition | {"replicas": [1, 2], "adding": [], "removing": [], "min_isr": 1}},
        "brokers": {"1": {"epoch": 1, "fenced": False, "shutting_down": False}},
        "next_producer_id": 10,
    }
    return small_evidence.event(time_s, node, kind, whole | facts, log_end=end)


def allocated(offset: int, first: int, count: int) -> Event:
    detail = {"first": first, "count": count}
    return small_evidence.event(
        offset, "c1", "producer_ids_allocated", detail, topic="", partition=-1, broker=1, offset=offset
    )


def committed(time_s: float, end: int) -> Event:
    return small_evidence.event(time_s, "c1", "metadata_committed", offset=0, high_watermark=end)


def takes_charge(time_s: float) -> Event:
    return loaded(0, node="c1", time_s=time_s, partitions={}, brokers={})


def kinds(*events: Event) -> list[str]:
    return [finding.kind for finding in cluster_metadata_findings(small_evidence.trace(*events))]


BORN = [broker(2, "registered", 1, 1), broker(3, "unfenced", 1, 1), decided(5), allocated(6, 0, 10)]


@pytest.mark.parametrize(
    ("end", "facts", "right"),
    [
        (6, {}, True),
        (5, {"next_producer_id": 0}, True),
        (6, {"next_producer_id": 0}, False),
        (6, {"partitions": {}}, False),
        (3, {"partitions": {}}, True),
        (3, {}, False),
        (6, {"brokers": {}}, False),
        (6, {"brokers": {"1": {"epoch": 1, "fenced": True, "shutting_down": False}}}, False),
        (6, {"brokers": {"1": {"epoch": 0, "fenced": False, "shutting_down": False}}}, False),
    ],
)
def test_loaded_metadata_is_what_the_changes_add_up_to(end: int, facts: dict[str, Any], right: bool) -> None:
    assert kinds(*BORN, loaded(end, **facts)) == ([] if right else ["metadata-loaded-otherwise"])


def test_loaded_metadata_has_the_whole_state_of_a_partition() -> None:
    assert kinds(*BORN[:2], decided(5, elr=(2,)), loaded(6)) == ["metadata-loaded-otherwise"]


def test_changes_that_are_traced_after_it_count_too() -> None:
    assert kinds(*BORN[:2], loaded(6), *BORN[2:]) == []


def test_a_topic_that_is_made_anew_is_loaded_under_its_own_name() -> None:
    deleted = small_evidence.event(6, "c1", "partition_deleted", offset=6)
    assert kinds(*BORN[:3], deleted, loaded(6, partitions={})) == []
    assert kinds(*BORN[:3], deleted, loaded(6)) == ["metadata-loaded-otherwise"]
    assert kinds(*BORN[:3], deleted, decided(7, "t#2"), loaded(7)) == []


def test_a_snapshot_that_is_written_has_the_whole_metadata() -> None:
    assert kinds(*BORN, loaded(6, "metadata_snapshot", "c1")) == []
    assert kinds(*BORN, loaded(6, "metadata_snapshot", "c1", partitions={})) == ["metadata-loaded-otherwise"]


def test_a_decision_has_no_effect_before_it_is_committed() -> None:
    assert kinds(committed(1, 6), *BORN) == []
    assert kinds(committed(1, 5), *BORN) == ["decision-uncommitted"]


def test_a_broker_is_unfenced_once_it_has_applied_its_registration() -> None:
    def applied(end: int) -> Event:
        return small_evidence.event(2, "b1", "metadata_applied", offset=0, log_end=end)

    assert kinds(applied(2), *BORN) == []
    assert kinds(applied(1), *BORN) == ["unfenced-behind"]


@pytest.mark.parametrize(("offset", "shutting_down", "right"), [(0, False, True), (1, False, False), (1, True, True)])
def test_a_broker_that_has_its_registration_is_not_kept_fenced(offset: int, shutting_down: bool, right: bool) -> None:
    facts = {"metadata_offset": offset, "shutting_down": shutting_down}
    assert kinds(BORN[0], broker(-1, "stays_fenced", 1, 1, 3, **facts)) == ([] if right else ["kept-fenced"])


@pytest.mark.parametrize(("silent_ms", "charged_s", "right"), [(9000, 0, True), (8999, 0, False), (9000, 8, False)])
def test_a_session_lasts_since_the_heartbeat_and_since_the_controller_took_charge(
    silent_ms: int, charged_s: float, right: bool
) -> None:
    charge = takes_charge(charged_s)
    timed = {"reason": "session_timeout", "silent_ms": silent_ms, "session_timeout_ms": 9000}
    fenced = broker(4, "fenced", 1, 1, 10, **timed)
    assert kinds(charge, *BORN[:2], fenced) == ([] if right else ["fenced-in-session"])
    trace, by_its_clock = small_evidence.trace(charge, *BORN[:2], fenced), FaultTimes({"c1": [(9 * S, 9 * S)]})
    assert bool(list(cluster_metadata_findings(trace, wrong_timers=by_its_clock))) is (silent_ms < 9000)


@pytest.mark.parametrize(
    ("known", "previous", "clean", "right"),
    [
        (1, 1, True, True),
        (1, -1, False, True),
        (1, 0, True, False),
        (1, 0, False, False),
        (1, 1, False, False),
        (0, 0, True, False),
    ],
)
def test_a_registration_is_the_successor_of_the_last_one(known: int, previous: int, clean: bool, right: bool) -> None:
    again = broker(8, "registered", 1, 7, known=known, previous=previous, clean=clean)
    assert kinds(*BORN[:2], again) == ([] if right else ["registration-misjudged"])


def test_the_claim_of_a_clean_shutdown_is_refused_if_it_was_not_the_last_one() -> None:
    """A broker that gives up a right claim leaves every ELR, though it has lost nothing."""

    def refused(previous: int) -> list[str]:
        detail = {"incarnation": "late", "previous": previous}
        return kinds(*BORN[:2], small_evidence.event(9, "c1", "clean_claim_refused", detail, broker=1, broker_epoch=1))

    assert (refused(0), refused(1)) == ([], ["registration-misjudged"])


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a", "b"), (None, "a")])
def test_a_process_is_registered_once(first: str | None, second: str) -> None:
    asked = [
        broker(2, "registered", 1, 1, **({} if first is None else {"incarnation": first})),
        broker(8, "registered", 1, 7, known=1, previous=-1, clean=False, incarnation=second),
    ]
    assert kinds(*asked) == (["registered-twice"] if first == second else [])
    refused = small_evidence.event(9, "c1", "registration_refused", {"incarnation": second}, broker=1, broker_epoch=1)
    over = {"incarnation": "a third life", "session_timeout_ms": 9000, "over": True}
    assert kinds(asked[0], refused | {"detail": json.dumps(over)}) == ["refused-after-session"]
    assert kinds(asked[0], refused | {"detail": json.dumps(over | {"over": False})}) == []
    assert kinds(asked[0], refused) == (["registered-twice"] if first == second else [])
    assert kinds(asked[0], refused | {"broker_epoch": 0}) == [], "a deposed controller knows an earlier life"


def applied(end: int, before: int = 0, **facts: Any) -> Event:
    sums = {"partitions": 1, "partition_epochs": 0, "leader_epochs": 0, "broker_epochs": 1, "active": [1]}
    return small_evidence.event(9, "b3", "metadata_applied", sums | facts, offset=before, log_end=end)


@pytest.mark.parametrize(
    ("end", "facts", "right"),
    [
        (6, {}, True),
        (2, {"partitions": 0, "active": []}, True),
        (2, {}, False),
        (6, {"partitions": 0}, False),
        (6, {"partition_epochs": 1}, False),
        (6, {"active": []}, False),
        (6, {"broker_epochs": 0}, False),
        (6, {"before": 7}, False),
    ],
)
def test_applied_metadata_is_what_the_changes_add_up_to(end: int, facts: dict[str, Any], right: bool) -> None:
    assert kinds(*BORN, applied(end, **facts)) == ([] if right else ["metadata-applied-otherwise"])


def test_sums_mean_nothing_where_the_trace_leaves_topics_out() -> None:
    trace = small_evidence.trace(*BORN, applied(6, partitions=3))
    assert not list(cluster_metadata_findings(trace, whole=False))


@pytest.mark.parametrize(("changes", "kind"), [(7, ""), (8, "fenced-late")])
def test_a_session_that_is_over_does_not_wait_for_many_changes(changes: int, kind: str) -> None:
    timed = {"reason": "session_timeout", "silent_ms": 20_000, "session_timeout_ms": 9000}
    meanwhile = [committed(31 + number / 10, 50 + number) for number in range(changes)]
    earlier = [committed(29 + number / 20, 30 + number) for number in range(9)]
    events = *BORN[:2], *earlier, *meanwhile, broker(4, "fenced", 1, 1, 40, **timed)
    assert kinds(*events) == ([kind] if kind else [])
    paused = FaultTimes({"c1": [(22 * S, 31 * S)]})
    assert not list(cluster_metadata_findings(small_evidence.trace(*events), stalls=paused)), "it catches up"


def test_a_broker_that_comes_back_before_it_was_fenced_may_have_been_fenced_late() -> None:
    """Its registration fences it first. A fenced broker has no session: none is over, however long it is silent."""
    timed = {"silent_ms": 20_000, "session_timeout_ms": 9000, "known": 1, "previous": -1, "clean": False}
    meanwhile = [committed(31 + number / 10, 50 + number) for number in range(8)]
    again = broker(9, "registered", 1, 9, 40, **timed)

    def fenced(reason: str, time_s: float = 40) -> Event:
        return broker(8, "fenced", 1, 1, time_s, reason=reason)

    assert kinds(*BORN[:2], *meanwhile, fenced("registered"), again) == ["fenced-late"]
    assert kinds(*BORN[:2], *meanwhile, fenced("controlled_shutdown"), again) == []
    second = broker(8, "registered", 1, 8, 20, known=1, previous=-1, clean=False)
    again = broker(9, "registered", 1, 9, 40, **timed | {"known": 8})
    assert kinds(*BORN[:2], fenced("registered", 20), second, *meanwhile, again) == []


def test_a_controller_that_knows_of_no_session_has_heard_of_nobody_since_it_took_charge() -> None:
    """It gives each unfenced broker a session then."""
    work = [grown(29, 50), committed(29.1, 50)]
    heard = small_evidence.event(40, "c1", "session_outlived", {"session_timeout_ms": 9000}, broker=1, broker_epoch=1)
    assert kinds(*BORN[:2], takes_charge(20), *work, heard) == ["fenced-late"]
    assert kinds(*BORN[:2], *work, takes_charge(30), heard) == []
    assert kinds(*BORN[:2], *work, heard) == [], "nothing says when it took charge"


def test_a_broker_is_not_taken_for_unfenced_where_a_deposed_controller_traces_that_late() -> None:
    """Its successor knows of no session of a fenced broker, and of none to end when that comes back."""
    work = [grown(29, 50), committed(29.1, 50)]
    fenced = broker(8, "fenced", 1, 1, 28, reason="controlled_shutdown")
    deposed = small_evidence.event(30, "c2", "broker_unfenced", {}, broker=1, broker_epoch=1, offset=3)
    unfenced = broker(9, "unfenced", 1, 1, 30)
    again = broker(20, "registered", 1, 20, 45, known=1, previous=-1, clean=False, session_timeout_ms=9000)
    assert kinds(*BORN[:2], takes_charge(20), fenced, *work, deposed, again) == []
    assert kinds(*BORN[:2], takes_charge(20), fenced, *work, unfenced, again) == ["fenced-late"]


def grown(time_s: float, end: int) -> Event:
    return small_evidence.event(time_s, "c1", "metadata_appended", offset=0, log_end=end)


@pytest.mark.parametrize(
    ("work", "stalled", "right"),
    [
        ([grown(29, 50), committed(29.1, 50)], False, False),
        ([grown(29, 50), committed(29.1, 50)], True, True),
        ([grown(29, 50)], False, True),
        ([grown(29, 50), committed(29.1, 49)], False, True),
        ([grown(29, 50), committed(29.1, 50), grown(31.9, 51), committed(38.1, 51)], False, True),
        ([grown(29, 50), committed(29.1, 50), grown(32.1, 51), committed(38.1, 51)], False, False),
    ],
)
def test_a_session_that_is_over_does_not_wait_for_nothing(work: list[Event], stalled: bool, right: bool) -> None:
    timed = {"reason": "session_timeout", "silent_ms": 20_000, "session_timeout_ms": 9000}
    trace = small_evidence.trace(*BORN[:2], *work, broker(4, "fenced", 1, 1, 40, **timed))
    times = FaultTimes({"c1": [(38 * S, 39 * S)] if stalled else [(20 * S, 29 * S)]})
    found = cluster_metadata_findings(trace, stalls=times)
    assert [finding.kind for finding in found] == ([] if right else ["fenced-late"])


@pytest.mark.parametrize(
    ("stalled_s", "for_s", "node", "right"),
    [(39.9, 9, "c1", True), (40.001, 9, "c1", True), (39.9, 9, "c2", False), (35.9, 4, "c1", False)],
)
def test_a_controller_that_did_not_run_waits_for_nothing(
    stalled_s: float, for_s: float, node: str, right: bool
) -> None:
    """It traces that when it runs again, perhaps after the first change that it makes then."""
    timed = {"reason": "session_timeout", "silent_ms": 20_000, "session_timeout_ms": 9000}
    late = [grown(29, 50), committed(29.1, 50), broker(4, "fenced", 1, 1, 40, **timed)]
    trace = small_evidence.trace(*BORN[:2], *late, small_evidence.stalled(stalled_s, node, for_s))
    found = cluster_metadata_findings(trace, stalls=stalls(small_evidence.faults(), trace))
    assert [finding.kind for finding in found] == ([] if right else ["fenced-late"])


def configured(offset: int, **detail: Any) -> Event:
    detail = {"name": "t", **detail}
    return small_evidence.event(offset, "c1", "topic_configured", detail, topic="", partition=-1, offset=offset)


@pytest.mark.parametrize(
    ("topics", "right"),
    [
        ({"t": {"id": "x", "config": {"retention.ms": "7"}}}, True),
        ({"t": {"id": "y", "config": {"retention.ms": "7"}}}, False),
        ({"t": {"id": "x", "config": {}}}, False),
        ({"t": {"id": "x", "config": {"retention.ms": "5"}}}, False),
        ({}, True),
    ],
)
def test_a_snapshot_has_the_last_configuration_and_the_id_of_each_topic(topics: Event, right: bool) -> None:
    born = [*BORN, configured(5, id="x", config={"retention.ms": "5"})]
    changed = [configured(7, id="x", config={"retention.ms": "7"}), configured(9, id="x", config={})]
    assert kinds(*born, *changed, loaded(8, topics=topics)) == ([] if right else ["metadata-loaded-otherwise"])
