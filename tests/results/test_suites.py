"""The figures of a stored suite, and its page: failures first, and every number leads to the runs behind it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import plotly.graph_objects
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.cli.main import main
from harness.exit_codes import BAD_USAGE
from results.measures import MEASURES
from results.pages import suite as suite_page
from results.pages.browsing.store_browser import StoreBrowser
from results.run.directory import RunDirectory
from results.store import tables
from results.store.schema import SCHEMAS, batch_path
from results.suites import RESAMPLES, SuiteResult, read_suite, series, situations_of_suite
from tests.results.conftest import INVALID, make_run
from tests.results.trend.nights import SIGNATURE, make_night, plain

SCRIPT = "<script>alert(1)</script>"


def lossy(random: np.random.Generator, cell: str, night: int) -> Mapping[str, float]:
    """Two of ten runs of the cell `append` lose something."""
    figures = plain(random, cell, night)
    return {**figures, "lost": 3.0 if cell == "append" and figures["acknowledged"] > 578 else 0.0}


class Page(HTMLParser):
    """Elements with their attributes, text, and the JSON of the figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.figures: list[str] = []
        self._inside = ""
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("type") or tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "application/json":
            self.figures.append(data)
        elif self._inside not in ("script", "style"):
            self.words.append(data)


@pytest.fixture
def suite(tmp_path: Path) -> SuiteResult:
    suite = read_suite(tmp_path, make_night(tmp_path, 0, lossy))
    assert suite is not None
    return suite


def test_a_suite_tells_its_runs_the_worst_first_with_what_they_were_asked_for(suite: SuiteResult) -> None:
    assert (len(suite.runs), suite.planned, suite.cells) == (60, 60, ("append", "groups"))
    bad = suite.outcomes("append")["invalid"]
    assert 0 < bad < 15
    assert [run.outcome for run in suite.runs] == ["invalid"] * bad + ["valid"] * (60 - bad)
    assert all(run.figures["planned"] == 600 for run in suite.runs)
    assert suite.causes() == {"loss: lost-append": list(suite.runs[:bad])}
    assert suite.signatures() == {SIGNATURE: list(suite.runs[:bad])}
    assert suite.coverage == (("fault", "kill", 60, 120),)


def test_the_most_frequent_finding_of_failures_comes_first(suite: SuiteResult) -> None:
    runs = [
        replace(run, outcome="invalid", causes=causes)
        for run, causes in zip(suite.runs, [("rare", "often"), ("often",), ("also rare", "often")], strict=False)
    ]
    failed = replace(runs[0], outcome="failed", causes=("no disk",))
    more = replace(suite, runs=(*runs, failed, failed, failed, failed))
    assert list(more.causes()) == ["often", "also rare", "rare", "no disk"]


def stored_runs_changed(store: Path, name: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the rows of a night in the table of runs."""
    rows = tables.read(store, "runs", name).table.drop_columns(["suite"]).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, SCHEMAS["runs"]), batch_path(store, "runs", name, "batch-00001"))


def test_a_planned_run_that_the_store_does_not_have_is_missing(tmp_path: Path) -> None:
    name = make_night(tmp_path, 0)
    stored_runs_changed(tmp_path, name, lambda rows: rows.pop())
    suite = read_suite(tmp_path, name)
    assert suite is not None
    assert (len(suite.runs), suite.planned) == (59, 60)


def test_a_suite_without_its_plan_began_with_the_first_of_its_runs(tmp_path: Path) -> None:
    name = make_night(tmp_path, 0)
    (tmp_path / "suites" / name / "suite.json").unlink()
    stored_runs_changed(tmp_path, name, lambda rows: rows[7].update(started="2026-11-01T00:59:59+00:00"))
    suite = read_suite(tmp_path, name)
    assert suite is not None
    assert suite.started == "2026-11-01T00:59:59+00:00"


def test_a_share_over_runs_is_all_parts_over_all_wholes(suite: SuiteResult) -> None:
    available = next(measure for measure in MEASURES if measure.name == "available")
    interval = available.over(suite.runs, resamples=RESAMPLES)
    assert interval is not None
    acknowledged = sum(run.figures["acknowledged"] for run in suite.runs)
    assert interval.value == pytest.approx(acknowledged / (60 * 600))
    assert interval.low < interval.value < interval.high


def test_runs_that_failed_or_were_never_checked_count_as_not_valid_and_have_no_figures(tmp_path: Path) -> None:
    unchecked, failed, fine = (make_run(tmp_path / name) for name in ("a", "b", "c"))
    for run in (unchecked, failed, fine):
        run.seal()
    failed.write_status("failed", message="the cluster did not come up")
    fine.write_verdict(INVALID)
    renamed = [run.path.rename(tmp_path / name) for run, name in ((unchecked, "one"), (failed, "two"), (fine, "three"))]
    for path in renamed:
        tables.add_run(tmp_path / "store", "docker", RunDirectory.open(path))
    suite = read_suite(tmp_path / "store", "docker")
    assert suite is not None
    assert suite.outcomes() == {"invalid": 1, "failed": 1, "not checked": 1}
    assert "the cluster did not come up" in suite.causes()
    assert "acknowledged-loss: lost-append" in suite.causes()


@pytest.mark.parametrize("others", [{}, {"validity": "unknown"}, {"state": "interrupted"}, {"validity": None}])
def test_a_list_of_suites_has_the_outcomes_and_the_verdict_of_a_suites_page(
    tmp_path: Path, others: dict[str, Any]
) -> None:
    name = make_night(tmp_path, 0, seeds=2, mutants=("append",))

    def end_otherwise(rows: list[dict[str, Any]]) -> None:
        rows[0].update(state="failed", validity="valid")
        rows[1].update(validity="invalid")
        rows[2].update(validity="invalid")
        rows[3].update(others)

    for change in (end_otherwise, lambda rows: rows[2].update(state="failed", validity=None)):
        stored_runs_changed(tmp_path, name, change)
        suite, browser = read_suite(tmp_path, name), StoreBrowser(tmp_path, tmp_path)
        assert suite is not None
        (entry,) = browser.suites()
        assert Counter(entry.validities) == suite.outcomes()
        assert f" {entry.worst} {name} " in Page(suite_page.render(suite, lambda run: "")).text
        assert {run.run for run in browser.table_runs() if run.failed} == {
            run.run for run in suite.runs if not run.good
        }


def test_a_mutant_that_is_found_is_no_failure_and_one_that_is_missed_is_named(tmp_path: Path) -> None:
    suite = read_suite(tmp_path, make_night(tmp_path, 0, lossy, mutants=("append",)))
    assert suite is not None
    counts = suite.outcomes()
    assert set(counts) == {"mutant found", "mutant missed", "valid"}
    assert (suite.causes(), suite.missed_mutants, suite.planned) == ({}, (), 60)
    page = Page(suite_page.render(suite, lambda run: ""))
    assert f"{counts['mutant found']} mutant found, {counts['mutant missed']} mutant missed, 30 valid." in page.text
    assert "1 of 1 mutant found." in page.text
    assert "No run is a failure." in page.text
    assert ("header", {"class": "valid"}) in page.elements

    suite = read_suite(tmp_path, make_night(tmp_path, 1, lossy, mutants=("append", "without maximal_isr")))
    assert suite is not None
    page = Page(suite_page.render(suite, lambda run: ""))
    assert "1 of 2 mutants found; not found: without maximal_isr." in page.text
    assert ("header", {"class": "invalid"}) in page.elements


@pytest.mark.parametrize(
    ("suite", "name"),
    [("nightly-20261121T001500", "nightly"), ("nightly-20261121T001500-2", "nightly"), ("docker", "docker")],
)
def test_suites_of_many_nights_share_a_name(suite: str, name: str) -> None:
    assert series(suite) == name


def test_every_number_of_a_cell_leads_to_the_runs_behind_it(suite: SuiteResult) -> None:
    page = Page(suite_page.render(suite, lambda run: f"runs/{run}"))
    links = [str(attributes["href"]) for tag, attributes in page.elements if tag == "a"]
    asked = [parse_qs(link.partition("?")[2]) for link in links if link.startswith("#runs?")]
    assert {"cause": ["loss: lost-append"]} in asked
    assert {"cell": ["append"], "valid": ["no"]} in asked
    for cell in suite.cells:
        names = [measure.name for measure in MEASURES if measure.name not in ("failures", "recovery")]
        assert [it["by"][0] for it in asked if it.get("cell") == [cell] and "by" in it] == names
    rows = [attributes for tag, attributes in page.elements if tag == "tr" and "data-cell" in attributes]
    assert len(rows) == 60
    assert [row["data-valid"] for row in rows[:2]] == ["no", "no"]
    assert sum(1 for link in links if link.startswith("runs/")) >= 60


def test_the_page_stands_alone_names_failures_first_and_draws_what_plotly_takes(suite: SuiteResult) -> None:
    text = suite_page.render(suite, lambda run: "")
    page = Page(text)
    assert page.text.index(SIGNATURE) < page.text.index("loss: lost-append")
    assert page.text.index("lost-append") < page.text.index("planned writes acknowledged")
    assert not [tag for tag, attributes in page.elements if tag in ("script", "link") and attributes.get("src")]
    assert "Planned is rate × time" in page.text, "more than 100 % of it may be acknowledged"
    assert len(page.figures) == 3
    assert "situations: 61 in 60 runs, 60 of them in one run only" in page.text
    for figure in page.figures:
        plotly.graph_objects.Figure(json.loads(figure))


def test_what_a_suite_holds_stays_text(tmp_path: Path) -> None:
    name = make_night(tmp_path, 0, lossy)
    suite = read_suite(tmp_path, name)
    assert suite is not None
    hostile = replace(
        suite,
        commit=SCRIPT,
        version=SCRIPT,
        coverage=((SCRIPT, SCRIPT, 1, 1),),
        runs=tuple(
            replace(run, run=SCRIPT, cell=f'"{SCRIPT}', causes=(SCRIPT,), signatures=(SCRIPT,))
            for run in suite.runs[:3]
        ),
    )
    page = Page(suite_page.render(hostile, lambda run: '"><script>'))
    assert sum(1 for tag, attributes in page.elements if tag == "script" and not attributes) == 2
    assert SCRIPT in page.text


def test_a_damaged_file_of_a_suite_is_named_on_its_page(tmp_path: Path) -> None:
    name = make_night(tmp_path, 0)
    batch_path(tmp_path, "metrics", name, "batch-00001").write_bytes(b"PAR1")
    suite = read_suite(tmp_path, name)
    assert suite is not None
    text = Page(suite_page.render(suite, lambda run: "")).text
    assert "batch-00001.parquet: is not Parquet, or damaged" in text
    assert "60 valid" in text


def test_the_command_writes_the_newest_suite_of_a_name_and_links_what_was_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_night(tmp_path, 0)
    newest = make_night(tmp_path, 1, lossy)
    kept = tmp_path / "suites" / newest / "runs" / "append-seed0" / "report.html"
    kept.parent.mkdir(parents=True)
    kept.write_text("")
    assert main(["report", "nightly", "--store", str(tmp_path)]) == 0
    written = tmp_path / "suites" / newest / "report.html"
    assert capsys.readouterr().out == f"report: {written}\n"
    assert 'href="runs/append-seed0/report.html"' in written.read_text()
    assert 'append-seed1/report.html"' not in written.read_text()
    for part in ("nightly-202611", newest[:-6]):
        written.unlink()
        assert main(["report", part, "--store", str(tmp_path)]) == 0
        assert written.exists()
    for other in ("nightly-202612", "night"):
        assert main(["report", other, "--store", str(tmp_path)]) == BAD_USAGE
    assert main(["report", newest, "--store", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    assert f'href="suites/{newest}/runs/append-seed0/report.html"' in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("command", ["report", "trend"])
def test_what_a_page_had_to_leave_out_is_named_by_the_command_and_on_the_page(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_night(tmp_path, 0)
    name = make_night(tmp_path, 1)
    damaged, missing = (batch_path(tmp_path, table, name, "batch-00001") for table in ("verdicts", "metrics"))
    damaged.write_bytes(b"PAR1")
    missing.unlink()
    assert main([command, "nightly", "--store", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 3
    errors = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in sorted(errors)] == sorted([str(damaged), str(missing)])
    text = Page((tmp_path / "page.html").read_text()).text
    assert f"left out: verdicts/suite={name}/batch-00001.parquet: is not Parquet" in text
    assert f"left out: metrics/suite={name}/batch-00001.parquet: is missing" in text


@pytest.mark.parametrize("command", ["report", "trend"])
def test_a_suite_that_is_not_there_or_a_page_that_cannot_be_written_is_one_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_night(tmp_path, 0)
    assert main([command, "weekly", "--store", str(tmp_path)]) == BAD_USAGE
    errors = capsys.readouterr().err
    assert (
        errors == f"faultline {command}: 'weekly': no suite of this name is stored in {tmp_path} (there are: nightly)\n"
    )
    page = tmp_path / "no" / "page.html"
    assert main([command, "nightly", "--store", str(tmp_path), "--out", str(page)]) == BAD_USAGE
    assert capsys.readouterr().err.startswith(f"faultline {command}: --out: {page} cannot be written: ")


def test_situations_over_time_follow_the_order_in_which_runs_were_made_and_leave_mutants_out(tmp_path: Path) -> None:
    name = make_night(tmp_path, 0, seeds=11, mutants=["groups"])
    found = situations_of_suite(tmp_path, name).reached
    assert [run.run for run in found.runs] == [f"append-seed{seed}" for seed in range(11)]
    assert found.visits["E> nI--.=.c nI--.=.c"] == (0, 11)
    assert found.visits["append-seed10"] == (10, 1)
    assert (found.cpu_s, found.curve()[-1]) == (16.5, (11, 16.5, 12))

    def changed(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["started"] = "2026-11-01T00:59:59+00:00" if row["run"] == "append-seed7" else row["started"]
            row["facts"] = json.dumps({"cpu_seconds": -1}) if row["run"] == "append-seed0" else row["facts"]

    stored_runs_changed(tmp_path, name, changed)
    found = situations_of_suite(tmp_path, name).reached
    assert [run.run for run in found.runs[:3]] == ["append-seed7", "append-seed0", "append-seed1"]
    assert [run.cpu_s for run in found.runs[:3]] == [1.5, 0.0, 1.5]
