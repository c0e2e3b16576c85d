"""Rate and memory of checking and summarising stored runs on Spark.

The runs come from the seeded generator (`workloads.synthetic_history`), in Spark tasks and untimed: each has one
partition with half a million operations, appends, polls and end offsets, unknown outcomes and all, then final reads of
the whole log.
They are stored as any run is. One of them has two offsets exchanged, which the pipeline must find, and nothing else.

The measurement covers all of `faultline store check`: index, every checker on every partition and run, metrics, the
summary in Spark SQL. No replica logs are stored, so `logs` says `unknown` of each run; there is no protocol trace
either. Wall time, CPU time and memory are those of this process and all it started, Java included: memory is the
greatest sum of proportional set sizes seen, twice a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from checkers.evidence import CheckSettings
from harness.bench.resources import ResourceMonitor
from results.run.temporary_directory import temporary_directory
from results.store import tables
from results.store.pipeline import check
from results.store.schema import SCHEMAS
from results.store.spark import session
from results.store.summary import summarise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from workloads.columns import Columns, Int64

SIZES: Final = (10_000_000, 30_000_000, 100_000_000)
OF_A_RUN: Final = 500_000
READ_AT_ONCE: Final = 500
"""Records of a final read."""
CORES: Final = 2
_EXPECTED: Final = {
    **dict.fromkeys(("linearizability", "loss", "reads", "liveness", "faults", "availability", "processes"), "valid"),
    "logs": "unknown",
}
_EXPECTED_OF_THE_VIOLATION: Final = {**_EXPECTED, "linearizability": "invalid", "reads": "invalid"}
"""The verdicts on a run, and on the one with two offsets exchanged."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement."""

    operations: int
    runs: int
    stored_bytes: int
    seconds: float
    cpu_seconds: float
    memory_bytes: int


def measure(sizes: tuple[int, ...] = SIZES) -> Iterator[Measured]:
    """Make and check a suite of each size on two cores. Raises RuntimeError for a wrong verdict."""
    with (
        temporary_directory("bench") as directory,
        session("faultline bench", master=f"local[{CORES}]", memory="2g") as spark,
    ):
        for operations in sizes:
            yield _measure(spark, directory, operations)


def _measure(spark: SparkSession, store: Path, operations: int) -> Measured:
    runs = max(1, operations // OF_A_RUN)
    suite = f"bench-{runs}"
    spark.range(0, runs, 1, runs).mapInArrow(_maker(store, suite), "run bigint").collect()
    size = sum(path.stat().st_size for name in SCHEMAS for path in tables.files(store, name, suite))
    with ResourceMonitor() as watch:
        checked = check(spark, store, suite)
        stored, coverage = (tables.read(store, name, suite).table for name in ("runs", "coverage"))
        summary = summarise(spark, stored, checked.metrics, coverage)
    check_verdicts(checked.verdicts, runs)
    if summary.cells[0]["runs"] != runs or not summary.cells[0]["available"]:
        raise RuntimeError(f"the summary is not of {runs} runs: {summary.cells[0]}")
    for name in SCHEMAS:
        for path in tables.files(store, name, suite):
            path.unlink()
    return Measured(runs * OF_A_RUN, runs, size, watch.seconds, watch.cpu_seconds, watch.memory_bytes)


def check_verdicts(verdicts: pa.Table, runs: int) -> None:
    """Raises RuntimeError when a generated run has another verdict than it must have."""
    validities: dict[str, dict[str, str]] = {}
    for row in verdicts.to_pylist():
        validities.setdefault(row["run"], {})[row["checker"]] = row["validity"]
    for number in range(runs):
        actual = validities.get(_name(number), {})
        expected = _EXPECTED if number else _EXPECTED_OF_THE_VIOLATION
        if {checker: actual.get(checker) for checker in expected} != expected:
            raise RuntimeError(f"{_name(number)} has wrong verdicts: {actual}")


def _name(number: int) -> str:
    return f"generated-seed{number}"


# ---- the generator, in tasks -----------------------------------------------------------------------------------------


def _maker(store: Path, suite: str) -> object:
    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                tables.write_batch(store, suite, _name(number), generated(number))
            yield pa.RecordBatch.from_arrays([batch.column(0)], names=["run"])

    return make


def generated(number: int, operations: int = OF_A_RUN) -> dict[str, pa.Table]:
    """The rows of one run in every table of the store; run 0 has a violation."""
    from workloads.synthetic_history import history_and_log, with_violation

    columns, log = history_and_log(operations, seed=number)
    if number == 0:
        columns = with_violation(columns, seed=number)
    history = pa.concat_tables([columns.to_table(), _final_reads(columns, log).to_table(phase="final")])
    recovery = {"recovered": True, "seconds": 1.0, "limit_seconds": 30, "waiting_for": [], "final_reads": True}
    row = {
        "run": _name(number),
        "seed": number,
        "cell": "generated",
        "name": "generated",
        "state": "finished",
        "version": "",
        "started": "",
        "evidence": True,
        "spec": "",
        "facts": "{}",
        "settings": json.dumps(CheckSettings(has_trace=False).to_json()),
        "recovery": json.dumps({**recovery, "crashes": []}),
    }
    rows = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    rows["runs"] = pa.Table.from_pylist([row], SCHEMAS["runs"])
    names = pa.array([_name(number)] * history.num_rows, pa.string())
    rows["history"] = pa.table([names, *history.columns], schema=SCHEMAS["history"])
    return rows


def _final_reads(columns: Columns, log: Int64) -> Columns:
    """One consumer that reads the log from its start to its end when all is over."""
    from workloads.columns import NOTHING, OK, POLL, Columns

    starts = np.append(np.arange(0, len(log), READ_AT_ONCE, dtype=np.int64), len(log))
    reads = len(starts) - 1
    began = int(columns.invoked_ns.max()) + 1_000_000_000
    invoked_ns = began + np.arange(reads, dtype=np.int64) * 1_000_000
    return Columns(
        kind=np.full(reads, POLL, dtype=np.int8),
        outcome=np.full(reads, OK, dtype=np.int8),
        invoked_ns=invoked_ns,
        completed_ns=invoked_ns + 500_000,
        value=np.full(reads, NOTHING, dtype=np.int64),
        offset=starts[:-1],
        starts=starts,
        poll_offset=np.arange(len(log), dtype=np.int64),
        poll_value=log,
        index=len(columns) + np.arange(reads, dtype=np.int64),
    )
