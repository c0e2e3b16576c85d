"""Edits of the files of a run directory, of which damages and perturbations are made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from results.run.manifest import MANIFEST
from workloads.compact_json import compact

SETTINGS_OF_FORMAT_2 = ("topic", "partitions", "controllers")


def table(run: Path, name: str) -> pa.Table:
    """A sealed table."""
    return pq.read_table(run / f"{name}.parquet")


def edit_table(run: Path, name: str, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    """Put what `change` makes of a sealed table in its place."""
    pq.write_table(change(table(run, name)), run / f"{name}.parquet", **options)


def edit_column(run: Path, name: str, column: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """Change the values of one column; it may hold nulls afterwards."""

    def changed(rows: pa.Table) -> pa.Table:
        number = rows.schema.get_field_index(column)
        values = pa.array(change(rows[column].to_pylist()), rows.schema.field(column).type)
        return rows.set_column(number, pa.field(column, values.type), values)

    edit_table(run, name, changed)


def keep_rows(run: Path, name: str, keep: Callable[[int, int], bool]) -> None:
    """Keep the rows for which `keep` of their number and the number of rows is true."""
    edit_table(
        run, name, lambda rows: rows.filter(pa.array([keep(row, rows.num_rows) for row in range(rows.num_rows)]))
    )


def edit_json(run: Path, name: str, **fields: Any) -> None:
    """Set fields of a JSON file; ... removes one."""
    values = json.loads((run / name).read_text())
    values |= fields
    (run / name).write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def flip_byte(run: Path, name: str) -> None:
    """Flip a bit of the last data page of a sealed table's first column: of its values, not of its header."""
    path = run / f"{name}.parquet"
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start + chunk.total_compressed_size - 1] ^= 0x10
    path.write_bytes(data)


def halve(path: Path) -> None:
    """Cut the second half of a file off."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def shuffle(rows: pa.Table) -> pa.Table:
    """The rows in another order."""
    return rows.take(pa.array(np.random.default_rng(7).permutation(rows.num_rows)))


def without_manifest(run: Path) -> None:
    """As a run of format 1, which had no manifest: nothing but the values themselves can show damage."""
    (run / MANIFEST).unlink()
    edit_json(run, "status.json", format=...)


def without_names(run: Path) -> None:
    """As a run of format 1, whose settings did not name topic, partitions and nodes, either."""
    without_manifest(run)
    edit_json(run, "settings.json", **dict.fromkeys(SETTINGS_OF_FORMAT_2, ...))
    edit_json(run, "recovery.json", recorded=...)


def unsealed(run: Path) -> None:
    """As a run that was killed when everything was collected, and nothing was sealed."""
    without_manifest(run)
    edit_json(run, "status.json", state="running")
    for name in ("history", "trace", "faults"):
        rows = table(run, name).to_pylist()
        numbers = (
            {"line": number + 1} | ({"number": number} if name == "faults" else {}) for number in range(len(rows))
        )
        numbered = [number | row for number, row in zip(numbers, rows, strict=True)]
        lines = [compact({key: value for key, value in row.items() if value is not None}) for row in numbered]
        (run / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
        (run / f"{name}.parquet").unlink()


def edit_lines(run: Path, name: str, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of a table, which keep their line ends."""
    path = run / f"{name}.jsonl"
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))
