"""Loading the tables of a run directory, sealed or still as lines, and listing the missing ones.

Reading never fails because something is missing or torn: `load` reads as far as the files go, and `gaps` lists in words
what is missing. A sealed table (Parquet) takes precedence over its lines, which are removed once it is in place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.evidence import CheckSettings, RunEvidence
from checkers.tables import FAULTS, REPLICA_ENDS, REPLICAS, TRACE
from nemesis import old_names
from results.atomic_files import read_json
from results.errors import StoreError
from results.run import replica_logs
from results.run.json_lines import fill, read_lines, read_objects
from workloads.history import SCHEMA as HISTORY
from workloads.history import read_jsonl

HISTORY_LINES: Final = "history.jsonl"
NODES: Final = "nodes"
"""Below it, each node's files."""
_SCHEMAS: Final = {"history": HISTORY, "trace": TRACE, "faults": FAULTS}
"""Of the tables that are written as lines."""


def load(run: Path) -> RunEvidence:
    """The evidence in the directory `run`. StoreError when a file that is there cannot be read."""
    trace = _table(run, "trace", TRACE, lambda: read_lines(run / "trace.jsonl", TRACE).table)
    if (run / "replica_ends.parquet").exists():
        logs = replica_logs.ReplicaLogs(_sealed(run, "replicas", REPLICAS), _sealed(run, "replica_ends", REPLICA_ENDS))
    else:
        logs = replica_logs.read_nodes(run / NODES, trace)
    return RunEvidence(
        history=_table(run, "history", HISTORY, lambda: _history_lines(run / HISTORY_LINES)),
        replicas=logs.records,
        replica_ends=logs.ends,
        trace=trace,
        faults=with_current_names(_table(run, "faults", FAULTS, lambda: _fault_lines(run / "faults.jsonl"))),
        settings=CheckSettings.from_json(read_json(run / "settings.json")),
        recovery=read_json(run / "recovery.json"),
    )


def with_current_names(faults: pa.Table) -> pa.Table:
    """The table FAULTS of a run that may be older than today's names of faults and families."""
    for column, old_to_new in (("fault", old_names.FAULTS), ("family", old_names.FAMILIES)):
        names = [old_to_new.get(name, name) for name in faults.column(column).to_pylist()]
        field = faults.schema.field(column)
        faults = faults.set_column(faults.schema.get_field_index(column), field, pa.array(names, field.type))
    return faults


def gaps(run: Path) -> tuple[str, ...]:
    """The missing or truncated parts of the evidence in the directory `run`, in words."""
    gaps = [_gap_of_lines(run, name) for name in _SCHEMAS if not (run / f"{name}.parquet").exists()]
    if not (run / "settings.json").exists():
        gaps.append("settings.json is missing: the default settings are used")
    if not (run / NODES).is_dir() and not _sealed(run, "replica_ends", REPLICA_ENDS):
        gaps.append("no replica logs were collected")
    return tuple(gap for gap in gaps if gap)


def _gap_of_lines(run: Path, name: str) -> str:
    path = run / f"{name}.jsonl"
    if not path.exists():
        return f"no {name} was recorded" if name != "faults" else ""
    lost = read_lines(path, _SCHEMAS[name]).lost_bytes
    return f"{path.name} ends in a torn line, left out ({lost} bytes)" if lost else ""


def _history_lines(path: Path) -> pa.Table:
    try:
        return read_jsonl(path)
    except FileNotFoundError:
        return HISTORY.empty_table()
    except OSError as error:
        raise StoreError.of("read", path, error) from error
    except ValueError as error:
        raise StoreError(f"{path}: {error}") from error


def _fault_lines(path: Path) -> pa.Table:
    latest = {row["number"]: row for row in read_objects(path) if "number" in row}
    rows = [{name: row.get(name) for name in FAULTS.names} for row in latest.values()]
    nullable = pa.schema([field.with_nullable(True) for field in FAULTS])
    return fill(pa.Table.from_pylist(rows, nullable), FAULTS)


def _sealed(run: Path, name: str, schema: pa.Schema) -> pa.Table:
    return _table(run, name, schema, schema.empty_table)


def _table(run: Path, name: str, schema: pa.Schema, otherwise: Callable[[], pa.Table]) -> pa.Table:
    path = run / f"{name}.parquet"
    if not path.exists():
        return otherwise()
    try:
        return fill(pq.read_table(path), schema)
    except OSError as error:
        raise StoreError.of("read", path, error) from error
    except pa.ArrowException as error:
        raise StoreError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
