"""Reads that the in-sync followers confirm, of latest offsets and of committed offsets, in a whole cluster whose links
are slow: however many are in one request, and however short the followers' fetches wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7 import request as listing
from kio.schema.offset_fetch.v8 import request as asking

from images.wire.field_values import LATEST
from nemesis.ports import DONE, LinkQuality, both_ways
from tests.scenarios.one_partition import TOPIC, Scene, played
from tests.scenarios.test_rules_of_groups import ONE_PARTITION, coordinator

MANY = tuple(f"many-{number}" for number in range(12))
"""Topics, or groups. Reads of all of them one after the other take longer than a request may."""
ROUND_TRIP_MS = 100
SHORT_WAIT = {"replica.fetch.wait.max.ms": "20"}
LONG_WAIT = {"replica.fetch.wait.max.ms": "10000", "replica.lag.time.max.ms": "30000"}
LAG_MAX_S = 2
LAG_MAX = {"replica.lag.time.max.ms": str(LAG_MAX_S * 1000)}


async def slow_links(scene: Scene) -> None:
    brokers = scene.deployment.brokers
    await scene.deployment.degrade(both_ways(brokers, brokers), LinkQuality(delay_ms=ROUND_TRIP_MS / 2))


async def latest_offsets(scene: Scene, leader: str, topics: Iterable[str]) -> list[ErrorCode]:
    """The error of each topic's partition, in the order of the topics."""
    wanted = listing.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=LATEST)
    request = listing.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=tuple(listing.ListOffsetsTopic(name=name, partitions=(wanted,)) for name in topics),
    )
    answer = await scene.ask(leader, request)
    assert [topic.name for topic in answer.topics] == list(topics)
    return [part.error_code for topic in answer.topics for part in topic.partitions]


async def committed_offsets(scene: Scene, broker: str, groups: Sequence[str]) -> list[ErrorCode]:
    """The error of each group, in the order of the groups."""
    topic = asking.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=(0,))
    wanted = tuple(asking.OffsetFetchRequestGroup(group_id=group, topics=(topic,)) for group in groups)
    answer = await scene.ask(broker, asking.OffsetFetchRequest(groups=wanted))
    assert [group.group_id for group in answer.groups] == list(groups)
    return [group.error_code for group in answer.groups]


def test_the_latest_offsets_of_many_partitions_are_confirmed_together() -> None:
    async def scenario(scene: Scene) -> list[ErrorCode]:
        leader = scene.replicas[0]
        for topic in MANY:
            await scene.create_topic(topic, 3)
            await scene.lead(topic, leader)
        await slow_links(scene)
        return await latest_offsets(scene, leader, MANY)

    assert played(scenario) == [ErrorCode.none] * len(MANY)


def test_the_committed_offsets_of_many_groups_are_confirmed_together() -> None:
    async def scenario(scene: Scene) -> list[ErrorCode]:
        broker = await coordinator(scene)
        await slow_links(scene)
        return await committed_offsets(scene, broker, MANY)

    assert played(scenario, settings=ONE_PARTITION) == [ErrorCode.none] * len(MANY)


def test_a_silent_follower_keeps_back_the_latest_offset_of_its_own_partition_alone() -> None:
    async def scenario(scene: Scene) -> list[ErrorCode]:
        leader, silent, other = scene.deployment.brokers
        for topic, follower in (("silent", silent), ("other", other)):
            await scene.create_topic(topic, 2)
            admin = scene.deployment.admin
            assert (await admin.reassign(topic, 0, [leader, follower])).outcome == DONE
            while list(await admin.replicas(topic, 0)) != [leader, follower]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await scene.lead(topic, leader)
        await scene.deployment.cut(both_ways([leader], [silent]))
        return await latest_offsets(scene, leader, ("silent", "other"))

    assert played(scenario) == [ErrorCode.offset_not_available, ErrorCode.none]


def test_a_latest_offset_is_told_though_round_trips_take_longer_than_fetches_wait() -> None:
    async def scenario(scene: Scene) -> list[ErrorCode]:
        leader = (await scene.deployment.leaders())[TOPIC, 0]
        assert leader is not None
        await slow_links(scene)
        return [error for _ in range(5) for error in await latest_offsets(scene, leader, [TOPIC])]

    assert played(scenario, settings=SHORT_WAIT) == [ErrorCode.none] * 5


def test_committed_offsets_are_told_though_round_trips_take_longer_than_fetches_wait() -> None:
    async def scenario(scene: Scene) -> list[ErrorCode]:
        broker = await coordinator(scene)
        await slow_links(scene)
        return [error for _ in range(5) for error in await committed_offsets(scene, broker, ["g"])]

    assert played(scenario, settings=ONE_PARTITION | SHORT_WAIT) == [ErrorCode.none] * 5


def test_a_latest_offset_is_told_at_once_however_long_the_fetches_of_idle_followers_wait() -> None:
    """The answer to a waiting fetch tells its follower of the read, so that the next fetch confirms it."""

    async def scenario(scene: Scene) -> tuple[list[ErrorCode], float]:
        leader = (await scene.deployment.leaders())[TOPIC, 0]
        assert leader is not None
        loop = asyncio.get_running_loop()
        await asyncio.sleep(25)
        began_s = loop.time()
        return await latest_offsets(scene, leader, [TOPIC]), loop.time() - began_s

    errors, seconds = played(scenario, settings=LONG_WAIT)
    assert errors == [ErrorCode.none]
    assert seconds < 1


@pytest.mark.parametrize("of_group", [False, True])
def test_reads_go_on_without_a_silent_follower_though_nothing_is_appended(of_group: bool) -> None:
    """It has the whole log, so that it does not lag. It leaves the ISR all the same, since the reads wait for it."""

    async def scenario(scene: Scene) -> tuple[ErrorCode, ErrorCode]:
        leader = (await scene.deployment.leaders())[TOPIC, 0] or ""
        if of_group:
            leader = await coordinator(scene)

        async def read() -> ErrorCode:
            answers = committed_offsets(scene, leader, ["g"]) if of_group else latest_offsets(scene, leader, [TOPIC])
            return (await answers)[0]

        while await read() is not ErrorCode.none:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        silent = next(broker for broker in scene.deployment.brokers if broker != leader)
        await scene.deployment.cut(both_ways([leader], [silent]))
        first = await read()
        await asyncio.sleep(2 * LAG_MAX_S)
        return first, await read()

    refused = ErrorCode.coordinator_load_in_progress if of_group else ErrorCode.offset_not_available
    assert played(scenario, settings=ONE_PARTITION | LAG_MAX) == (refused, ErrorCode.none)


@pytest.mark.parametrize(("minimum", "members"), [(1, 1), (2, 3)])
def test_silent_followers_stay_where_too_few_would_be_left_to_confirm_reads(minimum: int, members: int) -> None:
    async def scenario(scene: Scene) -> int:
        leader, *others = scene.replicas
        assert await latest_offsets(scene, leader, [TOPIC]) == [ErrorCode.none]
        await scene.deployment.cut(both_ways([leader], others))
        assert await latest_offsets(scene, leader, [TOPIC]) == [ErrorCode.offset_not_available]
        await asyncio.sleep(2 * LAG_MAX_S)
        view = await scene.deployment.admin.describe(TOPIC)
        assert view is not None
        return len(view.partitions[0].isr)

    assert played(scenario, settings=LAG_MAX | {"min.insync.replicas": str(minimum)}) == members
