"""A snapshot stands for the metadata below it: the same image, on a log that begins there."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from random import Random

import pytest

from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import (
    BrokerConfigRecord,
    ChangeBroker,
    ClusterImage,
    MetadataError,
    PartitionImage,
    ProducerIdsBlock,
    Record,
    RegisterBroker,
    RemoveTopic,
    TopicConfigRecord,
    TopicRecord,
)
from images.broker.ports import NodePorts
from images.broker.raft.log import DIRECTORY, KafkaMetadataLog
from images.broker.raft.snapshots import decode_snapshot, encode_snapshot
from images.broker.raft.values import EpochAndOffset, SnapshotId
from images.broker.rules import Rules
from images.broker.runtime.files import RealFiles, write_durably
from images.wire.batch import check, iterate

ID, GONE = uuid.UUID(int=7), uuid.UUID(int=8)


def partition(index: int) -> PartitionImage:
    return PartitionImage("t", ID, index, (1, 2, 3), (1, 2), (3,), (), 1, 4, 9, adding=(3,))


CHANGES: list[list[Record]] = [
    [RegisterBroker(1, "a", "h1", 9092)],
    [BrokerConfigRecord(1, FrozenMap({"leader.replication.throttled.rate": "5"}))],
    [RegisterBroker(2, "b", "h2", 9092), ChangeBroker(2, 2, fenced=False, shutting_down=False)],
    [RegisterBroker(3, "c", "h3", 9092), ChangeBroker(3, 4, fenced=False, shutting_down=True)],
    [TopicRecord("t", ID), TopicConfigRecord("t", FrozenMap({"min.insync.replicas": "2"})), partition(0), partition(1)],
    [TopicRecord("gone", GONE), RemoveTopic("gone", GONE), ProducerIdsBlock(3000)],
]
BYTES = 200


def opened(directory: Path, between: int = BYTES) -> KafkaMetadataLog:
    node_ports = NodePorts(RealFiles(directory), Random(1), [].append, [].append)
    return KafkaMetadataLog(node_ports, 1 << 20, Rules(), between)


def written(log: KafkaMetadataLog, epoch: int = 3) -> ClusterImage:
    for records in CHANGES:
        log.append(log.encode_batch(records, epoch, 0))
    return log.image(log.end)


def snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / DIRECTORY).glob("*.checkpoint"))


def test_a_snapshot_makes_the_same_image_broker_epochs_and_all(tmp_path: Path) -> None:
    image = written(opened(tmp_path))
    data = encode_snapshot(image, 3)
    assert decode_snapshot(data, SnapshotId(image.offset, 3)) == image
    assert [check(batch).leader_epoch for _, batch in iterate(data)] == [3]


def test_an_empty_image_has_a_snapshot_too() -> None:
    assert decode_snapshot(encode_snapshot(ClusterImage(), 1), SnapshotId(1, 1)) == ClusterImage(offset=1)


@pytest.mark.parametrize("cut", ["empty", "half", "without its last batch", "torn"])
def test_a_snapshot_without_its_end_is_damaged_not_an_empty_cluster(tmp_path: Path, cut: str) -> None:
    log = opened(tmp_path)
    for number in range(300):
        log.append(log.encode_batch([TopicRecord(f"t{number}", uuid.UUID(int=number + 9))], 3, 0))
    assert log.snapshot_and_trim(log.end)
    log.close()
    (file,) = (tmp_path / DIRECTORY).glob("*.checkpoint")
    data = file.read_bytes()
    last = [batch for _, batch in iterate(data)][-1]
    kept = {"empty": 0, "half": len(data) // 2, "without its last batch": len(data) - len(last), "torn": len(data) - 1}
    file.write_bytes(data[: kept[cut]])
    with pytest.raises(MetadataError, match=f"the snapshot {file.name} of {kept[cut]} bytes is damaged"):
        opened(tmp_path)


def test_a_log_that_has_grown_enough_is_trimmed_and_says_the_same(tmp_path: Path) -> None:
    log = opened(tmp_path)
    image = written(log)
    committed = log.end - 3
    before = opened(tmp_path / "other")
    assert not before.snapshot_and_trim(before.end), "nothing has grown"
    assert log.snapshot_and_trim(log.end)
    assert not log.snapshot_and_trim(log.end), "nothing has grown since"
    assert (log.start, log.last_entry, log.snapshot) == (
        image.offset,
        EpochAndOffset(3, image.offset),
        (image.offset, 3),
    )
    assert committed < log.start
    log.append(log.encode_batch([ProducerIdsBlock(4000)], 4, 0))
    image = log.image(log.end)
    log.close()
    again = opened(tmp_path)
    assert again.image(again.end) == image
    assert (again.start, again.last_entry) == (log.start, EpochAndOffset(4, log.start + 1))


def test_only_what_is_committed_goes_into_a_snapshot(tmp_path: Path) -> None:
    log = opened(tmp_path)
    written(log)
    committed = log.end - 3
    assert log.snapshot_and_trim(committed)
    assert log.snapshot == SnapshotId(committed, 3)
    assert log.end == committed + 3
    log.truncate(committed)
    assert log.last_entry == EpochAndOffset(3, committed)


def test_the_snapshots_before_the_latest_are_gone(tmp_path: Path) -> None:
    log = opened(tmp_path, 1)
    for records in CHANGES:
        log.append(log.encode_batch(records, 3, 0))
        assert log.snapshot_and_trim(log.end)
    assert snapshots(tmp_path) == [f"{log.end:020d}-{3:010d}.checkpoint"]


def test_a_snapshot_of_the_leader_takes_the_place_of_the_whole_log(tmp_path: Path) -> None:
    leader = opened(tmp_path / "leader")
    image = written(leader)
    leader.snapshot_and_trim(leader.end)
    snapshot = leader.snapshot
    assert snapshot is not None
    data = leader.read_snapshot(snapshot)
    assert data is not None
    follower = opened(tmp_path / "follower")
    follower.append(follower.encode_batch([ProducerIdsBlock(9)], 1, 0))
    follower.install_snapshot(snapshot, data)
    for log in (follower, opened(tmp_path / "follower")):
        assert log.image(log.end) == image
        assert (log.start, log.last_entry) == (snapshot.end, EpochAndOffset(3, snapshot.end))
        assert log.view.epochs.latest == 3


def test_a_snapshot_that_was_written_and_not_yet_begun_with_is_begun_with_at_the_next_start(tmp_path: Path) -> None:
    """A crash between the two: the log is behind the snapshot, or goes on from something else."""
    leader = opened(tmp_path / "leader")
    image = written(leader)
    data = encode_snapshot(image, 3)
    name = f"{DIRECTORY}/{image.offset:020d}-{3:010d}.checkpoint"
    for records, epoch in ((CHANGES[:1], 3), ([*CHANGES, [ProducerIdsBlock(9)]], 2)):
        place = tmp_path / f"epoch-{epoch}"
        log = opened(place)
        for change in records:
            log.append(log.encode_batch(change, epoch, 0))
        log.close()
        write_durably(RealFiles(place), name, data)
        again = opened(place)
        assert again.image(again.end) == image
        assert (again.start, again.end) == (image.offset, image.offset)


def test_a_log_whose_file_lost_what_was_appended_is_an_error_and_no_endless_read(tmp_path: Path) -> None:
    """Writes of a process that was ended in the middle of a callback have no effect (drawn world 75)."""
    log = opened(tmp_path)
    log.append(log.encode_batch(CHANGES[0], 3, 0))
    (file,) = (tmp_path / DIRECTORY).glob("*.log")
    os.truncate(file, 0)
    with pytest.raises(MetadataError, match="the metadata log has no record at offset 0, below 1"):
        log.image(log.end)
