"""Group coordinators while topics are deleted and created again: `__consumer_offsets`, and topics with committed
offsets."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v9 import request as committing
from kio.schema.offset_fetch.v9 import request as fetching

from images.broker.apis.groups import GroupCoordinator
from images.broker.config import NodeConfig
from images.broker.frozen_map import FrozenMap
from images.broker.groups.records import OffsetAndMetadata, TopicPartition
from images.broker.groups.shard import Shard
from images.broker.metadata.image import (
    ChangeBroker,
    ClusterImage,
    PartitionImage,
    ProducerIdsBlock,
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
from tests.broker.groups.coordinators import (
    MEMBER,
    P0,
    Coordinators,
    committed,
    committed_offsets,
    coordinators,
    in_virtual_time,
    told,
    turns,
)
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

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        self.tasks.append(asyncio.ensure_future(work(*arguments)))
        return self.tasks[-1]

    def apply(self, *records: Record) -> None:
        """Apply what one fetch of the metadata has brought."""
        self.image = self.image.apply_all(records, self.image.offset)
        self.replica_manager.apply(self.image)
        self.groups.apply()

    async def told(self) -> int:
        """The committed offset of `orders`-0 in group g; -1 without one."""
        topic = fetching.OffsetFetchRequestTopics(name="orders", partition_indexes=(0,))
        group = fetching.OffsetFetchRequestGroup(group_id="g", topics=(topic,))
        body = fetching.OffsetFetchRequest(groups=(group,), require_stable=True)
        answer = (await self.groups.offset_fetch(Request(Api.OFFSET_FETCH, 9, "test", 1, body, {}))).groups[0]
        assert answer.error_code is ErrorCode.none
        return answer.topics[0].partitions[0].committed_offset

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


def led(topic: str, topic_id: uuid.UUID, epoch: int) -> PartitionImage:
    return PartitionImage(topic, topic_id, 0, (1,), (1,), (), (), 1, epoch, epoch)


def created(topic: str, topic_id: uuid.UUID) -> tuple[Record, ...]:
    config = FrozenMap({"min.insync.replicas": "1", "unclean.leader.election.enable": "false"})
    return TopicRecord(topic, topic_id), TopicConfigRecord(topic, config), led(topic, topic_id, 0)


async def broker_that_committed() -> Broker:
    """A broker that has committed offset 5 of the topic `orders`."""
    broker = Broker()
    broker.apply(*created("orders", ORDERS_ID))
    await turns()
    assert await broker.commit(5) is ErrorCode.none
    return broker


@in_virtual_time
async def test_offsets_topic_deleted_and_created_anew_in_one_fetch_of_the_metadata_has_a_coordinator() -> None:
    broker = await broker_that_committed()
    again = uuid.UUID(int=9)
    broker.apply(RemoveTopic(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID), *created(CONSUMER_OFFSETS_TOPIC, again))
    await turns()
    assert await broker.commit(6) is ErrorCode.none


@pytest.mark.parametrize("fetches", [1, 2])
@in_virtual_time
async def test_a_topic_that_is_created_anew_begins_without_offsets(fetches: int) -> None:
    broker = await broker_that_committed()
    changes = [RemoveTopic("orders", ORDERS_ID), *created("orders", uuid.UUID(int=9))]
    if fetches == 2:
        broker.apply(changes.pop(0))
        assert await broker.told() == -1
    broker.apply(*changes)
    assert await broker.told() == -1
    assert await broker.commit(1) is ErrorCode.none
    assert await broker.told() == 1
    broker.apply(ProducerIdsBlock(1000))
    assert await broker.told() == 1


@in_virtual_time
async def test_offsets_of_a_deleted_topic_are_deleted_from_the_log_and_not_loaded_again() -> None:
    broker = await broker_that_committed()
    broker.apply(RemoveTopic("orders", ORDERS_ID))
    broker.apply(*created("orders", uuid.UUID(int=9)))
    broker.apply(led(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, 1))
    await turns()
    assert await broker.told() == -1


@in_virtual_time
async def test_a_coordinator_that_begins_to_lead_forgets_the_offsets_of_topics_that_are_gone() -> None:
    broker = await broker_that_committed()
    broker.apply(RemoveTopic("orders", ORDERS_ID), led(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, 1))
    await turns()
    broker.apply(*created("orders", uuid.UUID(int=9)))
    assert await broker.told() == -1


@in_virtual_time
async def test_a_topic_that_is_created_anew_while_its_coordinator_loads_begins_without_offsets() -> None:
    broker = await broker_that_committed()
    broker.apply(led(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, 1))
    broker.apply(RemoveTopic("orders", ORDERS_ID), *created("orders", uuid.UUID(int=9)))
    await turns()
    assert await broker.told() == -1


@pytest.mark.parametrize("fetches", [1, 2])
@in_virtual_time
async def test_a_topic_that_was_gone_at_the_election_begins_without_offsets_if_it_is_created_during_the_load(
    fetches: int,
) -> None:
    """A consumer of the new topic would begin at the offset of the old one, and never read the records before it."""
    broker = await broker_that_committed()
    changes: list[Record] = [RemoveTopic("orders", ORDERS_ID), led(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, 2)]
    if fetches == 2:
        broker.apply(replace(led(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, 1), leader=-1))
        broker.apply(changes.pop(0))
    broker.apply(*changes)
    broker.apply(*created("orders", uuid.UUID(int=9)))
    await turns()
    assert await broker.told() == -1


@in_virtual_time
async def test_a_topic_that_was_created_anew_while_nobody_led_begins_without_offsets() -> None:
    """No coordinator has seen the topic gone. What is committed for the new one is loaded as ever."""
    broker = await broker_that_committed()
    broker.apply(replace(led(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, 1), leader=-1))
    broker.apply(RemoveTopic("orders", ORDERS_ID), *created("orders", uuid.UUID(int=9)))
    broker.apply(led(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, 2))
    await turns()
    assert await broker.told() == -1
    broker.apply(led(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, 3))
    await turns()
    assert await broker.commit(1) is ErrorCode.none
    broker.apply(led(CONSUMER_OFFSETS_TOPIC, OFFSETS_ID, 4))
    await turns()
    assert await broker.told() == 1


@in_virtual_time
async def test_an_offset_without_the_id_of_its_topic_is_that_of_any_topic_of_the_name() -> None:
    cluster = coordinators()
    first = await cluster.lead_and_load(1, 1)
    payments = TopicPartition("payments", 0)
    offsets = [(P0, OffsetAndMetadata(7)), (payments, OffsetAndMetadata(8, topic_id=ORDERS_ID))]
    committing = asyncio.ensure_future(first.commit("g", MEMBER, offsets))
    await turns()
    cluster.replicate(1)
    assert await committing is ErrorCode.none
    second = await cluster.lead_and_load(2, 2)
    assert await told(cluster, 2, second) == dict(offsets)
    second.forget_other_topics({"orders": OFFSETS_ID, "payments": OFFSETS_ID})
    assert await told(cluster, 2, second) == dict(offsets[:1])
    second.forget_other_topics({"payments": OFFSETS_ID})
    assert await told(cluster, 2, second) == {}


@in_virtual_time
async def test_a_commit_that_waits_for_the_high_watermark_does_not_bring_a_deleted_topic_back() -> None:
    cluster = coordinators()
    first = await cluster.lead_and_load(1, 1)
    offsets = [(P0, OffsetAndMetadata(7)), (TopicPartition("payments", 0), OffsetAndMetadata(8))]
    committing = asyncio.ensure_future(first.commit("g", MEMBER, offsets))
    await turns()
    first.forget_topics(["orders"])
    later = asyncio.ensure_future(first.commit("h", MEMBER, [(P0, OffsetAndMetadata(1))]))
    await turns()
    cluster.replicate(1)
    assert await committing is ErrorCode.none
    assert await later is ErrorCode.none
    expected = dict(offsets[1:])
    assert await told(cluster, 1, first) == expected
    second = await cluster.lead_and_load(2, 2)
    assert await told(cluster, 2, second) == expected
    assert [second._offsets.of(group) for group in second._offsets.groups] == [expected, {P0: OffsetAndMetadata(1)}]


@in_virtual_time
async def test_tombstones_that_found_the_isr_too_small_precede_the_next_commit() -> None:
    cluster = coordinators()
    shard = cluster.lead(1, 1)
    fetching = asyncio.ensure_future(cluster.keep_replicating(1))
    await turns()
    assert await shard.commit("g", MEMBER, [(P0, OffsetAndMetadata(7))]) is ErrorCode.none
    assert await shard.commit("h", MEMBER, [(P0, OffsetAndMetadata(8))]) is ErrorCode.none
    replica, end = cluster.nodes[1].replica, cluster.nodes[1].replica.log.end
    cluster.nodes[1].lead(1, isr=(1,), partition_epoch=11)
    shard.forget_topics(["orders"])
    assert replica.log.end == end
    assert not any(shard._offsets.of(group) for group in shard._offsets.groups)
    cluster.nodes[1].lead(1, isr=(1, 2), partition_epoch=12)
    assert await shard.commit("g", MEMBER, [(P0, OffsetAndMetadata(1))]) is ErrorCode.none
    assert replica.log.end == end + 3
    fetching.cancel()
    second = await cluster.lead_and_load(2, 2)
    assert await told(cluster, 2, second) == {P0: OffsetAndMetadata(1)}


async def deleted_while_the_isr_is_too_small(cluster: Coordinators) -> Shard:
    """Coordinator 1, whose topic with a committed offset is deleted while it can append nothing."""
    shard = cluster.lead(1, 1)
    fetching = asyncio.ensure_future(cluster.keep_replicating(1))
    await turns()
    assert await shard.commit("g", MEMBER, [(P0, OffsetAndMetadata(7))]) is ErrorCode.none
    fetching.cancel()
    cluster.nodes[1].lead(1, isr=(1,), partition_epoch=11)
    shard.forget_topics(["orders"])
    return shard


@in_virtual_time
async def test_tombstones_that_found_the_isr_too_small_are_appended_without_another_commit() -> None:
    cluster = coordinators()
    await deleted_while_the_isr_is_too_small(cluster)
    replica, end = cluster.nodes[1].replica, cluster.nodes[1].replica.log.end
    cluster.nodes[1].lead(1, isr=(1, 2), partition_epoch=12)
    await asyncio.sleep(2)
    assert replica.log.end == end + 1


@in_virtual_time
async def test_offsets_are_told_as_deleted_when_no_later_coordinator_tells_them_again() -> None:
    """The next coordinator knows the topic created anew: of two consumers the first one would begin at its start, and
    the second one at the offset of the old topic, and never read the records before it."""
    cluster = coordinators()
    shard = await deleted_while_the_isr_is_too_small(cluster)
    await turns()
    cluster.nodes[1].lead(1, isr=(1, 2), partition_epoch=12)
    assert await told(cluster, 1, shard) == {}
    second = await cluster.lead_and_load(2, 2)
    assert await told(cluster, 2, second) == {}


@pytest.mark.parametrize("isr", [(1,), (1, 2)])
@in_virtual_time
async def test_no_offsets_are_told_until_tombstones_are_committed(isr: tuple[int, ...]) -> None:
    cluster = coordinators("offset_fetch_confirmed_by_isr")
    shard = await cluster.lead_and_load(1, 1)
    await committed(cluster, shard, P0, 7)
    cluster.nodes[1].lead(1, isr=isr, partition_epoch=11)
    shard.forget_topics(["orders"])
    untold = (ErrorCode.coordinator_load_in_progress, {})
    assert await committed_offsets(shard, 0) == untold
    cluster.nodes[1].lead(1, isr=(1, 2), partition_epoch=12)
    assert await committed_offsets(shard, 0) == untold
    cluster.replicate(1)
    assert await committed_offsets(shard, 0) == (ErrorCode.none, {})
