"""A controller process under test, in this process: its files may fail, and brokers ask it on loopback."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v3.request import BrokerRegistrationRequest, Listener
from kio.schema.create_topics.v7 import request as create
from kio.schema.fetch.v16.request import FetchPartition, FetchRequest, FetchTopic

from images.broker.config import NodeConfig
from images.broker.controller_node import ControllerNode
from images.broker.metadata.image import ClusterImage
from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC_ID
from images.broker.ports import File, NodePorts
from images.broker.raft.log import decode_records
from images.broker.runtime.files import RealFiles
from images.trace import TraceEvent
from images.wire.batch import iterate
from images.wire.connection import Connection

SESSION_MS = 500
UNIX_MS = 1_790_000_000_000


def configured(session_ms: int) -> NodeConfig:
    return NodeConfig.parse(
        f"""
        process.roles=controller
        node.id=101
        listeners=PLAINTEXT://127.0.0.1:0
        controller.quorum.voters=101@127.0.0.1:0
        broker.session.timeout.ms={session_ms}
        """
    )


CONFIG = configured(60_000)
SHORT_SESSIONS = configured(SESSION_MS)


class BrokenFile:
    """A file whose disk fails on the next sync once requested."""

    def __init__(self, file: File, files: BreakableFiles) -> None:
        self._file = file
        self._files = files

    def fsync(self) -> None:
        if self._files.broken:
            raise OSError(5, "the disk has failed")
        self._file.fsync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class BreakableFiles(RealFiles):
    broken = False

    def open(self, path: str) -> Any:
        return BrokenFile(super().open(path), self)


class Node:
    """A running controller and one client of it."""

    def __init__(self, directory: Path, config: NodeConfig = CONFIG) -> None:
        self.files = BreakableFiles(directory)
        self.trace: list[TraceEvent] = []
        self.serving = asyncio.Event()
        self.node_ports = NodePorts(self.files, Random(1), self.trace.append, self._read_line, lambda: UNIX_MS)
        self.controller = ControllerNode(config, self.node_ports)
        self.stopping = asyncio.Event()

    @property
    def decided(self) -> list[TraceEvent]:
        """The trace without the events of the quorum."""
        return [event for event in self.trace if not event.kind.startswith(("quorum_", "metadata_"))]

    def _read_line(self, line: str) -> None:
        if line.startswith("active"):
            self.serving.set()

    async def connect(self) -> Connection:
        return await Connection.open("127.0.0.1", self.controller.port, "test", 60.0)

    async def call(self, request: Any, client: Connection | None = None) -> Any:
        return await (client or self.connection).call(request, 600.0)

    async def register(
        self, broker: int, incarnation: int = 1, *, client: Connection | None = None, **changed: Any
    ) -> Any:
        request = BrokerRegistrationRequest(
            broker_id=broker,
            cluster_id=CONFIG.cluster_id,
            incarnation_id=uuid.UUID(int=100 * broker + incarnation),
            listeners=(Listener(name="PLAINTEXT", host=f"b{broker}", port=9092, security_protocol=0),),
            features=(),
            rack=None,
        )
        return await self.call(replace(request, **changed), client)

    async def beat(self, broker: int, epoch: int, **wants: bool) -> Any:
        given = {"want_fence": False, "want_shut_down": False} | wants
        return await self.call(
            BrokerHeartbeatRequest(broker_id=broker, broker_epoch=epoch, current_metadata_offset=1 << 40, **given)
        )

    async def start_broker(self, broker: int) -> int:
        epoch: int = (await self.register(broker)).broker_epoch
        assert not (await self.beat(broker, epoch)).is_fenced
        return epoch

    async def create_topic(self, name: str, *replicas: int, **config: str) -> Any:
        validate_fetch = create.CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
        topic = create.CreatableTopic(
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=(validate_fetch,),
            configs=tuple(create.CreatableTopicConfig(name=key, value=value) for key, value in config.items()),
        )
        response = await self.call(create.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=1)))
        return response.topics[0]

    async def fetch(
        self, offset: int, *, wait_s: float = 0.0, min_bytes: int = 1, client: Connection | None = None, **of: Any
    ) -> Any:
        partition = FetchPartition(
            partition=of.get("partition", 0), fetch_offset=offset, partition_max_bytes=of.get("max_bytes", 1 << 20)
        )
        request = FetchRequest(
            max_wait=timedelta(seconds=wait_s),
            min_bytes=min_bytes,
            topics=(FetchTopic(topic_id=of.get("topic_id", CLUSTER_METADATA_TOPIC_ID), partitions=(partition,)),),
            forgotten_topics_data=(),
        )
        response = await self.call(request, client)
        return response.responses[0].partitions[0]

    async def image(self) -> ClusterImage:
        """The image of a broker that reads the metadata log from the start."""
        image = ClusterImage()
        while records := (await self.fetch(image.offset)).records:
            for header, batch in iterate(records):
                image = image.apply_all(decode_records(batch), header.base_offset)
        return image


@asynccontextmanager
async def running(directory: Path, config: NodeConfig = CONFIG) -> AsyncIterator[Node]:
    node = Node(directory, config)
    await node.controller.start()
    await node.serving.wait()
    try:
        node.connection = await node.connect()
        yield node
        node.connection.close()
    finally:
        await node.controller.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(scenario(), 120)

    asyncio.run(limited())
