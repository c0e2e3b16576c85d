"""The data path of one broker under test: requests of clients and followers to its APIs, on a disk in memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from random import Random
from typing import Any

from kio.schema.fetch.v16 import request as fetching
from kio.schema.list_offsets.v7 import request as listing
from kio.schema.produce.v11 import request as producing

from images.broker.apis.list_offsets import OffsetApis
from images.broker.apis.produce_fetch import ProduceFetchApis
from images.broker.config import NodeConfig
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import (
    ChangeBroker,
    ClusterImage,
    PartitionImage,
    RegisterBroker,
    TopicConfigRecord,
    TopicRecord,
)
from images.broker.ports import NodePorts
from images.broker.replication.fetch_sessions import FetchSessionCache
from images.broker.replication.partition import ReplicaFetch
from images.broker.replication.replica import Replica
from images.broker.replication.replica_manager import ReplicaManager
from images.broker.runtime.server import Request
from images.trace import TraceEvent
from images.wire import batch as batches
from images.wire.messages import SUPPORTED, Api, encode_response
from images.wire.versions import from_canonical
from tests.broker.log.disk_model import DiskModel

CONFIG = NodeConfig.parse(
    """
    process.roles=broker
    node.id=1
    listeners=PLAINTEXT://b1:9092
    controller.quorum.voters=101@c1:9093
    replica.fetch.wait.max.ms=50
    """
)
TOPIC = uuid.UUID(int=42)
MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1
MIN_INT32, MAX_INT32 = -(1 << 31), (1 << 31) - 1


class Broker:
    """Broker 1 of 3 with both partitions of topic `t`, whose other replicas are only spoken of."""

    def __init__(self, *, min_isr: int = 1) -> None:
        self.disk = DiskModel()
        self.trace: list[TraceEvent] = []
        self.restart()
        self.image = ClusterImage().apply_all(
            [
                *(RegisterBroker(broker, f"incarnation {broker}", f"b{broker}", 9092) for broker in (1, 2, 3)),
                *(ChangeBroker(broker, broker - 1, fenced=False, shutting_down=False) for broker in (1, 2, 3)),
                TopicRecord("t", TOPIC),
                TopicConfigRecord(
                    "t",
                    FrozenMap({"min.insync.replicas": str(min_isr), "unclean.leader.election.enable": "false"}),
                ),
                *(_partition(index, 1, 0, (1,), 0) for index in (0, 1)),
            ],
            0,
        )
        self.replica_manager.apply(self.image)

    def restart(self) -> None:
        """Another life on the same disk, which knows of no metadata yet."""
        self.replica_manager = ReplicaManager(
            CONFIG,
            NodePorts(self.disk, Random(1), self.trace.append, lambda line: None),
            asyncio.get_running_loop().time,
            lambda: 0,
            lambda replica, proposal: None,
            _never_run,
        )
        sessions = FetchSessionCache(2, 60.0, asyncio.get_running_loop().time, Random(1))
        self.handlers = {
            **ProduceFetchApis(
                self.replica_manager, lambda: self.image, sessions, fetch_max_bytes=1 << 20, trace=self.trace.append
            ).handlers(),
            **OffsetApis(self.replica_manager, lambda: self.image, latest_timeout_s=0.02).handlers(),
        }

    def partition(self, index: int = 0) -> Replica:
        found = self.replica_manager.get("t", index)
        assert found is not None
        return found

    def elect(self, leader: int, epoch: int, *, index: int = 0, isr: tuple[int, ...] = (1,)) -> None:
        """Have the controller's metadata say so."""
        self.image = self.image.apply(_partition(index, leader, epoch, isr, self.image.offset), self.image.offset)
        self.replica_manager.apply(self.image)

    def follow(self, index: int, offset: int, *, replica: int = 2, epoch: int = 0) -> None:
        """Replica 2 fetches from here."""

        last = self.partition(index).state.epochs.epoch_at(offset - 1) if offset else -1
        fetch = ReplicaFetch(replica, replica - 1, epoch, offset, last)
        self.partition(index).fetch_for_replica(fetch, 9, self.replica_manager.active, 0, False)

    async def ask(self, api: Api, body: Any, *, version: int | None = None, names: dict[Any, str] | None = None) -> Any:
        """A request from connection 1, which may have `names` of topics; the answer, which every version can tell."""
        version = SUPPORTED[api][-1] if version is None else version
        handler = self.handlers[api]
        answer = await handler(Request(api, version, "test", 1, body, names or {}))
        if answer is not None:
            names = {TOPIC: "t", uuid.UUID(int=0): ""}
            for each in SUPPORTED[api]:
                assert encode_response(from_canonical(api, each, answer, names), 1)
        return answer

    async def produce(
        self,
        *parts: tuple[int, bytes | None],
        acks: int = -1,
        timeout_s: float = 5.0,
        transactional_id: str | None = None,
    ) -> Any:
        """The result for each (partition, records)."""
        data = tuple(producing.PartitionProduceData(index=index, records=records) for index, records in parts)
        body = producing.ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout=timedelta(seconds=timeout_s),
            topic_data=(producing.TopicProduceData(name="t", partition_data=data),),
        )
        answer = await self.ask(Api.PRODUCE, body)
        return None if answer is None else answer.responses[0].partition_responses

    async def fetch(self, *parts: Any, replica: int = -1, wait_s: float = 0.0, **of: Any) -> Any:
        """The result of each partition."""
        body = fetching.FetchRequest(
            replica_state=fetching.ReplicaState(replica_id=replica, replica_epoch=replica - 1),
            max_wait=timedelta(seconds=wait_s),
            min_bytes=of.get("min_bytes", 1),
            max_bytes=of.get("max_bytes", 1 << 20),
            topics=(fetching.FetchTopic(topic_id=TOPIC, partitions=parts),),
            forgotten_topics_data=(),
        )
        return (await self.ask(Api.FETCH, body)).responses[0].partitions

    async def offset_at(self, timestamp: int, *, replica: int = -1, epoch: int = -1, version: int = 7) -> Any:
        """The answer of ListOffsets for a time."""
        wanted = listing.ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=timestamp)
        body = listing.ListOffsetsRequest(
            replica_id=replica,
            isolation_level=0,
            topics=(listing.ListOffsetsTopic(name="t", partitions=(wanted,)),),
        )
        return (await self.ask(Api.LIST_OFFSETS, body, version=version)).topics[0].partitions[0]


def _never_run(work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
    return asyncio.ensure_future(asyncio.sleep(0))


def _partition(index: int, leader: int, epoch: int, isr: tuple[int, ...], partition_epoch: int) -> PartitionImage:
    return PartitionImage("t", TOPIC, index, (1, 2, 3), isr, (), (), leader, epoch, partition_epoch)


def part(
    partition: int = 0, offset: int = 0, *, max_bytes: int = 1 << 20, epoch: int = -1, last_epoch: int = -1
) -> Any:
    return fetching.FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch,
    )


def produced(*values: bytes, timestamp_ms: int = 5) -> bytes:
    return batches.build(values, timestamp_ms=timestamp_ms)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await scenario()

    asyncio.run(limited())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
