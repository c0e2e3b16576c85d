"""DeleteRecords (KIP-107): a client has the records below an offset deleted.

The leader moves the start of its log at once, and answers with the low watermark when every replica in sync, and every
other that is alive, has followed, or REQUEST_TIMED_OUT when that takes too long; the records are then deleted all the
same, on the leader and, as they hear of it, on the others. The topic that groups live by is not to be touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.errors import ErrorCode

from images.broker.metadata.image import ClusterImage
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.replication.replica import Replica
from images.broker.replication.replica_manager import ReplicaManager, find
from images.broker.runtime.server import Request


class DeleteRecordsApi:
    """The handler of one broker. `image` gives the metadata this broker has applied."""

    def __init__(self, replicas: ReplicaManager, image: Callable[[], ClusterImage]) -> None:
        self._replicas = replicas
        self._image = image

    async def delete_records(self, request: Request) -> DeleteRecordsResponse:
        """Move every log's start, then wait for the followers, for all of them together as long as was asked."""
        body = request.body
        until = asyncio.get_running_loop().time() + body.timeout.total_seconds()
        moved = [
            (topic.name, [(part.partition_index, *self._delete(topic.name, part)) for part in topic.partitions])
            for topic in body.topics
        ]
        topics = []
        for name, parts in moved:
            results = []
            for index, replica, error, wanted in parts:
                reached = -1
                if replica is not None and error is ErrorCode.none:
                    error, reached = await replica.deleted(wanted, lambda: self._replicas.active, until)
                results.append(
                    DeleteRecordsPartitionResult(partition_index=index, low_watermark=reached, error_code=error)
                )
            topics.append(DeleteRecordsTopicResult(name=name, partitions=tuple(results)))
        return DeleteRecordsResponse(throttle_time=timedelta(0), topics=tuple(topics))

    def _delete(self, topic: str, part: Any) -> tuple[Replica | None, ErrorCode, int]:
        """The replica whose start moved, an error, the offset all logs are to start at."""
        if topic == CONSUMER_OFFSETS_TOPIC:
            return None, ErrorCode.invalid_topic_exception, -1
        replica, error = find(self._replicas, self._image(), topic, part.partition_index)
        if replica is None:
            return None, error, -1
        return replica, *replica.delete_records(part.offset)
