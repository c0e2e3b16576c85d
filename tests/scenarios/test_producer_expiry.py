"""Idempotent producers that come back after a long time, in a running cluster."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.produce.v11.request import PartitionProduceData, ProduceRequest, TopicProduceData

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.wire.batch import build
from tests.scenarios.test_position_epochs import P0, TOPIC, Cluster, play

LEADER_CUT_OFF = {"for": 4, "fault": "partition", "shape": "leader-only", "nodes": ["leader/0"]}
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

    settings = {"producer.id.expiration.ms": EXPIRES_S * 1000, "producer.id.expiration.check.interval.ms": 200}
    play(scenario, {key: str(value) for key, value in settings.items()})


def test_no_batch_is_appended_again_because_another_one_has_a_much_later_time() -> None:
    """Clocks of producers are an hour wrong at most, and jump; a state expires after half an hour. A retry whose first
    copy stood before a batch of a later time was taken for the first batch of a new producer."""
    clients = {"clock_error": "3600s", "request_timeout": "0.7s", "delivery_timeout": "20s", "pipeline": 20}
    spec = {
        "seed": 2,
        "time_limit": "22s",
        "partitions": 1,
        "producers": 4,
        "rate": 8,
        "clients": clients,
        "settings": {"producer.id.expiration.ms": "1800000", "replica.lag.time.max.ms": "10000"},
        "faults": [{"at": at_s, **LEADER_CUT_OFF} for at_s in (3, 10, 17)],
    }
    outcome = run_in_simulation(parse(spec))
    assert outcome.validity is Validity.VALID, outcome.verdicts
