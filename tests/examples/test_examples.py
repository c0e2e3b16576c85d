"""The examples run, and the public API is what they show."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import faultline
from faultline.testing import assert_holds
from harness.cli.main import main
from harness.spec import load, parse
from harness.suites import comparison

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "examples" / "specs"
EXPECTED = {"isolated-leader": 0, "broken-broker": 1, "consumer-group": 0}
"""Example → exit code of its run."""


def test_every_example_has_its_expected_end() -> None:
    assert {path.stem for path in SPECS.glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_of_a_spec_ends_as_it_says(name: str, tmp_path: Path) -> None:
    outcome = faultline.run(SPECS / f"{name}.yaml", store=tmp_path, report=False)
    assert (outcome.failure, outcome.exit_code) == ("", EXPECTED[name])


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "incidents").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_variant_of_an_example_of_an_incident_is_as_expected(path: Path, tmp_path: Path) -> None:
    assert main(["incident", "run", str(path), "--store", str(tmp_path)]) == 0


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "comparisons").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_of_a_comparison_can_be_planned(path: Path) -> None:
    assert len(list(comparison.load(str(path)).runs())) >= 2


def test_the_script_runs_a_spec_and_reads_its_history(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "read_a_run.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FAULTLINE_STORE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "append" in ended.stdout
    assert "linearizability  valid" in ended.stdout


def test_a_run_has_a_history_in_pandas_and_is_checked_again(tmp_path: Path) -> None:
    spec = {"time_limit": "5s", "faults": "none", "partitions": 1}
    outcome = faultline.run(spec, seed=2, store=tmp_path, report=False)
    assert outcome.validity is faultline.Validity.VALID
    assert outcome.directory is not None
    history = faultline.history(outcome.directory)
    appends = history[(history["kind"] == "append") & (history["outcome"] == "ok")]
    assert len(appends) == outcome.operations["append", "ok"]
    assert (appends["completed_ns"] >= appends["invoked_ns"]).all()
    assert faultline.check(outcome.directory) == outcome.verdicts


def test_fields_are_put_on_top_of_the_spec_and_checked(tmp_path: Path) -> None:
    with pytest.raises(faultline.SpecError, match=r"^rate: 0 is less than 0.001"):
        faultline.run(SPECS / "broken-broker.yaml", rate=0, store=tmp_path)
    with pytest.raises(faultline.SpecError, match=r"absent\.yaml: cannot be read"):
        faultline.run("absent.yaml", store=tmp_path)
    with pytest.raises(faultline.StoreError, match=r"there is no such run directory"):
        faultline.history(tmp_path / "absent")
    assert load(SPECS / "broken-broker.yaml").without == ("ack_after_high_watermark",)


def test_fields_have_the_values_of_yaml(tmp_path: Path) -> None:
    spec = {"time_limit": 1, "faults": "none", "settings": {"segment.bytes": 4096}, "clients": {"in_flight": 1}}
    fields = {"settings": {"min.insync.replicas": 1}, "acks": 1, "clients": {"batch": 4}}
    outcome = faultline.run(spec, store=tmp_path, report=False, **fields)
    assert (outcome.spec.acks, outcome.spec.clients.batch, outcome.spec.clients.in_flight) == ("1", 4, 5)
    assert {"min.insync.replicas": "1", "segment.bytes": "4096"}.items() <= outcome.spec.settings.items()
    assert outcome.validity is faultline.Validity.VALID
    for wrong in ({"settings": {"min.insync.replicas": [1]}}, {"settings": 1}, {"clients": {"batches": 1}}):
        with pytest.raises(faultline.SpecError, match=f"^{next(iter(wrong))}"):
            faultline.run(spec, store=tmp_path, **wrong)


def test_a_coroutine_is_refused_before_anything_is_done_and_told_what_to_do(tmp_path: Path) -> None:
    spec, options = {"time_limit": 1, "faults": "none"}, {"seed": 1, "store": tmp_path, "report": False}

    async def cell_of_a_notebook() -> faultline.Outcome:
        with pytest.raises(RuntimeError, match=r"await asyncio\.to_thread\(faultline\.run, …\)"):
            faultline.run(spec, **options)
        with pytest.raises(RuntimeError, match=r"await asyncio\.to_thread\(assert_holds, …\)"):
            assert_holds(parse(spec), directory=tmp_path)
        assert list(tmp_path.iterdir()) == []
        return await asyncio.to_thread(faultline.run, spec, **options)

    assert asyncio.run(cell_of_a_notebook()).digest == faultline.run(spec, **options).digest is not None


def test_a_display_looks_at_the_real_clock_and_changes_nothing(tmp_path: Path) -> None:
    spec, options = {"time_limit": 2, "faults": "none"}, {"seed": 1, "store": tmp_path, "report": False}
    seen: list[tuple[str, float]] = []

    def show(state: faultline.Progress) -> None:
        thread = threading.Thread(target=lambda: seen.append((state.stage, time.monotonic())))
        thread.start()
        thread.join()

    shown = faultline.run(spec, on_progress=show, **options)
    assert not shown.failure
    assert {stage for stage, _ in seen} >= {"deploying", "running", "recovering", "checking"}
    assert shown.digest == faultline.run(spec, **options).digest
