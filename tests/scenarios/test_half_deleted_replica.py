"""A replica that is taken off a partition loses power before its deletion is on disk, and is put back.

A power loss keeps a drawn prefix of the deletion: `partition.metadata` may survive while the first segments do not. If
the rest is taken for a log, that log starts in the middle; its replica joins the ISR, is elected, and the others delete
what it lacks.
"""

from __future__ import annotations

import asyncio

import pytest

from harness.cluster.readiness import Expected, ReadinessProbe
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Deployment, Listener
from harness.environments.sim import Simulation
from images.trace import TraceEvent
from nemesis.ports import DONE, KeepUnsynced
from workloads.clients.native import AdminClient, Client, Producer

TOPIC, RECORDS = "t", 200
SEEDS = range(4)


def offsets_after(seed: int, *off: str) -> tuple[int, int]:
    """The first and the last offset of the partition once the replica that was put back leads it."""
    trace: list[tuple[str, TraceEvent]] = []
    offsets: list[tuple[int, int]] = []

    async def until(node: str, kind: str) -> None:
        async with asyncio.timeout(5):
            while not any((name, event.kind) == (node, kind) for name, event in trace):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        client = Client(deployment.bootstrap(), "test", deployment.stream("test"))
        admin = deployment.admin
        await AdminClient(client).create_topic(TOPIC, 1, 3, {"segment.bytes": "1024"}, 30)
        first, second, victim = await admin.replicas(TOPIC, 0)
        addresses = {name: deployment.layout.node(name) for name in deployment.brokers}
        probe = ReadinessProbe(
            {name: (node.host, node.port) for name, node in addresses.items()}, Expected(TOPIC, 1, 3)
        )

        async def until_ready() -> None:
            assert not await probe.until_ready(asyncio.get_running_loop().time() + 30)

        await until_ready()
        producer = Producer(client, TOPIC)
        for _ in range(RECORDS):
            assert (await producer.append(0, [bytes(20)])).outcome == "ok"
        assert (await admin.reassign(TOPIC, 0, [first, second])).outcome == DONE
        await until(victim, "resigned")
        await deployment.power_off(victim, KeepUnsynced.PREFIX)
        await deployment.start(victim)
        assert (await admin.reassign(TOPIC, 0, [victim, first, second])).outcome == DONE
        await until_ready()
        assert (await admin.elect_preferred(TOPIC, 0)).outcome == DONE
        assert (await deployment.leaders())[TOPIC, 0] == victim
        await asyncio.sleep(1)
        found = await admin.offsets(TOPIC, 0)
        assert found is not None
        offsets.append(found)
        probe.close()
        await producer.close()
        await client.close()

    simulation = Simulation()
    layout = configured(SYSTEMS["broker"], simulation.layout(3, 3), {}, off)
    listener = Listener(lambda _, node, event: trace.append((node, event)), lambda node, line: None)
    simulation.execute(layout, scenario, seed=seed, listener=listener)
    return offsets[0]


@pytest.mark.parametrize("off", [(), ("delete_replica_durably",)])
def test_a_half_deleted_replica_is_taken_for_a_log_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    offsets = {offsets_after(seed, *off) for seed in SEEDS}
    if off:
        assert any(start > 0 for start, _ in offsets), offsets
    else:
        assert offsets == {(0, RECORDS)}
