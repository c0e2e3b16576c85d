"""DeleteRecords (KIP-107): a client deletes the records below an offset.

The leader advances the start of its log at once. It answers with the low watermark as soon as every in-sync replica,
and every other replica on an active broker, has done the same, with `min.insync.replicas` of them in sync, or with
REQUEST_TIMED_OUT if that takes too long; the records are then deleted all the same, on the leader now and on each
follower with its next fetch. Records of `__consumer_offsets` cannot be deleted (INVALID_TOPIC_EXCEPTION).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.errors import ErrorCode

from images.broker.metadata.image import ClusterImage
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.replication.replica import Replica
from images.broker.replication.replica_manager import ReplicaManager, find_replica
from images.broker.runtime.server import Handler, Request
from images.wire.messages import Api


class DeleteRecordsApis:
    """The handler of one broker. `image` returns the metadata that this broker has applied."""

    def __init__(self, replica_manager: ReplicaManager, image: Callable[[], ClusterImage]) -> None:
        self._replica_manager = replica_manager
        self._image = image

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {Api.DELETE_RECORDS: self.delete_records}

    async def delete_records(self, request: Request[DeleteRecordsRequest]) -> DeleteRecordsResponse:
        """Advance the start of every log, then wait for the followers; the request's timeout covers all of them. Of a
        partition named twice the last entry counts, as in Kafka."""
        body = request.body
        until = asyncio.get_running_loop().time() + body.timeout.total_seconds()
        parts = {(topic.name, part.partition_index): part for topic in body.topics for part in topic.partitions}
        deletions: dict[str, list[tuple[int, Replica | None, ErrorCode, int]]] = {}
        for (topic, index), part in parts.items():
            deletions.setdefault(topic, []).append((index, *self._delete(topic, part)))
        topics = []
        for name, partitions in deletions.items():
            results = []
            for index, replica, error, log_start in partitions:
                low_watermark = -1
                if replica is not None and error is ErrorCode.none:
                    error, low_watermark = await replica.wait_until_deleted(
                        log_start, lambda: self._replica_manager.active, until
                    )
                results.append(
                    DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark, error_code=error)
                )
            topics.append(DeleteRecordsTopicResult(name=name, partitions=tuple(results)))
        return DeleteRecordsResponse(throttle_time=timedelta(0), topics=tuple(topics))

    def _delete(self, topic: str, part: Any) -> tuple[Replica | None, ErrorCode, int]:
        """The replica whose log start was advanced, an error, and the offset at which all its logs are to start."""
        if topic == CONSUMER_OFFSETS_TOPIC:
            return None, ErrorCode.invalid_topic_exception, -1
        replica, error = find_replica(self._replica_manager, self._image(), topic, part.partition_index)
        if replica is None:
            return None, error, -1
        return replica, *replica.delete_records(part.offset)
