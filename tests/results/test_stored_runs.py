"""Suites and runs by their exact names: shown, given back, removed whole, and no name reaches anything else."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkers.verdict import Validity, Verdict
from harness.cli.main import main
from harness.exit_codes import BAD_USAGE
from results.errors import StoreError
from results.pages.report import write_report
from results.run.directory import RunDirectory
from results.store import stored_runs, tables
from results.store.schema import MESSAGE, SCHEMAS, batch_path, tables_path
from tests.results.conftest import make_run
from tests.results.trend.nights import make_night, plain


def files(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


def together(store: Path, suite: str, first: RunDirectory) -> None:
    """Store a batch of two runs, as a suite does."""
    tables.add_run(store, suite, first)
    for name in SCHEMAS:
        path = batch_path(store, name, suite, first.name)
        one = tables.load(path, name)
        other = one.set_column(0, one.schema.field("run"), pa.array(["other"] * one.num_rows, pa.string()))
        pq.write_table(pa.concat_tables([one, other]).replace_schema_metadata(one.schema.metadata), path)


def test_a_run_is_shown_with_its_verdict_and_what_was_found(
    store: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "show", ended.name, "--store", str(store)]) == 0
    output = capsys.readouterr().out
    assert "verdict  invalid" in output
    assert "invalid  loss\n    lost-append\n    one line\n" in output
    assert "history  1200 rows" in output


def test_a_suite_is_shown_with_its_failures_first(
    store: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = ended.path.with_name("20000101T000000-first-by-name")
    shutil.copytree(ended.path, fine)
    RunDirectory.open(fine).write_verdict([Verdict("loss", Validity.VALID)])
    tables.add_run(store, "nightly", RunDirectory.open(fine))
    assert main(["store", "show", "nightly", "--store", str(store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "suite nightly: 2 runs, 1 invalid, 1 valid"
    assert [line.split()[0] for line in lines[1:]] == ["invalid", "valid"]


def test_a_mutant_that_a_suite_is_to_find_is_not_among_its_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def losing(random: np.random.Generator, cell: str, night: int) -> dict[str, float]:
        return {**plain(random, cell, night), "lost": float(cell == "groups")}

    suite = make_night(tmp_path, 0, losing, seeds=2, mutants=("groups",))
    assert main(["store", "show", suite, "--store", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"suite {suite}: 4 runs, 2 mutant found, 2 valid"
    assert [line.partition("  ")[0] for line in lines[1:]] == ["mutant found"] * 2 + ["valid"] * 2


def test_an_exported_run_is_the_run_that_was_added(store: Path, ended: RunDirectory, tmp_path: Path) -> None:
    assert main(["store", "export", ended.name, str(tmp_path / "back"), "--store", str(store)]) == 0
    back = RunDirectory.open(tmp_path / "back")
    before, after = ended.load(), back.load()
    for name in ("history", "trace", "replicas", "replica_ends", "faults", "settings"):
        assert getattr(after, name) == getattr(before, name), name
    assert dict(after.recovery) == dict(before.recovery)
    assert back.verdicts() == ended.verdicts()
    assert (back.read_spec_text(), back.digest()) == (ended.read_spec_text(), ended.digest())
    assert back.gaps() == ()
    assert write_report(back).exists()
    assert main(["store", "export", ended.name, str(tmp_path / "back"), "--store", str(store)]) == 64


def test_a_suite_whose_name_leads_out_of_the_store_is_bad_usage(
    ended: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", "add", str(ended.path), "--suite", "../x", "--store", str(tmp_path)]) == 64
    assert capsys.readouterr().err.startswith("faultline store: suite: '../x' must consist of letters")


def test_a_stored_run_says_why_it_did_not_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "runs")
    run.seal()
    run.write_status("failed", message="no broker came up")
    assert tables.add_run(tmp_path, "nightly", run)
    back = stored_runs.read_run(tmp_path, stored_runs.find(tmp_path, run.name))
    assert (back.status.message, MESSAGE in back.status.facts) == ("no broker came up", False)
    assert back.gaps[0] == run.gaps()[0] == "the run ended failed: no broker came up"
    capsys.readouterr()
    assert main(["store", "show", run.name, "--store", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "\nverdict  failed\n" in output
    assert "\nstate    failed: no broker came up\n" in output
    assert main(["store", "ls", "--store", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"nightly  {run.name}  failed\n"


def test_a_removed_suite_leaves_nothing_and_says_what_went(
    store: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.add_run(store, "weekly", ended)
    assert main(["store", "rm", "weekly", "--store", str(store)]) == 0
    assert capsys.readouterr().out == f"removed suite weekly with 1 run: {len(SCHEMAS)} files\n"
    assert not list(tables_path(store).glob("*/suite=weekly"))
    assert tables.verify(store) == (len(SCHEMAS), ())
    assert ended.path.is_dir()


def test_what_a_removed_suite_kept_beside_the_tables_stays_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = make_night(tmp_path, 0, seeds=2)
    assert main(["store", "rm", suite, "--store", str(tmp_path)]) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0].startswith(f"removed suite {suite} with 4 runs: ")
    assert output[1].endswith(f"stay in {tmp_path / 'suites' / suite}")
    assert (tmp_path / "suites" / suite / "suite.json").exists()


def test_a_dry_run_removes_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(store)
    assert main(["store", "rm", "nightly", "--dry-run", "--store", str(store)]) == 0
    assert capsys.readouterr().out == "would remove suite nightly with 1 run\n"
    assert files(store) == before


@pytest.mark.parametrize("survived", range(1, len(SCHEMAS)))
def test_a_removal_killed_halfway_leaves_no_run_that_counts_and_is_finished_by_the_same_command(
    store: Path, ended: RunDirectory, survived: int
) -> None:
    removal = stored_runs.remove(store, stored_runs.find(store, ended.name))
    gone = [next(removal) for _ in range(survived)]
    assert gone[0] == batch_path(store, "runs", "nightly", ended.name)
    assert all(tables.read(store, name).table.num_rows == 0 for name in SCHEMAS)
    assert tables.verify(store)[1] == (), "while it goes on, it is no damage"
    removal.close()
    _, faults = tables.verify(store)
    assert len(faults) == len(SCHEMAS) - survived
    assert main(["store", "rm", ended.name, "--store", str(store)]) == 0
    assert files(store) == []


@pytest.mark.parametrize(
    "name", ["night", "nightly*", "*", "", "/", ".", "../store", "nightly/..", "../../etc/passwd", "runs/nightly"]
)
def test_only_an_exact_name_removes_anything(store: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(store)
    assert main(["store", "rm", name, "--store", str(store)]) == BAD_USAGE
    output = capsys.readouterr()
    assert output.err.startswith(f"faultline store: {name!r}: no suite and no run of this name is stored in ")
    assert output.err.count("\n") == 1
    assert files(store) == before


def test_a_name_that_fits_two_runs_is_refused_with_the_names_to_choose_from(
    store: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.add_run(store, "weekly", ended)
    before = files(store)
    assert main(["store", "rm", ended.name, "--store", str(store)]) == BAD_USAGE
    assert f"choose one of: nightly/{ended.name}, weekly/{ended.name}" in capsys.readouterr().err
    assert files(store) == before
    assert main(["store", "rm", f"weekly/{ended.name}", "--store", str(store)]) == 0
    assert {batch.suite for batch in stored_runs.batches(store)} == {"nightly"}


def test_a_run_stored_together_with_others_is_not_taken_out_alone(
    store: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    together(store, "pair", ended)
    before = files(store)
    assert main(["store", "rm", "nightly", "other", "--store", str(store)]) == 3
    assert "in one batch with 1 other run; only the whole suite pair/ can be removed" in capsys.readouterr().err
    assert files(store) == before
    assert stored_runs.read_run(store, stored_runs.find(store, "other")).evidence.history.num_rows == 1200
    assert main(["store", "rm", "pair", "--store", str(store)]) == 0


def test_nothing_behind_a_link_is_removed(store: Path, tmp_path: Path) -> None:
    inside = tables_path(store) / "history" / "suite=nightly"
    outside = tmp_path / "elsewhere"
    shutil.move(inside, outside)
    inside.symlink_to(outside)
    before = files(outside)
    with pytest.raises(StoreError, match="is a link"):
        list(stored_runs.remove(store, stored_runs.find(store, "nightly")))
    assert files(outside) == before


def test_what_cannot_be_read_back_is_one_line(
    store: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    path = batch_path(store, "trace", "nightly", ended.name)
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["store", "show", ended.name, "--store", str(store)]) == 3
    errors = capsys.readouterr().err
    assert str(path) in errors
    assert errors.count("\n") == 1


def test_a_run_without_its_row_in_the_table_of_runs_cannot_be_read(
    store: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    path = batch_path(store, "runs", "nightly", ended.name)
    pq.write_table(pq.read_table(path, partitioning=None).slice(0, 0), path)
    assert main(["store", "show", ended.name, "--store", str(store)]) == 3
    assert f"nightly/{ended.name}: was cut short" in capsys.readouterr().err
