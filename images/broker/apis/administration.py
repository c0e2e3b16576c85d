"""What a broker does for an administrator.

IncrementalAlterConfigs, AlterPartitionReassignments and ElectLeaders are passed on to the controller; when it cannot be
reached everything in them is answered as timed out, and may or may not have happened. ListPartitionReassignments and
DescribeQuorum are passed on as well. DescribeTopicPartitions is answered from the metadata this broker has applied.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse
from kio.schema.describe_topic_partitions.v0 import response as describing
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
from kio.schema.errors import ErrorCode

from images.broker.controller import admin_messages as messages
from images.broker.controller.channel import ControllerChannel
from images.broker.controller.requests import TopicResult
from images.broker.metadata.image import ClusterImage, PartitionImage, TopicImage
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.raft.messages import describe_quorum_error
from images.broker.runtime.server import Handler, Request
from images.wire.connection import ConnectionLost
from images.wire.messages import Api

_AT_ONCE = timedelta(0)


class Administering:
    """The handlers of one broker that change the cluster or tell what is being changed."""

    def __init__(self, image: Callable[[], ClusterImage], channel: ControllerChannel) -> None:
        self._image = image
        self._channel = channel

    def handlers(self) -> dict[Api, Handler]:
        """What this serves."""
        return {
            Api.INCREMENTAL_ALTER_CONFIGS: self.alter_configs,
            Api.ALTER_PARTITION_REASSIGNMENTS: self.reassign,
            Api.ELECT_LEADERS: self.elect_leaders,
            Api.DESCRIBE_QUORUM: self.describe_quorum,
            Api.LIST_PARTITION_REASSIGNMENTS: self.reassignments,
            Api.DESCRIBE_TOPIC_PARTITIONS: self.describe_topics,
        }

    async def alter_configs(self, request: Request) -> Any:
        """IncrementalAlterConfigs, of topics."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost as lost:
            late = TopicResult(None, ErrorCode.request_timed_out, _unanswered(lost))
            return messages.alter_configs_response(request.body, [late for _ in request.body.resources])

    async def reassign(self, request: Request) -> Any:
        """AlterPartitionReassignments."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost as lost:
            return AlterPartitionReassignmentsResponse(
                throttle_time=_AT_ONCE,
                error_code=ErrorCode.request_timed_out,
                error_message=_unanswered(lost),
                responses=(),
            )

    async def elect_leaders(self, request: Request) -> Any:
        """ElectLeaders."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost:
            return ElectLeadersResponse(
                throttle_time=_AT_ONCE, error_code=ErrorCode.request_timed_out, replica_election_results=()
            )

    async def describe_quorum(self, request: Request) -> Any:
        """DescribeQuorum."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost as lost:
            return describe_quorum_error(ErrorCode.request_timed_out, _unanswered(lost))

    async def reassignments(self, request: Request) -> Any:
        """ListPartitionReassignments. The controller knows of a reassignment, or of its end, before any broker does."""
        try:
            return await self._channel.forward(request.body)
        except ConnectionLost as lost:
            return messages.list_reassignments_error(ErrorCode.request_timed_out, _unanswered(lost))

    async def describe_topics(self, request: Request) -> describing.DescribeTopicPartitionsResponse:
        """DescribeTopicPartitions: topics by name from the cursor on, with ELR and LastKnownELR; none asked is all."""
        image, cursor = self._image(), request.body.cursor
        names = sorted({topic.name for topic in request.body.topics} or image.topics)
        left = max(1, request.body.response_partition_limit)
        topics: list[describing.DescribeTopicPartitionsResponseTopic] = []
        for name in names:
            first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
            if cursor is not None and name < cursor.topic_name:
                continue
            topic = image.topics.get(name)
            if topic is None:
                topics.append(_unknown(name))
                continue
            if left == 0:
                return _page(topics, describing.Cursor(topic_name=name, partition_index=0))
            shown = topic.partitions[first : first + left]
            left -= len(shown)
            topics.append(_topic(image, topic, shown))
            if first + len(shown) < len(topic.partitions):
                return _page(topics, describing.Cursor(topic_name=name, partition_index=first + len(shown)))
        return _page(topics, None)


def _unanswered(lost: ConnectionLost) -> str:
    return f"the controller did not answer: {lost}"


def _page(
    topics: list[describing.DescribeTopicPartitionsResponseTopic], cursor: describing.Cursor | None
) -> describing.DescribeTopicPartitionsResponse:
    return describing.DescribeTopicPartitionsResponse(throttle_time=_AT_ONCE, topics=tuple(topics), next_cursor=cursor)


def _unknown(name: str) -> describing.DescribeTopicPartitionsResponseTopic:
    return describing.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.unknown_topic_or_partition, name=name, topic_id=None, partitions=()
    )


def _topic(
    image: ClusterImage, topic: TopicImage, partitions: tuple[PartitionImage, ...]
) -> describing.DescribeTopicPartitionsResponseTopic:
    return describing.DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name == CONSUMER_OFFSETS_TOPIC,
        partitions=tuple(
            describing.DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.none if partition.leader >= 0 else ErrorCode.leader_not_available,
                partition_index=partition.index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                eligible_leader_replicas=partition.elr,
                last_known_elr=partition.last_known_elr,
                offline_replicas=tuple(
                    replica
                    for replica in partition.replicas
                    if replica not in image.brokers or image.brokers[replica].fenced
                ),
            )
            for partition in partitions
        ),
    )
