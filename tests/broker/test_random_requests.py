"""No request, however odd, ends a node, or costs more than the connection it came on.

Requests are well-formed, in every version of every API, and make little sense: numbers at the ends of their ranges, ids
and names of what does not exist or is none of the sender's business, damaged records, brokers that nobody started.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from random import Random

import pytest
from kio.schema.metadata.v12.request import MetadataRequest

from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC_ID
from images.wire.connection import Connection, ConnectionLost
from images.wire.messages import SUPPORTED, Api, request_class
from tests.broker.small_cluster import Cluster
from tests.fuzz.requests import OddRequests

REQUESTS = 400


@pytest.mark.parametrize("seed", range(3))
def test_no_request_ends_a_node(tmp_path: Path, seed: int) -> None:
    random = Random(seed)

    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        controlling = asyncio.ensure_future(cluster.controller.run(asyncio.Event()))
        async with cluster.broker() as (life, _):
            await cluster.create_topic()
            await cluster.produce(b"a")
            await cluster.coordinate("t")
            known = await cluster.call(MetadataRequest(topics=None, include_topic_authorized_operations=False))
            odd = OddRequests(random, [CLUSTER_METADATA_TOPIC_ID, uuid.UUID(int=5)] + [known.topics[0].topic_id] * 3)
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
