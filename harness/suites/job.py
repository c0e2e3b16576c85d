"""Makes the runs of a suite as Spark jobs, and resumes an interrupted one.

    plan → begin or resume: a directory in the store, locked → runs in Spark tasks (harness.suites.spark_task)
    → taken into the tables as they end, failures shown → summary and JUnit

The store decides which runs are done; Spark only carries them out. So a suite may be interrupted or killed at any
moment, and `--resume` makes the runs that are missing and no other. A suite without mutants and repeats is one job; one
with them takes a job for each batch of mutants, and one for the repeats (`harness.suites.plan`).

The store must lie where every executor reaches it, as any output of Spark.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from checkers.verdict import checker_name
from harness.suites.plan import PlannedRun, Suite
from harness.suites.record import SuiteRecord
from harness.suites.spark_task import maker
from results.errors import StoreError
from results.store import finished_runs
from results.store.schema import SIGNATURES

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import SparkSession

    from results.store.spark import BackgroundJob
    from results.store.summary import Summary

BATCH: Final = 64
"""Runs that are put into the tables together."""
RUNS_PER_TASK: Final = 16
"""At most, so that one slow task at the end does not delay the suite for long."""
TASKS_PER_SLOT: Final = 4
"""At least, as far as there are runs, so that few runs are spread evenly."""
_SPARK_SETTINGS: Final = {"spark.python.worker.reuse": "false"}
"""A task has a process of its own: coroutines of killed nodes are never freed, on purpose."""
_LOCAL_SETTINGS: Final = {"spark.python.daemon.module": "harness.suites.worker_daemon"}
"""Only where tasks find the package as this process does: executors of their own may get it later, as a zip."""
_POLL_S: Final = 0.5
_KILLED: Final = "Python worker exited unexpectedly"
"""What Spark says of a task whose process has gone; the causes that it names below say that it read no more."""


def spark_settings(master: str) -> dict[str, str]:
    """Spark's settings for a suite on `master`."""
    return _SPARK_SETTINGS | (_LOCAL_SETTINGS if re.fullmatch(r"local(\[.*\])?", master) else {})


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one run of a suite."""

    run: str
    cell: str
    seed: int
    validity: str
    """valid, invalid, unknown, or failed when it could not be carried out."""
    causes: tuple[str, ...] = ()
    """`checker: kind` of each finding, or why the run failed."""
    signatures: tuple[str, ...] = ()
    """Of the stories of what was violated: the same in every run that fails from the same cause."""
    lines: tuple[str, ...] = ()
    """The text of the first finding."""
    families: tuple[str, ...] = ()
    """The fault families of which at least one fault took effect."""
    digest: str = ""
    cpu_seconds: float = 0.0


def carry_out(suite: SuiteRecord, spark: SparkSession, on_result: Callable[[RunResult], None]) -> list[RunResult]:
    """Make the runs that are missing. All runs of the suite, in the order of the plan.

    `on_result` is called for each run as it ends, and first for those that were done before. Raises StoreError, and
    KeyboardInterrupt after putting all ended runs into the tables.
    """
    shutil.rmtree(suite.path / "work", ignore_errors=True)
    directory = suite.path / "ended"
    finished_runs.move_to_tables(suite.store, suite.name, finished_runs.finished_names(directory))
    results = {result.run: result for result in _stored(suite)}
    for result in results.values():
        on_result(result)
    while missing := suite.plan.next_runs({name: result.validity for name, result in results.items()}):
        _make(suite, spark, missing, results, on_result)
        if any(run.run not in results for run in missing):
            raise StoreError("the suite was cut short: Spark ended its job before all runs were made")
    return [results[run.run] for run in suite.plan.every_run() if run.run in results]


def _make(
    suite: SuiteRecord,
    spark: SparkSession,
    missing: Sequence[PlannedRun],
    results: dict[str, RunResult],
    on_result: Callable[[RunResult], None],
) -> None:
    """Make `missing` as one Spark job, and add their results to `results`."""
    job = _started(spark, suite, missing)
    try:
        while job.is_running(_POLL_S):
            _take_in(suite, results, on_result)
    finally:
        job.stop()
        shutil.rmtree(suite.path / "work", ignore_errors=True)  # first, since the tables may want its room
        _take_in(suite, results, on_result, everything=True)
    if job.error is not None:
        raise StoreError(f"the suite was cut short: {cause_in(str(job.error))}")


def summed_up(suite: SuiteRecord, spark: SparkSession) -> Summary:
    """Figures, coverage and situations of all runs of the suite in the tables. StoreError when a file is damaged."""
    from results.store.summary import summarise
    from results.thoroughness import thoroughness

    runs, metrics, coverage = (_table(suite, name) for name in ("runs", "metrics", "coverage"))
    compared = [run.run for run in suite.plan.runs()]  # neither mutants nor repeats: their situations are no news
    return replace(summarise(spark, runs, metrics, coverage), thoroughness=thoroughness(coverage, compared))


def _started(spark: SparkSession, suite: SuiteRecord, runs: Sequence[PlannedRun]) -> BackgroundJob:
    """The Spark job that makes these runs."""
    from results.store.spark import BackgroundJob

    context = spark.sparkContext
    make_each = maker(suite.path, json.dumps(suite.plan.to_json()), runs)
    tasks = tasks_of(suite.plan, len(runs), max(1, context.defaultParallelism))
    # Spark hands this environment to the Python processes of the jobs that are made from now on.
    context.environment["PYTHONHASHSEED"] = hash_seed(repeated=runs[0].repeated)
    # An RDD of numbers needs nothing of Spark SQL, whose Python processes come from a daemon of their own.
    numbers = context.parallelize(range(len(runs)), tasks)
    return BackgroundJob(context, "suite", lambda: numbers.foreachPartition(make_each))


def tasks_of(plan: Suite, runs: int, slots: int) -> int:
    """The number of tasks for so many runs of a suite on so many slots."""
    return 1 if plan.in_docker else max(-(-runs // RUNS_PER_TASK), min(runs, TASKS_PER_SLOT * slots))


def cause_in(message: str) -> str:
    """The line of Spark's message that says why a task failed."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if any(_KILLED in line for line in lines):
        return "a process of its tasks was killed, by a signal or for want of memory"
    causes = [line for line in lines if ("Error" in line or "Exception" in line) and not line.startswith("at ")]
    cause = (causes or lines or ["unknown"])[-1]
    return cause.removeprefix(f"{StoreError.__module__}.{StoreError.__qualname__}: ")


def hash_seed(*, repeated: bool) -> str:
    """PYTHONHASHSEED of the processes that make runs: another one for the second run of a seed.

    0 is what Spark gives its Python processes by itself, so that one daemon forks all those of first runs.
    """
    return "2" if repeated else "0"


def _take_in(
    suite: SuiteRecord,
    results: dict[str, RunResult],
    on_result: Callable[[RunResult], None],
    everything: bool = False,
) -> None:
    """Report the runs that have ended since, and put them into the tables when there are enough of them."""
    waiting = finished_runs.finished_names(suite.path / "ended")
    for run in waiting:
        if run not in results:
            results[run] = next(_results(finished_runs.read_finished(suite.path / "ended", run)))
            on_result(results[run])
    if everything or len(waiting) >= BATCH:
        finished_runs.move_to_tables(suite.store, suite.name, waiting)


def _stored(suite: SuiteRecord) -> Iterator[RunResult]:
    """The suite's runs in the tables."""
    yield from _results({name: _table(suite, name) for name in ("runs", "verdicts", "coverage")})


def _table(suite: SuiteRecord, name: str) -> Table:
    """The suite's rows in a table. StoreError when a file of it is damaged."""
    from results.store import tables

    stored = tables.read(suite.store, name, suite.name)
    if stored.damaged:
        raise StoreError(f"{stored.damaged[0].path}: {stored.damaged[0].reason}")
    return stored.table


def _results(tables: Mapping[str, Table]) -> Iterator[RunResult]:
    verdicts: dict[str, list[dict[str, Any]]] = {}
    for row in tables["verdicts"].to_pylist():
        verdicts.setdefault(row["run"], []).append(row)
    families: dict[str, list[str]] = {}
    for row in tables["coverage"].filter(pc.field("kind") == "family").to_pylist():
        families.setdefault(row["run"], []).append(row["name"])
    for row in tables["runs"].to_pylist():
        facts = json.loads(row["facts"])
        findings = [
            (checker_name(verdict["checker"]), finding)
            for verdict in verdicts.get(row["run"], [])
            if verdict["validity"] != "valid"
            for finding in json.loads(verdict["findings"])
        ]
        failed = row["state"] != "finished"
        causes = [f"{checker}: {finding['kind']}" for checker, finding in findings]
        yield RunResult(
            run=row["run"],
            cell=row["cell"],
            seed=row["seed"],
            validity="failed" if failed else row["validity"],
            causes=(facts.get("message", "no reason is recorded"),) if failed else tuple(dict.fromkeys(causes)),
            signatures=tuple(facts.get(SIGNATURES, ())),
            lines=tuple(findings[0][1]["lines"]) if findings and not failed else (),
            families=tuple(sorted(families.get(row["run"], []))),
            digest=row["digest"] or "",
            cpu_seconds=facts.get("cpu_seconds", 0.0),
        )
