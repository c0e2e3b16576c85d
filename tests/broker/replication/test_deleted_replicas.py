"""Deleting the replicas of a broker, on the file system of the machine."""

import dataclasses
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from harness.simulation.storage.disk import SimDisk
from harness.simulation.storage.files import SimFiles
from images.broker.config import NodeConfig
from images.broker.metadata.image import ClusterImage, PartitionImage, TopicRecord
from images.broker.ports import Files, NodePorts
from images.broker.replication.replica_manager import HIGH_WATERMARKS, PARTITION_METADATA, ReplicaManager
from images.broker.rules import Rules
from images.broker.runtime.files import TEMPORARY_SUFFIX, RealFiles, read_whole
from images.trace import TraceEvent
from images.wire.batch import assign, build
from nemesis.ports import KeepUnsynced
from tests.broker.apis.data_path import CONFIG

LONGEST = "x" * 249


def manager(
    config: NodeConfig, files: Files, trace: Callable[[TraceEvent], None] = lambda event: None
) -> ReplicaManager:
    node_ports = NodePorts(files, Random(1), trace, lambda line: None, now_ms=lambda: 1)
    return ReplicaManager(config, node_ports, lambda: 0.0, lambda: 0, lambda *_: None, lambda *_: None)  # type: ignore[arg-type, return-value]


def test_a_topic_with_the_longest_name_is_deleted(tmp_path: Path) -> None:
    topic = uuid.UUID(int=42)
    partition = PartitionImage(LONGEST, topic, 0, (1,), (1,), (), (), 1, 0, 0)
    replicas = manager(CONFIG, RealFiles(tmp_path))
    replicas.apply(ClusterImage().apply_all([TopicRecord(LONGEST, topic), partition], 0))
    assert [path.name for path in tmp_path.iterdir()] == [f"{LONGEST}-0"]
    replicas.apply(ClusterImage())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("off", [(), ("delete_replica_durably",)])
@pytest.mark.parametrize("created_again", [False, True])
def test_a_start_traces_a_deleted_log_that_is_back_which_no_power_loss_brings_about_but_without_the_rule(
    off: tuple[str, ...], created_again: bool
) -> None:
    config, disk = dataclasses.replace(CONFIG, rules=Rules().without(off)), SimDisk()
    topics = [uuid.UUID(int=number) for number in (1, 2)]
    first, second = (
        ClusterImage().apply_all(
            [TopicRecord("t", topic), PartitionImage("t", topic, 0, (1,), (1,), (), (), 1, 0, 0)], 0
        )
        for topic in topics
    )
    kinds: list[str] = []

    def begun() -> ReplicaManager:
        return manager(config, SimFiles(disk), lambda event: kinds.append(event.kind))

    replicas = begun()
    replicas.apply(first)
    replica = replicas.get("t", 0)
    assert replica is not None
    replica.log.append(assign(build([b"v"], timestamp_ms=1), 0, 0), trusted=True)
    replica.log.flush()
    replicas.apply(ClusterImage())
    disk.lose_power(KeepUnsynced.NOTHING, Random(1))
    begun().apply(second if created_again else ClusterImage())
    of_logs = [kind for kind in kinds if kind in ("log_recovered", "stray_found", "replica_deleted")]
    back = ["stray_found", "replica_deleted"] if off else []
    assert of_logs == ["log_recovered", "replica_deleted", *back, *(["log_recovered"] if created_again else [])]


def test_a_start_deletes_what_a_replica_that_could_not_be_made_has_left_and_nothing_of_others(tmp_path: Path) -> None:
    """The disk was full when the id of its topic was written, and it is no replica of this broker any more."""
    files = RealFiles(tmp_path)
    for left in ("t-0", "t-1", "not-a-replica", "of-others-2"):
        (tmp_path / left).mkdir()
    (tmp_path / "t-0" / f"{PARTITION_METADATA}{TEMPORARY_SUFFIX}").write_bytes(b"version")
    (tmp_path / "of-others-2" / "notes").write_bytes(b"kept")
    (tmp_path / "a-file-3").write_bytes(b"kept")
    manager(CONFIG, files).apply(ClusterImage())
    assert files.list(".") == ["a-file-3", "not-a-replica", "of-others-2"]


FIRST, SECOND, OTHER = (uuid.UUID(int=number) for number in (1, 2, 3))


def _cluster(*topics: tuple[str, uuid.UUID], offset: int = 0) -> ClusterImage:
    """This broker leads the only partition of each topic, of which broker 2 has a replica, too."""
    records = [
        record
        for name, topic in topics
        for record in (TopicRecord(name, topic), PartitionImage(name, topic, 0, (1, 2), (1, 2), (), (), 1, 0, offset))
    ]
    return ClusterImage().apply_all(records, offset)


def _append(replicas: ReplicaManager, topic: str, *, committed: bool) -> None:
    replica = replicas.get(topic, 0)
    assert replica is not None
    assert replica.append(build([b"v"], timestamp_ms=1), 1).error is ErrorCode.none
    if committed:
        replica.state = replica.state._replace(high_watermark=replica.log.end)


def _high_watermarks(replicas: ReplicaManager) -> dict[str, int]:
    return {replica.topic: replica.state.high_watermark for replica in replicas}


@pytest.mark.parametrize("deleted", ["while it runs", "while it is down", "while it is down, and a checkpoint follows"])
@pytest.mark.parametrize("new_topic", [SECOND, FIRST], ids=["topic created again", "replica put back"])
def test_the_high_watermark_of_a_deleted_log_does_not_count_for_a_new_one_of_its_name(
    deleted: str, new_topic: uuid.UUID
) -> None:
    """The broker is killed before the next checkpoint, with a record in the new log that is not committed."""
    files = SimFiles(SimDisk())
    replicas = manager(CONFIG, files)
    replicas.apply(_cluster(("t", FIRST), ("u", OTHER)))
    for topic in ("t", "u"):
        _append(replicas, topic, committed=True)
    replicas.checkpoint_high_watermarks()
    if deleted != "while it runs":
        replicas = manager(CONFIG, files)
    if deleted != "while it is down" or new_topic == FIRST:  # else the first metadata of its new life has both
        replicas.apply(_cluster(("u", OTHER), offset=1))
    if deleted == "while it is down, and a checkpoint follows":
        replicas.checkpoint_high_watermarks()
    created = _cluster(("t", new_topic), ("u", OTHER), offset=2)
    replicas.apply(created)
    assert _high_watermarks(replicas) == {"t": 0, "u": 1}
    _append(replicas, "t", committed=False)
    replicas = manager(CONFIG, files)
    replicas.apply(created)
    assert _high_watermarks(replicas) == {"t": 0, "u": 1}


def test_a_start_that_creates_a_replica_anew_keeps_the_high_watermarks_of_those_that_it_has_yet_to_open() -> None:
    """The broker is killed when it has opened the first replica."""
    files = SimFiles(SimDisk())
    replicas = manager(CONFIG, files)
    replicas.apply(_cluster(("t", FIRST), ("u", OTHER)))
    for topic in ("t", "u"):
        _append(replicas, topic, committed=True)
    replicas.checkpoint_high_watermarks()
    manager(CONFIG, files).apply(_cluster(("t", SECOND)))  # as far as it came
    assert (read_whole(files, HIGH_WATERMARKS) or b"").decode() == "0\n1\nu 0 1\n"
