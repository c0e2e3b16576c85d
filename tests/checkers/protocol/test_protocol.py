"""Each promise of the protocol, kept and broken, as the trace tells it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.protocol import checker
from checkers.protocol.checker import check
from checkers.verdict import Validity, Verdict
from checkers.violations import INEXCUSABLE
from tests.checkers import small_evidence

Event = dict[str, Any]


def changed(
    time_s: float,
    leader: int,
    epoch: int,
    isr: Sequence[int],
    elr: Sequence[int] = (),
    reason: str = "elected",
    **detail: Any,
) -> Event:
    facts = {"elr": list(elr), "replicas": [1, 2, 3], "min_isr": 2, "reason": reason, "unclean": False} | detail
    return small_evidence.event(
        time_s, "c1", "partition_changed", facts, leader=leader, leader_epoch=epoch, members=list(isr)
    )


def appended(time_s: float, node: str, offset: int, end: int, epoch: int = 1) -> Event:
    return small_evidence.event(time_s, node, "appended", offset=offset, log_end=end, leader_epoch=epoch)


def moved(time_s: float, node: str, before: int, after: int, quorum: Sequence[int], epoch: int = 1) -> Event:
    return small_evidence.event(
        time_s, node, "high_watermark", offset=before, high_watermark=after, members=list(quorum), leader_epoch=epoch
    )


def leads(time_s: float, node: str, epoch: int, start: int) -> Event:
    return small_evidence.event(time_s, node, "became_leader", offset=start, log_end=start, leader_epoch=epoch)


def recovered(time_s: float, node: str, end: int) -> Event:
    return small_evidence.event(time_s, node, "log_recovered", offset=0, log_end=end)


def started(time_s: float, node: str) -> Event:
    return small_evidence.event(time_s, node, "node_started")


def registered(time_s: float, broker: int, clean: bool = False) -> Event:
    return small_evidence.event(time_s, "c1", "broker_registered", {"clean": clean}, broker=broker, broker_epoch=9)


BORN = [changed(1, 1, 1, (1, 2, 3), reason="created"), leads(1, "b1", 1, 0)]
COMMITTED = [*BORN, *(appended(2, node, 0, 5) for node in ("b1", "b2", "b3")), moved(3, "b1", 0, 5, (1, 2, 3))]


def verdict_on(events: Sequence[Event], **settings: Any) -> Verdict:
    return check(RunEvidence(trace=small_evidence.trace(*events), settings=CheckSettings(**settings)))


def kinds(events: Sequence[Event], **settings: Any) -> list[str]:
    verdict = verdict_on(events, **settings)
    assert (verdict.validity is Validity.INVALID) is bool(verdict.findings)
    return [finding.kind for finding in verdict.findings]


def acknowledged(time_s: float, node: str, acks: int, leader: int, epoch: int, end: int) -> Event:
    place = {"offset": end - 1, "log_end": end, "high_watermark": end, "leader": leader, "leader_epoch": epoch}
    return small_evidence.event(time_s, node, "acknowledged", {"acks": acks}, **place)


def test_a_clean_fail_over_keeps_every_promise() -> None:
    events = [
        *COMMITTED,
        changed(4, 2, 2, (2, 3), reason="fenced"),
        leads(5, "b2", 2, 5),
        appended(6, "b2", 5, 7, epoch=2),
        appended(7, "b3", 5, 7, epoch=2),
        moved(8, "b2", 5, 7, (2, 3), epoch=2),
        acknowledged(8, "b2", -1, 2, 2, 7),
        small_evidence.event(9, "b2", "latest_told", high_watermark=7),
    ]
    verdict = verdict_on(events)
    assert (verdict.validity, verdict.figures["committed"], verdict.figures["trace_gaps"]) == (Validity.VALID, 7, 0)


def test_two_leaders_of_one_epoch_are_a_violation() -> None:
    assert kinds([*BORN, leads(2, "b2", 1, 0)]) == ["two-leaders-one-epoch"]
    assert kinds([*BORN, changed(2, 2, 2, (1, 2, 3)), leads(3, "b3", 2, 0)]) == ["two-leaders-one-epoch"]


def test_a_leader_that_lacks_a_committed_record_is_a_violation() -> None:
    events = [*BORN, *(appended(2, node, 0, 5) for node in ("b1", "b2")), changed(2, 1, 1, (1, 2))]
    events += [moved(3, "b1", 0, 5, (1, 2)), leads(5, "b3", 2, 0)]
    verdict = verdict_on(events)
    assert [finding.kind for finding in verdict.findings] == ["leader-incomplete"]
    assert verdict.findings[0].lines == (
        "b3 became leader in leader epoch 2 at 5.000000 s, its log ends at 0",
        "it lacks offset 0 of leader epoch 1, committed at 3.000000 s",
    )


def test_a_node_that_learns_late_of_an_old_election_need_not_know_later_commits() -> None:
    events = [*COMMITTED, changed(4, 3, 2, (2, 3)), changed(5, 2, 3, (2, 1)), leads(5, "b2", 3, 5)]
    events += [appended(6, "b2", 5, 6, 3), appended(6, "b1", 5, 6, 3), moved(6, "b2", 5, 6, (1, 2), 3)]
    assert kinds([*events, leads(7, "b3", 2, 5)]) == []


def test_a_candidate_that_lacks_a_committed_record_is_a_violation() -> None:
    events = [*BORN, *(appended(2, node, 0, 5) for node in ("b1", "b2")), changed(2.5, 1, 1, (1, 2))]
    events += [moved(3, "b1", 0, 5, (1, 2)), changed(4, 1, 1, (1, 2, 3), reason="alter_partition")]
    assert kinds(events) == ["candidate-incomplete"]
    in_elr = [*events[:-1], changed(4, 1, 1, (1,), elr=(2, 3), reason="fenced")]
    assert kinds(in_elr) == ["candidate-incomplete"]


LOST = [started(4, "b2"), recovered(4, "b2", 3)]


def test_a_node_is_not_checked_between_restart_and_registration() -> None:
    still_member = changed(4.5, 1, 1, (1, 2), reason="alter_partition")
    taken_out = [changed(5, 1, 1, (1, 3), reason="registered"), registered(5, 2)]
    assert kinds([*COMMITTED, *LOST, still_member, *taken_out]) == []
    assert kinds([*COMMITTED, *LOST, still_member, registered(5, 2)]) == [
        "unclean-not-excluded",
        "candidate-incomplete",
    ]


def test_a_log_recovered_after_registration_is_checked_at_its_recovery() -> None:
    events = [*COMMITTED, started(4, "b2"), registered(5, 2, clean=True), recovered(6, "b2", 3)]
    assert kinds(events) == ["candidate-incomplete"]


def test_events_of_one_instant_are_checked_after_the_last_of_them() -> None:
    halfway = changed(5, 1, 1, (1,), elr=(2,), reason="registered")
    events = [*COMMITTED, changed(3.5, 1, 1, (1, 2)), *LOST, registered(5, 2), halfway, changed(5, 1, 1, (1,))]
    assert kinds(events) == []


def test_a_broker_registered_after_an_unclean_shutdown_is_excluded_until_it_joins_the_isr() -> None:
    back = [changed(5, 1, 1, (1, 3), reason="registered"), registered(5, 2)]
    unfenced = small_evidence.event(6, "c1", "broker_unfenced", broker=2)
    rejoined = [*COMMITTED, started(4, "b2"), *back, unfenced, changed(7, 1, 1, (1, 2, 3), reason="alter_partition")]
    assert kinds(rejoined) == []
    in_elr = [*COMMITTED, started(4, "b2"), *back, changed(7, 1, 1, (1,), elr=(2,), reason="fenced")]
    assert kinds(in_elr) == ["unclean-not-excluded"]
    clean = [*COMMITTED, started(4, "b2"), registered(5, 2, clean=True), changed(7, 1, 1, (1,), elr=(2,))]
    assert kinds(clean) == []


def test_an_election_outside_isr_and_elr_is_a_violation_unless_the_topic_allows_it() -> None:
    events = [*COMMITTED, changed(4, 1, 1, (1, 2)), changed(5, 3, 2, (3,))]
    assert kinds(events) == ["unclean-election"]
    assert kinds(events, unclean_election=True) == []
    assert kinds([*COMMITTED, changed(4, 1, 1, (1,), elr=(3,)), changed(5, 3, 2, (3,))]) == []


def test_a_replica_that_its_leader_proposes_may_be_elected_in_the_change_that_completes_a_reassignment() -> None:
    without_3 = [*COMMITTED, changed(4, 1, 1, (1, 2))]
    assert kinds([*without_3, changed(5, 3, 2, (2, 3), reason="alter_partition")]) == []
    assert kinds([*without_3, changed(5, 3, 2, (2, 3), reason="fenced")]) == ["unclean-election"]


def test_a_high_watermark_moved_by_fewer_than_min_isr_members_is_a_violation() -> None:
    alone = [*BORN, changed(2, 1, 1, (1,), elr=(2,)), appended(2, "b1", 0, 5), moved(3, "b1", 0, 5, (1,))]
    assert "quorum-too-small" in kinds(alone)
    one_replica = [changed(1, 1, 1, (1,), reason="created", replicas=[1]), leads(1, "b1", 1, 0)]
    assert kinds([*one_replica, appended(2, "b1", 0, 5), moved(3, "b1", 0, 5, (1,))]) == []


def test_the_minimum_that_counts_is_that_of_the_partition_epoch_the_leader_knows() -> None:
    born = [BORN[0] | {"partition_epoch": 4}, BORN[1]]
    raised = changed(2.5, 1, 1, (1, 2), min_isr=3) | {"partition_epoch": 5}
    before = [*born, *(appended(2, node, 0, 5) for node in ("b1", "b2")), raised]
    ignorant, informed = ({**moved(3, "b1", 0, 5, (1, 2)), "partition_epoch": epoch} for epoch in (4, 5))
    assert "quorum-too-small" not in kinds([*before, ignorant])
    assert "quorum-too-small" in kinds([*before, informed])


def test_the_quorum_of_the_current_leader_contains_the_controllers_isr() -> None:
    without_3 = [*(appended(2, node, 0, 5) for node in ("b1", "b2")), moved(3, "b1", 0, 5, (1, 2))]
    assert kinds([*BORN, *without_3]) == ["quorum-not-superset"]
    proposed = moved(3, "b1", 0, 5, (1, 2, 3))
    assert kinds([*COMMITTED[:-1], changed(2.5, 1, 1, (1, 2), reason="alter_partition"), proposed]) == []
    deposed = [*COMMITTED[:2], changed(1.5, 1, 1, (1, 2)), *without_3[:2], changed(2.5, 2, 2, (2, 3))]
    assert "quorum-not-superset" not in kinds([*deposed, without_3[2]])


def test_a_member_counted_without_holding_the_records_is_a_violation() -> None:
    behind = [*BORN, appended(2, "b1", 0, 5), appended(2, "b2", 0, 5), appended(2, "b3", 0, 4)]
    verdict = verdict_on([*behind, moved(3, "b1", 0, 5, (1, 2, 3))])
    assert verdict.findings[0].lines == (
        "b1 moved the high watermark 0 → 5 at 3.000000 s in leader epoch 1 with the quorum {b1, b2, b3}",
        "b3 did not hold the record at offset 4: its log ended at 4",
    )
    another = [*behind[:-1], appended(2, "b3", 0, 5, epoch=0), moved(3, "b1", 0, 5, (1, 2, 3))]
    assert kinds(another) == ["replica-counted-wrongly"]


def test_a_loss_after_a_replica_was_counted_is_not_a_violation_by_the_leader() -> None:
    lost = [*COMMITTED[:-1], started(2.5, "b2"), recovered(2.5, "b2", 3), COMMITTED[-1]]
    assert kinds(lost) == []
    back = [changed(2.6, 1, 1, (1, 3)), registered(2.6, 2), changed(2.7, 1, 1, (1, 2, 3), reason="alter_partition")]
    assert "replica-counted-wrongly" in kinds([*lost[:-1], *back, COMMITTED[-1]])


def test_a_committed_record_that_is_overwritten_is_a_violation() -> None:
    events = [*COMMITTED, *(small_evidence.event(4, node, "truncated", offset=3, log_end=5) for node in ("b2", "b3"))]
    events += [
        appended(5, "b2", 3, 5, epoch=2),
        appended(5, "b3", 3, 5, epoch=2),
        moved(6, "b2", 3, 5, (2, 3), epoch=2),
    ]
    assert "committed-overwritten" in kinds(events)


def test_a_high_watermark_that_falls_within_a_leadership_is_a_violation() -> None:
    assert "high-watermark-fell" in kinds([*COMMITTED, moved(4, "b1", 2, 3, (1, 2, 3))])
    fell = check(RunEvidence(trace=small_evidence.trace(moved(4, "b1", 8, 5, (1, 2, 3)))))
    (finding,) = (finding for finding in fell.findings if finding.kind == "high-watermark-fell")
    assert finding.lines[1] == "it had been 8 in the same leadership"


@pytest.mark.parametrize(("position", "kept"), [(5, False), (4, False), (3, True), (-1, True)])
def test_the_high_watermark_follows_whom_the_leader_counts(position: int, kept: bool) -> None:
    detail = {"unresolved": [], "positions": {"1": 5, "2": position}}
    counts = small_evidence.event(4, "b1", "isr_counted", detail, members=[1, 2], high_watermark=3)
    found = kinds([*COMMITTED, counts | {"leader": 1, "leader_epoch": 1}])
    assert ("high-watermark-behind" not in found) == kept


def test_a_latest_offset_below_the_start_of_the_leader_epoch_is_a_violation() -> None:
    events = [*COMMITTED, changed(4, 2, 2, (2, 3)), leads(5, "b2", 2, 5)]
    assert kinds([*events, small_evidence.event(6, "b2", "latest_told", high_watermark=4)]) == ["latest-below-start"]


@pytest.mark.parametrize(("leader", "epoch", "retry"), [(2, 2, False), (1, 3, False), (2, 2, True)])
def test_an_acknowledgement_in_a_later_leadership_is_a_violation(leader: int, epoch: int, retry: bool) -> None:
    def answered(leader: int, epoch: int) -> list[str]:
        detail = {"acks": -1} | ({"retry": [1, 0, 7]} if retry else {})
        place = {"leader": leader, "leader_epoch": epoch, "offset": 4, "log_end": 5, "high_watermark": 5}
        batch = small_evidence.event(2, "b1", "appended", {"producer_id": 1, "sequence": 0}, offset=4, log_end=5)
        taken = batch | {"leader": 1, "leader_epoch": 1}
        return kinds([*COMMITTED, taken, small_evidence.event(9, "b1", "acknowledged", detail, **place)])

    found = {"acknowledged-uncommitted", "acknowledged-without-leading"}
    assert found.intersection(answered(leader, epoch))
    assert not found.intersection(answered(1, 1))


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_node_that_does_not_lead_acknowledges_nothing(acks: int) -> None:
    def found(leader: int, epoch: int, *before: Event, by: int = acks) -> bool:
        return "acknowledged-without-leading" in kinds(
            [*COMMITTED, *before, acknowledged(9, "b1", by, leader, epoch, 5)]
        )

    begins, follows = leads(5, "b1", 2, 5), {"leader": 2, "leader_epoch": 2}
    assert not found(1, 1)
    assert found(-1, 1)
    assert found(2, 1)
    assert found(1, 2)
    assert not found(1, 2, begins)
    assert found(1, 1, begins)
    assert found(1, 1, small_evidence.event(5, "b1", "became_follower", **follows))
    assert found(1, 1, small_evidence.event(5, "b1", "resigned", leader_epoch=1))
    assert found(1, 1, recovered(5, "b1", 5))
    assert not found(-1, 1, by=0)


@pytest.mark.parametrize(("acks", "expected"), [(-1, ["acknowledged-uncommitted"]), (1, [])])
def test_an_acknowledgement_above_the_high_watermark_is_a_violation_for_acks_all_only(
    acks: int, expected: list[str]
) -> None:
    acknowledgement = small_evidence.event(
        3, "b1", "acknowledged", {"acks": acks}, offset=4, log_end=6, high_watermark=5, leader=1, leader_epoch=1
    )
    assert kinds([*COMMITTED, acknowledgement]) == expected


def test_a_loss_beyond_the_fault_model_excuses_records_that_candidates_lack() -> None:
    events = [*COMMITTED, started(5, "b2"), recovered(5, "b2", 3), started(5, "b3"), recovered(5, "b3", 3)]
    events += [registered(6, 2, clean=True), registered(6, 3, clean=True)]
    assert kinds(events) == ["candidate-incomplete", "candidate-incomplete"]
    fault = small_evidence.fault("power-loss-all", ["b2", "b3"], 4, 5, {"lost_bytes": 9})
    verdict = check(RunEvidence(trace=small_evidence.trace(*events), faults=small_evidence.faults(fault)))
    assert (verdict.validity, verdict.findings[0].kind) == (Validity.UNKNOWN, "fault-model-exceeded")


EXCUSABLE = {
    "leader-incomplete",
    "candidate-incomplete",
    "replica-counted-wrongly",
    "committed-overwritten",
    "retention-early",
    "generation-repeated",
}
"""An unclean election or a loss beyond the fault model can put another record in the place of one, or take the record
of a generation."""


def test_every_promise_is_excusable_or_not_by_decision() -> None:
    table = set(re.findall(r"^([a-z]+(?:-[a-z]+)+) +\S", checker.__doc__ or "", re.MULTILINE))
    assert len(table) > 100
    assert table - INEXCUSABLE == EXCUSABLE
    assert not EXCUSABLE & INEXCUSABLE


def test_a_gap_in_the_trace_is_not_a_violation() -> None:
    events = [*BORN, appended(2, "b1", 0, 5), *(appended(2, node, 3, 5) for node in ("b2", "b3"))]
    verdict = verdict_on([*events, moved(3, "b1", 0, 5, (1, 2, 3))])
    assert (verdict.validity, verdict.figures["trace_gaps"]) == (Validity.VALID, 2)


def test_the_protocol_verdict_is_unknown_without_an_ordered_trace() -> None:
    assert verdict_on([]).validity is Validity.UNKNOWN
    assert verdict_on(COMMITTED, comparable_clocks=False).validity is Validity.UNKNOWN
