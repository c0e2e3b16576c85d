"""One run of a suite, held in memory: all of it is on the disk where it is kept, and its rows say how it ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checkers.evidence import EvidencePart
from harness.runner import run as runner
from harness.spec import loads
from harness.suites.plan import PlannedRun
from harness.suites.spark_task import make
from results.run.directory import RunDirectory
from results.store.finished_runs import read_finished

SPEC = loads("{name: short, seed: 3, time_limit: 2s, faults: none}", "short")


def fail_at(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an error end every run when it enters this stage."""
    enter = runner.RunSession.enter

    def entered(session: runner.RunSession, name: str) -> None:
        enter(session, name)
        if name == stage:
            raise RuntimeError("the workload is broken")

    monkeypatch.setattr(runner.RunSession, "enter", entered)


def test_a_run_that_fails_half_way_is_kept_with_all_that_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at("final reads", monkeypatch)
    make(tmp_path, PlannedRun("a", "c", 3), SPEC)
    kept = RunDirectory.open(tmp_path / "runs" / "a")
    assert (kept.status().state, kept.status().stage) == ("failed", "final reads")
    assert "the workload is broken" in kept.status().message
    assert kept.versions()
    assert {path.name for path in kept.nodes_path.iterdir()} == {"b1", "b2", "b3", "c1", "c2", "c3"}
    evidence = kept.load()
    assert evidence.history.num_rows
    assert evidence.trace.num_rows
    assert evidence.replica_ends.num_rows
    assert EvidencePart.REPLICAS not in {gap.part for gap in evidence.gaps}
    (row,) = read_finished(tmp_path / "ended", "a")["runs"].to_pylist()
    assert row["state"] == "failed"
    assert not (tmp_path / "work" / "a").exists()


def test_a_run_that_fails_says_why_where_boxes_judge_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at("final reads", monkeypatch)
    make(tmp_path, PlannedRun("a", "c", 3, boxed=True), SPEC)
    (row,) = read_finished(tmp_path / "ended", "a")["runs"].to_pylist()
    assert row["state"] == "failed"
    assert "the workload is broken" in json.loads(row["facts"])["message"]
    assert RunDirectory.open(tmp_path / "runs" / "a").status().stage == "final reads"
