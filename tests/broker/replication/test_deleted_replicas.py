"""Deleting the replicas of a broker, on the file system of the machine."""

import dataclasses
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from harness.simulation.storage.disk import SimDisk
from harness.simulation.storage.files import SimFiles
from images.broker.config import NodeConfig
from images.broker.metadata.image import ClusterImage, PartitionImage, TopicRecord
from images.broker.ports import Files, NodePorts
from images.broker.replication.replica_manager import PARTITION_METADATA, ReplicaManager
from images.broker.rules import Rules
from images.broker.runtime.files import TEMPORARY_SUFFIX, RealFiles
from images.trace import TraceEvent
from images.wire.batch import assign, build
from nemesis.ports import KeepUnsynced
from tests.broker.apis.data_path import CONFIG

LONGEST = "x" * 249


def manager(
    config: NodeConfig, files: Files, trace: Callable[[TraceEvent], None] = lambda event: None
) -> ReplicaManager:
    node_ports = NodePorts(files, Random(1), trace, lambda line: None)
    return ReplicaManager(config, node_ports, lambda: 0.0, lambda: 0, lambda *_: None, lambda work: work.close())  # type: ignore[arg-type, return-value]


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
