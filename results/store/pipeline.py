"""Stored runs judged by Spark: each (run, topic, partition) by itself, by the very checkers of a single run.

    runs with evidence → index: (run, topic, partition) …, in tasks           results.store.evidence_files.units
                       → each judged and measured, applyInArrow by key        checkers.registry.check_partition
                       → one verdict a checker and run, applyInArrow by run   checkers.registry.whole
                       → tables `verdicts` and `metrics`

What is exchanged between tasks are names and verdicts, never histories: the task that judges a partition reads that
partition from the store, and nothing else. So the store must lie where every executor reaches it.

A file that is missing, foreign or damaged is a `Fault`, by name; the runs of its batch that need it have no verdict
here and are named in `left_out`. No other run is disturbed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.deletions import deletable_below
from checkers.evidence import CheckSettings, RunEvidence
from checkers.registry import (
    PARTITIONED,
    applicable_checkers,
    check_partition,
    merge_partition_verdicts,
    needs_trace,
    run_checker,
)
from checkers.tables import TRACE
from checkers.verdict import Validity, Verdict
from results.errors import StoreError
from results.metrics import measure_partition, measure_whole, together
from results.run.encoding import verdict_to_json, verdicts_from_json
from results.store import tables
from results.store.evidence_files import LIGHT, WHOLE_RUN, Damaged, Unit, filled, rows, units
from results.store.layout import MEASURED, SCHEMAS
from results.store.tables import Fault
from workloads.columns import partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_FAULT: Final = Fault(Path(), "")
_PARTS_PER_SLOT: Final = 8
"""Partitions of the data for each task that can run at a time: how evenly the work is dealt out."""
_UNITS: Final = (
    "suite string, batch string, run string, topic string, partition int, collected_ns bigint, settings string, "
    "recovery string, fault_path string, fault_reason string"
)
_JUDGED: Final = (
    "suite string, run string, topic string, partition int, verdict string, settings string, fault_path string, "
    "fault_reason string"
)
_WHOLE: Final = "suite string, run string, verdict string"


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """What the pipeline says of the runs of a store."""

    verdicts: pa.Table
    """As the store's table `verdicts`, with `suite` as last column."""
    metrics: pa.Table
    """Likewise `metrics`."""
    faults: tuple[Fault, ...]
    left_out: tuple[tuple[str, str], ...]
    """(suite, run) of the runs that a fault kept from being judged."""


def check(spark: SparkSession, store: Path, suite: str = "") -> Checked:
    """Judge every run of the store, or of one suite, of which evidence is kept. StoreError when there is none."""
    stored = tables.read(store, "runs", suite)
    runs = stored.table.filter(stored.table.column("evidence"))
    if not runs.num_rows:
        found = f" ({stored.faults[0].path}: {stored.faults[0].reason})" if stored.faults else ""
        raise StoreError(f"{store}: no run is stored{f' in {suite}' if suite else ''} whose evidence is kept{found}")
    slots = max(1, spark.sparkContext.defaultParallelism)
    parts = _PARTS_PER_SLOT * slots
    index = spark.createDataFrame(_batches(store, suite, runs)).repartition(parts).mapInArrow(_indexer(store), _UNITS)
    keys = ("suite", "run", "topic", "partition")
    judged = index.repartition(parts, *keys).groupBy(*keys).applyInArrow(_judge(store), _JUDGED).cache()
    try:
        faults = judged.where("verdict = ''").select("suite", "run", "fault_path", "fault_reason").collect()
        by_run = judged.repartition(slots, "suite", "run").groupBy("suite", "run")
        verdicts = by_run.applyInArrow(_together, _WHOLE).toArrow()
    finally:
        judged.unpersist()
    named = {Fault(Path(row.fault_path), row.fault_reason): None for row in faults}
    return Checked(
        verdicts=_verdicts(verdicts),
        metrics=_metrics(verdicts),
        faults=(*stored.faults, *sorted(named, key=lambda fault: fault.path)),
        left_out=tuple(sorted({(row.suite, row.run) for row in faults})),
    )


def _batches(store: Path, suite: str, runs: pa.Table) -> pa.Table:
    """One row a batch: its runs, with what each promised and how it ended, as JSON."""
    wanted = {(row["suite"], row["run"]): row for row in runs.to_pylist()}
    rows = []
    for path in tables.files(store, "runs", suite):
        loaded = tables.load(path, "runs")
        if isinstance(loaded, Fault):
            continue
        name = path.parent.name.removeprefix("suite=")
        mine = [wanted[name, run] for run in loaded.column("run").to_pylist() if (name, run) in wanted]
        told = {row["run"]: {"settings": row["settings"], "recovery": row["recovery"]} for row in mine}
        if told:
            rows.append({"suite": name, "batch": path.stem, "runs": json.dumps(told)})
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in ("suite", "batch", "runs")]))


# ---- in tasks --------------------------------------------------------------------------------------------------------


def _indexer(store: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """From batches to the units in them; a batch with a fault has one row a run, which tells it."""

    def index(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                told = json.loads(row["runs"])
                fault = NO_FAULT
                try:
                    found = units(store, row["suite"], row["batch"], list(told))
                except Damaged as error:
                    found, fault = [Unit(run, "", WHOLE_RUN, 0) for run in told], error.fault
                for unit in found:
                    values = (row["suite"], row["batch"], unit.run, unit.topic, unit.partition, unit.collected_ns)
                    promised = told[unit.run]
                    named = (str(fault.path), fault.reason)
                    yield from _rows(
                        _UNITS, [(*values, promised["settings"], promised["recovery"], *named)]
                    ).to_batches()

    return index


def _judge(store: Path) -> Callable[[pa.Table], pa.Table]:
    """What the checkers say of one unit: a row a checker, and one with what was measured."""

    def judge(group: pa.Table) -> pa.Table:
        (row,) = group.to_pylist()
        unit = Unit(row["run"], row["topic"], row["partition"], row["collected_ns"])
        key = (row["suite"], unit.run, unit.topic, unit.partition)
        fault = Fault(Path(row["fault_path"]), row["fault_reason"])
        verdicts: list[Verdict] = []
        if fault == NO_FAULT:
            try:
                verdicts = _of_unit(_Shelf(store, row["suite"], row["batch"]), unit, row["settings"], row["recovery"])
            except Damaged as error:
                fault = error.fault
        told = [(*key, json.dumps(verdict_to_json(verdict)), row["settings"], "", "") for verdict in verdicts]
        return _rows(_JUDGED, told if fault == NO_FAULT else [(*key, "", "", str(fault.path), fault.reason)])

    return judge


def _together(group: pa.Table) -> pa.Table:
    """One verdict a checker for a run, and its figures; nothing for a run of which a file could not be used."""
    units_told = sorted(group.to_pylist(), key=lambda row: (row["topic"], row["partition"]))
    suite, run = units_told[0]["suite"], units_told[0]["run"]
    if any(row["verdict"] == "" for row in units_told):
        return _rows(_WHOLE, [])
    settings = CheckSettings.from_json(json.loads(units_told[0]["settings"]))
    told = verdicts_from_json({"checks": [json.loads(row["verdict"]) for row in units_told]})
    measured = [verdict.figures for verdict in told if verdict.checker == MEASURED]
    figures = together([part for part in measured if "appends" in part])
    for part in measured:
        figures |= part if "main_s" in part else {}
    verdicts = [*merge_partition_verdicts(settings, told), Verdict(MEASURED, Validity.VALID, figures=figures)]
    return _rows(_WHOLE, [(suite, run, json.dumps(verdict_to_json(verdict))) for verdict in verdicts])


@dataclass(frozen=True, slots=True)
class _Shelf:
    """Where a batch stands."""

    store: Path
    suite: str
    batch: str

    def rows(self, name: str, unit: Unit, columns: Sequence[str] | None = None) -> pa.Table:
        return rows(self.store, self.suite, self.batch, name, unit, columns)


def _of_unit(shelf: _Shelf, unit: Unit, promised: str, ended: str) -> list[Verdict]:
    settings, recovery = CheckSettings.from_json(json.loads(promised)), json.loads(ended)
    run = Unit(unit.run, "", WHOLE_RUN, unit.collected_ns)
    known = {"faults": shelf.rows("faults", run), "settings": settings, "recovery": recovery}
    if unit.partition == WHOLE_RUN:
        history = shelf.rows("history", run, None if settings.groups else LIGHT)
        evidence = RunEvidence(history=filled(history), trace=shelf.rows("trace", run), **known)
        checkers = {name: checker for name, checker in applicable_checkers(settings).items() if name not in PARTITIONED}
        verdicts = [run_checker(name, checker, evidence) for name, checker in checkers.items()]
        return [*verdicts, Verdict(MEASURED, Validity.VALID, figures=measure_whole(evidence))]
    trace = TRACE.empty_table()
    if needs_trace(settings, known["faults"]):
        trace = shelf.rows("trace", run)
        mine = pc.and_(pc.equal(trace["topic"], unit.topic), pc.equal(trace["partition"], unit.partition))
        trace = trace.filter(pc.or_(mine, pc.equal(trace["kind"], "log_recovered")))
    evidence = RunEvidence(
        **{name: shelf.rows(name, unit) for name in ("history", "replicas", "replica_ends")}, trace=trace, **known
    )
    verdicts = check_partition(evidence, unit.collected_ns)
    deleted = deletable_below(evidence)
    for topic, number, history in partitions(evidence.history):
        below = deleted.get((topic, number), 0)
        figures = measure_partition(history, evidence.replicas, recovery, below, settings.time_limit_ns)
        verdicts.append(Verdict(MEASURED, Validity.VALID, figures=figures))
    return verdicts


# ---- tables ----------------------------------------------------------------------------------------------------------


def _verdicts(judged: pa.Table) -> pa.Table:
    return _as_stored(
        "verdicts",
        (
            {**told, "suite": suite, "run": run, "findings": json.dumps(told["findings"])}
            for suite, run, told in _each(judged)
            if told["checker"] != MEASURED
        ),
    )


def _metrics(judged: pa.Table) -> pa.Table:
    return _as_stored(
        "metrics",
        (
            {"suite": suite, "run": run, "checker": told["checker"], "figure": figure, "value": value}
            for suite, run, told in _each(judged)
            for figure, value in told["figures"].items()
        ),
    )


def _each(judged: pa.Table) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for row in judged.sort_by([("suite", "ascending"), ("run", "ascending")]).to_pylist():
        yield row["suite"], row["run"], json.loads(row["verdict"])


def _as_stored(name: str, found: Iterator[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(found), SCHEMAS[name].append(pa.field("suite", pa.string())))


def _rows(columns: str, values: list[tuple[Any, ...]]) -> pa.Table:
    """A table with the columns that are named so for Spark."""
    kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
    named = [column.split() for column in columns.split(", ")]
    schema = pa.schema([(name, kinds[kind]) for name, kind in named])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema)
