"""Real Kafka clients that `subscribe`: groups on real broker processes on loopback.

For each client: one member reads a topic of two partitions, a second one joins and leaves again, and the broker of the
group's coordinator is killed with SIGKILL while records go on coming. Every member commits what it has read after each
poll. In the end everything was delivered, each assignment of a partition in order, and the committed offsets that the
next coordinator tells are the ends of the partitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from threading import Event, Thread
from typing import Any, ClassVar

import pytest

from harness.cluster.loopback import LoopbackCluster
from harness.cluster.readiness import Expected
from tests.clients.test_real_clients import TOPIC_CONFIG

PARTITIONS = 2
RECORDS_A_PART = 600
SESSION_MS, HEARTBEAT_MS = 3_000, 300
PATIENCE_S = 240.0

Delivered = list[tuple[int, int, bytes]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackCluster]:
    with LoopbackCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


class Member(Thread):
    """A consumer in a thread of its own, which reads and commits until it is told to leave."""

    def __init__(self, cluster: LoopbackCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = cluster.bootstrap
        self.topic = topic
        self.delivered: Delivered = []
        self.leave = Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.consume()
        except BaseException as error:
            self.error = error
            raise

    def consume(self) -> None:
        raise NotImplementedError

    def ended(self) -> Delivered:
        self.leave.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert self.error is None, self.error
        return self.delivered


class ConfluentMember(Member):
    settings: ClassVar[Mapping[str, Any]] = {}
    assignments = 0
    """How often it was given partitions."""
    owned = 0
    """How many it was given last."""

    def assigned(self, consumer: Any, partitions: Any) -> None:
        self.assignments += 1
        self.owned = len(partitions)

    def consume(self) -> None:
        from confluent_kafka import Consumer, KafkaException

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.topic,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                **self.settings,
            }
        )
        consumer.subscribe([self.topic], on_assign=self.assigned)
        while not self.leave.is_set():
            messages = [message for message in consumer.consume(100, timeout=0.2) if message.error() is None]
            self.delivered += [(item.partition(), item.offset(), item.value()) for item in messages]
            if messages:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException:
                    continue  # a rebalance, or no coordinator: what was not committed is read again
        consumer.close()


class StaticMember(ConfluentMember):
    settings: ClassVar[Mapping[str, Any]] = {"group.instance.id": "the-one", "session.timeout.ms": 30_000}


class AiokafkaMember(Member):
    settings: ClassVar[Mapping[str, Any]] = {}

    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.errors import KafkaError

        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.topic,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_records=100,
            **self.settings,
        )
        await consumer.start()
        while not self.leave.is_set():
            batches = await consumer.getmany(timeout_ms=200)
            for partition, records in batches.items():
                self.delivered += [(partition.partition, record.offset, record.value) for record in records]
            if batches:
                try:
                    await consumer.commit()
                except KafkaError:
                    continue
        await consumer.stop()


class KafkaPythonMember(Member):
    def consume(self) -> None:
        from kafka import KafkaConsumer
        from kafka.errors import KafkaError

        consumer = KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.topic,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_records=100,
        )
        while not self.leave.is_set():
            batches = consumer.poll(timeout_ms=200)
            for partition, records in batches.items():
                self.delivered += [(partition.partition, record.offset, record.value) for record in records]
            if batches:
                try:
                    consumer.commit()
                except KafkaError:
                    continue
        consumer.close()


def create_topic(cluster: LoopbackCluster, name: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = NewTopic(name, num_partitions=PARTITIONS, replication_factor=3, config=TOPIC_CONFIG)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([topic])[name].result(30)
    cluster.wait_until_ready(Expected(name, partitions=PARTITIONS, replication_factor=3))


def produce(cluster: LoopbackCluster, topic: str, first: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for number in range(first, first + RECORDS_A_PART):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def eventually(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def described(cluster: LoopbackCluster, group: str) -> Any:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return admin.describe_consumer_groups([group])[group].result(30)


def settled(cluster: LoopbackCluster, group: str) -> int:
    """How many members share the partitions; 0 while they are being divided."""
    description = described(cluster, group)
    return len(description.members) if description.state.name == "STABLE" else 0


def committed(cluster: LoopbackCluster, group: str) -> dict[int, int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False})
    offsets = consumer.committed([TopicPartition(group, number) for number in range(PARTITIONS)], timeout=120)
    consumer.close()
    return {item.partition: item.offset for item in offsets}


def check_order(delivered: Delivered, elsewhere: Delivered) -> None:
    """A member gets the records of a partition one after the other; it goes back only to what was not committed, and
    skips only what another member got."""
    for partition in range(PARTITIONS):
        offsets = [offset for number, offset, _ in delivered if number == partition]
        others = {offset for number, offset, _ in elsewhere if number == partition}
        for one, other in pairwise(offsets):
            assert set(range(one + 1, other)) <= others
    assert all(int(value) == offset * PARTITIONS + partition for partition, offset, value in delivered)


@pytest.mark.parametrize("kind", [ConfluentMember, AiokafkaMember, KafkaPythonMember])
def test_a_group_reads_everything_across_a_rebalance_and_a_killed_coordinator(
    cluster: LoopbackCluster, kind: type[Member]
) -> None:
    topic = kind.__name__.removesuffix("Member").lower()
    create_topic(cluster, topic)
    first, second = kind(cluster, topic), kind(cluster, topic)
    produce(cluster, topic, 0)
    first.start()
    eventually("the first member reads all there is", lambda: len(first.delivered) >= RECORDS_A_PART)

    second.start()
    # Not before the group is stable: until it joins again, the first may read on and leave the second nothing.
    eventually("both are members", lambda: settled(cluster, topic) == 2)
    produce(cluster, topic, RECORDS_A_PART)
    eventually("the second member reads its share", lambda: len(second.delivered) >= RECORDS_A_PART / PARTITIONS)
    others = second.ended()

    coordinator = described(cluster, topic).coordinator.id
    cluster.kill(f"b{coordinator}")
    produce(cluster, topic, 2 * RECORDS_A_PART)
    total = 3 * RECORDS_A_PART
    eventually("everything was read", lambda: len({value for _, _, value in [*others, *first.delivered]}) == total)
    eventually(
        "everything is committed",
        lambda: committed(cluster, topic) == dict.fromkeys(range(PARTITIONS), total // PARTITIONS),
    )
    check_order(first.ended(), others)
    check_order(others, first.delivered)
    assert described(cluster, topic).coordinator.id != coordinator
    cluster.start(f"b{coordinator}")
    cluster.wait_until_ready(Expected(topic, partitions=PARTITIONS, replication_factor=3))


def test_groups_are_listed_described_and_deleted_with_their_offsets(cluster: LoopbackCluster) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
    from confluent_kafka.admin import AdminClient

    create_topic(cluster, "orders")
    produce(cluster, "orders", 0)
    member = ConfluentMember(cluster, "orders")
    member.start()
    eventually("everything is read", lambda: len(member.delivered) >= RECORDS_A_PART)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    listed = {group.group_id: group.state.name for group in admin.list_consumer_groups().result(30).valid}
    assert listed["orders"] == "STABLE"
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["orders"])["orders"].result(30)
    member.ended()
    description = described(cluster, "orders")
    assert (description.state.name, len(description.members)) == ("EMPTY", 0)
    asked = ConsumerGroupTopicPartitions("orders")
    offsets = admin.list_consumer_group_offsets([asked])["orders"].result(30).topic_partitions
    assert {item.partition: item.offset for item in offsets} == dict.fromkeys(
        range(PARTITIONS), RECORDS_A_PART // PARTITIONS
    )
    assert {item.leader_epoch for item in offsets} == {0}
    admin.delete_consumer_groups(["orders"])["orders"].result(30)
    assert "orders" not in {group.group_id for group in admin.list_consumer_groups().result(30).valid}


def test_a_static_member_comes_back_without_a_rebalance(cluster: LoopbackCluster) -> None:
    create_topic(cluster, "static")
    produce(cluster, "static", 0)
    one, other = StaticMember(cluster, "static"), ConfluentMember(cluster, "static")
    one.start()
    other.start()
    eventually("each has its share", lambda: one.owned == other.owned == PARTITIONS / 2)
    eventually("everything is read", lambda: len([*one.delivered, *other.delivered]) >= RECORDS_A_PART)
    one.ended()
    assignments = other.assignments
    before = {member.member_id for member in described(cluster, "static").members}
    assert len(before) == 2, "a static member does not leave"
    again = StaticMember(cluster, "static")
    again.start()
    produce(cluster, "static", RECORDS_A_PART)
    eventually("the one that came back reads its share", lambda: bool(again.delivered))
    after = {member.member_id for member in described(cluster, "static").members}
    assert len(after) == 2
    assert len(before & after) == 1, "its id is new, the other's is not"
    assert other.assignments == assignments
    check_order(again.ended(), [])
    check_order(other.ended(), [])


def test_clients_of_three_libraries_share_one_group(cluster: LoopbackCluster) -> None:
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    class RangeMember(AiokafkaMember):
        settings: ClassVar[Mapping[str, Any]] = {"partition_assignment_strategy": (RangePartitionAssignor,)}

    create_topic(cluster, "mixed")
    members = [kind(cluster, "mixed") for kind in (ConfluentMember, RangeMember, KafkaPythonMember)]
    for member in members:
        member.start()
    eventually("all three are members", lambda: len(described(cluster, "mixed").members) == 3)
    produce(cluster, "mixed", 0)
    eventually("everything is read", lambda: sum(len(member.delivered) for member in members) >= RECORDS_A_PART)
    delivered = [member.ended() for member in members]
    everything = [record for records in delivered for record in records]
    assert {value for _, _, value in everything} == {b"%d" % number for number in range(RECORDS_A_PART)}
    for records in delivered:
        check_order(records, everything)
