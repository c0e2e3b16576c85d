"""The table of measures: one more entry is computed, stored and shown everywhere; the entries are consistent."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console

from checkers.evidence import RunEvidence
from harness.cli.reporting import shown_trend
from harness.suites import comparison as suite_comparison
from harness.suites import report
from results import measures
from results.comparison import ComparedRun, compare
from results.measures import Measure
from results.pages import comparison as comparison_page
from results.pages import suite as suite_page
from results.pages import trend as trend_page
from results.run_figures import APPENDS, RunFigure
from results.store import tables
from results.store.summary import summarise
from results.suites import read_suite
from results.trend import read_trend
from tests.results.test_run_figures import append, evidence
from tests.results.test_suites import Page
from tests.results.trend.nights import CELLS, make_night, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def count_polls(evidence: RunEvidence) -> float:
    return float(evidence.history["kind"].to_pylist().count("poll"))


POLLS = Measure("polls", "polls for each append", "polls", RunFigure("poll_count", of_run=count_polls), APPENDS)


def with_polls(random: np.random.Generator, cell: str, night: int) -> dict[str, float]:
    return {**plain(random, cell, night), "poll_count": 1500.0}


def on_terminal(*shown: object) -> str:
    console = Console(file=io.StringIO(), width=400)
    console.print(*shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_new_entry_is_computed_and_shown_by_comparison_trend_suite_report_terminal_and_sql(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "MEASURES", (*measures.MEASURES, POLLS))
    assert measures.measure(evidence(append(0, 10, 0, 0), read=[(0, 10)]))["poll_count"] == 1
    names = [make_night(tmp_path, night, with_polls) for night in range(2)]

    suite = read_suite(tmp_path, names[0])
    assert suite is not None
    suite_text = Page(suite_page.render(suite, lambda run: "")).text
    assert "polls for each append" in suite_text
    assert "2.5 polls" in suite_text

    trend = read_trend(tmp_path, "nightly")
    assert [night.figures["polls"].value for _, nights in trend.cells for night in nights] == [2.5] * 4
    assert "2.5 polls" in Page(trend_page.render(trend, lambda suite: "")).text
    assert "2.5 polls" in on_terminal(*shown_trend(trend))

    runs = [ComparedRun(run.cell, run.seed, run.outcome, run.figures) for run in suite.runs]
    comparison = compare("polls", CELLS[0], runs)
    assert comparison.cells[1].differences["polls"].value == 0
    assert "polls for each append" in Page(comparison_page.render(comparison)).text
    assert "2.50 polls" in on_terminal(suite_comparison.shown(comparison))

    stored = [tables.read(tmp_path, name, names[0]).table for name in ("runs", "metrics", "coverage")]
    summary = summarise(spark, *stored)
    assert [cell["polls"] for cell in summary.cells] == [2.5, 2.5]
    assert "2.5 polls" in on_terminal(report.table(summary.cells))


def test_the_terminal_and_the_page_of_a_suite_agree_on_every_measure(tmp_path: Path, spark: SparkSession) -> None:
    name = make_night(tmp_path, 0)
    suite = read_suite(tmp_path, name)
    assert suite is not None
    stored = [tables.read(tmp_path, table, name).table for table in ("runs", "metrics", "coverage")]
    rows = {row["cell"]: row for row in summarise(spark, *stored).cells}
    for measure in measures.per_run():
        for column in measure.summary_columns:
            if column.heading and column.figure is None and not measure.counts_records:
                for cell in suite.cells:
                    interval = measure.over([run for run in suite.runs if run.cell == cell], resamples=10)
                    value = None if interval is None else pytest.approx(interval.value)
                    assert rows[cell][column.name] == value, column.name


def test_a_comparison_on_the_terminal_has_no_shares_that_look_like_complements() -> None:
    runs = [
        ComparedRun(cell, seed, "valid", {"acknowledged": 9.0, "planned": 10.0, "unavailable_s": 1.0, "main_s": 10.0})
        for cell in ("one", "other")
        for seed in range(2)
    ]
    headings = on_terminal(suite_comparison.shown(compare("two", "one", runs))).splitlines()[0].split()
    assert {"acknowledged", "unavailable"} <= {*headings}
    assert "available" not in headings


def test_names_of_measures_and_summary_columns_are_unique() -> None:
    names = [measure.name for measure in measures.MEASURES]
    columns = [column.name for measure in measures.per_run() for column in measure.summary_columns]
    assert len({*names}) == len(names)
    assert len({*columns}) == len(columns)
