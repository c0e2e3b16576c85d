"""Logs that begin above 0: what may be gone from their start, and what may not for all that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from checkers import logs, loss, reads
from checkers.deletions import deletable_below, deletion_requests, deletions
from checkers.evidence import CheckSettings, RunEvidence
from checkers.fault_model import tolerances
from checkers.groups import checker as groups
from checkers.linearizability import checker as linearizability
from checkers.protocol import checker as protocol
from checkers.verdict import Validity, Verdict
from checkers.violations import Deletion
from tests.checkers import small_evidence
from tests.checkers.groups.group_history import GroupHistory
from tests.checkers.protocol.test_protocol import COMMITTED, Event, appended, changed, leads, moved
from tests.checkers.small_histories import append, end_offset, poll
from workloads.columns import INFO, NEVER
from workloads.history import SCHEMA

S = 1_000_000_000
READ = {"recovered": True, "final_reads": True}


def deletion(below: int | None, *, partition: int = 0, at_s: float = 3.0) -> dict[str, Any]:
    """A delete-records fault: of everything below the high watermark when `below` is None."""
    evidence = {"to_high_watermark": 1.0} if below is None else {"asked_below": float(below), "deleted": 1.0}
    row = small_evidence.fault("delete-records", [], at_s, at_s + 1, evidence)
    return row | {"family": "admin", "detail": f'{{"fault": "delete-records", "partition": {partition}}}'}


def start_moved(
    time_s: float, node: str, before: int, after: int, reason: str = "delete_records", **more: int
) -> Event:
    return small_evidence.event(time_s, node, "log_start", {"before": before, "reason": reason, **more}, offset=after)


def acknowledged(count: int) -> list[Any]:
    return [append(10 + offset, 1, 2, offset) for offset in range(count)]


def without_the_first(count: int, gone: int, **more: Any) -> RunEvidence:
    """`count` acknowledged records, of which the final reads find all but the first `gone`."""
    final = [poll(gone, 8, 9, *(10 + offset for offset in range(gone, count)))] if gone < count else []
    return RunEvidence(history=small_evidence.history(acknowledged(count), final), recovery=READ, **more)


# ---- what is permitted -----------------------------------------------------------------------------------------------


def test_the_requested_deletion_of_a_partition_is_the_greatest_offset_of_its_requests() -> None:
    faults = small_evidence.faults(
        deletion(4, at_s=1.0), deletion(2, at_s=2.0), deletion(9, partition=1), deletion(None, partition=2)
    )
    requests = deletion_requests(RunEvidence(faults=faults))
    assert {partition: request.bound for partition, request in requests.items()} == {0: 4, 1: 9, 2: NEVER}
    assert [requests[0].bound_at(round(time_s * S)) for time_s in (0.5, 1.5, 2.5)] == [0, 4, 4]


def test_a_request_is_alone_if_no_other_has_been_under_way_since_it_began() -> None:
    unanswered = deletion(2, at_s=8.0) | {"evidence": '{"asked_below": 2.0, "unanswered": 1.0}'}
    long = deletion(4, at_s=2.5) | {"ended_ns": 5 * S}
    faults = small_evidence.faults(
        deletion(4, at_s=2.0), long, deletion(3, at_s=6.0), unanswered, deletion(5, at_s=12.0)
    )
    request = deletion_requests(RunEvidence(faults=faults))[0]
    times = {2.2: 2.0, 2.7: None, 4.0: None, 5.5: None, 6.5: 6.0, 8.5: 8.0, 10.0: 8.0, 12.5: None}
    alone = {time_s: request.begun_alone_at(round(time_s * S)) for time_s in times}
    assert alone == {time_s: None if begun_s is None else round(begun_s * S) for time_s, begun_s in times.items()}


def test_no_deletion_is_permitted_without_a_request_whatever_brokers_trace() -> None:
    evidence = without_the_first(4, 2, trace=small_evidence.trace(start_moved(3, "b1", 0, 2)))
    assert deletable_below(evidence) == {}
    assert loss.check(evidence).validity is Validity.INVALID


def test_a_deletion_up_to_the_high_watermark_is_bounded_by_the_trace_or_else_by_the_logs() -> None:
    trace = small_evidence.trace(start_moved(3, "b1", 0, 2), start_moved(4, "b2", 0, 3))
    faults = small_evidence.faults(deletion(None))
    assert deletable_below(without_the_first(4, 3, faults=faults, trace=trace)) == {("t", 0): 3}
    _, ends = small_evidence.logs(b1=[(1, 10)])
    ends = pa.Table.from_pylist([row | {"log_start": 1} for row in ends.to_pylist()], ends.schema)
    assert deletable_below(without_the_first(4, 1, faults=faults, replica_ends=ends)) == {("t", 0): 1}


@pytest.mark.parametrize("settings", [{"retention_ms": 5}, {"retention_bytes": 0}])
def test_retention_permits_deletion_up_to_the_traced_log_start(settings: dict[str, int]) -> None:
    trace = small_evidence.trace(start_moved(3, "b1", 0, 2, next(iter(settings))))
    evidence = without_the_first(4, 2, trace=trace, settings=CheckSettings(**settings))
    assert deletable_below(evidence) == {("t", 0): 2}
    assert loss.check(evidence).validity is Validity.VALID


@pytest.mark.parametrize(("asked_s", "asked", "below"), [(1.0, 3, 3), (1.0, 5, 3), (1.0, 2, 2), (4.0, 3, 0)])
def test_where_brokers_trace_only_what_one_decided_counts_as_far_as_it_was_asked_for(
    asked_s: float, asked: int, below: int
) -> None:
    faults = small_evidence.faults(deletion(asked, at_s=asked_s))
    evidence = without_the_first(6, 3, faults=faults, trace=small_evidence.trace(start_moved(3, "b1", 0, 3)))
    permitted = {("t", 0): (Deletion(3 * S, below, below),)} if below else {}
    assert deletions(evidence) == permitted
    assert loss.check(evidence).validity is (Validity.VALID if below == 3 else Validity.INVALID)


def test_a_deletion_that_no_broker_decided_on_permits_nothing() -> None:
    faults = small_evidence.faults(deletion(2))
    trace = small_evidence.trace(appended(1, "b1", 0, 4), start_moved(4, "b2", 0, 2, "leader"))
    refused = without_the_first(4, 2, faults=faults, trace=trace)
    assert deletable_below(refused) == {}
    assert loss.check(refused).validity is Validity.INVALID
    assert deletable_below(replace(refused, recovery={})) == {("t", 0): 2}, "the trace of a killed run lacks its end"
    assert deletable_below(replace(refused, settings=CheckSettings(has_trace=False))) == {("t", 0): 2}


def test_in_a_run_that_was_killed_anything_may_have_been_deleted_that_no_offset_limits() -> None:
    """The trace ends before the history."""
    trace = small_evidence.trace(appended(1, "b1", 0, 4))
    faults = small_evidence.faults(deletion(None, at_s=3))
    evidence = replace(without_the_first(4, 2, faults=faults, trace=trace), recovery={})
    assert deletions(evidence) == {("t", 0): (Deletion(3 * S, NEVER, 0),)}
    retained = replace(evidence, faults=small_evidence.faults(), settings=CheckSettings(retention_ms=5))
    assert deletions(retained) == {("t", 0): (Deletion(0, NEVER, 0),)}


def test_only_the_retention_for_which_a_broker_deletes_permits_it() -> None:
    trace = small_evidence.trace(start_moved(3, "b1", 0, 2, "retention_bytes"))
    assert deletable_below(without_the_first(4, 2, trace=trace, settings=CheckSettings(retention_ms=5))) == {}


# ---- loss, reads, linearizability, logs, groups ----------------------------------------------------------------------


def test_a_record_missing_below_the_deletion_is_not_lost_and_one_above_is() -> None:
    verdict = loss.check(without_the_first(4, 2, faults=small_evidence.faults(deletion(2))))
    assert (verdict.validity, verdict.figures["deleted"]) == (Validity.VALID, 2)
    beyond = loss.check(without_the_first(4, 3, faults=small_evidence.faults(deletion(2))))
    assert (beyond.validity, [finding.offsets for finding in beyond.findings]) == (Validity.INVALID, [(2,)])
    assert loss.lost_records(without_the_first(4, 3, faults=small_evidence.faults(deletion(2))))[
        "offset"
    ].to_pylist() == [2]


def test_a_deletion_in_another_partition_permits_nothing() -> None:
    evidence = without_the_first(4, 2, faults=small_evidence.faults(deletion(2, partition=1)))
    assert loss.check(evidence).validity is Validity.INVALID


def test_a_history_whose_first_records_were_deleted_unread_is_linearizable() -> None:
    main = [append(7, 1, 2, 0), append(8, 1, outcome=INFO), append(9, 3, 4, 2), poll(2, 5, 6, 9), end_offset(5, 6, 3)]
    evidence = RunEvidence(history=small_evidence.history(main), faults=small_evidence.faults(deletion(2)))
    assert linearizability.check(evidence).validity is Validity.VALID


@pytest.mark.parametrize(("below", "validity"), [(1, Validity.INVALID), (2, Validity.VALID)])
def test_a_duplicate_is_excused_only_if_the_first_copy_was_deleted(below: int, validity: Validity) -> None:
    main = [
        append(6, 1, 2, 0),
        append(7, 1, outcome=INFO),
        poll(0, 3, 4, 6, 7),
        append(8, 5, 6, 2),
        poll(2, 7, 8, 8, 7),
    ]
    evidence = RunEvidence(history=small_evidence.history(main), faults=small_evidence.faults(deletion(below)))
    assert reads.check(evidence).validity is validity


TWICE = [append(6, 1, 2, 0), append(7, 1, outcome=INFO), append(8, 3, 4, 2), poll(0, 5, 6, 6, 7, 8)]


def of_reads(main: list[Any], *events: Event) -> Validity:
    """Of a partition in which everything was to be deleted up to the high watermark."""
    trace = small_evidence.trace(appended(0, "b1", 0, 5), *events)
    faults = small_evidence.faults(deletion(None, at_s=1.0))
    history = small_evidence.history(main)
    return reads.check(RunEvidence(history=history, faults=faults, trace=trace, recovery=READ)).validity


def test_a_duplicate_is_excused_only_by_a_deletion_between_both_copies() -> None:
    again = [*TWICE, poll(3, 9, 10, 7)]
    assert of_reads(again, start_moved(8, "b1", 0, 2)) is Validity.VALID
    assert of_reads(again, start_moved(8, "b1", 0, 3)) is Validity.VALID
    assert of_reads(again, start_moved(8, "b1", 0, 1)) is Validity.INVALID, "the first copy was kept"
    assert of_reads(again, start_moved(8, "b1", 0, 4)) is Validity.INVALID, "the second copy was deleted, too"
    assert of_reads(again, start_moved(8, "b1", 0, 4), start_moved(7, "b1", 0, 2)) is Validity.VALID
    assert of_reads(again, start_moved(11, "b1", 0, 3)) is Validity.INVALID, "both copies were read before"


def test_replica_logs_are_compared_from_the_later_of_their_starts() -> None:
    replicas, ends = small_evidence.logs(
        b1=[(1, 10), (1, 11), (2, 12)], b2=[None, None, (2, 12)], b3=[(1, 66), (1, 11), (2, 12)]
    )
    starts = {"b1": 1, "b2": 2, "b3": 1}
    ends = pa.Table.from_pylist([row | {"log_start": starts[row["node"]]} for row in ends.to_pylist()], ends.schema)
    of_deletion = logs.check_partition(replicas, ends, replicas_expected=3, recovered=True, deletable_below=2)
    assert of_deletion.validity is Validity.VALID
    ends = pa.Table.from_pylist([row | {"log_start": 0} for row in ends.to_pylist()], ends.schema)
    assert logs.check_partition(replicas, ends, replicas_expected=3, recovered=True).validity is Validity.INVALID


def of_group(story: GroupHistory, below: int) -> Verdict:
    history = pa.Table.from_pylist(story.rows, SCHEMA)
    settings = CheckSettings(groups=True)
    return groups.check(
        RunEvidence(history, settings=settings, recovery=READ, faults=small_evidence.faults(deletion(below)))
    )


def test_a_group_may_skip_deleted_records_and_no_others() -> None:
    story = GroupHistory().append(0, *range(8)).start(2, 7, 1, 0).poll(4, 7, 0, 2).commit(5, 7, 1, 5).poll(6, 7, 5, 8)
    assert of_group(story, 5).validity is Validity.VALID
    verdict = of_group(story, 4)
    assert {finding.kind for finding in verdict.findings} == {"records-skipped", "commit-beyond-read", "not-delivered"}


# ---- the trace -------------------------------------------------------------------------------------------------------


def violations_of(events: list[Event], *faults: dict[str, Any], **settings: Any) -> list[str]:
    evidence = RunEvidence(
        trace=small_evidence.trace(*events), settings=CheckSettings(**settings), faults=small_evidence.faults(*faults)
    )
    verdict = protocol.check(evidence)
    assert (verdict.validity is Validity.INVALID) is bool(verdict.findings)
    return [finding.kind for finding in verdict.findings]


def test_a_log_start_that_was_requested_and_followed_keeps_every_promise() -> None:
    events = [*COMMITTED, start_moved(4, "b1", 0, 3), start_moved(5, "b2", 0, 3, "leader")]
    assert violations_of(events, deletion(3)) == []


def test_a_log_start_above_every_high_watermark_is_a_violation_even_if_requested() -> None:
    events = [*COMMITTED, appended(3.5, "b1", 5, 8), start_moved(4, "b1", 0, 7)]
    assert violations_of(events, deletion(7)) == ["log-start-uncommitted"]
    assert violations_of(events, deletion(None)) == ["log-start-uncommitted"]
    retained = [*events[:-1], start_moved(4, "b1", 0, 7, "retention_ms")]
    assert violations_of(retained, retention_ms=1) == ["log-start-uncommitted"]


def test_a_log_start_beyond_the_requested_deletion_is_a_violation() -> None:
    events = [*COMMITTED, start_moved(4, "b1", 0, 3)]
    assert violations_of(events) == ["log-start-unasked"]
    assert violations_of(events, deletion(2)) == ["log-start-unasked"]
    assert violations_of(events, deletion(None)) == []
    assert violations_of([*COMMITTED, start_moved(4, "b1", 0, 3, "retention_bytes")], retention_ms=1) == [
        "log-start-unasked"
    ]


def test_a_record_that_goes_by_time_is_as_old_as_the_retention() -> None:
    def found(
        age_s: float, *faults: dict[str, Any], again_s: int = 0, recovery: dict[str, Any] | None = None, **settings: Any
    ) -> list[str]:
        taken_again = [append(10, again_s, again_s + 1, 1)] if again_s else []
        evidence = RunEvidence(
            history=small_evidence.history([append(7, 1, 2, 0), append(8, 2, 3, 2), append(9, 3, 4, 3)], taken_again),
            trace=small_evidence.trace(*COMMITTED, start_moved(2 + age_s, "b1", 0, 3, "retention_ms")),
            settings=CheckSettings(**{"retention_ms": 5_000, "acks": -1} | settings),
            faults=small_evidence.faults(*faults),
            recovery=recovery or {},
        )
        return [finding.kind for finding in protocol.check(evidence).findings]

    assert found(5.0) == []
    assert found(4.9) == ["retention-early"]
    assert found(4.9, retention_ms=4_000) == []
    assert found(4.9, acks=1) == []
    assert found(5.0, again_s=6) == ["retention-early"]
    assert found(5.0, again_s=8) == [], "an unclean election has given the offset to another append since"
    assert found(4.9, clock_error_ms=200) == []
    assert found(4.9, small_evidence.fault("clock", ["b1"], 0, 1, {"offset_ms": 300})) == []
    assert found(4.9, small_evidence.fault("clock", ["b2"], 0, 1, {"offset_ms": 300})) == ["retention-early"]
    assert found(4.9, small_evidence.fault("clock", ["b1"], 20, 21, {"offset_ms": 300})) == ["retention-early"]

    def by_clock(age_s: float, ended_s: float = 1, **did: float) -> bool:
        return found(age_s, small_evidence.clock_fault("b1", 0, ended_s, **did)) == ["retention-early"]

    assert by_clock(4.5, jump_ms=400), "its clock was ahead by less than that"
    assert not by_clock(4.5, jump_ms=500), "a clock keeps what it has gained"
    assert by_clock(4.5, jump_ms=-4000), "one that is behind deletes nothing early"
    assert by_clock(3.9, rate=1.1)
    assert not by_clock(4.5, rate=1.1), "it may have run fast for 8 s"
    assert not by_clock(0.5, ended_s=6, wall_jump_ms=9000)
    assert by_clock(4.5, ended_s=4, wall_jump_ms=9000), "a wall clock that was stepped is put right"
    unhealed = small_evidence.clock_fault("b1", 0, 1, jump_ms=400)
    assert found(4.5, unhealed, recovery={"unhealed": ["b1"]}) == []


@pytest.mark.parametrize(("kept", "found"), [(99, ["retention-below-size"]), (100, []), (None, [])])
def test_what_remains_by_size_is_as_large_as_the_retention(kept: int | None, found: list[str]) -> None:
    moved = start_moved(4, "b1", 0, 3, "retention_bytes", **({} if kept is None else {"kept_bytes": kept}))
    assert violations_of([*COMMITTED, moved], retention_bytes=100) == found


def test_a_log_start_that_was_requested_only_later_is_a_violation() -> None:
    events = [*COMMITTED, start_moved(4, "b1", 0, 3)]
    for below in (3, None):
        assert violations_of(events, deletion(below, at_s=4.0)) == []
        assert violations_of(events, deletion(below, at_s=4.5)) == ["log-start-unasked"]


def test_a_deletion_request_does_not_apply_to_an_internal_topic() -> None:
    events = [event | {"topic": "__consumer_offsets"} for event in [*COMMITTED, start_moved(4, "b1", 0, 3)]]
    assert violations_of(events, deletion(3)) == ["log-start-unasked"]


@pytest.mark.parametrize(
    "event",
    [
        start_moved(6, "b2", 0, 4, "leader"),
        small_evidence.event(6, "b2", "log_recovered", offset=4, log_end=5),
        small_evidence.event(6, "b2", "truncated", {"log_start": 4}, offset=4, log_end=5),
    ],
    ids=["led", "recovered", "begun anew"],
)
def test_a_log_start_that_no_leader_decided_on_is_a_violation(event: Event) -> None:
    assert violations_of([*COMMITTED, start_moved(4, "b1", 0, 3), event], deletion(4)) == ["log-start-unfounded"]
    followed = start_moved(5, "b2", 0, 4, "leader")
    assert violations_of([*COMMITTED, start_moved(4, "b1", 0, 4), followed, event], deletion(4)) == []


def test_a_candidate_may_lack_records_below_its_log_start_and_none_above() -> None:
    events = [*COMMITTED, start_moved(4, "b1", 0, 3)]
    anew = small_evidence.event(5, "b3", "truncated", {"log_start": 3}, offset=3, log_end=5)
    led = [changed(7, 3, 2, (1, 2, 3)), leads(8, "b3", 2, 5)]
    assert violations_of([*events, anew, appended(6, "b3", 3, 5), *led], deletion(3)) == []
    short = [changed(7, 3, 2, (1, 2, 3)), leads(8, "b3", 2, 4)]
    violations = violations_of([*events, anew, appended(6, "b3", 3, 4), *short], deletion(3))
    assert set(violations) == {"candidate-incomplete", "leader-incomplete"}


def test_other_records_below_the_log_start_of_a_replica_are_ignored() -> None:
    born = COMMITTED[:2]
    logs = [
        appended(2, "b1", 0, 5, 2),
        appended(2, "b2", 0, 5, 2),
        appended(2, "b3", 0, 3, 1),
        appended(2, "b3", 3, 5, 2),
    ]
    committed = [changed(2, 1, 2, (1, 2)), moved(3, "b1", 0, 5, (1, 2), 2), start_moved(4, "b1", 0, 3)]
    joined = changed(6, 1, 2, (1, 2, 3), reason="alter_partition")
    assert violations_of([*born, *logs, *committed, start_moved(5, "b3", 0, 3, "leader"), joined], deletion(3)) == []
    assert violations_of([*born, *logs, *committed, joined], deletion(3)) == ["candidate-incomplete"]


# ---- the fault model -------------------------------------------------------------------------------------------------


def test_a_replica_whose_log_restarts_above_its_loss_lacks_nothing() -> None:
    """Otherwise a loss of another replica, later, would count as too many at one time."""
    born = [appended(1, node, 0, 5) for node in ("b1", "b2", "b3")]
    first = [small_evidence.event(3, "b1", "log_recovered", offset=0, log_end=2)]
    anew = [small_evidence.event(4, "b1", "truncated", {"log_start": 5}, offset=5, log_end=2)]
    second = [small_evidence.event(8, "b2", "log_recovered", offset=0, log_end=4)]
    faults = small_evidence.faults(
        small_evidence.fault("power-loss", ["b1"], 2, 2.5, {"lost_bytes": 9}),
        small_evidence.fault("power-loss", ["b2"], 7, 7.5, {"lost_bytes": 9}),
    )
    history = small_evidence.history(acknowledged(1))

    def excesses(events: list[Event]) -> int:
        evidence = RunEvidence(history=history, trace=small_evidence.trace(*events), faults=faults)
        tolerance = tolerances(evidence).get(("t", 0))
        return len(tolerance.exceeded) if tolerance is not None else 0

    assert excesses([*born, *first, *anew, *second]) == 0
    assert excesses([*born, *first, *second]) == 1


@pytest.mark.parametrize(("reason", "permitted"), [("retention_ms", {("t", 0): 3}), ("leader", {})])
def test_only_a_start_that_a_broker_decided_on_permits_deletion(
    reason: str, permitted: dict[tuple[str, int], int]
) -> None:
    trace = small_evidence.trace(start_moved(1, "b1", 0, 3, reason))
    evidence = without_the_first(5, 3, trace=trace, settings=CheckSettings(retention_ms=1_000))
    assert deletable_below(evidence) == permitted
