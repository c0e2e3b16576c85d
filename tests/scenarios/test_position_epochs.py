"""Positions of consumers and the epochs they carry, in a running cluster: a truncation is reported exactly when there
was one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Deployment, Listener
from harness.environments.sim import Simulation
from nemesis.ports import both_ways
from workloads.clients.native import (
    AdminClient,
    Client,
    Consumer,
    ConsumerRules,
    LogTruncationError,
    OffsetAndEpoch,
    Producer,
)

TOPIC = "t"
P0 = (TOPIC, 0)
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1", "replica.lag.time.max.ms": "1000"}


class Cluster:
    """A cluster of three brokers with one partition, and clients of it."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.clients: list[Client] = []

    def client(self, name: str) -> Client:
        self.clients.append(Client(self.deployment.bootstrap(), name, self.deployment.stream(name)))
        return self.clients[-1]

    def consumer(self, name: str, rules: ConsumerRules = ConsumerRules()) -> Consumer:
        consumer = Consumer(self.client(name), rules=rules)
        consumer.assign([P0])
        return consumer

    async def append(self, name: str, first: int, count: int) -> None:
        """Append `count` values from `first` on, by a producer of its own."""
        producer = Producer(self.client(name), TOPIC, delivery_timeout_s=60)
        for value in range(first, first + count):
            delivery = await producer.append(0, [b"%d" % value])
            assert delivery.outcome == "ok", delivery
        await producer.close()

    async def until_led_by_another(self, former: str) -> str:
        """Wait until another broker than `former` leads, and return it."""
        while True:
            leader = (await self.deployment.leaders()).get(P0)
            if leader is not None and leader != former:
                return leader
            await asyncio.sleep(0.1)


def play(scenario: Callable[[Cluster], Awaitable[None]], settings: dict[str, str]) -> None:
    async def played(deployment: Deployment) -> None:
        await deployment.deploy()
        cluster = Cluster(deployment)
        admin = AdminClient(cluster.client("admin"))
        await admin.create_topic(TOPIC, 1, 3, {}, 30)
        await admin.wait_for_leaders(TOPIC, 1, 30)
        async with asyncio.timeout(300):
            await scenario(cluster)
        for client in cluster.clients:
            await client.close()
        await deployment.close()

    simulation = Simulation()
    layout = configured(SYSTEMS["broker"], simulation.layout(3), settings, ())
    simulation.execute(layout, played, seed=1, listener=Listener(lambda *_: None, lambda *_: None))


async def read_until(consumer: Consumer, offset: int) -> list[tuple[int, int]]:
    """(offset, value) of the records before `offset`."""
    records: list[tuple[int, int]] = []
    while consumer.position(*P0) < offset:
        for fetched in await consumer.poll(1.0):
            records += [(record.offset, int(record.value or b"")) for record in fetched.records]
    return records


async def read_any(consumer: Consumer) -> list[tuple[int, int]]:
    """(offset, value) of the next records that there are."""
    records: list[tuple[int, int]] = []
    while not records:
        for fetched in await consumer.poll(1.0):
            records += [(record.offset, int(record.value or b"")) for record in fetched.records]
    return records


def test_no_truncation_is_reported_to_a_consumer_at_the_end_when_an_idle_leader_is_replaced() -> None:
    async def scenario(cluster: Cluster) -> None:
        deployment = cluster.deployment
        await cluster.append("first", 0, 3)
        first = (await deployment.leaders())[P0]
        await deployment.kill(first)
        second = await cluster.until_led_by_another(first)
        await deployment.start(first)
        consumer = cluster.consumer("consumer")
        end = await consumer.end_position(*P0)
        while end.error is not None:
            await asyncio.sleep(0.1)
            end = await consumer.end_position(*P0)
        assert (end.offset, end.epoch) == (3, 0)
        assert end.leader_epoch is not None
        assert end.leader_epoch > 0  # this leader has appended nothing
        consumer.seek(*P0, 3, end.epoch)
        await deployment.kill(second)
        await cluster.until_led_by_another(second)
        await cluster.append("second", 3, 1)
        assert await read_until(consumer, 4) == [(3, 3)]
        await consumer.close()

    play(scenario, {})


@pytest.mark.parametrize("compared", [True, False])
def test_an_end_of_another_epoch_beyond_the_position_hides_a_truncation_exactly_without_the_rule(
    compared: bool,
) -> None:
    """Two logs in turn: `first` writes records 5 to 11 in epoch 0 while no other replica is in sync, `second` writes
    5 to 9 in a later epoch, which a consumer reads. Then `first` leads again, with a log that goes beyond the
    position."""

    async def scenario(cluster: Cluster) -> None:
        deployment = cluster.deployment
        await cluster.append("common", 0, 5)
        consumer = cluster.consumer("consumer", ConsumerRules(compare_epochs_in_validation=compared))
        assert len(await read_until(consumer, 5)) == 5
        first = (await deployment.leaders())[P0]
        others = [name for name in deployment.brokers if name != first]
        for other in others:
            await deployment.kill(other)
        await cluster.append("first", 5, 7)  # acknowledged once the others have left the ISR
        await deployment.kill(first)
        for other in others:
            await deployment.start(other)
        await cluster.until_led_by_another(first)
        await cluster.append("second", 105, 5)
        read = await read_until(consumer, 10)
        assert read == [(offset, 100 + offset) for offset in range(5, 10)]
        assert consumer.next_offsets()[P0].epoch > 0
        for other in others:
            await deployment.kill(other)
        await deployment.start(first)
        if compared:
            with pytest.raises(LogTruncationError) as raised:
                await read_until(consumer, 12)
            assert raised.value.truncation_offsets == {P0: OffsetAndEpoch(5, 0)}
        else:
            assert await read_until(consumer, 12) == [(10, 10), (11, 11)]
        await consumer.close()

    play(scenario, UNCLEAN)


@pytest.mark.parametrize("waits", [True, False])
def test_a_deposed_leader_reports_a_truncation_that_never_happened_exactly_without_the_rule(waits: bool) -> None:
    """The consumer knows a leader from before the epoch of its position, which another client has committed."""

    async def scenario(cluster: Cluster) -> None:
        deployment = cluster.deployment
        await cluster.append("first", 0, 3)
        first = (await deployment.leaders())[P0]
        others = [node for node in (*deployment.brokers, *deployment.controllers) if node != first]
        await deployment.cut(both_ways([first], others))
        await cluster.until_led_by_another(first)
        await cluster.append("second", 3, 2)
        node = deployment.layout.node(first)
        cluster.clients.append(Client([(node.host, node.port)], "late", deployment.stream("late")))
        consumer = Consumer(cluster.clients[-1], rules=ConsumerRules(wait_for_position_epoch=waits))
        consumer.assign([P0])
        consumer.seek(*P0, 5, 1)
        if not waits:
            with pytest.raises(LogTruncationError):
                await read_until(consumer, 6)
        else:
            await cluster.append("third", 5, 1)
            assert await read_until(consumer, 6) == [(5, 5)]
        await consumer.close()

    play(scenario, {})


@pytest.mark.parametrize("ignored", [True, False])
def test_a_fetch_sent_before_a_seek_to_another_epoch_hides_a_truncation_exactly_without_the_rule(ignored: bool) -> None:
    """The log has a record of epoch 0, none of epoch 1, and gets one of epoch 2 while the first fetch waits for it."""

    async def scenario(cluster: Cluster) -> None:
        deployment = cluster.deployment
        await cluster.append("first", 0, 1)
        first = (await deployment.leaders())[P0]
        await deployment.kill(first)
        await cluster.until_led_by_another(first)
        await deployment.start(first)
        while (await deployment.leaders())[P0] != first:
            await deployment.admin.elect_preferred(*P0)
            await asyncio.sleep(0.5)
        consumer = cluster.consumer("consumer", ConsumerRules(ignore_stale_fetch_answer=ignored))
        assert await read_until(consumer, 1) == [(0, 0)]
        assert await consumer.poll(0.2) == []
        consumer.seek(*P0, 1, 1)
        await cluster.append("second", 1, 1)
        if ignored:
            with pytest.raises(LogTruncationError):
                await read_any(consumer)
        else:
            assert await read_any(consumer) == [(1, 1)]
        await consumer.close()

    play(scenario, {})
