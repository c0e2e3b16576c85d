"""The reports of a suite: its summary, JUnit's XML, the failures by signature, the exit code."""

from __future__ import annotations

import errno
import os
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree

import pytest

from harness.cli.main import main
from harness.exit_codes import BAD_USAGE, INVALID, VALID
from harness.suites.job import RunResult, summed_up
from harness.suites.plan import Suite, load
from harness.suites.record import SuiteRecord, begin, resume
from harness.suites.report import by_signature, exit_code, failures, junit, save
from results.errors import StoreError
from results.store import tables
from results.store.schema import SCHEMAS, batch_path
from results.store.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
