"""Suites on Spark: resumed without loss or repetition, the same on any master, with reports for people and programs."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree

import pytest
from py4j.protocol import Py4JNetworkError

from harness.cli.main import main
from harness.exit_codes import BAD_USAGE, INTERRUPTED, INVALID, VALID
from harness.suites.job import RunResult, cause_in, summed_up, tasks_of
from harness.suites.plan import Suite, load
from harness.suites.record import CannotResume, SuiteRecord, begin, locked, resume
from harness.suites.report import by_signature, exit_code, failures, junit, save
from results.errors import StoreError
from results.pages.suite import render
from results.store import finished_runs, tables
from results.store.finished_runs import suite_path
from results.store.schema import SCHEMAS, batch_path
from results.store.summary import Summary
from results.suites import read_suite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
MIXED = """
seeds: 2
base:
  partitions: 1
  time_limit: 14s
  vary: [clients.in_flight, segment.bytes]
specs:
  sound: {faults: [kill]}
  mutant:
    without: [ack_after_high_watermark]
    faults:
      - {at: 4, for: 6, fault: partition, shape: leader-only, nodes: [leader/0]}
      - {at: 5.5, for: 5, fault: power-loss, nodes: [leader/0], keep: nothing}
"""
WHEN = ("started", "facts")
"""Columns with the start and the duration of a run."""


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.yaml"
    path.write_text(MIXED)
    return path


def stored(store: Path) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, without the columns of WHEN."""
    rows_of = {}
    for name in ("runs", "verdicts", "metrics", "coverage", "history", "trace", "replicas", "faults"):
        read = tables.read(store, name)
        assert not read.damaged
        rows = read.table.drop_columns(["suite", *(WHEN if name == "runs" else ())]).to_pylist()
        rows_of[name] = sorted(rows, key=lambda row: row["run"])
    return rows_of


ALONE = "import sys; sys.path.insert(0, {root!r}); from harness.cli.main import main; sys.exit(main(sys.argv[1:]))"
"""The command where nothing but its own process can import it."""


def python_without_the_package(directory: Path) -> str:
    """An interpreter that has the libraries, and cannot import a checkout that pip installed as editable."""
    venv.create(directory)
    for name in ("purelib", "platlib"):
        libraries = Path(sysconfig.get_path(name, vars={"base": str(directory), "platbase": str(directory)}))
        (libraries / "libraries.pth").write_text(sysconfig.get_path(name))
    python = str(directory / "bin" / "python")
    assert subprocess.run([python, "-c", "import pyspark, pyarrow"], cwd="/", check=False).returncode == 0
    assert subprocess.run([python, "-I", "-c", "import harness"], capture_output=True, check=False).returncode == 1
    return python


def faultline(*arguments: str, python: str = sys.executable) -> subprocess.Popen[str]:
    """The command in a process of its own, in a process group of its own, as a shell starts it in the foreground."""
    return subprocess.Popen(
        ["env", "--default-signal=INT", python, "-I", "-c", ALONE.format(root=str(ROOT)), *arguments],
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def only_suite(store: Path) -> Path:
    (path,) = (store / "suites").iterdir()
    return path


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one suite, run in one go."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    (directory / "mixed.yaml").write_text(MIXED)
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        code = main(["suite", str(directory / "mixed.yaml"), "--store", str(directory)])
    assert code == INVALID, errors.getvalue()
    assert "mutant" in output.getvalue()
    assert "values drawn, in 2 dimensions; never: " in output.getvalue()
    assert re.search(r"\ncovered: \d+ kinds of protocol events, with \d+ different reasons", output.getvalue())
    assert re.search(r"\nrules: \d+ of 63 safety rules were read; never: ", output.getvalue())
    assert "\nsituations: " in output.getvalue()
    assert [line for line in errors.getvalue().splitlines() if line.startswith("invalid mutant-seed")]
    return directory


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


def test_a_killed_suite_resumes_with_what_is_missing_and_ends_as_an_undisturbed_one(
    uninterrupted: Path, mixed: Path, tmp_path: Path
) -> None:
    at = ["--store", str(tmp_path / "store")]
    process = faultline("suite", str(mixed), "--master", "local[1]", *at)
    try:
        while not any(finished_runs.finished_names(path) for path in (tmp_path / "store" / "suites").glob("*/ended")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    directory = only_suite(tmp_path / "store")
    done = {
        run: (directory / "ended" / f"{run}.arrow").read_bytes()
        for run in finished_runs.finished_names(directory / "ended")
    }
    made_at = {
        run: finished_runs.read_finished(directory / "ended", run)["runs"].column("started")[0].as_py() for run in done
    }
    assert 1 <= len(done) < 4

    assert main(["suite", "mixed", "--resume", *at]) == INVALID
    assert stored(tmp_path / "store") == stored(uninterrupted)
    runs = tables.read(tmp_path / "store", "runs").table.to_pylist()
    assert {row["run"]: row["started"] for row in runs if row["run"] in made_at} == made_at
    assert {row["suite"] for row in runs} == {directory.name}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupt_keeps_what_is_done_in_the_tables_and_says_how_to_go_on(
    number: signal.Signals, mixed: Path, tmp_path: Path
) -> None:
    """Sent to all processes of the command, as terminals do with the one, `timeout` and CI systems with the other."""
    at = ["--store", str(tmp_path / "store"), "--master", "local[1]"]
    process = faultline("suite", str(mixed), "--seeds", "50", *at)
    while not any(finished_runs.finished_names(path) for path in (tmp_path / "store" / "suites").glob("*/ended")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, number)
    _, errors = process.communicate()
    assert process.returncode == INTERRUPTED
    name, again = only_suite(tmp_path / "store").name, f"--store {tmp_path / 'store'}"
    assert f"interrupted; resume it with: faultline suite {name} --resume {again}" in errors.splitlines()
    assert "Traceback" not in errors
    assert 1 <= tables.read(tmp_path / "store", "runs", name).table.num_rows < 100
    assert not tables.verify(tmp_path / "store")[1]


def test_an_interrupt_that_spark_answers_with_an_error_says_how_to_go_on_too(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PySpark's own cleanup calls Java over the connection that the interrupt has closed: in `collect`, for one."""

    @contextmanager
    def broken_off(*_: object, **__: object) -> Iterator[None]:
        try:
            signal.raise_signal(signal.SIGTERM)
            yield
        finally:
            raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr("results.store.spark.session", broken_off)
    assert main(["suite", str(mixed), "--store", str(tmp_path)]) == INTERRUPTED
    again = f"resume it with: faultline suite {only_suite(tmp_path).name} --resume --store {tmp_path}"
    assert capsys.readouterr().err == f"interrupted; {again}\n"


def test_what_is_done_is_not_made_again_and_what_was_left_half_written_is(
    uninterrupted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A suite is cut short between its table files, between table and file, and within a file."""
    begun = resume(uninterrupted, only_suite(uninterrupted).name)
    runs = {row["run"]: row for row in tables.read(uninterrupted, "runs").table.to_pylist()}
    copy = SuiteRecord("copy-20260101T000000", tmp_path, begun.plan, begun.facts)
    directory = suite_path(tmp_path, copy.name) / "ended"
    rows = {name: tables.read(uninterrupted, name).table.drop_columns(["suite"]) for name in tables.SCHEMAS}

    def of(run: str) -> Any:
        parts = {name: table.filter([value.as_py() == run for value in table["run"]]) for name, table in rows.items()}
        return {name: table.replace_schema_metadata(tables.SCHEMAS[name].metadata) for name, table in parts.items()}

    one, two, *_ = runs
    finished_runs.write_finished(directory, one, of(one))
    finished_runs.write_finished(directory, two, of(two))
    finished_runs.move_to_tables(tmp_path, copy.name, [one])
    finished_runs.write_finished(directory, one, of(one))
    (directory / ".three.123.part").write_bytes(b"half")
    finished_runs.move_to_tables(tmp_path, copy.name, finished_runs.finished_names(directory))
    assert tables.read(tmp_path, "runs").table.column("run").to_pylist() == [one, two]
    assert finished_runs.finished_names(directory) == []
    tables.batch_path(tmp_path, "runs", copy.name, "batch-00002").unlink()
    assert finished_runs.names_in_tables(tmp_path, copy.name) == {one}
    finished_runs.write_finished(directory, two, of(two))
    finished_runs.move_to_tables(tmp_path, copy.name, [two])
    assert finished_runs.names_in_tables(tmp_path, copy.name) == {one, two}
    assert tables.verify(tmp_path)[1] == ()


def test_separate_executors_are_sent_the_package_and_give_the_same_verdicts_and_digests(
    uninterrupted: Path, mixed: Path, tmp_path: Path
) -> None:
    at = ["--master", "local-cluster[1,2,2048]", "--store", str(tmp_path / "store")]
    process = faultline("suite", str(mixed), "--seeds", "1", *at, python=python_without_the_package(tmp_path / "bare"))
    output, errors = process.communicate()
    assert process.returncode == INVALID, errors
    assert "mutant" in output
    assert [line for line in errors.splitlines() if line.startswith("invalid mutant-seed0")], errors
    assert "Spark" not in errors, "Spark is to be quiet"
    assert stored(tmp_path / "store") == {
        name: [row for row in rows if row["run"].endswith("-seed0")] for name, rows in stored(uninterrupted).items()
    }


def test_the_process_that_tasks_are_forked_from_has_no_other_thread() -> None:
    count = "import os; import harness.suites.worker_daemon; print(*os.listdir('/proc/self/task'))"
    command = (sys.executable, "-c", count, "pyspark.worker")
    threads = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert len(threads) == 1, f"{len(threads)} threads: a process forked from this one may wait for one it lacks"


def test_a_suite_of_other_sources_is_not_resumed(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = begin(tmp_path, load(str(mixed)))
    path = begun.path / "suite.json"
    path.write_text(path.read_text().replace(begun.facts["sources"], "0" * 32))
    assert main(["suite", "mixed", "--resume", "--store", str(tmp_path)]) == BAD_USAGE
    assert "was begun with other sources" in capsys.readouterr().err


def test_a_suite_whose_summary_could_not_be_written_is_still_to_be_resumed(mixed: Path, tmp_path: Path) -> None:
    begun = begin(tmp_path, load(str(mixed)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(junit(begun, [])), before[1]))
    try:
        with pytest.raises(StoreError, match=r"summary\.json: File too large"):
            list(save(begun, [], Summary((), ()), None, None))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert resume(tmp_path, "mixed").name == begun.name


@pytest.mark.parametrize("table", ["metrics", "coverage"])
def test_figures_are_not_computed_without_the_runs_of_a_damaged_file(mixed: Path, tmp_path: Path, table: str) -> None:
    begun = begin(tmp_path, load(str(mixed)))
    rows = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    tables.write_batch(tmp_path, begun.name, "batch-00001", rows)
    damaged = batch_path(tmp_path, table, begun.name, "batch-00001")
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(StoreError, match=f"^{re.escape(str(damaged))}: is not Parquet, or damaged"):
        summed_up(begun, cast("SparkSession", None))


def test_a_suite_is_run_by_one_process_at_a_time(mixed: Path, tmp_path: Path) -> None:
    begun = begin(tmp_path, load(str(mixed)))
    with locked(begun), pytest.raises(CannotResume, match="another process"), locked(begun):
        pass


@pytest.mark.parametrize("option", ["--junit", "--json"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_run(
    option: str, mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--store", str(tmp_path / "store")]
    assert main(["suite", str(mixed), option, str(tmp_path / "no" / "file"), *at]) == BAD_USAGE
    assert (
        f"{option}: {tmp_path / 'no' / 'file'} cannot be written: not a file in an existing directory"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("option", ["--junit", "--json"])
def test_a_file_in_a_directory_that_takes_none_is_told_before_anything_is_run(
    option: str, mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)  # as on a read-only file system
    at = ["--store", str(tmp_path / "store")]
    assert main(["suite", str(mixed), option, str(tmp_path / "file"), *at]) == BAD_USAGE
    reason = f"{tmp_path / 'file'} cannot be written: {tmp_path} is not a writable directory\n"
    assert capsys.readouterr().err == f"faultline suite: {option}: {reason}"
    assert not (tmp_path / "store").exists()


def test_a_copy_that_cannot_be_written_is_named_and_leaves_the_one_before_and_the_suite_to_resume(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = begin(tmp_path, load(str(mixed)))
    copy = tmp_path / "copy.xml"
    copy.write_text("of the night before")

    def cut_short(self: Path, data: str, **options: Any) -> int:
        with self.open("w") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", cut_short)
    with pytest.raises(StoreError, match=f"cannot write {copy}: No space left on device"):
        list(save(begun, [], Summary((), ()), None, copy))
    assert copy.read_text() == "of the night before"
    assert resume(tmp_path, "mixed").name == begun.name


def test_junit_is_xml_whatever_cells_and_findings_are_called(tmp_path: Path) -> None:
    strange = "a\x01<b>&\ud800\N{NO-BREAK SPACE}é"
    runs = [
        RunResult("one-seed1", strange, 1, "invalid", (f"loss: {strange}",), (strange,), cpu_seconds=1.5),
        RunResult("one-seed2", strange, 2, "failed", ("no space",), cpu_seconds=0.25),
        RunResult("one-seed3", strange, 3, "unknown", ("loss: not read",)),
        RunResult("one-seed4", strange, 4, "valid"),
    ]
    begun = SuiteRecord("strange-20260101T000000", tmp_path, Suite("strange", 4, 1, {}))
    root = ElementTree.fromstring(junit(begun, runs).encode())
    output = "strange.a\ufffd<b>&\ufffd\N{NO-BREAK SPACE}é"
    (cell,) = root
    for element in (root, cell):
        numbers = {name: element.attrib[name] for name in ("tests", "failures", "errors", "skipped", "time")}
        assert numbers == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1", "time": "1.750"}
    assert cell.attrib["name"] == output
    assert {case.attrib["classname"] for case in cell} == {output}
    assert [[child.tag for child in case] for case in cell] == [["failure"], ["error"], ["skipped"], []]


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


def test_failures_are_grouped_by_signature_the_most_frequent_first() -> None:
    common, rare = "protocol/candidate-incomplete/unclean-broker-kept", "loss/lost-append/lost-append"
    of_runs = [(rare,), (common, rare), (common,), (common,), (), (common,)]
    runs = [RunResult(f"r{number}", "c", number, "invalid", signatures=each) for number, each in enumerate(of_runs)]
    groups = by_signature(runs)
    assert list(groups) == [common, rare]
    assert [run.run for run in groups[rare]] == ["r0", "r1"]
    shown = failures(Suite("any", 1, 0, {}), runs)
    assert shown is not None
    assert [list(column.cells) for column in shown.columns][1] == ["4", "2"]
    assert failures(Suite("any", 1, 0, {}), [RunResult("r9", "c", 9, "valid")]) is None


@pytest.mark.parametrize(
    ("validities", "code"),
    [
        (["valid"], VALID),
        (["valid", "unknown"], 2),
        (["unknown", "failed", "valid"], 3),
        (["failed", "invalid", "unknown"], INVALID),
        ([], 2),
    ],
)
def test_the_exit_code_is_the_worst(validities: list[str], code: int) -> None:
    runs = [RunResult(f"r{number}", "c", number, validity) for number, validity in enumerate(validities)]
    assert exit_code(Suite("s", 1, 0, {}), runs) == code


def test_runs_in_docker_take_turns_and_others_fill_every_slot() -> None:
    assert tasks_of(load("kafka"), runs=18, slots=2) == 1
    assert tasks_of(load("smoke"), runs=18, slots=2) == 8


def test_a_suite_that_is_cut_short_says_the_line_of_its_cause() -> None:
    message = """\
An exception was thrown from the Python worker.
Traceback (most recent call last):
  File "spark_task.py", line 47, in make
results.errors.StoreError: cannot write /full/trace.jsonl: No space left on device

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""
    assert cause_in(message) == "cannot write /full/trace.jsonl: No space left on device"
    killed = """\
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark.…'
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:1136)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
"""
    assert cause_in(killed) == "a process of its tasks was killed, by a signal or for want of memory"
    assert cause_in("KeyError: 'x'") == "KeyError: 'x'"
    assert cause_in("") == "unknown"
