"""No request, however odd, ends a node, or costs more than the connection it came on.

Requests are well-formed, in every version of every API, and make little sense: numbers at the ends of their ranges, ids
and names of what does not exist or is none of the sender's business, damaged records, brokers that nobody started.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kio.schema.metadata.v12.request import MetadataRequest

from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC_ID
from images.wire import batch as batches
from images.wire.connection import Connection, ConnectionLost
from images.wire.messages import SUPPORTED, Api, request_class
from images.wire.schema import FieldShape, shapes
from tests.broker.small_cluster import Cluster

REQUESTS = 400
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
_NUMBERS = ("1", "true", "-5", "9" * 30)
_TEXTS = ("t", "t", "u", "", "..", "__cluster_metadata", "é..x", "\0", "x" * 249, "127.0.0.1")
_SETTINGS = ("min.insync.replicas", "unclean.leader.election.enable", "segment.bytes", "no.such.setting")
_PARTITIONS_MAX = 2
"""A topic of ten thousand partitions is legal, and slow."""


class Odd:
    """Draws requests. `topics` are the ids that exist, and some that do not."""

    def __init__(self, random: Random, topics: list[uuid.UUID]) -> None:
        self._random = random
        self._topics = topics

    def request(self, message: type) -> Any:
        values: dict[str, Any] = {}
        for shape in shapes(message):
            if shape.nullable and shape.tag is None and shape.kafka_type != "uuid" and self._random.random() < 0.1:
                values[shape.name] = None
            elif shape.array:
                values[shape.name] = tuple(self._one(shape) for _ in range(self._random.choice((0, 1, 1, 2))))
            else:
                values[shape.name] = self._one(shape)
        return message(**values)

    def _one(self, shape: FieldShape) -> Any:
        if shape.struct:
            return self.request(shape.element)
        return self._random.choice(self._values(shape))

    def _values(self, shape: FieldShape) -> tuple[Any, ...]:
        match shape.kafka_type:
            case "string":
                return _TEXTS + _NUMBERS + _SETTINGS
            case "bytes" | "records":
                whole = self._batch()
                return whole, whole, whole + whole, whole[:-1], whole[:61], bytes(70), b""
            case "bool":
                return True, False
            case "uuid":
                return tuple(self._topics)
            case "timedelta_i32" | "timedelta_i64":
                return tuple(timedelta(milliseconds=ms) for ms in (-(1 << 31), -1, 0, 1, 3))
            case kind:
                most = _PARTITIONS_MAX if shape.name == "num_partitions" else 2 ** _BITS[kind] - 1
                below = () if kind.startswith("u") else (-1, -1, -2, -3, -(2 ** _BITS[kind]))
                return (0, 1, 1, 2, most, *below)

    def _batch(self) -> bytes:
        producer = self._random.choice((-1, 7))
        return batches.build(
            [b"value"] * self._random.randint(1, 3),
            timestamp_ms=self._random.choice((-1, 0, 5, 1 << 40)),
            producer_id=producer,
            producer_epoch=-1 if producer < 0 else self._random.randint(0, 1),
            base_sequence=-1 if producer < 0 else self._random.randint(-1, 3),
        )


@pytest.mark.parametrize("seed", range(3))
def test_no_request_ends_a_node(tmp_path: Path, seed: int) -> None:
    random = Random(seed)

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        controlling = asyncio.ensure_future(cluster.controller.run(asyncio.Event()))
        async with cluster.broker() as (life, _):
            await cluster.create_topic()
            await cluster.produce(b"a")
            known = await cluster.call(MetadataRequest(topics=None, include_topic_authorized_operations=False))
            odd = Odd(random, [CLUSTER_METADATA_TOPIC_ID, uuid.UUID(int=5)] + [known.topics[0].topic_id] * 3)
            connections: dict[int, Connection] = {}
            every = [(api, version) for api in Api for version in SUPPORTED[api]]
            for _ in range(REQUESTS):
                port = random.choice(cluster.ports)
                connection = connections.get(port)
                if connection is None or connection.closed:
                    connection = connections[port] = await Connection.open("127.0.0.1", port, "odd", 5.0)
                request = odd.request(request_class(*random.choice(every)))
                try:
                    await connection.call(request, 2.0)
                except ConnectionLost:
                    pass
                assert not life.done(), request
                assert not controlling.done(), request
            for connection in connections.values():
                connection.close()
        assert not [line for line in cluster.lines if "handler" in line]
        controlling.cancel()
        await asyncio.wait((controlling,))

    async def limited() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(limited())
