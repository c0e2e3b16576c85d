"""Real Kafka clients delete records, and read what is left, also when the leader is killed after it answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from random import Random

import pytest

from harness.cluster.loopback import LoopbackCluster
from harness.cluster.readiness import Expected
from tests.clients.test_real_clients import kill_leader, restart
from workloads.clients.native import EARLIEST, AdminClient, Client, Consumer

RECORDS = 100
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackCluster]:
    with LoopbackCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


def filled_topic(cluster: LoopbackCluster, name: str, **config: str) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {"min.insync.replicas": "2", **{key.replace("_", "."): value for key, value in config.items()}}
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=3, config=settings)])[name].result(30)
    cluster.wait_until_ready(Expected(name, partitions=1, replication_factor=3))
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(60) == 0


def read_from_earliest(cluster: LoopbackCluster, name: str, count: int) -> list[tuple[int, bytes]]:
    """The records that a consumer at 0 reads after its reset to the earliest offset."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(name, 0, 0)])
    records: list[tuple[int, bytes]] = []
    while len(records) < count:
        messages = consumer.consume(count, timeout=LIMIT_S)
        assert messages, f"only {len(records)} of {count} records came"
        records += [(message.offset(), message.value()) for message in messages]
    consumer.close()
    return records


def test_confluent_kafka_deletes_records_and_they_stay_deleted_when_the_leader_is_killed(
    cluster: LoopbackCluster,
) -> None:
    from confluent_kafka import KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient

    filled_topic(cluster, "confluent")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_records([TopicPartition("confluent", 0, 40)]).values()
    assert deleted.result(LIMIT_S).low_watermark == 40
    (refused,) = admin.delete_records([TopicPartition("confluent", 0, RECORDS + 1)]).values()
    with pytest.raises(KafkaException) as raised:
        refused.result(LIMIT_S)
    assert raised.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    killed = kill_leader(cluster, "confluent")
    left = [(number, b"%d" % number) for number in range(40, RECORDS)]
    assert read_from_earliest(cluster, "confluent", RECORDS - 40) == left
    restart(cluster, killed, "confluent")
    assert read_from_earliest(cluster, "confluent", RECORDS - 40) == left


def test_kafka_python_and_the_native_client_delete_records(cluster: LoopbackCluster) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

    filled_topic(cluster, "kafka-python")
    bootstrap = cluster.bootstrap.split(",")
    partition = TopicPartition("kafka-python", 0)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    assert admin.delete_records({partition: 25})[partition]["low_watermark"] == 25
    admin.close()

    async def delete_natively() -> int:
        addresses = [(node.host, node.port) for node in cluster.layout.brokers]
        client = Client(addresses, "test", Random(1))
        try:
            return await AdminClient(client).delete_records("kafka-python", 0, -1, LIMIT_S)
        finally:
            await client.close()

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    assert consumer.beginning_offsets([partition]) == {partition: 25}
    assert asyncio.run(delete_natively()) == RECORDS
    assert consumer.beginning_offsets([partition]) == consumer.end_offsets([partition]) == {partition: RECORDS}
    consumer.close()


def test_records_of_a_real_client_expire_by_their_timestamps(cluster: LoopbackCluster) -> None:
    """Real clients write Unix time; what is of today expires in a topic that keeps a millisecond, and not in others."""
    filled_topic(cluster, "kept")
    filled_topic(cluster, "expires", retention_ms="1")

    async def starts() -> list[int | None]:
        client = Client([(node.host, node.port) for node in cluster.layout.brokers], "test", Random(1))
        consumer = Consumer(client)
        try:
            deadline_s = time.monotonic() + LIMIT_S
            while True:
                found = [(await consumer.list_offset(name, 0, EARLIEST)).offset for name in ("kept", "expires")]
                if found[1] == RECORDS or time.monotonic() >= deadline_s:
                    return found
                await asyncio.sleep(0.1)
        finally:
            await consumer.close()
            await client.close()

    assert asyncio.run(starts()) == [0, RECORDS]
