"""The tables of the Parquet store: adding runs, reading tables, and verifying every file.

Guarantees: a batch is stored with all its tables or does not count; adding a run again changes nothing; two processes
may add at the same time, since each writes its own file and renames it into place. Readers may read meanwhile: a batch
that another process is writing or removing does not count, and is not damaged. A file whose metadata or columns differ
from `results.store.schema` is never read: it is reported as a `DamagedFile`, with its path and the reason. A
file of an earlier version may lack `checkers.tables.ADDED_COLUMNS`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.evidence import RunEvidence
from checkers.tables import ADDED_COLUMNS, with_added_columns
from checkers.verdict import Validity, Verdict, worst
from results.atomic_files import put
from results.coverage import marks
from results.errors import BadName, StoreError
from results.measures import measure
from results.run.directory import RunDirectory
from results.run.json_encoding import verdicts_to_json
from results.run.manifest import gaps_to_json
from results.store.change_lock import changing, is_changing
from results.store.schema import (
    BATCH_OF_MANY,
    EVIDENCE,
    GAPS,
    MEASURED,
    MESSAGE,
    ROWS,
    SCHEMAS,
    SIGNATURES,
    batch_path,
    plain,
    tables_path,
)
from results.store.spec_facts import spec_facts


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file of the store that cannot be used, and the reason."""

    path: Path
    reason: str

    @property
    def line(self) -> str:
        """Table, suite, file and reason, in one line."""
        return f"{'/'.join(self.path.parts[-3:])}: {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class StoredTable:
    """One table of the whole store: its rows, with `suite` as last column, and the files that were left out."""

    table: pa.Table
    damaged: tuple[DamagedFile, ...] = ()


def add_run(store: Path, suite: str, run: RunDirectory) -> bool:
    """Add what a run directory holds, as a batch of its own; False when it was there. StoreError if it cannot be, or
    where the suite has another run of its name: runs of a suite are named for cell and seed, on every night."""
    status, marker = run.status(), batch_path(store, "runs", suite, run.name)
    held = _held(marker, run.name)
    if held is not None:
        if (held["seed"], held["started"], held["digest"]) != (status.seed, status.started, run.digest()):
            raise StoreError(f"{run.path}: {suite} has another run called {run.name}; add it to another suite")
        return False
    if status.state == "running":
        raise StoreError(f"{run.path}: the run did not end, or is still in progress; only a finished run can be added")
    write_batch(store, suite, run.name, of_run(run, run.load(), cell=status.name))
    return True


def _held(marker: Path, run: str) -> dict[str, Any] | None:
    """The row of `run` in the file in `runs` that its own batch has, or in that of a batch of many; None where it is in
    neither. StoreError for a file that cannot be read."""
    for path in (marker, *sorted(marker.parent.glob(f"{BATCH_OF_MANY}*.parquet"))):
        if path.exists():
            rows = load(path, "runs")
            if isinstance(rows, DamagedFile):
                raise StoreError(f"{rows.path}: {rows.reason}")
            for row in rows.filter(pc.field("run") == run).to_pylist():
                return dict(row)
    return None


def of_run(
    run: RunDirectory, evidence: RunEvidence, *, cell: str, name: str = "", keep_evidence: bool = True
) -> dict[str, pa.Table]:
    """The rows of one run in every table of the store; those of EVIDENCE are left empty unless `keep_evidence`.

    The run is called `name`, or as its directory."""
    status, verdicts = run.status(), run.verdicts()
    facts = dict(status.facts)
    if status.message:
        facts[MESSAGE] = status.message
    if keep_evidence:
        facts[ROWS] = {table: getattr(evidence, table).num_rows for table in EVIDENCE}
    if evidence.gaps:
        facts[GAPS] = gaps_to_json(evidence.gaps)
    if stories := run.stories():
        facts[SIGNATURES] = [story["signature"] for story in stories]
    row = {
        "seed": status.seed,
        "cell": cell,
        "name": status.name,
        "state": status.state,
        "version": status.version,
        "started": status.started,
        "evidence": keep_evidence,
        "validity": str(worst(verdict.validity for verdict in verdicts)) if verdicts else None,
        "digest": run.digest(),
        "spec": run.read_spec_text(),
        "settings": json.dumps(evidence.settings.to_json()),
        "recovery": json.dumps(dict(evidence.recovery)),
        "facts": json.dumps(facts),
    }
    checks = verdicts_to_json(verdicts)["checks"]
    measured = Verdict(MEASURED, Validity.VALID, figures=measure(evidence)) if evidence.history.num_rows else None
    tables: dict[str, pa.Table] = {
        "history": evidence.history,
        "trace": evidence.trace,
        "replicas": evidence.replicas,
        "replica_ends": evidence.replica_ends,
        "faults": evidence.faults,
        "verdicts": _rows(
            "verdicts",
            [
                {"checker": one["checker"], "validity": one["validity"], "findings": json.dumps(one["findings"])}
                for one in checks
            ],
        ),
        "metrics": _rows(
            "metrics",
            [
                {"checker": verdict.checker, "figure": figure, "value": float(value)}
                for verdict in (*verdicts, *([measured] if measured else []))
                for figure, value in verdict.figures.items()
            ],
        ),
        "coverage": marks(evidence, spec_facts(run.read_spec_text()).drawn),
        "runs": _rows("runs", [row]),
    }
    if not keep_evidence:
        tables |= {name: tables[name].slice(0, 0) for name in EVIDENCE}
    return {table: _named(name or run.name, table, rows) for table, rows in tables.items()}


def _named(run: str, name: str, table: pa.Table) -> pa.Table:
    schema = SCHEMAS[name]
    named = table.add_column(0, schema.field("run"), pa.array([run] * table.num_rows, pa.string()))
    return pa.table(named.columns, schema=schema)


def write_batch(store: Path, suite: str, batch: str, tables: Mapping[str, pa.Table]) -> None:
    """Put the rows of one or more runs in the store, `runs` last. StoreError when they cannot be written."""
    with changing(batch_path(store, "runs", suite, batch).parent):
        for name in SCHEMAS:
            _put(batch_path(store, name, suite, batch), tables[name])


def read(store: Path, name: str, suite: str = "", rows_where: pc.Expression | None = None) -> StoredTable:
    """One table: the rows of every complete batch, by suite and batch; of one suite, and rows for which `rows_where`
    is true, if they are given.

    `damaged` lists the files left out: unusable files, files in the place of a directory, and files missing from
    complete batches."""
    schema = SCHEMAS[name]
    parts, damaged = [], [*_no_directories(store, name, suite)]
    for path in files(store, name, suite):
        rows = load(path, name)
        marker = tables_path(store) / "runs" / path.parent.name / path.name
        if _in_progress(path, marker):
            continue
        if isinstance(rows, DamagedFile):
            damaged.append(rows)
            continue
        if not marker.exists():
            damaged.append(DamagedFile(path, "its batch is incomplete: runs has no file of this name"))
            continue
        if rows_where is not None:
            rows = rows.filter(rows_where)
        of = path.parent.name.removeprefix("suite=")
        parts.append(rows.append_column("suite", pa.array([of] * rows.num_rows, pa.string())))
    empty = schema.append(pa.field("suite", pa.string())).empty_table()
    return StoredTable(pa.concat_tables([empty, *parts]), (*damaged, *_lacking(store, name, suite)))


def _in_progress(path: Path, marker: Path) -> bool:
    """Whether another process is writing or removing the batch of this file, or has just done so."""
    return not marker.exists() and (is_changing(marker.parent) or marker.exists() or not os.path.lexists(path))


def _no_directories(store: Path, name: str, suite: str) -> Iterator[DamagedFile]:
    """What stands in the place of a directory on the way to the files of a table, or to the plans of suites."""
    table = tables_path(store) / name
    for path in (store / "suites", store / "tables", table.parent, table, *sorted(table.glob(_directory(suite)))):
        if os.path.lexists(path) and not path.is_dir():
            yield DamagedFile(path, "is not a directory, which a store has in its place; move it away")


def no_such(store: Path, message: str) -> StoreError:
    """The error for a name that nothing in the store has: a BadName, unless the store's directories are not there."""
    for file in _no_directories(store, "runs", ""):
        return StoreError(f"{file.path}: {file.reason}")
    return BadName(message)


def _lacking(store: Path, name: str, suite: str) -> Iterator[DamagedFile]:
    """The files of a table that complete batches lack."""
    for marker in files(store, "runs", suite):
        path = tables_path(store) / name / marker.parent.name / marker.name
        if not path.exists() and marker.exists():  # else it has just been removed
            yield DamagedFile(path, "is missing although its batch is complete")


def damaged_in(stored: Iterable[StoredTable]) -> tuple[DamagedFile, ...]:
    """The files that several tables left out, each once: one in the place of a directory is in the way of all."""
    return tuple(dict.fromkeys(file for each in stored for file in each.damaged))


def verify(store: Path) -> tuple[int, tuple[DamagedFile, ...]]:
    """Read every file in full. Returns the number of good files, and the bad ones: damaged, foreign, missing from a
    complete batch, or outside the directories that readers use. A batch in progress is no bad one."""
    every = {path for name in SCHEMAS for path in files(store, name)}
    damaged = list(damaged_in(read(store, name) for name in SCHEMAS))
    bad = every & {file.path for file in damaged}
    for path in sorted(tables_path(store).rglob("[!.]*.parquet")):
        if not _is_in_place(path.relative_to(tables_path(store)).parts):
            damaged.append(DamagedFile(path, "is not a file of the store: those are in <table>/suite=<suite>"))
    return len(every) - len(bad), tuple(damaged)


def _is_in_place(parts: tuple[str, ...]) -> bool:
    """Whether the readers of a table look at a file with this path below those of all tables."""
    return len(parts) == 3 and parts[0] in SCHEMAS and parts[1].startswith("suite=")


def _rows(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema(list(SCHEMAS[name])[1:]))


def files(store: Path, name: str, suite: str = "") -> list[Path]:
    """The files of a table, by suite and batch; of one suite only, if it is given."""
    return sorted((tables_path(store) / name).glob(f"{_directory(suite)}/[!.]*.parquet"))


def _directory(suite: str) -> str:
    return f"suite={plain('suite', suite)}" if suite else "suite=*"


def load(path: Path, name: str) -> pa.Table | DamagedFile:
    """The file's rows, or the reason it is unusable. Only this file is read: its directory adds no column."""
    file = opened(path, name)
    if isinstance(file, DamagedFile):
        return file
    try:
        with file:
            return with_added_columns(file.read(), SCHEMAS[name]).select(SCHEMAS[name].names)
    except (OSError, pa.ArrowException) as error:
        return DamagedFile(path, f"is damaged: {str(error).splitlines()[0]}")


def opened(path: Path, name: str) -> pq.ParquetFile | DamagedFile:
    """The open file, before any row is read, or the reason it is unusable."""
    expected = SCHEMAS[name]
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except OSError as error:
        return DamagedFile(path, f"cannot be read: {error.strerror or str(error).splitlines()[0]}")
    except pa.ArrowException as error:
        return DamagedFile(path, f"is not Parquet, or damaged: {str(error).splitlines()[0]}")
    metadata = file.schema_arrow.metadata or {}
    for key, value in expected.metadata.items():
        if metadata.get(key) != value:
            actual = metadata.get(key, b"missing").decode(errors="replace")
            return DamagedFile(path, f"{key.decode()} is {actual}, not {value.decode()}")
    held = file.schema_arrow.names
    known = pa.schema([item for item in expected if item.name in held or item.name not in ADDED_COLUMNS])
    if not file.schema_arrow.equals(known):
        return DamagedFile(path, f"its columns are not those of {name}")
    return file


def _put(target: Path, table: pa.Table) -> None:
    """In the tables of evidence each run has row groups of its own, so that one can be read without the others."""

    def write(part: Path) -> None:
        with pq.ParquetWriter(part, table.schema, compression="zstd", write_page_checksum=True) as writer:
            for rows in _by_run(table):
                writer.write_table(rows)

    put(target, write, parents=True)


def _by_run(table: pa.Table) -> Iterator[pa.Table]:
    if table.num_rows and table.schema.metadata[b"faultline.table"].decode() in EVIDENCE:
        runs = table.column("run").combine_chunks()
        first = 0
        for end in pc.run_end_encode(runs, run_end_type=pa.int64()).run_ends.to_pylist():
            yield table.slice(first, end - first)
            first = end
    else:
        yield table
