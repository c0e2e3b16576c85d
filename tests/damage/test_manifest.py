"""The manifest of a sealed run: hashes of values, and gaps that stay with a run wherever it goes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from checkers.tables import FAULTS, REPLICA_ENDS
from harness.cli.main import main
from results.run.directory import RunDirectory
from results.run.manifest import MANIFEST, content_hash
from results.store import tables
from tests.results.conftest import make_run

ROW = {"node": "b1", "topic": "t", "partition": 0, "log_start": 0, "log_end": 3, "high_watermark": 3}
FAULT = {"fault": "kill", "family": "kill", "nodes": ["b1"], "started_ns": 1, "ended_ns": 2}
FAULT |= {"detail": "{}", "evidence": "{}", "bit": True, "note": ""}


@pytest.fixture
def ended(tmp_path: Path) -> RunDirectory:
    """A run that has ended and is sealed."""
    run = make_run(tmp_path / "runs")
    run.seal()
    return run


def ends(*rows: dict[str, object]) -> str:
    return content_hash("replica_ends", pa.Table.from_pylist([ROW | row for row in rows], REPLICA_ENDS))


def faults(*rows: dict[str, object]) -> str:
    return content_hash("faults", pa.Table.from_pylist([FAULT | row for row in rows], FAULTS))


def test_a_hash_knows_no_order_of_rows_no_slices_and_no_chunks() -> None:
    rows = [ROW | {"node": node} for node in ("b1", "b2", "b3")]
    whole = pa.Table.from_pylist(rows, REPLICA_ENDS)
    assert ends(*rows[::-1]) == content_hash("replica_ends", whole)
    padded = pa.Table.from_pylist([ROW | {"node": "longer name"}, *rows], REPLICA_ENDS)
    assert content_hash("replica_ends", padded.slice(1)) == content_hash("replica_ends", whole)
    chunked = pa.concat_tables([whole.slice(0, 1), whole.slice(1)])
    assert content_hash("replica_ends", chunked) == content_hash("replica_ends", whole)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ends({"log_end": 3}), ends({"log_end": 4})),
        (ends({"node": "b", "topic": "1t"}), ends({"node": "b1", "topic": "t"})),
        (ends({}), ends({}, {})),
        (faults({"ended_ns": None}), faults({"ended_ns": 0})),
        (faults({"nodes": ["b1"]}, {"nodes": ["b2"]}), faults({"nodes": ["b1", "b2"]}, {"nodes": []})),
        (faults({"bit": True}), faults({"bit": False})),
        (faults({"note": ""}), faults({"note": "\0"})),
    ],
)
def test_a_hash_tells_every_other_value(one: str, other: str) -> None:
    assert one != other


def test_a_run_killed_before_it_was_sealed_has_no_manifest_and_is_read_as_far_as_it_went(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.write_status("running", stage="collecting")
    (run.path / "recovery.json").unlink()
    evidence = RunDirectory.open(run.path).load()
    assert evidence.gaps == ()
    assert evidence.history.num_rows


def test_lines_that_are_damaged_are_kept_when_the_run_is_sealed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.close()
    lines = run.path / "trace.jsonl"
    lines.write_bytes(lines.read_bytes().replace(b'"seq":9,', b'"seq":nine,'))
    gap = "line 10 of trace.jsonl is damaged"
    assert gap in [gap.reason for gap in run.seal().gaps]
    assert lines.exists()
    assert gap in [gap.reason for gap in RunDirectory.open(run.path).load().gaps]
    assert not (run.path / "faults.jsonl").exists()


def test_the_gaps_of_a_run_stay_with_it_in_the_store_and_on_the_way_back(ended: RunDirectory, tmp_path: Path) -> None:
    (ended.path / "trace.parquet").unlink()
    gaps = ended.load().gaps
    assert "trace.parquet is missing" in [gap.reason for gap in gaps]
    tables.add_run(tmp_path / "store", "s", ended)
    assert main(["store", "export", ended.name, str(tmp_path / "back"), "--store", str(tmp_path / "store")]) == 0
    assert set(RunDirectory.open(tmp_path / "back").load().gaps) == set(gaps)


@pytest.mark.parametrize("name", ["spec.yaml", "digest.txt"])
@pytest.mark.parametrize("change", ["missing", "changed"])
def test_no_replay_compares_with_a_damaged_run(
    name: str, change: str, ended: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(ended.path, tmp_path / "run")
    path = run / name
    if change == "missing":
        path.unlink()
    else:
        path.write_text(path.read_text().replace("7", "8").replace("a", "b"))
    assert (run / MANIFEST).exists()
    assert main(["replay", str(run)]) == 3
    assert capsys.readouterr().err.startswith("faultline: ")
