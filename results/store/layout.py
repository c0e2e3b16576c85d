"""The layout of the Parquet store: which tables there are, their columns, and where their files lie.

    STORE/tables/v1/<table>/suite=<suite>/<batch>.parquet

`v1` is the version of the layout. `suite` is a column in the path, as Spark, DuckDB and pandas read it. A batch is one
or more runs stored together; it has a file of the same name in every table. Its file in `runs` is written last, so a
batch that has none there was cut short and does not count. Every file carries `faultline.table` and
`faultline.version` in its Parquet metadata; a file that does not is foreign.

The first column of every table is `run`. History, trace, replicas, replica ends and faults go on with the columns of
`workloads.history.SCHEMA` and `checkers.tables`. RUNS has one row a run; `cell` is the entry of the suite it belongs to
(the spec's name for a run that was added), `evidence` tells whether the five tables above hold what the run recorded:
of a suite's runs that were valid only what follows is kept. `settings`, `recovery` and `facts` are JSON objects, `spec`
is the YAML that brings the run back, `validity` is null for a run that was never checked. VERDICTS has one row a
checker, its findings as a JSON array. METRICS has one row a figure of a checker; those of `results.metrics` have the
checker `measured`. COVERAGE has one row for each thing that the run exercised (`results.coverage`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from checkers.tables import FAULTS, REPLICA_ENDS, REPLICAS, TRACE
from results.errors import StoreError
from workloads.history import SCHEMA as HISTORY

VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _table(name: str, columns: pa.Schema) -> pa.Schema:
    metadata = {"faultline.table": name, "faultline.version": str(VERSION)}
    return pa.schema([pa.field("run", pa.string(), nullable=False), *columns], metadata=metadata)


def _strings(*names: str) -> list[pa.Field]:
    return [pa.field(name, pa.string(), nullable=False) for name in names]


SCHEMAS: Mapping[str, pa.Schema] = {
    "history": _table("history", HISTORY),
    "trace": _table("trace", TRACE),
    "replicas": _table("replicas", REPLICAS),
    "replica_ends": _table("replica_ends", REPLICA_ENDS),
    "faults": _table("faults", FAULTS),
    "verdicts": _table("verdicts", pa.schema(_strings("checker", "validity", "findings"))),
    "metrics": _table(
        "metrics", pa.schema([*_strings("checker", "figure"), pa.field("value", pa.float64(), nullable=False)])
    ),
    "coverage": _table(
        "coverage", pa.schema([*_strings("kind", "name"), pa.field("count", pa.int64(), nullable=False)])
    ),
    "runs": _table(
        "runs",
        pa.schema(
            [
                pa.field("seed", pa.int64(), nullable=False),
                *_strings("cell", "name", "state", "version", "started"),
                pa.field("evidence", pa.bool_(), nullable=False),
                pa.field("validity", pa.string()),
                pa.field("digest", pa.string()),
                *_strings("spec", "settings", "recovery", "facts"),
            ]
        ),
    ),
}
"""In the order in which a batch is written: `runs`, which makes it count, comes last."""
EVIDENCE = ("history", "trace", "replicas", "replica_ends", "faults")
MEASURED = "measured"
"""What METRICS names as the checker of the figures of `results.metrics`."""


def tables_path(store: Path) -> Path:
    """Where the tables of this version lie."""
    return store / "tables" / f"v{VERSION}"


def plain(what: str, name: str) -> str:
    """`name`, if it can name a file and nothing but a file of that name. StoreError if not."""
    if not _NAME.fullmatch(name):
        raise StoreError(f"{what}: {name!r} is not made of letters, digits, '.', '_' and '-', or begins with a sign")
    return name


def batch_path(store: Path, table: str, suite: str, batch: str) -> Path:
    """The file of one batch in one table. StoreError for a name that is not a plain file name."""
    plain("suite", suite)
    plain("batch", batch)
    return tables_path(store) / table / f"suite={suite}" / f"{batch}.parquet"
