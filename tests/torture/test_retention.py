"""Logs whose start moves while everything else goes wrong: nothing that was to stay is lost."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse

BY_TIME = {"retention.ms": "8000", "segment.ms": "2000", "segment.bytes": "2048"}
BY_SIZE = {"retention.bytes": "4096", "segment.bytes": "2048"}


def figure(outcome: Outcome, checker: str, name: str) -> float:
    return next(verdict.figures[name] for verdict in outcome.verdicts if verdict.checker == checker)


@pytest.mark.parametrize("settings", [BY_TIME, BY_SIZE], ids=["by time", "by size"])
@pytest.mark.parametrize("workload", ["append", "groups"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_topic_with_retention_withstands_all_faults(settings: dict[str, str], workload: str, seed: int) -> None:
    spec = parse({"seed": seed, "workload": workload, "time_limit": "30s", "settings": settings})
    outcome = run_in_simulation(spec)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert figure(outcome, "loss", "deleted") > 50
    assert figure(outcome, "loss", "promised") > figure(outcome, "loss", "deleted")


@pytest.mark.parametrize("workload", ["append", "groups"])
def test_replicas_wiped_moved_and_restarted_meet_deletions(workload: str) -> None:
    def deletion(at: int, **more: Any) -> dict[str, Any]:
        return {"at": f"{at}s", "for": "1s", "fault": "delete-records", **more}

    faults = [
        deletion(3),
        {"at": "4s", "for": "8s", "fault": "reassign"},
        deletion(6),
        {"at": "7s", "for": "4s", "fault": "power-loss", "nodes": ["b2"], "keep": "nothing"},
        deletion(8, stalled=True),
        {"at": "13s", "for": "10s", "fault": "rolling-restart"},
        deletion(15, partition=1),
        deletion(18),
    ]
    outcome = run_in_simulation(parse({"seed": 2, "workload": workload, "time_limit": "25s", "faults": faults}))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert sum(injection.took_effect for injection in outcome.injections) >= len(faults) - 1
    assert figure(outcome, "loss", "deleted") > 0
