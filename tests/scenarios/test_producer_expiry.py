"""Idempotent producers that come back after a long time, in a running cluster."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.produce.v11.request import PartitionProduceData, ProduceRequest, TopicProduceData

from images.wire.batch import build
from tests.scenarios.test_position_epochs import P0, TOPIC, Cluster, play

PRODUCER = 4711
EXPIRES_S = 10


async def produce(cluster: Cluster, sequence: int) -> ErrorCode:
    """The answer of the leader to a batch of one record with this sequence number."""
    name = f"producer-{sequence}-{len(cluster.clients)}"
    client = cluster.client(name)
    client.track_topic(TOPIC)
    while (leader := client.metadata.leader(*P0)) is None:
        await client.refresh()
    batch = build(
        [b"x"],
        timestamp_ms=int(asyncio.get_running_loop().time() * 1000),
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=sequence,
    )
    partition = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1,
        timeout=timedelta(seconds=5),
        topic_data=(TopicProduceData(name=TOPIC, partition_data=(partition,)),),
    )
    response: Any = await (await client.connection(leader.broker)).call(request, 10)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def test_a_producer_is_forgotten_by_every_replica_once_its_newest_batch_has_expired() -> None:
    async def scenario(cluster: Cluster) -> None:
        deployment = cluster.deployment
        assert await produce(cluster, 0) is ErrorCode.none
        await asyncio.sleep(EXPIRES_S / 2)
        assert await produce(cluster, 1) is ErrorCode.none  # the age of the newest batch counts
        await asyncio.sleep(EXPIRES_S * 0.8)
        assert await produce(cluster, 7) is ErrorCode.out_of_order_sequence_number
        await asyncio.sleep(EXPIRES_S)
        assert await produce(cluster, 7) is ErrorCode.none
        leader = (await deployment.leaders())[P0]
        await deployment.kill(leader)
        await cluster.until_led_by_another(leader)
        assert await produce(cluster, 8) is ErrorCode.none
        assert await produce(cluster, 1) is ErrorCode.out_of_order_sequence_number

    play(scenario, {"producer.id.expiration.ms": str(EXPIRES_S * 1000)})
