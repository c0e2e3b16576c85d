"""Two elections that a leader reads of at once: it was deposed and elected again, and never knew.

`former` leads, and `follower` has all of its log; `preferred` has not. Cut off from the controllers, `former` does not
hear that `preferred` is elected, nor that it leaves again, by which time `follower` has cut its log to follow it.
"""

from __future__ import annotations

import asyncio

import pytest

from harness.cluster.readiness import Expected, ReadinessProbe
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Deployment, Listener
from harness.environments.sim import Simulation
from images.trace import TraceEvent
from nemesis.ports import DONE, Link, both_ways
from workloads.clients.native import AdminClient, Client, Producer

TOPIC, RECORDS = "t", 10


def played(*off: str) -> list[tuple[str, TraceEvent]]:
    """The trace of the last leadership, and before it whatever told where logs end."""
    trace: list[tuple[str, TraceEvent]] = []

    async def until(node: str, kind: str) -> None:
        told = len(trace)
        async with asyncio.timeout(5):
            while not any((name, event.kind) == (node, kind) for name, event in trace[told:]):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        client = Client(deployment.bootstrap(), "test", deployment.stream("test"))
        await AdminClient(client).create_topic(TOPIC, 1, 3, {}, 30)
        preferred, former, follower = await deployment.admin.replicas(TOPIC, 0)
        await deployment.stop(preferred)
        await deployment.start(preferred)
        addresses = {name: deployment.layout.node(name) for name in deployment.brokers}
        watch = ReadinessProbe(
            {name: (node.host, node.port) for name, node in addresses.items()}, Expected(TOPIC, 1, 3)
        )
        assert not await watch.until_ready(asyncio.get_running_loop().time() + 30)
        assert (await deployment.leaders())[TOPIC, 0] == former

        await deployment.cut([Link(preferred, former)], reset=True)
        producer = Producer(client, TOPIC, acks=1)
        for _ in range(RECORDS):
            assert (await producer.append(0, [b"x"])).outcome == "ok"
        await asyncio.sleep(0.1)
        apart = both_ways([former], deployment.controllers)
        await deployment.cut(apart, reset=True)
        assert (await deployment.admin.elect_preferred(TOPIC, 0)).outcome == DONE
        await until(follower, "truncated")
        await deployment.stop(preferred)
        await deployment.heal_links(apart)
        await until(former, "high_watermark")
        watch.close()
        await producer.close()
        await client.close()

    simulation = Simulation()
    layout = configured(SYSTEMS["broker"], simulation.layout(3, 3), {}, off)
    listener = Listener(lambda _, node, event: trace.append((node, event)), lambda node, line: None)
    simulation.execute(layout, scenario, seed=1, listener=listener)
    return trace


@pytest.mark.parametrize("off", [(), ("positions_end_with_leadership",)])
def test_what_a_leader_elected_again_calls_committed_its_isr_holds_exactly_with_the_rule(off: tuple[str, ...]) -> None:
    trace = played(*off)
    former, risen = next((node, event) for node, event in reversed(trace) if event.kind == "high_watermark")
    events = trace[: trace.index((former, risen))]
    assert [event.leader_epoch for node, event in events if (node, event.kind) == (former, "became_leader")][-2:] == [
        1,
        3,
    ]
    (follower,) = (f"b{member}" for member in risen.members if f"b{member}" != former)
    held = [
        event.offset if event.kind == "truncated" else event.log_end
        for node, event in events
        if node == follower and event.topic == TOPIC and event.kind in ("truncated", "appended")
    ]
    assert risen.high_watermark == RECORDS
    assert held[-1] == (0 if off else RECORDS)
