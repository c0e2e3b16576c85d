"""Changes of a run directory that leave its evidence whole, by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from checkers.tables import ADDED_COLUMNS
from tests.damage.editing import edit_json, edit_table, shuffle, unsealed, without_manifest, without_names

TABLES = ("history", "trace", "faults", "replicas", "replica_ends")


def _rewritten(change: Callable[[pa.Table], pa.Table], **options: object) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        for name in TABLES:
            edit_table(run, name, change, **options)

    return apply


def _shuffled(name: str) -> Callable[[Path], None]:
    return lambda run: edit_table(run, name, shuffle)


def _with_column(name: str) -> Callable[[Path], None]:
    return lambda run: edit_table(
        run, name, lambda rows: rows.append_column("colour", pa.array(["red"] * rows.num_rows))
    )


def _wide(rows: pa.Table) -> pa.Table:
    kinds = {pa.string(): pa.large_string(), pa.int32(): pa.int64()}
    return rows.cast(pa.schema([field.with_type(kinds.get(field.type, field.type)) for field in rows.schema]))


def _reformat(name: str) -> Callable[[Path], None]:
    def apply(run: Path) -> None:
        values = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps(dict(reversed(values.items())), indent=7) + "\n\n")

    return apply


def _add_files(run: Path) -> None:
    (run / "notes.txt").write_text("seen on Tuesday\n")
    (run / "plots").mkdir()
    (run / ".history.parquet.17.part").write_bytes(b"half")


def _without_added_columns(run: Path) -> None:
    without_names(run)
    for name in TABLES:
        edit_table(run, name, lambda rows: rows.drop_columns([n for n in rows.column_names if n in ADDED_COLUMNS]))


def _old_name(run: Path) -> None:
    without_names(run)
    settings = json.loads((run / "settings.json").read_text())
    settings["trace_has_one_clock"] = settings.pop("comparable_clocks")
    (run / "settings.json").write_text(json.dumps(settings))


def _remove_derived(run: Path) -> None:
    for name in ("verdict.json", "report.html", "lost.csv", "schedule.yaml"):
        (run / name).unlink(missing_ok=True)
    shutil.rmtree(run / "nodes", ignore_errors=True)


def _windows_lines(run: Path) -> None:
    path = run / "spec.yaml"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def _newer_setting(run: Path) -> None:
    without_manifest(run)
    edit_json(run, "settings.json", promise_of_tomorrow=1)


PERTURBATIONS: Mapping[str, Callable[[Path], object]] = {
    "nothing": lambda run: None,
    "rows of the history in another order": _shuffled("history"),
    "rows of the trace in another order": _shuffled("trace"),
    "rows of the faults in another order": _shuffled("faults"),
    "records of the logs in another order": _shuffled("replicas"),
    "replicas in another order": _shuffled("replica_ends"),
    "another column in the history": _with_column("history"),
    "another column in the trace": _with_column("trace"),
    "columns in another order": _rewritten(lambda rows: rows.select(rows.column_names[::-1])),
    "no compression": _rewritten(lambda rows: rows, compression="none"),
    "another compression": _rewritten(lambda rows: rows, compression="gzip"),
    "small row groups": _rewritten(lambda rows: rows, row_group_size=7),
    "no dictionaries, another Parquet version": _rewritten(lambda rows: rows, use_dictionary=False, version="1.0"),
    "no metadata": _rewritten(lambda rows: rows.replace_schema_metadata(None)),
    "wider types": _rewritten(_wide),
    "files of somebody else": _add_files,
    "another name": lambda run: run.rename(run.with_name("a run of mine (1)")),
    "settings.json formatted otherwise": _reformat("settings.json"),
    "recovery.json formatted otherwise": _reformat("recovery.json"),
    "spec.yaml with other line ends": _windows_lines,
    "status.json formatted otherwise": _reformat("status.json"),
    "format 1, without a manifest": without_manifest,
    "format 1, without names of topic and nodes": without_names,
    "format 1, without columns added since": _without_added_columns,
    "format 1, with an old name of a setting": _old_name,
    "a setting of a newer version": _newer_setting,
    "not sealed": unsealed,
    "nothing derived, no files of nodes": _remove_derived,
}
