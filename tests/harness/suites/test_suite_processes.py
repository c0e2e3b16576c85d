"""Suites in processes of their own: killed, interrupted and resumed, and the same on any master."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from harness.cli.main import main
from harness.exit_codes import INTERRUPTED, INVALID
from harness.suites.job import cause_in, tasks_of
from harness.suites.plan import load
from harness.suites.record import SuiteRecord, resume
from results.run.temporary_directory import temporary_directory
from results.store import finished_runs, tables
from results.store.finished_runs import suite_path
from tests.harness.suites.mixed_suite import only_suite, stored

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
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


def test_a_killed_suite_resumes_with_what_is_missing_and_ends_as_an_undisturbed_one(
    uninterrupted: Path, mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ["--store", str(tmp_path / "store")]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
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

    (left,) = temporary.glob("faultline-spark-*")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with temporary_directory("next"):
        assert not left.exists()
    monkeypatch.undo()

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
