"""Figures over many runs, in Spark SQL over the store's tables: one row per suite and cell, one per coverage mark.

column                    meaning, over all runs of the cell
------------------------  ------------------------------------------------------------------------------------------
runs, valid, …            runs, and how many came to each verdict; `failed` could not be carried out
available                 acknowledged appends of all appends in the main phase
unavailable               share of the time in which clients were driven that fell into unavailability windows
windows                   unavailability windows a run; `longest_s` is the longest of all
recovery_s_p50, _max      from the last fault's end to a whole cluster; null if no run came to that
append_ms_p50, _p99       the median, over runs, of each run's quantile
lost, duplicated, reordered   records, in all

Figures are those of `results.run_figures`. Coverage has, for each mark (`results.coverage`), the number of runs that
have it and its total count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from results.store.schema import MEASURED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIGURES: Final = f"""
SELECT suite, run,
       {{figures}}
FROM metrics WHERE checker = '{MEASURED}' GROUP BY suite, run
"""
_MEASURED: Final = (
    *("appends", "acknowledged", "lost", "duplicated", "reordered", "unavailable_s", "unavailable_windows"),
    *("unavailable_longest_s", "main_s", "recovery_s", "append_ms_p50", "append_ms_p99"),
)
_CELLS: Final = """
SELECT runs.suite, runs.cell, count(*) AS runs,
       count_if(runs.state = 'finished' AND runs.validity = 'valid') AS valid,
       count_if(runs.state = 'finished' AND runs.validity = 'invalid') AS invalid,
       count_if(runs.state = 'finished' AND runs.validity = 'unknown') AS unknown,
       count_if(runs.state <> 'finished') AS failed,
       try_divide(sum(acknowledged), sum(appends)) AS available,
       try_divide(sum(unavailable_s), sum(main_s)) AS unavailable,
       avg(unavailable_windows) AS windows,
       max(unavailable_longest_s) AS longest_s,
       percentile(recovery_s, 0.5) AS recovery_s_p50,
       max(recovery_s) AS recovery_s_max,
       percentile(append_ms_p50, 0.5) AS append_ms_p50,
       percentile(append_ms_p99, 0.5) AS append_ms_p99,
       CAST(sum(lost) AS BIGINT) AS lost,
       CAST(sum(duplicated) AS BIGINT) AS duplicated,
       CAST(sum(reordered) AS BIGINT) AS reordered
FROM runs LEFT JOIN figures USING (suite, run)
GROUP BY runs.suite, runs.cell ORDER BY runs.suite, runs.cell
"""
_MARKS: Final = """
SELECT suite, kind, name, count(DISTINCT run) AS runs, sum(count) AS count
FROM coverage GROUP BY suite, kind, name ORDER BY suite, kind, name
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows as the module's docstring tells."""

    cells: tuple[Mapping[str, Any], ...]
    coverage: tuple[Mapping[str, Any], ...]

    def marked(self, kind: str) -> set[str]:
        """The names of the marks of a kind that any run has."""
        return {mark["name"] for mark in self.coverage if mark["kind"] == kind}


def summarise(spark: SparkSession, runs: pa.Table, metrics: pa.Table, coverage: pa.Table) -> Summary:
    """From tables as `results.store.tables.read` gives them."""
    runs = runs.select(["suite", "run", "cell", "state", "validity"])
    for name, table in (("runs", runs), ("metrics", metrics), ("coverage", coverage)):
        spark.createDataFrame(table).createOrReplaceTempView(name)
    figures = ",\n".join(f"max(value) FILTER (WHERE figure = '{name}') AS {name}" for name in _MEASURED)
    spark.sql(_FIGURES.format(figures=figures)).createOrReplaceTempView("figures")
    return Summary(*(tuple(spark.sql(query).toArrow().to_pylist()) for query in (_CELLS, _MARKS)))
