"""The Parquet store: runs are added whole, read back, and every file that is not as it should be is named.

What it promises: a batch is there with all its tables or does not count; adding what is there changes nothing; two
processes may add at one time, since each writes a file of its own and puts it in place by renaming. What it will not
do: read a file whose metadata or columns are not those of `results.store.layout`; such a file is a `Fault`, by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.evidence import RunEvidence
from checkers.verdict import Validity, Verdict, worst
from results.atomic_files import put
from results.coverage import marks
from results.errors import StoreError
from results.metrics import measure
from results.run.directory import RunDirectory
from results.run.encoding import verdicts_to_json
from results.store.layout import EVIDENCE, MEASURED, SCHEMAS, batch_path, plain, tables_path


@dataclass(frozen=True, slots=True)
class Fault:
    """A file of the store that cannot be used, and why."""

    path: Path
    reason: str

    @property
    def told(self) -> str:
        """In a line: table, suite and file, and the reason."""
        return f"{'/'.join(self.path.parts[-3:])}: {self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One table of the whole store: its rows, with `suite` as last column, and the files that were left out."""

    table: pa.Table
    faults: tuple[Fault, ...] = ()


def add_run(store: Path, suite: str, run: RunDirectory) -> bool:
    """Add what a run directory holds, as a batch of its own; False when it was there. StoreError if it cannot be."""
    batch = run.name
    if batch_path(store, "runs", suite, batch).exists():
        return False
    status = run.status()
    if status.state == "running":
        raise StoreError(f"{run.path}: the run did not end, or is still going on; only an ended run can be added")
    write_batch(store, suite, batch, of_run(run, run.load(), cell=status.name))
    return True


def of_run(
    run: RunDirectory, evidence: RunEvidence, *, cell: str, name: str = "", keep_evidence: bool = True
) -> dict[str, pa.Table]:
    """The rows of one run in every table of the store; those of EVIDENCE are left empty unless `keep_evidence`.

    The run is called `name`, or as its directory."""
    status, verdicts = run.status(), run.verdicts()
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
        "facts": json.dumps({**status.facts, "message": status.message} if status.message else dict(status.facts)),
    }
    told = verdicts_to_json(verdicts)["checks"]
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
                for one in told
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
        "coverage": marks(evidence),
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
    for name in SCHEMAS:
        _put(batch_path(store, name, suite, batch), tables[name])


def read(store: Path, name: str, suite: str = "") -> Stored:
    """One table: the rows of every complete batch, by suite and batch; of one suite only, if it is given.

    Its faults are what had to be left out: files that cannot be used, and those that a complete batch lacks."""
    schema = SCHEMAS[name]
    parts, faults = [], []
    for path in files(store, name, suite):
        found = load(path, name)
        if isinstance(found, Fault):
            faults.append(found)
            continue
        marker = tables_path(store) / "runs" / path.parent.name / path.name
        if not marker.exists():
            faults.append(Fault(path, "its batch was cut short: there is none of this name in runs"))
            continue
        of = path.parent.name.removeprefix("suite=")
        parts.append(found.append_column("suite", pa.array([of] * found.num_rows, pa.string())))
    empty = schema.append(pa.field("suite", pa.string())).empty_table()
    return Stored(pa.concat_tables([empty, *parts]), (*faults, *_lacking(store, name, suite)))


def _lacking(store: Path, name: str, suite: str) -> Iterator[Fault]:
    """The files of a table that complete batches lack."""
    for marker in files(store, "runs", suite):
        path = tables_path(store) / name / marker.parent.name / marker.name
        if not path.exists():
            yield Fault(path, "is missing although its batch is complete")


def verify(store: Path) -> tuple[int, tuple[Fault, ...]]:
    """Read every file whole. How many are good, and those that are not, among them what a complete batch lacks, and
    Parquet files that lie where no reader looks."""
    every = {path for name in SCHEMAS for path in files(store, name)}
    faults = [fault for name in SCHEMAS for fault in read(store, name).faults]
    bad = every & {fault.path for fault in faults}
    for path in sorted(tables_path(store).rglob("[!.]*.parquet")):
        if path not in every:
            faults.append(Fault(path, "is no file of the store: those lie in <table>/suite=<suite>"))
    return len(every) - len(bad), tuple(faults)


def _rows(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema(list(SCHEMAS[name])[1:]))


def files(store: Path, name: str, suite: str = "") -> list[Path]:
    """The files of a table, by suite and batch; of one suite only, if it is given."""
    directory = f"suite={plain('suite', suite)}" if suite else "suite=*"
    return sorted((tables_path(store) / name).glob(f"{directory}/[!.]*.parquet"))


def load(path: Path, name: str) -> pa.Table | Fault:
    """The file's rows, or why it is not a file of ours. Only this file is read: its directory adds no column."""
    file = opened(path, name)
    if isinstance(file, Fault):
        return file
    try:
        with file:
            return file.read()
    except (OSError, pa.ArrowException) as error:
        return Fault(path, f"is damaged: {str(error).splitlines()[0]}")


def opened(path: Path, name: str) -> pq.ParquetFile | Fault:
    """The file, of which no row has been read yet, or why it is not a file of ours."""
    expected = SCHEMAS[name]
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except OSError as error:
        return Fault(path, f"cannot be read: {error.strerror or str(error).splitlines()[0]}")
    except pa.ArrowException as error:
        return Fault(path, f"is not Parquet, or damaged: {str(error).splitlines()[0]}")
    metadata = file.schema_arrow.metadata or {}
    for key, value in expected.metadata.items():
        if metadata.get(key) != value:
            told = metadata.get(key, b"nothing").decode(errors="replace")
            return Fault(path, f"{key.decode()} is {told}, not {value.decode()}")
    if not file.schema_arrow.equals(expected):
        return Fault(path, f"its columns are not those of {name}")
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
