"""What a broker tells about the cluster, and what it passes on to the controller.

Metadata, DescribeCluster and DescribeConfigs are answered from the metadata this broker has applied; CreateTopics and
DeleteTopics are passed on; InitProducerId hands out ids from a block the controller gave.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.create_topics.v7.response import CreatableTopicResult, CreateTopicsResponse
from kio.schema.delete_topics.v6.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.describe_cluster.v1.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from images.broker.config import BROKER_NAME_OF_TOPIC_KEY, NODE_KEYS, TOPIC_KEYS, ConfigKey, NodeConfig
from images.broker.controller.channel import ControllerChannel
from images.broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.runtime.server import Request
from images.wire.connection import ConnectionLost

NOW = timedelta(0)
_TOPIC, _BROKER = 2, 4
_FROM_TOPIC, _FROM_FILE, _FROM_DEFAULT = 1, 4, 5
_TYPE_OF: dict[type, int] = {bool: 1, str: 2, int: 3}


class Describing:
    """The handlers of one broker that are about the cluster rather than about records."""

    def __init__(
        self,
        config: NodeConfig,
        image: Callable[[], ClusterImage],
        channel: ControllerChannel,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._config = config
        self._image = image
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._producer_ids: Iterator[int] = iter(())
        self._allocating = asyncio.Lock()

    # --- the server's questions ---------------------------------------------------------------------------------------

    def topic_id(self, name: str) -> uuid.UUID | None:
        """The id of the topic called `name`."""
        topic = self._image().topics.get(name)
        return topic.id if topic is not None else None

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The name of the topic with this id."""
        topic = self._image().topic_by_id(topic_id)
        return topic.name if topic is not None else None

    # --- the cluster --------------------------------------------------------------------------------------------------

    async def metadata(self, request: Request) -> MetadataResponse:
        """Brokers, and the topics asked for (all when none are named)."""
        image = self._image()
        if request.body.topics is None:
            topics = [_describe_topic(image, topic) for topic in image.topics.values()]
        else:
            topics = [_find_topic(image, asked) for asked in request.body.topics]
        return MetadataResponse(
            throttle_time=NOW,
            brokers=tuple(
                MetadataResponseBroker(node_id=broker.id, host=broker.host, port=broker.port)
                for broker in image.brokers.values()
                if not broker.fenced
            ),
            cluster_id=self._config.cluster_id,
            controller_id=self._config.node_id,
            topics=tuple(topics),
        )

    async def describe_cluster(self, request: Request) -> DescribeClusterResponse:
        """The brokers that are up. As with KRaft, any broker takes what is meant for the controller."""
        brokers = tuple(
            DescribeClusterBroker(broker_id=broker.id, host=broker.host, port=broker.port)
            for broker in self._image().brokers.values()
            if not broker.fenced
        )
        return DescribeClusterResponse(
            throttle_time=NOW,
            error_code=ErrorCode.none,
            cluster_id=self._config.cluster_id,
            controller_id=self._config.node_id,
            brokers=brokers,
        )

    async def describe_configs(self, request: Request) -> DescribeConfigsResponse:
        """Configuration of topics and of this broker."""
        results = []
        for resource in request.body.resources:
            wanted = None if resource.configuration_keys is None else list(resource.configuration_keys)
            error, entries = self._configs_of(resource.resource_type, resource.resource_name)
            results.append(
                DescribeConfigsResult(
                    error_code=error,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=tuple(
                        _describe_config(
                            name,
                            key,
                            value,
                            source,
                            read_only=resource.resource_type != _TOPIC,
                            documented=request.body.include_documentation,
                        )
                        for name, key, value, source in entries
                        if wanted is None or name in wanted
                    ),
                )
            )
        return DescribeConfigsResponse(throttle_time=NOW, results=tuple(results))

    def _configs_of(self, kind: int, name: str) -> tuple[ErrorCode, list[tuple[str, ConfigKey, Any, int]]]:
        if kind == _TOPIC:
            topic = self._image().topics.get(name)
            if topic is None:
                return ErrorCode.unknown_topic_or_partition, []
            return ErrorCode.none, [
                (key_name, key, topic.config[key_name], _FROM_TOPIC)
                if key_name in topic.config
                else (key_name, key, *self._broker_value(BROKER_NAME_OF_TOPIC_KEY[key_name], key))
                for key_name, key in TOPIC_KEYS.items()
            ]
        if kind == _BROKER and name == str(self._config.node_id):
            keys = dict(NODE_KEYS) | {BROKER_NAME_OF_TOPIC_KEY[topic]: key for topic, key in TOPIC_KEYS.items()}
            return ErrorCode.none, [
                (key_name, key, *self._broker_value(key_name, key)) for key_name, key in keys.items()
            ]
        return ErrorCode.invalid_request, []

    def _broker_value(self, name: str, key: ConfigKey) -> tuple[Any, int]:
        value = self._config.values[name]
        return value, _FROM_DEFAULT if value == key.default else _FROM_FILE

    # --- passed on to the controller ----------------------------------------------------------------------------------

    async def create_topics(self, request: Request) -> CreateTopicsResponse:
        """Pass on to the controller; if it cannot be reached, every topic fails as timed out."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost as lost:
            return CreateTopicsResponse(
                throttle_time=NOW,
                topics=tuple(
                    CreatableTopicResult(
                        name=topic.name,
                        topic_id=None,
                        error_code=ErrorCode.request_timed_out,
                        error_message=f"the controller did not answer: {lost}",
                        configs=None,
                    )
                    for topic in request.body.topics
                ),
            )

    async def delete_topics(self, request: Request) -> DeleteTopicsResponse:
        """Pass on to the controller; if it cannot be reached, every topic fails as timed out."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost as lost:
            return DeleteTopicsResponse(
                throttle_time=NOW,
                responses=tuple(
                    DeletableTopicResult(
                        name=topic.name,
                        topic_id=topic.topic_id,
                        error_code=ErrorCode.request_timed_out,
                        error_message=f"the controller did not answer: {lost}",
                    )
                    for topic in request.body.topics
                ),
            )

    async def init_producer_id(self, request: Request) -> InitProducerIdResponse:
        """A producer id never given before, at epoch 0. Transactions are not supported."""
        error, producer_id = ErrorCode.none, -1
        if request.body.transactional_id is not None:
            error = ErrorCode.invalid_request
        else:
            async with self._allocating:
                error, producer_id = await self._next_producer_id()
        return InitProducerIdResponse(
            throttle_time=NOW,
            error_code=error,
            producer_id=producer_id,
            producer_epoch=0 if error is ErrorCode.none else -1,
        )

    async def _next_producer_id(self) -> tuple[ErrorCode, int]:
        found = next(self._producer_ids, None)
        if found is not None:
            return ErrorCode.none, found
        try:
            block = await self._channel.forward(
                AllocateProducerIdsRequest(broker_id=self._config.node_id, broker_epoch=self._broker_epoch())
            )
        except ConnectionLost:
            return ErrorCode.coordinator_load_in_progress, -1
        if block.error_code is not ErrorCode.none:
            return ErrorCode.coordinator_load_in_progress, -1
        self._producer_ids = iter(range(block.producer_id_start, block.producer_id_start + block.producer_id_len))
        return ErrorCode.none, next(self._producer_ids)


def _find_topic(image: ClusterImage, asked: Any) -> MetadataResponseTopic:
    if asked.name is not None:
        topic = image.topics.get(asked.name)
        missing = ErrorCode.unknown_topic_or_partition
    else:
        topic = image.topic_by_id(asked.topic_id)
        missing = ErrorCode.unknown_topic_id
    if topic is not None:
        return _describe_topic(image, topic)
    return MetadataResponseTopic(error_code=missing, name=asked.name, topic_id=asked.topic_id, partitions=())


def _describe_topic(image: ClusterImage, topic: TopicImage) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name == CONSUMER_OFFSETS_TOPIC,
        partitions=tuple(_describe_partition(image, partition) for partition in topic.partitions),
    )


def _describe_partition(image: ClusterImage, partition: PartitionImage) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=ErrorCode.none if partition.leader >= 0 else ErrorCode.leader_not_available,
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=tuple(
            replica for replica in partition.replicas if replica not in image.brokers or image.brokers[replica].fenced
        ),
    )


def _describe_config(
    name: str, key: ConfigKey, value: Any, source: int, *, read_only: bool, documented: bool
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name,
        value=str(value).lower() if isinstance(value, bool) else str(value),
        read_only=read_only,
        config_source=source,
        is_sensitive=False,
        synonyms=(),
        config_type=_TYPE_OF[key.kind],
        documentation=key.documentation if documented else None,
    )
