"""Figures over many runs in Spark SQL: shares of sums, the greatest of windows, means of runs, marks counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from results.store.schema import MEASURED
from results.store.summary import Summary, summarise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RUNS = [
    ("s", "a-0", "a", "finished", "valid"),
    ("s", "a-1", "a", "finished", "invalid"),
    ("s", "a-2", "a", "failed", None),
    *(("s", f"b-{number}", "b", "finished", "unknown") for number in range(3)),
]
FIGURES = {
    "a-0": {
        "appends": 100,
        "acknowledged": 90,
        "lost": 0,
        "unavailable_s": 2,
        "unavailable_longest_s": 2,
        "main_s": 10,
    },
    "a-1": {
        "appends": 300,
        "acknowledged": 150,
        "lost": 7,
        "unavailable_s": 6,
        "unavailable_longest_s": 4,
        "main_s": 10,
    },
    "b-0": {"appends": 10, "acknowledged": 10, "lost": 0, "recovery_s": 1.5, "append_ms_p50": 20, "append_ms_p99": 40},
    "b-1": {"append_ms_p99": 40},
    "b-2": {"append_ms_p99": 100},
}
MARKS = [("a-0", "event", "truncated", 3), ("a-1", "event", "truncated", 4), ("b-0", "family", "kill", 1)]


@pytest.fixture(scope="module")
def summary(spark: SparkSession) -> Summary:
    names = ("suite", "run", "cell", "state", "validity")
    figures = [
        {"suite": "s", "run": run, "checker": checker, "figure": name, "value": float(value)}
        for run, values in FIGURES.items()
        for name, value in values.items()
        for checker in (MEASURED, "availability")
    ]
    marks = [{"suite": "s", "run": run, "kind": kind, "name": name, "count": n} for run, kind, name, n in MARKS]
    runs = [dict(zip(names, row, strict=True)) for row in RUNS]
    return summarise(spark, *(pa.Table.from_pylist(rows) for rows in (runs, figures, marks)))


def test_shares_are_of_sums_over_the_runs_of_a_cell(summary: Summary) -> None:
    a, b = summary.cells
    assert (a["cell"], a["runs"], a["valid"], a["invalid"], a["unknown"], a["failed"]) == ("a", 3, 1, 1, 0, 1)
    assert a["available"] == (90 + 150) / (100 + 300)
    assert a["unavailable"] == (2 + 6) / (10 + 10)
    assert (a["longest_s"], a["lost"]) == (4, 7)
    assert (b["available"], b["recovery_s"], b["append_ms_p99"]) == (1, 1.5, 60)


def test_what_no_run_came_to_is_null_and_not_zero(summary: Summary) -> None:
    a, b = summary.cells
    assert a["recovery_s"] is None
    assert a["append_ms_p50"] is None
    assert b["unavailable"] is None


def test_a_mark_tells_how_many_runs_have_it_and_how_often(summary: Summary) -> None:
    marks = {(mark["kind"], mark["name"]): (mark["runs"], mark["count"]) for mark in summary.coverage}
    assert marks == {("event", "truncated"): (2, 7), ("family", "kill"): (1, 1)}
    assert summary.marked("event") == {"truncated"}
