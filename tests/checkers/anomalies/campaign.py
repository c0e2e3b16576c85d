"""Every anomaly in many runs, or all checkers on many unmodified runs, in several processes.

`PROCS` in the environment is the number of processes, 2 unless set.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.checkers.anomalies.catalogue import ANOMALIES
from tests.checkers.anomalies.recorded_runs import record

RUNS_PER_INJECTION_MAX = 6
"""Runs tried for each injection wanted: not every run has a place for every anomaly."""


@dataclass(frozen=True, slots=True)
class Result:
    """One recorded run: the outcome of every anomaly tried in it, and the run's own verdicts."""

    run: str
    outcomes: dict[str, str] = field(default_factory=dict)
    """Anomaly → `found`, or what was injected and missed. Absent when the run has no place for it."""
    verdicts: dict[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


def try_anomalies(names: tuple[str, ...], keep: Path | None, number: int) -> Result:
    """Inject each of the anomalies in the run of this number, unless a checker found something in the run itself.

    Kept runs have settings that vary. Runs that permit losses are left out.
    """
    run = record(number, varied=keep is not None, keep=keep)
    outcomes: dict[str, str] = {}
    if run.permits_losses:
        return Result(run.name)
    for anomaly in (each for each in ANOMALIES if each.name in names):
        if run.verdicts.get(anomaly.checker) != "valid":
            continue
        injection = anomaly.injected(run.evidence, number)
        if injection is None:
            continue
        verdict = anomaly.verdict(injection)
        found = anomaly.is_found(injection, verdict)
        kinds = ", ".join(sorted({finding.kind for finding in verdict.findings})) or "nothing"
        missed = f"{run.name}: {injection.line}: {verdict.validity}, found {kinds}"
        outcomes[anomaly.name] = "found" if found else missed
    return Result(run.name, outcomes, dict(run.verdicts), run.lines)


def check_unmodified(keep: Path | None, number: int) -> Result:
    """The verdicts of the run of this number as it was recorded, under settings that vary."""
    run = record(number, varied=True, keep=keep)
    return Result(run.name, {}, dict(run.verdicts), run.lines)


def results(work: Callable[[int], Result], numbers: Iterable[int]) -> Iterator[Result]:
    """The result for each of `numbers`, as they come; ends early when the reader stops."""
    processes = int(os.environ.get("PROCS", "2"))
    waiting = iter(numbers)
    with ProcessPoolExecutor(processes, get_context("spawn"), os.nice, (10,)) as pool:
        pending: set[Future[Result]] = set()
        try:
            while True:
                while len(pending) < 2 * processes and (number := next(waiting, None)) is not None:
                    pending.add(pool.submit(work, number))
                if not pending:
                    return
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def inject_all(names: tuple[str, ...], runs: int, keep: Path | None, console: Console) -> bool:
    """Every anomaly in `runs` runs; whether each was found in all of them."""
    injected, found = Counter[str](), Counter[str]()
    missed: list[str] = []
    numbers = range(runs * RUNS_PER_INJECTION_MAX)
    for result in track(results(partial(try_anomalies, names, keep), numbers), "runs", len(numbers), console=console):
        for name, outcome in result.outcomes.items():
            if injected[name] < runs:
                injected[name] += 1
                found[name] += outcome == "found"
                missed += [f"{name}: {outcome}"] if outcome != "found" else []
        if all(injected[name] >= runs for name in names):
            break
    table = Table("anomaly", "checker", "finding", "injected", "found")
    for anomaly in (each for each in ANOMALIES if each.name in names):
        counts = (str(injected[anomaly.name]), str(found[anomaly.name]))
        table.add_row(anomaly.name, anomaly.checker, anomaly.finding, *counts)
    console.print(table)
    for line in missed:
        console.print(line, markup=False, highlight=False)
    return all(found[name] == runs for name in names)


def search_false_alarms(runs: int, first: int, keep: Path | None, console: Console) -> bool:
    """All checkers on `runs` unmodified runs; whether none of them was `invalid`."""
    verdicts = Counter[tuple[str, str]]()
    alarms: list[str] = []
    numbers = range(first, first + runs)
    for result in track(results(partial(check_unmodified, keep), numbers), "runs", runs, console=console):
        verdicts.update(result.verdicts.items())
        if "invalid" in result.verdicts.values():
            alarms.append("\n  ".join((result.run, *result.lines)))
            console.print(alarms[-1], markup=False, highlight=False)
    table = Table("checker", "valid", "unknown", "invalid")
    for checker in dict.fromkeys(name for name, _ in sorted(verdicts)):
        table.add_row(checker, *(str(verdicts[checker, answer]) for answer in ("valid", "unknown", "invalid")))
    console.print(table)
    console.print(f"{runs} unmodified runs, {len(alarms)} with a false alarm or a bug")
    return not alarms
