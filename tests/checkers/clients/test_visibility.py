"""Records are read below the high watermark of the leader that answers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from checkers.clients import visibility
from checkers.evidence import RunEvidence
from checkers.verdict import Validity, Verdict
from tests.checkers.small_evidence import S, event, trace
from workloads.history import SCHEMA


def poll(completed_s: float, *offsets: int, epoch: int | None = 1) -> dict[str, Any]:
    return {
        "kind": "poll",
        "process": 5,
        "phase": "main",
        "topic": "t",
        "partition": 0,
        "invoked_ns": 0,
        "completed_ns": round(completed_s * S),
        "outcome": "ok",
        "offset": offsets[0] if offsets else 0,
        "leader_epoch": epoch,
        "offsets": list(offsets),
        "values": [100 + offset for offset in offsets],
    }


def check(polls: list[dict[str, Any]], *events: dict[str, Any], killed: bool = False) -> Verdict:
    rows = [row | {"index": index} for index, row in enumerate(polls)]
    recovery = {} if killed else {"recovered": True}
    return visibility.check(
        RunEvidence(history=pa.Table.from_pylist(rows, SCHEMA), trace=trace(*events), recovery=recovery)
    )


LED_BY_B1 = (
    event(1, "b1", "became_leader", leader_epoch=1),
    event(2, "b1", "high_watermark", high_watermark=2),
    event(4, "b1", "high_watermark", high_watermark=3),
)


def test_a_record_is_read_once_its_leader_has_moved_the_high_watermark_past_it() -> None:
    assert check([poll(2, 0, 1), poll(4, 2)], *LED_BY_B1).validity is Validity.VALID


def test_a_record_read_above_the_high_watermark_is_named() -> None:
    verdict = check([poll(3, 1, 2)], *LED_BY_B1)
    (finding,) = verdict.findings
    assert (finding.kind, finding.offsets, finding.operations) == ("read-above-high-watermark", (2,), (0,))
    assert finding.lines[1] == "the high watermark of b1 had reached 2 by then: offset 2 was not committed"
    assert verdict.validity is Validity.INVALID


def test_the_high_watermark_of_another_node_does_not_count() -> None:
    ahead = event(2, "b2", "follower_high_watermark", high_watermark=9)
    assert check([poll(3, 1, 2)], *LED_BY_B1, ahead).validity is Validity.INVALID
    assert check([poll(3, 1, 2, epoch=None)], *LED_BY_B1, ahead).validity is Validity.VALID


def test_a_node_that_restarts_at_an_older_checkpoint_may_answer_as_before() -> None:
    restarted = (
        event(5, "b1", "log_recovered", offset=0, log_end=3, high_watermark=0),
        event(6, "b1", "became_leader", leader_epoch=2),
    )
    assert check([poll(7, 2, epoch=2)], *LED_BY_B1, *restarted).validity is Validity.VALID


def test_without_a_high_watermark_in_the_trace_the_verdict_is_unknown() -> None:
    assert check([poll(3, 1, 2)]).validity is Validity.UNKNOWN
    assert check([poll(3)]).validity is Validity.VALID


def test_of_a_killed_run_polls_are_checked_as_far_as_the_trace_was_written() -> None:
    assert check([poll(5, 3)], *LED_BY_B1, killed=True).validity is Validity.VALID
    assert check([poll(5, 3)], *LED_BY_B1).validity is Validity.INVALID
    assert check([poll(3, 1, 2)], *LED_BY_B1, killed=True).validity is Validity.INVALID
