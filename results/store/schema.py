"""The schema of the Parquet store: its tables, their columns, and the paths of their files.

    STORE/tables/v1/<table>/suite=<suite>/<batch>.parquet

`v1` is the version of the layout. `suite` is a partition column in the path, as Spark, DuckDB and pandas read it. A
batch is one or more runs stored together; it has a file of the same name in every table. Its file in `runs` is written
last, so a batch without one is incomplete and does not count. Every file carries `faultline.table` and
`faultline.version` in its Parquet metadata; a file without them is foreign.

The first column of every table is `run`. The tables history, trace, replicas, replica_ends and faults continue with the
columns of `workloads.history.SCHEMA` and `checkers.tables`. RUNS has one row per run; `cell` is the suite entry of the
run (the spec's name for a run that was added by hand), `evidence` says whether the five tables above hold the records
of the run: a suite keeps no evidence of its valid runs. `settings`, `recovery` and `facts` are JSON objects, `spec` is
the YAML that reproduces the run, `validity` is null for a run that was never checked. VERDICTS has one row per checker,
its findings as a JSON array. METRICS has one row per figure of a checker; the figures of `results.measures` have the
checker `measured`. COVERAGE has one row per mark that the run exercised (`results.coverage`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from checkers.tables import FAULTS, REPLICA_ENDS, REPLICAS, TRACE
from results.errors import BadName
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
BATCH_OF_MANY = "batch-"
"""The beginning of the name of a batch of many runs, those of a suite; a number follows. Any other has its run's."""
GAPS, ROWS = "gaps", "rows"
"""Facts of a run: what its evidence lacked when it was stored, and how many rows of each table of EVIDENCE it has."""
MESSAGE = "message"
"""Fact of a run: why it did not end, where that is known."""
SIGNATURES = "signatures"
"""Fact of a run: the signatures of its stories (`results.explanation`)."""
MEASURED = "measured"
"""The checker name of the figures of `results.measures` in METRICS."""


def tables_path(store: Path) -> Path:
    """The directory of the tables of this version."""
    return store / "tables" / f"v{VERSION}"


def plain(what: str, name: str) -> str:
    """`name` itself. BadName when it is not a plain file name."""
    if not _NAME.fullmatch(name):
        raise BadName(
            f"{what}: {name!r} must consist of letters, digits, '.', '_' and '-', and begin with a letter or digit"
        )
    return name


def batch_path(store: Path, table: str, suite: str, batch: str) -> Path:
    """The file of one batch in one table. BadName for a name that is not a plain file name."""
    plain("suite", suite)
    plain("batch", batch)
    return tables_path(store) / table / f"suite={suite}" / f"{batch}.parquet"
