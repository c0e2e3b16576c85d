"""A follower whose disk was wiped joins the ISR of a running cluster, and is then all that is left of it.

The answers of the leader to the follower are slow, so that a join before the follower has the records would be
committed before they arrive; then the leader and the other follower fail, and no answer arrives any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from harness.cluster.readiness import Expected, ReadinessProbe
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Deployment, Listener
from harness.environments.sim import Simulation
from images.trace import TraceEvent
from nemesis.ports import Link, LinkQuality
from workloads.clients.native import AdminClient, Client, Producer

TOPIC, RECORDS = "t", 10


def elected_with(*off: str) -> int:
    """The log end offset with which the follower is elected; every record was acknowledged by all in-sync replicas."""
    trace: list[tuple[str, TraceEvent]] = []
    ends: list[int] = []

    async def until(condition: Callable[[str, TraceEvent], bool]) -> TraceEvent:
        since = len(trace)
        async with asyncio.timeout(60):
            while True:
                for node, event in trace[since:]:
                    if condition(node, event):
                        return event
                await asyncio.sleep(0.001)

    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        client = Client(deployment.bootstrap(), "test", deployment.stream("test"))
        await AdminClient(client).create_topic(TOPIC, 1, 3, {}, 30)
        leader, other, follower = await deployment.admin.replicas(TOPIC, 0)
        addresses = {node.name: (node.host, node.port) for node in deployment.layout.brokers}
        probe = ReadinessProbe(addresses, Expected(TOPIC, 1, 3))
        assert not await probe.until_ready(asyncio.get_running_loop().time() + 30)
        probe.close()
        producer = Producer(client, TOPIC)
        for _ in range(RECORDS):
            assert (await producer.append(0, [b"x"])).outcome == "ok"
        await producer.close()
        await client.close()

        await deployment.wipe(follower)
        await deployment.degrade([Link(leader, follower)], LinkQuality(delay_ms=400))
        await deployment.start(follower)
        number = deployment.layout.node(follower).node_id
        await until(lambda node, event: node == leader and event.kind == "isr_committed" and number in event.members)
        await deployment.cut([Link(leader, follower)])
        await asyncio.gather(deployment.kill(leader), deployment.kill(other))
        event = await until(lambda node, event: node == follower and event.kind == "became_leader")
        ends.append(event.offset)

    simulation = Simulation()
    layout = configured(SYSTEMS["broker"], simulation.layout(3, 3), {}, off)
    listener = Listener(lambda _, node, event: trace.append((node, event)), lambda *_: None)
    simulation.execute(layout, scenario, seed=1, listener=listener)
    (end,) = ends
    return end


@pytest.mark.parametrize(("off", "end"), [((), RECORDS), (("high_watermark_gates_isr_join",), 0)])
def test_6_5_3_a_wiped_follower_is_elected_without_committed_records_exactly_without_the_rule(
    off: tuple[str, ...], end: int
) -> None:
    assert elected_with(*off) == end
