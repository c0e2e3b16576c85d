"""A snapshot stands for the metadata below it: the same image, on a log that begins there."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from random import Random

import pytest

from images.broker.frozen_map import FrozenMap
from images.broker.log.log import Log
from images.broker.log.log_config import LogConfig
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
from images.broker.raft.state import QuorumState
from images.broker.raft.values import (
    EpochAndOffset,
    FetchValidation,
    MetadataFetch,
    Moment,
    RaftRole,
    RaftTimeouts,
    SnapshotId,
)
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


def opened(directory: Path, between: int = BYTES, lines: list[str] | None = None) -> KafkaMetadataLog:
    node_ports = NodePorts(RealFiles(directory), Random(1), [].append, (lines if lines is not None else []).append)
    return KafkaMetadataLog(node_ports, 1 << 20, Rules(), between)


def append(log: KafkaMetadataLog, records: list[Record], epoch: int = 3) -> None:
    log.append(log.encode_batch(records, epoch, 0))


def written(log: KafkaMetadataLog, epoch: int = 3) -> ClusterImage:
    for records in CHANGES:
        append(log, records, epoch)
    return log.image(log.end)


def with_snapshots_at(log: KafkaMetadataLog, *ends: int, epoch: int = 3) -> None:
    """Append all changes, with a snapshot at each of these ends."""
    for records in CHANGES:
        append(log, records, epoch)
        if log.end in ends:
            log.snapshot_and_trim(log.end)


def files(directory: Path) -> list[Path]:
    return sorted((directory / DIRECTORY).glob("*.checkpoint"))


def ends(log: KafkaMetadataLog) -> list[int]:
    return [snapshot.end for snapshot in log.snapshots]


def test_a_snapshot_makes_the_same_image_broker_epochs_and_all(tmp_path: Path) -> None:
    image = written(opened(tmp_path))
    data = encode_snapshot(image, 3)
    assert decode_snapshot(data, SnapshotId(image.offset, 3)) == image
    assert [check(batch).leader_epoch for _, batch in iterate(data)] == [3]


def test_an_empty_image_has_a_snapshot_too() -> None:
    assert decode_snapshot(encode_snapshot(ClusterImage(), 1), SnapshotId(1, 1)) == ClusterImage(offset=1)


def cut_off(file: Path, cut: str) -> int:
    """Cut the end of a snapshot off. Returns the bytes that are left."""
    data = file.read_bytes()
    last = [batch for _, batch in iterate(data)][-1]
    kept = {"empty": 0, "half": len(data) // 2, "without its last batch": len(data) - len(last), "torn": len(data) - 1}
    file.write_bytes(data[: kept[cut]])
    return kept[cut]


CUTS = ["empty", "half", "without its last batch", "torn"]


@pytest.mark.parametrize("cut", CUTS)
def test_a_snapshot_without_its_end_is_damaged_not_an_empty_cluster(tmp_path: Path, cut: str) -> None:
    leader, log = opened(tmp_path / "leader"), opened(tmp_path)
    for number in range(300):
        append(leader, [TopicRecord(f"t{number}", uuid.UUID(int=number + 9))])
    log.install_snapshot(SnapshotId(leader.end, 3), encode_snapshot(leader.image(leader.end), 3))
    log.close()
    (file,) = files(tmp_path)
    kept = cut_off(file, cut)
    with pytest.raises(MetadataError, match=f"the snapshot {file.name} of {kept} bytes is damaged"):
        opened(tmp_path)
    assert files(tmp_path) == [file], "it is left for those who look for the reason"


def damage(file: Path, how: str) -> None:
    if how != "another bit":
        cut_off(file, how)
        return
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("how", [*CUTS, "another bit"])
@pytest.mark.parametrize("older", [(), (2,)], ids=["from the beginning", "from the older one"])
def test_what_a_damaged_snapshot_stands_for_is_read_from_the_log(
    tmp_path: Path, older: tuple[int, ...], how: str
) -> None:
    log, lines = opened(tmp_path, 1), list[str]()
    with_snapshots_at(log, *older, 10)
    image = log.image(log.end)
    log.close()
    newest = files(tmp_path)[-1]
    damage(newest, how)
    again = opened(tmp_path, 1, lines)
    (line,) = lines
    assert line.startswith(f"the metadata log is read in place of the snapshot {newest.name}: ")
    assert (ends(again), again.start, again.snapshot_end) == ([*older], sum(older), sum(older))
    assert again.image(again.end) == image
    assert len(files(tmp_path)) == len(older), "nobody is given the damaged one"


def test_a_damaged_snapshot_is_not_passed_over_where_the_log_has_less(tmp_path: Path) -> None:
    """What it stood for is committed, and would be lost."""
    log = opened(tmp_path, 1)
    with_snapshots_at(log, 2, 10)
    log.close()
    damage(files(tmp_path)[-1], "torn")
    shorter = Log.open(RealFiles(tmp_path), DIRECTORY, LogConfig(), [].append)
    shorter.truncate(6)
    shorter.close(clean=True)
    with pytest.raises(MetadataError, match="is damaged"):
        opened(tmp_path)


def test_a_log_whose_beginning_no_snapshot_has_is_no_empty_cluster(tmp_path: Path) -> None:
    log = opened(tmp_path, 1)
    with_snapshots_at(log, 2, 10)
    log.close()
    for file in files(tmp_path):
        file.unlink()
    with pytest.raises(MetadataError, match="begins at offset 2, which no snapshot reaches"):
        opened(tmp_path)


def test_a_log_that_has_grown_enough_begins_where_the_snapshot_before_ends(tmp_path: Path) -> None:
    log = opened(tmp_path)
    written(log)
    older = log.end
    before = opened(tmp_path / "other")
    assert not before.snapshot_and_trim(before.end), "nothing has grown"
    assert not log.snapshot_and_trim(older), "the log is whole as long as there is one snapshot alone"
    assert (log.start, ends(log)) == (0, [older])
    log.snapshot_and_trim(older)
    assert ends(log) == [older], "nothing has grown since"
    while log.end < older + 9:
        append(log, [ProducerIdsBlock(4000 + log.end)], 4)
    assert log.snapshot_and_trim(log.end - 1)
    assert (log.start, log.snapshots) == (older, (SnapshotId(older, 3), SnapshotId(log.end - 1, 4)))
    image = log.image(log.end)
    log.close()
    again = opened(tmp_path, 300)
    assert (again.start, again.snapshots, again.snapshot_end) == (older, log.snapshots, log.end - 1)
    assert again.image(again.snapshot_end).offset == log.end - 1, "from the latest snapshot"
    assert again.image(again.end) == image
    assert again.last_entry == EpochAndOffset(4, log.end)
    append(again, [ProducerIdsBlock(9000)], 4)
    again.snapshot_and_trim(again.end)
    assert again.snapshots == log.snapshots, "what lies between the two snapshots has not grown since the latest"


def test_only_what_is_committed_goes_into_a_snapshot(tmp_path: Path) -> None:
    log = opened(tmp_path)
    written(log)
    committed = log.end - 3
    log.snapshot_and_trim(committed)
    assert log.snapshots == (SnapshotId(committed, 3),)
    assert log.end == committed + 3
    log.truncate(committed)
    assert log.last_entry == EpochAndOffset(3, committed)


def test_the_two_newest_snapshots_are_kept_and_the_log_from_the_older_one_on(tmp_path: Path) -> None:
    log = opened(tmp_path, 1)
    last = [0]
    for records in CHANGES:
        append(log, records)
        assert log.snapshot_and_trim(log.end) == (last[-2:] != [0])
        last.append(log.end)
        assert ends(log) == [end for end in last[-2:] if end]
        assert log.start == last[-2]
        assert [path.name for path in files(tmp_path)] == [snapshot.name for snapshot in log.snapshots]
        assert all(log.read_snapshot(snapshot) for snapshot in log.snapshots)


def test_a_follower_goes_on_from_the_older_snapshot_whatever_the_epoch_of_the_next_record(tmp_path: Path) -> None:
    leader, follower = opened(tmp_path / "leader", 1), opened(tmp_path / "follower", 1)
    with_snapshots_at(leader, 13)
    (older,) = leader.snapshots
    data = leader.read_snapshot(older)
    assert data is not None
    append(leader, [ProducerIdsBlock(4000)], 5)
    leader.snapshot_and_trim(leader.end)
    assert (leader.start, leader.last_entry) == (older.end, EpochAndOffset(5, older.end + 1))
    follower.install_snapshot(older, data)
    assert follower.last_entry == EpochAndOffset(3, older.end)
    state = QuorumState(1, (1, 2), RaftTimeouts(1, 1, 1), epoch=5, leader=1, role=RaftRole.LEADER)
    fetch = MetadataFetch(2, 5, follower.end, follower.last_entry.epoch)
    assert state.on_fetch(fetch, leader.view, Moment(0, 0.5))[1] == FetchValidation()
    for behind in (fetch._replace(offset=older.end - 1), fetch._replace(last_epoch=2)):
        _, validation = state.on_fetch(behind, leader.view, Moment(0, 0.5))
        assert validation == FetchValidation(snapshot=leader.snapshots[-1])
    follower.append(leader.read(follower.end, 1 << 20, leader.end))
    assert follower.image(follower.end) == leader.image(leader.end)


def test_a_snapshot_of_the_leader_takes_the_place_of_the_whole_log_and_of_all_snapshots(tmp_path: Path) -> None:
    leader = opened(tmp_path / "leader")
    image = written(leader)
    snapshot = SnapshotId(leader.end, 3)
    follower = opened(tmp_path / "follower", 1)
    for block in (9, 10, 11):
        append(follower, [ProducerIdsBlock(block)], 1)
        follower.snapshot_and_trim(follower.end)
    assert ends(follower) == [2, 3]
    follower.install_snapshot(snapshot, encode_snapshot(image, 3))
    for log in (follower, opened(tmp_path / "follower")):
        assert log.image(log.end) == image
        assert (log.start, log.last_entry) == (snapshot.end, EpochAndOffset(3, snapshot.end))
        assert log.view.epochs.latest == 3
        assert log.snapshots == (snapshot,)
    assert [path.name for path in files(tmp_path / "follower")] == [snapshot.name]


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
            append(log, change, epoch)
        log.close()
        write_durably(RealFiles(place), name, data)
        again = opened(place)
        assert again.image(again.end) == image
        assert (again.start, again.end) == (image.offset, image.offset)


@pytest.mark.parametrize("lost_bytes", [0, 1, 100], ids=["nothing", "the end of a batch", "a header, too"])
def test_a_log_whose_file_lost_what_was_appended_is_an_error_and_no_endless_read(
    tmp_path: Path, lost_bytes: int
) -> None:
    """Writes of a process that was ended in the middle of a callback have no effect (drawn worlds 75 and, where a loss
    of power tore the last batch, 6400031 of 20 s)."""
    log = opened(tmp_path)
    for change in CHANGES[:2]:
        append(log, change)
    (file,) = (tmp_path / DIRECTORY).glob("*.log")
    os.truncate(file, file.stat().st_size - lost_bytes)
    if lost_bytes:
        with pytest.raises(MetadataError, match="the metadata log has no record at offset 1, below 2"):
            log.image(log.end)
    else:
        assert log.image(log.end).offset == 2


def test_a_log_whose_file_lost_all_that_was_appended_is_an_error(tmp_path: Path) -> None:
    log = opened(tmp_path)
    append(log, CHANGES[0])
    (file,) = (tmp_path / DIRECTORY).glob("*.log")
    os.truncate(file, 0)
    with pytest.raises(MetadataError, match="the metadata log has no record at offset 0, below 1"):
        log.image(log.end)
