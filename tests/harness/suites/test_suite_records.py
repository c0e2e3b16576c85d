"""The record of a suite: which one is resumed, by one process at a time, and what of it stays on a full disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from harness.cli.main import main
from harness.exit_codes import BAD_USAGE
from harness.suites.job import carry_out
from harness.suites.plan import load
from harness.suites.record import CannotResume, begin, locked
from results.errors import StoreError
from results.store import finished_runs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_suite_of_other_sources_is_not_resumed(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = begin(tmp_path, load(str(mixed)))
    path = begun.path / "suite.json"
    path.write_text(path.read_text().replace(begun.facts["sources"], "0" * 32))
    assert main(["suite", "mixed", "--resume", "--store", str(tmp_path)]) == BAD_USAGE
    assert "was begun with other sources" in capsys.readouterr().err


def test_a_suite_is_run_by_one_process_at_a_time(mixed: Path, tmp_path: Path) -> None:
    begun = begin(tmp_path, load(str(mixed)))
    with locked(begun), pytest.raises(CannotResume, match="another process"), locked(begun):
        pass


def test_a_lock_that_cannot_be_written_is_one_line(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("results.store.spark.session", lambda *_, **__: pytest.fail("Spark was started"))
    lock = begin(tmp_path, load(str(mixed))).path / ".lock"
    lock.mkdir()
    assert main(["suite", "mixed", "--resume", "--store", str(tmp_path)]) == 3
    assert capsys.readouterr().err.splitlines()[0] == f"faultline: cannot write {lock}: Is a directory"


def test_nothing_to_resume_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "nightly", "--resume", "--store", str(tmp_path)]) == BAD_USAGE
    printed = capsys.readouterr().err
    assert "no suite of this name" in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("named", "sought"),
    [("v1.2-20261129T154717", "v1.2-20261129T154717"), ("my suite.yaml", "my-suite"), ("v1.2.yml", "v1.2")],
)
def test_a_suite_is_resumed_by_the_name_that_it_was_stored_under(
    named: str, sought: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["suite", named, "--resume", "--store", str(tmp_path)]) == BAD_USAGE
    assert f"{sought}: no suite of this name" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", '{"cells": []}', '{"cells": {}, "mutants": {}}'])
def test_a_suite_whose_plan_is_damaged_is_not_resumed(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "suites" / "nightly-20261122T043415"
    begun.mkdir(parents=True)
    (begun / "suite.json").write_text(text)
    assert main(["suite", "nightly", "--resume", "--store", str(tmp_path)]) == BAD_USAGE
    printed = capsys.readouterr().err
    assert f"{begun}/suite.json: cannot be read" in printed
    assert printed.count("\n") == 1


def test_a_suite_whose_runs_find_no_room_in_the_tables_leaves_no_run_half_made(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What unfinished runs have written is removed before the tables want room, not by the next resumption alone."""
    begun = begin(tmp_path, load(str(mixed)))

    def no_room(*_: object) -> None:
        raise StoreError("No space left on device")

    def cut_short(*_: object) -> SimpleNamespace:
        (begun.path / "work" / "half").mkdir(parents=True)
        monkeypatch.setattr(finished_runs, "move_to_tables", no_room)
        return SimpleNamespace(is_running=lambda _: False, stop=lambda: None, error=None)

    monkeypatch.setattr("harness.suites.job._started", cut_short)
    with pytest.raises(StoreError, match="No space left on device"):
        carry_out(begun, cast("SparkSession", None), lambda _: None)
    assert not (begun.path / "work").exists()
