"""Records deleted in a whole cluster: who is told what, and that nothing brings them back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.delete_records.v2 import request as deleting
from kio.schema.errors import ErrorCode

from checkers.verdict import Validity
from harness.cluster.readiness import Expected, ReadinessProbe
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Deployment, Listener
from harness.environments.sim import Simulation
from harness.runner.run import run_in_simulation
from harness.spec import loads
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.trace import TraceEvent
from nemesis.ports import KeepUnsynced, both_ways
from results.run.directory import RunDirectory
from tests.scenarios import one_partition
from workloads.clients.native import AdminClient, AdminError, Client, Consumer, Producer

TOPIC = "t"
P0 = (TOPIC, 0)
RECORDS = 10
Scenario = Callable[[Deployment, AdminClient, Callable[..., Consumer]], Awaitable[None]]


def play(scenario: Scenario) -> list[tuple[str, TraceEvent]]:
    """A cluster of three with ten committed records, and an administrator; what its nodes traced."""
    traced: list[tuple[str, TraceEvent]] = []

    async def played(deployment: Deployment) -> None:
        await deployment.deploy()
        clients: list[Client] = []
        consumers: list[Consumer] = []

        def client(name: str) -> Client:
            clients.append(Client(deployment.bootstrap(), name, deployment.stream(name)))
            return clients[-1]

        def consumer(**options: Any) -> Consumer:
            consumers.append(Consumer(client(f"consumer-{len(consumers)}"), **options))
            consumers[-1].assign([P0])
            return consumers[-1]

        admin = AdminClient(client("admin"))
        await admin.create_topic(TOPIC, 1, 3, {}, 30)
        await admin.wait_for_leaders(TOPIC, 1, 30)
        producer = Producer(client("producer"), TOPIC)
        for value in range(RECORDS):
            assert (await producer.append(0, [b"%d" % value])).outcome == "ok"
        await producer.close()
        async with asyncio.timeout(120):
            await scenario(deployment, admin, consumer)
        for one in consumers:
            await one.close()
        for each in clients:
            await each.close()
        await deployment.close()

    simulation = Simulation()
    layout = configured(SYSTEMS["broker"], simulation.layout(3), {}, ())
    listener = Listener(lambda _, node, event: traced.append((node, event)), lambda *_: None)
    simulation.execute(layout, played, seed=1, listener=listener)
    return traced


async def read_on(consumer: Consumer) -> list[tuple[int, int]]:
    """(offset, value) of what is read until the end is reached."""
    records: list[tuple[int, int]] = []
    while consumer.position(*P0) < RECORDS:
        for fetched in await consumer.poll(1.0):
            records += [(record.offset, int(record.value or b"")) for record in fetched.records]
    return records


LEFT = [(offset, offset) for offset in range(6, RECORDS)]


def test_a_deletion_is_answered_with_the_low_watermark_and_every_replica_starts_there_by_then() -> None:
    answered = []

    async def scenario(deployment: Deployment, admin: AdminClient, consumer: Callable[..., Consumer]) -> None:
        answered.append(await admin.delete_records(TOPIC, 0, 6, 30))
        assert await read_on(consumer(reset="earliest")) == LEFT

    traced = play(scenario)
    assert answered == [6]
    starts = [(node, event.offset) for node, event in traced if event.kind == "log_start"]
    assert sorted(starts) == [("b1", 6), ("b2", 6), ("b3", 6)]


def test_no_power_loss_and_no_election_brings_deleted_records_back() -> None:
    async def scenario(deployment: Deployment, admin: AdminClient, consumer: Callable[..., Consumer]) -> None:
        assert await admin.delete_records(TOPIC, 0, 6, 30) == 6
        for _ in range(3):
            leader = (await deployment.leaders())[P0]
            await deployment.power_off(leader, KeepUnsynced.NOTHING)
            assert await read_on(consumer(reset="earliest")) == LEFT
            await deployment.start(leader)
            await in_sync(deployment)

    play(scenario)


def test_a_replica_that_comes_back_without_its_disk_is_filled_from_where_the_log_starts() -> None:
    async def scenario(deployment: Deployment, admin: AdminClient, consumer: Callable[..., Consumer]) -> None:
        leader = (await deployment.leaders())[P0]
        follower = next(broker for broker in deployment.brokers if broker != leader)
        await deployment.power_off(follower, KeepUnsynced.NOTHING)  # nothing was ever synced: its log is empty
        assert await admin.delete_records(TOPIC, 0, 6, 30) == 6
        await deployment.start(follower)
        await in_sync(deployment)
        found.append(follower)

    found: list[str] = []
    traced = play(scenario)
    (follower,) = found
    begun = [event for node, event in traced if node == follower and event.kind == "truncated"]
    assert [(event.offset, event.detail["log_start"]) for event in begun] == [(6, 6)]


def test_a_deletion_asked_for_while_the_leader_dies_is_done_by_the_next() -> None:
    async def scenario(deployment: Deployment, admin: AdminClient, consumer: Callable[..., Consumer]) -> None:
        await deployment.kill((await deployment.leaders())[P0])
        assert await admin.delete_records(TOPIC, 0, -1, 60) == RECORDS
        with pytest.raises(AdminError, match="OFFSET_OUT_OF_RANGE"):
            await admin.delete_records(TOPIC, 0, RECORDS + 1, 30)

    play(scenario)


@pytest.mark.parametrize("fenced_first", [True, False])
def test_no_deletion_waits_for_a_fenced_follower_out_of_the_isr(fenced_first: bool) -> None:
    """Fenced before, or while the deletion waits for it. No other follower's fetch, nor any change of the partition,
    has the leader look again."""

    async def scenario(scene: one_partition.Scene) -> tuple[ErrorCode, int, float]:
        cluster = scene.deployment
        leader = (await cluster.leaders())[P0]
        assert leader is not None
        (follower,) = (name for name in scene.replicas if name != leader)
        since = len(scene.trace)
        await cluster.cut(both_ways([leader], [follower]))
        await scene.append()
        await scene.until("isr_committed", isr=scene.ids(leader), since=since)
        part = deleting.DeleteRecordsPartition(partition_index=0, offset=6)
        topic = deleting.DeleteRecordsTopic(name=TOPIC, partitions=(part,))
        request = deleting.DeleteRecordsRequest(topics=(topic,), timeout=timedelta(seconds=4))
        if fenced_first:
            await cluster.kill(follower)
            await scene.happens("broker_fenced", broker=follower, since=since)
            await asyncio.sleep(0.5)
            answering = asyncio.ensure_future(scene.ask(leader, request))
        else:
            answering = asyncio.ensure_future(scene.ask(leader, request))
            await asyncio.sleep(0.5)
            await cluster.kill(follower)
            await scene.happens("broker_fenced", broker=follower, since=since)
        begun_s = asyncio.get_running_loop().time()
        (answer,) = (await answering).topics[0].partitions
        return answer.error_code, answer.low_watermark, asyncio.get_running_loop().time() - begun_s

    error, low_watermark, waited_s = one_partition.played(scenario, replicas=2, settings={"min.insync.replicas": "1"})
    assert (error, low_watermark) == (ErrorCode.none, 6)
    assert waited_s < 0.5


def test_what_groups_live_by_cannot_be_deleted() -> None:
    async def scenario(deployment: Deployment, admin: AdminClient, consumer: Callable[..., Consumer]) -> None:
        await admin.create_topic(CONSUMER_OFFSETS_TOPIC, 1, 3, {}, 30)
        await admin.wait_for_leaders(CONSUMER_OFFSETS_TOPIC, 1, 30)
        with pytest.raises(AdminError, match="INVALID_TOPIC_EXCEPTION"):
            await admin.delete_records(CONSUMER_OFFSETS_TOPIC, 0, 0, 30)

    play(scenario)


async def in_sync(deployment: Deployment) -> None:
    """Wait until every broker shows every replica in the ISR."""
    addresses = {name: deployment.layout.node(name) for name in deployment.brokers}
    probe = ReadinessProbe({name: (node.host, node.port) for name, node in addresses.items()}, Expected(TOPIC, 1, 3))
    missing = await probe.until_ready(asyncio.get_running_loop().time() + 60)
    probe.close()
    assert not missing


DIVERGED_BELOW_LOG_START = """
seed: 261
time_limit: 51s
faults:
  - {at: 1.193, for: 20, fault: rolling-restart}
  - {at: 1.923, for: 0.115, fault: elect-preferred, partition: 1}
  - {at: 8.929, for: 0.36, fault: packets, nodes: [b2], against: [all], loss: 0.03}
  - {at: 9.944, for: 0.555, fault: move-controller}
  - {at: 10.104, for: 0.816, fault: cancel-reassignment, partition: 1}
  - {at: 14.044, for: 0.162, fault: raise-min-isr}
  - {at: 20.428, for: 1.943, fault: packets, nodes: [b1], against: [b2], delay_ms: 92.2, jitter_ms: 17.2}
  - {at: 30.116, for: 2.58, fault: reassign, partition: 1}
  - {at: 33.189, for: 0.14, fault: kill, nodes: [b2]}
  - {at: 38.521, for: 12.479, fault: hidden-commit, partition: 1}
  - {at: 42.673, for: 8.326999999999998, fault: delete-records, partition: 0, stalled: true}
"""
"""What was left of append seed 192 without the faults that it did not need, in timings that still bring it about."""


def test_what_diverges_below_the_log_start_of_a_leader_is_given_up(tmp_path: Path) -> None:
    """A follower that kept it would know producers by records that nobody else has: as a leader it would take a batch
    that was never committed for a duplicate."""
    outcome = run_in_simulation(loads(DIVERGED_BELOW_LOG_START), tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.directory is not None
    evidence = RunDirectory.open(outcome.directory).load()
    (start,) = {row["log_start"] for row in evidence.replica_ends.to_pylist() if row["partition"] == 0}
    epochs: dict[int, set[int]] = {}
    for row in evidence.replicas.to_pylist():
        if row["partition"] == 0:
            epochs.setdefault(row["offset"], set()).add(row["leader_epoch"])
    assert start > 0
    assert not [offset for offset, seen in epochs.items() if len(seen) > 1]
