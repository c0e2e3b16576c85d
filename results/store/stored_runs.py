"""Stored suites and runs by name: lookup, export as evidence or as a run directory, removal.

A name is `SUITE`, `RUN` or `SUITE/RUN`, matched exactly: it is never a pattern, a prefix or a path. It is compared
with the store's listing and never joined to a path, so no name reaches a file outside the store. An ambiguous name is
refused with the longer names to choose from; `SUITE/` names the suite alone.

Removal deletes the file in `runs` first, because that file makes a batch count. A removal killed at any moment leaves
an incomplete batch: readers skip it, `verify` names it, and the same command finishes the removal. Removal does not
follow a link out of the store, does not take one run out of a batch that holds others, and leaves run directories
alone.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import CheckSettings, RunEvidence
from checkers.verdict import Verdict
from results.errors import BadName, StoreError
from results.run.directory import RunDirectory
from results.run.evidence_loader import with_current_names
from results.run.json_encoding import verdicts_from_json
from results.run.manifest import gaps_from_json
from results.run.status import Status
from results.store import tables
from results.store.change_lock import changing
from results.store.schema import EVIDENCE, GAPS, MESSAGE, ROWS, SCHEMAS, SIGNATURES, batch_path, tables_path

MARKER = "runs"
STORED_FACTS = (GAPS, MESSAGE, ROWS, SIGNATURES)
"""Facts that the store adds to those of the run directory."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """Runs stored together in one file per table."""

    suite: str
    name: str
    runs: tuple[str, ...]
    complete: bool
    """False when its file in `runs` is missing; such a batch is listed under its own name."""


@dataclass(frozen=True, slots=True)
class StoredItem:
    """The suite or the run that a name refers to."""

    suite: str
    run: str
    """Empty for the suite."""
    batches: tuple[StoredBatch, ...]

    @property
    def name(self) -> str:
        """The unambiguous name."""
        return f"{self.suite}/{self.run}"


@dataclass(frozen=True, slots=True, eq=False)
class StoredRun:
    """One run, read back whole."""

    suite: str
    name: str
    row: dict[str, Any]
    """Its row in `runs`."""
    verdicts: tuple[Verdict, ...]
    evidence: RunEvidence

    @property
    def status(self) -> Status:
        """As the run directory had it."""
        row, facts = self.row, _object(self.row["facts"])
        return Status(
            row["state"],
            seed=row["seed"],
            name=row["name"],
            version=row["version"],
            started=row["started"],
            message=str(facts.get(MESSAGE, "")),
            facts={name: value for name, value in facts.items() if name not in STORED_FACTS},
        )

    @property
    def gaps(self) -> tuple[str, ...]:
        """What it lacks, in words."""
        return (*self.status.gaps(), *(gap.reason for gap in self.evidence.gaps))


def batches(store: Path) -> list[StoredBatch]:
    """Every batch that left a file in any table, by suite and name, complete or not."""
    by_name: dict[tuple[str, str], StoredBatch] = {}
    for path in sorted(tables_path(store).glob("*/suite=*/*.parquet")):
        suite, name = path.parent.name.removeprefix("suite="), path.stem
        if path.name.startswith(".") or (suite, name) in by_name:
            continue
        marker = tables_path(store) / MARKER / path.parent.name / path.name
        stored = tables.load(marker, MARKER) if marker.exists() else None
        runs = tuple(stored["run"].to_pylist()) if isinstance(stored, pa.Table) else ()
        by_name[suite, name] = StoredBatch(suite, name, runs or (name,), marker.exists())
    return list(by_name.values())


def find(store: Path, name: str) -> StoredItem:
    """The suite or run of this name. BadName when nothing or more than one thing has this name."""
    every = batches(store)
    suites = [StoredItem(suite, "", _of_suite(every, suite)) for suite in dict.fromkeys(batch.suite for batch in every)]
    runs = [StoredItem(batch.suite, run, (batch,)) for batch in every for run in batch.runs]
    fitting = [it for it in suites if name in (it.suite, it.name)] + [it for it in runs if name in (it.run, it.name)]
    if not fitting:
        raise tables.no_such(store, f"{name!r}: no suite and no run of this name is stored in {store}")
    if len(fitting) > 1:
        raise BadName(f"{name!r} is ambiguous; choose one of: {', '.join(it.name for it in fitting)}")
    return fitting[0]


def read_run(store: Path, item: StoredItem) -> StoredRun:
    """The run, from the files of its batch. StoreError when one of them is missing or damaged."""
    try:
        return _read_run(store, item)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{item.name}: the stored rows are damaged: {error}") from error


def _read_run(store: Path, item: StoredItem) -> StoredRun:
    (batch,) = item.batches
    parts = {name: _rows(store, batch, name, item.run) for name in SCHEMAS}
    rows = parts[MARKER].to_pylist()
    if not rows:
        raise StoreError(f"{item.name}: was cut short, or its file in runs cannot be read")
    figures: dict[str, dict[str, float]] = {}
    for figure in parts["metrics"].to_pylist():
        figures.setdefault(figure["checker"], {})[figure["figure"]] = figure["value"]
    checks = [
        {**row, "findings": json.loads(row["findings"]), "figures": figures.get(row["checker"], {})}
        for row in parts["verdicts"].to_pylist()
    ]
    evidence_tables = {name: parts[name].drop_columns(["run"]) for name in EVIDENCE}
    evidence = RunEvidence(
        **evidence_tables | {"faults": with_current_names(evidence_tables["faults"])},
        settings=CheckSettings.from_json(_object(rows[0]["settings"])),
        recovery=_object(rows[0]["recovery"]),
        gaps=gaps_from_json(_object(rows[0]["facts"]).get(GAPS, ())),
    )
    return StoredRun(item.suite, item.run, rows[0], tuple(verdicts_from_json({"checks": checks})), evidence)


def export(store: Path, item: StoredItem, target: Path) -> RunDirectory:
    """Write the run as a run directory for `check`, `replay` and the report. StoreError when `target` exists, or when
    only the run's figures are stored."""
    run = read_run(store, item)
    if not run.row["evidence"]:
        raise StoreError(
            f"{item.name}: only verdicts and figures of this run are stored, as for every valid run of a suite; "
            f"`faultline run {item.name}` makes it again"
        )
    try:
        target.mkdir(parents=True)
    except OSError as error:
        raise StoreError.of("make the run directory", target, error) from error
    return RunDirectory.restore(
        target,
        run.status,
        run.row["spec"],
        run.evidence,
        run.verdicts,
        run.row["digest"],
    )


def remove(store: Path, item: StoredItem) -> Generator[Path, None, None]:
    """Remove it, yielding each removed file. StoreError when it or one of its files cannot be removed."""
    refuse_to_split(item)
    with changing(tables_path(store) / MARKER / f"suite={item.suite}"):
        yield from _removed(store, item)
        for table in SCHEMAS:
            with suppress(OSError):  # other batches are in there
                (tables_path(store) / table / f"suite={item.suite}").rmdir()


def _removed(store: Path, item: StoredItem) -> Iterator[Path]:
    for batch in item.batches:
        for table in (MARKER, *(name for name in SCHEMAS if name != MARKER)):
            path = batch_path(store, table, batch.suite, batch.name)
            if path.parent.is_symlink():
                raise StoreError(f"{path.parent}: is a link; nothing behind it is removed")
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError.of("remove", path, error) from error
            yield path


def refuse_to_split(item: StoredItem) -> None:
    """StoreError for a run whose batch holds others: no file is ever rewritten."""
    others = sum(len(batch.runs) - 1 for batch in item.batches) if item.run else 0
    if others:
        raise StoreError(
            f"{item.name}: is stored in one batch with {others} other {'run' if others == 1 else 'runs'}; "
            f"only the whole suite {item.suite}/ can be removed"
        )


def _of_suite(every: list[StoredBatch], suite: str) -> tuple[StoredBatch, ...]:
    return tuple(batch for batch in every if batch.suite == suite)


def _rows(store: Path, batch: StoredBatch, name: str, run: str) -> pa.Table:
    path = batch_path(store, name, batch.suite, batch.name)
    if not path.exists():
        raise StoreError(f"{path}: is missing, so the run cannot be read")
    table = tables.load(path, name)
    if isinstance(table, tables.DamagedFile):
        raise StoreError(f"{table.path}: {table.reason}")
    return table.filter(pc.equal(table["run"], run))


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text[:40]!r} is not a JSON object")
    return value
