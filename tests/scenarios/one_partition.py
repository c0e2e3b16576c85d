"""A running cluster with one partition for scenarios: brokers and controllers in simulation, and the trace of them.

A scenario waits for events of the trace instead of times, and makes links slow or cuts them at the right moment.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa

from checkers.evidence import CheckSettings
from checkers.protocol.trace_replay import replay_trace
from checkers.tables import TRACE
from harness.cluster.readiness import Expected, ReadinessProbe
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Deployment, Listener
from harness.environments.sim import Simulation
from images.trace import TraceEvent
from images.wire.connection import Connection
from nemesis.ports import DONE, LinkQuality
from workloads.clients.native import AdminClient, Client, Producer

TOPIC, RECORDS = "t", 10
SEED = 3
"""A seed in which both brokers that return ask to join before the slow answer is back, as in half of all."""
SLOW = LinkQuality(delay_ms=700)
SCENARIO_LIMIT_S = 300.0
ACK_LIMIT_S = 0.4
"""Less than a slow message takes."""


Result = TypeVar("Result")


class Scene:
    """A running cluster with one partition, on which every replica has ten acknowledged records."""

    def __init__(self, deployment: Deployment, trace: list[tuple[str, TraceEvent]]) -> None:
        self.deployment = deployment
        self.trace = trace
        self.log_lines: list[str] = []
        self.replicas: tuple[str, ...] = ()
        self._client = Client(deployment.bootstrap(), "test", deployment.stream("test"))
        self._producer = Producer(self._client, TOPIC, delivery_timeout_s=1.0)

    async def create_topic(self, name: str, replicas: int) -> None:
        """Create another topic of one partition."""
        await AdminClient(self._client).create_topic(name, 1, replicas, {}, 30)

    async def lead(self, topic: str, leader: str) -> None:
        """Have a replica of the topic's partition lead it."""
        admin = self.deployment.admin
        replicas = await admin.replicas(topic, 0)
        order = [leader, *(name for name in replicas if name != leader)]
        assert (await admin.reassign(topic, 0, order)).outcome == DONE
        while (await self.deployment.leaders()).get((topic, 0)) != leader:
            await admin.elect_preferred(topic, 0)
            await asyncio.sleep(0.1)

    async def create(self, replicas: int) -> None:
        await self.create_topic(TOPIC, replicas)
        self.replicas = tuple(await self.deployment.admin.replicas(TOPIC, 0))
        addresses = {node.name: (node.host, node.port) for node in self.deployment.layout.brokers}
        probe = ReadinessProbe(addresses, Expected(TOPIC, 1, replicas))
        assert not await probe.until_ready(asyncio.get_running_loop().time() + 30)
        probe.close()
        for _ in range(RECORDS):
            assert (await self._producer.append(0, [b"x"])).outcome == "ok"

    async def close(self) -> None:
        await self._producer.close()
        await self._client.close()

    def ids(self, *names: str) -> set[int]:
        return {self.deployment.layout.node(name).node_id for name in names}

    async def acknowledged(self) -> bool:
        """Whether an append with acks=all is acknowledged soon."""
        appended = self._producer.append(0, [b"y"])
        done, _ = await asyncio.wait({appended}, timeout=ACK_LIMIT_S)
        return bool(done) and appended.result().outcome == "ok"

    async def until(
        self,
        kind: str,
        *,
        node: str = "",
        isr: Collection[int] | None = None,
        member: str = "",
        since: int = -1,
        topic: str = TOPIC,
    ) -> TraceEvent:
        """The first event of the partition from now on, or from `since`, with this ISR, or this member in it."""
        since = len(self.trace) if since < 0 else since
        async with asyncio.timeout(60):
            while True:
                for name, event in self.trace[since:]:
                    if (event.kind, event.topic) != (kind, topic) or node not in ("", name):
                        continue
                    if isr is not None and set(event.members) != set(isr):
                        continue
                    if not member or self.ids(member) <= set(event.members):
                        return event
                await asyncio.sleep(0.001)

    async def append(self) -> str:
        """The outcome of an append with acks=all: ok, fail (it certainly did not happen) or info."""
        return (await self._producer.append(0, [b"z"])).outcome

    def events(self, node: str, kind: str, since: int) -> list[TraceEvent]:
        """The events of this kind that a node has traced since then."""
        return [event for name, event in self.trace[since:] if (name, event.kind) == (node, kind)]

    def changes(self, since: int = 0) -> list[TraceEvent]:
        """The states of the partition that the controllers have committed, oldest first."""
        events = [event for _, event in self.trace[since:]]
        return [event for event in events if (event.kind, event.topic) == ("partition_changed", TOPIC)]

    def broker_epoch(self, name: str) -> int:
        """The broker epoch in which a broker has registered last."""
        events = (event for node, event in reversed(self.trace) if (node, event.kind) == (name, "registered"))
        return next(events).broker_epoch

    async def topic_id(self) -> uuid.UUID:
        answer = await self._client.ask_any(self._client.metadata_request([TOPIC]))
        topic_id = answer.topics[0].topic_id
        assert isinstance(topic_id, uuid.UUID)
        return topic_id

    async def ask(self, name: str, request: Any) -> Any:
        """The answer of one node to a request of the protocol."""
        node = self.deployment.layout.node(name)
        connection = await Connection.open(node.host, node.port, "test", 5.0)
        answer = await connection.call(request, 5.0)
        connection.close()
        return answer

    async def ask_controller(self, request: Any) -> Any:
        """The answer of the active controller."""
        active = await self.deployment.controller()
        assert active is not None
        return await self.ask(active, request)

    async def happens(self, kind: str, *, node: str = "", broker: str = "", since: int) -> TraceEvent:
        """The first event of this kind since then, at this node or about this broker."""
        about = self.ids(broker) if broker else set()
        async with asyncio.timeout(60):
            while True:
                for name, event in self.trace[since:]:
                    if event.kind == kind and node in ("", name) and (not broker or event.broker in about):
                        return event
                await asyncio.sleep(0.001)

    async def kill(self, *names: str) -> None:
        await asyncio.gather(*(self.deployment.kill(name) for name in names))


def played(
    scenario: Callable[[Scene], Awaitable[Result]],
    *off: str,
    brokers: int = 3,
    replicas: int = 3,
    settings: Mapping[str, str] = MappingProxyType({}),
    seed: int = SEED,
) -> Result:
    """The result of a scenario with these rules switched off."""
    trace: list[tuple[str, TraceEvent]] = []
    log_lines: list[str] = []
    results: list[Result] = []

    async def whole(deployment: Deployment) -> None:
        await deployment.deploy()
        scene = Scene(deployment, trace)
        scene.log_lines = log_lines
        await scene.create(replicas)
        async with asyncio.timeout(SCENARIO_LIMIT_S):
            results.append(await scenario(scene))
        await scene.close()

    simulation = Simulation()
    layout = configured(SYSTEMS["broker"], simulation.layout(brokers, 3), settings, off)
    listener = Listener(lambda _, node, event: trace.append((node, event)), lambda _, line: log_lines.append(line))
    simulation.execute(layout, whole, seed=seed, listener=listener)
    (result,) = results
    return result


def broken_promises(trace: Sequence[tuple[str, TraceEvent]]) -> set[str]:
    """The findings of the checker `protocol` in a trace without times. Each event is an instant of its own here, so
    those about the candidates at an instant mean nothing, and that about a coordinator's clock is left out."""
    rows = [
        event._asdict()
        | {"time_ns": place, "seq": place, "node": node}
        | {"members": list(event.members), "detail": json.dumps(dict(event.detail or {}))}
        for place, (node, event) in enumerate(trace)
    ]
    cluster = replay_trace(pa.Table.from_pylist(rows, TRACE), CheckSettings())
    found = {violation.kind for partition in cluster.partitions.values() for violation in partition.violations}
    return found - {"group-time-otherwise"}
