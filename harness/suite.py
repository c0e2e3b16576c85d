"""`faultline suite`: many runs as one Spark job, resumed where it was cut short.

    plan (suites) → begin or resume: a directory in the store, locked → runs in Spark tasks (suite_task)
    → taken into the tables as they end, failures told → summary and JUnit

The store is what decides which runs are done; Spark only carries them out. So a suite may be interrupted or killed at
any moment, and `--resume` makes the runs that are missing and no other. It refuses to when the sources are not those
the suite was begun with: half of the runs would be another program's.

The store must lie where every executor reaches it, as any output of Spark.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.spec import SpecError
from harness.suite_task import ROW, maker
from harness.suites import Job, Suite
from results import ended
from results.lines import StoreError

if TYPE_CHECKING:
    from pyarrow import Table
    from pyspark.sql import SparkSession

    from results.summary import Summary

BATCH: Final = 64
"""Runs that are put into the tables together."""
RUNS_PER_TASK: Final = 16
"""At most, so that one slow task at the end keeps nobody waiting for long."""
TASKS_PER_SLOT: Final = 4
"""At least, as far as there are runs: how evenly few runs are dealt out."""
SPARK_SETTINGS: Final = {"spark.python.worker.reuse": "false"}
"""A task has a process of its own: what killed nodes left unfinished is never freed, on purpose."""
_POLL_S: Final = 0.5


class CannotResume(Exception):
    """There is nothing to resume, or it cannot be; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Ended:
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


@dataclass(frozen=True, slots=True)
class Begun:
    """A suite that lies in a store."""

    name: str
    """Of this one night: `nightly-20261121T001500`."""
    store: Path
    plan: Suite
    facts: Mapping[str, Any] = field(default_factory=dict)
    """`started`, `version`, `commit`, `sources`."""

    @property
    def path(self) -> Path:
        """Where what is not in the tables lies."""
        return ended.suite_path(self.store, self.name)


def begin(store: Path, plan: Suite) -> Begun:
    """A new suite in the store. StoreError when it cannot be written."""
    from results.spark import fingerprint

    now = datetime.now(UTC)
    facts = {
        "started": now.isoformat(timespec="seconds"),
        "version": _version(),
        "commit": _commit(),
        "sources": fingerprint(),
    }
    base = f"{plan.name}-{now:%Y%m%dT%H%M%S}"
    try:
        (store / "suites").mkdir(parents=True, exist_ok=True)
        path, name, attempt = store / "suites" / base, base, 1
        while True:
            try:
                path.mkdir()
                break
            except FileExistsError:
                attempt += 1
                name = f"{base}-{attempt}"
                path = store / "suites" / name
        _write(path / "suite.json", json.dumps({**facts, **plan.to_json()}, indent=2) + "\n")
    except OSError as error:
        raise StoreError.of("begin a suite in", store, error) from error
    return Begun(name, store, plan, facts)


def resume(store: Path, named: str) -> Begun:
    """The suite of this name, or the newest begun and not ended of the suites called so. Raises CannotResume."""
    from results.spark import fingerprint

    candidates = sorted(
        path.parent
        for path in (store / "suites").glob("*/suite.json")
        if path.parent.name == named or re.fullmatch(re.escape(named) + r"-\d{8}T\d{6}(-\d+)?", path.parent.name)
    )
    unfinished = [path for path in candidates if path.name == named or not (path / "summary.json").exists()]
    if not unfinished:
        raise CannotResume(f"{named}: no suite of this name in {store} was cut short")
    path = unfinished[-1]
    try:
        values = json.loads((path / "suite.json").read_text(encoding="utf-8"))
        plan = Suite.from_json(values)
        facts = {name: values[name] for name in ("started", "version", "commit", "sources")}
    except (OSError, ValueError, KeyError, TypeError, SpecError) as error:
        raise CannotResume(f"{path / 'suite.json'}: cannot be read: {error}") from None
    if facts["sources"] != fingerprint():
        raise CannotResume(
            f"{path.name} was begun with other sources of Faultline (commit {facts['commit'] or 'unknown'}); "
            "begin a new one"
        )
    return Begun(path.name, store, plan, facts)


@contextmanager
def locked(suite: Begun) -> Iterator[None]:
    """Holds the suite for this process. Raises CannotResume when another has it."""
    with (suite.path / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotResume(f"{suite.name} is being run by another process") from None
        yield


def carry_out(suite: Begun, spark: SparkSession, tell: Callable[[Ended], None]) -> list[Ended]:
    """Make the runs that are missing. All runs of the suite, in the order of the plan; `tell` hears of each as it ends,
    first of those that were done before.

    Raises StoreError, and KeyboardInterrupt after putting what is done into the tables.
    """
    shutil.rmtree(suite.path / "work", ignore_errors=True)
    directory = suite.path / "ended"
    ended.settle(suite.store, suite.name, ended.waiting(directory))
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


def summed_up(suite: Begun, spark: SparkSession) -> Summary:
    """Figures and coverage of all runs of the suite in the tables."""
    from results import tables
    from results.summary import summarise

    runs, metrics, coverage = (
        tables.read(suite.store, name, suite.name).table for name in ("runs", "metrics", "coverage")
    )
    return summarise(spark, runs, metrics, coverage)


class _Work:
    """One Spark job in a thread of its own, so that whoever waits can look at what it has done so far."""

    def __init__(self, spark: SparkSession, suite: Begun, jobs: Sequence[Job]) -> None:
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
        """End it, if it has not ended; no task is left at work."""
        if self._thread.is_alive():
            self._spark.sparkContext.cancelAllJobs()
            self._thread.join(30)

    def raise_what_went_wrong(self) -> None:
        """StoreError with the cause that a task or Spark gave."""
        if self._error is None:
            return
        lines = [line.strip() for line in str(self._error).splitlines() if line.strip()]
        told = [line for line in lines if "Error" in line or "Exception" in line]
        raise StoreError(f"the suite was cut short: {(told or lines or ['unknown'])[-1]}")


def _take_in(suite: Begun, found: dict[str, Ended], tell: Callable[[Ended], None], all_of_them: bool = False) -> None:
    """Tell of what has ended since, and put it into the tables when there is enough of it."""
    waiting = ended.waiting(suite.path / "ended")
    for run in waiting:
        if run not in found:
            found[run] = next(_ended(ended.take(suite.path / "ended", run)))
            tell(found[run])
    if all_of_them or len(waiting) >= BATCH:
        ended.settle(suite.store, suite.name, waiting)


def _stored(suite: Begun) -> Iterator[Ended]:
    """The suite's runs in the tables."""
    from results import tables

    found = {}
    for name in ("runs", "verdicts"):
        stored = tables.read(suite.store, name, suite.name)
        if stored.faults:
            raise StoreError(f"{stored.faults[0].path}: {stored.faults[0].reason}")
        found[name] = stored.table
    yield from _ended(found)


def _ended(tables: Mapping[str, Table]) -> Iterator[Ended]:
    verdicts: dict[str, list[dict[str, Any]]] = {}
    for row in tables["verdicts"].to_pylist():
        verdicts.setdefault(row["run"], []).append(row)
    for row in tables["runs"].to_pylist():
        facts = json.loads(row["facts"])
        findings = [
            (verdict["checker"], finding)
            for verdict in verdicts.get(row["run"], [])
            if verdict["validity"] != "valid"
            for finding in json.loads(verdict["findings"])
        ]
        failed = row["state"] != "finished"
        causes = [f"{checker}: {finding['kind']}" for checker, finding in findings]
        yield Ended(
            run=row["run"],
            cell=row["cell"],
            seed=row["seed"],
            validity="failed" if failed else row["validity"],
            causes=(facts.get("message", "no reason is recorded"),) if failed else tuple(dict.fromkeys(causes)),
            lines=tuple(findings[0][1]["lines"]) if findings and not failed else (),
            digest=row["digest"] or "",
            cpu_seconds=facts.get("cpu_seconds", 0.0),
        )


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("faultline")
    except metadata.PackageNotFoundError:
        return "from source"


def _commit() -> str:
    """Of the sources, with `-dirty` when they are not as committed; empty when git does not know."""
    here = Path(__file__).resolve().parent
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
