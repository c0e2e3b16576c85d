"""Partitions are added to a topic (CreatePartitions)."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode

from images.broker.controller.placement import NewPartitions, NewTopic
from images.broker.controller.requests import TopicResult
from tests.broker.controller.controller_driver import TOPIC, TOPIC_ID, Driver, changed, replayed


def cluster() -> Driver:
    """Two active brokers, one fenced one, and a topic of two partitions with two replicas each."""
    driver = Driver()
    driver.start(1, 2)
    driver.register(3)
    driver.commit(driver.controller.create_topics([NewTopic(TOPIC, TOPIC_ID, partitions=2, replication_factor=2)]))
    return driver


def enlarge(driver: Driver, *requests: NewPartitions, validate_only: bool = False) -> tuple[TopicResult, ...]:
    results: tuple[TopicResult, ...] = driver.commit(
        driver.controller.create_partitions(requests, validate_only=validate_only)
    )
    return results


def test_partitions_are_added_behind_the_others_with_as_many_replicas_and_traced() -> None:
    driver = cluster()
    before = driver.image.topics[TOPIC].partitions
    (result,) = enlarge(driver, NewPartitions(TOPIC, 4, start=1))
    partitions = driver.image.topics[TOPIC].partitions
    assert result.error is ErrorCode.none
    assert partitions[:2] == before
    assert [(p.index, p.replicas, p.isr, p.leader, p.leader_epoch) for p in partitions[2:]] == [
        (2, (2, 1), (2, 1), 2, 0),
        (3, (1, 2), (1, 2), 1, 0),
    ]
    assert {p.topic_id for p in partitions} == {TOPIC_ID}
    assert [(event.partition, event.detail["reason"]) for event in driver.events("partition_changed")[-2:]] == [
        (2, "created"),
        (3, "created"),
    ]
    assert replayed(driver.log) == driver.image


def test_an_assignment_is_taken_and_only_active_replicas_are_in_sync() -> None:
    driver = cluster()
    (result,) = enlarge(driver, NewPartitions(TOPIC, 3, assignments=((3, 2),)))
    assert result.error is ErrorCode.none
    added = driver.image.topics[TOPIC].partitions[2]
    assert (added.replicas, added.isr, added.leader) == ((3, 2), (2,), 2)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (NewPartitions("unknown", 3), ErrorCode.unknown_topic_or_partition),
        (NewPartitions("", 3), ErrorCode.unknown_topic_or_partition),
        (NewPartitions(TOPIC, 2), ErrorCode.invalid_partitions),
        (NewPartitions(TOPIC, 1), ErrorCode.invalid_partitions),
        (NewPartitions(TOPIC, -(2**31)), ErrorCode.invalid_partitions),
        (NewPartitions(TOPIC, 2**31 - 1), ErrorCode.policy_violation),
        (NewPartitions(TOPIC, 10_001, assignments=((1, 2),) * 9_999), ErrorCode.policy_violation),
        (NewPartitions(TOPIC, 2**31 - 1, assignments=()), ErrorCode.invalid_replica_assignment),
        (NewPartitions(TOPIC, 3, assignments=()), ErrorCode.invalid_replica_assignment),
        (NewPartitions(TOPIC, 3, assignments=((1, 2), (2, 1))), ErrorCode.invalid_replica_assignment),
        (NewPartitions(TOPIC, 3, assignments=((),)), ErrorCode.invalid_replica_assignment),
        (NewPartitions(TOPIC, 3, assignments=((1, 1),)), ErrorCode.invalid_replica_assignment),
        (NewPartitions(TOPIC, 3, assignments=((1, 7),)), ErrorCode.invalid_replica_assignment),
        (NewPartitions(TOPIC, 3, assignments=((1,),)), ErrorCode.invalid_replica_assignment),
        (NewPartitions(TOPIC, 3, assignments=((1, 2, 3),)), ErrorCode.invalid_replica_assignment),
        (NewPartitions("__consumer_offsets", 9), ErrorCode.invalid_topic_exception),
    ],
)
def test_what_cannot_be_is_refused_with_kafkas_error(request_: NewPartitions, error: ErrorCode) -> None:
    driver = cluster()
    driver.commit(
        driver.controller.create_topics(
            [NewTopic("__consumer_offsets", uuid.UUID(int=71), partitions=1, replication_factor=1)]
        )
    )
    results: list[TopicResult] = []
    assert not changed(driver, lambda: results.extend(enlarge(driver, request_)))
    assert results[0].error is error
    assert results[0].message


def test_new_partitions_of_brokers_that_are_all_fenced_are_refused() -> None:
    driver = cluster()
    driver.commit(driver.controller.tick(driver.now_ms + 1_000))
    driver.commit(driver.controller.tick(driver.now_ms + 1_000))
    (placed,) = enlarge(driver, NewPartitions(TOPIC, 3))
    (assigned,) = enlarge(driver, NewPartitions(TOPIC, 3, assignments=((1, 2),)))
    assert placed.error is ErrorCode.invalid_replication_factor
    assert assigned.error is ErrorCode.invalid_replica_assignment


def test_a_topic_given_twice_is_refused_once_and_the_others_are_enlarged() -> None:
    driver = cluster()
    results = enlarge(driver, NewPartitions(TOPIC, 3), NewPartitions("unknown", 3), NewPartitions(TOPIC, 4))
    assert [(result.name, result.error) for result in results] == [
        (TOPIC, ErrorCode.invalid_request),
        ("unknown", ErrorCode.unknown_topic_or_partition),
    ]
    assert len(driver.image.topics[TOPIC].partitions) == 2


def test_a_request_for_more_than_ten_thousand_partitions_in_all_is_refused_as_a_whole() -> None:
    driver = cluster()
    driver.commit(driver.controller.create_topics([NewTopic("u", uuid.UUID(int=72), partitions=1)]))
    results: list[TopicResult] = []
    requests = NewPartitions(TOPIC, 5_002), NewPartitions("u", 5_002), NewPartitions("unknown", 9_000)
    assert not changed(driver, lambda: results.extend(enlarge(driver, *requests)))
    assert [result.error for result in results] == [ErrorCode.policy_violation] * 3
    results = list(enlarge(driver, NewPartitions(TOPIC, 5_002), NewPartitions("u", 5_001)))
    assert [result.error for result in results] == [ErrorCode.none] * 2


def test_validating_adds_nothing() -> None:
    driver = cluster()
    results: list[TopicResult] = []
    assert not changed(driver, lambda: results.extend(enlarge(driver, NewPartitions(TOPIC, 3), validate_only=True)))
    assert results[0].error is ErrorCode.none
    assert len(driver.image.topics[TOPIC].partitions) == 2
