"""Ways of damage, by name: each with the parts of the evidence that it concerns, and what it does to a run directory.

*sealed*      the run has a manifest, which shows every change of a recorded value
*unverified*  the manifest is gone, too, as in runs of format 1: the values themselves show that they are damaged
*unsealed*    the run was killed before it was sealed, after its final reads: its tables are lines
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.evidence import EvidencePart
from tests.damage import editing
from tests.damage.editing import edit_column, edit_json, edit_lines, edit_table, flip_byte, halve, keep_rows
from workloads.compact_json import compact

HISTORY, REPLICAS, TRACE = EvidencePart.HISTORY, EvidencePart.REPLICAS, EvidencePart.TRACE
FAULTS, RECOVERY, SETTINGS = EvidencePart.FAULTS, EvidencePart.RECOVERY, EvidencePart.SETTINGS
EVERYTHING = (HISTORY, REPLICAS, TRACE, FAULTS, RECOVERY, SETTINGS)
PART_OF = {"history": HISTORY, "trace": TRACE, "faults": FAULTS, "replicas": REPLICAS, "replica_ends": REPLICAS}

Deed = Callable[[Path, Path], object]
"""Damages the first run; the second is another run of the same cluster."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One way of damage."""

    name: str
    parts: tuple[EvidencePart, ...]
    apply: Deed


DAMAGES: list[Damage] = []


def _add(name: str, parts: tuple[EvidencePart, ...] | EvidencePart, apply: Deed) -> None:
    DAMAGES.append(Damage(name, parts if isinstance(parts, tuple) else (parts,), apply))


def _sealed(name: str, part: tuple[EvidencePart, ...] | EvidencePart, deed: Callable[[Path], object]) -> None:
    _add(f"sealed: {name}", part, lambda run, other: deed(run))


def _unverified(name: str, part: tuple[EvidencePart, ...] | EvidencePart, deed: Callable[[Path], object]) -> None:
    def apply(run: Path, other: Path) -> None:
        editing.without_manifest(run)
        deed(run)

    _add(f"unverified: {name}", part, apply)


def _unsealed(name: str, part: tuple[EvidencePart, ...] | EvidencePart, deed: Callable[[Path], object]) -> None:
    def apply(run: Path, other: Path) -> None:
        editing.unsealed(run)
        deed(run)

    _add(f"unsealed: {name}", part, apply)


def _first(value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [value, *values[1:]]


def _middle(change: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    def changed(values: list[Any]) -> list[Any]:
        middle = len(values) // 2
        return [*values[:middle], change(values[middle]), *values[middle + 1 :]]

    return changed


def _each(change: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    return lambda values: [change(value) for value in values]


def _as_directory(run: Path) -> None:
    (run / "history.parquet").unlink()
    (run / "history.parquet").mkdir()


def _swap(name: str) -> Deed:
    return lambda run, other: shutil.copy(other / f"{name}.parquet", run / f"{name}.parquet")


def _to_floats(run: Path) -> None:
    def changed(rows: pa.Table) -> pa.Table:
        times = pa.array([float(value) + 0.5 for value in rows["invoked_ns"].to_pylist()])
        return rows.set_column(rows.schema.get_field_index("invoked_ns"), "invoked_ns", times)

    edit_table(run, "history", changed)


def _without_partition_1(name: str) -> Callable[[Path], None]:
    def deed(run: Path) -> None:
        places = editing.table(run, name)["partition"].to_pylist()
        keep_rows(run, name, lambda row, rows: places[row] != 1)

    return deed


def _no_partition_1_on_disk(run: Path) -> None:
    for name in ("replicas", "replica_ends"):
        _without_partition_1(name)(run)


def _lacking_promise(run: Path) -> None:
    groups = json.loads((run / "settings.json").read_text())["groups"]
    edit_json(run, "settings.json", **{"groups" if groups else "acks": ...})


def _endless_fault(run: Path) -> None:
    def changed(lines: list[str]) -> list[str]:
        begun = {name: value for name, value in json.loads(lines[0]).items() if name != "ended_ns"}
        return [compact(begun) + "\n", *lines[1:]]

    edit_lines(run, "faults", changed)


def _silent(node: str) -> Callable[[Path], None]:
    def deed(run: Path) -> None:
        nodes = editing.table(run, "trace")["node"].to_pylist()
        keep_rows(run, "trace", lambda row, rows: nodes[row] != node)
        edit_column(run, "trace", "seq", lambda values: list(range(len(values))))

    return deed


for _name, _part in PART_OF.items():
    _sealed(f"one bit of {_name} is flipped", _part, lambda run, name=_name: flip_byte(run, name))  # type: ignore[misc]
    _sealed(f"{_name} is missing", _part, lambda run, name=_name: (run / f"{name}.parquet").unlink())  # type: ignore[misc]
    _sealed(
        f"a row of {_name} is missing",
        _part,
        lambda run, name=_name: keep_rows(run, name, lambda row, rows: row != rows // 2),  # type: ignore[misc]
    )
for _name in ("history", "trace", "replicas"):
    _sealed(
        f"half of the file of {_name} is gone", PART_OF[_name], lambda run, name=_name: halve(run / f"{name}.parquet")
    )  # type: ignore[misc]
    _sealed(
        f"half of the rows of {_name} are gone",
        PART_OF[_name],
        lambda run, name=_name: keep_rows(run, name, lambda row, rows: row < rows // 2),  # type: ignore[misc]
    )
    _add(f"sealed: {_name} is of another run", PART_OF[_name], _swap(_name))
_sealed("the file of the history is empty", HISTORY, lambda run: (run / "history.parquet").write_bytes(b""))
_sealed("the history is no Parquet file", HISTORY, lambda run: (run / "history.parquet").write_text('{"index": 0}\n'))
_sealed("the history is a directory", HISTORY, _as_directory)
_sealed(
    "history and trace are exchanged",
    (HISTORY, TRACE),
    lambda run: (
        (run / "history.parquet").rename(run / "h"),
        (run / "trace.parquet").rename(run / "history.parquet"),
        (run / "h").rename(run / "trace.parquet"),
    ),
)
_sealed(
    "an offset of the history is one higher",
    HISTORY,
    lambda run: edit_column(run, "history", "offset", _middle(lambda value: (value or 0) + 1)),
)
_sealed(
    "an append of the history failed",
    HISTORY,
    lambda run: edit_column(run, "history", "outcome", _middle(lambda value: "fail" if value != "fail" else "info")),
)
_sealed(
    "the epoch of a record on disk is another",
    REPLICAS,
    lambda run: edit_column(run, "replicas", "leader_epoch", _middle(lambda value: value + 1)),
)
_sealed(
    "the high watermark of a replica is another",
    REPLICAS,
    lambda run: edit_column(run, "replica_ends", "high_watermark", _first(0)),
)
_sealed("a fault has no evidence", FAULTS, lambda run: edit_column(run, "faults", "evidence", _first("{}")))
_sealed("a fault began later", FAULTS, lambda run: edit_column(run, "faults", "started_ns", _first(1)))
_sealed("settings.json is missing", SETTINGS, lambda run: (run / "settings.json").unlink())
_sealed("settings.json is torn", SETTINGS, lambda run: halve(run / "settings.json"))
_sealed("other promises are in settings.json", SETTINGS, lambda run: edit_json(run, "settings.json", acks=0))
_sealed("recovery.json is missing", RECOVERY, lambda run: (run / "recovery.json").unlink())
_sealed("recovery.json is torn", RECOVERY, lambda run: halve(run / "recovery.json"))
_sealed("another recovery is told", RECOVERY, lambda run: edit_json(run, "recovery.json", final_reads=False))
_sealed("manifest.json is missing", EVERYTHING, lambda run: (run / "manifest.json").unlink())
_sealed("manifest.json is torn", EVERYTHING, lambda run: halve(run / "manifest.json"))
_sealed("manifest.json is deep", EVERYTHING, lambda run: (run / "manifest.json").write_text("[" * 100_000))
_sealed("manifest.json is a list", EVERYTHING, lambda run: (run / "manifest.json").write_text("[]"))
_sealed("manifest.json names no tables", EVERYTHING, lambda run: edit_json(run, "manifest.json", tables={}))

_unverified(
    "the history has no column kind",
    HISTORY,
    lambda run: edit_table(run, "history", lambda t: t.drop_columns(["kind"])),
)
_unverified(
    "the trace has no column node", TRACE, lambda run: edit_table(run, "trace", lambda t: t.drop_columns(["node"]))
)
_unverified(
    "the logs have no column value",
    REPLICAS,
    lambda run: edit_table(run, "replicas", lambda t: t.drop_columns(["value"])),
)
_unverified(
    "an operation is of an unknown kind", HISTORY, lambda run: edit_column(run, "history", "kind", _first("scan"))
)
_unverified("an operation has no kind", HISTORY, lambda run: edit_column(run, "history", "kind", _first(None)))
_unverified("no operation has a kind", HISTORY, lambda run: edit_column(run, "history", "kind", _each(lambda _: None)))
_unverified(
    "no operation was completed",
    HISTORY,
    lambda run: edit_column(run, "history", "completed_ns", _each(lambda _: None)),
)
_unverified(
    "an index is there twice", HISTORY, lambda run: edit_column(run, "history", "index", lambda v: [v[1], *v[1:]])
)
_unverified(
    "the history is of another topic", HISTORY, lambda run: edit_column(run, "history", "topic", _each(lambda _: "t"))
)
_unverified("times are fractional", HISTORY, _to_floats)
_unverified("a partition is absent from the history", HISTORY, _without_partition_1("history"))
_unverified("a partition is on no disk", REPLICAS, _no_partition_1_on_disk)
_unverified(
    "a partition is absent from the trace",
    TRACE,
    lambda run: (
        _without_partition_1("trace")(run),
        edit_column(run, "trace", "seq", lambda values: list(range(len(values)))),
    ),
)
_unverified("a record on disk is of no collected log", REPLICAS, _without_partition_1("replica_ends"))
_unverified(
    "no event is of a known kind", TRACE, lambda run: edit_column(run, "trace", "kind", _each(lambda kind: f"x{kind}"))
)
_unverified(
    "the first half of the trace is gone", TRACE, lambda run: keep_rows(run, "trace", lambda row, rows: row > rows // 2)
)
_unverified("the trace runs backwards", TRACE, lambda run: edit_column(run, "trace", "time_ns", lambda v: v[::-1]))
_unverified("a node traced nothing", TRACE, _silent("c1"))
_unverified("an event is of a strange node", TRACE, lambda run: edit_column(run, "trace", "node", _first("b9")))
_unverified("the detail of an event is no JSON", TRACE, lambda run: edit_column(run, "trace", "detail", _first("{")))
_unverified(
    "a node is there three times", REPLICAS, lambda run: edit_column(run, "replica_ends", "node", _each(lambda _: "b1"))
)
_unverified(
    "a log ends before it starts", REPLICAS, lambda run: edit_column(run, "replica_ends", "log_end", _first(-5))
)
_unverified(
    "the evidence of a fault is no object", FAULTS, lambda run: edit_column(run, "faults", "evidence", _first("[1]"))
)
_unverified(
    "a fault lost many bytes",
    FAULTS,
    lambda run: edit_column(run, "faults", "evidence", _first('{"lost_bytes":"many"}')),
)
_unverified("a fault hit a strange node", FAULTS, lambda run: edit_column(run, "faults", "nodes", _first(["b9"])))
_unverified('recovered is "no"', RECOVERY, lambda run: edit_json(run, "recovery.json", recovered="no"))
_unverified("final_reads is 1", RECOVERY, lambda run: edit_json(run, "recovery.json", final_reads=1))
_unverified("seconds are endless", RECOVERY, lambda run: edit_json(run, "recovery.json", seconds=float("inf")))
_unverified("settings.json lacks a promise", SETTINGS, _lacking_promise)
_unverified('has_trace is "no"', SETTINGS, lambda run: edit_json(run, "settings.json", has_trace="no"))
_unverified("settings.json is a list", SETTINGS, lambda run: (run / "settings.json").write_text("[]"))
_unverified("settings.json is deep", SETTINGS, lambda run: (run / "settings.json").write_text("[" * 100_000))
_unverified("a time limit of 2⁷⁰", SETTINGS, lambda run: edit_json(run, "settings.json", time_limit_ns=1 << 70))

_unsealed(
    "the last line of the history is torn",
    HISTORY,
    lambda run: edit_lines(run, "history", lambda v: [*v[:-1], v[-1][:9]]),
)
_unsealed("the last line of the history is gone", HISTORY, lambda run: edit_lines(run, "history", lambda v: v[:-1]))
_unsealed(
    "a line of the history is missing", HISTORY, lambda run: edit_lines(run, "history", lambda v: [*v[:9], *v[10:]])
)
_unsealed(
    "a line of the history is there twice",
    HISTORY,
    lambda run: edit_lines(run, "history", lambda v: [*v[:9], *v[8:]]),
)
_unsealed(
    "a line of the history is torn",
    HISTORY,
    lambda run: edit_lines(run, "history", lambda v: [*v[:9], v[9][:9] + "\n", *v[10:]]),
)
_unsealed(
    "a time of 2⁷⁰ in the history",
    HISTORY,
    lambda run: edit_lines(
        run, "history", lambda v: [*v[:-1], v[-1].replace('"index":', f'"value":{1 << 70},"index":')]
    ),
)
_unsealed(
    "a line of the trace is garbage",
    TRACE,
    lambda run: edit_lines(run, "trace", lambda v: [*v[:9], "garbage\n", *v[10:]]),
)
_unsealed("a line of the trace is missing", TRACE, lambda run: edit_lines(run, "trace", lambda v: [*v[:9], *v[10:]]))
_unsealed("the end of a fault is missing", FAULTS, _endless_fault)
_unsealed("the faults are missing", FAULTS, lambda run: (run / "faults.jsonl").unlink())
_unsealed("a line of the faults is a list", FAULTS, lambda run: edit_lines(run, "faults", lambda v: ["[]\n", *v[1:]]))
