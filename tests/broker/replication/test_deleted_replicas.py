"""Deleting the replicas of a broker, on the file system of the machine."""

import uuid
from pathlib import Path
from random import Random

from images.broker.config import NodeConfig
from images.broker.metadata.image import ClusterImage, PartitionImage, TopicRecord
from images.broker.ports import NodePorts
from images.broker.replication.replica_manager import ReplicaManager
from images.broker.runtime.files import RealFiles
from tests.broker.apis.data_path import CONFIG

LONGEST = "x" * 249


def manager(config: NodeConfig, directory: Path) -> ReplicaManager:
    node_ports = NodePorts(RealFiles(directory), Random(1), lambda event: None, lambda line: None)
    return ReplicaManager(config, node_ports, lambda: 0.0, lambda: 0, lambda *_: None, lambda work: work.close())  # type: ignore[arg-type, return-value]


def test_a_topic_with_the_longest_name_is_deleted(tmp_path: Path) -> None:
    topic = uuid.UUID(int=42)
    partition = PartitionImage(LONGEST, topic, 0, (1,), (1,), (), (), 1, 0, 0)
    replicas = manager(CONFIG, tmp_path)
    replicas.apply(ClusterImage().apply_all([TopicRecord(LONGEST, topic), partition], 0))
    assert [path.name for path in tmp_path.iterdir()] == [f"{LONGEST}-0"]
    replicas.apply(ClusterImage())
    assert list(tmp_path.iterdir()) == []
