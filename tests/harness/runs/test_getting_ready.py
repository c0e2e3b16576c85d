"""A cluster that does not get ready: a verdict where nothing but the system can be the cause, else none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.drawn_spec import with_drawn_world
from harness.runner.getting_ready import lies_within_worlds
from harness.runner.outcome import Outcome
from harness.runner.run import run, run_in_simulation
from harness.spec import Spec, parse
from images.broker.controller import controller, placement
from images.broker.controller.metadata_change import MetadataChange
from images.broker.metadata.image import PartitionImage
from results.run.directory import RunDirectory
from tests.harness.runs.command import check_again
from workloads.append import AppendWorkload
from workloads.workload import SetUpError


@pytest.fixture
def unfences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetadataChange, "unfence", MetadataChange.keep_fenced)


def _findings(outcome: Outcome) -> dict[str, list[str]]:
    return {each.checker: [finding.kind for finding in each.findings] for each in outcome.verdicts}


@pytest.mark.usefixtures("unfences_nobody")
def test_a_simulated_cluster_that_never_gets_ready_is_invalid_and_leaves_everything(tmp_path: Path) -> None:
    spec = with_drawn_world(parse({"vary": True, "seed": 3, "time_limit": "10s"}))
    outcome = run(spec, RunDirectory.create(tmp_path, spec.name, spec.seed))
    assert (outcome.exit_code, outcome.failure, outcome.unreported) == (1, "", "")
    liveness = next(each for each in outcome.verdicts if each.checker == "liveness")
    assert (liveness.validity, liveness.findings[0].kind) == (Validity.INVALID, "not-ready")
    assert "nothing had been broken yet" in liveness.findings[0].lines[0]
    assert any("brokers unfenced" in line for line in liveness.findings[0].lines)
    assert any("liveness" in {each.check for each in story.consequences} for story in outcome.stories)
    directory = outcome.directory
    assert directory is not None
    assert {"manifest.json", "verdict.json", "stories.json", "report.html", "trace.parquet", "nodes"} <= {
        path.name for path in directory.iterdir()
    }
    checked = check_again(directory)
    assert checked.returncode == 1, checked.stderr
    assert "not-ready" in checked.stdout


@pytest.mark.usefixtures("unfences_nobody")
@pytest.mark.parametrize("impatient", [{"ready_limit": "20s"}, {"settings": {"broker.session.timeout.ms": "50"}}])
def test_a_spec_that_may_keep_any_cluster_from_getting_ready_accuses_nobody(impatient: dict[str, Any]) -> None:
    outcome = run_in_simulation(parse({"seed": 3, "time_limit": "10s", **impatient}))
    assert outcome.exit_code == 3
    assert "not ready" in outcome.failure


def test_a_process_that_ends_before_any_fault_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("registered")

    monkeypatch.setattr(MetadataChange, "register", fail)
    outcome = run_in_simulation(parse({"seed": 3, "time_limit": "10s"}))
    assert outcome.exit_code == 1
    assert "not-ready" in _findings(outcome)["liveness"]
    assert "process-crashed" in _findings(outcome)["processes"]


def test_a_topic_that_gets_no_leader_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = placement.plan

    def leaderless(*arguments: Any) -> Any:
        records = plan(*arguments)
        return [replace(each, leader=-1) if isinstance(each, PartitionImage) else each for each in records]

    monkeypatch.setattr(controller, "plan", leaderless)
    outcome = run_in_simulation(parse({"seed": 3, "time_limit": "10s"}))
    assert outcome.exit_code == 1, outcome.failure
    assert "not-ready" in _findings(outcome)["liveness"]


def test_a_topic_that_cannot_be_made_is_a_run_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(workload: AppendWorkload) -> None:
        raise SetUpError("create topic faultline: INVALID_PARTITIONS")

    monkeypatch.setattr(AppendWorkload, "set_up", refused)
    outcome = run_in_simulation(parse({"seed": 3, "time_limit": "10s"}))
    assert (outcome.exit_code, outcome.failure) == (3, "create topic faultline: INVALID_PARTITIONS")


def test_an_error_of_the_harness_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(workload: AppendWorkload) -> None:
        raise KeyError("harness")

    monkeypatch.setattr(AppendWorkload, "set_up", broken)
    outcome = run_in_simulation(parse({"seed": 3, "time_limit": "10s"}))
    assert outcome.exit_code == 3
    assert "KeyError while getting ready" in outcome.failure


@pytest.mark.parametrize("workload", ["append", "groups"])
def test_every_drawn_world_and_the_default_one_lie_within_worlds(workload: str) -> None:
    assert lies_within_worlds(Spec(workload=workload))
    specs = [with_drawn_world(parse({"vary": True, "seed": seed, "workload": workload})) for seed in range(200)]
    assert all(lies_within_worlds(spec) for spec in specs)


@pytest.mark.parametrize(
    "given",
    [
        {"settings": {"broker.session.timeout.ms": "999"}},
        {"settings": {"broker.heartbeat.interval.ms": "600", "broker.session.timeout.ms": "1000"}},
        {"settings": {"controller.quorum.request.timeout.ms": "1"}},
        {"settings": {"message.max.bytes": "2000"}},
        {"node_settings": {"b1": {"replica.lag.time.max.ms": "1"}}},
        {"ready_limit": "119s"},
        {"brokers": 6},
        {"partitions": 6},
    ],
)
def test_what_is_never_drawn_lies_outside(given: dict[str, Any]) -> None:
    assert not lies_within_worlds(parse(given))


@pytest.mark.parametrize(
    "given",
    [
        {"settings": {"log.segment.bytes": "2000", "unclean.recovery.strategy": "manual"}},
        {"node_settings": {"b1": {"faultline.protocol": "kip279"}}, "without": ["maximal_isr"]},
        {"brokers": 1, "controllers": 1, "replication_factor": 1, "settings": {"min.insync.replicas": "1"}},
    ],
)
def test_smaller_clusters_and_other_names_lie_within(given: dict[str, Any]) -> None:
    assert lies_within_worlds(parse(given))
