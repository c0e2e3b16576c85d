"""The leader of each partition, as the brokers themselves report it over Kafka's protocol.

All brokers are asked at once, with a short limit, since some may be cut off or frozen. They may disagree: the answer
with the highest leader epoch is the latest, so a broker that was deposed and does not know it is outvoted by any
that does. A broker that is cut off counts as the leader until another is elected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kio.schema.metadata.v12.request import MetadataRequest

from images.wire.connection import Connection, ConnectionLost

ANSWER_LIMIT_S = 0.4


class LeaderLookup:
    """Asks all brokers, over one connection each, kept open from one question to the next."""

    def __init__(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """`addresses`: Kafka's node.id → (host, port) of every broker."""
        self._addresses = dict(addresses)
        self._connections: dict[int, Connection] = {}

    async def leaders(self) -> dict[tuple[str, int], int]:
        """(topic, partition) → node.id of its leader; absent when there is none, or no broker answers."""
        latest: dict[tuple[str, int], tuple[int, int]] = {}
        for answer in await asyncio.gather(*(self._ask(node_id) for node_id in self._addresses)):
            for topic in answer.topics if answer is not None else ():
                for partition in topic.partitions:
                    place = (str(topic.name), int(partition.partition_index))
                    leader = (int(partition.leader_epoch), int(partition.leader_id))
                    latest[place] = max(latest.get(place, leader), leader)
        return {place: leader for place, (_, leader) in latest.items() if leader >= 0}

    def close(self) -> None:
        """Close every connection. May be called twice."""
        for connection in self._connections.values():
            connection.close()

    async def _ask(self, node_id: int) -> Any:
        try:
            connection = self._connections.get(node_id)
            if connection is None or connection.closed:
                host, port = self._addresses[node_id]
                connection = await Connection.open(host, port, "faultline-leadership", ANSWER_LIMIT_S)
                self._connections[node_id] = connection
            request = MetadataRequest(
                topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
            return await connection.call(request, ANSWER_LIMIT_S)
        except ConnectionLost:
            return None
