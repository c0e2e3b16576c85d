"""A controller process: acknowledged changes are on disk and whole, and every reader sees the same records."""

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

import pytest
from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.alter_partition.v3 import request as alter
from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v3.request import BrokerRegistrationRequest, Listener
from kio.schema.create_topics.v7 import request as create
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.describe_quorum.v2 import request as describe
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchPartition, FetchRequest, FetchTopic

from images.broker.config import NodeConfig
from images.broker.controller_node import ControllerNode
from images.broker.metadata.image import ClusterImage, RegisterBroker
from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC_ID
from images.broker.ports import File, NodePorts
from images.broker.raft.log import DIRECTORY, KafkaMetadataLog, decode_records
from images.broker.raft.node import RaftNode
from images.broker.rules import Rules
from images.broker.runtime.files import RealFiles
from images.trace import TraceEvent
from images.wire.batch import iterate
from images.wire.connection import Connection, ConnectionLost

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


def test_a_broker_that_registers_and_heartbeats_is_unfenced_for_all_to_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            registered = await node.register(1)
            assert (registered.error_code, registered.broker_epoch) == (ErrorCode.none, 1)
            broker = (await node.image()).brokers[1]
            assert (broker.fenced, broker.host, broker.port) == (True, "b1", 9092)
            beat = await node.beat(1, 1)
            assert (beat.error_code, beat.is_caught_up, beat.is_fenced) == (ErrorCode.none, True, False)
            assert not (await node.image()).brokers[1].fenced
            again = await node.register(1, incarnation=2)
            assert again.error_code is ErrorCode.duplicate_broker_registration
            assert [event.kind for event in node.decided] == ["node_started", "broker_registered", "broker_unfenced"]

    run(scenario)


def test_a_registration_that_says_too_little_or_for_another_cluster_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            assert (await node.register(1, cluster_id="other")).error_code is ErrorCode.inconsistent_cluster_id
            assert (await node.register(1, listeners=())).error_code is ErrorCode.invalid_request
            assert (await node.register(1, incarnation_id=None)).error_code is ErrorCode.invalid_request
            assert (await node.register(1, broker_id=-1)).error_code is ErrorCode.invalid_request

    run(scenario)


def test_a_broker_with_the_node_id_of_a_controller_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            assert (await node.register(101)).error_code is ErrorCode.invalid_registration
            assert (await node.image()).brokers == {}

    run(scenario)


def test_times_in_describe_quorum_and_in_records_are_of_the_clock_of_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            await node.register(1)
            topic = describe.TopicData(
                topic_name="__cluster_metadata", partitions=(describe.PartitionData(partition_index=0),)
            )
            answer = await node.call(describe.DescribeQuorumRequest(topics=(topic,)))
            (voter,) = answer.topics[0].partitions[0].current_voters
            assert voter.last_caught_up_timestamp // 1000 == UNIX_MS // 1000
            records = (await node.fetch(0)).records
            assert {header.max_timestamp for header, _ in iterate(records)} == {UNIX_MS}

    run(scenario)


def test_a_silent_broker_is_fenced_and_one_that_heartbeats_is_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, SHORT_SESSIONS) as node:
            await node.start_broker(1)
            epoch = await node.start_broker(2)
            await node.create_topic("orders", 1, 2)
            for _ in range(12):
                await asyncio.sleep(SESSION_MS / 1000 / 10)
                assert not (await node.beat(2, epoch)).is_fenced
            image = await node.image()
            assert (image.brokers[1].fenced, image.brokers[2].fenced) == (True, False)
            partition = image.partition("orders", 0)
            assert partition is not None
            assert (partition.leader, partition.isr) == (2, (2,))

    run(scenario)


def test_acknowledged_changes_survive_a_restart_with_fresh_sessions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            epoch = await node.start_broker(1)
            await node.create_topic("orders", 1)
            before = await node.image()
        await asyncio.sleep(SESSION_MS / 1000)
        async with running(tmp_path, SHORT_SESSIONS) as node:
            assert await node.image() == replace(before, offset=before.offset + 1), "a new epoch begins with a record"
            assert not (await node.beat(1, epoch)).is_fenced
            assert (await node.register(2)).broker_epoch == before.offset + 1, "broker epochs go on rising"
            assert node.decided[0].kind == "node_started"
            assert [event.kind for event in node.decided if "taken_over" not in event.detail][1:] == [
                "broker_registered"
            ]

    run(scenario)


def test_a_leader_changes_its_isr_and_is_told_the_new_state(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            epochs = {broker: await node.start_broker(broker) for broker in (1, 2)}
            topic_id = (await node.create_topic("orders", 1, 2)).topic_id

            def proposal(index: int, partition_epoch: int = 0) -> alter.PartitionData:
                return alter.PartitionData(
                    partition_index=index,
                    leader_epoch=0,
                    new_isr_with_epochs=(alter.BrokerState(broker_id=1, broker_epoch=epochs[1]),),
                    partition_epoch=partition_epoch,
                )

            async def send(epoch: int) -> Any:
                topics = (
                    alter.TopicData(topic_id=uuid.UUID(int=5), partitions=(proposal(3),)),
                    alter.TopicData(topic_id=topic_id, partitions=(proposal(7), proposal(0))),
                )
                return await node.call(alter.AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=topics))

            answer = await send(epochs[1])
            assert [(t.topic_id, [(p.partition_index, p.error_code) for p in t.partitions]) for t in answer.topics] == [
                (uuid.UUID(int=5), [(3, ErrorCode.unknown_topic_id)]),
                (topic_id, [(7, ErrorCode.unknown_topic_or_partition), (0, ErrorCode.none)]),
            ]
            granted = answer.topics[1].partitions[1]
            assert (granted.leader_id, granted.leader_epoch, granted.isr, granted.partition_epoch) == (1, 0, (1,), 1)
            stale = await send(99)
            assert (stale.error_code, stale.topics) == (ErrorCode.stale_broker_epoch, ())

    run(scenario)


def test_topics_are_created_and_deleted_over_the_wire(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            await node.start_broker(1)
            created = await node.create_topic("orders", 1, **{"min.insync.replicas": "1"})
            assert (created.error_code, created.num_partitions, created.replication_factor) == (ErrorCode.none, 1, 1)
            assert {config.name: config.value for config in created.configs} == {
                "min.insync.replicas": "1",
                "unclean.leader.election.enable": "false",
                "unclean.recovery.strategy": "last-known-leader",
            }
            again = await node.create_topic("orders", 1)
            assert (again.error_code, again.error_message) == (
                ErrorCode.topic_already_exists,
                "Topic 'orders' already exists.",
            )
            wanted = (DeleteTopicState(name="orders", topic_id=None), DeleteTopicState(topic_id=uuid.UUID(int=9)))
            deleted = await node.call(DeleteTopicsRequest(topics=wanted, timeout=timedelta(seconds=1)))
            assert [(result.name, result.error_code) for result in deleted.responses] == [
                ("orders", ErrorCode.none),
                (None, ErrorCode.unknown_topic_id),
            ]
            assert not (await node.image()).topics

    run(scenario)


def test_producer_ids_are_not_given_twice_even_across_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        firsts = []
        for _ in range(2):
            async with running(tmp_path) as node:
                epoch = (await node.register(1)).broker_epoch
                for _ in range(2):
                    answer = await node.call(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
                    assert (answer.error_code, answer.producer_id_len) == (ErrorCode.none, 1000)
                    firsts.append(answer.producer_id_start)
                stale = await node.call(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch + 1))
                assert stale.error_code is ErrorCode.stale_broker_epoch
        assert firsts == [0, 1000, 2000, 3000]

    run(scenario)


# ---- the metadata partition ------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_the_next_change_and_is_answered_as_it_commits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            reader = await node.connect()
            waiting = asyncio.ensure_future(node.fetch(1, wait_s=300.0, client=reader))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await node.register(1)
            answer = await asyncio.wait_for(waiting, 60.0)
            assert answer.high_watermark == 2
            ((header, batch),) = iterate(answer.records)
            assert (header.base_offset, [type(record) for record in decode_records(batch)]) == (1, [RegisterBroker])
            reader.close()

    run(scenario)


def test_a_fetch_with_nothing_new_is_answered_empty_when_its_wait_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            await node.register(1)
            loop = asyncio.get_running_loop()
            began = loop.time()
            answer = await node.fetch(2, wait_s=0.1)
            assert 0.09 < loop.time() - began < 2.0
            assert (answer.error_code, answer.records or b"", answer.high_watermark) == (ErrorCode.none, b"", 2)
            assert (await node.fetch(0, wait_s=0.05, min_bytes=1 << 20)).records, "too little is better than nothing"

    run(scenario)


@pytest.mark.parametrize(
    ("offset", "of", "error"),
    [
        (9, {}, ErrorCode.offset_out_of_range),
        (-1, {}, ErrorCode.offset_out_of_range),
        (0, {"topic_id": uuid.UUID(int=2)}, ErrorCode.unknown_topic_id),
        (0, {"partition": 1}, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_a_fetch_that_cannot_be_served_is_refused_at_once(
    tmp_path: Path, offset: int, of: dict[str, Any], error: ErrorCode
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            answer = await asyncio.wait_for(node.fetch(offset, wait_s=300.0, **of), 60.0)
            assert answer.error_code is error

    run(scenario)


def test_a_small_limit_gives_the_log_batch_by_batch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as node:
            for broker in (1, 2, 3):
                await node.register(broker)
            offsets = []
            for offset in range(3):
                answer = await node.fetch(offset, max_bytes=1)
                offsets.append([header.base_offset for header, _ in iterate(answer.records)])
            assert offsets == [[0], [1], [2]]

    run(scenario)


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_a_change_is_there_whole_or_not_at_all_wherever_its_write_was_torn(tmp_path: Path) -> None:
    async def write() -> tuple[ClusterImage, ClusterImage, int]:
        async with running(tmp_path / "whole") as node:
            await node.start_broker(1)
            await node.start_broker(2)
            for name in ("a", "b", "c"):
                await node.create_topic(name, 1, 2)
            before = await node.image()
            written = sum(len(batch) for _, batch in iterate((await node.fetch(0)).records))
            await node.beat(1, before.brokers[1].epoch, want_fence=True)
            return before, await node.image(), written

    before, after, written = asyncio.run(write())
    assert after.offset - before.offset == 4, "three partitions and a broker change together"
    content = next((tmp_path / "whole" / DIRECTORY).glob("*.log")).read_bytes()
    found = []
    for size in [*range(written, len(content), 37), len(content) - 1, len(content)]:
        torn = tmp_path / f"torn-{size}"
        (torn / DIRECTORY).mkdir(parents=True)
        (torn / DIRECTORY / f"{0:020}.log").write_bytes(content[:size])
        node_ports = NodePorts(RealFiles(torn), Random(1), [].append, [].append)
        log = KafkaMetadataLog(node_ports, 1 << 20, Rules())
        found.append(log.image(log.end))
        log.close()
    assert found[:-1] == [before] * (len(found) - 1)
    assert found[-1] == after


def test_an_answer_is_given_only_when_the_change_is_synced_and_a_failed_sync_ends_the_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        running = asyncio.ensure_future(node.controller.run(node.stopping))
        await node.serving.wait()
        node.connection = await node.connect()
        await node.register(1)
        reader = await node.connect()
        waiting = asyncio.ensure_future(node.fetch(2, wait_s=300.0, client=reader))
        node.files.broken = True
        with pytest.raises(ConnectionLost):
            await node.register(2)
        with pytest.raises(OSError, match="the disk has failed"):
            await running
        with pytest.raises(ConnectionLost):
            await waiting
        assert [event.broker for event in node.trace if event.kind == "broker_registered"] == [1]

    run(scenario)


def test_a_controller_that_cannot_write_its_trace_ends_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)

        def trace(event: TraceEvent) -> None:
            if event.kind == "broker_registered":
                raise OSError(28, "No space left on device")

        node.controller = ControllerNode(CONFIG, replace(node.node_ports, trace=trace))
        running = asyncio.ensure_future(node.controller.run(node.stopping))
        await node.serving.wait()
        node.connection = await node.connect()
        with pytest.raises(ConnectionLost):
            await node.register(1)
        with pytest.raises(OSError, match="No space left"):
            await running

    run(scenario)


def test_a_controller_told_to_stop_closes_its_log_cleanly(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(tmp_path)
        running = asyncio.ensure_future(node.controller.run(node.stopping))
        await node.serving.wait()
        node.stopping.set()
        await running
        assert (tmp_path / DIRECTORY / "clean-shutdown").exists()

    run(scenario)


def test_nothing_is_decided_or_shown_while_a_change_is_being_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, begun, free = RaftNode.append, asyncio.Event(), asyncio.Event()

    async def slow(self: RaftNode, *given: Any) -> None:
        begun.set()
        await free.wait()
        await append(self, *given)

    monkeypatch.setattr(RaftNode, "append", slow)

    async def scenario() -> None:
        async with running(tmp_path) as node:
            clients = [await node.connect() for _ in range(4)]
            rivals = [
                asyncio.ensure_future(node.register(1, incarnation, client=client))
                for incarnation, client in enumerate(clients)
            ]
            await begun.wait()
            assert (await node.fetch(0)).high_watermark == 1
            free.set()
            answers = [(await rival).error_code for rival in rivals]
            assert answers == [ErrorCode.none] + [ErrorCode.duplicate_broker_registration] * 3
            assert (await node.fetch(0)).high_watermark == 2
            for client in clients:
                client.close()

    run(scenario)
