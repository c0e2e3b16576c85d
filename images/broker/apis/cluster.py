"""Metadata and DescribeCluster: the brokers and the topics of the cluster.

Both are answered from the metadata that this broker has applied. As with KRaft they name the answering broker as the
controller, since every broker forwards requests that are meant for the controller (`images.broker.apis.forwarded`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.describe_cluster.v1.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

from images.broker.apis.topics import leader_error, offline_replicas
from images.broker.config import NodeConfig
from images.broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from images.broker.metadata.image_trace import TOPICS_TOLD_MAX, metadata_told
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.metadata.topic_names import is_legal_name
from images.broker.runtime.server import Handler, Request
from images.trace import TraceEvent
from images.wire.field_values import NO_THROTTLE
from images.wire.messages import Api

_BROKER_ENDPOINTS, _CONTROLLER_ENDPOINTS = 1, 2
"""Kafka's endpoint types."""
_IDS_SINCE = 12
"""The first version of Metadata in which a topic may be named by its id."""
_TOPICS_PER_TURN = 1_000
"""A longer answer lets other connections have their turn after so many topics."""


class ClusterApis:
    """The handlers of one broker. `image` returns the metadata that this broker has applied."""

    def __init__(
        self, config: NodeConfig, image: Callable[[], ClusterImage], trace: Callable[[TraceEvent], None]
    ) -> None:
        self._config = config
        self._image = image
        self._trace = trace

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {
            Api.METADATA: self.metadata,
            Api.DESCRIBE_CLUSTER: self.describe_cluster,
        }

    async def metadata(self, request: Request[MetadataRequest]) -> MetadataResponse:
        """The unfenced brokers and the topics of the request, each once; all topics if it has no list. As in Kafka,
        names are ignored in a request that has a topic id."""
        image = self._image()
        if request.body.topics is None:
            topics = [_topic(image, topic) for topic in image.topics.values()]
        else:
            topics = []
            for requested in _requested_once(request.body.topics, request.version):
                topics.append(_requested_topic(image, requested, request.version))
                if len(topics) % _TOPICS_PER_TURN == 0:
                    await asyncio.sleep(0)
        response = MetadataResponse(
            throttle_time=NO_THROTTLE,
            brokers=tuple(
                MetadataResponseBroker(node_id=broker.id, host=broker.host, port=broker.port)
                for broker in image.brokers.values()
                if not broker.fenced
            ),
            cluster_id=self._config.cluster_id,
            controller_id=self._config.node_id,
            topics=tuple(topics),
        )
        by_id = any(topic.topic_id is not None for topic in request.body.topics or ())
        count = max(len(topics), len(request.body.topics or ()))
        if not by_id and count <= TOPICS_TOLD_MAX and image is self._image():  # else there is newer metadata
            self._trace(metadata_told(request.body, response, image.offset))
        return response

    async def describe_cluster(self, request: Request[DescribeClusterRequest]) -> DescribeClusterResponse:
        """The unfenced brokers. Controllers are asked about at their own listeners, so their endpoints are an error."""
        kind = request.body.endpoint_type
        if kind != _BROKER_ENDPOINTS:
            mismatched = kind == _CONTROLLER_ENDPOINTS
            return DescribeClusterResponse(
                throttle_time=NO_THROTTLE,
                error_code=(ErrorCode.mismatched_endpoint_type if mismatched else ErrorCode.unsupported_endpoint_type),
                error_message=f"Endpoint type {kind} is not answered here.",
                cluster_id="",
                controller_id=-1,
                brokers=(),
            )
        brokers = tuple(
            DescribeClusterBroker(broker_id=broker.id, host=broker.host, port=broker.port)
            for broker in self._image().brokers.values()
            if not broker.fenced
        )
        return DescribeClusterResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.none,
            cluster_id=self._config.cluster_id,
            controller_id=self._config.node_id,
            brokers=brokers,
        )


def _requested_once(topics: Iterable[Any], version: int) -> Iterable[Any]:
    """The topics to answer, without those named again."""
    by_id = version >= _IDS_SINCE and any(topic.topic_id is not None for topic in topics)
    if by_id:
        return {topic.topic_id: replace(topic, name=None) for topic in topics if topic.topic_id is not None}.values()
    return {(topic.name, topic.topic_id): topic for topic in topics}.values()


def _requested_topic(image: ClusterImage, requested: Any, version: int) -> MetadataResponseTopic:
    if requested.topic_id is not None and version < _IDS_SINCE:
        topic, error = None, ErrorCode.invalid_request
    elif requested.name is not None:
        topic = image.topics.get(requested.name)
        legal = is_legal_name(requested.name)
        error = ErrorCode.unknown_topic_or_partition if legal else ErrorCode.invalid_topic_exception
    else:
        topic = image.topic_by_id(requested.topic_id)
        error = ErrorCode.unknown_topic_id
    if topic is not None:
        return _topic(image, topic)
    return MetadataResponseTopic(error_code=error, name=requested.name, topic_id=requested.topic_id, partitions=())


def _topic(image: ClusterImage, topic: TopicImage) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name == CONSUMER_OFFSETS_TOPIC,
        partitions=tuple(_partition(image, partition) for partition in topic.partitions),
    )


def _partition(image: ClusterImage, partition: PartitionImage) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=leader_error(partition),
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=offline_replicas(image, partition),
    )
