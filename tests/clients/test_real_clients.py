"""Real Kafka clients against real broker processes on loopback: nothing here is simulated.

Each client produces 10,000 records with idempotence where it has it, while the leader of the partition is killed with
SIGKILL, and reads them back: all of them, in order, once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from harness.cluster.loopback import LoopbackCluster
from harness.cluster.readiness import Expected

RECORDS = 10_000
KILL_AFTER = 3_000
TOPIC_CONFIG = {"min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackCluster]:
    with LoopbackCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def create_topic(cluster: LoopbackCluster, name: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic(name, num_partitions=1, replication_factor=3, config=TOPIC_CONFIG)
    admin.create_topics([topic])[name].result(30)
    cluster.wait_until_ready(Expected(name, partitions=1, replication_factor=3))


def kill_leader(cluster: LoopbackCluster, topic: str) -> str:
    from confluent_kafka.admin import AdminClient

    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=120)
    name = f"b{metadata.topics[topic].partitions[0].leader}"
    cluster.kill(name)
    return name


def restart(cluster: LoopbackCluster, name: str, topic: str) -> None:
    cluster.start(name)
    cluster.wait_until_ready(Expected(topic, partitions=1, replication_factor=3))


def value(number: int) -> bytes:
    return b"%d" % number


EXPECTED = [value(number) for number in range(RECORDS)]


def test_confluent_kafka_loses_and_repeats_nothing_across_a_killed_leader(cluster: LoopbackCluster) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    create_topic(cluster, "confluent")
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5, "acks": "all"}
    )
    errors: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(error)

    killed = ""
    for number in range(RECORDS):
        producer.produce("confluent", value(number), partition=0, on_delivery=delivered)
        producer.poll(0)
        if number == KILL_AFTER:
            killed = kill_leader(cluster, "confluent")
    assert producer.flush(60) == 0
    assert not errors
    restart(cluster, killed, "confluent")
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition("confluent", 0, 0)])
    values: list[bytes | None] = []
    while len(values) < RECORDS:
        messages = consumer.consume(RECORDS, timeout=120)
        assert messages, f"only {len(values)} records came"
        values += [message.value() for message in messages]
    assert not consumer.consume(1, timeout=1)
    consumer.close()
    assert values == EXPECTED


def test_aiokafka_loses_and_repeats_nothing_across_a_killed_leader(cluster: LoopbackCluster) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    create_topic(cluster, "aiokafka")

    async def produce() -> str:
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True, linger_ms=5)
        await producer.start()
        waiting, killed = [], ""
        for number in range(RECORDS):
            waiting.append(await producer.send("aiokafka", value(number), partition=0))
            if number == KILL_AFTER:
                killed = await asyncio.to_thread(kill_leader, cluster, "aiokafka")
        await asyncio.gather(*waiting)
        await producer.stop()
        return killed

    async def consume() -> list[bytes | None]:
        consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, enable_auto_commit=False)
        await consumer.start()
        partition = TopicPartition("aiokafka", 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = (await consumer.end_offsets([partition]))[partition]
        values: list[bytes | None] = []
        while len(values) < end:
            batches = await consumer.getmany(partition, timeout_ms=120_000)
            assert batches, f"only {len(values)} of {end} records came"
            values += [record.value for record in batches[partition]]
        await consumer.stop()
        return values

    restart(cluster, asyncio.run(produce()), "aiokafka")
    assert asyncio.run(consume()) == EXPECTED


def test_kafka_python_loses_and_repeats_nothing_across_a_killed_leader(cluster: LoopbackCluster) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    create_topic(cluster, "kafka-python")
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap.split(","), enable_idempotence=True, acks="all", linger_ms=5
    )
    waiting, killed = [], ""
    for number in range(RECORDS):
        waiting.append(producer.send("kafka-python", value(number), partition=0))
        if number == KILL_AFTER:
            killed = kill_leader(cluster, "kafka-python")
    for future in waiting:
        future.get(60)
    producer.close()
    restart(cluster, killed, "kafka-python")
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap.split(","), enable_auto_commit=False)
    partition = TopicPartition("kafka-python", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    end = consumer.end_offsets([partition])[partition]
    values: list[bytes | None] = []
    while len(values) < end:
        batches = consumer.poll(timeout_ms=120_000)
        assert batches, f"only {len(values)} of {end} records came"
        values += [record.value for record in batches[partition]]
    consumer.close()
    assert values == EXPECTED


def test_a_broker_stopped_with_sigterm_hands_over_and_comes_back_clean(cluster: LoopbackCluster) -> None:
    create_topic(cluster, "rolling")
    before = registrations(cluster)
    assert cluster.stop("b1") == 0
    assert "shut down cleanly" in cluster.log_of("b1")
    restart(cluster, "b1", "rolling")
    assert registrations(cluster) == [*before, True]


def registrations(cluster: LoopbackCluster) -> list[bool]:
    """Of the first broker: whether each was clean."""
    trace = (cluster.directory / "b1" / "trace.jsonl").read_text()
    return [json.loads(line)["detail"]["clean"] for line in trace.splitlines() if '"kind":"registered"' in line]
