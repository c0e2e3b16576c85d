"""`faultline store`: add ended runs to the Parquet store, list, show, export and remove them, and verify its files.

Exit codes: 0 · 3 when a damaged file of the store had to be left out, each named on standard error, or when the command
cannot be carried out · 64 for a name of nothing that is stored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from checkers.verdict import Validity
from harness.cli.usage import Usage
from harness.exit_codes import NOT_CARRIED_OUT, VALID
from results.errors import BadName
from results.run.directory import RunDirectory
from results.store import stored_runs, tables
from results.suites import OUTCOMES, mutant_cells, outcome_alone, outcome_of, tally


def add(store: Path, suite: str, directories: Sequence[Path]) -> int:
    """Add each run directory. Raises StoreError at the first that cannot be added; those before it stay."""
    for directory in directories:
        run = RunDirectory.open(directory)
        print(f"{run.name}: {'added' if tables.add_run(store, suite, run) else 'already stored'}")
    return VALID


def ls(store: Path) -> int:
    """One line a run: suite, run, verdict or how it ended. Raises StoreError."""
    _there(store)
    table = tables.read(store, "runs")
    for row in table.table.select(["suite", "run", "state", "validity"]).to_pylist():
        print(f"{row['suite']}  {row['run']}  {outcome_alone(row['state'], row['validity'])}")
    return name_damaged(table.damaged)


def show(store: Path, name: str) -> int:
    """Print a stored suite, failures first, or a stored run. Raises StoreError."""
    entry = stored_runs.find(store, name)
    if entry.run:
        _show_run(stored_runs.read_run(store, entry))
        return VALID
    runs = tables.read(store, "runs", entry.suite)
    mutants = mutant_cells(store, entry.suite)
    rows = [(outcome_of(row, mutants), row) for row in runs.table.to_pylist()]
    print(f"suite {entry.suite}: {len(rows)} runs, {tally(outcome for outcome, _ in rows) or 'none whole'}")
    for outcome, row in sorted(rows, key=lambda one: (OUTCOMES.index(one[0]), one[1]["run"])):
        print(f"{outcome:<13}  seed {row['seed']:<6}  {row['run']}")
    return name_damaged(runs.damaged)


def _show_run(run: stored_runs.StoredRun) -> None:
    status, evidence = run.status, run.evidence
    outcome = outcome_alone(status.state, run.row["validity"])
    print(f"run      {run.name}\nsuite    {run.suite}\nverdict  {outcome}")
    print(f"spec     {status.name}, seed {status.seed}\nstarted  {status.started}, faultline {status.version}")
    if status.state != "finished":
        print(f"state    {status.state}: {status.message or 'no reason is recorded'}")
    if run.row["digest"]:
        print(f"digest   {run.row['digest']}")
    for name in ("history", "trace", "replicas", "faults"):
        print(f"{name:<8} {getattr(evidence, name).num_rows} rows")
    for verdict in run.verdicts:
        print(f"{verdict.validity:<8} {verdict.checker}")
        for finding in verdict.findings if verdict.validity is not Validity.VALID else ():
            print("\n".join(f"    {line}" for line in (finding.kind, *finding.lines)))
    print(f"again    faultline run {run.suite}/{run.name}")


def export(store: Path, name: str, target: Path) -> int:
    """Write a stored run as a run directory. Raises StoreError, and Usage for a directory that is there."""
    if target.exists() or target.is_symlink():
        raise Usage(f"faultline store export: {target}: exists; name a new directory")
    entry = stored_runs.find(store, name)
    if not entry.run:
        raise BadName(f"{name!r} is a suite; export one of its runs: {entry.suite}/RUN")
    print(stored_runs.export(store, entry, target).path)
    return VALID


def rm(store: Path, names: Sequence[str], *, dry_run: bool) -> int:
    """Remove suites and runs. Every name is looked up before anything is removed. Raises StoreError."""
    everything = [stored_runs.find(store, name) for name in dict.fromkeys(names)]
    for entry in everything:
        stored_runs.refuse_to_split(entry)
    for entry in everything:
        runs = sum(len(batch.runs) for batch in entry.batches)
        what = f"run {entry.name}" if entry.run else f"suite {entry.suite} with {runs} {'run' if runs == 1 else 'runs'}"
        if dry_run:
            print(f"would remove {what}")
            continue
        files = sum(1 for _ in stored_runs.remove(store, entry))
        print(f"removed {what}: {files} files")
        home = store / "suites" / entry.suite
        if not entry.run and home.is_dir():
            print(f"its plan, its summary and the run directories that it kept stay in {home}")
    return VALID


def verify(store: Path) -> int:
    """Read every file. Raises StoreError."""
    _there(store)
    good, damaged = tables.verify(store)
    print(f"{good} files are intact, {len(damaged)} are damaged")
    return name_damaged(damaged)


def check_suite(store: Path, suite: str) -> None:
    """Raises BadName without a store, and StoreError when a suite is named of which no run is stored."""
    _there(store)
    if suite and not tables.files(store, "runs", suite):
        raise tables.no_such(store, f"{suite!r}: no suite of this name is stored in {store}")


def _there(store: Path) -> None:
    """Raises BadName without a store: a mistyped name is not an empty store."""
    if not store.is_dir():
        raise BadName(f"{store}: there is no such directory; `faultline store add` and `faultline suite` make one")


def name_damaged(files: Iterable[tables.DamagedFile]) -> int:
    """Print each file and its reason once, on standard error, and return the exit code."""
    code = VALID
    for file in dict.fromkeys(files):
        print(f"{file.path}: {file.reason}", file=sys.stderr)
        code = NOT_CARRIED_OUT
    return code
