"""`faultline suite`: many runs as one Spark job, resumed where it was cut short.

    plan → begin or resume: a directory in the store, locked → runs in Spark tasks (harness.suites.spark_task)
    → taken into the tables as they end, failures told → summary and JUnit

The store is what decides which runs are done; Spark only carries them out. So a suite may be interrupted or killed at
any moment, and `--resume` makes the runs that are missing and no other.

The store must lie where every executor reaches it, as any output of Spark.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from checkers.verdict import checker_name
from harness.suites.plan import PlannedRun
from harness.suites.record import SuiteRecord
from harness.suites.spark_task import ROW, maker
from results.errors import StoreError
from results.store import finished_runs

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import SparkSession

    from results.store.summary import Summary

BATCH: Final = 64
"""Runs that are put into the tables together."""
RUNS_PER_TASK: Final = 16
"""At most, so that one slow task at the end keeps nobody waiting for long."""
TASKS_PER_SLOT: Final = 4
"""At least, as far as there are runs: how evenly few runs are dealt out."""
SPARK_SETTINGS: Final = {"spark.python.worker.reuse": "false"}
"""A task has a process of its own: what killed nodes left unfinished is never freed, on purpose."""
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run of a suite came to."""

    run: str
    cell: str
    seed: int
    validity: str
    """valid, invalid, unknown, or failed when it could not be carried out."""
    causes: tuple[str, ...] = ()
    """`checker: kind` of what was found, or why the run failed."""
    lines: tuple[str, ...] = ()
    """The first finding's own words."""
    digest: str = ""
    cpu_seconds: float = 0.0


def carry_out(suite: SuiteRecord, spark: SparkSession, tell: Callable[[RunResult], None]) -> list[RunResult]:
    """Make the runs that are missing. All runs of the suite, in the order of the plan; `tell` hears of each as it ends,
    first of those that were done before.

    Raises StoreError, and KeyboardInterrupt after putting what is done into the tables.
    """
    shutil.rmtree(suite.path / "work", ignore_errors=True)
    directory = suite.path / "ended"
    finished_runs.move_to_tables(suite.store, suite.name, finished_runs.finished_names(directory))
    found = {run.run: run for run in _stored(suite)}
    for run in found.values():
        tell(run)
    jobs = list(suite.plan.jobs())
    missing = [job for job in jobs if job.run not in found]
    if missing:
        work = _Work(spark, suite, missing)
        try:
            while work.goes_on():
                _take_in(suite, found, tell)
        finally:
            work.stop()
            _take_in(suite, found, tell, all_of_them=True)
            shutil.rmtree(suite.path / "work", ignore_errors=True)
        work.raise_what_went_wrong()
    return [found[job.run] for job in jobs]


def summed_up(suite: SuiteRecord, spark: SparkSession) -> Summary:
    """Figures and coverage of all runs of the suite in the tables."""
    from results.store import tables
    from results.store.summary import summarise

    runs, metrics, coverage = (
        tables.read(suite.store, name, suite.name).table for name in ("runs", "metrics", "coverage")
    )
    return summarise(spark, runs, metrics, coverage)


class _Work:
    """One Spark job in a thread of its own, so that whoever waits can look at what it has done so far."""

    def __init__(self, spark: SparkSession, suite: SuiteRecord, jobs: Sequence[PlannedRun]) -> None:
        self._spark = spark
        self._error: Exception | None = None
        make = maker(suite.path, json.dumps(suite.plan.to_json()), jobs)
        slots = max(1, spark.sparkContext.defaultParallelism)
        tasks = max(-(-len(jobs) // RUNS_PER_TASK), min(len(jobs), TASKS_PER_SLOT * slots))
        self._frame = spark.range(0, len(jobs), 1, tasks).mapInArrow(make, ROW)
        self._thread = threading.Thread(target=self._work, name="suite", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._frame.collect()
        except Exception as error:
            self._error = error

    def goes_on(self) -> bool:
        """Waits a moment. Whether the job is still at work."""
        self._thread.join(_POLL_S)
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it, if it has not ended; no task is left at work, unless Java has gone and taken them along."""
        from results.store.spark import unless_gone

        if self._thread.is_alive():
            with unless_gone():
                self._spark.sparkContext.cancelAllJobs()
            self._thread.join(30)

    def raise_what_went_wrong(self) -> None:
        """StoreError with the cause that a task or Spark gave."""
        if self._error is None:
            return
        lines = [line.strip() for line in str(self._error).splitlines() if line.strip()]
        told = [line for line in lines if "Error" in line or "Exception" in line]
        raise StoreError(f"the suite was cut short: {(told or lines or ['unknown'])[-1]}")


def _take_in(
    suite: SuiteRecord, found: dict[str, RunResult], tell: Callable[[RunResult], None], all_of_them: bool = False
) -> None:
    """Tell of what has ended since, and put it into the tables when there is enough of it."""
    waiting = finished_runs.finished_names(suite.path / "ended")
    for run in waiting:
        if run not in found:
            found[run] = next(_ended(finished_runs.read_finished(suite.path / "ended", run)))
            tell(found[run])
    if all_of_them or len(waiting) >= BATCH:
        finished_runs.move_to_tables(suite.store, suite.name, waiting)


def _stored(suite: SuiteRecord) -> Iterator[RunResult]:
    """The suite's runs in the tables."""
    from results.store import tables

    found = {}
    for name in ("runs", "verdicts"):
        stored = tables.read(suite.store, name, suite.name)
        if stored.damaged:
            raise StoreError(f"{stored.damaged[0].path}: {stored.damaged[0].reason}")
        found[name] = stored.table
    yield from _ended(found)


def _ended(tables: Mapping[str, Table]) -> Iterator[RunResult]:
    verdicts: dict[str, list[dict[str, Any]]] = {}
    for row in tables["verdicts"].to_pylist():
        verdicts.setdefault(row["run"], []).append(row)
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
            lines=tuple(findings[0][1]["lines"]) if findings and not failed else (),
            digest=row["digest"] or "",
            cpu_seconds=facts.get("cpu_seconds", 0.0),
        )
