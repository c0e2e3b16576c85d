"""What stands of a run of which one part fails, and of which clusters appends may be demanded at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.environments.sim import SimDeployment
from harness.runner.outcome import Outcome
from harness.runner.run import RunSession, _takes_appends, run
from harness.spec import parse
from results.run.directory import RunDirectory

QUIET = parse({"name": "quiet", "time_limit": "1s", "faults": "none", "seed": 5})


def carried_out(store: Path) -> tuple[Outcome, RunDirectory]:
    directory = RunDirectory.create(store, QUIET.name, QUIET.seed)
    return run(QUIET, directory), directory


@pytest.mark.parametrize("part", ["harness.runner.run.explain_and_save", "results.pages.report.write_report"])
def test_a_verdict_stands_without_its_story_or_its_page(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("no words")

    monkeypatch.setattr(part, fails)
    outcome, directory = carried_out(tmp_path)
    assert (outcome.exit_code, outcome.failure) == (0, "")
    assert "no words" in outcome.unreported
    assert (directory.status().state, directory.gaps()) == ("finished", ())
    assert directory.verdicts()


@pytest.fixture
def fails_as_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*arguments: Any) -> None:
        raise RuntimeError("no clients")

    monkeypatch.setattr(RunSession, "_run_and_recover", fails)


@pytest.mark.usefixtures("fails_as_it_runs")
def test_the_files_of_the_nodes_are_collected_of_a_run_that_fails(tmp_path: Path) -> None:
    outcome, directory = carried_out(tmp_path)
    assert (outcome.exit_code, "no clients" in outcome.failure) == (3, True)
    assert {path.name for path in directory.nodes_path.iterdir()} >= {"b1", "b2", "b3"}
    assert not (directory.path / "not-collected.txt").exists()


@pytest.mark.usefixtures("fails_as_it_runs")
def test_a_failure_is_not_hidden_by_that_of_collecting_the_files_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*arguments: Any) -> None:
        raise OSError("no machines")

    monkeypatch.setattr(SimDeployment, "collect", lost)
    outcome, directory = carried_out(tmp_path)
    assert (outcome.exit_code, "no clients" in outcome.failure) == (3, True)
    assert (directory.path / "not-collected.txt").read_text().endswith("no machines\n")


@pytest.mark.parametrize(
    ("fields", "takes"),
    [
        ({}, True),
        ({"settings": {"min.insync.replicas": 3}}, True),
        ({"settings": {"min.insync.replicas": 4}}, False),
        ({"node_settings": {"b1": {"min.insync.replicas": 9}}}, False),
        ({"node_settings": {"b1": {"replica.lag.time.max.ms": 900}}}, True),
        ({"faults": [{"at": 1, "for": 1, "fault": "kill", "nodes": ["b1"]}]}, True),
        (
            {"faults": [{"at": 1, "for": 1, "fault": "alter-config", "key": "min.insync.replicas", "value": "9"}]},
            False,
        ),
        ({"clients": {"operations": ["produce 2 to 0"]}}, False),
    ],
    ids=str,
)
def test_appends_are_demanded_of_a_cluster_whose_settings_or_script_do_not_keep_it_from_them(
    fields: dict[str, Any], takes: bool
) -> None:
    assert _takes_appends(parse(fields)) is takes
