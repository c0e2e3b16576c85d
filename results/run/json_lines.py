"""JSON lines that survive the death of their writer, and their conversion to a table.

A writer only appends whole lines, so a file cut short at any byte (`kill -9`, a full disk) is a sequence of whole lines
and at most one torn line. The reader skips the torn line. A damaged line in the middle of the file ends the reading
there: the lines before it count, and the number of bytes left out is reported.

A line is a JSON object of column names; an omitted column is null, or the empty value of a column without nulls: -1,
"", false, an empty list.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from results.errors import StoreError


class LineWriter:
    """Appends lines to a file, handing them on in blocks: a killed process loses at most what `flush` would have kept.

    It never rewrites or reorders anything already written.
    """

    BLOCK_BYTES = 1 << 16

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO | None = open(path, "ab", buffering=self.BLOCK_BYTES)
            self._next_object = 1
        except OSError as error:
            raise StoreError.of("write", path, error) from error

    def write(self, line: str) -> None:
        """Append one line, given without its line end."""
        if self._file is None:
            raise StoreError(f"cannot write {self.path}: the run directory is closed")
        try:
            self._file.write(line.encode() + b"\n")
        except OSError as error:
            raise StoreError.of("write", self.path, error) from error

    def write_object(self, values: dict[str, Any]) -> None:
        """Append one object, with the number of its line, and flush: for files that grow by few lines."""
        self.write(json.dumps({"line": self._next_object, **values}, separators=(",", ":")))
        self._next_object += 1
        self.flush()

    def flush(self) -> None:
        """Hand every line on to the operating system."""
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            raise StoreError.of("write", self.path, error) from error

    def close(self) -> None:
        """Flush and release the file. Closing twice changes nothing."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.close()
        except OSError as error:
            raise StoreError.of("write", self.path, error) from error


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The readable part of a file of lines."""

    table: pa.Table
    lost_bytes: int = 0
    """Bytes after the last readable line: a torn line, or everything from a damaged line on."""
    damage: str = ""
    """Why a whole line cannot be read. Empty when at most the last line is torn, as its writer's death leaves it."""


def read_lines(path: Path, schema: pa.Schema) -> Salvaged:
    """The whole lines of `path` as a table of `schema`; an empty one when the file is missing."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Salvaged(schema.empty_table())
    except OSError as error:
        raise StoreError.of("read", path, error) from error
    whole = data[: data.rfind(b"\n") + 1]
    try:
        table = _parse(whole, schema)
    except pa.ArrowInvalid:
        whole = _sound_prefix(whole, schema)
        table = _parse(whole, schema)
    return Salvaged(table, len(data) - len(whole), _damage(path, data, whole))


def read_objects(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The whole lines of a short file as objects, up to the first that is missing or none, and what is wrong with it.
    StoreError when the file cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError.of("read", path, error) from error
    values: list[dict[str, Any]] = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return values, f"line {number} of {path.name} is damaged"
        if value.get("line", number) != number:
            return values, f"line {number} of {path.name} is missing"
        values.append(value)
    return values, ""


def _damage(path: Path, data: bytes, whole: bytes) -> str:
    if b"\n" not in data[len(whole) :]:
        return ""
    line = whole.count(b"\n") + 1
    return f"line {line} of {path.name} is damaged"


def fill(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with exactly the columns of `schema`, nulls of its required columns filled with their empty values."""
    columns = []
    for field in schema:
        column = table[field.name] if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        if not field.nullable and column.null_count:
            column = pc.fill_null(column, pa.scalar(_empty(field.type), field.type))
        columns.append(column)
    return pa.table(columns, schema=schema)


def _parse(lines: bytes, schema: pa.Schema) -> pa.Table:
    if not lines:
        return schema.empty_table()
    table = pyarrow.json.read_json(
        io.BytesIO(lines),
        read_options=pyarrow.json.ReadOptions(block_size=max(1 << 22, _longest(lines))),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([field.with_nullable(True) for field in schema]),
            unexpected_field_behavior="ignore",
        ),
    )
    return fill(table, schema)


def _longest(lines: bytes) -> int:
    """An upper bound of the longest line's bytes; the parser refuses a line longer than its block."""
    return len(lines) if len(lines) < 1 << 26 else max(map(len, lines.splitlines())) + 1


def _sound_prefix(lines: bytes, schema: pa.Schema) -> bytes:
    """The longest run of lines from the start that parse, each on its own."""
    end = 0
    while end < len(lines):
        line_end = lines.index(b"\n", end) + 1
        line = lines[end:line_end]
        try:
            if not isinstance(json.loads(line), dict):
                break
            _parse(line, schema)
        except (ValueError, RecursionError, pa.ArrowInvalid):
            break
        end = line_end
    return lines[:end]


def _empty(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return []
    if pa.types.is_boolean(kind):
        return False
    return "" if pa.types.is_string(kind) else -1
