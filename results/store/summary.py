"""Figures over many runs, in Spark SQL over the store's tables: one row per suite and cell, one per coverage mark.

The columns of a cell are the counts of its runs by verdict (`failed` could not be carried out) and the summary columns
of every entry of `results.measures`: shares are ratios of sums over the runs, latencies and recovery are means over the
runs that have them, as on the page of the suite, lost, duplicated and reordered records are totals. A column is null
where no run has the figure.

Coverage has, for each mark (`results.coverage`) but those of situations, the number of runs that have it and its total
count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from results import measures
from results.coverage import without_situations
from results.measures import Aggregate
from results.run_figures import PLANNED
from results.store.schema import MEASURED
from results.store.spec_facts import spec_facts
from results.thoroughness import Thoroughness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIGURES: Final = f"""
SELECT suite, run,
       {{figures}}
FROM metrics WHERE checker = '{MEASURED}' GROUP BY suite, run
"""
_AGGREGATES: Final[Mapping[Aggregate, str]] = {
    "share": "try_divide(sum({part}), sum({whole}))",
    "mean": "avg({part})",
    "max": "max({part})",
    "sum": "CAST(sum({part}) AS BIGINT)",
}
_CELLS: Final = """
SELECT runs.suite, runs.cell, count(*) AS runs,
       count_if(runs.state = 'finished' AND runs.validity = 'valid') AS valid,
       count_if(runs.state = 'finished' AND runs.validity = 'invalid') AS invalid,
       count_if(runs.state = 'finished' AND runs.validity = 'unknown') AS unknown,
       count_if(runs.state <> 'finished') AS failed,
       {columns}
FROM runs LEFT JOIN figures USING (suite, run)
GROUP BY runs.suite, runs.cell ORDER BY runs.suite, runs.cell
"""
_MARKS: Final = """
SELECT suite, kind, name, count(DISTINCT run) AS runs, sum(count) AS count
FROM coverage GROUP BY suite, kind, name ORDER BY suite, kind, name
"""


@dataclass(frozen=True, slots=True)
class Summary:
    """The rows of cells and of coverage marks."""

    cells: tuple[Mapping[str, Any], ...]
    coverage: tuple[Mapping[str, Any], ...]
    thoroughness: Thoroughness | None = None
    """Of a suite whose runs have situations."""

    def marked(self, kind: str) -> set[str]:
        """The names of the marks of one kind."""
        return {mark["name"] for mark in self.coverage if mark["kind"] == kind}


def summarise(spark: SparkSession, runs: pa.Table, metrics: pa.Table, coverage: pa.Table) -> Summary:
    """Summarise tables as returned by `results.store.tables.read`."""
    metrics = _with_planned(runs, metrics)
    runs = runs.select(["suite", "run", "cell", "state", "validity"])
    for name, table in (("runs", runs), ("metrics", metrics), ("coverage", without_situations(coverage))):
        spark.createDataFrame(table).createOrReplaceTempView(name)
    names = dict.fromkeys([*(figure.name for figure in measures.stored_figures()), PLANNED.name])
    figures = ",\n".join(f"max(value) FILTER (WHERE figure = '{name}') AS {name}" for name in names)
    spark.sql(_FIGURES.format(figures=figures)).createOrReplaceTempView("figures")
    queries = (_CELLS.format(columns=",\n       ".join(_columns())), _MARKS)
    cells, marks = (tuple(spark.sql(query).toArrow().to_pylist()) for query in queries)
    return Summary(cells, marks)


def _columns() -> Iterator[str]:
    """The SQL expressions of all summary columns of the measures."""
    for measure in measures.per_run():
        for column in measure.summary_columns:
            part, whole = column.figure or measure.part, measure.whole
            expression = _AGGREGATES[column.aggregate].format(part=part.name, whole=whole.name if whole else "")
            yield f"{expression} AS {column.name}"


def _with_planned(runs: pa.Table, metrics: pa.Table) -> pa.Table:
    """The metrics, with the figure `planned` of each measured run that has it."""
    specs = runs.column("spec").to_pylist() if "spec" in runs.column_names else [""] * runs.num_rows
    keys = zip(runs.column("suite").to_pylist(), runs.column("run").to_pylist(), strict=True)
    spec_of_run = dict(zip(keys, specs, strict=True))
    figures: dict[tuple[str, str], dict[str, float]] = {}
    for row in metrics.filter(pc.equal(metrics["checker"], MEASURED)).to_pylist():
        figures.setdefault((row["suite"], row["run"]), {})[row["figure"]] = row["value"]
    rows = [
        {
            "suite": suite,
            "run": run,
            "checker": MEASURED,
            "figure": figure,
            "value": value,
        }
        for (suite, run), values in figures.items()
        for figure, value in spec_facts(spec_of_run.get((suite, run), "")).planned(values).items()
    ]
    columns = ["suite", "run", "checker", "figure", "value"]
    metrics = metrics.select(columns)
    return pa.concat_tables([metrics, pa.Table.from_pylist(rows, metrics.schema)])
