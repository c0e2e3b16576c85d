"""An administrator's day with real clients: four broker processes and three controllers on loopback.

Each call that confluent-kafka and kafka-python offer an administrator is made once and its effect is observed: groups,
offsets by time and with epochs, configuration, reassignments, elections, eligible leader replicas, retention, the
quorum. The cluster is shared: each test has a topic of its own and starts the nodes again that it stopped.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.administration import Administration
from harness.cluster.loopback import LoopbackCluster
from harness.cluster.readiness import Expected
from nemesis.ports import DONE

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackCluster]:
    settings = {"log.retention.check.interval.ms": "200"}
    with LoopbackCluster(tmp_path_factory.mktemp("cluster"), brokers=4, settings=settings) as started:
        yield started


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A name that no other test has."""
    return tmp_path.name


@pytest.fixture
def confluent(cluster: LoopbackCluster) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": cluster.bootstrap})


@pytest.fixture
def python(cluster: LoopbackCluster) -> Iterator[Any]:
    with kafka_python(cluster) as client:
        yield client


def kafka_python(cluster: LoopbackCluster) -> closing[Any]:
    """An administrator, which asks one broker, the one it took for the controller, for as long as it lives."""
    from kafka.admin import KafkaAdminClient

    return closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(",")))


def create_topic(cluster: LoopbackCluster, confluent: Any, topic: str, **config: str) -> None:
    """Of one partition, on the first three brokers."""
    from confluent_kafka.admin import NewTopic

    settings = {"min.insync.replicas": "2", **{key.replace("_", "."): value for key, value in config.items()}}
    wanted = NewTopic(topic, num_partitions=1, replica_assignment=[[1, 2, 3]], config=settings)
    confluent.create_topics([wanted])[topic].result(LIMIT_S)
    cluster.wait_until_ready(whole(topic))


def whole(topic: str) -> Expected:
    return Expected(topic, partitions=1, replication_factor=3)


def produce(cluster: LoopbackCluster, topic: str, count: int, size: int = 10, **settings: Any) -> list[str]:
    """The error, if any."""
    from confluent_kafka import Producer

    errors: list[str] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
    for _ in range(count):
        producer.produce(
            topic, b"x" * size, on_delivery=lambda error, _: errors.append(error.name()) if error else None
        )
    assert producer.flush(LIMIT_S) == 0
    return errors


def eventually(find: Callable[[], Any], wanted: Any) -> None:
    """Brokers read of a change a moment after it was answered."""
    until = time.monotonic() + LIMIT_S
    while (found := find()) != wanted and time.monotonic() < until:
        time.sleep(0.05)
    assert found == wanted


def patiently(ask: Callable[[], Any]) -> Any:
    """kafka-python asks a broker that has just left, or while no controller is active, and says so."""
    from kafka.errors import KafkaError

    until = time.monotonic() + LIMIT_S
    while True:
        try:
            return ask()
        except KafkaError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def partition(python: Any, topic: str) -> Mapping[str, Any]:
    described = patiently(lambda: python.describe_topic_partitions([topic]))
    found: Mapping[str, Any] = described["topics"][0]["partitions"][0]
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "snappy", "zstd"])
def test_records_compressed_by_producers_are_read_back(
    cluster: LoopbackCluster, confluent: Any, topic: str, codec: str
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    create_topic(cluster, confluent, topic)
    assert produce(cluster, topic, 200, 100, **{"compression.type": codec, "linger.ms": 5}) == []
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": codec})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = [message.value() for message in consumer.consume(200, timeout=LIMIT_S)]
    consumer.close()
    assert values == [b"x" * 100] * 200


def test_groups_are_listed_and_described_and_offsets_found_by_time_and_epoch(
    cluster: LoopbackCluster, confluent: Any, topic: str, python: Any
) -> None:
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import OffsetSpec
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Partition

    create_topic(cluster, confluent, topic)
    before_ms = int(time.time() * 1000)
    assert produce(cluster, topic, 20) == []
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    assert len(consumer.consume(20, timeout=LIMIT_S)) == 20
    consumer.commit(asynchronous=False)

    listed = {group.group_id: group.state.name for group in confluent.list_consumer_groups().result(LIMIT_S).valid}
    assert listed["readers"] == "STABLE"
    (member,) = confluent.describe_consumer_groups(["readers"])["readers"].result(LIMIT_S).members
    assert member.host == "/127.0.0.1"
    assert [(item.topic, item.partition) for item in member.assignment.topic_partitions] == [(topic, 0)]
    assert "readers" in {group["group_id"] for group in python.list_groups()}
    committed = python.list_group_offsets({"readers": None})["readers"][Partition(topic, 0)]
    assert (committed.offset, committed.leader_epoch) == (20, 0)

    (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, before_ms)], timeout=LIMIT_S)
    assert (found.offset, found.leader_epoch) == (0, 0)
    (late,) = consumer.offsets_for_times([TopicPartition(topic, 0, before_ms + 3_600_000)], timeout=LIMIT_S)
    assert late.offset == -1
    consumer.close()
    with closing(KafkaConsumer(bootstrap_servers=cluster.bootstrap.split(","))) as reader:
        at = reader.offsets_for_times({Partition(topic, 0): before_ms})[Partition(topic, 0)]
        assert (at.offset, at.leader_epoch) == (0, 0)
    end_offsets = confluent.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
    (latest,) = (future.result(LIMIT_S) for future in end_offsets.values())
    assert (latest.offset, latest.leader_epoch) == (20, 0)


def test_a_partition_moves_and_a_move_that_cannot_be_completed_is_listed_and_cancelled(
    cluster: LoopbackCluster, confluent: Any, topic: str, python: Any
) -> None:
    from kafka import TopicPartition as Partition

    t0 = Partition(topic, 0)
    create_topic(cluster, confluent, topic)
    assert produce(cluster, topic, 100) == []
    assert python.alter_partition_reassignments({t0: [4, 2, 3]}) == {t0: None}
    eventually(python.list_partition_reassignments, {})
    eventually(lambda: sorted(partition(python, topic)["isr_nodes"]), [2, 3, 4])
    # Once its broker has read of it, too: a replica that is none any more goes.
    eventually((cluster.directory / "b1" / "data" / f"{topic}-0").exists, False)

    assert cluster.stop("b1") == 0
    with kafka_python(cluster) as python:
        assert patiently(lambda: python.alter_partition_reassignments({t0: [1, 2, 3]})) == {t0: None}
        moving = {"replicas": [1, 2, 3, 4], "adding_replicas": [1], "removing_replicas": [4]}
        assert python.list_partition_reassignments() == {t0: moving}
        assert python.alter_partition_reassignments({t0: None}) == {t0: None}
        assert python.list_partition_reassignments() == {}
        eventually(lambda: sorted(partition(python, topic)["replica_nodes"]), [2, 3, 4])
    assert produce(cluster, topic, 1) == []
    cluster.start("b1")
    cluster.wait_until_ready()


def test_leadership_is_handed_over_by_a_broker_that_stops_and_back_by_a_preferred_election(
    cluster: LoopbackCluster, confluent: Any, topic: str, python: Any
) -> None:
    from confluent_kafka import ElectionType, TopicPartition

    create_topic(cluster, confluent, topic)
    assert produce(cluster, topic, 10) == []
    assert cluster.stop("b1") == 0
    assert "shut down cleanly" in cluster.log_of("b1")
    eventually(lambda: partition(python, topic)["leader_id"], 2)
    assert produce(cluster, topic, 10) == []
    cluster.start("b1")
    cluster.wait_until_ready(whole(topic))
    confluent.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(LIMIT_S)
    eventually(lambda: partition(python, topic)["leader_id"], 1)


def test_below_the_minimum_an_eligible_leader_replica_is_shown_and_a_lower_minimum_lets_producers_go_on(
    cluster: LoopbackCluster, confluent: Any, topic: str, python: Any
) -> None:
    from kafka.admin import ConfigResource

    create_topic(cluster, confluent, topic)
    for name in ("b1", "b2"):
        assert cluster.stop(name) == 0
    eventually(lambda: partition(python, topic)["eligible_leader_replicas"], [2])
    assert partition(python, topic)["isr_nodes"] == [3]
    assert produce(cluster, topic, 1, **{"message.timeout.ms": 2_000}) == ["_MSG_TIMED_OUT"]
    lower = [ConfigResource("TOPIC", topic, {"min.insync.replicas": "1"})]
    changed = patiently(lambda: python.alter_configs(lower))
    assert changed == {"topic": {topic: "OK"}}
    eventually(lambda: partition(python, topic)["eligible_leader_replicas"], None)
    assert produce(cluster, topic, 1) == []
    for name in ("b1", "b2"):
        cluster.start(name)
    cluster.wait_until_ready(whole(topic))


@pytest.mark.parametrize(("key", "value", "kept"), [("retention.bytes", "4000", True), ("retention.ms", "300", False)])
def test_retention_moves_the_log_start_and_a_consumer_below_it_goes_on_there(
    cluster: LoopbackCluster, confluent: Any, topic: str, python: Any, key: str, value: str, kept: bool
) -> None:
    from confluent_kafka import Consumer, TopicPartition
    from kafka.admin import ConfigResource

    create_topic(cluster, confluent, topic, segment_bytes="2048")
    for _ in range(10):
        assert produce(cluster, topic, 1, 1_000) == []
    python.alter_configs([ConfigResource("TOPIC", topic, {key: value})])
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})

    def start() -> int:
        first: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=LIMIT_S)[0]
        return first

    eventually(lambda: 0 < start() < 10 if kept else start() == 10, True)
    python.alter_configs([ConfigResource("TOPIC", topic, {key: "-1"})])
    assert produce(cluster, topic, 1) == []
    consumer.assign([TopicPartition(topic, 0, 0)])
    (message,) = consumer.consume(1, timeout=LIMIT_S)
    assert message.error() is None
    assert message.offset() >= start() > 0
    consumer.close()


def test_a_controller_that_stops_and_one_that_is_killed_are_succeeded(
    cluster: LoopbackCluster, confluent: Any, topic: str, python: Any
) -> None:
    def quorum() -> tuple[int, int]:
        described = patiently(python.describe_metadata_quorum)["topics"][0]["partitions"][0]
        return described["leader_id"], described["leader_epoch"]

    create_topic(cluster, confluent, topic)
    first, epoch = quorum()
    assert cluster.stop(f"c{first - 100}") == 0
    eventually(lambda: quorum()[0] not in (first, -1), True)
    cluster.start(f"c{first - 100}")
    second, _ = quorum()
    cluster.kill(f"c{second - 100}")
    eventually(lambda: quorum()[0] not in (second, -1), True)
    assert quorum()[1] >= epoch + 2
    assert produce(cluster, topic, 10) == []
    cluster.start(f"c{second - 100}")


@pytest.mark.parametrize("node", ["b1", "c1"])
def test_garbage_on_a_port_closes_its_connection_and_no_other(
    cluster: LoopbackCluster, confluent: Any, topic: str, node: str
) -> None:
    create_topic(cluster, confluent, topic)
    address = next((found.host, found.port) for found in cluster.layout.nodes if found.name == node)
    lines_before = cluster.log_of(node).count("closing, a ")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(4), b"\xff" * 4, b"\x00\x00\x00\x08abcdefgh", bytes(range(255))):
        with socket.create_connection(address, LIMIT_S) as connection:
            connection.sendall(garbage)
            if len(garbage) < 255:
                assert connection.recv(100) == b""
    assert cluster.log_of(node).count("closing, a ") >= lines_before + 4
    assert "Traceback" not in cluster.log_of(node)
    assert produce(cluster, topic, 10) == []
    assert cluster.stop(node) == 0
    cluster.start(node)
    cluster.wait_until_ready()


def test_the_administrator_of_the_nemesis_creates_a_topic_again_that_it_has_deleted(
    cluster: LoopbackCluster, topic: str
) -> None:
    """With records of today, which no retention deletes."""
    admin = Administration(
        cluster.layout, lambda: 0, negotiate_versions=True, unix_ms=lambda: round(time.time() * 1000)
    )

    async def appended(acks: int) -> None:
        while (answer := await admin.append(topic, 0, [b"a", b"b"], acks)).outcome != DONE:
            assert answer.outcome in ("UNANSWERED", "NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION")
            await asyncio.sleep(0.05)

    async def scenario() -> list[str]:
        outcomes = [(await admin.create_topic(topic, 3)).outcome]
        outcomes.append((await admin.create_topic(topic, 3)).outcome)
        for acks in (1, -1):
            await appended(acks)
        assert await admin.offsets(topic, 0) == (0, 4)
        outcomes += [(await admin.delete_topic(topic)).outcome for _ in range(2)]
        outcomes.append((await admin.create_topic(topic, 3)).outcome)
        await appended(-1)
        assert await admin.offsets(topic, 0) == (0, 2)
        return outcomes

    created, deleted = [DONE, "TOPIC_ALREADY_EXISTS"], [DONE, "UNKNOWN_TOPIC_OR_PARTITION"]
    assert asyncio.run(asyncio.wait_for(scenario(), LIMIT_S)) == [*created, *deleted, DONE]
