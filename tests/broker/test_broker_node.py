"""A broker's life: it comes, it goes when told to, and when it cannot write any more it ends and loses nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from errno import ENOSPC
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kio.schema.create_topics.v7 import request as create
from kio.schema.errors import ErrorCode
from kio.schema.produce.v11 import request as producing

from images.broker import batch as batches
from images.broker.broker_node import CLEAN_SHUTDOWN, BrokerNode, leave_clean_shutdown, take_clean_shutdown
from images.broker.config import NodeConfig
from images.broker.controller_node import ControllerNode
from images.broker.doors import Doors, File
from images.broker.files import RealFile, RealFiles
from images.broker.replicas import HIGH_WATERMARKS
from images.broker.serving import Serving
from images.broker.trace import TraceEvent
from images.broker.tracefile import TraceFile
from images.broker.wire import Connection, ConnectionLost

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
            raise OSError(5, "Input/output error")
        self._file.fsync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class BreakableFiles(RealFiles):
    """The disk of one broker. The names say which files it fails: those with these letters in their path."""

    full_for = unsyncable = "nothing yet"

    def open(self, path: str) -> Any:
        return BreakableFile(super().open(path), path, self)


class Cluster:
    """A controller and broker 1."""

    def __init__(self, directory: Path) -> None:
        self.ports = [_free_port(), _free_port()]
        self.files = BreakableFiles(directory / "broker")
        self.lives = 0
        self.lines: list[str] = []
        self.trace: list[TraceEvent] = []
        self.controller = ControllerNode(
            self._config("controller", 101, self.ports[0]),
            Doors(RealFiles(directory / "controller"), Random(1), lambda event: None, lambda line: None),
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
            log.segment.bytes=1024
            """
        )

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[tuple[asyncio.Task[None], asyncio.Event]]:
        """Broker 1, running; what ends it, and the way to tell it to."""
        stopping = asyncio.Event()
        self.lives += 1
        doors = Doors(self.files, Random(self.lives), self.trace.append, self.lines.append)
        node = BrokerNode(self._config("broker", 1, self.ports[1]), doors)
        life = asyncio.ensure_future(node.run(stopping))
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
                connection = await Connection.open("127.0.0.1", self.ports[1], "test", 5.0)
                break
            except ConnectionLost:
                await asyncio.sleep(0.01)
        try:
            return await connection.call(request, 5.0)
        finally:
            connection.close()

    async def create_topic(self) -> None:
        """Topic `t`, once broker 1 is unfenced. Its one replica may lead again after a crash."""
        unclean = create.CreatableTopicConfig(name="unclean.leader.election.enable", value="true")
        topic = create.CreatableTopic(
            name="t", num_partitions=1, replication_factor=1, assignments=(), configs=(unclean,)
        )
        request = create.CreateTopicsRequest(topics=(topic,), timeout=timedelta(seconds=1))
        wanted = (ErrorCode.none, ErrorCode.topic_already_exists)
        while True:
            if (await self.call(request)).topics[0].error_code in wanted:
                return
            await asyncio.sleep(0.01)

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


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


async def failure_of(life: asyncio.Task[None]) -> BaseException:
    """What the broker ends with, when all groups are taken off it."""
    await asyncio.wait((life,))
    error = life.exception()
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert error is not None
    return error


# --- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [-1, 17])
def test_a_broker_that_is_not_registered_yet_can_be_stopped_and_its_last_end_counts(tmp_path: Path, epoch: int) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        if epoch >= 0:
            leave_clean_shutdown(cluster.files, epoch)
        async with cluster.broker() as (life, stopping):
            await asyncio.sleep(0.05)
            assert cluster.lines
            assert not cluster.files.exists(CLEAN_SHUTDOWN), "a crash now must not pass for a clean end"
            stopping.set()
            async with asyncio.timeout(2):
                await life
        assert take_clean_shutdown(cluster.files) == epoch

    run(scenario)


def test_a_broker_told_to_stop_is_known_to_have_ended_cleanly(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            for _ in range(2):
                async with cluster.broker() as (life, stopping):
                    await cluster.create_topic()
                    await cluster.produce(b"a")
                    stopping.set()
                    await life
        assert [event.detail["clean"] for event in cluster.told("registered")] == [False, True]
        assert cluster.told("log_recovered")[-1].log_end == 1

    run(scenario)


def test_a_broker_that_could_not_write_everything_down_does_not_claim_a_clean_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            async with cluster.broker() as (life, stopping):
                await cluster.create_topic()
                await cluster.produce(b"a")
                cluster.files.unsyncable = ".log"
                stopping.set()
                assert isinstance(await failure_of(life), OSError)
            assert not cluster.files.exists(CLEAN_SHUTDOWN)
            cluster.files.unsyncable = "nothing"
            async with cluster.broker():
                await cluster.produce(b"b")
        assert [event.detail["clean"] for event in cluster.told("registered")] == [False, False]

    run(scenario)


# --- failing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["t-0", HIGH_WATERMARKS])
def test_a_full_disk_ends_the_broker_with_one_error_and_loses_nothing_acknowledged(tmp_path: Path, where: str) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            async with cluster.broker() as (life, _):
                await cluster.create_topic()
                assert (await cluster.produce(b"a")).base_offset == 0
                told = len(cluster.lines)
                cluster.files.full_for = where
                if where == "t-0":
                    with pytest.raises(ConnectionLost):
                        await cluster.produce(b"b")
                assert await failure_of(life) is FULL
                assert cluster.lines[told:] == []
                assert not cluster.files.exists(CLEAN_SHUTDOWN)
            cluster.files.full_for = "nothing"
            async with cluster.broker():
                assert (await cluster.produce(b"b")).base_offset == 1

    run(scenario)


def test_a_full_disk_at_recovery_ends_the_broker_and_costs_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled():
            async with cluster.broker():
                await cluster.create_topic()
                for _ in range(3):
                    await cluster.produce(bytes(1000))
            cluster.files.full_for = ".snapshot"
            async with cluster.broker() as (life, _):
                assert await failure_of(life) is FULL
            cluster.files.full_for = "nothing"
            async with cluster.broker():
                assert (await cluster.produce(b"b")).base_offset == 3

    run(scenario)


def test_a_bug_in_answering_ends_the_broker_rather_than_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Serving, request: Any) -> Any:
        raise LookupError("out of reason")

    monkeypatch.setattr(Serving, "produce", broken)

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        async with cluster.controlled(), cluster.broker() as (life, _):
            await cluster.create_topic()
            with pytest.raises(ConnectionLost):
                await cluster.produce(b"a")
            assert isinstance(await failure_of(life), LookupError)

    run(scenario)


def test_what_fails_names_its_file() -> None:
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        RealFile(Path("/dev/full")).append(b"a")


def test_a_trace_that_cannot_be_written_names_its_file() -> None:
    with TraceFile(Path("/dev/full")) as trace, pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        trace.append(TraceEvent("node_started"))
