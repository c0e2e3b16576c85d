"""A controller and one broker over loopback, in one process and one loop, on disks that can be made to fail."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from errno import EIO, ENOSPC
from pathlib import Path
from random import Random
from typing import Any

from kio.schema.broker_registration.v3.request import BrokerRegistrationRequest, Listener
from kio.schema.create_topics.v7 import request as create
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.produce.v11 import request as producing

from images.broker.config import NodeConfig, Voter
from images.broker.controller_node import ControllerNode
from images.broker.node import run_node
from images.broker.ports import File, NodePorts
from images.broker.runtime.files import RealFiles
from images.trace import TraceEvent
from images.wire import batch as batches
from images.wire.connection import Connection, ConnectionLost

FULL = OSError(ENOSPC, "No space left on device")


class BreakableFile:
    """A file that cannot be written to, or synced, as soon as its disk says so."""

    def __init__(self, file: File, path: str, files: BreakableFiles) -> None:
        self._file = file
        self._path = path
        self._files = files

    def append(self, data: bytes) -> None:
        if self._files.full_for in self._path:
            raise FULL
        self._file.append(data)

    def fsync(self) -> None:
        if self._files.unsyncable in self._path:
            raise OSError(self._files.sync_errno, "no sync")
        self._file.fsync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class BreakableFiles(RealFiles):
    """The disk of one broker. The names say which files it fails: those with these letters in their path."""

    full_for = unsyncable = "nothing yet"
    sync_errno = EIO

    def open(self, path: str) -> Any:
        return BreakableFile(super().open(path), path, self)


class Cluster:
    """A controller and broker 1."""

    def __init__(self, directory: Path) -> None:
        self.rules_off = ""
        """Rules switched off in the broker."""
        self.segment_bytes = 1024
        self.ports = [_free_port(), _free_port()]
        self.files = BreakableFiles(directory / "broker")
        self.lives = 0
        self.lines: list[str] = []
        self.trace: list[TraceEvent] = []
        self.controller = ControllerNode(
            self._config("controller", 101, self.ports[0]),
            NodePorts(RealFiles(directory / "controller"), Random(1), lambda event: None, lambda line: None),
        )

    def _config(self, role: str, node: int, port: int) -> NodeConfig:
        return NodeConfig.parse(
            f"""
            process.roles={role}
            node.id={node}
            listeners=PLAINTEXT://127.0.0.1:{port}
            controller.quorum.voters=101@127.0.0.1:{self.ports[0]}
            broker.heartbeat.interval.ms=20
            broker.session.timeout.ms=300
            replica.fetch.backoff.ms=10
            replica.high.watermark.checkpoint.interval.ms=50
            controlled.shutdown.timeout.ms=500
            log.segment.bytes={self.segment_bytes}
            offsets.topic.num.partitions=1
            offsets.topic.replication.factor=1
            group.initial.rebalance.delay.ms=0
            faultline.rules.off={self.rules_off if role == "broker" else ""}
            """
        )

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The one controller."""
        return self._config("controller", 101, self.ports[0]).voters

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[tuple[asyncio.Task[None], asyncio.Event]]:
        """Broker 1, running; what ends it, and the way to tell it to."""
        stopping = asyncio.Event()
        self.lives += 1
        node_ports = NodePorts(self.files, Random(self.lives), self.trace.append, self.lines.append)
        life = asyncio.ensure_future(run_node(self._config("broker", 1, self.ports[1]), node_ports, stopping))
        try:
            yield life, stopping
        finally:
            life.cancel()
            await asyncio.wait((life,))

    @asynccontextmanager
    async def controlled(self) -> AsyncIterator[None]:
        await self.controller.start()
        try:
            yield
        finally:
            await self.controller.close()

    async def call(self, request: Any) -> Any:
        """Ask the broker, once it can be reached."""
        while True:
            try:
                connection = await Connection.open("127.0.0.1", self.ports[1], "test", 60.0)
                break
            except ConnectionLost:
                await asyncio.sleep(0.01)
        try:
            return await connection.call(request, 60.0)
        finally:
            connection.close()

    async def create_topic(self, name: str = "t") -> None:
        """A topic, once broker 1 is unfenced. Its one replica leads again after a crash, as the last known leader."""
        topic = create.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
        request = create.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=1))
        wanted = (ErrorCode.none, ErrorCode.topic_already_exists)
        while True:
            if (await self.call(request)).topics[0].error_code in wanted:
                return
            await asyncio.sleep(0.01)

    async def coordinate(self, group: str) -> None:
        """Have the broker coordinate a group: `__consumer_offsets` exists, and it has loaded it."""
        asked = DescribeGroupsRequest(groups=(group,), include_authorized_operations=False)
        found = (ErrorCode.none, ErrorCode.group_id_not_found)
        while (await self.call(asked)).groups[0].error_code not in found:
            await self.call(FindCoordinatorRequest(key_type=0, coordinator_keys=(group,)))
            await asyncio.sleep(0.01)

    async def register_silent(self, broker: int) -> None:
        """Make a broker known to the controller that is never heard of again."""
        connection = await Connection.open("127.0.0.1", self.ports[0], "test", 60.0)
        try:
            answer = await connection.call(
                BrokerRegistrationRequest(
                    broker_id=broker,
                    cluster_id=self._config("broker", broker, 1).cluster_id,
                    incarnation_id=uuid.UUID(int=broker),
                    listeners=(Listener(name="PLAINTEXT", host=f"b{broker}", port=9092, security_protocol=0),),
                    features=(),
                    rack=None,
                ),
                5.0,
            )
            assert answer.error_code is ErrorCode.none
        finally:
            connection.close()

    async def produce(self, value: bytes) -> Any:
        """Produce one record with acks=all; the answer, once the broker leads."""
        data = producing.PartitionProduceData(index=0, records=batches.build([value], timestamp_ms=5))
        request = producing.ProduceRequest(
            acks=-1,
            timeout=timedelta(seconds=1),
            topic_data=(producing.TopicProduceData(name="t", partition_data=(data,)),),
        )
        while True:
            answer = (await self.call(request)).responses[0].partition_responses[0]
            if answer.error_code is ErrorCode.none:
                return answer
            await asyncio.sleep(0.01)

    def told(self, kind: str) -> list[TraceEvent]:
        return [event for event in self.trace if event.kind == kind]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
