"""Both boxes judge the same run: the black one without the trace, as of a system that writes none."""

from __future__ import annotations

import time
from typing import Any

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.registry import check
from harness.suites.boxes import BLACK, CPU_SECONDS, TOGETHER, WHITE, boxed_facts
from tests.checkers import small_evidence
from tests.checkers.small_histories import append, poll

RECOVERY = {"recovered": True, "seconds": 1.0, "limit_seconds": 30.0, "healing_seconds": 0.0, "final_reads": True}


def facts(*events: dict[str, Any], lossy: bool = False, **recovery: Any) -> dict[str, Any]:
    """What the boxes find where an acknowledged record is gone at the end; `lossy` after two brokers lost data."""
    replicas, ends = small_evidence.logs(b1=[(1, 8)], b2=[(1, 8)], b3=[(1, 8)])
    measured = {"nodes": {node: {"lost_bytes": 9, "down_ns": 3_000_000_000} for node in ("b1", "b2")}}
    fault = small_evidence.fault("power-loss", ["b1", "b2"], 3.0, 5.0, measured)
    evidence = RunEvidence(
        history=small_evidence.history([append(7, 1, 2, 0), append(8, 6, 7, 0)], [poll(0, 9, 10, 8)]),
        replicas=replicas,
        replica_ends=ends,
        trace=small_evidence.trace(*events),
        faults=small_evidence.faults(*([fault] if lossy else [])),
        settings=CheckSettings(topic="t", partitions=1, network_is_witness=True),
        recovery=RECOVERY | recovery,
    )
    return boxed_facts(evidence, check(evidence), time.process_time())


def test_the_time_of_the_second_judgement_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([1.0, 1.0])
    monkeypatch.setattr("harness.suites.boxes.time.process_time", lambda: next(seconds, 9.0))
    monkeypatch.setattr("checkers.registry.check", lambda evidence: next(seconds) and ())
    assert facts()[CPU_SECONDS] == 8.0


def test_a_loss_that_nothing_excuses_is_found_without_the_trace() -> None:
    found = facts()
    assert (found[TOGETHER], found[WHITE], found[BLACK]) == ("loss: lost-append", "", "loss: lost-append")


def test_a_loss_that_only_the_trace_calls_inexcusable_is_found_by_both_boxes_together_alone() -> None:
    appended = [small_evidence.event(2, node, "appended", offset=0, log_end=1) for node in ("b1", "b2")]
    recovered = [small_evidence.event(4, node, "log_recovered", offset=0, log_end=1) for node in ("b1", "b2")]
    found = facts(*appended, *recovered, lossy=True)
    assert found[TOGETHER] == "loss: lost-append", "the two brokers came back with all that they had"
    assert found[BLACK] == "", "for all that is seen outside, two replicas lost it"


def test_the_end_of_a_process_is_seen_without_the_trace() -> None:
    appended = small_evidence.event(2, "b1", "appended", offset=0, log_end=1)
    crash = {"node": "b1", "time_ns": 1, "error": "OSError: no such file"}
    found = facts(appended, crashes=[crash])
    assert found[TOGETHER] == found[BLACK] == "processes: process-crashed"
    assert found[WHITE] == ""
