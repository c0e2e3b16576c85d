"""DescribeLogDirs: the replicas in this broker's log directory, their sizes, and the space of its disk.

A directory whose disk cannot be asked is KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from collections.abc import Callable

from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v4.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kio.schema.errors import ErrorCode

from images.broker.ports import DiskSpace
from images.broker.replication.replica_manager import ReplicaManager
from images.broker.runtime.server import Handler, Request
from images.wire.field_values import NO_THROTTLE
from images.wire.messages import Api


class LogDirApis:
    """The handler of one broker, whose logs are in `directory`."""

    def __init__(self, replica_manager: ReplicaManager, directory: str, disk_space: Callable[[], DiskSpace]) -> None:
        self._replica_manager = replica_manager
        self._directory = directory
        self._disk_space = disk_space

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {Api.DESCRIBE_LOG_DIRS: self.describe_log_dirs}

    async def describe_log_dirs(self, request: Request[DescribeLogDirsRequest]) -> DescribeLogDirsResponse:
        """The one directory, with those partitions of the request that have a replica in it; with all if the request
        has no list."""
        requested = request.body.topics
        try:
            space = self._disk_space()
        except OSError:
            return _answer(
                DescribeLogDirsResult(error_code=ErrorCode.kafka_storage_error, log_dir=self._directory, topics=())
            )
        wanted = (
            None if requested is None else {(topic.topic, index) for topic in requested for index in topic.partitions}
        )
        topics: dict[str, list[DescribeLogDirsPartition]] = {}
        for replica in self._replica_manager:
            if wanted is None or (replica.topic, replica.index) in wanted:
                topics.setdefault(replica.topic, []).append(
                    DescribeLogDirsPartition(
                        partition_index=replica.index,
                        partition_size=replica.log.size,
                        offset_lag=max(0, replica.state.high_watermark - replica.log.end),
                        is_future_key=False,
                    )
                )
        return _answer(
            DescribeLogDirsResult(
                error_code=ErrorCode.none,
                log_dir=self._directory,
                topics=tuple(
                    DescribeLogDirsTopic(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()
                ),
                total_bytes=space.total_bytes,
                usable_bytes=space.usable_bytes,
            )
        )


def _answer(result: DescribeLogDirsResult) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results=(result,))
