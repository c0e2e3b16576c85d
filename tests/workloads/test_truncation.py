"""A consumer notices that the log was cut behind its back, and says so or goes back to where logs part (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.workloads.scripted_cluster import TOPIC, Log, ScriptedCluster
from tests.workloads.test_consumer import TIMEOUTS, fill, read, values
from tests.workloads.virtual_time import run
from workloads.clients.native import (
    Client,
    CompletedFetch,
    Consumer,
    ConsumerRules,
    LogTruncationError,
    OffsetAndEpoch,
    OffsetOutOfRangeError,
    Truncation,
)

P0 = (TOPIC, 0)


def with_consumer(test: Callable[[ScriptedCluster, Consumer], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with ScriptedCluster(brokers=2) as cluster:
            client = Client(cluster.addresses, "test", Random(5), TIMEOUTS)
            consumer = Consumer(client, **options)
            consumer.assign([P0])
            try:
                await test(cluster, consumer)
            finally:
                await consumer.close()
                await client.close()

    run(main())


async def cut_and_grow(cluster: ScriptedCluster, consumer: Consumer) -> None:
    """The consumer reads four records; then the log is cut to two, in an unclean election, and grows to six."""
    fill(cluster, 0, 1, 2, 3, 4)
    assert values(await read(consumer, 1)) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    cluster.logs[0].cut(2)
    cluster.leaders[0] = (2, 1)
    fill(cluster, 0, 30, 40, 50, 60, epoch=1)


def test_without_a_policy_the_truncation_is_raised_until_the_position_is_moved() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        await cut_and_grow(cluster, consumer)
        with pytest.raises(LogTruncationError) as raised:
            await read(consumer)
        assert raised.value.truncation_offsets == {P0: OffsetAndEpoch(2, 0)}
        assert isinstance(raised.value, OffsetOutOfRangeError)
        with pytest.raises(LogTruncationError):
            await consumer.poll(1.0)
        consumer.seek(*P0, *raised.value.truncation_offsets[P0] or ())
        assert values(await read(consumer, 3)) == [(2, 30), (3, 40), (4, 50), (5, 60)]

    with_consumer(test)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_with_a_policy_the_position_goes_back_to_the_divergence(reset: str) -> None:
    truncations: list[Truncation] = []

    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        await cut_and_grow(cluster, consumer)
        assert values(await read(consumer, 5)) == [(2, 30), (3, 40), (4, 50), (5, 60)]
        assert truncations == [Truncation(OffsetAndEpoch(4, 0), OffsetAndEpoch(2, 0))]
        assert consumer.next_offsets() == {P0: OffsetAndEpoch(6, 1)}

    with_consumer(test, reset=reset, on_truncation=lambda topic, partition, truncation: truncations.append(truncation))


def test_a_consumer_without_validation_misses_records_written_below_its_position() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        await cut_and_grow(cluster, consumer)
        assert values(await read(consumer, 5)) == [(4, 50), (5, 60)]
        assert cluster.epochs_asked == []

    with_consumer(test, rules=ConsumerRules(validate_position=False))


def test_a_position_is_validated_once_for_each_leader_and_never_without_an_epoch() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2, 3)
        consumer.seek(*P0, 1)
        assert values(await read(consumer, 3)) == [(1, 2), (2, 3)]
        assert cluster.epochs_asked == []
        cluster.leaders[0] = (2, 1)
        await read(consumer, 6)
        fill(cluster, 0, 4, epoch=1)
        assert values(await read(consumer, 3)) == [(3, 4)]
        assert cluster.epochs_asked == [0]

    with_consumer(test)


def test_a_leader_that_cannot_answer_yet_is_asked_again_before_anything_is_fetched() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2)
        cluster.epoch_errors.extend((5, 6))
        consumer.seek(*P0, 1, 0)
        assert values(await read(consumer, 2)) == [(1, 2)]
        assert cluster.epochs_asked == [0, 0, 0]

    with_consumer(test)


def test_a_position_of_an_epoch_ahead_of_metadata_waits_for_newer_metadata() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2, epoch=0)
        fill(cluster, 0, 3, epoch=3)
        consumer.seek(*P0, 3, 3)
        assert await read(consumer, 3) == []
        assert (cluster.fetched, cluster.epochs_asked) == ([], [])
        cluster.leaders[0] = (1, 3)
        fill(cluster, 0, 4, epoch=3)
        assert values(await read(consumer, 3)) == [(3, 4)]

    with_consumer(test)


def test_without_the_rule_a_leader_that_cannot_know_the_epoch_yet_reports_a_truncation() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2, epoch=0)  # a deposed leader, which the epoch of the position has not reached
        consumer.seek(*P0, 3, 3)
        with pytest.raises(LogTruncationError):
            await read(consumer, 3)

    with_consumer(test, rules=ConsumerRules(wait_for_position_epoch=False))


@pytest.mark.parametrize("checked", [True, False])
def test_a_fetch_sent_before_a_seek_to_another_epoch_counts_exactly_without_the_rule(checked: bool) -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        cluster.leaders[0] = (1, 2)
        fill(cluster, 0, 1, epoch=0)
        consumer.seek(*P0, 1)
        assert await consumer.poll(0.1) == []  # a fetch at 1 now waits at the broker
        consumer.seek(*P0, 1, 1)  # the log has no record of epoch 1
        fill(cluster, 0, 2, epoch=2)
        if checked:
            with pytest.raises(LogTruncationError):
                assert values(await read(consumer, 3)) == []
        else:
            assert values(await read(consumer, 3)) == [(1, 2)]
            assert cluster.epochs_asked == []

    with_consumer(test, rules=ConsumerRules(ignore_stale_fetch_answer=checked))


def test_the_end_of_the_log_comes_with_the_epoch_of_the_record_before_it() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        async def epoch() -> int:
            answer = await consumer.end_position(*P0)
            assert (answer.offset, answer.error) == (cluster.logs[0].end, None)
            return answer.epoch

        assert await epoch() == -1
        fill(cluster, 0, 1)
        assert await epoch() == 0
        cluster.leaders[0] = (1, 3)
        await asyncio.sleep(0.1)
        assert (await consumer.end_position(*P0)).error == "FENCED_LEADER_EPOCH"
        await asyncio.sleep(0.1)
        assert await epoch() == 0
        fill(cluster, 0, 2, epoch=3)
        assert await epoch() == 3

    with_consumer(test)


def test_the_end_of_a_log_without_records_comes_without_an_epoch() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        cluster.leaders[0] = (1, 3)
        answer = await consumer.end_position(*P0)
        assert (answer.offset, answer.epoch) == (0, -1)

    with_consumer(test)


def test_a_consumer_reset_to_the_latest_offset_notices_that_the_log_was_cut_below_it() -> None:
    truncations: list[Truncation] = []

    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2, 3, 4)
        consumer.seek(*P0, 9)
        await read(consumer, 3)
        assert consumer.position(*P0) == 4
        cluster.logs[0].cut(2)
        cluster.leaders[0] = (2, 1)
        fill(cluster, 0, 30, 40, 50, 60, epoch=1)
        assert values(await read(consumer, 5)) == [(2, 30), (3, 40), (4, 50), (5, 60)]
        assert truncations == [Truncation(OffsetAndEpoch(4, 0), OffsetAndEpoch(2, 0))]

    with_consumer(
        test, reset="latest", on_truncation=lambda topic, partition, truncation: truncations.append(truncation)
    )


def test_out_of_range_is_returned_and_then_reset_by_the_policy() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2)
        consumer.seek(*P0, 9)
        fetched = await read(consumer, 3)
        assert [one.error for one in fetched if one.error] == ["OFFSET_OUT_OF_RANGE"]
        assert values(fetched) == [(0, 1), (1, 2)]

    with_consumer(test, reset="earliest")


@pytest.mark.parametrize(("reset", "goes_on"), [("earliest", [(2, 3), (3, 4)]), ("latest", [(4, 5)])])
def test_a_consumer_below_the_log_start_goes_on_where_the_policy_says(reset: str, goes_on: list[object]) -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2, 3, 4)
        cluster.logs[0].start = 2
        fetched = await read(consumer, 3)
        assert [one.error for one in fetched if one.error] == ["OFFSET_OUT_OF_RANGE"]
        fill(cluster, 0, 5)
        assert values([*fetched, *await read(consumer, 1)])[: len(goes_on)] == goes_on

    with_consumer(test, reset=reset)


def test_without_a_policy_out_of_range_is_returned_then_raised_until_the_position_is_moved() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2, 3)
        cluster.logs[0].start = 2
        assert [one.error for one in await consumer.poll(1.0)] == ["OFFSET_OUT_OF_RANGE"]
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError, match=r"does not have the position: .*-0 at 0") as raised:
                await consumer.poll(1.0)
            assert not isinstance(raised.value, LogTruncationError)
            assert raised.value.positions == {P0: 0}
        consumer.seek(*P0, 2)
        assert values(await read(consumer, 1)) == [(2, 3)]

    with_consumer(test)


def test_an_offset_found_by_time_is_sought_with_its_epoch() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2)
        answer = (await consumer.offsets_for_times({P0: 0}))[P0]
        assert (answer.offset, answer.epoch) == (0, 0)
        consumer.seek(*P0, 2, answer.epoch)
        cluster.logs[0].cut(1)
        cluster.leaders[0] = (2, 1)
        with pytest.raises(LogTruncationError):
            await read(consumer)
        await asyncio.sleep(0)

    with_consumer(test)


def test_records_fetched_ahead_are_neither_delivered_after_a_seek_nor_counted_as_delivered() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        fill(cluster, 0, 1, 2)
        assert values(await read(consumer, 1)) == [(0, 1), (1, 2)]
        await consumer.poll(0.01)  # leaves a fetch waiting at the broker
        fill(cluster, 0, 3)
        await asyncio.sleep(2)
        assert consumer.position(*P0) == 3
        assert consumer.next_offsets() == {P0: OffsetAndEpoch(2, 0)}
        consumer.seek(*P0, 0)
        assert values(await read(consumer, 3)) == [(0, 1), (1, 2), (2, 3)]
        assert consumer.next_offsets() == {P0: OffsetAndEpoch(3, 0)}

    with_consumer(test)


async def create_anew(cluster: ScriptedCluster, consumer: Consumer) -> None:
    """The consumer reads four records of leader epoch 3; then the topic is deleted and created anew, with six."""
    cluster.leaders[0] = (1, 3)
    fill(cluster, 0, 1, 2, 3, 4, epoch=3)
    assert values(await read(consumer, 1)) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    cluster.topic_id, cluster.logs, cluster.leaders = UUID(int=43), [Log()], [(1, 0)]
    fill(cluster, 0, 10, 20, 30, 40, 50, 60)


def test_a_topic_that_is_created_anew_is_read_by_the_policy_and_no_offset_of_the_deleted_one_is_committed() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        await create_anew(cluster, consumer)
        cluster.list_errors += [78] * 3
        fetched: list[CompletedFetch] = []
        during_reset = []
        for _ in range(200):
            fetched += await consumer.poll(0.01)
            if 0 < len(cluster.list_errors) < 3:
                during_reset.append(consumer.next_offsets()[P0])
        assert set(during_reset) == {OffsetAndEpoch(0)}
        assert values(fetched) == [(0, 10), (1, 20), (2, 30), (3, 40), (4, 50), (5, 60)]
        assert consumer.next_offsets() == {P0: OffsetAndEpoch(6, 0)}

    with_consumer(test, reset="earliest")


def test_without_a_policy_a_topic_that_is_created_anew_is_read_after_a_seek() -> None:
    async def test(cluster: ScriptedCluster, consumer: Consumer) -> None:
        await create_anew(cluster, consumer)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError):
                await read(consumer)
        consumer.seek(*P0, 4)
        assert values(await read(consumer, 2)) == [(4, 50), (5, 60)]

    with_consumer(test)
