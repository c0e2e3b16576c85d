"""The manifest of a sealed run: which run it is, and the rows and a hash of everything that was recorded of it.

`manifest.json` is written last, when a run is sealed:

run       name, seed and start time of the run; its Parquet files name them, too, so a table of another run is noticed
tables    table → its rows, its columns, and the hash of its content
files     spec.yaml, settings.json, recovery.json, digest.txt, trail.txt, as far as they exist → the hash of its content
gaps      what the evidence lacked when it was sealed (`checkers.evidence.EvidenceGap`)

A hash covers content and not bytes. The order of rows, other columns, the compression of Parquet, the size of row
groups, the order of JSON fields and white space may change; a recorded value may not.

A run of this format that has finished has a manifest. One that was killed has none, and is checked as far as it went;
runs of earlier formats have none, either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import EvidenceGap, EvidencePart, RunEvidence
from results.atomic_files import put_json, read_json, read_text
from results.errors import StoreError

MANIFEST: Final = "manifest.json"
FILES: Final = ("spec.yaml", "settings.json", "recovery.json", "digest.txt", "trail.txt")
TABLES: Final[Mapping[str, EvidencePart]] = {
    "history": EvidencePart.HISTORY,
    "trace": EvidencePart.TRACE,
    "faults": EvidencePart.FAULTS,
    "replicas": EvidencePart.REPLICAS,
    "replica_ends": EvidencePart.REPLICAS,
}
"""Table → the part of the evidence it belongs to."""
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "history": ("index",),
    "trace": ("seq",),
    "faults": ("started_ns", "ended_ns", "fault", "family", "detail", "evidence", "note"),
    "replicas": ("node", "topic", "partition", "offset", "leader_epoch", "value", "producer_id", "sequence"),
    "replica_ends": ("node", "topic", "partition"),
}
"""Columns that give the rows of a table their order."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table as it was sealed."""

    rows: int
    columns: tuple[str, ...]
    """Those that the hash covers: the schema may have got more since."""
    hash: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module."""

    run: str
    tables: Mapping[str, TableEntry]
    files: Mapping[str, str]
    gaps: tuple[EvidenceGap, ...] = field(default=())

    def file_problem(self, run: Path, name: str) -> str:
        """Why the file `name` of the directory `run` is not what was sealed; empty when it is."""
        sealed, actual = self.files.get(name), file_hash(run / name)
        if sealed == actual:
            return ""
        if actual is None:
            return f"{name} is missing"
        return f"{name} is not what was recorded" if sealed else f"{name} was added after the run"

    def table_problem(self, name: str, table: pa.Table) -> str:
        """Why `table` is not what was sealed as `name`; empty when it is."""
        sealed = self.tables[name]
        gone = set(sealed.columns) - set(table.column_names)
        if gone:
            return f"{name}.parquet has columns of another version: {', '.join(sorted(gone))}"
        if table.num_rows != sealed.rows:
            return f"{name}.parquet has {table.num_rows} rows, and {sealed.rows} were recorded"
        if content_hash(name, table, sealed.columns) != sealed.hash:
            return f"{name}.parquet holds other values than were recorded"
        return ""


def write(run: Path, identity: str, evidence: RunEvidence) -> None:
    """Write the manifest of the sealed tables in `evidence` and of the small files in the directory `run`."""
    put_json(
        run / MANIFEST,
        {
            "run": identity,
            "tables": {
                name: {"rows": table.num_rows, "columns": table.column_names, "hash": content_hash(name, table)}
                for name in TABLES
                for table in [getattr(evidence, name)]
            },
            "files": {name: each for name in FILES if (each := file_hash(run / name)) is not None},
            "gaps": gaps_to_json(evidence.gaps),
        },
    )


def read(run: Path) -> Manifest | None:
    """The manifest in the directory `run`; None when there is none. StoreError when it cannot be read."""
    if not (run / MANIFEST).exists():
        return None
    values = read_json(run / MANIFEST)
    try:
        return Manifest(
            run=_text(values["run"]),
            tables={name: _table_entry(values["tables"][name]) for name in TABLES},
            files={name: _text(values["files"][name]) for name in FILES if name in values["files"]},
            gaps=gaps_from_json(values["gaps"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{run / MANIFEST} is damaged: {type(error).__name__}: {error}") from None


def gaps_to_json(gaps: Sequence[EvidenceGap]) -> list[dict[str, str]]:
    """The gaps as JSON values."""
    return [{"part": gap.part.value, "reason": gap.reason} for gap in gaps]


def gaps_from_json(values: Sequence[Mapping[str, Any]]) -> tuple[EvidenceGap, ...]:
    """The inverse of `gaps_to_json`. KeyError, TypeError or ValueError for anything else."""
    return tuple(EvidenceGap(EvidencePart(gap["part"]), _text(gap["reason"])) for gap in values)


def in_order(name: str, table: pa.Table) -> pa.Table:
    """The rows of the table `name` in their own order, in whatever order they are stored."""
    keys = _KEYS[name]
    if len(keys) == 1 and (np.diff(np.asarray(table[keys[0]])) >= 0).all():
        return table
    return table.sort_by([(key, "ascending") for key in keys])


def content_hash(name: str, table: pa.Table, columns: Sequence[str] | None = None) -> str:
    """The hash of the values of the table `name` in these columns, or in all."""
    digest = hashlib.blake2b(digest_size=16)
    table = in_order(name, table)
    for column_name in table.column_names if columns is None else columns:
        column = table.column(column_name)
        digest.update(f"{column_name};".encode())
        _add(digest, column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column)
    return digest.hexdigest()


def file_hash(path: Path) -> str | None:
    """The hash of the content of a small file; None when there is none."""
    try:
        text = read_text(path)
    except StoreError:
        return "unreadable"
    if text is None:
        return None
    if path.suffix == ".json":
        try:
            text = json.dumps(json.loads(text), sort_keys=True)
        except (ValueError, RecursionError):
            return "unreadable"
    content = "\n".join(line.rstrip() for line in text.strip().splitlines())
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _add(digest: Any, array: pa.Array) -> None:
    """Add the length, the nulls and the values of an array."""
    digest.update(len(array).to_bytes(8, "little"))
    digest.update(np.packbits(np.asarray(array.is_valid())).tobytes())
    if pa.types.is_list(array.type):
        digest.update(np.asarray(pc.fill_null(pc.list_value_length(array), 0), dtype=np.int32).tobytes())
        _add(digest, pc.list_flatten(array))
    elif pa.types.is_string(array.type):
        array = array.fill_null("")
        digest.update(np.asarray(pc.binary_length(array), dtype=np.int32).tobytes())
        if len(array):
            ends = np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset : array.offset + len(array) + 1]
            data = array.buffers()[2]
            digest.update(memoryview(data)[ends[0] : ends[-1]] if data is not None else b"")
    elif pa.types.is_boolean(array.type):
        digest.update(np.asarray(array.fill_null(False)).tobytes())
    else:
        digest.update(np.ascontiguousarray(np.asarray(array.fill_null(0))).tobytes())


def _table_entry(value: Mapping[str, Any]) -> TableEntry:
    if type(value["rows"]) is not int:
        raise TypeError("rows is no number")
    return TableEntry(value["rows"], tuple(map(_text, value["columns"])), _text(value["hash"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]} is no string")
    return value
