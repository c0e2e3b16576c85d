"""A group's coordinator tells members what its log has committed: as members saw it, and as its trace has it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from checkers.clients import coordinator
from checkers.evidence import CheckSettings, RunEvidence
from checkers.protocol.checker import check as check_protocol
from checkers.verdict import Validity, Verdict
from tests.checkers.small_evidence import S, event, fault, faults, stalled, trace
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


def test_the_client_of_a_script_starts_without_a_record() -> None:
    """It is a member of no generation, so no assignment of it has to be committed."""
    resume = operation("assign", 4, 5, 0, generation=-1)
    assert check([START, resume], *GENERATION_1).validity is Validity.VALID


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


# ---- the trace of the coordinator ------------------------------------------------------------------------------------


def leads(time_s: float, start: int, epoch: int = 1) -> dict[str, Any]:
    return event(time_s, "b1", "became_leader", offset=start, log_end=start, leader=1, leader_epoch=epoch)


def loaded(time_s: float, end: int, high_watermark: int) -> dict[str, Any]:
    return event(time_s, "b1", "coordinator_loaded", log_end=end, high_watermark=high_watermark, leader_epoch=1)


def of_group(time_s: float, kind: str, end: int, high_watermark: int, epoch: int = 1, **detail: Any) -> dict[str, Any]:
    """An event of a group's second generation."""
    facts = {"group": "g", "generation": 2, "error": "none"} | detail
    place = {"offset": end - 1, "log_end": end, "high_watermark": high_watermark, "leader": 1, "leader_epoch": epoch}
    return event(time_s, "b1", kind, facts, **place)


def decided(time_s: float, partition_epoch: int, *isr: int, min_isr: int = 2) -> dict[str, Any]:
    decision = {"leader": 1, "leader_epoch": 1, "partition_epoch": partition_epoch, "members": list(isr)}
    facts = {"elr": [], "replicas": [1, 2, 3], "min_isr": min_isr, "reason": "alter_partition"}
    return event(time_s, "c1", "partition_changed", facts, offset=partition_epoch, **decision)


def proposed(time_s: float, partition_epoch: int, *isr: int) -> dict[str, Any]:
    place = {"leader": 1, "leader_epoch": 1, "partition_epoch": partition_epoch, "members": list(isr)}
    return event(time_s, "b1", "isr_proposed", {"reason": "expand", "positions": {}}, offset=0, **place)


def rejected(time_s: float, partition_epoch: int, *, rolled_back: bool) -> dict[str, Any]:
    place = {"leader": 1, "leader_epoch": 1, "partition_epoch": partition_epoch}
    return event(time_s, "b1", "isr_rejected", {"error": "ineligible_replica", "rolled_back": rolled_back}, **place)


def told(time_s: float, kind: str, partition_epoch: int, *confirmed: int) -> dict[str, Any]:
    place = {"leader": 1, "leader_epoch": 1, "partition_epoch": partition_epoch, "high_watermark": 5}
    if kind == "latest_told":
        return event(time_s, "b1", kind, {"read": 7}, members=[1, *confirmed], **place)
    facts = {"group": "g", "offsets": {}, "read": 7, "confirmed": list(confirmed)}
    return event(time_s, "b1", kind, facts, **place)


def counted(read: int, leader_epoch: int = 1) -> list[dict[str, Any]]:
    """b2 is answered, and has fetched upon that, which confirms the reads up to this one."""
    place = {"leader": 1, "leader_epoch": leader_epoch, "partition_epoch": 3}
    answer, fetch = {"replica": 2, "connection": 4}, {"replica": 2, "connection": 4, "read": read}
    return [event(3.7, "b1", "fetch_answered", answer, **place), event(3.8, "b1", "reads_confirmed", fetch, **place)]


def promises_broken(*events: dict[str, Any]) -> list[str]:
    return kinds(check_protocol(RunEvidence(trace=trace(*events))))


def test_a_coordinator_serves_once_what_it_has_loaded_is_committed() -> None:
    assert promises_broken(leads(1, 5), loaded(2, 5, 5)) == []
    assert promises_broken(leads(1, 5), loaded(2, 5, 4)) == ["coordinator-serves-uncommitted"]


def test_a_coordinator_loads_its_log_as_far_as_its_epoch_starts() -> None:
    assert promises_broken(leads(1, 5), loaded(2, 7, 7)) == []
    assert promises_broken(leads(1, 5), loaded(2, 4, 5)) == ["coordinator-incomplete"]


@pytest.mark.parametrize(
    ("loaded_s", "high_watermark", "works", "kept"),
    [(3.5, 0, True, True), (5.0, 0, True, False), (9.0, 0, True, False), (9.0, 0, False, True), (9.0, -1, True, True)],
    ids=["soon", "late", "never", "paused", "not committed"],
)
def test_a_coordinator_that_is_at_work_loads_its_groups_within_seconds(
    loaded_s: float, high_watermark: int, works: bool, kept: bool
) -> None:
    place = {"topic": "__consumer_offsets", "leader": 1, "leader_epoch": 1, "offset": 0, "log_end": 0}
    began = event(1, "b1", "became_leader", {"high_watermark": high_watermark}, **place)
    work = [event(1 + tenths / 10, "b1", "metadata_applied") for tenths in range(1, 70 if works else 2)]
    events = [began, *work, event(loaded_s, "b1", "coordinator_loaded", {}, **place, high_watermark=0)]
    events = sorted((each for each in events if each["time_ns"] <= 8 * S), key=lambda each: each["time_ns"])
    assert promises_broken(*events) == ([] if kept else ["coordinator-not-loaded"])


@pytest.mark.parametrize(
    ("at_ms", "changed_by", "kept"), [(3_000, "", True), (9_000, "", False), (9_000, "timers", True)]
)
def test_the_deadlines_of_groups_go_by_a_clock_that_runs_as_time_does(at_ms: int, changed_by: str, kept: bool) -> None:
    facts = {"state": "Empty", "storing": False, "members": {}, "held": {}, "generation": 0}
    changes = [of_group(at_s, "group_changed", 0, 0, at_ms=ms, **facts) for at_s, ms in ((1.5, 1_500), (3, at_ms))]
    clock = [fault("clock", ["b1"], 0.5, 5, {"offset_ms": 9})] if changed_by else []
    evidence = RunEvidence(trace=trace(leads(1, 0), loaded(1.2, 0, 0), *changes), faults=faults(*clock))
    assert kinds(check_protocol(evidence)) == ([] if kept else ["group-time-otherwise"])


@pytest.mark.parametrize(("node", "kept"), [("b1", True), ("b2", False)])
def test_a_process_may_stall_between_a_reading_of_its_clock_and_the_event_with_it(node: str, kept: bool) -> None:
    facts = {"state": "Empty", "storing": False, "members": {}, "held": {}, "generation": 0}
    changes = [of_group(at_s, "group_changed", 0, 0, at_ms=ms, **facts) for at_s, ms in ((1.5, 1_500), (5, 3_000))]
    events = trace(leads(1, 0), loaded(1.2, 0, 0), *changes, stalled(5.001, node, 2))
    assert kinds(check_protocol(RunEvidence(trace=events))) == ([] if kept else ["group-time-otherwise"])


STORED = of_group(2, "group_storing", 6, 5)
BEGUN = of_group(3, "generation_begun", 7, 6)


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ([STORED, BEGUN], True),
        ([STORED, BEGUN, of_group(4, "group_storing", 8, 7), of_group(5, "generation_begun", 8, 8)], True),
        ([STORED, of_group(3, "generation_begun", 7, 5)], False),
        ([BEGUN], False),
        ([of_group(2, "group_storing", 6, 5, error="not_enough_replicas"), BEGUN], False),
        ([of_group(2, "group_storing", 6, 5, generation=1), BEGUN], False),
        ([of_group(2, "group_storing", 6, 5, group="h"), BEGUN], False),
        ([STORED, leads(2.5, 6, epoch=2), of_group(3, "generation_begun", 7, 6, epoch=2)], False),
    ],
    ids=[
        "committed",
        "assigned, and begun once more",
        "not committed yet",
        "never appended",
        "refused",
        "of the generation before",
        "of another group",
        "of an earlier leadership",
    ],
)
def test_members_get_the_number_of_a_generation_whose_record_is_committed(
    events: list[dict[str, Any]], kept: bool
) -> None:
    assert promises_broken(leads(1, 5), *events) == ([] if kept else ["generation-told-early"])


ASSIGNED = of_group(4, "group_assigned", 7, 6, members={"m": "ab"})
ASSIGNMENT = of_group(4, "group_storing", 8, 6)
REFUSED = of_group(4, "group_storing", -1, 6, error="not_enough_replicas")


def gives(high_watermark: int, member: str = "m", epoch: int = 1, **detail: Any) -> dict[str, Any]:
    """A member gets its partitions."""
    return of_group(9, "assignment_told", 12, high_watermark, epoch, members={member: "ab"}, **detail)


def anew(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The same events in the next leadership."""
    return [row | {"leader_epoch": 2} for row in rows]


NEXT = (leads(5, 6, epoch=2),)
REPLACED = (of_group(6, "group_assigned", 9, 8, members={"m": "ab", "n": "ab"}), of_group(6, "group_storing", 10, 8))


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ([ASSIGNED, ASSIGNMENT, gives(8)], True),
        ([ASSIGNED, ASSIGNMENT, gives(7)], False),
        ([ASSIGNED, REFUSED, gives(8)], False),
        ([ASSIGNED, REFUSED, ASSIGNED, ASSIGNMENT, gives(8)], True),
        ([ASSIGNED, gives(7)], True),
        ([ASSIGNED, ASSIGNMENT, *REPLACED, gives(8)], True),
        ([ASSIGNED, ASSIGNMENT, *REPLACED, gives(8, "n")], False),
        ([ASSIGNED, ASSIGNMENT, *REPLACED, gives(10, "n")], True),
        ([ASSIGNED, ASSIGNMENT, of_group(7, "group_assigned", 9, 8, generation=3), gives(7, generation=3)], True),
        ([ASSIGNED, ASSIGNMENT, *NEXT, gives(7, epoch=2)], True),
        ([ASSIGNED, ASSIGNMENT, *NEXT, *anew(*REPLACED), gives(8, epoch=2)], True),
        ([ASSIGNED, ASSIGNMENT, *NEXT, *anew(REPLACED[0], REFUSED), gives(8, epoch=2)], True),
    ],
    ids=[
        "committed",
        "not committed yet",
        "refused",
        "refused, and then appended",
        "loaded",
        "while another member returns",
        "of one that returns",
        "of one that has returned",
        "of another generation",
        "of an earlier leadership",
        "loaded, while another member returns",
        "loaded, while another member returns in vain",
    ],
)
def test_a_member_gets_its_partitions_once_a_record_in_which_it_has_them_is_committed(
    events: list[dict[str, Any]], kept: bool
) -> None:
    assert promises_broken(leads(1, 5), *events) == ([] if kept else ["assignment-told-early"])


def test_no_member_gets_its_partitions_before_its_generation_has_any() -> None:
    assert promises_broken(leads(1, 5), gives(8)) == ["assignment-never-made"]
    assert promises_broken(leads(1, 5), ASSIGNED, ASSIGNMENT, gives(8, generation=3)) == ["assignment-never-made"]
    assert promises_broken(leads(1, 5), ASSIGNED, ASSIGNMENT, *NEXT, gives(8, epoch=2)) == []


def took(end: int, generation: int = 2, current: int = 2) -> dict[str, Any]:
    """A commit whose record ends there is answered."""
    return of_group(9, "offsets_committed", end, 12, member="m", generation=generation, current=current, offsets={})


def becomes(end: int, state: str, **detail: Any) -> dict[str, Any]:
    """The group changes when the log ends there."""
    return of_group(4, "group_changed", end, 6, state=state, **detail)


COMPLETING, STABLE = becomes(7, "CompletingRebalance"), becomes(9, "Stable")


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ([took(8)], True),
        ([took(8, generation=-1)], True),
        ([took(8, generation=1)], False),
        ([took(8, generation=1, current=1)], True),
        ([COMPLETING, STABLE, took(7)], True),
        ([COMPLETING, STABLE, took(8)], False),
        ([COMPLETING, STABLE, took(10)], True),
        ([becomes(7, "CompletingRebalance", group="h"), took(8)], True),
        ([COMPLETING, loaded(5, 7, 7), took(8)], True),
    ],
    ids=[
        "current",
        "of no generation",
        "of an earlier generation",
        "and answered when that has ended",
        "appended before the joins were answered",
        "after that",
        "and once assigned",
        "another group waits",
        "loaded since",
    ],
)
def test_a_coordinator_takes_commits_of_its_generation_once_that_is_assigned(
    events: list[dict[str, Any]], kept: bool
) -> None:
    assert promises_broken(leads(1, 5), *events) == ([] if kept else ["commit-not-fenced"])


def test_a_commit_that_is_not_fenced_is_told_with_the_place_of_its_record() -> None:
    (finding,) = check_protocol(RunEvidence(trace=trace(leads(1, 5), took(8, generation=1)))).findings
    assert f"of the group g, whose record is at {finding.offsets[0]} of t-0, and" in finding.lines[0]


@pytest.mark.parametrize(
    ("kind", "finding"), [("latest_told", "latest-unconfirmed"), ("offsets_told", "offsets-unconfirmed")]
)
def test_a_read_is_confirmed_by_the_isr_that_its_leader_knows_and_has_proposed(kind: str, finding: str) -> None:
    known = [decided(0, 3, 1, 2), leads(1, 0), decided(2, 4, 1, 2, 3)]
    assert promises_broken(*known, told(3, kind, 3, 2)) == [], "it has not heard of the larger ISR"
    assert promises_broken(*known, told(3, kind, 3)) == [finding]
    assert promises_broken(*known, told(3, kind, 4, 2)) == [finding]
    assert promises_broken(*known, told(3, kind, 4, 2, 3)) == []
    assert promises_broken(*known, told(3, kind, 5)) == [], "no decision of that partition epoch is known"
    assert promises_broken(told(0, kind, 3), *known) == [finding], "the decision is traced late"
    proposal = proposed(2.5, 3, 1, 2, 3)
    assert promises_broken(*known, proposal, told(3, kind, 3, 2)) == [finding]
    assert promises_broken(*known, proposal, told(3, kind, 3, 2, 3)) == []
    assert promises_broken(*known, proposal, rejected(2.6, 3, rolled_back=True), told(3, kind, 3, 2)) == []
    assert promises_broken(*known, proposal, rejected(2.6, 3, rolled_back=False), told(3, kind, 3, 2)) == [finding]
    settled = [proposal, rejected(2.6, 3, rolled_back=False), proposed(2.7, 3, 1, 2)]
    undone = rejected(2.8, 3, rolled_back=True)
    assert promises_broken(*known, *settled, undone, told(3, kind, 3, 2)) == [finding], "the first may still come"
    assert promises_broken(*known, proposal, leads(2.6, 0), told(3, kind, 3, 2)) == [], "a new life proposed nothing"


@pytest.mark.parametrize(
    ("kind", "finding"), [("latest_told", "latest-unconfirmed"), ("offsets_told", "offsets-unconfirmed")]
)
def test_nobody_confirms_a_read_who_had_left_for_a_later_leader_before_it_began(kind: str, finding: str) -> None:
    known = [decided(0, 3, 1, 2), leads(1, 0)]
    left = event(2, "b2", "became_follower", leader=3, leader_epoch=2, partition_epoch=4)
    asked = event(3, "b1", "latest_asked", {"read": 7}, leader=1, leader_epoch=1, partition_epoch=3)
    answers = *counted(7), told(4, kind, 3, 2)
    assert promises_broken(*known, left, asked, *answers) == [finding]
    assert promises_broken(*known, asked, left | {"time_ns": 3_500_000_000}, *answers) == []
    assert promises_broken(*known, left | {"leader_epoch": 1}, asked, *answers) == []
    assert promises_broken(*known, left | {"node": "b3"}, asked, *answers) == []


@pytest.mark.parametrize(
    ("kind", "finding"), [("latest_told", "latest-unconfirmed"), ("offsets_told", "offsets-unconfirmed")]
)
def test_nobody_confirms_a_read_by_what_it_fetched_before_that_leadership_or_that_read(kind: str, finding: str) -> None:
    asked = event(3, "b1", "latest_asked", {"read": 7}, leader=1, leader_epoch=1, partition_epoch=3)
    began, answer = [decided(0, 3, 1, 2), leads(1, 0)], told(4, kind, 3, 2)
    assert promises_broken(*began, asked, *counted(7), answer) == []
    assert promises_broken(*began, asked, answer) == [finding]
    assert promises_broken(*began, asked, *counted(6), answer) == [finding]
    assert promises_broken(*began, asked, *counted(7, leader_epoch=0), answer) == [finding]
    asked_before, again = asked | {"time_ns": 1_500_000_000}, leads(3.9, 0)
    assert promises_broken(*began, asked_before, *counted(7), again, asked | {"time_ns": 3_950_000_000}, answer) == [
        finding
    ]


def test_a_leader_alone_in_its_isr_needs_nobody_to_confirm_a_read() -> None:
    answers = told(2, "latest_told", 3), told(2, "offsets_told", 3)
    assert promises_broken(decided(0, 3, 1, min_isr=1), leads(1, 0), *answers) == []


@pytest.mark.parametrize("kind", ["latest_told", "offsets_told"])
def test_nobody_confirms_a_read_for_a_leader_whose_isr_is_below_the_minimum(kind: str) -> None:
    answer = told(2, kind, 3, 2)
    assert promises_broken(decided(0, 3, 1, 2, min_isr=2), leads(1, 0), answer) == []
    assert promises_broken(decided(0, 3, 1, 2, min_isr=3), leads(1, 0), answer) == ["read-below-minimum"]
    unheard = decided(1.5, 4, 1, 2, min_isr=3)
    assert "read-below-minimum" not in promises_broken(decided(0, 3, 1, 2, min_isr=2), leads(1, 0), unheard, answer)


def test_answers_of_versions_that_did_not_trace_who_confirmed_them_are_not_judged() -> None:
    offsets = told(2, "offsets_told", 3) | {"detail": '{"group": "g", "offsets": {}}'}
    latest = told(2, "latest_told", 3) | {"members": []}
    assert promises_broken(decided(0, 3, 1, 2), leads(1, 0), offsets, latest) == []
