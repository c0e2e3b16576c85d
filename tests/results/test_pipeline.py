"""The pipeline over stored runs: what single runs are told, to the letter, and every bad file by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from checkers.evidence import EvidencePart, RunEvidence
from checkers.registry import MISSING_EVIDENCE, RESTS_ON
from checkers.registry import check as check_evidence
from checkers.verdict import Validity, Verdict, worst
from harness.bench.pipeline import check_verdicts, generated
from harness.cli.main import main
from harness.runner.run import run
from harness.spec import parse
from results.errors import StoreError
from results.measures import measure
from results.run.directory import RunDirectory
from results.run.json_encoding import verdicts_from_json
from results.store import tables
from results.store.pipeline import CheckedRuns, check
from results.store.schema import EVIDENCE, MEASURED, batch_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LOSING = [
    {"at": 4, "for": 6, "fault": "partition", "shape": "leader-only", "nodes": ["leader/0"]},
    {"at": 5.5, "for": 5, "fault": "power-loss", "nodes": ["leader/0"], "keep": "nothing"},
]
SPECS = {
    "valid": {"faults": ["kill", "partition"]},
    "members": {"workload": "groups", "faults": ["kill"]},
    "invalid": {"without": ["ack_after_high_watermark"], "faults": LOSING, "partitions": 3},
    "unknown": {"faults": [{"at": 3, "for": 4, "fault": "power-loss-all", "keep": "nothing"}]},
    "deleting": {
        "faults": [
            {"at": 5, "for": 4, "fault": "delete-records", "partition": 0},
            {"at": 7, "for": 2, "fault": "kill", "nodes": ["b2"]},
        ]
    },
    "quiet": {"faults": "none", "brokers": 1, "settings": {"min.insync.replicas": "1"}},
    "times": {"faults": ["kill"], "clients": {"time_readers": 2}},
    "spare": {
        "faults": [{"at": 3, "for": 2, "fault": "power-loss", "nodes": ["b1"], "keep": "nothing"}],
        "partitions": 1,
        "brokers": 5,
        "replication_factor": 3,
    },
    "script": {
        "faults": "none",
        "partitions": 1,
        "clients": {
            "producers": 0,
            "consumers": 0,
            "end_offset_readers": 0,
            "operations": ["produce 5 to 0", "poll 0 until 5", "commit 0", "resume 0"],
        },
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """Ended runs by name of their spec; one was cut short before it recovered, one has lost a log, and one has a log
    that ends earlier on its disk than its node says."""
    directory = tmp_path_factory.mktemp("runs")
    made = {}
    for name, values in SPECS.items():
        spec = parse({"name": name, "seed": 3, "time_limit": "14s", **values})
        made[name] = RunDirectory.create(directory, name, 3)
        run(spec, made[name], report=False)
    short = RunDirectory.create(directory, "short", 4)
    whole = made["invalid"].load()
    short.write_spec(made["invalid"].read_spec_text())
    short.write_settings(whole.settings)
    for table, rows in (("history", whole.history.slice(0, 200)), ("trace", whole.trace.slice(0, 1500))):
        pq.write_table(rows, short.path / f"{table}.parquet")
    short.write_status("interrupted", message="interrupted")
    damaged = RunDirectory.open(shutil.copytree(made["valid"].path, directory / "damaged"))
    ends = pq.read_table(damaged.path / "replica_ends.parquet")
    pq.write_table(ends.slice(1), damaged.path / "replica_ends.parquet")
    return made | {
        "short": short,
        "damaged": damaged,
        "behind": _behind(made["valid"], directory / "behind"),
        "otherwise": _otherwise(made["script"], directory / "otherwise"),
        "vanished": _vanished(made["spare"], directory / "vanished"),
    }


def _behind(whole: RunDirectory, path: Path) -> RunDirectory:
    """The same run with its longest log three records shorter, and sealed like that."""
    evidence = whole.load()
    rows = evidence.replica_ends.to_pylist()
    longest = max(rows, key=lambda row: row["log_end"])
    longest["log_end"] -= 3
    longest["high_watermark"] = min(longest["high_watermark"], longest["log_end"])
    of_log = [pc.equal(evidence.replicas[name], longest[name]) for name in ("node", "topic", "partition")]
    gone = reduce(pc.and_, of_log, pc.greater_equal(evidence.replicas["offset"], longest["log_end"]))
    changed = replace(
        evidence,
        replicas=evidence.replicas.filter(pc.invert(gone)),
        replica_ends=pa.Table.from_pylist(rows, evidence.replica_ends.schema),
    )
    return _restored(whole, changed, path)


def _otherwise(whole: RunDirectory, path: Path) -> RunDirectory:
    """The same run, in which the script's client is told another commit than its own, and sealed like that."""
    evidence = whole.load()
    rows = evidence.history.to_pylist()
    for row in rows:
        if row["kind"] == "assign":
            row["metadata"] = "of another"
    return _restored(whole, replace(evidence, history=pa.Table.from_pylist(rows, evidence.history.schema)), path)


def _vanished(whole: RunDirectory, path: Path) -> RunDirectory:
    """The same run, at whose end the machine of a broker without a replica was gone, and sealed like that."""
    evidence = whole.load()
    spare = min(set(evidence.trace["node"].to_pylist()) - set(evidence.replica_ends["node"].to_pylist()))
    gone = {"node": spare, "time_ns": 13_000_000_000}
    return _restored(whole, replace(evidence, recovery={**evidence.recovery, "vanished": [gone]}), path)


def _restored(whole: RunDirectory, changed: RunEvidence, path: Path) -> RunDirectory:
    path.mkdir()
    return RunDirectory.restore(path, whole.status(), whole.read_spec_text(), changed, (), None)


@pytest.fixture(scope="module")
def store(runs: dict[str, RunDirectory], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs in two suites: each as a batch of its own, and all in one."""
    directory = tmp_path_factory.mktemp("store")
    for made in runs.values():
        tables.add_run(directory, "apart", made)
    merged: dict[str, list[pa.Table]] = {name: [] for name in tables.SCHEMAS}
    for made in runs.values():
        for name, rows in tables.of_run(made, made.load(), cell=made.status().name).items():
            merged[name].append(rows)
    tables.write_batch(directory, "together", "all", {name: pa.concat_tables(parts) for name, parts in merged.items()})
    return directory


@pytest.fixture(scope="module")
def checked(spark: SparkSession, store: Path) -> CheckedRuns:
    return check(spark, store)


def told(checked: CheckedRuns, suite: str, run: str) -> list[Verdict]:
    """The verdicts the pipeline gives of a run, with their figures."""

    def mine(table: pa.Table) -> list[dict[str, object]]:
        return [row for row in table.to_pylist() if (row["suite"], row["run"]) == (suite, run)]

    figures: dict[object, dict[object, object]] = {}
    for row in mine(checked.metrics):
        figures.setdefault(row["checker"], {})[row["figure"]] = row["value"]
    return verdicts_from_json(
        {
            "checks": [
                {**row, "findings": json.loads(str(row["findings"])), "figures": figures.get(row["checker"], {})}
                for row in mine(checked.verdicts)
            ]
        }
    )


@pytest.mark.parametrize("suite", ["apart", "together"])
def test_the_pipeline_says_of_every_run_what_checking_it_alone_says(
    suite: str, checked: CheckedRuns, runs: dict[str, RunDirectory]
) -> None:
    answers = set()
    for made in runs.values():
        alone = check_evidence(made.load())
        assert told(checked, suite, made.name) == alone, made.name
        answers.add(worst(verdict.validity for verdict in alone))
    assert answers == {Validity.VALID, Validity.INVALID, Validity.UNKNOWN}, "the suite is to be mixed"
    (behind,) = (verdict for verdict in told(checked, suite, "behind") if verdict.checker == "protocol")
    assert [finding.kind for finding in behind.findings] == ["log-end-not-on-disk"]
    kinds = {finding.kind for each in told(checked, suite, "otherwise") for finding in each.findings}
    assert "committed-otherwise" in kinds
    assert not checked.damaged
    assert not checked.left_out


def test_what_is_measured_in_partitions_adds_up_to_what_is_measured_of_the_run(
    checked: CheckedRuns, runs: dict[str, RunDirectory]
) -> None:
    rows = [row for row in checked.metrics.to_pylist() if row["suite"] == "apart" and row["checker"] == MEASURED]
    for made in runs.values():
        figures = {row["figure"]: row["value"] for row in rows if row["run"] == made.name}
        assert figures == measure(made.load()), made.name


def test_bad_files_are_named_their_runs_left_out_and_no_other(
    spark: SparkSession, runs: dict[str, RunDirectory], tmp_path: Path
) -> None:
    hurt = {"corrupt": "history", "foreign": "faults", "missing": "trace", "later": "replicas"}
    names = dict(zip(hurt, ("invalid", "unknown", "members", "short"), strict=True))
    sound = runs["valid"]
    for made in (sound, *(runs[name] for name in names.values())):
        tables.add_run(tmp_path, "s", made)
    paths = {bad: batch_path(tmp_path, table, "s", runs[names[bad]].name) for bad, table in hurt.items()}
    data = bytearray(paths["corrupt"].read_bytes())
    data[len(data) // 3] ^= 1
    paths["corrupt"].write_bytes(bytes(data))
    pq.write_table(pa.table({"a": [1]}), paths["foreign"])
    paths["missing"].unlink()
    later = pq.read_table(paths["later"], partitioning=None)
    pq.write_table(later.replace_schema_metadata({**later.schema.metadata, b"faultline.version": b"2"}), paths["later"])
    found = check(spark, tmp_path)
    assert {file.path for file in found.damaged} == set(paths.values())
    assert "faultline.version is 2, not 1" in {file.reason for file in found.damaged}
    assert found.left_out == tuple(sorted(("s", runs[name].name) for name in names.values()))
    assert set(found.verdicts.column("run").to_pylist()) == {sound.name}
    assert told(found, "s", sound.name) == check_evidence(sound.load())


def test_rows_that_a_store_has_lost_make_what_rests_on_them_unknown(
    spark: SparkSession, runs: dict[str, RunDirectory], tmp_path: Path
) -> None:
    made = runs["invalid"]
    tables.add_run(tmp_path, "s", made)
    path = batch_path(tmp_path, "history", "s", made.name)
    pq.write_table(pq.read_table(path, partitioning=None).slice(9), path)
    for verdict in told(check(spark, tmp_path), "s", made.name):
        if EvidencePart.HISTORY in RESTS_ON[verdict.checker]:
            assert [finding.kind for finding in verdict.findings] == [MISSING_EVIDENCE], verdict.checker
        else:
            assert verdict.validity is not Validity.UNKNOWN, verdict.checker


def test_the_command_names_what_is_judged_otherwise_than_when_it_was_stored(
    runs: dict[str, RunDirectory], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for made in (runs["valid"], runs["invalid"]):
        tables.add_run(tmp_path, "s", made)
    path = batch_path(tmp_path, "runs", "s", runs["invalid"].name)
    row = tables.read(tmp_path, "runs").table.drop_columns(["suite"]).to_pylist()
    wrong = [{**one, "validity": "valid"} for one in row if one["run"] == runs["invalid"].name]
    pq.write_table(pa.Table.from_pylist(wrong, tables.SCHEMAS["runs"]), path)
    at = ["--store", str(tmp_path), "--master", "local[2]"]
    assert main(["store", "check", "s", *at]) == 1
    output = capfd.readouterr().out
    assert f"invalid  s/{runs['invalid'].name}   (stored as valid)" in output
    assert runs["valid"].name not in output
    written = pq.read_table(tmp_path / "checked" / "s" / "verdicts.parquet").to_pylist()
    assert {row["run"] for row in written} == {runs["valid"].name, runs["invalid"].name}
    batch_path(tmp_path, "trace", "s", runs["valid"].name).unlink()
    assert main(["store", "check", *at]) == 3
    assert f"left out: s/{runs['valid'].name}" in capfd.readouterr().err


def test_generated_runs_are_judged_as_the_bench_says_one_violation_among_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in (0, 1, 2):
        tables.write_batch(tmp_path, "bench", f"generated-seed{number}", generated(number, operations=6_000))
    found = check(spark, tmp_path, "bench")
    check_verdicts(found.verdicts, 3)
    with pytest.raises(RuntimeError, match="generated-seed3 has wrong verdicts"):
        check_verdicts(found.verdicts, 4)
    metrics = {
        (row["run"], row["figure"]): row["value"] for row in found.metrics.to_pylist() if row["checker"] == MEASURED
    }
    assert metrics["generated-seed1", "lost"] == 0
    assert metrics["generated-seed1", "appends"] == pytest.approx(0.7 * 6_000, rel=0.05)


def test_reading_one_run_of_a_batch_reads_no_other(store: Path, runs: dict[str, RunDirectory]) -> None:
    for name in EVIDENCE:
        with pq.ParquetFile(batch_path(store, name, "together", "all")) as file:
            groups = [
                set(file.read_row_group(group, ["run"])["run"].to_pylist()) for group in range(file.num_row_groups)
            ]
        assert all(len(group) == 1 for group in groups), name


def test_nothing_stored_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run is stored in s whose evidence is kept"):
        check(spark, tmp_path, "s")
