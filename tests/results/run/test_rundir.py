"""A run directory keeps its evidence, whatever happens to the run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from checkers.evidence import CheckSettings, EvidencePart
from checkers.tables import FAULTS, REPLICA_ENDS, REPLICAS, TRACE
from checkers.verdict import Finding, Validity, Verdict
from images.trace import TraceEvent
from images.wire import batch
from results.atomic_files import put, put_text
from results.errors import StoreError
from results.run.directory import RunDirectory
from results.run.replica_logs import CHECKPOINT
from workloads.history import SCHEMA as HISTORY
from workloads.history import Recorder

EVENT = TraceEvent(
    "high_watermark", topic="t", partition=0, offset=1, high_watermark=3, members=(1, 2), detail={"positions": {"2": 3}}
)
PLAIN = TraceEvent("node_started")


def test_a_run_is_named_for_its_spec_and_seed_and_latest_points_at_it(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "store", "append", 7)
    assert run.name.endswith("-append-seed7")
    assert (tmp_path / "store" / "latest").resolve() == run.path.resolve()
    assert RunDirectory.create(tmp_path / "store", "append", 7).path != run.path


def test_a_killed_writer_leaves_all_but_the_line_being_written(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from images.trace import TraceEvent
        from results.run.directory import RunDirectory
        run = RunDirectory.create(Path(sys.argv[1]), "append", 7)
        for second in range(10):
            run.append_trace(second * 1_000_000_000, "b1", TraceEvent("resigned", topic="t", partition=0))
        run.append_fault(0, fault="Kill", family="kill", nodes=["b1"], started_ns=5)
        with open(run.path / "trace.jsonl", "ab") as torn:
            torn.write(b'{"time_ns":11,"seq":99,"no')
            torn.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    process = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, env=os.environ, timeout=60)
    assert process.returncode == -signal.SIGKILL
    run = RunDirectory.open(tmp_path / "latest")
    evidence = run.load()
    assert evidence.trace["time_ns"].to_pylist() == [second * 1_000_000_000 for second in range(10)]
    assert evidence.faults["fault"].to_pylist() == ["Kill"]
    assert evidence.faults["ended_ns"].to_pylist() == [None]
    gaps = run.gaps()
    assert any("did not end" in gap for gap in gaps)
    assert any("trace.jsonl ends in a torn line" in gap for gap in gaps)


@pytest.mark.parametrize("name", ["history.jsonl", "trace.jsonl", "faults.jsonl", "status.json", "settings.json"])
def test_a_run_directory_loads_whatever_single_file_is_missing(tmp_path: Path, name: str) -> None:
    run = _recorded(tmp_path)
    (run.path / name).unlink()
    evidence = RunDirectory.open(run.path).load()
    rows = {"history": evidence.history, "trace": evidence.trace, "faults": evidence.faults}
    assert {table: content.num_rows > 0 for table, content in rows.items()} == {
        table: name != f"{table}.jsonl" for table in rows
    }


def test_a_run_cut_at_any_byte_still_loads_a_prefix(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    for name, column in (("trace", "seq"), ("history", "index"), ("faults", "started_ns")):
        path = run.path / f"{name}.jsonl"
        whole = path.read_bytes()
        complete = getattr(run.load(), name)[column].to_pylist()
        for size in range(0, len(whole), 7):
            path.write_bytes(whole[:size])
            left = getattr(run.load(), name)[column].to_pylist()
            assert left == complete[: len(left)]
        path.write_bytes(whole)


def test_sealing_keeps_every_row_and_removes_the_lines(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    before = run.load()
    sealed = run.seal()
    after = RunDirectory.open(run.path).load()
    for name, schema in (
        ("history", HISTORY),
        ("trace", TRACE),
        ("faults", FAULTS),
        ("replicas", REPLICAS),
        ("replica_ends", REPLICA_ENDS),
    ):
        table = getattr(after, name)
        assert table.equals(getattr(before, name))
        assert table.equals(getattr(sealed, name))
        assert table.schema.equals(schema, check_metadata=True)
        assert not (run.path / f"{name}.jsonl").exists()
    assert after.settings == CheckSettings(acks=1, brokers=5)
    assert run.seal() is sealed
    assert RunDirectory.open(run.path).seal().trace.equals(after.trace)


def test_trace_fields_that_do_not_apply_come_back_as_their_empty_values(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    full, plain = run.seal().trace.to_pylist()
    assert full["members"] == [1, 2]
    assert json.loads(full["detail"]) == {"positions": {"2": 3}}
    assert plain["seq"] == 1
    assert plain["topic"] == plain["detail"] == ""
    assert plain["members"] == []
    assert {plain[name] for name in ("partition", "leader", "leader_epoch", "offset", "log_end")} == {-1}


def test_a_fault_recorded_again_takes_the_place_of_its_beginning(tmp_path: Path) -> None:
    faults = _recorded(tmp_path).load().faults.to_pylist()
    assert [(fault["ended_ns"], fault["bit"], json.loads(fault["evidence"])) for fault in faults] == [
        (9, True, {"killed": 1})
    ]


def test_verdicts_come_back_as_they_were_written(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    verdicts = [
        Verdict("linearizability", Validity.VALID, figures={"operations": 3}),
        Verdict("loss", Validity.INVALID, (Finding("lost-append", ("one", "two"), "t", 1, (4, 5), (9,), 77),), {}),
    ]
    run.write_verdict(verdicts)
    assert RunDirectory.open(run.path).verdicts() == verdicts
    assert json.loads((run.path / "verdict.json").read_text())["validity"] == "invalid"


def test_replica_logs_count_only_once_all_of_them_were_collected(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    shutil.rmtree(run.nodes_path)
    with run.collecting() as part:
        _replica(part)
        assert run.load().replica_ends.num_rows == 0
        assert "no replica logs were collected" in run.gaps()
    assert run.load().replica_ends.num_rows == 1
    assert run.gaps() == ("the run did not end: it was killed, or is still in progress",)


SEGMENT = f"nodes/b1/data/t-0/{0:020}.log"
DAMAGED_NODES = {
    "cut": lambda run: (run / SEGMENT).write_bytes((run / SEGMENT).read_bytes()[:-3]),
    "emptied": lambda run: (run / SEGMENT).write_bytes(b""),
    "removed": lambda run: (run / SEGMENT).unlink(),
    "without its replica": lambda run: shutil.rmtree(run / "nodes/b1/data/t-0"),
    "without the node": lambda run: shutil.rmtree(run / "nodes/b1"),
    "with a node of elsewhere": lambda run: shutil.copytree(run / "nodes/b1", run / "nodes/b2"),
    "with a checkpoint of elsewhere": lambda run: (run / "nodes/b1/data" / CHECKPOINT).write_text("0\n1\nt 0 0\n"),
    "without hashes": lambda run: (run / "collected.json").unlink(),
    "with hashes that are none": lambda run: (run / "collected.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGED_NODES)
def test_files_of_nodes_that_are_not_what_was_collected_are_no_evidence(damage: str, tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    assert run.load().replica_ends.num_rows == 1
    DAMAGED_NODES[damage](run.path)
    evidence = RunDirectory.open(run.path).load()
    assert evidence.replica_ends.num_rows == 0
    assert [gap.part for gap in evidence.gaps] == [EvidencePart.REPLICAS]


def test_a_collection_that_fails_is_kept_for_people_and_is_no_evidence(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    run.write_settings(CheckSettings())
    with suppress(RuntimeError), run.collecting(keep_part=True) as part:
        _replica(part)
        raise RuntimeError("the engine is gone")
    assert (run.path / SEGMENT).exists()
    evidence = run.load()
    assert evidence.replica_ends.num_rows == 0
    assert [gap.part for gap in evidence.gaps] == [EvidencePart.REPLICAS]


def test_a_run_whose_status_and_manifest_are_gone_cannot_be_verified(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    run.write_status("finished")
    run.seal()
    for name in ("status.json", "manifest.json"):
        (run.path / name).unlink()
    assert {gap.reason for gap in RunDirectory.open(run.path).load().gaps} == {
        "manifest.json is missing, so nothing can be verified"
    }


def test_a_damaged_manifest_is_not_said_to_be_missing(tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    run.write_status("finished")
    run.seal()
    (run.path / "manifest.json").write_text("[]")
    damaged = RunDirectory.open(run.path)
    assert {gap.reason for gap in damaged.load().gaps} == {"manifest.json does not hold a JSON object"}
    assert damaged.gaps() == ("manifest.json does not hold a JSON object",)


def test_digest_and_trail_come_back(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    assert run.digest() is None
    run.write_digest("abc", [(1, 2_000, "d1"), (2, 3_000, "d2")])
    assert run.digest() == "abc"
    assert run.trail() == [(1, 2_000, "d1"), (2, 3_000, "d2")]


def test_a_status_keeps_the_facts_told_before(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    run.write_status("running", stage="deploying", nodes=4)
    run.write_status("finished", steps=12)
    status = RunDirectory.open(run.path).status()
    assert (status.state, status.stage, status.seed) == ("finished", "", 7)
    assert status.facts == {"nodes": 4, "steps": 12}


def test_a_directory_that_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StoreError) as refusal:
            RunDirectory.open(path)
        assert str(path) in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_a_full_disk_is_told_in_one_line_naming_the_file(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    (run.path / "trace.jsonl").symlink_to("/dev/full")
    with pytest.raises(StoreError, match=r"cannot write .*trace\.jsonl: No space left on device"):
        run.append_trace(1_000_000_000, "b1", PLAIN)


def test_what_cannot_be_written_whole_takes_no_room_and_leaves_the_old(tmp_path: Path) -> None:
    target = tmp_path / "verdict.json"
    put_text(target, "the old")

    def until_full(part: Path) -> None:
        part.write_text("half of the n")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StoreError, match=r"cannot write .*verdict\.json: No space left on device"):
        put(target, until_full)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_text() == "the old"


def test_a_link_and_a_device_stay_what_they_are(tmp_path: Path) -> None:
    file, link, full = tmp_path / "file", tmp_path / "link", tmp_path / "full"
    put_text(file, "the old")
    link.symlink_to(file)
    put_text(link, "the new")
    assert link.is_symlink()
    assert file.read_text() == "the new"
    full.symlink_to("/dev/full")
    with pytest.raises(StoreError, match="No space left on device"):
        put_text(full, "for a device")
    assert full.is_symlink()
    file.chmod(0o600)
    put_text(file, "the newest")
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_goes_to_a_pipe_comes_out_of_it() -> None:
    script = "from pathlib import Path; from results.atomic_files import put_text; put_text(Path('/dev/stdout'), 'all')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "all"


def test_a_store_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot make a directory in .*file/store: Not a directory"):
        RunDirectory.create(tmp_path / "file" / "store", "append", 7)


def _recorded(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "store", "append", 7)
    run.write_spec("seed: 7\n")
    run.write_settings(CheckSettings(acks=1, brokers=5))
    times = iter(range(100))
    recorder = Recorder(run.history_path, lambda: next(times))
    index = recorder.invoke(1, "append", "t", 0, value=5)
    recorder.complete(index, "ok", offset=0, leader_epoch=0)
    poll = recorder.invoke(2, "poll", "t", 0, offset=0)
    recorder.complete(poll, "ok", offsets=[0], values=[5])
    recorder.invoke(1, "append", "t", 0, value=6)
    recorder.close()
    run.append_trace(10, "b1", EVENT)
    run.append_trace(11, "b2", PLAIN)
    run.append_fault(0, fault="Kill", family="kill", nodes=["b1"], started_ns=5, detail={"signal": 9})
    run.append_fault(
        0, fault="Kill", family="kill", nodes=["b1"], started_ns=5, ended_ns=9, evidence={"killed": 1}, bit=True
    )
    with run.collecting() as nodes:
        _replica(nodes)
    run.close()
    return run


def _replica(nodes: Path) -> None:
    replica = nodes / "b1" / "data" / "t-0"
    replica.mkdir(parents=True)
    (replica / f"{0:020}.log").write_bytes(batch.build([b"5"], timestamp_ms=1, leader_epoch=0))


def test_a_run_of_an_earlier_version_is_read_under_the_names_of_today(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "old", 1)
    run.append_fault(
        0,
        fault="lost-incarnation",
        family="choreography",
        nodes=["b2"],
        started_ns=5,
        ended_ns=9,
        evidence={},
        bit=True,
    )
    (row,) = run.load().faults.to_pylist()
    assert (row["fault"], row["family"]) == ("stale-broker-epoch", "scripted")


DEEP = '{"stories":' * 50_000
"""JSON deeper than Python's own limit of calls."""


@pytest.mark.parametrize("text", [DEEP, "[]", '{"checks": [{}], "stories": [{}], "operations": [{"operation": "x"}]}'])
def test_small_files_that_hold_something_else_are_said_to_be_damaged(text: str, tmp_path: Path) -> None:
    run = _recorded(tmp_path)
    for name in ("status.json", "script.json", "verdict.json", "stories.json"):
        (run.path / name).write_text(text)
    run = RunDirectory.open(run.path)
    assert run.status().seed == 0
    assert run.script() == []
    assert any(gap.startswith("script.json is damaged") for gap in run.gaps())
    for read, name in ((run.verdicts, "verdict.json"), (run.stories, "stories.json")):
        with pytest.raises(StoreError, match=name):
            read()
