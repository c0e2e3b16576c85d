"""`faultline store`: add ended runs to the Parquet store, list them, and verify its files.

Exit codes: 0 · 3 when a file of the store had to be left out, each named on standard error, or a run cannot be added.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from results import tables
from results.rundir import RunDirectory

FINE, LEFT_OUT = 0, 3


def add(store: Path, suite: str, directories: Sequence[Path]) -> int:
    """Add each run directory. Raises StoreError at the first that cannot be added; those before it stay."""
    for directory in directories:
        run = RunDirectory.open(directory)
        print(f"{run.name}: {'added' if tables.add_run(store, suite, run) else 'was there already'}")
    return FINE


def ls(store: Path) -> int:
    """One line a run: suite, run, verdict."""
    stored = tables.read(store, "runs")
    for row in stored.table.select(["suite", "run", "validity"]).to_pylist():
        print(f"{row['suite']}  {row['run']}  {row['validity'] or 'not checked'}")
    return _name(stored.faults)


def verify(store: Path) -> int:
    """Read every file."""
    good, faults = tables.verify(store)
    print(f"{good} files are as they should be, {len(faults)} are not")
    return _name(faults)


def _name(faults: Iterable[tables.Fault]) -> int:
    code = FINE
    for fault in faults:
        print(f"{fault.path}: {fault.reason}", file=sys.stderr)
        code = LEFT_OUT
    return code
