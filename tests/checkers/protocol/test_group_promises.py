"""A coordinator's groups, against a reference of what it must have of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from checkers.evidence import RunEvidence
from checkers.protocol.checker import check
from tests.checkers.small_evidence import event, stalled, trace

M, N = "m", "n"
Row = dict[str, Any]


def leads(time_s: float, start: int, epoch: int = 1) -> Row:
    return event(time_s, "b1", "became_leader", offset=start, log_end=start, leader=1, leader_epoch=epoch)


def loaded(time_s: float, end: int, offsets: dict[str, dict[str, int]] | None = None, epoch: int = 1) -> Row:
    place = {"offset": 0, "log_end": end, "high_watermark": end, "leader": 1, "leader_epoch": epoch}
    return event(time_s, "b1", "coordinator_loaded", offsets or {}, **place)


def of_group(time_s: float, kind: str, end: int = 0, epoch: int = 1, high_watermark: int = 0, **detail: Any) -> Row:
    """An event of a group; the coordinator's clock shows the time of the run."""
    facts = {"group": "g", "at_ms": round(time_s * 1000)} | detail
    place = {"offset": end, "log_end": end, "high_watermark": high_watermark, "leader": 1, "leader_epoch": epoch}
    return event(time_s, "b1", kind, facts, **place)


def becomes(time_s: float, state: str, generation: int = 1, *, storing: bool = False, **members: str) -> Row:
    """Members with the answers that they wait for."""
    detail = {"state": state, "generation": generation, "storing": storing, "members": members, "held": {}}
    return of_group(time_s, "group_changed", **detail)


def tried(time_s: float, generation: int) -> Row:
    """The append of a record, which is refused."""
    return of_group(time_s, "group_storing", generation=generation, error="not_enough_replicas")


def joins(
    time_s: float,
    member: str,
    *,
    known: bool = True,
    instance: str | None = None,
    error: str = "waits",
    session_ms: int = 3_000,
) -> Row:
    facts = {"api": "join", "member": member if known else "", "as": member, "instance": instance, "error": error}
    return of_group(time_s, "group_request", **facts, session_ms=session_ms, rebalance_ms=2_000)


def asks(time_s: float, api: str, error: str, member: str = M, said: int = 1, **facts: Any) -> Row:
    known = {"api": api, "member": member, "instance": None, "said": said, "error": error, "assigned": {}}
    return of_group(time_s, "group_request", **known | facts)


def stored(end: int, record: dict[str, list[Any]], generation: int = 1, leader: str | None = M, epoch: int = 1) -> Row:
    """The record of the group that ends there, and its batch in the log."""
    facts = {"generation": generation, "leader": leader, "protocol": "range", "record": record, "error": "none"}
    return of_group(0.5, "group_storing", end, epoch, **facts) | {"offset": end - 1}


def appended(end: int, epoch: int = 1) -> Row:
    return event(0.5, "b1", "appended", offset=end - 1, log_end=end, leader=1, leader_epoch=epoch)


def changes(end: int, *of_offsets: list[Any], epoch: int = 1) -> Row:
    return of_group(0.6, "offsets_storing", end, epoch, changes=list(of_offsets)) | {"offset": end - 1}


def broken(events: Iterable[Row]) -> list[str]:
    return [finding.kind for finding in check(RunEvidence(trace=trace(*events))).findings]


def told_of(events: Iterable[Row]) -> tuple[str, ...]:
    """The lines of the one finding."""
    (finding,) = check(RunEvidence(trace=trace(*events))).findings
    return finding.lines


SERVES = (leads(0, 0), loaded(0.1, 0))
COMPLETING = (
    *SERVES,
    joins(1, M, known=False),
    joins(1, N, known=False),
    becomes(1, "PreparingRebalance", 0, storing=True, m="join", n="join"),
    tried(1, 1),
    becomes(1.1, "CompletingRebalance", m="", n=""),
)
STABLE = (
    *COMPLETING,
    asks(1.2, "sync", "waits", assigned={M: "ab", N: "cd"}),
    asks(1.2, "sync", "waits", N),
    becomes(1.2, "CompletingRebalance", storing=True, m="sync", n="sync"),
    becomes(1.3, "Stable", m="", n=""),
)


GIVEN = (*STABLE, joins(2, "o", known=False, error="member_id_required"))
PREPARING = (*STABLE, joins(2, M), becomes(2, "PreparingRebalance", m="join", n=""))


@pytest.mark.parametrize(
    ("before", "request_", "kept"),
    [
        (STABLE, asks(2, "heartbeat", "none"), True),
        (STABLE, asks(2, "heartbeat", "none", said=0), False),
        (STABLE, asks(2, "heartbeat", "illegal_generation", said=0), True),
        (STABLE, asks(2, "heartbeat", "none", "gone"), False),
        (STABLE, asks(2, "heartbeat", "unknown_member_id"), False),
        (STABLE, asks(2, "heartbeat", "unknown_member_id", instance="i"), True),
        (STABLE, asks(2, "sync", "none"), True),
        (STABLE, asks(2, "commit", "none"), True),
        (STABLE, asks(2, "commit", "none", "", -1), False),
        (STABLE, asks(2, "leave", "unknown_member_id"), False),
        (STABLE, joins(2, M, error="unknown_member_id"), False),
        (STABLE, joins(2, "o", error="waits"), False),
        (STABLE, joins(2, "o", known=False, error="member_id_required"), True),
        (GIVEN, joins(3, "o"), True),
        (GIVEN, joins(3, "o", instance="i"), False),
        (GIVEN, joins(3, "o", instance="i", error="unknown_server_error"), True),
        (GIVEN, joins(3, "o", instance="i", error="unknown_member_id"), True),
        (PREPARING, asks(2.1, "heartbeat", "rebalance_in_progress", N), True),
        (PREPARING, asks(2.1, "heartbeat", "none", N), False),
        (PREPARING, asks(2.1, "sync", "none", N), False),
        (PREPARING, asks(2.1, "commit", "none", N), True),
        (SERVES, asks(2, "commit", "none", "", -1), True),
        (SERVES, asks(2, "commit", "none"), False),
        (COMPLETING, asks(1.2, "commit", "none"), False),
        (COMPLETING, asks(1.2, "commit", "rebalance_in_progress"), True),
    ],
)
def test_a_request_gets_the_answer_that_the_state_of_its_group_has_for_it(
    before: tuple[Row, ...], request_: Row, kept: bool
) -> None:
    assert broken([*before, request_]) == ([] if kept else ["request-misjudged"])


@pytest.mark.parametrize(("member", "error", "kept"), [(M, "waits", True), (M, "none", False), (N, "none", True)])
def test_the_leader_of_a_stable_group_that_joins_again_begins_a_rebalance(member: str, error: str, kept: bool) -> None:
    told = {M: [1, M, [M, N]], N: [1, M, []]}
    begun = of_group(1.15, "generation_begun", 1, high_watermark=1, generation=1, members=[M, N], told=told)
    record = stored(1, {M: [None, 3_000, 2_000, ""], N: [None, 3_000, 2_000, ""]}, leader=None)
    before = [*COMPLETING, record, begun, *STABLE[len(COMPLETING) :]]
    assert broken([*before, joins(2, member, error=error)]) == ([] if kept else ["request-misjudged"])


@pytest.mark.parametrize(("error", "kept"), [("waits", True), ("none", False)])
def test_who_takes_the_place_of_the_leader_leads(error: str, kept: bool) -> None:
    static = (*SERVES, joins(1, M, known=False, instance="i"), becomes(1, "PreparingRebalance", 0, m="join"))
    record = stored(1, {M: ["i", 3_000, 2_000, ""]}, leader=None)
    begun = of_group(1.15, "generation_begun", 1, high_watermark=1, generation=1, members=[M], told={M: [1, M, [M]]})
    led = (*static, becomes(1.1, "CompletingRebalance", m=""), record, begun, becomes(1.3, "Stable", m=""))
    replaced = (*led, joins(2, N, known=False, instance="i"), becomes(2, "Stable", n="join"))
    back = (*replaced, becomes(2.1, "Stable", n=""))
    assert broken(back) == []
    assert broken([*back, joins(3, N, instance="i", error=error)]) == ([] if kept else ["request-misjudged"])


def test_a_member_whose_instance_another_one_has_is_fenced() -> None:
    static = (*SERVES, joins(1, M, known=False, instance="i"), becomes(1, "PreparingRebalance", 0, m="join"))
    replaced = (*static, joins(1.5, N, known=False, instance="i"), becomes(1.5, "PreparingRebalance", 0, n="join"))
    assert broken(replaced) == [], "it takes the place of the other one"
    assert broken([*replaced, asks(1.6, "heartbeat", "fenced_instance_id", said=0, instance="i")]) == []
    taken = [*replaced, asks(1.6, "commit", "none", said=0, instance="i")]
    assert broken(taken) == ["request-misjudged"]
    assert "of the group g without an error at" in told_of(taken)[0]


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ([*STABLE, becomes(4.2, "PreparingRebalance", m="")], False),
        ([*STABLE, becomes(4.3, "PreparingRebalance", m="")], True),
        ([*STABLE, asks(2, "heartbeat", "none", N), becomes(4.3, "PreparingRebalance", m="")], False),
        ([*STABLE, asks(2, "leave", "none", N), becomes(2, "PreparingRebalance", m="")], True),
        ([*PREPARING, becomes(3.9, "PreparingRebalance", storing=True, m="join")], False),
        ([*PREPARING, becomes(4, "PreparingRebalance", storing=True, m="join")], True),
        ([*PREPARING, becomes(6, "PreparingRebalance", storing=True, n="")], False),
    ],
    ids=[
        "within its session",
        "after it",
        "renewed",
        "it left",
        "before the end of the rebalance",
        "at the end",
        "it had joined",
    ],
)
def test_a_member_goes_when_it_has_left_or_is_silent_for_too_long(events: list[Row], kept: bool) -> None:
    assert broken(events) == ([] if kept else ["member-removed"])


def beats(first_s: float, *members: str, error: str = "none") -> list[Row]:
    """Heartbeats for two seconds."""
    return [asks(first_s + tenth / 10, "heartbeat", error, member) for tenth in range(20) for member in members]


def test_no_member_stays_longer_than_its_session() -> None:
    assert broken([*STABLE, *beats(2, M, N), *beats(4, M, N)]) == []
    assert broken([*STABLE, *beats(2, M), *beats(4, M)]) == ["member-kept"]
    paused = asks(6, "heartbeat", "none", M)
    assert broken([*STABLE, *beats(2, M), paused]) == [], "it had no time to remove it"
    late = [*STABLE, *beats(2, M), *beats(4, M)]
    assert broken([*late, stalled(5.95, "b1", 1.7)]) == [], "one step took that long"
    assert broken([*late, stalled(5.95, "b2", 1.7)]) == ["member-kept"]


def test_no_rebalance_lasts_longer_than_it_may() -> None:
    waiting = beats(2.1, N, error="rebalance_in_progress")
    assert broken([*PREPARING, *waiting]) == []
    assert broken([*PREPARING, *waiting, *beats(4, N, error="rebalance_in_progress")]) == ["rebalance-overdue"]
    storing = becomes(4, "PreparingRebalance", storing=True, m="join", n="join")
    begins = [joins(4, N), storing, tried(4, 2)]
    assert broken([*PREPARING, *waiting, *begins, *beats(4.1, N, error="rebalance_in_progress")]) == []


def test_a_generation_begins_with_all_members_that_have_joined_and_a_new_number() -> None:
    assert broken([*PREPARING, becomes(3, "CompletingRebalance", 2, m="", n="")]) == ["generation-without-join"]
    joined = [*PREPARING, joins(3, N), becomes(3, "PreparingRebalance", storing=True, m="join", n="join"), tried(3, 2)]
    assert broken([*joined, becomes(3, "CompletingRebalance", 2, m="", n="")]) == []
    assert broken([*joined, becomes(3, "CompletingRebalance", 1, m="", n="")]) == ["generation-repeated"]
    assert broken([*STABLE, becomes(3, "PreparingRebalance", 0, m="", n="")]) == ["generation-repeated"]


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({M: [1, M, [M, N]], N: [1, M, []]}, True),
        ({M: [1, M, [M]], N: [1, M, []]}, False),
        ({M: [1, M, [M, N]], N: [1, N, []]}, False),
        ({M: [1, "gone", []], N: [1, "gone", []]}, False),
        ({M: [1, M, [M, N]], N: [0, M, []]}, False),
        ({M: [1, M, [M, N]]}, False),
    ],
)
def test_the_answers_to_joins_agree(told: dict[str, Any], kept: bool) -> None:
    record = stored(1, {M: [None, 1, 1, ""], N: [None, 1, 1, ""]}, leader=None)
    begun = of_group(1.1, "generation_begun", 1, high_watermark=1, generation=1, members=[M, N], told=told)
    led = (becomes(1, "PreparingRebalance", 0, m="join", n="join"), becomes(1.1, "CompletingRebalance", m="", n=""))
    assert broken([*SERVES, *led, record, begun]) == ([] if kept else ["joins-answered-otherwise"])


@pytest.mark.parametrize(
    ("member", "assignment", "kept"), [(N, "cd", True), (N, "ab", False), (N, "", False), ("o", "cd", False)]
)
def test_a_member_gets_what_the_leader_has_assigned_to_it(member: str, assignment: str, kept: bool) -> None:
    assigned = of_group(1.25, "group_assigned", generation=1, members={M: "ab", N: "cd"})
    told = of_group(1.4, "assignment_told", generation=1, members={member: assignment})
    assert broken([*STABLE, assigned, told]) == ([] if kept else ["assignment-told-otherwise"])


def test_after_an_unclean_election_a_generation_may_be_assigned_once_more() -> None:
    again = [
        leads(3, 0, 2),
        loaded(3.1, 0, epoch=2),
        joins(4, M, known=False) | {"leader_epoch": 2},
        becomes(4, "PreparingRebalance", 0, m="join") | {"leader_epoch": 2},
        becomes(4.1, "CompletingRebalance", m="") | {"leader_epoch": 2},
        asks(4.2, "sync", "waits", assigned={M: "ef"}) | {"leader_epoch": 2},
        becomes(4.2, "CompletingRebalance", storing=True, m="sync") | {"leader_epoch": 2},
        becomes(4.3, "Stable", m="") | {"leader_epoch": 2},
    ]
    told = [of_group(4.4, "assignment_told", 0, 2, generation=1, members={M: given}) for given in ("ef", "12")]
    before, after = (broken([*STABLE, *again, one]) for one in told)
    assert ("assignment-told-otherwise" in before, "assignment-told-otherwise" in after) == (False, True)


def test_a_group_that_was_deleted_begins_with_new_assignments() -> None:
    deleted = [asks(2, "leave", "none"), asks(2, "leave", "none", N), becomes(2, "Empty", 2)]
    deleted += [appended(1), stored(1, {}, 2, leader=None), appended(2), changes(2, ["g", None, None])]
    again = [joins(3, "o", known=False), becomes(3, "CompletingRebalance", o="")]
    again += [asks(3, "sync", "waits", "o", assigned={"o": "ef"}), becomes(3, "Stable", o="")]
    assigned = of_group(3, "group_assigned", generation=1, members={"o": "ef"})
    told = of_group(3, "assignment_told", generation=1, members={"o": "ef"})
    assert broken([*STABLE, *deleted, *again, assigned, told]) == []


RECORD = {M: ["i", 3_000, 2_000, "ab"]}


def loads(state: str, record: dict[str, list[Any]], generation: int = 1, leader: str | None = M) -> Row:
    facts = {"state": state, "generation": generation, "leader": leader, "protocol": "range", "record": record}
    return of_group(2, "group_loaded", **facts)


@pytest.mark.parametrize(
    ("of_log", "group", "kept"),
    [
        ([stored(1, RECORD)], loads("Stable", RECORD), True),
        ([stored(1, RECORD)], loads("Stable", {M: [None, 3_000, 2_000, "ab"]}), False),
        ([stored(1, RECORD)], loads("Stable", RECORD, generation=2), False),
        ([stored(1, RECORD)], None, False),
        ([stored(1, RECORD, leader=None)], loads("PreparingRebalance", RECORD, leader=None), True),
        ([stored(1, RECORD, leader=None)], loads("Stable", RECORD, leader=None), False),
        ([stored(1, RECORD), appended(2), stored(2, {}, 2, None)], loads("Empty", {}, 2, None), True),
        ([stored(1, RECORD), appended(2), stored(2, {}, 2, None)], loads("Stable", RECORD), False),
        ([stored(1, RECORD), appended(2), changes(2, ["g", None, None])], None, True),
        ([stored(1, RECORD), appended(2), changes(2, ["g", None, None])], loads("Stable", RECORD), False),
        ([stored(1, {}, 9, epoch=7), stored(1, RECORD)], loads("Stable", RECORD), True),
    ],
)
def test_a_coordinator_loads_the_last_record_of_a_group(of_log: list[Row], group: Row | None, kept: bool) -> None:
    end = 2 if len(of_log) == 3 else 1
    found = broken([appended(1), *of_log, leads(1, end, 2), *([group] if group else []), loaded(2, end, epoch=2)])
    assert found == ([] if kept else ["group-loaded-otherwise"])


@pytest.mark.parametrize(
    ("offsets", "kept"),
    [({"g": {"t-0": 7}}, True), ({"g": {"t-0": 5}}, False), ({}, False), ({"g": {"t-0": 7, "t-1": 2}}, False)],
)
def test_a_coordinator_has_the_committed_offsets_of_its_log(offsets: dict[str, dict[str, int]], kept: bool) -> None:
    log = [appended(1), changes(1, ["g", "t-0", 5], ["g", "t-1", 2])]
    log += [appended(2), changes(2, ["g", "t-1", None], ["g", "t-0", 7])]
    group = {"state": "Empty", "generation": 0, "leader": None, "protocol": None, "record": {}}
    events = [*log, leads(1, 2, 2), of_group(2, "group_loaded", **group), loaded(2, 2, offsets, epoch=2)]
    assert broken(events) == ([] if kept else ["offsets-held-otherwise"])


def test_an_answer_has_the_committed_offsets_below_the_high_watermark() -> None:
    log = [*SERVES, appended(1), changes(1, ["g", "t-0", 5]), appended(2), changes(2, ["g", "t-0", 7])]

    def told(high_watermark: int, offset: int) -> Row:
        return of_group(3, "offsets_told", 2, high_watermark=high_watermark, offsets={"t-0": offset})

    assert broken([*log, told(1, 5), told(2, 7)]) == []
    assert broken([*log, told(1, 7)]) == ["offsets-held-otherwise"]
    assert broken([*log, told(2, 5)]) == ["offsets-held-otherwise"]
    assert told_of([*log, told(0, 5)]) == (
        "b1 has the committed offsets 5 for t-0 of the group g at 3.000000 s",
        "the records below its high watermark, 0, give none",
    )


@pytest.mark.parametrize(
    ("state", "error", "kept"),
    [
        (STABLE, "non_empty_group", True),
        (STABLE, "none", False),
        (PREPARING, "none", False),
        (SERVES, "none", True),
        (SERVES, "group_id_not_found", True),
        (SERVES, "non_empty_group", False),
    ],
)
def test_only_a_group_without_members_is_deleted(state: tuple[Row, ...], error: str, kept: bool) -> None:
    assert broken([*state, asks(2.1, "delete", error, "")]) == ([] if kept else ["request-misjudged"])


@pytest.mark.parametrize("recorded", [True, False])
def test_a_generation_that_a_group_waits_for_is_recorded(recorded: bool) -> None:
    """Whoever stores it must have begun to: a rebalance that begins while an assignment is stored has not."""
    waits = [*PREPARING, joins(3, N), becomes(3, "PreparingRebalance", storing=True, m="join", n="join")]
    later = asks(3.1, "heartbeat", "rebalance_in_progress")
    assert broken([*waits, *([tried(3, 2)] if recorded else []), later]) == (
        [] if recorded else ["generation-unrecorded"]
    )


@pytest.mark.parametrize("recorded", [True, False])
def test_that_a_group_is_empty_is_recorded(recorded: bool) -> None:
    left = [*STABLE, asks(2, "leave", "none"), asks(2, "leave", "none", N), becomes(2, "Empty", 2)]
    record = [appended(1), stored(1, {}, 2, leader=None)] if recorded else []
    later = asks(3, "heartbeat", "unknown_member_id")
    assert broken([*left, *record, later]) == ([] if recorded else ["empty-group-unrecorded"])


def test_a_full_disk_may_refuse_the_record_that_a_group_is_empty() -> None:
    """The process ends over it soon, and appends nothing more."""
    left = [*STABLE, asks(2, "leave", "none"), asks(2, "leave", "none", N), becomes(2, "Empty", 2)]
    refused = of_group(2, "group_assigned", generation=2, leader=None, members={})
    later = asks(3, "heartbeat", "unknown_member_id")
    assert broken([*left, refused, later]) == []
    assert broken([*left, refused, appended(1), later]) == ["empty-group-unrecorded"]


def test_no_member_id_is_given_twice() -> None:
    assert broken([*SERVES, joins(1, M, known=False, error="member_id_required"), joins(1, M)]) == []
    twice = [joins(1, M, known=False, error="member_id_required") for _ in range(2)]
    assert broken([*SERVES, *twice]) == ["member-id-repeated"]


@pytest.mark.parametrize(
    ("said", "kept"), [(["i", 3_000, 2_000], True), ([None, 3_000, 2_000], False), (["i", 2_000, 3_000], False)]
)
def test_a_record_has_of_a_member_what_that_said(said: list[Any], kept: bool) -> None:
    joined = joins(1, M, known=False, instance="i")
    record = stored(1, {M: [*said, ""]}, leader=None)
    assert broken([*SERVES, joined, record]) == ([] if kept else ["record-of-another-member"])


@pytest.mark.parametrize(("leader", "kept"), [(M, True), (None, True), (N, False)])
def test_the_leader_in_a_record_is_a_member(leader: str | None, kept: bool) -> None:
    record = stored(1, {M: [None, 3_000, 2_000, ""]}, leader=leader)
    found = broken([*SERVES, joins(1, M, known=False), asks(1.2, "sync", "waits", assigned={M: ""}), record])
    assert ("record-of-another-member" in found) is not kept


def test_who_does_not_wait_any_more_has_its_answer() -> None:
    waiting = asks(2.1, "heartbeat", "rebalance_in_progress", N, open=[[M, "join"]])
    assert broken([*PREPARING, waiting]) == []
    assert broken([*PREPARING, asks(2.1, "heartbeat", "rebalance_in_progress", N, open=[[N, "sync"]])]) == [
        "answer-missing"
    ]
    assert broken([*STABLE, asks(2.1, "heartbeat", "none", N, open=[["gone", "join"]])]) == ["answer-missing"]


def test_the_number_of_a_generation_is_in_no_record_before() -> None:
    begins = [appended(1), stored(1, RECORD, leader=None)]
    again = [appended(2), stored(2, RECORD, leader=None)]
    assert broken([*begins, *again]) == ["generation-repeated"]
    assert broken([*begins, appended(2), stored(2, RECORD, 2, leader=None)]) == []
    deleted = [appended(2), changes(2, ["g", None, None])]
    assert broken([*begins, *deleted, appended(3), stored(3, RECORD, leader=None)]) == []
    elsewhere = [stored(1, RECORD, leader=None, epoch=7), appended(1), *again]
    assert broken(elsewhere) == [], "its log has another record there"


def test_no_record_has_assignments_that_nobody_made() -> None:
    unassigned = stored(1, {M: [None, 3_000, 2_000, "ab"], N: [None, 3_000, 2_000, "cd"]})
    assert broken([*STABLE, unassigned]) == []
    assert broken([*COMPLETING, unassigned]) == ["assignment-never-made"]


@pytest.mark.parametrize(
    ("instance", "stored_again", "kept"),
    [("i", False, False), ("i", True, True), ("j", False, True), (None, False, True)],
    ids=["of the instance of another member", "in the next record", "of an instance of its own", "no static member"],
)
def test_a_member_is_told_no_generation_in_whose_record_another_one_has_its_instance(
    instance: str | None, stored_again: bool, kept: bool
) -> None:
    """A later coordinator would fence the member."""
    generation = 2 if stored_again else 1
    events = [
        *SERVES,
        joins(1, M, known=False, instance="i"),
        becomes(1, "PreparingRebalance", 0, storing=True, m="join"),
        stored(1, {M: ["i", 3_000, 2_000, ""]}, leader=None),
        appended(1),
        asks(1.1, "leave", "none", "", instance="i"),
        becomes(1.1, "PreparingRebalance", 0, storing=True),
        joins(1.2, N, known=False, instance=instance),
        becomes(1.2, "PreparingRebalance", 0, storing=True, n="join"),
    ]
    if stored_again:
        events.append(stored(2, {N: [instance, 3_000, 2_000, ""]}, 2, leader=None))
        events.append(appended(2))
    told = {N: [generation, N, [N]]}
    events.append(becomes(1.4, "CompletingRebalance", generation, n=""))
    events.append(of_group(1.4, "generation_begun", 2, high_watermark=2, generation=generation, members=[N], told=told))
    assert broken(events) == ([] if kept else ["generation-told-early"])
