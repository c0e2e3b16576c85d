"""The checker of losses: records that count as lost, and records that do not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from checkers.evidence import CheckSettings, RunEvidence
from checkers.loss import LOST_FIGURES, check, lost_records
from checkers.verdict import Validity, Verdict
from tests.checkers import small_evidence
from tests.checkers.small_histories import Row, append, poll
from workloads.columns import INFO

READ = {"recovered": True, "final_reads": True}


def verdict_on(main: list[Row], final: list[Row], recovery: dict[str, Any] = READ, **more: Any) -> Verdict:
    settings = CheckSettings(**more.pop("settings", {}))
    return check(RunEvidence(history=small_evidence.history(main, final), recovery=recovery, settings=settings, **more))


def test_an_acknowledged_append_missing_from_the_final_reads_is_lost() -> None:
    replicas, ends = small_evidence.logs(b1=[(1, 8)], b2=[(1, 8)], b3=[(1, 8)])
    verdict = verdict_on(
        [append(7, 1, 2, 0), append(8, 3, outcome=INFO)], [poll(0, 9, 10, 8)], replicas=replicas, replica_ends=ends
    )
    assert verdict.validity is Validity.INVALID
    (finding,) = verdict.findings
    assert (finding.kind, finding.operations, finding.offsets) == ("lost-append", (0,), (0,))
    assert finding.lines == (
        "#0 append of value 7 by process 0 (1.000000 s to 2.000000 s) → offset 0",
        "the final reads did not return value 7: offset 0 held value 8",
        "on disk at the end: on no replica",
    )


def test_the_end_of_the_log_can_be_lost_too() -> None:
    verdict = verdict_on([append(7, 1, 2, 0), append(8, 1, 2, 1)], [poll(0, 9, 10, 7)])
    assert verdict.findings[0].lines[1] == "the final reads did not return value 8: they ended at 1"


def test_an_unknown_append_may_be_lost_until_somebody_has_read_it() -> None:
    assert verdict_on([append(7, 1, outcome=INFO)], []).validity is Validity.VALID
    verdict = verdict_on([append(7, 1, outcome=INFO), poll(0, 2, 3, 7)], [])
    assert [finding.kind for finding in verdict.findings] == ["lost-read"]


def test_a_record_on_no_disk_is_lost_even_without_final_reads() -> None:
    replicas, ends = small_evidence.logs(b1=[], b2=[], b3=[])
    verdict = verdict_on([append(7, 1, 2, 0)], [], {}, replicas=replicas, replica_ends=ends)
    assert verdict.validity is Validity.INVALID


def test_nothing_is_said_of_disks_that_were_not_collected() -> None:
    main, final = [append(7, 1, 2, 0), append(8, 3, 4, 1)], [poll(0, 9, 10, 8)]
    (line,) = verdict_on(main, final).findings[0].lines[1:]
    assert "disk" not in line
    replicas, ends = small_evidence.logs(b1=[(1, 8)])
    lines = verdict_on(main, final, replicas=replicas, replica_ends=ends).findings[0].lines
    assert lines[-1] == "on disk at the end: in none of the logs collected, which are not all"


def test_records_of_a_run_that_was_killed_are_not_said_to_be_on_no_disk() -> None:
    (finding,) = verdict_on([append(7, 1, 2, 0)], [], {}).findings
    assert finding.kind == "not-finally-read"
    assert finding.lines[1:] == ("no replica's log was collected, either",)


def test_a_record_on_some_disk_is_unknown_without_final_reads() -> None:
    replicas, ends = small_evidence.logs(b1=[(1, 7)], b2=[], b3=[])
    assert verdict_on([append(7, 1, 2, 0)], [], {}, replicas=replicas, replica_ends=ends).validity is Validity.UNKNOWN
    two_logs = ends.filter([True, True, False])
    assert verdict_on([append(7, 1, 2, 0)], [], {}, replica_ends=two_logs).validity is Validity.UNKNOWN


def test_acks_1_may_lose_acknowledged_records_but_no_records_that_were_read() -> None:
    verdict = verdict_on([append(7, 1, 2, 0)], [], settings={"acks": 1})
    assert (verdict.validity, verdict.figures["acknowledged_lost_allowed"]) == (Validity.VALID, 1)
    read = verdict_on([append(7, 1, 2, 0), poll(0, 3, 4, 7)], [], settings={"acks": 1})
    assert read.validity is Validity.INVALID


def test_what_acks_1_lost_is_counted_without_final_reads_where_every_log_was_collected() -> None:
    replicas, ends = small_evidence.logs(b1=[(1, 8)], b2=[(1, 8)], b3=[])
    main = [append(7, 1, 2, 0), append(8, 3, 4, 1)]

    def lost(ends: pa.Table) -> float:
        verdict = verdict_on(main, [], {}, settings={"acks": 1}, replicas=replicas, replica_ends=ends)
        return verdict.figures["acknowledged_lost_allowed"]

    assert lost(ends) == 1
    assert lost(ends.filter([True, True, False])) == 0


def test_every_lost_record_is_listed_promised_or_not() -> None:
    main = [append(7, 1, 2, 0), append(8, 3, 4, 1), append(9, 5, 6, 2), poll(0, 7, 8, 7), append(6, 9, outcome=INFO)]
    evidence = RunEvidence(
        history=small_evidence.history(main, [poll(0, 9, 10, 5), poll(1, 11, 12, 8)]),
        recovery=READ,
        settings=CheckSettings(acks=1),
    )
    figures = check(evidence).figures
    assert [figures[name] for name in LOST_FIGURES] == [1, 1]
    lost = lost_records(evidence).select(["value", "offset", "operation", "instead"]).to_pylist()
    assert [tuple(row.values()) for row in lost] == [(7, 0, 3, 5), (9, 2, 2, None)]


def test_losses_of_unclean_topics_are_counted_and_allowed() -> None:
    verdict = verdict_on([append(7, 1, 2, 0)], [], settings={"unclean_election": True})
    assert (verdict.validity, verdict.figures["allowed"]) == (Validity.VALID, 1)


def lossy_trace(*nodes: str) -> Any:
    events = [
        small_evidence.event(1, node, "appended", offset=0, log_end=5, leader_epoch=1) for node in ("b1", "b2", "b3")
    ]
    events += [small_evidence.event(6, node, "log_recovered", offset=0, log_end=0) for node in nodes]
    return small_evidence.trace(*events)


def test_a_loss_on_min_isr_replicas_at_one_time_is_unknown_and_on_fewer_is_invalid() -> None:
    def after_power_loss(*nodes: str) -> Verdict:
        fault = small_evidence.fault("power-loss", list(nodes), 5, 7, {"lost_bytes": 10})
        main = [append(7, 1, 2, 0)]
        return verdict_on(main, [], trace=lossy_trace(*nodes), faults=small_evidence.faults(fault))

    assert after_power_loss("b1").validity is Validity.INVALID
    verdict = after_power_loss("b1", "b2")
    assert verdict.validity is Validity.UNKNOWN
    assert verdict.findings[0].lines[0] == (
        "the fault model was exceeded: at 5.000 s 2 replicas lacked offset 0 after faults that take data, "
        "and the protocol survives 1"
    )


def test_a_record_acknowledged_after_the_power_loss_is_not_excused_by_it() -> None:
    fault = small_evidence.fault("power-loss", ["b1", "b2"], 5, 7, {"lost_bytes": 10})
    later = [append(7, 8, 9, 0)]
    verdict = verdict_on(later, [], trace=lossy_trace("b1", "b2"), faults=small_evidence.faults(fault))
    assert verdict.validity is Validity.INVALID


# acknowledged without an offset


def deletion(below: int, at_s: float) -> pa.Table:
    fault = small_evidence.fault("delete-records", ["b1"], at_s, at_s + 1, {"asked_below": below})
    return small_evidence.faults(fault | {"detail": '{"partition": 0}'})


def test_an_append_acknowledged_without_an_offset_is_looked_for_by_its_value() -> None:
    rows = [append(7, 1, 2, 0), append(8, 3, 4)]
    assert verdict_on(rows, [poll(0, 9, 10, 7, 8)]).validity is Validity.VALID
    (finding,) = verdict_on(rows, [poll(0, 9, 10, 7)]).findings
    assert (finding.kind, finding.operations, finding.offsets) == ("lost-append", (1,), ())
    assert finding.lines[1:3] == (
        "it was acknowledged without an offset",
        "the final reads did not return value 8: they ended at 1",
    )
    assert verdict_on(rows, [poll(0, 9, 10, 7)], settings={"acks": 1}).validity is Validity.VALID


def test_an_append_without_an_offset_has_that_of_a_poll_that_returned_it() -> None:
    rows = [append(7, 1, 2, 0), append(8, 3, 4), poll(0, 4, 5, 7, 8)]
    assert verdict_on(rows, [poll(0, 9, 10, 7)]).findings[0].offsets == (1,)


def test_an_append_without_an_offset_is_deleted_only_if_it_may_stand_below_the_log_start() -> None:
    def deleted_below(offset: int) -> Validity:
        faults = deletion(offset, 5)
        return verdict_on([append(7, 1, 2, 4), append(8, 3, 4)], [poll(4, 9, 10, 7)], faults=faults).validity

    assert deleted_below(6) is Validity.VALID
    assert deleted_below(5) is Validity.INVALID


def test_an_append_without_an_offset_may_stand_below_one_that_was_acknowledged_during_it() -> None:
    main = [append(7, 1, 2, 4), append(8, 3, 6), append(9, 4, 5, 5)]
    assert verdict_on(main, [], faults=deletion(6, 7)).validity is Validity.VALID


def test_a_record_that_was_deleted_does_not_count_as_lost_where_losses_are_allowed() -> None:
    def allowed(*faults: pa.Table) -> float:
        main, final = [append(7, 1, 2, 0), append(8, 1, 2, 1)], [poll(1, 9, 10, 8)]
        more = {"faults": faults[0]} if faults else {}
        return verdict_on(main, final, settings={"acks": 1}, **more).figures["acknowledged_lost_allowed"]

    assert allowed(deletion(1, 5)) == 0
    assert allowed() == 1
