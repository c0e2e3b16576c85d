"""DescribeTopicPartitions (KIP-966), from the metadata that this broker has applied, ELR and LastKnownELR included."""

from __future__ import annotations

from collections.abc import Callable, Set

from kio.schema.describe_topic_partitions.v0.request import Cursor as RequestCursor
from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest
from kio.schema.describe_topic_partitions.v0.response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kio.schema.errors import ErrorCode

from images.broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from images.broker.metadata.image_trace import TOPICS_TOLD_MAX, topics_told
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.metadata.topic_names import is_legal_name
from images.broker.runtime.server import Handler, Request
from images.trace import TraceEvent
from images.wire.field_values import NO_THROTTLE
from images.wire.messages import Api


class TopicApis:
    """The handlers of one broker. `image` returns the metadata that this broker has applied."""

    def __init__(self, image: Callable[[], ClusterImage], trace: Callable[[TraceEvent], None]) -> None:
        self._image = image
        self._trace = trace

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {Api.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions}

    async def describe_topic_partitions(
        self, request: Request[DescribeTopicPartitionsRequest]
    ) -> DescribeTopicPartitionsResponse:
        """Topics in the order of their names, from the cursor on, at most as many partitions as the request allows.
        A request that names no topic gets all of them. INVALID_REQUEST for a cursor at a topic that it does not name,
        or before the first partition."""
        image, cursor = self._image(), request.body.cursor
        requested = {topic.name for topic in request.body.topics}
        if cursor is not None and (cursor.partition_index < 0 or (requested and cursor.topic_name not in requested)):
            return _page([_refused_topic(name, ErrorCode.invalid_request) for name in sorted(requested)], None)
        response = _described(image, requested, cursor, max(1, request.body.response_partition_limit))
        count = max(len(response.topics), len(requested))
        if cursor is None and response.next_cursor is None and count <= TOPICS_TOLD_MAX:
            self._trace(topics_told(requested or None, response, image.offset))
        return response


def _described(
    image: ClusterImage, requested: Set[str], cursor: RequestCursor | None, remaining: int
) -> DescribeTopicPartitionsResponse:
    """At most `remaining` partitions of the requested topics, or of all, from the cursor on."""
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in sorted(requested or image.topics):
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if cursor is not None and name < cursor.topic_name:
            continue
        topic = image.topics.get(name)
        if topic is None:
            legal = is_legal_name(name)
            error = ErrorCode.unknown_topic_or_partition if legal else ErrorCode.invalid_topic_exception
            topics.append(_refused_topic(name, error))
            continue
        if remaining == 0:
            return _page(topics, Cursor(topic_name=name, partition_index=0))
        partitions = topic.partitions[first : first + remaining]
        remaining -= len(partitions)
        topics.append(_topic(image, topic, partitions))
        if first + len(partitions) < len(topic.partitions):
            return _page(topics, Cursor(topic_name=name, partition_index=first + len(partitions)))
    return _page(topics, None)


def leader_error(partition: PartitionImage) -> ErrorCode:
    """LEADER_NOT_AVAILABLE for a partition without a leader."""
    return ErrorCode.none if partition.leader >= 0 else ErrorCode.leader_not_available


def offline_replicas(image: ClusterImage, partition: PartitionImage) -> tuple[int, ...]:
    """The replicas on brokers that are fenced or not registered."""
    return tuple(
        replica for replica in partition.replicas if replica not in image.brokers or image.brokers[replica].fenced
    )


def _page(topics: list[DescribeTopicPartitionsResponseTopic], cursor: Cursor | None) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics), next_cursor=cursor)


def _refused_topic(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=error, name=name, topic_id=None, partitions=())


def _topic(
    image: ClusterImage, topic: TopicImage, partitions: tuple[PartitionImage, ...]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name == CONSUMER_OFFSETS_TOPIC,
        partitions=tuple(_partition(image, partition) for partition in partitions),
    )


def _partition(image: ClusterImage, partition: PartitionImage) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=leader_error(partition),
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=partition.elr,
        last_known_elr=partition.last_known_elr,
        offline_replicas=offline_replicas(image, partition),
    )
