"""The functions of the public API; see `faultline`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from checkers.verdict import Verdict
from harness.runner import run as runner
from harness.runner.checking import check_and_save, explain_and_save
from harness.runner.outcome import Outcome, ProgressListener
from harness.spec import SEEDS, load, parse
from results.run.directory import RunDirectory
from results.run.paths import store_path


def run(
    spec: str | Path | Mapping[str, Any],
    *,
    store: str | Path | None = None,
    on_progress: ProgressListener | None = None,
    report: bool = True,
    **fields: Any,
) -> Outcome:
    """Run a spec once, and check it.

    `spec` is the path of a YAML file, or a mapping with the fields of `harness/spec.py`; `fields` are put on top of it,
    with the values that YAML has: `seed=7`, `faults="kill,pause"`, `settings={"min.insync.replicas": 1}`. Settings are
    merged with those of the spec; every other field, `clients={"batch": 4}` too, replaces that of the spec.
    Without a seed a random one is used. The run directory goes to `store`, else to FAULTLINE_STORE, else to
    `results/runs`. `on_progress` is called with a Progress at every stage and once a second of the run's time at least;
    it is no part of a simulation, but must not raise. Without `report` no `report.html` is written.

    A run that could not be carried out is an Outcome with a `failure`, and without verdicts. Raises SpecError and
    StoreError. It starts an event loop of its own, so it cannot be called from a coroutine or in a cell of a notebook:
    RuntimeError. There, use `await asyncio.to_thread(faultline.run, spec)`.
    """
    check_no_event_loop("faultline.run")
    random_seed = secrets.randbelow(SEEDS)
    if isinstance(spec, Mapping):
        complete = parse(spec, drawn_seed=random_seed, **fields)
    else:
        complete = load(Path(spec), drawn_seed=random_seed, **fields)
    directory = RunDirectory.create(store_path(str(store) if store else None), complete.name, complete.seed)
    return runner.run(complete, directory, on_progress=on_progress, report=report)


def check_no_event_loop(function: str) -> None:
    """Raise RuntimeError in a thread with a running event loop, before anything is done there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"{function} starts an event loop of its own, and this thread runs one; "
        f"use: await asyncio.to_thread({function}, …)"
    )


def check(directory: str | Path) -> tuple[Verdict, ...]:
    """Check a run again, also one that was interrupted, and save the verdicts in its directory. Raises StoreError."""
    run_directory = RunDirectory.open(Path(directory))
    evidence = run_directory.load()
    verdicts = check_and_save(evidence, run_directory)
    explain_and_save(verdicts, evidence, run_directory)
    return tuple(verdicts)


def history(directory: str | Path) -> pd.DataFrame:
    """The operations of the clients, a row each, with the columns of `workloads/history.py`. Raises StoreError."""
    return RunDirectory.open(Path(directory)).load().history.to_pandas()
