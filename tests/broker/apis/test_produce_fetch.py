"""A broker's data path answers every request, however odd, without harm to itself or to others' records."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16 import request as fetching
from kio.schema.list_offsets.v7 import request as listing
from kio.schema.offset_for_leader_epoch.v4 import request as epochs
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
from images.broker.replication.replica_manager import HIGH_WATERMARKS, PARTITION_METADATA, ReplicaManager
from images.broker.runtime.condition import resolve
from images.broker.runtime.files import read_whole
from images.broker.runtime.server import CloseConnection, Request
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
            **ProduceFetchApis(self.replica_manager, lambda: self.image, sessions, fetch_max_bytes=1 << 20).handlers(),
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

    async def ask(self, api: Api, body: Any, *, version: int | None = None) -> Any:
        """A request from connection 1; the answer, which every version can tell."""
        version = SUPPORTED[api][-1] if version is None else version
        handler = self.handlers[api]
        answer = await handler(Request(api, version, "test", 1, body, {}))
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


def _never_run(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    work.close()
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


# --- Produce ----------------------------------------------------------------------------------------------------------


def test_a_partition_that_changed_hands_while_another_was_waited_for_is_not_acknowledged() -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 1, isr=(1, 2))
        broker.elect(1, 1, index=1, isr=(1, 2))
        waiting = asyncio.ensure_future(broker.produce((0, produced(b"a")), (1, produced(b"b"))))
        await settle()
        broker.elect(2, 2, index=1, isr=(2,))
        broker.partition(1).on_divergence(1, 2, 1, 0)
        assert broker.partition(1).log.end == 0
        broker.elect(1, 3, index=1)
        await broker.produce((1, produced(b"c")))
        broker.follow(0, 1, epoch=1)
        first, second = await waiting
        assert first.error_code is ErrorCode.none
        assert second.error_code is ErrorCode.not_leader_or_follower

    run(scenario)


def test_a_former_leader_answers_with_the_current_leader() -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(2, 1)
        (answer,) = await broker.produce((0, produced(b"a")))
        assert answer.error_code is ErrorCode.not_leader_or_follower
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (2, 1)

    run(scenario)


@pytest.mark.parametrize("acks", [2, -2, MAX_INT32 % 1000, -100])
def test_acks_that_do_not_exist_are_refused_before_anything_is_appended(acks: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        answers = await broker.produce((0, produced(b"a")), (7, None), acks=acks)
        assert [answer.error_code for answer in answers] == [ErrorCode.invalid_required_acks] * 2
        assert broker.partition().log.end == 0

    run(scenario)


def test_each_partition_of_a_produce_is_answered_for_itself() -> None:
    async def scenario() -> None:
        broker = Broker()
        two = produced(b"a") + produced(b"b")
        answers = await broker.produce((0, produced(b"a")), (-1, produced(b"a")), (1, two))
        assert [(answer.index, answer.error_code, answer.base_offset) for answer in answers] == [
            (0, ErrorCode.none, 0),
            (-1, ErrorCode.unknown_topic_or_partition, -1),
            (1, ErrorCode.invalid_record, -1),
        ]

    run(scenario)


def test_of_a_partition_twice_in_a_produce_the_last_batch_counts() -> None:
    async def scenario() -> None:
        broker = Broker()
        answers = await broker.produce((0, produced(b"a")), (0, produced(b"b", b"c")))
        assert [(answer.index, answer.base_offset) for answer in answers] == [(0, 0)]
        assert broker.partition().log.end == 2

    run(scenario)


def test_a_produce_tells_the_log_start_unless_the_log_did_not_look_into_the_batch() -> None:
    async def scenario() -> None:
        broker = Broker()
        (good,) = await broker.produce((0, produced(b"a")))
        (without_sequence,) = await broker.produce((0, batches.build([b"a"], timestamp_ms=5, producer_id=7)))
        (damaged,) = await broker.produce((0, produced(b"a")[:-1] + b"\xff"))
        assert [answer.log_start_offset for answer in (good, without_sequence, damaged)] == [0, 0, -1]
        assert without_sequence.error_code is ErrorCode.invalid_record
        assert damaged.error_code is ErrorCode.corrupt_message

    run(scenario)


def test_a_transactional_batch_is_refused_and_without_a_transactional_id_its_whole_request() -> None:
    async def scenario() -> None:
        broker = Broker()
        content = bytearray(produced(b"a"))
        content[22] |= 0x10
        transactional = bytes(content[:17]) + batches.crc32c(bytes(content[21:])).to_bytes(4) + bytes(content[21:])
        answers = await broker.produce((0, transactional), (1, produced(b"b")))
        assert {answer.error_code for answer in answers} == {ErrorCode.transactional_id_authorization_failed}
        answers = await broker.produce((0, transactional), (1, produced(b"b")), transactional_id="some")
        assert [answer.error_code for answer in answers] == [ErrorCode.invalid_producer_id_mapping, ErrorCode.none]
        assert broker.partition().log.end == 0

    run(scenario)


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    async def scenario() -> None:
        broker = Broker()
        log = broker.partition().log
        log.config = replace(log.config, segment_bytes=100)
        (answer,) = await broker.produce((0, produced(b"x" * 100)))
        assert (answer.error_code, answer.log_start_offset) == (ErrorCode.record_list_too_large, -1)
        (answer,) = await broker.produce((0, produced(b"x")))
        assert answer.error_code is ErrorCode.none

    run(scenario)


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0])
def test_a_produce_that_may_not_wait_does_not(timeout_s: float) -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 1, isr=(1, 2))
        (answer,) = await broker.produce((0, produced(b"a")), timeout_s=timeout_s)
        assert answer.error_code is ErrorCode.request_timed_out

    run(scenario)


def test_a_producer_that_wants_no_answer_learns_of_a_refusal_by_its_connection() -> None:
    async def scenario() -> None:
        broker = Broker()
        assert await broker.produce((0, produced(b"a")), acks=0) is None
        broker.elect(2, 1, index=1, isr=(2,))
        with pytest.raises(CloseConnection, match="t-1: not_leader_or_follower"):
            await broker.produce((0, produced(b"b")), (1, produced(b"c")), acks=0)
        assert broker.partition().log.end == 2

    run(scenario)


# --- Fetch ------------------------------------------------------------------------------------------------------------


def test_of_a_partition_twice_in_a_fetch_the_last_entry_counts() -> None:
    async def scenario() -> None:
        broker = Broker()
        batch = produced(b"a")
        await broker.produce((0, batch))
        answers = await broker.fetch(part(offset=9), part(1), part(), part(-3))
        assert [answer.partition_index for answer in answers] == [0, 1, -3]
        assert [len(answer.records) for answer in answers] == [len(batch), 0, 0]
        assert answers[2].error_code is ErrorCode.unknown_topic_or_partition

    run(scenario)


@pytest.mark.parametrize("max_bytes", [0, 1])
def test_one_batch_is_answered_whatever_the_limit(max_bytes: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        batch = produced(b"a")
        for index in (0, 1):
            await broker.produce((index, batch), (index, batch))
        answers = await broker.fetch(part(), part(1), max_bytes=max_bytes)
        assert [len(answer.records) for answer in answers] == [len(batch), 0]

    run(scenario)


@pytest.mark.parametrize(
    ("max_bytes", "partition_max_bytes"), [(-1, 1 << 20), (MIN_INT32, MIN_INT32), (100, MIN_INT32)]
)
def test_a_limit_below_nothing_gives_no_more_than_one_batch(max_bytes: int, partition_max_bytes: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        batch = produced(b"a")
        for _ in range(5):
            await broker.produce((0, batch))
        (answer,) = await broker.fetch(part(max_bytes=partition_max_bytes), max_bytes=max_bytes)
        assert answer.error_code is ErrorCode.none
        assert len(answer.records) <= len(batch)

    run(scenario)


@pytest.mark.parametrize("replica", [-1, -2, MIN_INT32])
def test_a_consumer_reads_committed_records_only(replica: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        broker.elect(1, 1, isr=(1, 2))
        await broker.produce((0, produced(b"b")), acks=1)
        (answer,) = await broker.fetch(part(), replica=replica)
        assert answer.error_code is ErrorCode.none
        assert [header.base_offset for header, _ in batches.iterate(answer.records)] == [0]

    run(scenario)


@pytest.mark.parametrize("offset", [-1, MIN_INT64, 2, MAX_INT64])
def test_an_offset_outside_the_log_is_out_of_range(offset: int) -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        for replica in (-1, 2):
            (answer,) = await broker.fetch(part(offset=offset, epoch=0), replica=replica)
            assert answer.error_code is ErrorCode.offset_out_of_range

    run(scenario)


def test_a_fetch_that_wants_more_than_it_may_have_is_answered_when_it_has_all_it_may() -> None:
    async def scenario() -> None:
        broker = Broker()
        batch = produced(b"a")
        for _ in range(5):
            await broker.produce((0, batch))
        size = len(batch)
        (answer,) = await broker.fetch(part(), wait_s=60.0, min_bytes=MAX_INT32, max_bytes=size)
        assert len(answer.records) == size

    run(scenario)


@pytest.mark.parametrize("wait_s", [-1.0, 0.0, MIN_INT32 / 1000])
def test_a_fetch_that_may_not_wait_does_not(wait_s: float) -> None:
    async def scenario() -> None:
        (answer,) = await Broker().fetch(part(), wait_s=wait_s)
        assert (answer.error_code, answer.records) == (ErrorCode.none, b"")

    run(scenario)


def test_a_waiting_fetch_is_refused_with_the_new_leader_as_soon_as_leadership_moves() -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 1, isr=(1, 2))
        broker.follow(0, 0, epoch=1)
        follower = asyncio.ensure_future(broker.fetch(part(epoch=1), replica=2, wait_s=60.0))
        await broker.fetch(part(epoch=1), replica=2)  # it has been told the high watermark, so the next one waits
        consumer = asyncio.ensure_future(broker.fetch(part(), wait_s=60.0))
        fencing = asyncio.ensure_future(broker.fetch(part(epoch=1), replica=2, wait_s=60.0))
        await settle()
        broker.elect(2, 2, isr=(2,))
        await settle()
        assert consumer.done()
        assert fencing.done()
        (refused,), (fenced,) = consumer.result(), fencing.result()
        assert refused.error_code is ErrorCode.not_leader_or_follower
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (2, 2)
        assert fenced.error_code is ErrorCode.fenced_leader_epoch
        assert not broker.partition().changed.waiters
        await follower

    run(scenario)


def test_a_fetch_that_is_given_up_on_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        broker = Broker()
        waiting = asyncio.ensure_future(broker.fetch(part(), part(1), wait_s=MAX_INT32 / 1000))
        await settle()
        assert broker.partition(1).changed.waiters
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert not broker.partition().changed.waiters
        assert not broker.partition(1).changed.waiters
        loop: Any = asyncio.get_running_loop()
        assert not [handle for handle in loop._scheduled if handle._callback is resolve]

    run(scenario)


# --- ListOffsets and OffsetForLeaderEpoch -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timestamp", "version", "error", "offset"),
    [
        (MIN_INT64, 7, ErrorCode.unsupported_version, -1),
        (-4, 7, ErrorCode.unsupported_version, -1),
        (-3, 6, ErrorCode.unsupported_version, -1),
        (-3, 7, ErrorCode.none, 1),
        (-2, 1, ErrorCode.none, 0),
        (-1, 1, ErrorCode.none, 2),
        (0, 7, ErrorCode.none, 0),
        (6, 7, ErrorCode.none, 1),
        (8, 7, ErrorCode.none, -1),
        (MAX_INT64, 7, ErrorCode.none, -1),
    ],
)
def test_times_are_looked_up_and_those_that_mean_nothing_are_refused(
    timestamp: int, version: int, error: ErrorCode, offset: int
) -> None:
    async def scenario() -> None:
        broker = Broker()
        for time_ms in (5, 7):
            await broker.produce((0, produced(b"a", timestamp_ms=time_ms)))
        for replica in (-1, -2):
            answer = await broker.offset_at(timestamp, version=version, replica=replica)
            assert (answer.error_code, answer.offset) == (error, offset)

    run(scenario)


@pytest.mark.parametrize("timestamp", [-3, -2, -1, 5])
@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.none),
        (2, ErrorCode.none),
        (1, ErrorCode.fenced_leader_epoch),
        (MIN_INT32, ErrorCode.fenced_leader_epoch),
        (3, ErrorCode.unknown_leader_epoch),
    ],
)
def test_a_list_offsets_of_another_leader_epoch_is_fenced(timestamp: int, epoch: int, error: ErrorCode) -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 2)
        await broker.produce((0, produced(b"a", timestamp_ms=5)))
        answer = await broker.offset_at(timestamp, epoch=epoch)
        assert answer.error_code is error
        found = (int(timestamp == -1), 2) if error is ErrorCode.none else (-1, -1)
        assert (answer.offset, answer.leader_epoch) == found

    run(scenario)


@pytest.mark.parametrize("timestamp", [5, 7, 8, -3])
def test_a_leader_that_may_not_know_all_that_is_committed_denies_nothing(timestamp: int) -> None:
    """Below the LESO its high watermark may be stale: what it does not find among the committed may be committed."""

    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 1, isr=(1, 2))
        for time_ms in (5, 7):
            await broker.produce((0, produced(b"a", timestamp_ms=time_ms)), acks=1)
        broker.follow(0, 1, epoch=1)
        broker.elect(1, 2, isr=(1, 2, 3))
        state = broker.partition().state
        assert (state.high_watermark, state.leader_state.start) == (1, 2)
        answer = await broker.offset_at(timestamp)
        if timestamp == 5:
            assert (answer.error_code, answer.offset) == (ErrorCode.none, 0)
        else:
            assert (answer.error_code, answer.offset) == (ErrorCode.offset_not_available, -1)
        assert (await broker.offset_at(-2)).error_code is ErrorCode.none, "the earliest offset is exempt"

    run(scenario)


def test_undecodable_records_do_not_hinder_a_lookup_by_time() -> None:
    async def scenario() -> None:
        broker = Broker()
        whole = batches.build([b"value"], timestamp_ms=5, compression=batches.Compression.GZIP)
        nonsense = whole[:61] + bytes(len(whole) - 61)
        crc = batches.crc32c(nonsense[batches.CRC_START :])
        await broker.produce((0, nonsense[:17] + crc.to_bytes(4) + nonsense[21:]))
        answer = await broker.offset_at(3)
        assert (answer.error_code, answer.offset, answer.timestamp) == (ErrorCode.none, 0, 5)

    run(scenario)


@pytest.mark.parametrize(
    ("asked", "current", "error", "epoch", "end"),
    [
        (0, -1, ErrorCode.none, 0, 1),
        (1, 1, ErrorCode.none, 1, 1),
        (MIN_INT32, -1, ErrorCode.none, MIN_INT32, 0),
        (-1, -1, ErrorCode.none, -1, -1),
        (MAX_INT32, -1, ErrorCode.none, -1, -1),
        (0, 0, ErrorCode.fenced_leader_epoch, -1, -1),
        (0, MIN_INT32, ErrorCode.fenced_leader_epoch, -1, -1),
        (0, 2, ErrorCode.unknown_leader_epoch, -1, -1),
    ],
)
def test_leader_epochs_are_looked_up_whatever_they_are(
    asked: int, current: int, error: ErrorCode, epoch: int, end: int
) -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        broker.elect(1, 1)
        wanted = epochs.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=asked)
        body = epochs.OffsetForLeaderEpochRequest(
            topics=(epochs.OffsetForLeaderTopic(topic="t", partitions=(wanted, replace(wanted, partition=-1))),),
        )
        answer, missing = (await broker.ask(Api.OFFSET_FOR_LEADER_EPOCH, body)).topics[0].partitions
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (error, epoch, end)
        assert missing.error_code is ErrorCode.unknown_topic_or_partition

    run(scenario)


# --- the files of a broker --------------------------------------------------------------------------------------------


def test_high_watermarks_survive_a_restart_and_a_damaged_checkpoint_costs_only_them() -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        broker.replica_manager.checkpoint_high_watermarks()
        for content, expected in ((None, 1), (b"0\n1\nt 0 \xc2\xb2\n", 0), (b"0\n9\nt 0 1\n", 0), (b"\xff", 0)):
            if content is not None:
                broker.disk.delete(HIGH_WATERMARKS)
                broker.disk.open(HIGH_WATERMARKS).append(content)
            broker.restart()
            broker.elect(2, 5)
            assert broker.partition().state.high_watermark == expected
            assert broker.partition().log.end == 1

    run(scenario)


def test_a_broker_that_leaves_before_it_opened_a_replica_leaves_the_high_watermarks_as_they_were() -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        assert broker.replica_manager.close() is None
        before = read_whole(broker.disk, HIGH_WATERMARKS)
        broker.restart()
        assert broker.replica_manager.close() is None
        assert read_whole(broker.disk, HIGH_WATERMARKS) == before
        assert b"t 0 1" in (before or b"")

    run(scenario)


@pytest.mark.parametrize(
    "content", [b"", b"version: 0\ntopic_id: 0000002a\n", b"\xff" * 40], ids=["empty", "torn", "damaged"]
)
def test_records_of_an_unknown_topic_are_not_deleted(content: bytes) -> None:
    """A replica that starts empty may still be a candidate for leadership, and then everybody loses what it lost."""

    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")))
        assert broker.replica_manager.close() is None
        for index in (0, 1):
            broker.disk.delete(f"t-{index}/{PARTITION_METADATA}")
            broker.disk.open(f"t-{index}/{PARTITION_METADATA}").append(content)
        broker.restart()
        with pytest.raises(OSError, match=f"t-0/{PARTITION_METADATA}"):
            broker.elect(1, 1)
        assert broker.disk.open("t-0/00000000000000000000.log").size() > 0
        broker.disk.delete("t-0")
        broker.restart()
        broker.elect(1, 1)
        assert broker.partition(1).log.end == 0, "nothing was there to be lost"

    run(scenario)


def test_the_remains_of_a_deleted_topic_do_not_become_a_new_topic_of_its_name() -> None:
    async def scenario() -> None:
        broker = Broker()
        await broker.produce((0, produced(b"a")), (1, produced(b"b")))
        assert broker.replica_manager.close() is None
        broker.disk.delete(f"t-0/{PARTITION_METADATA}")
        broker.disk.delete(f"t-1/{PARTITION_METADATA}")
        broker.disk.open(f"t-1/{PARTITION_METADATA}").append(f"version: 0\ntopic_id: {uuid.UUID(int=41)}\n".encode())
        broker.restart()
        broker.elect(1, 1)
        assert [broker.partition(index).log.end for index in (0, 1)] == [0, 0]

    run(scenario)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "error", "diverging"),
    [
        (1, 1, ErrorCode.none, (-1, -1)),
        (2, 3, ErrorCode.none, (-1, -1)),
        (2, 2, ErrorCode.none, (1, 1)),
        (2, 1, ErrorCode.none, (1, 1)),
        (9, 1, ErrorCode.none, (1, 1)),
        (2, 4, ErrorCode.offset_out_of_range, (-1, -1)),
    ],
)
def test_a_consumer_that_gives_its_last_fetched_epoch_is_told_where_its_log_diverges(
    offset: int, last_epoch: int, error: ErrorCode, diverging: tuple[int, int]
) -> None:
    """As in Kafka from Fetch v12 on, for any sender. The log is a record of epoch 1 and two of epoch 3."""

    async def scenario() -> None:
        broker = Broker()
        broker.elect(1, 1)
        await broker.produce((0, produced(b"a")))
        broker.elect(1, 3)
        for value in (b"b", b"c"):
            await broker.produce((0, produced(value)))
        (answer,) = await broker.fetch(part(offset=offset, last_epoch=last_epoch))
        assert answer.error_code is error
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == diverging
        assert bool(answer.records) is (error is ErrorCode.none and diverging == (-1, -1))
        assert answer.high_watermark == (3 if error is ErrorCode.none else -1)

    run(scenario)
