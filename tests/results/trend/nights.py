"""Made-up suites in a store: two cells, as many nights and seeds as asked for, figures by a function of the test's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from results.store import tables
from results.store.schema import MEASURED, SCHEMAS

CELLS = ("append", "groups")
Figures = Callable[[np.random.Generator, str, int], Mapping[str, float]]
"""Of a run: what it is drawn from, its cell, its night from 0."""


def plain(random: np.random.Generator, cell: str, night: int) -> dict[str, float]:
    """Figures that do not change with the nights."""
    return {
        "appends": 600.0,
        "acknowledged": float(min(600, round(random.normal(570, 10)))),
        "lost": 0.0,
        "unavailable_s": float(random.gamma(2, 1)),
        "main_s": 30.0,
        "append_ms_p50": float(random.lognormal(1, 0.2)),
        "append_ms_p99": float(random.lognormal(6, 0.5)),
    }


def suite_name(night: int, name: str = "nightly") -> str:
    """Of the suite of a night."""
    return f"{name}-202611{night + 1:02}T010000"


SIGNATURE = "loss/lost-append/log-came-back-shorter"
"""Of every run that lost something."""


def make_night(
    store: Path,
    night: int,
    figures: Figures = plain,
    *,
    seeds: int = 30,
    name: str = "nightly",
    mutants: Sequence[str] = (),
    situations: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> str:
    """Store one night; a run that lost something is invalid. The suite's name. `mutants` has those of CELLS whose specs
    are mutants, and mutants without a run; `situations` more situations of runs."""
    suite, rows = suite_name(night, name), {table: list[dict[str, object]]() for table in SCHEMAS}
    started = f"2026-11-{night + 1:02}T01:00:00+00:00"
    for cell in CELLS:
        for seed in range(seeds):
            run = f"{cell}-seed{seed}"
            cell_figures = figures(np.random.default_rng([night, seed, CELLS.index(cell)]), cell, night)
            validity = "invalid" if cell_figures["lost"] else "valid"
            finding = {"kind": "lost-append", "lines": ["it is gone"], "topic": "", "partition": -1}
            rows["runs"].append(
                {
                    "run": run,
                    "seed": seed,
                    "cell": cell,
                    "name": cell,
                    "state": "finished",
                    "version": "0.1.0",
                    "started": started,
                    "evidence": False,
                    "validity": validity,
                    "digest": f"{night}-{seed}",
                    "spec": f"rate: 20\nenvironment: sim\nseed: {seed}\n",
                    "settings": "{}",
                    "recovery": "{}",
                    "facts": json.dumps(
                        {"cpu_seconds": 1.5} | ({"signatures": [SIGNATURE]} if cell_figures["lost"] else {})
                    ),
                }
            )
            rows["verdicts"].append(
                {
                    "run": run,
                    "checker": "loss",
                    "validity": validity,
                    "findings": json.dumps(
                        [{**finding, "operations": [], "offsets": [], "time_ns": -1}][: validity != "valid"]
                    ),
                }
            )
            rows["metrics"] += [
                {"run": run, "checker": MEASURED, "figure": figure, "value": value}
                for figure, value in cell_figures.items()
            ]
            rows["coverage"] += [
                {"run": run, "kind": kind, "name": name, "count": 2}
                for kind, name in (
                    ("fault", "kill"),
                    *(("situation", code) for code in ("E> nI--.=.c nI--.=.c", run, *situations.get(run, ()))),
                )
            ]
    directory = store / "suites" / suite
    directory.mkdir(parents=True)
    cells = [cell for cell in CELLS if cell not in mutants]
    plan = {"name": name, "seeds": seeds, "cells": dict.fromkeys(cells, ""), "started": started}
    plan["mutants"] = dict.fromkeys(mutants, "")
    (directory / "suite.json").write_text(json.dumps({**plan, "version": "0.1.0", "commit": f"{night:040x}"}))
    batch = {table: pa.Table.from_pylist(of_table, SCHEMAS[table]) for table, of_table in rows.items()}
    tables.write_batch(store, suite, "batch-00001", batch)
    return suite
