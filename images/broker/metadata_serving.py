"""The metadata partition as brokers read it: Fetch, answered from what is committed, waiting for more.

Brokers follow the metadata log as they follow any partition, with a fetch that waits here until there is something
new. They are shown committed batches only, and whole ones, so that no broker ever acts on half a change.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.response import FetchableTopicResponse, FetchResponse, LeaderIdAndEpoch, PartitionData

from images.broker.log import OffsetOutOfRange
from images.broker.metadata import TOPIC_ID
from images.broker.metadata_log import MetadataLog
from images.broker.server import Request


class MetadataServing:
    """Answers fetches of the metadata partition from one log."""

    def __init__(self, node_id: int, log: MetadataLog) -> None:
        self._node_id = node_id
        self._log = log
        self._grown = asyncio.Event()
        """Set, and replaced, whenever a change has been committed."""

    def committed(self) -> None:
        """The log has grown: answer who waits."""
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    async def fetch(self, request: Request) -> FetchResponse:
        """Whole batches from the offset asked, once there are `min_bytes` of them or `max_wait` is over.

        Errors, at once: UNKNOWN_TOPIC_ID (100), UNKNOWN_TOPIC_OR_PARTITION (3), OFFSET_OUT_OF_RANGE (1).
        """
        body = request.body
        enough = min(body.min_bytes, body.max_bytes)
        answer, waiting_for = self._read(body, enough)
        if not waiting_for:
            return answer
        until = asyncio.get_running_loop().time() + body.max_wait.total_seconds()
        try:
            async with asyncio.timeout_at(until):
                while waiting_for:
                    await self._grown.wait()
                    answer, waiting_for = self._read(body, enough)
        except TimeoutError:
            pass
        return answer

    def _read(self, body: Any, enough: int) -> tuple[FetchResponse, bool]:
        """The answer as things stand, and whether it is worth waiting for a better one."""
        topics, size, failed = [], 0, False
        for topic in body.topics:
            partitions = []
            for wanted in topic.partitions:
                partition = self._read_partition(topic.topic_id, wanted, body.max_bytes - size)
                partitions.append(partition)
                size += len(partition.records)
                failed |= partition.error_code is not ErrorCode.none
            topics.append(FetchableTopicResponse(topic_id=topic.topic_id, partitions=tuple(partitions)))
        answer = FetchResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, responses=tuple(topics))
        return answer, size < enough and not failed

    def _read_partition(self, topic_id: uuid.UUID | None, wanted: Any, max_bytes: int) -> PartitionData:
        error, records, end = ErrorCode.none, b"", self._log.end
        if topic_id != TOPIC_ID:
            error, end = ErrorCode.unknown_topic_id, -1
        elif wanted.partition != 0:
            error, end = ErrorCode.unknown_topic_or_partition, -1
        elif max_bytes > 0:
            try:
                records = self._log.read(wanted.fetch_offset, min(max_bytes, wanted.partition_max_bytes))
            except OffsetOutOfRange:
                error = ErrorCode.offset_out_of_range
        return PartitionData(
            partition_index=wanted.partition,
            error_code=error,
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=self._log.start if end >= 0 else -1,
            current_leader=LeaderIdAndEpoch(leader_id=self._node_id, leader_epoch=self._log.epoch),
            aborted_transactions=None,
            records=records,
        )
