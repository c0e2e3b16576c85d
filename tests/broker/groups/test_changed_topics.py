"""Group coordinators while topics are deleted and created again: `__consumer_offsets`, and topics with committed
offsets."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from random import Random
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v9 import request as committing

from images.broker.apis.groups import GroupCoordinator
from images.broker.config import NodeConfig
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import (
    ChangeBroker,
    ClusterImage,
    PartitionImage,
    Record,
    RegisterBroker,
    RemoveTopic,
    TopicConfigRecord,
    TopicRecord,
)
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.ports import NodePorts
from images.broker.replication.replica_manager import ReplicaManager
from images.broker.runtime.server import Request
from images.wire.connection import Api
from tests.broker.groups.test_coordinator import in_virtual_time, turns
from tests.broker.log.disk_model import DiskModel

CONFIG = NodeConfig.parse(
    """
    process.roles=broker
    node.id=1
    listeners=PLAINTEXT://b1:9092
    controller.quorum.voters=101@c1:9093
    """
)
OFFSETS_ID, ORDERS_ID = uuid.UUID(int=7), uuid.UUID(int=8)


class Broker:
    """Broker 1, the only one: it leads every partition, `__consumer_offsets` with its one partition from the start."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        node_ports = NodePorts(DiskModel(), Random(1), lambda event: None, lambda line: None)
        clock = asyncio.get_running_loop().time
        self.replica_manager = ReplicaManager(
            CONFIG, node_ports, clock, lambda: 0, lambda replica, proposal: None, self.spawn
        )
        self.image = ClusterImage()
        self.groups = GroupCoordinator(CONFIG, node_ports, self.replica_manager, lambda: self.image, clock, self.spawn)
        broker = (RegisterBroker(1, "first", "b1", 9092), ChangeBroker(1, 0, fenced=False, shutting_down=False))
        self.apply(*broker, *created(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    def apply(self, *records: Record) -> None:
        """Apply what one fetch of the metadata has brought."""
        self.image = self.image.apply_all(records, self.image.offset)
        self.replica_manager.apply(self.image)
        self.groups.apply()

    async def commit(self, offset: int) -> ErrorCode:
        """Commit this offset of `orders`-0 for group g, which has no members."""
        part = committing.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=0, committed_metadata=""
        )
        body = committing.OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=(committing.OffsetCommitRequestTopic(name="orders", partitions=(part,)),),
        )
        answer = await self.groups.offset_commit(Request(Api.OFFSET_COMMIT, 9, "test", 1, body, {}))
        error: ErrorCode = answer.topics[0].partitions[0].error_code
        return error


def created(topic: str, topic_id: uuid.UUID) -> tuple[Record, ...]:
    config = FrozenMap({"min.insync.replicas": "1", "unclean.leader.election.enable": "false"})
    partition = PartitionImage(topic, topic_id, 0, (1,), (1,), (), (), 1, 0, 0)
    return TopicRecord(topic, topic_id), TopicConfigRecord(topic, config), partition


@in_virtual_time
async def test_offsets_topic_deleted_and_created_anew_in_one_fetch_of_the_metadata_has_a_coordinator() -> None:
    broker = Broker()
    broker.apply(*created("orders", ORDERS_ID))
    await turns()
    assert await broker.commit(5) is ErrorCode.none
    again = uuid.UUID(int=9)
    broker.apply(RemoveTopic(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID), *created(CONSUMER_OFFSETS_TOPIC, again))
    await turns()
    assert await broker.commit(6) is ErrorCode.none
