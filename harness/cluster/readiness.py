"""Readiness of a cluster, from every broker's own answers over Kafka's protocol.

A cluster is ready when every broker answers, and every broker's Metadata shows all brokers (fenced ones are not shown),
a leader for each partition, as many replicas as it was given (a reassignment under way shows more, or others), and all
of them in the ISR. Asking each broker, and not only one, also finds a broker with stale metadata. Each missing
condition is a line of text, for the report and for the person who waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

from images.wire.connection import Connection, ConnectionLost

_PAUSE_S = 0.25
_TIMEOUT_S = 1.5


@dataclass(frozen=True, slots=True)
class Expected:
    """The topic that a ready cluster shows; without a topic only its brokers are expected."""

    topic: str = ""
    partitions: int = 0
    replication_factor: int = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """The conditions missing at one time, and how many brokers did not answer."""

    missing: list[str]
    silent: int = 0


class ReadinessProbe:
    """Asks all brokers, over one connection each, kept open from one round to the next."""

    def __init__(self, addresses: Mapping[str, tuple[str, int]], expected: Expected = Expected()) -> None:
        """`addresses`: node name → (host, port) of every broker."""
        self._addresses = dict(addresses)
        self._expected = expected
        self._connections: dict[str, Connection] = {}
        self.ready_since_s: float | None = None
        """Since when, by the loop's clock, the cluster has been seen ready at every look; None when it was not."""

    async def missing(self) -> list[str]:
        """The conditions that are missing now, a line each; empty when the cluster is ready."""
        return (await self._look()).missing

    async def until_ready_or_stuck(self, limit_s: float, in_vain: Callable[[], bool]) -> list[str]:
        """Ask until the cluster is ready, has come no nearer to it for `limit_s`, or asking is `in_vain`.

        Gives back what is still missing then. The cluster comes nearer when more brokers answer than ever before,
        or as many with fewer conditions missing: a slow machine gets the time that it takes, and no cluster that comes
        and goes is waited for without end.
        """
        loop = asyncio.get_running_loop()
        nearest: tuple[int, int] | None = None
        deadline_s = loop.time() + limit_s
        while True:
            look = await self._look()
            if not look.missing or in_vain():
                return look.missing
            distance = (look.silent, len(look.missing))
            if nearest is None or distance < nearest:
                nearest, deadline_s = distance, loop.time() + limit_s
            elif loop.time() >= deadline_s:
                return look.missing
            await asyncio.sleep(_PAUSE_S)

    async def until_ready(self, deadline_s: float, steady_s: float = 0.0) -> list[str]:
        """Ask until the cluster is ready, or the loop's clock reads `deadline_s`.

        Gives back what is still missing then. With `steady_s` it must have been ready for so long without a break,
        since an ISR may be full for a moment only: a leader believes in a follower that does not fetch any more until
        its lag time has passed. It waits that long past the deadline, too, if the cluster was ready before it.
        """
        loop = asyncio.get_running_loop()
        self.ready_since_s = None
        while True:
            missing = await self.missing()
            now_s = loop.time()
            if missing:
                self.ready_since_s = None
                if now_s >= deadline_s:
                    return missing
            elif self.ready_since_s is None:
                self.ready_since_s = now_s
            if self.ready_since_s is not None and now_s >= self.ready_since_s + steady_s:
                return []
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """Close every connection. May be called twice."""
        for connection in self._connections.values():
            connection.close()

    async def _look(self) -> _Look:
        looks = await asyncio.gather(*(self._look_at(node) for node in self._addresses))
        return _Look([line for look in looks for line in look.missing], sum(look.silent for look in looks))

    async def _look_at(self, node: str) -> _Look:
        try:
            answer = await self._ask(node)
        except ConnectionLost as lost:
            return _Look([f"{node} does not answer ({lost})"], silent=1)
        missing = []
        absent = len(self._addresses) - len(answer.brokers)
        if absent:
            missing.append(f"{node} sees {len(answer.brokers)} of {len(self._addresses)} brokers unfenced")
        return _Look(missing + [f"{node} sees {line}" for line in missing_of_topic(answer.topics, self._expected)])

    async def _ask(self, node: str) -> Any:
        connection = self._connections.get(node)
        if connection is None or connection.closed:
            host, port = self._addresses[node]
            connection = self._connections[node] = await Connection.open(host, port, "faultline-watch", _TIMEOUT_S)
        names = [self._expected.topic] if self._expected.topic else []
        return await connection.call(_metadata_request(names), _TIMEOUT_S)


def _metadata_request(names: Sequence[str]) -> Any:
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=name) for name in names),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def missing_of_topic(topics: Sequence[Any], expected: Expected) -> list[str]:
    """The conditions that the topic misses, by a Metadata answer; a line each."""
    if not expected.topic:
        return []
    for topic in topics:
        if topic.name != expected.topic or topic.error_code != 0:
            continue
        missing = []
        if len(topic.partitions) != expected.partitions:
            missing.append(f"{len(topic.partitions)} of {expected.partitions} partitions of {expected.topic}")
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index):
            name = f"{expected.topic}-{partition.partition_index}"
            if partition.leader_id < 0:
                missing.append(f"no leader of {name}")
            elif len(partition.isr_nodes) < expected.replication_factor:
                isr = _names(partition.isr_nodes)
                missing.append(f"{name} with ISR {isr} of {expected.replication_factor} replicas")
            elif len(partition.replica_nodes) != expected.replication_factor:
                replicas = _names(partition.replica_nodes)
                missing.append(f"{name} with replicas {replicas}, so that its reassignment is not complete")
        return missing
    return [f"no topic {expected.topic}"]


def _names(nodes: Sequence[int]) -> str:
    return f"{{{', '.join(str(node) for node in sorted(nodes))}}}"
