"""Topics and producer ids, and the log and the trace of a controller (docs/protocol.md, section 5)."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode

from images.broker.controller.alter_partition import AlterPartition
from images.broker.controller.placement import NewTopic
from images.broker.controller.requests import TopicResult
from images.broker.frozen_map import FrozenMap
from tests.broker.controller.controller_driver import (
    ASSIGNED,
    OTHER_ID,
    TOPIC,
    Driver,
    changed,
    create_topics,
    new_topic,
    partition_of_three,
    replayed,
)


def test_replicas_are_placed_round_robin_from_the_start_drawn() -> None:
    driver = Driver()
    driver.start(1, 2, 3)
    create_topics(driver, new_topic(partitions=3, replication_factor=2, start=2))
    partitions = driver.image.topics[TOPIC].partitions
    assert [p.replicas for p in partitions] == [(3, 1), (1, 2), (2, 3)]
    assert [(p.leader, p.isr) for p in partitions] == [(3, (3, 1)), (1, (1, 2)), (2, (2, 3))]


def test_a_topic_records_the_settings_the_controller_goes_by_even_when_nobody_gave_them() -> None:
    driver = Driver()
    driver.start(1)
    create_topics(
        driver, new_topic(config=FrozenMap({"segment.bytes": "4096", "unclean.leader.election.enable": " TRUE"}))
    )
    assert driver.image.topics[TOPIC].config == {
        "min.insync.replicas": "1",
        "segment.bytes": "4096",
        "unclean.leader.election.enable": "true",
        "unclean.recovery.strategy": "last-known-leader",
    }


def test_an_explicit_assignment_is_taken_and_only_active_replicas_are_in_sync() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.register(3)
    explicit = new_topic(partitions=-1, replication_factor=-1, assignments=((1, (2, 1)), (0, (3, 2))))
    (result,) = create_topics(driver, explicit)
    assert result.topic is not None
    assert [(p.replicas, p.isr, p.leader) for p in result.topic.partitions] == [
        ((3, 2), (2,), 2),
        ((2, 1), (2, 1), 2),
    ]


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (new_topic(""), ErrorCode.invalid_topic_exception),
        (new_topic("."), ErrorCode.invalid_topic_exception),
        (new_topic("a b"), ErrorCode.invalid_topic_exception),
        (new_topic("a\n"), ErrorCode.invalid_topic_exception),
        (new_topic("x" * 250), ErrorCode.invalid_topic_exception),
        (new_topic("__cluster_metadata"), ErrorCode.invalid_topic_exception),
        (new_topic("taken"), ErrorCode.topic_already_exists),
        (new_topic(config=FrozenMap({"no.such.key": "1"})), ErrorCode.invalid_config),
        (new_topic(config=FrozenMap({"min.insync.replicas": "0"})), ErrorCode.invalid_config),
        (new_topic(config=FrozenMap({"min.insync.replicas": "many"})), ErrorCode.invalid_config),
        (new_topic(partitions=0), ErrorCode.invalid_partitions),
        (new_topic(partitions=-2), ErrorCode.invalid_partitions),
        (new_topic(partitions=2**31 - 1), ErrorCode.policy_violation),
        (new_topic(replication_factor=0), ErrorCode.invalid_replication_factor),
        (new_topic(replication_factor=3), ErrorCode.invalid_replication_factor),
        (new_topic(assignments=((0, (1,)),)), ErrorCode.invalid_request),
        (new_topic(**ASSIGNED, assignments=((1, (1,)),)), ErrorCode.invalid_replica_assignment),
        (new_topic(**ASSIGNED, assignments=((0, (1,)), (0, (2,)))), ErrorCode.invalid_replica_assignment),
        (new_topic(**ASSIGNED, assignments=((0, ()),)), ErrorCode.invalid_replica_assignment),
        (new_topic(**ASSIGNED, assignments=((0, (1, 1)),)), ErrorCode.invalid_replica_assignment),
        (new_topic(**ASSIGNED, assignments=((0, (7,)),)), ErrorCode.invalid_replica_assignment),
        (new_topic(**ASSIGNED, assignments=((0, (3,)),)), ErrorCode.invalid_replica_assignment),
        (new_topic(**ASSIGNED, assignments=((0, (1, 2)), (1, (1,)))), ErrorCode.invalid_replica_assignment),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_kafkas_error(topic: NewTopic, error: ErrorCode) -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.register(3)  # registered, never unfenced
    create_topics(driver, new_topic("taken", topic_id=OTHER_ID))
    results = []
    assert not changed(driver, lambda: results.extend(create_topics(driver, topic)))
    assert results[0].error is error
    assert results[0].message


def test_a_request_for_more_than_ten_thousand_partitions_in_all_is_refused_as_a_whole() -> None:
    driver = Driver()
    driver.start(1)
    topics = [new_topic(name, partitions=5_000, topic_id=uuid.UUID(int=at)) for at, name in enumerate("ab", 80)]
    explicit = new_topic("c", partitions=-1, replication_factor=-1, assignments=((0, (1,)),))
    by_default = new_topic("c", partitions=-1)
    results: list[TopicResult] = []
    assert not changed(driver, lambda: results.extend(create_topics(driver, *topics, explicit)))
    assert not changed(driver, lambda: results.extend(create_topics(driver, *topics, by_default)))
    assert [(result.name, result.error) for result in results] == [
        (name, ErrorCode.policy_violation) for name in "abcabc"
    ]
    assert {result.error for result in create_topics(driver, *topics)} == {ErrorCode.none}


def test_a_value_longer_than_the_metadata_stores_is_refused() -> None:
    driver = Driver()
    driver.start(1)
    throttled = ",".join(["0:1"] * 10_000)
    (result,) = create_topics(driver, new_topic(config=FrozenMap({"leader.replication.throttled.replicas": throttled})))
    assert result.error is ErrorCode.invalid_config
    assert "at most 32767" in (result.message or "")


def test_a_name_given_twice_in_one_request_is_refused_once_and_the_others_are_created() -> None:
    driver = Driver()
    driver.start(1)
    results = create_topics(driver, new_topic("a"), new_topic("b", topic_id=OTHER_ID), new_topic("a"))
    assert [(result.name, result.error) for result in results] == [
        ("a", ErrorCode.invalid_request),
        ("b", ErrorCode.none),
    ]
    assert list(driver.image.topics) == ["b"]


def test_topics_whose_metrics_would_be_one_do_not_exist_side_by_side() -> None:
    driver = Driver()
    driver.start(1)
    results = create_topics(
        driver, new_topic("a.b_c"), new_topic("a_b.c", topic_id=OTHER_ID), new_topic("a-b.c", topic_id=OTHER_ID)
    )
    assert [result.error for result in results] == [
        ErrorCode.none,
        ErrorCode.invalid_topic_exception,
        ErrorCode.none,
    ]


def test_validating_creates_nothing() -> None:
    driver = Driver()
    driver.start(1)
    results = []
    assert not changed(driver, lambda: results.extend(create_topics(driver, new_topic(), validate_only=True)))
    assert results[0].error is ErrorCode.none
    assert TOPIC not in driver.image.topics


def test_topics_are_deleted_by_name_or_by_id() -> None:
    driver = Driver()
    driver.start(1)
    create_topics(driver, new_topic("a"), new_topic("b", topic_id=OTHER_ID))
    wanted = [("a", None), (None, OTHER_ID), ("c", None), (None, uuid.UUID(int=77)), (None, None)]
    results = driver.commit(driver.controller.delete_topics(wanted))
    assert [result.error for result in results] == [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.invalid_request,
    ]
    assert len(driver.image.topics) == 0


def test_a_topic_given_twice_is_not_deleted_and_refused_once() -> None:
    driver = Driver()
    driver.start(1)
    create_topics(driver, new_topic("a"), new_topic("b", topic_id=OTHER_ID))
    wanted = [("a", None), ("a", None), ("b", None), (None, OTHER_ID)]
    results = driver.commit(driver.controller.delete_topics(wanted))
    assert [(result.name, result.topic_id, result.error) for result in results] == [
        ("a", None, ErrorCode.invalid_request),
        ("b", OTHER_ID, ErrorCode.invalid_request),
    ]
    assert list(driver.image.topics) == ["a", "b"]


def test_no_producer_id_is_given_twice() -> None:
    driver = Driver()
    driver.start(1, 2)
    first = driver.commit(driver.controller.allocate_producer_ids(1, driver.epoch(1)))
    second = driver.commit(driver.controller.allocate_producer_ids(2, driver.epoch(2)))
    assert (first.first, first.count, second.first) == (0, 1000, 1000)


def test_replaying_the_records_gives_the_same_image() -> None:
    driver = partition_of_three()
    assert replayed(driver.log) == driver.image
    assert hash(replayed(driver.log)) == hash(driver.image)


def test_a_step_that_is_not_committed_has_changed_nothing() -> None:
    driver = partition_of_three()
    before = driver.controller
    driver.controller.tick(10**9)
    driver.controller.alter_partition(AlterPartition(2, driver.epoch(2), (driver.proposal(2),)))
    assert driver.controller == before


def test_each_change_of_a_partition_is_traced_with_its_whole_state() -> None:
    driver = Driver()
    driver.start(1, 2)
    driver.topic(1, 2, min_isr=2)
    driver.fence(1)
    event = driver.events("partition_changed")[-1]
    assert (event.topic, event.partition, event.leader, event.leader_epoch) == (TOPIC, 0, 2, 1)
    assert (event.partition_epoch, event.members) == (1, (2,))
    assert event.detail == {
        "elr": [1],
        "last_known_elr": [],
        "replicas": [1, 2],
        "adding": [],
        "removing": [],
        "min_isr": 2,
        "reason": "fenced",
        "unclean": False,
    }
    assert [event.detail["reason"] for event in driver.events("broker_fenced")] == ["session_timeout"]
