"""What a suite leaves: each run once, with its figures, and everything of those that failed."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.cli.main import main
from harness.exit_codes import INVALID, VALID
from results.pages.suite import render
from results.store import finished_runs, tables
from results.suites import read_suite
from tests.harness.suites.mixed_suite import only_suite, stored

pytestmark = pytest.mark.spark


def test_every_run_is_stored_once_with_its_verdicts_metrics_and_coverage(uninterrupted: Path) -> None:
    rows = stored(uninterrupted)
    names = [row["run"] for row in rows["runs"]]
    assert sorted(names) == sorted(f"{cell}-seed{seed}" for cell in ("mutant", "sound") for seed in range(2))
    for table in ("verdicts", "metrics", "coverage"):
        assert {row["run"] for row in rows[table]} == set(names), table
    assert {row["name"] for row in rows["coverage"] if row["kind"] == "event"} >= {"became_leader", "high_watermark"}


def test_the_values_that_runs_drew_are_counted_and_all_others_are_named(uninterrupted: Path) -> None:
    drawn = {row["name"] for row in stored(uninterrupted)["coverage"] if row["kind"] == "world"}
    assert {name.partition("=")[0] for name in drawn} == {"clients.in_flight", "segment.bytes"}
    never = json.loads((only_suite(uninterrupted) / "summary.json").read_text())["never_drawn"]
    assert len(drawn) + len(never) == 8
    assert not drawn & {*never}
    suite = read_suite(uninterrupted, only_suite(uninterrupted).name)
    assert suite is not None
    page = render(suite, lambda run: "")
    names: dict[str, list[str]] = {dimension: [] for dimension in suite.worlds}
    for name in never:
        dimension, _, value = name.partition("=")
        names[dimension].append(value)
    listed = "; ".join(f"{dimension} {', '.join(values)}" for dimension, values in names.items() if values)
    assert f"worlds: {len(drawn)} of 8 values drawn, in 2 dimensions; never: {listed}" in page


def test_the_situations_of_all_runs_say_how_thorough_the_suite_was(uninterrupted: Path) -> None:
    summary = json.loads((only_suite(uninterrupted) / "summary.json").read_text())
    found = summary["situations"]
    seen = {row["name"] for row in stored(uninterrupted)["coverage"] if row["kind"] == "situation"}
    assert (found["runs"], found["seen"]) == (4, len(seen))
    assert 5 < found["in_one_run"] < found["seen"] <= found["richness"]["value"]
    assert found["transitions"] > 5
    assert not [mark for mark in summary["coverage"] if mark["kind"] in ("situation", "transition")]
    suite = read_suite(uninterrupted, only_suite(uninterrupted).name)
    assert suite is not None
    assert suite.thoroughness is not None
    assert suite.thoroughness.to_json() == found
    assert f"situations: {found['seen']} in 4 runs" in render(suite, lambda run: "")


def test_a_run_that_failed_keeps_everything_and_one_that_passed_its_metrics(uninterrupted: Path) -> None:
    kept = only_suite(uninterrupted) / "runs"
    for row in tables.read(uninterrupted, "runs").table.to_pylist():
        failed = row["validity"] != "valid"
        assert failed == row["run"].startswith("mutant"), row["run"]
        assert row["evidence"] == failed
        assert (kept / row["run"] / "report.html").exists() == failed
        assert (kept / row["run"] / "trace.parquet").exists() == failed
        history = [line for line in stored(uninterrupted)["history"] if line["run"] == row["run"]]
        assert bool(history) == failed
    assert not (only_suite(uninterrupted) / "work").exists()
    assert not finished_runs.finished_names(only_suite(uninterrupted) / "ended")


def test_a_failing_run_of_a_suite_is_checked_again_as_it_was(uninterrupted: Path) -> None:
    run = only_suite(uninterrupted) / "runs" / "mutant-seed0"
    assert main(["check", str(run)]) == INVALID


def test_a_stored_failure_is_exported_and_a_stored_success_says_that_only_its_figures_are_kept(
    uninterrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--store", str(uninterrupted)]
    assert main(["store", "export", "mutant-seed1", str(tmp_path / "run"), *at]) == VALID
    assert main(["check", str(tmp_path / "run")]) == INVALID
    assert main(["store", "export", "sound-seed1", str(tmp_path / "other"), *at]) == 3
    assert "only verdicts and figures of this run are stored" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_the_summary_and_junit_name_what_failed(uninterrupted: Path) -> None:
    output = json.loads((only_suite(uninterrupted) / "summary.json").read_text())
    assert output["cells"] == {"sound": {"valid": 2}, "mutant": {"invalid": 2}}
    assert output["exit_code"] == INVALID
    assert [run["seed"] for run in output["not_valid"]] == [0, 1]
    assert all(run["causes"] and Path(run["directory"]).is_dir() for run in output["not_valid"])
    assert all(run["signatures"] for run in output["not_valid"])
    assert {name for runs in output["signatures"].values() for name in runs} == {
        run["run"] for run in output["not_valid"]
    }
    root = ElementTree.parse(only_suite(uninterrupted) / "junit.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "2", "0")
    assert len(root.findall(".//testcase")) == 4
    assert all("loss: lost-append" in (failure.get("message") or "") for failure in root.findall(".//failure"))
