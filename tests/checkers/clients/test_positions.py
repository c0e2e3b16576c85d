"""The position of a consumer continues unless something moves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from checkers.clients import positions
from checkers.evidence import RunEvidence
from checkers.verdict import Validity, Verdict
from checkers.violations import Deletion, FaultModelExceeded, Tolerance
from harness.runner.run import run_in_simulation
from harness.spec import Spec
from results.run.directory import RunDirectory
from workloads.history import SCHEMA

S = 1_000_000_000


def poll(asked: int, *offsets: int, process: int = 5, error: str | None = None) -> dict[str, Any]:
    values = [100 + offset for offset in offsets]
    read = {"offsets": list(offsets), "values": values} if error is None else {}
    outcome = "ok" if error is None else "fail"
    return {"kind": "poll", "process": process, "offset": asked, "outcome": outcome, "error": error, **read}


REFUSED = poll(2, error="OFFSET_OUT_OF_RANGE")


def moved(kind: str, offset: int | None, process: int = 5) -> dict[str, Any]:
    return {"kind": kind, "process": process, "offset": offset, "outcome": "ok"}


def check(*operations: dict[str, Any], reset: str = "earliest", tolerance: Tolerance | None = None) -> Verdict:
    rows = [
        {"index": at, "phase": "main", "topic": "t", "partition": 0, "invoked_ns": at * S, "completed_ns": at * S + 9}
        | operation
        for at, operation in enumerate(operations)
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    return positions.check_partition(table, topic="t", partition=0, reset=reset, tolerance=tolerance)


def kinds(verdict: Verdict) -> list[str]:
    return [finding.kind for finding in verdict.findings]


def test_a_consumer_reads_on_where_its_last_read_ended() -> None:
    verdict = check(poll(0, 0, 1), poll(2), poll(2, error="NOT_LEADER_OR_FOLLOWER"), poll(2, 2, 3), poll(4, 4))
    assert verdict.validity is Validity.VALID
    assert verdict.figures["polls_compared"] == 4


def final(*values: int) -> dict[str, Any]:
    offsets = list(range(len(values)))
    return {**poll(0, *offsets, process=9), "phase": "final", "values": list(values)}


def test_records_passed_unread_are_counted_where_the_log_was_replaced_below_the_position() -> None:
    replaced = final(100, 201, 202, 203)
    read_on = {**poll(3, 3), "values": [203]}
    assert check(poll(0, 0, 1, 2), read_on, replaced).figures["passed_unread"] == 2
    assert check(poll(0, 0, 1, 2), replaced).figures["passed_unread"] == 0, "it may still go back"
    again = {**poll(1, 1, 2, 3), "values": [201, 202, 203]}
    assert check(poll(0, 0, 1, 2), moved("reset", 1), again, replaced).figures["passed_unread"] == 0
    assert check(poll(0, 0, 1, 2), read_on, final(100, 101, 102, 203)).figures["passed_unread"] == 0


def test_a_position_that_skips_records_is_a_finding() -> None:
    verdict = check(poll(0, 0, 1), poll(4, 4))
    assert kinds(verdict) == ["position-skipped"]
    assert verdict.findings[0].operations == (0, 1)
    assert verdict.findings[0].lines == (
        "#0 poll from 0 by process 5 (0.000000 s to 0.000000 s) → offsets 0 to 1",
        "#1 poll from 4 by process 5 (1.000000 s to 1.000000 s) → offsets 4 to 4",
        "its position was 2, and nothing moved it: what lies from 2 up to 4 was not read",
    )


def test_a_position_that_goes_back_is_a_finding() -> None:
    assert kinds(check(poll(0, 0, 1), poll(1, 1, 2))) == ["position-went-back"]
    assert kinds(check(poll(3), poll(1, 1, 2))) == ["position-went-back"]


def test_positions_of_two_consumers_are_their_own() -> None:
    verdict = check(poll(0, 0, 1), poll(0, 0, process=6), poll(2, 2), poll(1, 1, process=6))
    assert verdict.validity is Validity.VALID


@pytest.mark.parametrize("kind", ["reset", "assign"])
def test_a_consumer_that_was_moved_reads_from_there(kind: str) -> None:
    assert check(poll(0, 0, 1, 2), moved(kind, 1), poll(1, 1)).validity is Validity.VALID
    assert kinds(check(poll(0, 0, 1, 2), moved(kind, 1), poll(0, 0))) == ["position-went-back"]
    assert kinds(check(poll(0, 0, 1, 2), moved(kind, 1), poll(2, 2))) == ["position-skipped"]
    assert check(poll(0, 0, 1, 2), moved("reset", None), poll(0, 0)).validity is Validity.VALID


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_a_position_out_of_range_moves_down_or_to_where_the_log_begins(reset: str) -> None:
    unclean = Tolerance(unclean=True)
    assert check(poll(0, 0, 1), REFUSED, poll(2, 2), reset=reset, tolerance=unclean).validity is Validity.VALID
    moved_down = (poll(0, 0, 1), REFUSED, poll(1, 1), poll(2, 2))
    assert check(*moved_down, reset=reset, tolerance=unclean).validity is Validity.VALID
    verdict = check(poll(0, 0, 1), REFUSED, poll(9, 9), reset=reset, tolerance=unclean)
    assert kinds(verdict) == ["position-skipped"]
    assert verdict.findings[0].lines[-1] == (
        "its position was 2, and only deletions below 2 may move it: what lies from 2 up to 9 was not read"
    )
    deleted = Tolerance(deletions=(Deletion(S, 9, 9),))
    assert check(poll(0, 0, 1), REFUSED, poll(9, 9), reset=reset, tolerance=deleted).validity is Validity.VALID
    deleted = Tolerance(deletions=(Deletion(2 * S, 9, 9),))
    assert kinds(check(REFUSED, poll(9, 9), reset=reset, tolerance=deleted)) == ["position-skipped"], "deleted later"


@pytest.mark.parametrize("reset", ["latest", ""])
def test_a_position_out_of_range_moves_anywhere_where_the_log_ends_or_nobody_knows(reset: str) -> None:
    unclean = Tolerance(unclean=True)
    assert check(poll(0, 0, 1), REFUSED, poll(9, 9), reset=reset, tolerance=unclean).validity is Validity.VALID
    assert check(poll(0, 0, 1), REFUSED, poll(0, 0), reset=reset, tolerance=unclean).validity is Validity.VALID
    read_on = (poll(0, 0, 1), REFUSED, poll(9, 9), poll(11, 11))
    assert kinds(check(*read_on, reset=reset, tolerance=unclean)) == ["position-skipped"]


def test_a_log_has_the_offset_up_to_which_a_consumer_read_it() -> None:
    verdict = check(poll(0, 0, 1), REFUSED)
    assert kinds(verdict) == ["refused-in-range"]
    assert verdict.findings[0].lines[-1] == "it had read the records below 2, which nothing had deleted"
    assert kinds(check(poll(0, 0, 1, 2), moved("reset", 2), REFUSED)) == ["refused-in-range"]
    assert kinds(check(poll(0, 0), moved("assign", 2), REFUSED)) == [], "it had not come so far"
    assert kinds(check(poll(0, 0, 1, process=4), moved("assign", 2), REFUSED)) == [], "another consumer had"


def test_deletions_losses_and_unclean_elections_excuse_the_refusal_of_an_offset() -> None:
    story = poll(0, 0, 1), REFUSED
    for below, expected in ((2, ["refused-in-range"]), (3, [])):
        assert kinds(check(*story, tolerance=Tolerance(deletions=(Deletion(S, below, below),)))) == expected
    later = Tolerance(deletions=(Deletion(2 * S, 3, 3),))
    assert kinds(check(*story, tolerance=later)) == ["refused-in-range"]
    for offset, validity in ((1, Validity.UNKNOWN), (2, Validity.INVALID)):
        excess = FaultModelExceeded(offset=offset, time_ns=0, lines=("two replicas lost it",))
        assert check(*story, tolerance=Tolerance(exceeded=(excess,))).validity is validity
    assert check(*story, tolerance=Tolerance(unclean=True)).validity is Validity.VALID


def test_deleted_records_may_be_skipped_and_not_read_again() -> None:
    deleted = Tolerance(deletions=(Deletion(0, 4, 4),))
    assert check(poll(0, 0, 1), poll(4, 4), tolerance=deleted).validity is Validity.VALID
    assert kinds(check(poll(0, 0, 1), poll(5, 5), tolerance=deleted)) == ["position-skipped"]
    assert kinds(check(poll(0, 0, 1), poll(1, 1), tolerance=deleted)) == ["position-went-back"]


def test_records_are_not_skipped_before_they_are_deleted() -> None:
    story = poll(0, 0, 1), poll(4, 4), poll(5, 5)
    for second, expected in ((1, []), (2, ["position-skipped"])):
        deleted = Tolerance(deletions=(Deletion(second * S, 4, 4),))
        assert kinds(check(*story, tolerance=deleted)) == expected


def test_neither_unclean_elections_nor_losses_beyond_the_fault_model_move_a_position() -> None:
    excess = FaultModelExceeded(offset=0, time_ns=0, lines=("two replicas lost it",))
    for tolerance in (Tolerance(unclean=True), Tolerance(exceeded=(excess,))):
        assert kinds(check(poll(0, 0, 1), poll(1, 1), tolerance=tolerance)) == ["position-went-back"]
        assert kinds(check(poll(0, 0, 1), poll(3, 3), tolerance=tolerance)) == ["position-skipped"]


@pytest.mark.parametrize("workload", ["append", "groups"])
def test_a_consumer_whose_log_is_truncated_reports_where_it_reads_on(workload: str, tmp_path: Path) -> None:
    settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    for seed in range(20):
        outcome = run_in_simulation(
            Spec(workload=workload, seed=seed, time_limit_s=12, acks="1", settings=settings), tmp_path
        )
        assert outcome.directory is not None
        history = RunDirectory.open(outcome.directory).load().history
        without = history.filter(pc.field("kind") != "reset")
        if without.num_rows < history.num_rows:
            break
    assert positions.check(RunEvidence(history=history)).validity is Validity.VALID
    verdict = positions.check(RunEvidence(history=without))
    assert {"position-went-back", "position-skipped"} & set(kinds(verdict))
