"""A replica whose disk is gone: within the fault model nothing is lost, beyond it the loss is told with its cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkers.tables import trace_rows
from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from results.run.evidence_loader import load


def played(*faults: dict[str, Any], store: Path | None = None, **settings: str) -> Outcome:
    return run_in_simulation(
        parse({"seed": 3, "partitions": 1, "time_limit": "20s", "faults": list(faults), "settings": settings}), store
    )


@pytest.mark.parametrize("node", ["leader/0", "follower/0"])
def test_a_wiped_replica_is_filled_again_and_nothing_is_lost(node: str) -> None:
    outcome = played({"at": "6s", "for": "4s", "fault": "wipe-disk", "nodes": [node]})
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.effective_families == ("wipe",)


def test_replicas_wiped_one_after_the_other_with_time_to_catch_up_lose_nothing() -> None:
    outcome = played(*({"at": at, "for": "1s", "fault": "wipe-disk", "nodes": [f"b{at // 5}"]} for at in (5, 10, 15)))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert len(outcome.injections) == 3


def test_as_many_wiped_at_once_as_min_isr_is_told_as_beyond_the_fault_model() -> None:
    last = {"at": "4s", "for": "10s", "fault": "kill", "nodes": ["b3"]}
    both = {"at": "8s", "for": "3s", "fault": "wipe-disk", "nodes": ["b1", "b2"]}
    outcome = played(last, both, **{"unclean.recovery.strategy": "balanced"})
    assert outcome.validity is Validity.UNKNOWN
    kinds = {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}
    assert kinds == {"fault-model-exceeded"}


def test_a_clean_stop_before_the_wiped_logs_are_opened_is_no_promise_of_their_records(
    tmp_path: Path,
) -> None:
    # Answers of the controllers take 0.2 s: b3 learns that it is registered, and stops before the metadata arrives.
    outcome = played(
        {"at": "6s", "for": "1s", "fault": "wipe-disk", "nodes": ["b3"], "id": "wiped"},
        {"at": "6s", "for": "8s", "fault": "packets", "nodes": ["b3"], "against": ["controllers"], "delay_ms": 200},
        {"when": {"registered": "b3"}, "after": "wiped", "then_after": "250ms", "for": "1s"}
        | {"fault": "controlled-restart", "nodes": ["b3"]},
        store=tmp_path,
    )
    assert outcome.directory is not None
    steps = ("registered", "log_recovered")
    of_b3 = [event for event in trace_rows(load(outcome.directory).trace) if event.node == "b3" and event.kind in steps]
    last = [(event.kind, event.details()["clean"]) for event in of_b3[-3:]]
    assert last == [("registered", False), ("registered", True), ("log_recovered", True)]
    assert outcome.validity is Validity.VALID, outcome.verdicts
