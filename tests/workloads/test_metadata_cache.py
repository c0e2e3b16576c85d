"""The metadata cache of a client never goes back to an older leader."""

from __future__ import annotations

from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from tests.workloads.scripted_cluster import NO_TIME
from workloads.clients.metadata_cache import Leader, MetadataCache

ID, OTHER_ID = UUID(int=1), UUID(int=2)


def metadata(leader: int, epoch: int, topic_id: UUID = ID, error: int = 0) -> MetadataResponse:
    partition = MetadataResponsePartition(
        error_code=ErrorCode.none, partition_index=0, leader_id=leader, leader_epoch=epoch
    )
    topic = MetadataResponseTopic(error_code=ErrorCode(error), name="t", topic_id=topic_id, partitions=(partition,))
    brokers = tuple(MetadataResponseBroker(node_id=number, host=f"b{number}", port=9092) for number in (1, 2))
    return MetadataResponse(throttle_time=NO_TIME, brokers=brokers, topics=(topic,))


def leader_after(*answers: MetadataResponse) -> Leader | None:
    cache = MetadataCache()
    for answer in answers:
        cache.update(answer, 0.0)
    return cache.leader("t", 0)


def test_a_leader_is_replaced_by_the_same_or_a_newer_epoch_only() -> None:
    assert leader_after(metadata(1, 3), metadata(2, 4)) == Leader(2, 4)
    assert leader_after(metadata(1, 3), metadata(2, 3)) == Leader(2, 3)
    assert leader_after(metadata(2, 4), metadata(1, 3)) == Leader(2, 4)


def test_no_leader_replaces_a_leader_in_a_newer_epoch_only() -> None:
    assert leader_after(metadata(1, 3), metadata(-1, 4)) is None
    assert leader_after(metadata(1, 3), metadata(-1, 2)) == Leader(1, 3)
    assert leader_after(metadata(1, 3), metadata(-1, 4), metadata(1, 3)) is None


def test_another_topic_id_replaces_every_leader() -> None:
    assert leader_after(metadata(1, 9), metadata(2, 0, OTHER_ID)) == Leader(2, 0)


def test_an_unknown_topic_error_leaves_the_cache_unchanged() -> None:
    assert leader_after(metadata(1, 3), metadata(2, 9, error=3)) == Leader(1, 3)


def test_a_leader_in_an_error_answer_counts_only_with_no_older_epoch_and_a_known_address() -> None:
    cache = MetadataCache()
    cache.update(metadata(1, 3), 0.0)
    cache.update_leader("t", 0, Leader(2, 2))
    cache.update_leader("t", 0, Leader(-1, -1))
    cache.update_leader("t", 0, Leader(7, 9))
    assert cache.leader("t", 0) == Leader(1, 3)
    cache.update_leader("t", 0, Leader(2, 4))
    assert cache.leader("t", 0) == Leader(2, 4)
