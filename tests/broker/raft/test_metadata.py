"""Metadata records survive encoding, and an image depends only on its records."""

from __future__ import annotations

import copy
import pickle
import uuid
from dataclasses import replace

import pytest

from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import (
    ChangeBroker,
    ClusterImage,
    MetadataError,
    PartitionImage,
    ProducerIdsBlock,
    Record,
    RegisterBroker,
    RemoveTopic,
    TopicConfigRecord,
    TopicRecord,
    decode,
    encode,
)

ORDERS = uuid.UUID(int=7)
PARTITION = PartitionImage("orders", ORDERS, 0, (1, 2, 3), (1, 2), (3,), (), 1, 4, 9)
RECORDS: tuple[Record, ...] = (
    RegisterBroker(1, "first", "b1", 9092),
    ChangeBroker(1, 0, fenced=False, shutting_down=False),
    TopicRecord("orders", ORDERS),
    TopicConfigRecord("orders", FrozenMap({"min.insync.replicas": "2"})),
    PARTITION,
    ProducerIdsBlock(1000),
    RemoveTopic("orders", ORDERS),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_survives_its_encoding(record: Record) -> None:
    assert decode(encode(record)) == record


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{}", b'{"type":"Unheard"}', b'{"type":"RegisterBroker"}'])
def test_garbage_is_refused_and_not_applied(value: bytes) -> None:
    with pytest.raises(MetadataError):
        decode(value)


def test_a_broker_epoch_is_the_offset_of_its_registration_and_it_starts_fenced() -> None:
    image = ClusterImage(offset=40).apply(RegisterBroker(1, "first", "b1", 9092), 42)
    assert (image.brokers[1].epoch, image.brokers[1].fenced, image.offset) == (42, True, 43)
    assert not image.is_active(1)


def test_unfencing_keeps_the_broker_epoch() -> None:
    image = ClusterImage().apply_all(RECORDS[:2], 0)
    assert image.brokers[1].epoch == 0
    assert image.is_active(1)


def test_a_shutting_down_broker_is_registered_but_not_active() -> None:
    image = ClusterImage().apply_all([RECORDS[0], ChangeBroker(1, 0, fenced=False, shutting_down=True)], 0)
    assert not image.is_active(1)


def test_a_topic_is_found_by_name_and_by_id_until_it_is_removed() -> None:
    image = ClusterImage().apply_all(RECORDS[:6], 0)
    assert image.topic_by_id(ORDERS) == image.topics["orders"]
    assert image.partition("orders", 0) == PARTITION
    assert (image.partition("orders", 1), image.partition("orders", -1), image.partition("absent", 0)) == (None,) * 3
    removed = image.apply(RECORDS[6], 6)
    assert removed.topic_by_id(ORDERS) is None
    assert "orders" not in removed.topics
    assert image.topic_by_id(ORDERS) is not None, "the image before is untouched"


def test_a_partition_record_replaces_the_partition_it_names() -> None:
    second = replace(PARTITION, index=1)
    image = ClusterImage().apply_all([*RECORDS[2:5], second, replace(PARTITION, leader=2)], 0)
    assert image.topics["orders"].partitions == (replace(PARTITION, leader=2), second)


def test_min_isr_never_exceeds_the_number_of_replicas() -> None:
    image = ClusterImage().apply_all(RECORDS[2:5], 0)
    topic = image.topics["orders"]
    assert topic.min_isr(PARTITION) == 2
    assert topic.min_isr(replace(PARTITION, replicas=(1,))) == 1


@pytest.mark.parametrize(
    "record",
    [
        ChangeBroker(1, 5, fenced=False, shutting_down=False),
        ChangeBroker(2, 0, fenced=False, shutting_down=False),
        TopicRecord("orders", uuid.UUID(int=8)),
        TopicConfigRecord("absent", FrozenMap()),
        RemoveTopic("absent", ORDERS),
        replace(PARTITION, index=3),
        replace(PARTITION, topic_id=uuid.UUID(int=8)),
    ],
    ids=["other epoch", "unregistered", "topic twice", "no topic", "no topic to remove", "gap", "other topic id"],
)
def test_a_record_that_contradicts_the_ones_before_it_is_refused(record: Record) -> None:
    image = ClusterImage().apply_all(RECORDS[:5], 0)
    with pytest.raises(MetadataError):
        image.apply(record, image.offset)


def test_a_record_is_never_applied_twice() -> None:
    image = ClusterImage().apply(RECORDS[0], 0)
    with pytest.raises(MetadataError):
        image.apply(RECORDS[0], 0)


def test_equal_images_are_equal_values_whatever_the_order_of_their_keys() -> None:
    one = FrozenMap({2: "b", 1: "a"})
    other = FrozenMap({1: "a"}).set(2, "b")
    assert one == other
    assert hash(one) == hash(other)
    assert list(one) == list(other) == [1, 2]
    assert FrozenMap({1: "a", 2: "b", 3: "c"}).remove(3) == one
    assert hash(ClusterImage().apply_all(RECORDS[:6], 0)) == hash(ClusterImage().apply_all(RECORDS[:6], 0))


def test_a_frozen_map_does_not_change_when_another_is_made_from_it() -> None:
    one = FrozenMap({1: "a"})
    one.set(2, "b")
    one.set(1, "z")
    one.remove(1)
    assert one == {1: "a"}
    hash(one)
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
