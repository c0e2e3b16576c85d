"""KIP-320's case for consumers, played exactly: an unclean election truncates what was read, and the log grows past it.

Ten records are appended and read, the last five while the leader is the only replica in sync. The leader dies, a
replica that holds the first five is elected, and ten other records are appended, past the consumer's position. Then the
consumer goes on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest

from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Deployment, Listener
from harness.environments.sim import Simulation
from images.wire.connection import ConnectionLost
from nemesis.ports import Link
from workloads.clients.membership import GroupMember, GroupSettings
from workloads.clients.native import (
    AdminClient,
    Client,
    CommittedPosition,
    Consumer,
    ConsumerRules,
    LogTruncationError,
    OffsetAndEpoch,
    Producer,
    Truncation,
)

SESSION = GroupSettings(session_timeout_s=3.0, rebalance_timeout_s=3.0, heartbeat_interval_s=0.5)
TOPIC = "t"
P0 = (TOPIC, 0)
SETTINGS = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1", "replica.lag.time.max.ms": "1000"}


@dataclass
class Observations:
    """The records and errors of the consumer before and after the election."""

    before: list[int] = field(default_factory=list)
    after: list[tuple[int, int]] = field(default_factory=list)
    """(offset, value)"""
    truncations: list[Truncation] = field(default_factory=list)
    raised: LogTruncationError | None = None


async def append(producer: Producer, first: int, count: int) -> None:
    for value in range(first, first + count):
        delivery = await producer.append(0, [b"%d" % value])
        assert delivery.outcome == "ok", delivery


async def read_until(consumer: Consumer, offset: int) -> list[tuple[int, int]]:
    records: list[tuple[int, int]] = []
    async with asyncio.timeout(60):
        while consumer.position(*P0) < offset:
            for fetched in await consumer.poll(1.0):
                records += [(record.offset, int(record.value or b"")) for record in fetched.records]
    return records


async def join_elsewhere(client: Client, not_on: str) -> GroupMember:
    """A member of a group whose coordinator is another broker than `not_on`."""
    number = 0
    while True:
        try:
            asked = FindCoordinatorRequest(key_type=0, coordinator_keys=(f"group-{number}",))
            coordinator = (await client.ask_any(asked)).coordinators[0]
        except ConnectionLost:
            continue
        if coordinator.error_code is not ErrorCode.none:
            await asyncio.sleep(0.1)
        elif f"b{coordinator.node_id}" == not_on:
            number += 1
        else:
            member = GroupMember(client, f"group-{number}", (TOPIC,), SESSION)
            await member.join()
            return member


def play(*, restarted: bool = False, **options: Any) -> Observations:
    """`restarted`: the consumer commits for a group and ends before the leader does, and another one takes over."""
    observations = Observations()

    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        clients: list[Client] = []

        def client(name: str) -> Client:
            clients.append(Client(deployment.bootstrap(), name, deployment.stream(name)))
            return clients[-1]

        admin = AdminClient(client("admin"))
        await admin.create_topic(TOPIC, 1, 3, {}, 30)
        await admin.wait_for_leaders(TOPIC, 1, 30)
        producer = Producer(client("producer"), TOPIC, delivery_timeout_s=30)
        consumer = Consumer(
            client("consumer"), on_truncation=lambda _t, _p, found: observations.truncations.append(found), **options
        )
        consumer.assign([P0])
        await append(producer, 0, 5)
        observations.before = [value for _, value in await read_until(consumer, 5)]

        leader = (await deployment.leaders())[P0]
        member = await join_elsewhere(client("first-member"), leader) if restarted else None
        others = [name for name in deployment.brokers if name != leader]
        links = [link for other in others for link in (Link(leader, other), Link(other, leader))]
        await deployment.cut(links, reset=True)
        await append(producer, 5, 5)  # each is acknowledged once the followers have left the ISR
        observations.before += [value for _, value in await read_until(consumer, 10)]

        if member is not None:
            positions = {key: CommittedPosition(*each) for key, each in consumer.next_offsets().items()}
            commit = await member.commit(positions)
            while commit.outcome != "ok":  # not before the leader that is cut off has left this ISR, too
                commit = await member.commit(positions)
            await member.leave()
            await consumer.close()

        await deployment.kill(leader)
        await deployment.heal_links(links)
        # Another producer: the log has forgotten the last sequence numbers of the first.
        second = Producer(client("second"), TOPIC, delivery_timeout_s=30)
        await append(second, 100, 10)

        if member is not None:
            taking_over = GroupMember(client("second-member"), member.group, (TOPIC,), SESSION)
            committed = (await taking_over.committed((await taking_over.join()).partitions))[P0]
            assert committed == CommittedPosition(10, 0)
            consumer = Consumer(client("second-consumer"), **options)
            consumer.assign([P0])
            consumer.seek(*P0, committed.offset, committed.epoch)
            await taking_over.close()
        try:
            observations.after = await read_until(consumer, 15)
        except LogTruncationError as raised:
            observations.raised = raised
            found = raised.truncation_offsets[P0]
            assert found is not None
            consumer.seek(*P0, found.offset, found.epoch)
            observations.after = await read_until(consumer, 15)
        await producer.close()
        await second.close()
        await consumer.close()
        for each in clients:
            await each.close()
        await deployment.close()

    simulation = Simulation()
    layout = configured(SYSTEMS["broker"], simulation.layout(3), SETTINGS, ())
    simulation.execute(layout, scenario, seed=1, listener=Listener(lambda *_: None, lambda *_: None))
    assert observations.before == list(range(10))
    return observations


NEW = [(offset, 95 + offset) for offset in range(5, 15)]
"""The records of the log at the end, from offset 5 on."""


def test_under_old_semantics_the_consumer_misses_what_was_written_below_its_position() -> None:
    observations = play(rules=ConsumerRules(validate_position=False))
    assert observations.after == NEW[5:]
    assert observations.raised is None
    assert observations.truncations == []


@pytest.mark.parametrize("tell_epochs", [False, True])
def test_without_a_policy_the_consumer_raises_where_the_logs_part_and_misses_nothing_after_the_seek(
    tell_epochs: bool,
) -> None:
    observations = play(tell_epochs=tell_epochs)
    assert observations.raised is not None
    assert observations.raised.truncation_offsets == {P0: OffsetAndEpoch(5, 0)}
    assert observations.after == NEW


def test_a_group_finds_the_truncation_across_a_restart_by_the_epoch_it_committed() -> None:
    observations = play(restarted=True)
    assert observations.raised is not None
    truncation = observations.raised.truncation_offsets[P0]
    assert truncation == OffsetAndEpoch(5, 0)
    assert observations.after == NEW


@pytest.mark.parametrize("tell_epochs", [False, True])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_with_a_policy_the_consumer_goes_back_to_the_very_offset_and_misses_nothing(
    reset: str, tell_epochs: bool
) -> None:
    observations = play(reset=reset, tell_epochs=tell_epochs)
    assert observations.raised is None
    assert observations.truncations == [Truncation(OffsetAndEpoch(10, 0), OffsetAndEpoch(5, 0))]
    assert observations.after == NEW
