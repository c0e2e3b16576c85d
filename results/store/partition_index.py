"""An index of the partitions in stored evidence, and the rows of one partition, read without the other rows.

Each run has row groups of its own in a file (`results.store.tables`), and Parquet stores the least and greatest value
of every column of a row group. Where the two are equal, the owner of the rows is known without reading them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.tables import with_added_columns
from results.store import tables
from results.store.schema import EVIDENCE, SCHEMAS, batch_path
from results.store.tables import DamagedFile
from workloads.history import SCHEMA as HISTORY

WHOLE_RUN = -1
"""The partition number of the unit for the whole run."""
LIGHT = (
    *("index", "process", "kind", "phase", "topic", "partition", "invoked_ns", "completed_ns", "outcome"),
    *("offset", "leader_epoch", "offsets"),
)
"""Columns of the history that the checkers of whole runs look at where nobody commits: no consumers form a group, and
no script does."""
_KEYS = ("run", "topic", "partition")


class DamagedFileError(Exception):
    """A file of the store that cannot be used; `file` names it."""

    def __init__(self, file: DamagedFile) -> None:
        super().__init__(f"{file.path}: {file.reason}")
        self.file = file


@dataclass(frozen=True, slots=True)
class CheckUnit:
    """A unit of checking: one partition of a stored run, or the remainder of the run (WHOLE_RUN)."""

    run: str
    topic: str
    partition: int
    collected_ns: int
    """Completion time of the last operation of the run."""


def units(store: Path, suite: str, batch: str, runs: Sequence[str]) -> list[CheckUnit]:
    """Every unit of these runs of a batch. DamagedFileError when a file is unusable."""
    for name in EVIDENCE:
        _file(store, suite, batch, name).close()
    last_ns: dict[str, int] = dict.fromkeys(runs, 0)
    keys: dict[tuple[str, str, int], None] = {(run, "", WHOLE_RUN): None for run in runs}
    for name in ("history", "replica_ends"):
        with _file(store, suite, batch, name) as file:
            for group in range(file.num_row_groups):
                try:
                    partitions = list(_partitions_in(file, group, name))
                except (OSError, pa.ArrowException) as error:
                    raise _damaged(batch_path(store, name, suite, batch), error) from None
                for run, topic, partition, completed_ns in partitions:
                    if run in last_ns:
                        keys[run, topic, partition] = None
                        last_ns[run] = max(last_ns[run], completed_ns)
    return [CheckUnit(*key, last_ns[key[0]]) for key in sorted(keys)]


def rows(
    store: Path, suite: str, batch: str, name: str, unit: CheckUnit, columns: Sequence[str] | None = None
) -> pa.Table:
    """The unit's rows of a table, without the column `run`, in stored order. Raises DamagedFileError."""
    key_values: dict[str, str | int] = {"run": unit.run}
    if unit.partition != WHOLE_RUN:
        key_values |= {"topic": unit.topic, "partition": unit.partition}
    names = [item for item in SCHEMAS[name].names if columns is None or item in columns or item in key_values]
    with _file(store, suite, batch, name) as file:
        groups, exact = [], True
        for group in range(file.num_row_groups):
            bounds = _bounds(file, group)
            if all(
                bounds[key] is None or bounds[key][0] <= value <= bounds[key][1] for key, value in key_values.items()
            ):
                groups.append(group)
                exact = exact and all(bounds[key] == (value, value) for key, value in key_values.items())
        try:
            table = file.read_row_groups(groups, columns=names, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(batch_path(store, name, suite, batch), error) from None
    if not exact:
        mask = pa.scalar(True)
        for key, value in key_values.items():
            mask = pc.and_(mask, pc.equal(table.column(key), value))
        table = table.filter(mask)
    return with_added_columns(table, SCHEMAS[name]).select(
        [item for item in names if item != "run" and (columns is None or item in columns)]
    )


def filled(history: pa.Table) -> pa.Table:
    """With all columns of a history; those that were not read hold nulls."""
    columns = [
        history.column(item.name) if item.name in history.column_names else pa.nulls(history.num_rows, item.type)
        for item in HISTORY
    ]
    return pa.table(columns, schema=HISTORY)


def _file(store: Path, suite: str, batch: str, name: str) -> pq.ParquetFile:
    path = batch_path(store, name, suite, batch)
    file = tables.opened(path, name)
    if isinstance(file, DamagedFile):
        raise DamagedFileError(file)
    return file


def _damaged(path: Path, error: Exception) -> DamagedFileError:
    return DamagedFileError(DamagedFile(path, f"is damaged: {str(error).splitlines()[0]}"))


def _partitions_in(file: pq.ParquetFile, group: int, name: str) -> Iterator[tuple[str, str, int, int]]:
    """(run, topic, partition, greatest completed_ns) of the rows of a row group about records or replicas."""
    bounds = _bounds(file, group)
    if all(bounds[key] is not None and bounds[key][0] == bounds[key][1] for key in _KEYS) and (
        name != "history" or bounds["completed_ns"] is not None
    ):
        yield (*(bounds[key][0] for key in _KEYS), bounds["completed_ns"][1] if name == "history" else 0)
        return
    times = ["completed_ns"] if name == "history" else []
    table = file.read_row_group(group, columns=[*_KEYS, *times], use_threads=False)
    grouped = table.group_by(list(_KEYS)).aggregate([(time, "max") for time in times])
    for row in grouped.to_pylist():
        yield row["run"], row["topic"], row["partition"], row.get("completed_ns_max") or 0


def _bounds(file: pq.ParquetFile, group: int) -> dict[str, Any]:
    """Column → (least, greatest) of a row group; None where Parquet has no statistics."""
    metadata = file.metadata.row_group(group)
    bounds: dict[str, Any] = dict.fromkeys((*_KEYS, "completed_ns"))
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        if column.path_in_schema in bounds and column.is_stats_set and column.statistics.has_min_max:
            bounds[column.path_in_schema] = (column.statistics.min, column.statistics.max)
    return bounds
