"""Translation between the controller's requests and Kafka's messages; nothing is decided here."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from random import Random

from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.alter_partition.v3 import response as alter_partition
from kio.schema.alter_partition.v3.request import AlterPartitionRequest
from kio.schema.broker_heartbeat.v1.request import BrokerHeartbeatRequest
from kio.schema.broker_heartbeat.v1.response import BrokerHeartbeatResponse
from kio.schema.broker_registration.v3.request import BrokerRegistrationRequest
from kio.schema.broker_registration.v3.response import BrokerRegistrationResponse
from kio.schema.create_partitions.v3 import response as create_partitions
from kio.schema.create_partitions.v3.request import CreatePartitionsRequest
from kio.schema.create_topics.v7 import response as create_topics
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.delete_topics.v6 import response as delete_topics
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest
from kio.schema.errors import ErrorCode

from images.broker.controller.alter_partition import AlterPartition, AlterPartitionAnswer, IsrProposal, IsrResult
from images.broker.controller.placement import NewPartitions, NewTopic
from images.broker.controller.requests import (
    Heartbeat,
    HeartbeatAnswer,
    ProducerIdsAnswer,
    Registration,
    RegistrationAnswer,
    TopicResult,
)
from images.broker.frozen_map import FrozenMap
from images.wire.field_values import NO_LEADER, NO_THROTTLE

_FROM_THE_TOPIC = 1
"""Kafka's DYNAMIC_TOPIC_CONFIG: a value set on the topic itself."""
_FIRST_BROKER_RANGE = 1 << 16


def parse_registration(body: BrokerRegistrationRequest) -> Registration | None:
    """None if the request has no listener, no incarnation id, or a negative broker id."""
    if not body.listeners or body.incarnation_id is None or body.broker_id < 0:
        return None
    listener = body.listeners[0]
    return Registration(
        body.broker_id, str(body.incarnation_id), listener.host, listener.port, body.previous_broker_epoch
    )


def registration_response(answer: RegistrationAnswer) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(
        throttle_time=NO_THROTTLE, error_code=answer.error, broker_epoch=answer.broker_epoch
    )


def parse_heartbeat(body: BrokerHeartbeatRequest) -> Heartbeat:
    return Heartbeat(
        body.broker_id, body.broker_epoch, body.current_metadata_offset, body.want_fence, body.want_shut_down
    )


def heartbeat_response(answer: HeartbeatAnswer) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        is_caught_up=answer.caught_up,
        is_fenced=answer.fenced,
        should_shut_down=answer.should_shut_down,
    )


def parse_alter_partition(body: AlterPartitionRequest) -> AlterPartition:
    proposals = tuple(
        IsrProposal(
            topic.topic_id,
            partition.partition_index,
            partition.leader_epoch,
            partition.partition_epoch,
            tuple((member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs),
        )
        for topic in body.topics
        for partition in topic.partitions
    )
    return AlterPartition(body.broker_id, body.broker_epoch, proposals)


def alter_partition_response(
    body: AlterPartitionRequest, answer: AlterPartitionAnswer
) -> alter_partition.AlterPartitionResponse:
    """The response to `body`: a result for each partition, in the same order."""
    results = iter(answer.results)
    topics = tuple(
        alter_partition.TopicData(
            topic_id=topic.topic_id, partitions=tuple(_isr_altered(next(results)) for _ in topic.partitions)
        )
        for topic in (body.topics if answer.error is ErrorCode.none else ())
    )
    return alter_partition.AlterPartitionResponse(throttle_time=NO_THROTTLE, error_code=answer.error, topics=topics)


def _isr_altered(result: IsrResult) -> alter_partition.PartitionData:
    partition = result.partition
    if partition is None:
        return alter_partition.PartitionData(
            partition_index=result.proposal.index,
            error_code=result.error,
            leader_id=NO_LEADER,
            leader_epoch=-1,
            partition_epoch=-1,
        )
    return alter_partition.PartitionData(
        partition_index=partition.index,
        error_code=result.error,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        partition_epoch=partition.partition_epoch,
    )


def producer_ids_response(answer: ProducerIdsAnswer) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        producer_id_start=answer.first,
        producer_id_len=answer.count,
    )


def parse_create_topics(body: CreateTopicsRequest, random: Random) -> list[NewTopic]:
    """The topics to create, each with a random topic id and a random first broker."""
    return [
        NewTopic(
            topic.name,
            uuid.UUID(int=random.getrandbits(128), version=4),
            random.randrange(_FIRST_BROKER_RANGE),
            topic.num_partitions,
            topic.replication_factor,
            tuple((placed.partition_index, tuple(placed.broker_ids)) for placed in topic.assignments),
            FrozenMap({setting.name: setting.value or "" for setting in topic.configs}),
        )
        for topic in body.topics
    ]


def create_topics_response(
    results: Sequence[TopicResult], *, validate_only: bool
) -> create_topics.CreateTopicsResponse:
    return create_topics.CreateTopicsResponse(
        throttle_time=NO_THROTTLE, topics=tuple(_created(result, validate_only) for result in results)
    )


def _created(result: TopicResult, validate_only: bool) -> create_topics.CreatableTopicResult:
    topic = result.topic
    if topic is None:
        return create_topics.CreatableTopicResult(
            name=result.name or "", topic_id=None, error_code=result.error, error_message=result.message, configs=()
        )
    return create_topics.CreatableTopicResult(
        name=topic.name,
        topic_id=None if validate_only else topic.id,
        error_code=result.error,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
        configs=tuple(
            create_topics.CreatableTopicConfigs(
                name=name, value=value, read_only=False, config_source=_FROM_THE_TOPIC, is_sensitive=False
            )
            for name, value in topic.config.items()
        ),
    )


def parse_create_partitions(body: CreatePartitionsRequest, random: Random) -> list[NewPartitions]:
    """The topics to enlarge, each with a random first broker."""
    return [
        NewPartitions(
            topic.name,
            topic.count,
            random.randrange(_FIRST_BROKER_RANGE),
            None if topic.assignments is None else tuple(tuple(placed.broker_ids) for placed in topic.assignments),
        )
        for topic in body.topics
    ]


def create_partitions_response(results: Sequence[TopicResult]) -> create_partitions.CreatePartitionsResponse:
    return create_partitions.CreatePartitionsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            create_partitions.CreatePartitionsTopicResult(
                name=result.name or "", error_code=result.error, error_message=result.message
            )
            for result in results
        ),
    )


def parse_delete_topics(body: DeleteTopicsRequest) -> list[tuple[str | None, uuid.UUID | None]]:
    return [(topic.name, topic.topic_id) for topic in body.topics]


def delete_topics_response(results: Sequence[TopicResult]) -> delete_topics.DeleteTopicsResponse:
    return delete_topics.DeleteTopicsResponse(
        throttle_time=NO_THROTTLE,
        responses=tuple(
            delete_topics.DeletableTopicResult(
                name=result.name, topic_id=result.topic_id, error_code=result.error, error_message=result.message
            )
            for result in results
        ),
    )
