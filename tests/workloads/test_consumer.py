"""A consumer reads what is there, once and in order, and says what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from images.wire.batch import build
from tests.workloads.scripted_cluster import TOPIC, ScriptedCluster
from tests.workloads.virtual_time import run
from workloads.clients.native import Client, ClientTimeouts, CompletedFetch, Consumer, OffsetAnswer

TIMEOUTS = ClientTimeouts(request_timeout_s=1.0, connect_timeout_s=1.0, backoff_s=0.05, backoff_s_max=0.4)


def with_consumer(
    test: Callable[[ScriptedCluster, Consumer], Awaitable[None]],
    *,
    brokers: int = 1,
    partitions: int = 1,
    on_fetch: Callable[[str, int, int], int] | None = None,
) -> None:
    async def main() -> None:
        async with ScriptedCluster(brokers=brokers, partitions=partitions) as cluster:
            client = Client(cluster.addresses, "test", Random(5), TIMEOUTS)
            consumer = Consumer(client, on_fetch=on_fetch) if on_fetch else Consumer(client)
            consumer.assign([(TOPIC, partition) for partition in range(partitions)])
            try:
                await test(cluster, consumer)
            finally:
                await consumer.close()
                await client.close()

    run(main())


async def read(consumer: Consumer, polls: int = 20) -> list[CompletedFetch]:
    return [fetched for _ in range(polls) for fetched in await consumer.poll(1.0)]


def values(fetched: list[CompletedFetch], partition: int = 0) -> list[tuple[int, int]]:
    return [
        (record.offset, int(record.value or b""))
        for one in fetched
        if one.partition == partition
        for record in one.records
    ]


def fill(cluster: ScriptedCluster, partition: int, *numbers: int, epoch: int = 0) -> None:
    for number in numbers:
        cluster.logs[partition].append(build([b"%d" % number], timestamp_ms=0), epoch)


def test_every_record_of_every_partition_is_read_once_and_in_order() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 10, 11, 12)
        fill(cluster, 1, 20, 21)
        fetched = await read(consumer, 3)
        fill(cluster, 0, 13)
        fetched += await read(consumer, 6)
        assert values(fetched, 0) == [(0, 10), (1, 11), (2, 12), (3, 13)]
        assert values(fetched, 1) == [(0, 20), (1, 21)]
        assert {one.leader_epoch for one in fetched} == {0}
        assert consumer.position(TOPIC, 0) == 4

    with_consumer(test, brokers=2, partitions=2)


def test_a_position_inside_a_batch_skips_what_lies_before_it() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        cluster.logs[0].append(build([b"1", b"2", b"3"], timestamp_ms=0), 0)
        consumer.seek(TOPIC, 0, 1)
        assert values(await read(consumer, 1)) == [(1, 2), (2, 3)]

    with_consumer(test)


def test_a_record_carries_the_epoch_it_was_appended_in() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, epoch=3)
        fill(cluster, 0, 2, epoch=5)
        cluster.leaders[0] = (1, 6)
        (fetched,) = await read(consumer, 1)
        assert [record.leader_epoch for record in fetched.records] == [3, 5]
        assert fetched.leader_epoch == 6

    with_consumer(test)


def test_an_idle_consumer_waits_at_the_broker_instead_of_asking_again_and_again() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        while loop.time() < begun_s + 10:
            assert all(not fetched.records for fetched in await consumer.poll(5.0))
        assert len(cluster.fetched) <= 2 * 21  # two looks at the log for each fetch of half a second

    with_consumer(test)


def test_a_new_leader_is_followed_by_its_epoch_and_nothing_is_read_twice() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2)
        fetched = await read(consumer, 1)
        cluster.leaders[0] = (2, 1)
        fill(cluster, 0, 3)
        fetched += await read(consumer, 8)
        assert values(fetched) == [(0, 1), (1, 2), (2, 3)]
        assert {one.error for one in fetched} <= {None, "FENCED_LEADER_EPOCH", "NOT_LEADER_OR_FOLLOWER"}
        assert cluster.fetched[-1] == (0, 1)

    with_consumer(test, brokers=2)


def test_stale_metadata_never_takes_a_consumer_back_to_an_older_epoch() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        cluster.leaders[0] = (2, 4)
        fill(cluster, 0, 1)
        await consumer.client.refresh()
        cluster.stale = {1: [(1, 3)], 2: [(1, 3)]}
        for _ in range(3):
            assert await consumer.client.refresh()
        assert values(await read(consumer, 1)) == [(0, 1)]
        assert {epoch for _, epoch in cluster.fetched} == {4}

    with_consumer(test, brokers=2)


@pytest.mark.parametrize(("code", "name"), [(6, "NOT_LEADER_OR_FOLLOWER"), (74, "FENCED_LEADER_EPOCH"),
                                            (75, "UNKNOWN_LEADER_EPOCH"),
                                            (100, "UNKNOWN_TOPIC_ID"), (78, "OFFSET_NOT_AVAILABLE")])  # fmt: skip
def test_an_error_is_returned_and_reading_goes_on(code: int, name: str) -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1)
        cluster.fetch_errors.append(code)
        fetched = await read(consumer, 2)
        assert [one.error for one in fetched] == [name, None]
        assert values(fetched) == [(0, 1)]

    with_consumer(test)


def test_a_dead_broker_is_reported_as_a_lost_connection() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1)
        await read(consumer, 1)
        await cluster.servers[0].close()
        assert {one.error for one in await read(consumer, 5)} == {"connection"}

    with_consumer(test)


def test_a_position_beyond_the_log_returns_to_its_end_and_one_before_it_to_its_start() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2, 3)
        cluster.logs[0].start = 1
        await consumer.client.refresh()
        for position, nearest in [(9, 3), (0, 1), (2, 2)]:
            consumer.seek(TOPIC, 0, position)
            assert await consumer.return_to_log(TOPIC, 0)
            assert consumer.position(TOPIC, 0) == nearest
        cluster.list_errors.append(78)
        assert not await consumer.return_to_log(TOPIC, 0)

    with_consumer(test)


def test_the_token_of_a_fetch_comes_back_with_its_answer_and_was_drawn_before_it_was_sent() -> None:
    asked: list[tuple[str, int, int]] = []

    def on_fetch(topic: str, partition: int, position: int) -> int:
        asked.append((topic, partition, position))
        return len(asked) - 1

    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1)
        for _ in range(4):
            await read(consumer, 1)
            fill(cluster, 0, 2)
        for fetched in await read(consumer, 1):
            assert asked[fetched.token] == (TOPIC, fetched.partition, fetched.position)
        assert len(cluster.fetched) >= len(asked)

    with_consumer(test, on_fetch=on_fetch)


def test_a_fetch_made_obsolete_by_a_seek_comes_back_without_records() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        await consumer.poll(0.1)  # a fetch at 0 now waits at the broker
        consumer.seek(TOPIC, 0, 1)
        fill(cluster, 0, 1, 2)
        fetched = await read(consumer, 2)
        assert [one.position for one in fetched] == [0, 1]
        assert values(fetched) == [(1, 2)]

    with_consumer(test)


def test_end_and_beginning_offsets_carry_the_epoch_of_the_leader() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2)
        cluster.leaders[0] = (1, 7)
        assert await consumer.end_offset(TOPIC, 0) == OffsetAnswer(2, 7)
        assert await consumer.beginning_offset(TOPIC, 0) == OffsetAnswer(0, 7, epoch=7)
        cluster.list_errors.append(78)
        assert await consumer.end_offset(TOPIC, 0) == OffsetAnswer(error="OFFSET_NOT_AVAILABLE")
        cluster.leaders[0] = (1, 8)
        assert await consumer.end_offset(TOPIC, 0) == OffsetAnswer(error="FENCED_LEADER_EPOCH")
        await asyncio.sleep(0.1)
        assert await consumer.end_offset(TOPIC, 0) == OffsetAnswer(2, 8)

    with_consumer(test)
