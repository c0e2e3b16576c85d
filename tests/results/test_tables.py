"""The Parquet store: whole batches, readable by others, and no bad file passed over in silence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkers.tables import REPLICA_ENDS
from harness.cli.main import main
from results.errors import StoreError
from results.run.directory import RunDirectory
from results.store import finished_runs, tables
from results.store.partition_index import rows, units
from results.store.schema import SCHEMAS, batch_path


def test_a_run_comes_back_from_the_store_as_it_went_in(store: Path, ended: RunDirectory) -> None:
    evidence = ended.load()
    for name in ("history", "trace", "replicas", "replica_ends", "faults"):
        stored = tables.read(store, name)
        assert not stored.damaged
        assert stored.table.drop_columns(["run", "suite"]).equals(getattr(evidence, name)), name
    (row,) = tables.read(store, "runs").table.to_pylist()
    assert (row["suite"], row["run"], row["validity"], row["digest"]) == (
        "nightly",
        ended.name,
        "invalid",
        ended.digest(),
    )
    assert row["spec"] == ended.read_spec_text()
    figures = [tuple(row.values()) for row in tables.read(store, "metrics").table.drop_columns(["run"]).to_pylist()]
    assert ("loss", "lost", 2.0, "nightly") in figures
    assert "measured" in {checker for checker, *_ in figures}


def test_pandas_reads_a_table_with_the_suite_as_a_column(store: Path, ended: RunDirectory) -> None:
    frame = pd.read_parquet(store / "tables" / "v1" / "history")
    assert set(frame["suite"]) == {"nightly"}
    assert len(frame) == ended.load().history.num_rows


def test_adding_a_run_twice_changes_nothing(store: Path, ended: RunDirectory) -> None:
    assert not tables.add_run(store, "nightly", ended)
    assert tables.read(store, "runs").table.num_rows == 1


def test_another_run_of_the_same_name_is_not_taken_for_the_stored_one(
    store: Path, ended: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two nights, both suites keep a run called `append-seed7`."""
    other = tmp_path / "another" / ended.name
    shutil.copytree(ended.path, other)
    status = json.loads((other / "status.json").read_text())
    (other / "status.json").write_text(json.dumps({**status, "started": "2026-11-30T00:00:00+00:00"}))
    assert main(["store", "add", str(other), "--suite", "nightly", "--store", str(store)]) == 3
    message = f"{other}: nightly has another run called {ended.name}; add it to another suite"
    assert capsys.readouterr().err == f"faultline store: {message}\n"
    assert tables.add_run(store, "tonight", RunDirectory.open(other))


def test_a_run_of_a_suite_is_not_added_beside_itself(tmp_path: Path, ended: RunDirectory) -> None:
    """Its suite has stored it in one batch with others."""
    rows = tables.of_run(ended, ended.load(), cell="append")
    finished_runs.write_finished(finished_runs.suite_path(tmp_path, "nightly") / "ended", ended.name, rows)
    finished_runs.move_to_tables(tmp_path, "nightly", [ended.name])
    assert not tables.add_run(tmp_path, "nightly", ended)
    assert tables.read(tmp_path, "runs").table.num_rows == 1


def test_a_batch_that_was_cut_short_does_not_count_and_is_named_until_it_is_added_again(
    store: Path, ended: RunDirectory
) -> None:
    batch_path(store, "runs", "nightly", ended.name).unlink()
    stored = tables.read(store, "history")
    assert stored.table.num_rows == 0
    assert [file.path.name for file in stored.damaged] == [f"{ended.name}.parquet"]
    assert tables.add_run(store, "nightly", ended)
    assert tables.verify(store) == (len(SCHEMAS), ())


class _WatchedRows(dict[str, pa.Table]):
    """The rows of a batch; the store is verified while it is written, before its last file."""

    def __init__(self, store: Path, rows: dict[str, pa.Table], *, killed: bool = False) -> None:
        super().__init__(rows)
        self._store, self._killed = store, killed
        self.verified: list[tuple[tables.DamagedFile, ...]] = []

    def __getitem__(self, name: str) -> pa.Table:
        if name == "runs":
            assert batch_path(self._store, "history", "nightly", "batch-00001").exists()
            self.verified.append(tables.verify(self._store)[1])
            if self._killed:
                raise KeyboardInterrupt
        return super().__getitem__(name)


def test_a_batch_that_is_being_written_is_accused_only_once_its_process_is_gone(
    store: Path, ended: RunDirectory
) -> None:
    rows_of_tables = tables.of_run(ended, ended.load(), cell="append", name="another")
    watched = _WatchedRows(store, rows_of_tables, killed=True)
    with pytest.raises(KeyboardInterrupt):
        tables.write_batch(store, "nightly", "batch-00001", watched)
    assert watched.verified == [()]
    _, damaged = tables.verify(store)
    assert {file.reason for file in damaged} == {"its batch is incomplete: runs has no file of this name"}
    assert len(damaged) == len(SCHEMAS) - 1
    watched = _WatchedRows(store, rows_of_tables)
    tables.write_batch(store, "nightly", "batch-00001", watched)
    assert watched.verified == [()]
    assert tables.verify(store) == (2 * len(SCHEMAS), ())


def test_a_batch_that_comes_while_the_store_is_read_is_no_foreign_file(
    store: Path, ended: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows_of_tables, read = tables.of_run(ended, ended.load(), cell="append", name="another"), tables.read

    def read_meanwhile(place: Path, name: str) -> tables.StoredTable:
        if name == "runs":
            tables.write_batch(store, "nightly", "batch-00001", rows_of_tables)
        return read(place, name)

    monkeypatch.setattr(tables, "read", read_meanwhile)
    assert tables.verify(store) == (len(SCHEMAS), ())


def test_a_corrupt_a_foreign_and_a_missing_file_are_each_reported_by_name_and_skipped(
    store: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    corrupt = batch_path(store, "trace", "nightly", ended.name)
    corrupt.write_bytes(corrupt.read_bytes()[:-20])
    foreign = batch_path(store, "history", "nightly", "someone-elses")
    pq.write_table(pa.table({"a": [1]}), foreign)
    missing = batch_path(store, "faults", "nightly", ended.name)
    missing.unlink()
    assert main(["store", "verify", "--store", str(store)]) == 3
    errors = capsys.readouterr().err
    assert all(str(path) in errors for path in (corrupt, foreign, missing))
    assert len(errors.splitlines()) == 3
    assert tables.read(store, "history").table.num_rows == ended.load().history.num_rows


def test_a_parquet_file_where_no_reader_looks_is_named(
    store: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    table = batch_path(store, "history", "nightly", ended.name).parents[1]
    foreign_files = [table / "foreign.parquet", table.parent / "strange" / "suite=nightly" / "x.parquet"]
    for foreign in foreign_files:
        foreign.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": [1]}), foreign)
    assert main(["store", "verify", "--store", str(store)]) == 3
    output = capsys.readouterr()
    assert [line.partition(": ")[0] for line in output.err.splitlines()] == [str(foreign) for foreign in foreign_files]
    assert output.out.endswith(" files are intact, 2 are damaged\n")


@pytest.mark.parametrize("place", ["tables", "suites", "tables/v1", "tables/v1/runs", "tables/v1/runs/suite=nightly"])
def test_a_file_in_the_place_of_a_directory_is_one_clear_line_and_3(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("notes")
    line = f"{path}: is not a directory, which a store has in its place; move it away\n"
    for action in ("ls", "verify"):
        assert main(["store", action, "--store", str(tmp_path)]) == 3
        assert capsys.readouterr().err == line
    for command in (
        ["report", "nightly"],
        ["trend", "nightly"],
        ["store", "show", "nightly"],
        ["store", "rm", "nightly"],
        ["store", "check", "nightly"],
        ["run", "nightly/a-run"],
    ):
        assert main([*command, "--store", str(tmp_path)]) == (64 if command[0] == "run" else 3)
        assert capsys.readouterr().err == f"faultline {command[0]}: {line}"


def test_a_file_in_the_place_of_a_table_is_named_when_a_suite_is_shown_that_it_hides(
    store: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    path = batch_path(store, "runs", "nightly", ended.name).parents[1]
    shutil.rmtree(path)
    path.write_text("notes")
    assert main(["store", "show", "nightly", "--store", str(store)]) == 3
    assert f"{path}: is not a directory" in capsys.readouterr().err


def test_a_file_from_before_a_column_was_added_is_read_with_what_stands_for_it(
    store: Path, ended: RunDirectory
) -> None:
    path = batch_path(store, "replica_ends", "nightly", ended.name)
    now = pq.read_table(path)
    pq.write_table(now.drop_columns(["damage", "epoch_checkpoint"]), path)
    stored = tables.read(store, "replica_ends")
    assert not stored.damaged
    assert stored.table.drop_columns(["suite"]).equals(now)
    (first, *_) = units(store, "nightly", ended.name, [ended.name])[1:]
    assert rows(store, "nightly", ended.name, "replica_ends", first).column_names == REPLICA_ENDS.names
    pq.write_table(now.drop_columns(["log_end"]), path)
    assert [file.reason for file in tables.read(store, "replica_ends").damaged] == [
        "its columns are not those of replica_ends"
    ]


def test_what_a_complete_batch_lacks_is_reported_for_that_table_alone(store: Path, ended: RunDirectory) -> None:
    missing = batch_path(store, "metrics", "nightly", ended.name)
    missing.unlink()
    (file,) = tables.read(store, "metrics", "nightly").damaged
    assert file.path == missing
    assert file.line.startswith(f"metrics/suite=nightly/{ended.name}.parquet: is missing")
    assert tables.read(store, "metrics", "another").damaged == ()
    assert tables.read(store, "verdicts").damaged == ()


@pytest.mark.parametrize("action", ["ls", "verify"])
def test_a_store_that_is_not_there_is_told_and_is_not_an_empty_one(
    tmp_path: Path, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["store", action, "--store", str(tmp_path / "mistyped")]) == 64
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"faultline store: {tmp_path / 'mistyped'}: there is no such directory")
    assert main(["store", action, "--store", str(tmp_path)]) == 0


def test_a_store_that_is_not_there_is_told_before_spark_is_started_to_check_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("results.store.spark.session", lambda *_, **__: pytest.fail("Spark was started"))
    assert main(["store", "check", "--store", str(tmp_path / "mistyped")]) == 64
    assert capsys.readouterr().err.startswith(f"faultline store: {tmp_path / 'mistyped'}: there is no such directory")


def test_a_run_that_is_still_going_on_cannot_be_added(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    with pytest.raises(StoreError, match="only a finished run"):
        tables.add_run(tmp_path, "nightly", run)


@pytest.mark.parametrize("suite", ["../up", "", ".hidden", "a/b"])
def test_a_suite_cannot_be_named_so_that_its_files_lie_elsewhere(
    tmp_path: Path, ended: RunDirectory, suite: str
) -> None:
    with pytest.raises(StoreError, match="suite"):
        tables.add_run(tmp_path, suite, ended)


def test_the_command_adds_and_lists(tmp_path: Path, ended: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--store", str(tmp_path / "other")]
    assert main(["store", "add", str(ended.path), "--suite", "docker", *at]) == 0
    assert main(["store", "ls", *at]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"docker  {ended.name}  invalid"
