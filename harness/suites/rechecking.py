"""`faultline store check`: checks every stored run whose evidence is kept, on Spark, as `faultline check` does for one.

The verdicts are shown, failures first, with figures by suite and cell, and written to `STORE/checked/SUITE` (or
`all`): `verdicts.parquet` and `metrics.parquet`, with the columns of the store's tables. The store's own tables stay as
they are; a run whose verdict differs from the stored one is shown with both.

Exit codes: the worst verdict, as of a suite, and 3 when a file had to be left out, whatever the verdicts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.verdict import Validity, worst
from harness.exit_codes import EXIT_CODES, NOT_CARRIED_OUT
from harness.suites import report
from results.atomic_files import put
from results.store import pipeline, tables
from results.store.schema import plain
from results.store.summary import summarise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

_ORDER = (Validity.INVALID, Validity.UNKNOWN, Validity.VALID)


def check(console: Console, spark: SparkSession, store: Path, suite: str = "") -> int:
    """See the module's docstring. Raises StoreError."""
    checked = pipeline.check(spark, store, suite)
    runs = tables.read(store, "runs", suite).table
    verdict_of_run = _verdict_of_run(checked.verdicts)
    known = [(row["suite"], row["run"]) in verdict_of_run for row in runs.to_pylist()]
    runs = runs.filter(pa.array(known))
    before = {(row["suite"], row["run"]): row["validity"] for row in runs.to_pylist()}
    for (name, run), validity in sorted(verdict_of_run.items(), key=lambda item: (_ORDER.index(item[1]), item[0])):
        otherwise = before[name, run] if before[name, run] not in (None, str(validity)) else ""
        if validity is not Validity.VALID or otherwise:
            note = f"   (stored as {otherwise})" if otherwise else ""
            console.print(f"{validity:<8} {name}/{run}{note}", soft_wrap=True, highlight=False)
    now = [str(verdict_of_run[row["suite"], row["run"]]) for row in runs.to_pylist()]
    runs = runs.set_column(runs.column_names.index("validity"), "validity", pa.array(now, pa.string()))
    coverage = tables.read(store, "coverage", suite).table
    figures = summarise(spark, runs, checked.metrics, coverage)
    console.print(report.table([_named(cell) for cell in figures.cells]))
    directory = store / "checked" / (plain("suite", suite) if suite else "all")
    for what, table in (("verdicts", checked.verdicts), ("metrics", checked.metrics)):
        put(directory / f"{what}.parquet", partial(pq.write_table, table, compression="zstd"), parents=True)
    console.print(f"written: {directory}", soft_wrap=True, highlight=False)
    for file in checked.damaged:
        print(f"{file.path}: {file.reason}", file=sys.stderr)
    for name, run in checked.left_out:
        print(f"left out: {name}/{run}", file=sys.stderr)
    return NOT_CARRIED_OUT if checked.damaged else EXIT_CODES[worst(verdict_of_run.values())]


def _verdict_of_run(verdicts: pa.Table) -> dict[tuple[str, str], Validity]:
    validities: dict[tuple[str, str], list[Validity]] = {}
    for row in verdicts.select(["suite", "run", "validity"]).to_pylist():
        validities.setdefault((row["suite"], row["run"]), []).append(Validity(row["validity"]))
    return {run: worst(answers) for run, answers in validities.items()}


def _named(cell: Mapping[str, Any]) -> dict[str, Any]:
    return {**cell, "cell": f"{cell['suite']}: {cell['cell']}"}
