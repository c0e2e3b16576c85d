"""ListOffsets and OffsetForLeaderEpoch, whatever they ask for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7 import request as listing
from kio.schema.offset_for_leader_epoch.v4 import request as epochs

from images.broker.replication.partition import ReplicaFetch
from images.wire import batch as batches
from images.wire.field_values import LATEST
from images.wire.messages import Api
from tests.broker.apis.data_path import MAX_INT32, MAX_INT64, MIN_INT32, MIN_INT64, Broker, produced, run


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


def latest_of(*partitions: int) -> listing.ListOffsetsRequest:
    """A client's request for the latest offsets of these partitions."""
    wanted = tuple(
        listing.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=LATEST)
        for index in partitions
    )
    topic = listing.ListOffsetsTopic(name="t", partitions=wanted)
    return listing.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=(topic,))


def answered_at_once(broker: Broker, index: int) -> bool:
    """Whether a fetch of replica 2, which has nothing to get, is answered at once: it is waited for."""
    fetch = ReplicaFetch(2, 1, 1, 0, -1)
    partition = broker.partition(index)
    fetched = partition.fetch_for_replica(fetch, 9, broker.replica_manager.active, 0, False)
    partition.on_fetch_answered(2, 9)
    return fetched.urgent


@pytest.mark.parametrize("cancelled", [True, False])
def test_no_read_of_a_request_outlives_it(cancelled: bool) -> None:
    async def scenario() -> None:
        broker = Broker()
        for index in (0, 1):
            broker.elect(1, 1, index=index, isr=(1, 2))
            assert answered_at_once(broker, index), "the first fetch"
            assert not answered_at_once(broker, index)
        waiting = asyncio.ensure_future(broker.ask(Api.LIST_OFFSETS, latest_of(0, 1)))
        await asyncio.sleep(0)
        begun = [event.partition for event in broker.trace if event.kind == "latest_asked"]
        assert begun == [0, 1]
        if cancelled:
            waiting.cancel()
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        if cancelled:
            assert isinstance(outcome, asyncio.CancelledError)
        else:
            assert errors(outcome) == [ErrorCode.offset_not_available] * 2
        assert not answered_at_once(broker, 0)
        assert not answered_at_once(broker, 1)

    run(scenario)


def test_no_read_begins_of_a_partition_that_is_named_twice_or_led_elsewhere() -> None:
    async def scenario() -> None:
        broker = Broker()
        broker.elect(2, 1, index=1, isr=(1, 2))
        assert errors(await broker.ask(Api.LIST_OFFSETS, latest_of(0, 1))) == [
            ErrorCode.none,
            ErrorCode.not_leader_or_follower,
        ]
        refused = await broker.ask(Api.LIST_OFFSETS, latest_of(0, 1, 0))
        assert errors(refused) == [ErrorCode.invalid_request, ErrorCode.not_leader_or_follower]
        assert [event.partition for event in broker.trace if event.kind == "latest_asked"] == [0]

    run(scenario)


def errors(answer: Any) -> list[ErrorCode]:
    return [part.error_code for part in answer.topics[0].partitions]


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


@pytest.mark.parametrize("compression", list(batches.Compression))
@pytest.mark.parametrize("delta", [0, 40])
def test_no_offset_delta_of_a_record_hinders_a_lookup_by_time(compression: batches.Compression, delta: int) -> None:
    """The log starts within the batch, and no record says that it is there, or one that it is above the end of the log.
    Uncompressed the batch is refused; compressed it would end each leader that is asked."""

    async def scenario() -> None:
        broker = Broker()
        (part,) = await broker.produce((0, with_second_delta(delta, compression)))
        if compression is batches.Compression.NONE:
            assert part.error_code == ErrorCode.invalid_record
            return
        assert part.error_code == ErrorCode.none
        broker.partition().delete_records(1)
        for time_ms in (-3, 5):
            answer = await broker.offset_at(time_ms)
            assert (answer.error_code, answer.offset, answer.timestamp) == (ErrorCode.none, 1, 5)

    run(scenario)


@pytest.mark.parametrize("compression", list(batches.Compression)[:2])
@pytest.mark.parametrize("claimed", [3, 5, 9])
def test_the_largest_timestamp_of_all_is_told_though_a_header_lies(
    compression: batches.Compression, claimed: int
) -> None:
    """With one that no record has, the answer would be that there are no records, as long as the batch is there."""

    async def scenario() -> None:
        broker = Broker()
        whole = batches.build([b"a", b"b"], timestamp_ms=5, compression=compression)
        lying = whole[:35] + claimed.to_bytes(8) + whole[43:]
        (part,) = await broker.produce((0, recomputed(lying)))
        assert part.error_code == ErrorCode.none
        told = 5 if compression is batches.Compression.NONE else claimed
        for start in (0, 1):
            broker.partition().delete_records(start)
            answer = await broker.offset_at(-3)
            assert (answer.error_code, answer.offset) == (ErrorCode.none, start)
            assert answer.timestamp in (5, told)

    run(scenario)


def with_second_delta(delta: int, compression: batches.Compression) -> bytes:
    """A batch of two records, whose second has another offset delta than 1."""
    plain = bytearray(batches.build([b"a", b"b"], timestamp_ms=5))
    at = batches.HEADER_BYTES + (len(plain) - batches.HEADER_BYTES) // 2 + 3
    assert plain[at] == 2, "1 as a zigzag varint"
    plain[at] = 2 * delta
    return batches._compressed(recomputed(plain), compression) if compression else recomputed(plain)


def recomputed(batch: bytes | bytearray) -> bytes:
    """With the CRC of its content."""
    crc = batches.crc32c(bytes(batch[batches.CRC_START :]))
    return bytes(batch[:17]) + crc.to_bytes(4) + bytes(batch[batches.CRC_START :])


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
