"""New leaders and unclean restarts of a running cluster (Kafka Replication Correctness §6.4.1 and §6.5.1)."""

from __future__ import annotations

import asyncio

import pytest

from nemesis.ports import KeepUnsynced, Link, LinkQuality, both_ways
from tests.scenarios.one_partition import RECORDS, TOPIC, Scene, played
from workloads.clients.native import AdminClient, Client, Consumer, Producer

CHECKPOINT_S = 20
"""Longer than the deleted topic and the new one are written together."""


def test_6_4_1_a_new_leader_that_runs_has_a_stale_high_watermark_until_its_isr_has_reached_its_start() -> None:
    """The old leader commits a record, and falls before either follower hears of it."""

    async def scenario(scene: Scene) -> None:
        deployment = scene.deployment
        leader, *followers = scene.replicas
        await deployment.degrade([Link(leader, follower) for follower in followers], LinkQuality(delay_ms=500))
        since = len(scene.trace)
        appended = asyncio.ensure_future(scene.append())
        while not _watermark(scene, leader, since):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await deployment.cut([Link(leader, follower) for follower in followers])
        await deployment.cut(both_ways([followers[0]], [followers[1]]))
        await scene.kill(leader)
        elected = await scene.until("became_leader", since=since)
        (new,) = (name for name in followers if scene.events(name, "became_leader", since))
        assert elected.offset == elected.log_end == RECORDS + 1, "the new leader has the record"
        await asyncio.sleep(2)
        assert not _watermark(scene, new, since), "and does not know that it is committed"
        assert await deployment.admin.offsets(TOPIC, 0) is None
        await deployment.heal_links(both_ways([followers[0]], [followers[1]]))
        while not _watermark(scene, new, since):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.gather(appended)

    played(scenario, settings={"replica.lag.time.max.ms": "30000"})


def _watermark(scene: Scene, leader: str, since: int) -> bool:
    """Whether the leader knows that the record behind the first ones is committed."""
    marks = (event for event in scene.events(leader, "high_watermark", since) if event.topic == TOPIC)
    return any(event.high_watermark > RECORDS for event in marks)


@pytest.mark.parametrize("off", [(), ("registration_waits_for_fencing", "unclean_leaves_isr")])
def test_6_5_1_case_1_a_running_leader_that_restarts_uncleanly_stays_out_until_it_has_caught_up(
    off: tuple[str, ...],
) -> None:
    """Either of two rules takes it out of leadership, ISR and ELR."""

    async def scenario(scene: Scene) -> bool:
        leader, other, third = scene.replicas
        since = len(scene.trace)
        await scene.deployment.power_off(leader, KeepUnsynced.NOTHING)
        await scene.deployment.start(leader)
        await scene.happens("registered", node=leader, since=since)
        await scene.happens("broker_unfenced", broker=leader, since=since) if not off else await asyncio.sleep(3)
        changes = scene.changes(since)
        left = bool(changes) and set(changes[0].members) == scene.ids(other, third)
        if off:
            return left
        assert changes[0].leader in scene.ids(other, third)
        assert not changes[0].detail["elr"]
        await scene.until("partition_changed", member=leader, since=since)
        ends = [event.log_end for event in scene.events(leader, "appended", since)]
        assert max(ends) == RECORDS, "it has all the committed records again"
        return left

    assert played(scenario, *off) == (not off)


@pytest.mark.parametrize("off", [(), ("unclean_leaves_elr",)])
def test_6_5_1_case_2_a_running_member_of_the_elr_that_loses_its_log_is_a_candidate_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    async def scenario(scene: Scene) -> list[int]:
        leader, eligible, third = scene.replicas
        since = len(scene.trace)
        await scene.kill(third)
        await scene.until("partition_changed", isr=scene.ids(leader, eligible), since=since)
        await scene.kill(eligible)
        await scene.until("partition_changed", isr=scene.ids(leader), since=since)
        assert scene.changes()[-1].detail["elr"] == list(scene.ids(eligible))
        await scene.deployment.cut(both_ways([leader], [eligible]))
        await scene.deployment.wipe(eligible)
        await scene.deployment.start(eligible)
        await scene.happens("broker_unfenced", broker=eligible, since=len(scene.trace))
        await scene.kill(leader)
        since = len(scene.trace)
        await asyncio.sleep(15)
        return [event.offset for event in scene.events(eligible, "became_leader", since)]

    ends = played(scenario, *off, settings={"unclean.recovery.strategy": "manual"})
    assert ends == ([0] if off else [])


def test_a_leader_that_restarts_shows_no_record_below_the_high_watermark_of_a_deleted_topic_of_the_same_name() -> None:
    """The leader of the new topic alone has its records, so none is committed. Every broker is killed before the next
    checkpoint of the high watermarks, and the leader leads again with no follower in reach."""

    async def scenario(scene: Scene) -> tuple[list[int], list[tuple[int, int]]]:
        cluster = scene.deployment
        await asyncio.sleep(CHECKPOINT_S + 1)
        client = Client(cluster.bootstrap(), "again", cluster.stream("again"))
        admin = AdminClient(client)
        await admin.delete_topic(TOPIC, 10)
        await admin.create_topic(TOPIC, 1, 3, {"unclean.recovery.strategy": "balanced"}, 30)
        await admin.wait_for_leaders(TOPIC, 1, 30)
        leader = (await cluster.leaders())[TOPIC, 0]
        followers, since = [name for name in cluster.brokers if name != leader], len(scene.trace)
        await scene.kill(*followers)
        await scene.until("partition_changed", isr=scene.ids(leader), since=since)
        producer = Producer(client, TOPIC, acks=1)
        for _ in range(RECORDS - 2):
            assert (await producer.append(0, [b"new"])).outcome == "ok"
        since = len(scene.trace)
        await scene.kill(leader)
        await cluster.cut(both_ways([leader], followers))
        await asyncio.gather(*map(cluster.start, cluster.brokers))
        await scene.until("became_leader", node=leader, since=since)
        consumer = Consumer(client, reset="earliest")
        consumer.assign([(TOPIC, 0)])
        until = asyncio.get_running_loop().time() + 5
        offsets: list[int] = []
        while asyncio.get_running_loop().time() < until:
            offsets += [record.offset for fetched in await consumer.poll(0.5) for record in fetched.records]
        for each in (consumer, producer, client):
            await each.close()
        recovered = [event for event in scene.events(leader, "log_recovered", since) if event.topic == TOPIC]
        return offsets, [(event.high_watermark, event.log_end) for event in recovered]

    settings = {"replica.high.watermark.checkpoint.interval.ms": f"{CHECKPOINT_S * 1000}"}
    assert played(scenario, settings=settings) == ([], [(0, RECORDS - 2)])
