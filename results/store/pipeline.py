"""Checking stored runs with Spark: each (run, topic, partition) separately, by the same checkers as a single run.

    runs with evidence → index: (run, topic, partition) …, in tasks            results.store.partition_index.units
                       → each checked and measured, applyInArrow by key        checkers.registry.check_partition
                       → one verdict per checker and run, applyInArrow by run  checkers.registry.whole
                       → tables `verdicts` and `metrics`

Tasks exchange names and verdicts, never histories: the task that checks a partition reads that partition from the
store, and nothing else. The store must therefore lie where every executor can read it.

A missing, foreign or damaged file is reported as a `DamagedFile`; the runs of its batch that need it get no verdict and
are named in `left_out`. Other runs are not affected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from checkers.deletions import deletable_below
from checkers.evidence import CheckSettings, EvidenceGap, RunEvidence
from checkers.registry import (
    PARTITIONED,
    applicable_checkers,
    check_partition,
    merge_partition_verdicts,
    reads_trace,
    run_checker,
    trace_of_partition,
)
from checkers.tables import TRACE
from checkers.verdict import Validity, Verdict
from results.errors import StoreError
from results.measures import measure_partition, measure_whole, merge_partitions
from results.run.json_encoding import verdict_to_json, verdicts_from_json
from results.run.manifest import TABLES, gaps_from_json, gaps_to_json
from results.run_figures import APPENDS, PartitionRecords
from results.store import tables
from results.store.partition_index import LIGHT, WHOLE_RUN, CheckUnit, DamagedFileError, filled, rows, units
from results.store.schema import GAPS, MEASURED, ROWS, SCHEMAS
from results.store.tables import DamagedFile
from workloads.columns import partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_DAMAGE: Final = DamagedFile(Path(), "")
_PARTS_PER_SLOT: Final = 8
"""Partitions of the data for each task that can run at a time: how evenly the work is dealt out."""
_UNITS: Final = (
    "suite string, batch string, run string, topic string, partition int, collected_ns bigint, settings string, "
    "recovery string, facts string, damaged_path string, damage string"
)
_UNIT_VERDICTS: Final = (
    "suite string, run string, topic string, partition int, verdict string, settings string, gaps string, "
    "damaged_path string, damage string"
)
_WHOLE: Final = "suite string, run string, verdict string"


@dataclass(frozen=True, slots=True, eq=False)
class CheckedRuns:
    """The pipeline's result for the runs of a store."""

    verdicts: pa.Table
    """As the store's table `verdicts`, with `suite` as last column."""
    metrics: pa.Table
    """Likewise `metrics`."""
    damaged: tuple[DamagedFile, ...]
    left_out: tuple[tuple[str, str], ...]
    """(suite, run) of the runs that could not be checked because of a damaged file."""


def check(spark: SparkSession, store: Path, suite: str = "") -> CheckedRuns:
    """Check every run of the store, or of one suite, whose evidence is stored. StoreError when there is none."""
    stored = tables.read(store, "runs", suite)
    runs = stored.table.filter(stored.table.column("evidence"))
    if not runs.num_rows:
        reason = "; a suite keeps that of runs which are not valid, and `faultline store add RUN_DIR` that of any run"
        if stored.damaged:
            reason = f" ({stored.damaged[0].path}: {stored.damaged[0].reason})"
        raise StoreError(f"{store}: no run is stored{f' in {suite}' if suite else ''} whose evidence is kept{reason}")
    slots = max(1, spark.sparkContext.defaultParallelism)
    parts = _PARTS_PER_SLOT * slots
    index = spark.createDataFrame(_batches(store, suite, runs)).repartition(parts).mapInArrow(_indexer(store), _UNITS)
    keys = ("suite", "run", "topic", "partition")
    checked_units = (
        index.repartition(parts, *keys).groupBy(*keys).applyInArrow(_check_unit(store), _UNIT_VERDICTS).cache()
    )
    try:
        damaged_rows = checked_units.where("verdict = ''").select("suite", "run", "damaged_path", "damage").collect()
        by_run = checked_units.repartition(slots, "suite", "run").groupBy("suite", "run")
        verdicts = by_run.applyInArrow(_merge_units, _WHOLE).toArrow()
    finally:
        checked_units.unpersist()
    named = {DamagedFile(Path(row.damaged_path), row.damage): None for row in damaged_rows}
    return CheckedRuns(
        verdicts=_verdicts(verdicts),
        metrics=_metrics(verdicts),
        damaged=(*stored.damaged, *sorted(named, key=lambda file: file.path)),
        left_out=tuple(sorted({(row.suite, row.run) for row in damaged_rows})),
    )


def _batches(store: Path, suite: str, runs: pa.Table) -> pa.Table:
    """One row per batch: its runs with their settings, recovery and facts, as JSON."""
    row_of_run = {(row["suite"], row["run"]): row for row in runs.to_pylist()}
    rows = []
    for path in tables.files(store, "runs", suite):
        loaded = tables.load(path, "runs")
        if isinstance(loaded, DamagedFile):
            continue
        name = path.parent.name.removeprefix("suite=")
        mine = [row_of_run[name, run] for run in loaded.column("run").to_pylist() if (name, run) in row_of_run]
        conditions = {row["run"]: {name: row[name] for name in ("settings", "recovery", "facts")} for row in mine}
        if conditions:
            rows.append({"suite": name, "batch": path.stem, "runs": json.dumps(conditions)})
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in ("suite", "batch", "runs")]))


# ---- in tasks --------------------------------------------------------------------------------------------------------


def _indexer(store: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Expand batches to their units; a batch with a damaged file has one row per run, which names the file."""

    def index(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                conditions = json.loads(row["runs"])
                damaged = NO_DAMAGE
                try:
                    unit_list = units(store, row["suite"], row["batch"], list(conditions))
                except DamagedFileError as error:
                    unit_list, damaged = [CheckUnit(run, "", WHOLE_RUN, 0) for run in conditions], error.file
                for unit in unit_list:
                    values = (row["suite"], row["batch"], unit.run, unit.topic, unit.partition, unit.collected_ns)
                    named = (str(damaged.path), damaged.reason)
                    yield from _rows(_UNITS, [(*values, *conditions[unit.run].values(), *named)]).to_batches()

    return index


def _check_unit(store: Path) -> Callable[[pa.Table], pa.Table]:
    """Check one unit: one row per checker, and one row with its figures."""

    def check_group(group: pa.Table) -> pa.Table:
        (row,) = group.to_pylist()
        unit = CheckUnit(row["run"], row["topic"], row["partition"], row["collected_ns"])
        key = (row["suite"], unit.run, unit.topic, unit.partition)
        damaged = DamagedFile(Path(row["damaged_path"]), row["damage"])
        verdicts: list[Verdict] = []
        gaps: tuple[EvidenceGap, ...] = ()
        if damaged == NO_DAMAGE:
            try:
                batch = _BatchLocation(store, row["suite"], row["batch"])
                if unit.partition == WHOLE_RUN:
                    gaps = _gaps(batch, unit, json.loads(row["facts"]))
                verdicts = _of_unit(batch, unit, row["settings"], row["recovery"], gaps)
            except DamagedFileError as error:
                damaged = error.file
        known = (row["settings"], json.dumps(gaps_to_json(gaps)))
        verdict_rows = [(*key, json.dumps(verdict_to_json(verdict)), *known, "", "") for verdict in verdicts]
        return _rows(
            _UNIT_VERDICTS,
            verdict_rows if damaged == NO_DAMAGE else [(*key, "", *known, str(damaged.path), damaged.reason)],
        )

    return check_group


def _merge_units(group: pa.Table) -> pa.Table:
    """One verdict per checker for a run, and its figures; no row for a run with an unusable file."""
    unit_rows = sorted(group.to_pylist(), key=lambda row: (row["topic"], row["partition"]))
    suite, run = unit_rows[0]["suite"], unit_rows[0]["run"]
    if any(row["verdict"] == "" for row in unit_rows):
        return _rows(_WHOLE, [])
    settings = CheckSettings.from_json(json.loads(unit_rows[0]["settings"]))
    verdicts = verdicts_from_json({"checks": [json.loads(row["verdict"]) for row in unit_rows]})
    measured = [verdict.figures for verdict in verdicts if verdict.checker == MEASURED]
    figures = merge_partitions([part for part in measured if APPENDS.name in part])
    for part in measured:
        figures |= {} if APPENDS.name in part else part
    gaps = [gap for row in unit_rows for gap in gaps_from_json(json.loads(row["gaps"]))]
    merged = [
        *merge_partition_verdicts(settings, verdicts, tuple(dict.fromkeys(gaps))),
        Verdict(MEASURED, Validity.VALID, figures=figures),
    ]
    return _rows(_WHOLE, [(suite, run, json.dumps(verdict_to_json(verdict))) for verdict in merged])


@dataclass(frozen=True, slots=True)
class _BatchLocation:
    """The store, suite and name of a batch."""

    store: Path
    suite: str
    batch: str

    def rows(self, name: str, unit: CheckUnit, columns: Sequence[str] | None = None) -> pa.Table:
        return rows(self.store, self.suite, self.batch, name, unit, columns)


def _of_unit(
    batch: _BatchLocation, unit: CheckUnit, promised: str, ended: str, gaps: tuple[EvidenceGap, ...]
) -> list[Verdict]:
    settings, recovery = CheckSettings.from_json(json.loads(promised)), json.loads(ended)
    run = CheckUnit(unit.run, "", WHOLE_RUN, unit.collected_ns)
    known = {"faults": batch.rows("faults", run), "settings": settings, "recovery": recovery}
    if unit.partition == WHOLE_RUN:
        history = batch.rows("history", run, None if settings.groups or settings.script_commits else LIGHT)
        disks = {"replica_ends": batch.rows("replica_ends", run)}
        if settings.has_decisions:
            disks["replicas"] = batch.rows("replicas", run)
        trace = batch.rows("trace", run)
        evidence = RunEvidence(history=filled(history), trace=trace, gaps=gaps, **disks, **known)
        checkers = {name: checker for name, checker in applicable_checkers(settings).items() if name not in PARTITIONED}
        verdicts = [run_checker(name, checker, evidence) for name, checker in checkers.items()]
        return [*verdicts, Verdict(MEASURED, Validity.VALID, figures=measure_whole(evidence))]
    trace = TRACE.empty_table()
    if reads_trace(settings, known["faults"], recovery):
        trace = trace_of_partition(batch.rows("trace", run), unit.topic, unit.partition)
    evidence = RunEvidence(
        **{name: batch.rows(name, unit) for name in ("history", "replicas", "replica_ends")}, trace=trace, **known
    )
    verdicts = check_partition(evidence, unit.collected_ns)
    deleted = deletable_below(evidence)
    for topic, number, history in partitions(evidence.history):
        below = deleted.get((topic, number), 0)
        logs = evidence.replicas, evidence.replica_ends
        records = PartitionRecords(history, *logs, recovery, below, settings.time_limit_ns)
        figures = measure_partition(records)
        verdicts.append(Verdict(MEASURED, Validity.VALID, figures=figures))
    return verdicts


def _gaps(batch: _BatchLocation, run: CheckUnit, facts: Mapping[str, Any]) -> tuple[EvidenceGap, ...]:
    """What the run lacked when it was stored, and the tables from which rows have gone since."""
    lacking = list(gaps_from_json(facts.get(GAPS, ())))
    for name, stored in facts.get(ROWS, {}).items():
        rows_left = batch.rows(name, run, SCHEMAS[name].names[1:2]).num_rows
        if rows_left != stored:
            lacking.append(EvidenceGap(TABLES[name], f"{rows_left} rows of {name} are left of {stored}"))
    return tuple(lacking)


# ---- tables ----------------------------------------------------------------------------------------------------------


def _verdicts(checked_units: pa.Table) -> pa.Table:
    return _as_stored(
        "verdicts",
        (
            {**verdict, "suite": suite, "run": run, "findings": json.dumps(verdict["findings"])}
            for suite, run, verdict in _each(checked_units)
            if verdict["checker"] != MEASURED
        ),
    )


def _metrics(checked_units: pa.Table) -> pa.Table:
    return _as_stored(
        "metrics",
        (
            {"suite": suite, "run": run, "checker": verdict["checker"], "figure": figure, "value": value}
            for suite, run, verdict in _each(checked_units)
            for figure, value in verdict["figures"].items()
        ),
    )


def _each(checked_units: pa.Table) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for row in checked_units.sort_by([("suite", "ascending"), ("run", "ascending")]).to_pylist():
        yield row["suite"], row["run"], json.loads(row["verdict"])


def _as_stored(name: str, verdict_rows: Iterator[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(verdict_rows), SCHEMAS[name].append(pa.field("suite", pa.string())))


def _rows(columns: str, values: list[tuple[Any, ...]]) -> pa.Table:
    """A table with the columns that are named so for Spark."""
    kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
    named = [column.split() for column in columns.split(", ")]
    schema = pa.schema([(name, kinds[kind]) for name, kind in named])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema)
