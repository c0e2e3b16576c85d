"""A log that is opened again: after a clean close, and after damage. Random losses are in test_log_recovery.py."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from images.broker.log import segment as segment_module
from images.broker.log.epoch_checkpoint import EPOCH_CHECKPOINT
from images.broker.log.log import Log
from images.broker.log.log_config import LogConfig
from images.broker.log.log_recovery import late_beginning
from images.broker.rules import Rules
from images.broker.runtime.files import RealFiles, read_whole
from images.wire.batch import assign, build, parse
from tests.broker.log.disk_model import DiskModel
from tests.broker.log.small_log import batch, filled, open_log, read_all


def test_after_a_clean_close_nothing_is_checked_and_everything_is_there() -> None:
    disk = DiskModel()
    log = filled(disk, 250)
    log.assign_epoch(9, 250)
    state = (log.start, log.end, log.epochs.truncate_end(250), log.producers, read_all(log))
    log.close(clean=True)
    log = open_log(disk)
    assert log.recovery.clean
    assert not log.recovery.producers_rebuilt
    assert not log.recovery.epochs_rebuilt
    assert (log.start, log.end, log.epochs, log.producers, read_all(log)) == state
    assert log.recovery_point == 250
    log.append(batch(250, epoch=10))
    assert log.end == 251


def test_the_mark_of_a_clean_close_is_good_once() -> None:
    disk = DiskModel()
    filled(disk, 3).close(clean=True)
    open_log(disk).close(clean=False)
    assert not open_log(disk).recovery.clean


@pytest.mark.parametrize("damage", ["missing", "torn", "garbled"])
def test_a_damaged_checkpoint_or_snapshot_is_rebuilt_from_the_batches(damage: str) -> None:
    disk = DiskModel()
    log = filled(disk, 250)
    state = (log.epochs, log.producers)
    log.close(clean=True)
    for name in [EPOCH_CHECKPOINT, *(name for name in disk.list("topic-0") if name.endswith(".snapshot"))]:
        path = f"topic-0/{name}"
        content = read_whole(disk, path)
        assert content is not None
        disk.delete(path)
        if damage == "torn":
            disk.open(path).append(content[:-1])
        elif damage == "garbled":
            disk.open(path).append(b"\xff" * len(content))
    lines: list[str] = []
    log = open_log(disk, lines=lines)
    assert log.recovery.clean
    assert log.recovery.epochs_rebuilt
    assert log.recovery.producers_rebuilt
    assert (log.epochs, log.producers) == state
    assert "rebuilt" in lines[0]


def test_a_clean_close_is_not_believed_of_other_files_than_were_closed() -> None:
    disk = DiskModel()
    log = filled(disk, 20)
    last = log._segments[-1].path
    log.close(clean=True)
    disk.open(last).append(b"more")
    log = open_log(disk)
    assert not log.recovery.clean
    assert (log.end, log.recovery.cut_bytes) == (20, 4)


def test_a_torn_tail_is_cut_and_said() -> None:
    disk = DiskModel()
    log = filled(disk, 5, LogConfig())
    whole = log.size
    log.close(clean=False)
    disk.open("topic-0/00000000000000000000.log").truncate(whole - 1)
    lines: list[str] = []
    log = open_log(disk, LogConfig(), lines)
    assert log.end == 4
    assert not log.recovery.clean
    assert log.recovery.cut_bytes == whole // 5 - 1
    assert "1 bytes short" in log.recovery.cut_reason
    assert "now ends at 4" in lines[0]


def test_everything_behind_damage_is_cut_also_whole_segments() -> None:
    disk = DiskModel()
    log = filled(disk, 20)
    second = log._segments[1]
    log.close(clean=False)
    file = disk.open(second.path)
    file.inode.content[70] ^= 1
    log = open_log(disk)
    assert log.end == second.base_offset
    assert len(read_all(log)) == second.base_offset
    assert [name for name in disk.list("topic-0") if name.endswith(".log")] == [
        f"{0:020d}.log",
        f"{second.base_offset:020d}.log",
    ]
    assert "CRC" in log.recovery.cut_reason


def test_a_missing_segment_ends_the_log() -> None:
    disk = DiskModel()
    log = filled(disk, 20)
    paths = [segment.path for segment in log._segments]
    log.close(clean=False)
    disk.delete(paths[1])
    log = open_log(disk)
    assert (log.start, log.end) == (0, int(paths[1][-24:-4]))


def test_files_that_are_no_segments_are_left_alone() -> None:
    disk = DiskModel()
    filled(disk, 3).close(clean=False)
    disk.open("topic-0/partition.metadata").append(b"version: 0")
    disk.open("topic-0/1.log").append(b"not ours")
    disk.open("topic-0/leader-epoch-checkpoint.tmp").append(b"0\n")
    assert open_log(disk).end == 3
    assert read_whole(disk, "topic-0/partition.metadata") == b"version: 0"
    assert disk.exists("topic-0/1.log")
    assert not disk.exists("topic-0/leader-epoch-checkpoint.tmp")


def test_the_log_behaves_the_same_on_the_operating_systems_files(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=400, flush_interval_messages=7)
    results = []
    for files in (RealFiles(tmp_path), DiskModel()):
        log = Log.open(files, "deep/topic-0", config, [].append)
        for offset in range(40):
            log.append(batch(offset, epoch=offset // 9, producer=1, sequence=offset))
        log.truncate(33)
        log.append(batch(33, epoch=7))
        log.close(clean=False)
        log = Log.open(files, "deep/topic-0", config, [].append)
        first = (log.end, log.epochs, log.producers, read_all(log), log.recovery)
        log.close(clean=True)
        log = Log.open(files, "deep/topic-0", config, [].append)
        results.append(
            (first, log.end, log.epochs, log.producers, read_all(log), log.recovery, files.list("deep/topic-0"))
        )
        log.close(clean=True)
    assert results[0] == results[1]


def test_a_batch_larger_than_a_segment_or_a_scan_is_stored_and_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "SCAN_BYTES", 128)
    disk = DiskModel()
    log = open_log(disk)
    stored = [batch(offset, value=b"x" * size) for offset, size in enumerate((5, 2000, 7, 300, 150, 1))]
    for one in stored:
        log.append(one)
    log.close(clean=False)
    log = open_log(disk)
    assert read_all(log) == stored
    assert not log.recovery.cut_reason


def test_producers_survive_restarts_and_deep_cuts() -> None:
    disk = DiskModel()
    log = filled(disk, 1000, LogConfig(segment_bytes=20_000))
    log.close(clean=True)
    for to in (990, 700, 420, 3):
        log = open_log(disk, LogConfig(segment_bytes=20_000))
        log.truncate(to)
        assert log.producers == filled(DiskModel(), to).producers
        log.close(clean=True)


def test_followers_store_batches_as_the_leader_assigned_them() -> None:
    leader, follower = open_log(DiskModel()), open_log(DiskModel())
    for sequence in range(10):
        produced = build([b"v"], timestamp_ms=1, producer_id=4, producer_epoch=0, base_sequence=sequence)
        leader.append(assign(produced, leader.end, 6), trusted=True)
    for one in read_all(leader):
        follower.append(one)
    assert (follower.end, follower.epochs, follower.producers) == (leader.end, leader.epochs, leader.producers)
    assert all(one.base_offset < two.base_offset for one, two in pairwise(map(parse, read_all(follower))))


@pytest.mark.parametrize("start", [0, 12])
def test_a_log_that_lost_its_first_segment_is_dropped_whole(start: int) -> None:
    disk = DiskModel()
    log = filled(disk, 30)
    log.advance_start(start)
    log.flush()
    log.close(clean=False)
    segments = [name for name in disk.list("topic-0") if name.endswith(".log")]
    assert len(segments) > 2
    disk.delete(f"topic-0/{segments[0]}")
    lines: list[str] = []
    log = open_log(disk, lines=lines)
    assert (log.start, log.end) == (start, start)
    assert log.recovery.cut_bytes > 0
    assert [line for line in lines if f"{segments[0]}, the first segment, is missing" in line]
    log.append(batch(start))
    log.close(clean=False)
    assert open_log(disk).end == start + 1


def test_without_the_checkpoint_rule_the_rest_of_a_log_is_taken_for_a_log() -> None:
    disk = DiskModel()
    filled(disk, 30).close(clean=False)
    segments = [name for name in disk.list("topic-0") if name.endswith(".log")]
    disk.delete(f"topic-0/{segments[0]}")
    log = open_log(disk, config=LogConfig(segment_bytes=400, rules=Rules().without(["delete_replica_durably"])))
    assert log.start == int(segments[1][:20])
    assert late_beginning(disk, "topic-0") == {"first_segment": [log.start, -1]}


def test_where_a_log_begins_late_its_checkpoint_says_so() -> None:
    disk = DiskModel()
    log = filled(disk, 30)
    assert late_beginning(disk, "topic-0") == {}
    log.advance_start(12)
    first = min(int(name[:20]) for name in disk.list("topic-0") if name.endswith(".log"))
    assert first > 0
    assert late_beginning(disk, "topic-0") == {"first_segment": [first, first]}
