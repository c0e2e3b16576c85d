"""Runs in the simulation, from a spec to a verdict."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from checkers.verdict import Validity
from harness.environments.sim import SimDeployment
from harness.exit_codes import INTERRUPTED
from harness.runner.outcome import Outcome, Progress
from harness.runner.replay import compare, replay
from harness.runner.run import RunSession, run, run_in_simulation
from harness.spec import Spec, loads, parse
from nemesis.nemesis import Nemesis
from nemesis.uninterrupted import uninterrupted
from results.errors import StoreError
from results.run import directory
from results.run.directory import RunDirectory
from tests.harness.runs.command import check_again

SHORT = Spec(name="short", time_limit_s=8.0, seed=3, families=("partition", "kill", "pause"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """One short run with everything it leaves."""
    store = tmp_path_factory.mktemp("store")
    return run(SHORT, RunDirectory.create(store, SHORT.name, SHORT.seed))


def test_a_run_of_the_full_protocol_is_valid_and_leaves_everything(finished: Outcome) -> None:
    assert finished.validity is Validity.VALID, finished.verdicts
    assert finished.exit_code == 0
    assert finished.directory is not None
    names = {path.name for path in finished.directory.iterdir()}
    assert names >= {
        "spec.yaml",
        "schedule.yaml",
        "settings.json",
        "status.json",
        "history.parquet",
        "trace.parquet",
        "faults.parquet",
        "replicas.parquet",
        "recovery.json",
        "digest.txt",
        "trail.txt",
        "versions.json",
        "verdict.json",
        "report.html",
        "nodes",
    }
    assert RunDirectory.open(finished.directory).gaps() == ()


def test_the_outcome_is_one_json_object(finished: Outcome) -> None:
    output = json.loads(json.dumps(finished.to_json()))
    assert output["validity"] == "valid"
    assert output["operations"]["append"]["ok"] > 100
    assert output["replay"].startswith("faultline replay ")


def test_the_same_spec_ends_in_the_same_digest(finished: Outcome) -> None:
    assert finished.digest == run_in_simulation(SHORT).digest


def test_what_confirms_the_faults_has_ended_before_anything_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in the middle of what it does to the end, such as starting a node, when the cluster has recovered."""
    events: list[str] = []
    enter = RunSession.enter

    async def confirm(_: Nemesis) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await uninterrupted(asyncio.sleep(0.5))
            events.append("confirmed")

    def entered(session: RunSession, stage: str) -> None:
        events.append(stage)
        enter(session, stage)

    monkeypatch.setattr(Nemesis, "keep_confirmed", confirm)
    monkeypatch.setattr(RunSession, "enter", entered)
    run_in_simulation(parse({"time_limit": "2s", "seed": 4, "faults": "none"}))
    assert events.index("recovering") < events.index("confirmed") < events.index("final reads")


def test_another_seed_ends_in_another_digest(finished: Outcome) -> None:
    assert finished.digest != run_in_simulation(parse({"time_limit": "8s", "seed": 4})).digest


def test_the_drawn_schedule_run_as_a_script_is_the_same_run(finished: Outcome) -> None:
    from harness.spec import load

    assert finished.directory is not None
    scripted = load(finished.directory / "schedule.yaml")
    assert scripted.families == ()
    assert len(scripted.script) > 0
    assert run_in_simulation(scripted).digest == finished.digest


@pytest.mark.parametrize("workload", ["append", "groups"])
def test_what_is_held_in_memory_is_written_as_it_is_of_a_run_recorded_on_disk(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_now", lambda: "2026-11-21T00:15:00+00:00")
    spec = replace(SHORT, workload=workload, without=("maximal_isr",))
    on_disk, in_memory = (
        RunDirectory.create(tmp_path / name, "short", SHORT.seed, in_memory=name == "memory")
        for name in ("disk", "memory")
    )
    outcomes = [run(spec, each, report=False) for each in (on_disk, in_memory)]
    assert not {"status.json", "nodes", "trace.parquet"} & {path.name for path in in_memory.path.iterdir()}
    assert in_memory.status().state == "finished"
    in_memory.write_all()
    assert outcomes[0].verdicts == outcomes[1].verdicts
    written = [_contents(each.path) for each in (on_disk, in_memory)]
    assert written[0].keys() == written[1].keys()
    assert {name for name in written[0] if written[0][name] != written[1][name]} <= {Path("status.json")}
    assert RunDirectory.open(in_memory.path).gaps() == ()


def _contents(run_path: Path) -> dict[Path, bytes]:
    return {path.relative_to(run_path): path.read_bytes() for path in run_path.rglob("*") if path.is_file()}


def test_watching_a_run_does_not_change_it(finished: Outcome, tmp_path: Path) -> None:
    seen: list[Progress] = []
    outcome = run(SHORT, RunDirectory.create(tmp_path, "watched", 3), on_progress=seen.append, report=False)
    assert outcome.digest == finished.digest
    stages = list(dict.fromkeys(progress.stage for progress in seen))
    assert stages == [
        "deploying",
        "getting ready",
        "running",
        "recovering",
        "final reads",
        "collecting",
        "checking",
    ]


def test_a_replay_is_identical(finished: Outcome) -> None:
    assert finished.directory is not None
    comparison = replay(finished.directory)
    assert comparison.identical
    assert comparison.lines == (f"identical: digest {finished.digest}",)


def test_a_replay_that_differs_says_where(finished: Outcome, tmp_path: Path) -> None:
    assert finished.directory is not None
    other = run(parse({"time_limit": "8s", "seed": 4}), RunDirectory.create(tmp_path, "other", 4), report=False)
    assert other.directory is not None
    comparison = compare(RunDirectory.open(finished.directory), RunDirectory.open(other.directory), other)
    assert not comparison.identical
    assert comparison.lines[0].startswith("different: digest ")
    assert comparison.lines[1].startswith("the runs diverge between step 0 (0.000000 s) and step ")
    assert comparison.lines[2].startswith("history first differs in row ")
    assert "replayed" in comparison.lines[2]
    assert comparison.lines[3].startswith("trace first differs in row ")


def test_a_replay_that_differs_names_another_python_first(finished: Outcome, tmp_path: Path) -> None:
    assert finished.directory is not None
    copied = tmp_path / finished.directory.name
    shutil.copytree(finished.directory, copied)
    before = RunDirectory.open(copied)
    recorded = before.versions()
    assert recorded["Python"] == platform.python_version()
    (copied / "versions.json").write_text(json.dumps(recorded | {"Python": "3.8.1"}))
    (copied / "digest.txt").write_text("0" * 32)
    comparison = compare(before, RunDirectory.open(finished.directory), finished)
    assert not comparison.identical
    assert comparison.lines[:2] == (
        f"recorded with Python 3.8.1, replayed with {platform.python_version()}: the digest depends on it",
        f"different: digest {'0' * 32}, replayed {finished.digest}",
    )


def test_every_digest_is_the_same_whatever_the_hash_seed() -> None:
    code = (
        "from harness.runner.run import run_in_simulation; from harness.spec import Spec; "
        "print(run_in_simulation(Spec(seed=11, time_limit_s=15.0)).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "4242")
    }
    assert len(digests) == 1
    assert digests != {"None\n"}


def test_records_are_as_long_as_the_spec_says_and_their_values_are_read_back(tmp_path: Path) -> None:
    spec = loads("time_limit: 2s\npartitions: 1\nfaults: none\nclients: {record_bytes: 300}\n")
    outcome = run_in_simulation(spec, tmp_path)
    assert outcome.validity is Validity.VALID
    figures = {verdict.checker: verdict.figures for verdict in outcome.verdicts}
    assert figures["loss"]["promised"] > 0
    assert figures["reads"]["claims_on_disk"] > 0
    assert outcome.directory is not None
    segment = outcome.directory / "nodes" / "b1" / "data" / "faultline-0" / f"{0:020}.log"
    assert segment.stat().st_size > 300 * figures["loss"]["promised"]


def test_a_mutant_is_found() -> None:
    outcome = run_in_simulation(parse({"seed": 0, "without": ["idempotent_dedupe"]}))
    assert outcome.validity is Validity.INVALID
    assert outcome.exit_code == 1


def test_a_cluster_that_cannot_become_ready_is_a_run_not_carried_out() -> None:
    outcome = run_in_simulation(parse({"brokers": 2, "settings": {"broker.session.timeout.ms": "1"}, "seed": 1}))
    assert outcome.exit_code == 3
    assert "\n" not in outcome.failure
    assert "not ready" in outcome.failure


@pytest.mark.parametrize("brokers", [1, 5])
def test_clusters_of_other_sizes_run(brokers: int) -> None:
    outcome = run_in_simulation(parse({"brokers": brokers, "time_limit": "6s", "seed": 2, "faults": "pause,partition"}))
    assert outcome.failure == ""
    assert outcome.validity is not Validity.INVALID, outcome.verdicts


def test_a_store_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        run_in_simulation(SHORT, tmp_path / "file")


def test_a_killed_run_can_be_judged_as_far_as_it_goes(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "run", "--time-limit", "3000", "--seed", "5", "--store", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not _has_lines(tmp_path, 500):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (directory,) = [path for path in tmp_path.iterdir() if not path.is_symlink()]
    checked = check_again(directory)
    assert checked.returncode == 2, checked.stderr
    output = json.loads(checked.stdout)
    assert output["validity"] == "unknown"
    assert any("killed" in gap for gap in output["gaps"])
    by_checker = {check["checker"]: check["validity"] for check in output["checks"]}
    assert by_checker["linearizability"] == "valid"
    assert (directory / "report.html").exists()


@pytest.mark.parametrize("how", ["--default-signal=INT", "--ignore-signal=INT"], ids=["foreground", "background"])
def test_a_run_told_to_stop_is_interrupted_however_a_shell_started_it(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-m", "harness", "run", "--time-limit", "3000", "--seed", "5", "--store", str(tmp_path)]
    process = subprocess.Popen(["env", how, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while not _has_lines(tmp_path, 500):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.terminate()
        _, printed = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == INTERRUPTED
    assert "interrupted; check the recorded part with: faultline check" in printed
    assert "Traceback" not in printed


def _has_lines(store: Path, lines: int) -> bool:
    return any(path.read_bytes().count(b"\n") > lines for path in store.glob("*/history.jsonl"))


def test_the_recovery_limit_counts_from_the_end_of_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a killed node takes 20 s here, twice the limit: that is healing, and no part of the recovery."""
    start = SimDeployment.start

    async def slow(deployment: SimDeployment, node: str) -> None:
        await asyncio.sleep(20.0 if deployment.now_ns() > 3e9 else 0.0)
        await start(deployment, node)

    monkeypatch.setattr(SimDeployment, "start", slow)
    faults = [{"at": 3, "for": 2, "fault": "kill", "nodes": ["b2"]}]
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": 6, "recovery_limit": 10, "faults": faults}))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.recovery["healing_seconds"] >= 18
    assert outcome.recovery["seconds"] < 10


def test_a_node_that_cannot_be_started_again_leaves_liveness_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    start = SimDeployment.start

    async def refused(deployment: SimDeployment, node: str) -> None:
        if deployment.now_ns() > 2e9:
            raise RuntimeError(f"{node} does not start")
        await start(deployment, node)

    monkeypatch.setattr(SimDeployment, "start", refused)
    faults = [{"at": 3, "for": 1, "fault": "kill", "nodes": ["b2"]}]
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": 6, "recovery_limit": 5, "faults": faults}))
    (liveness,) = (verdict for verdict in outcome.verdicts if verdict.checker == "liveness")
    assert (liveness.validity, liveness.findings[0].kind) == (Validity.UNKNOWN, "not-healed")
    assert "RuntimeError: b2 does not start" in liveness.findings[0].lines
