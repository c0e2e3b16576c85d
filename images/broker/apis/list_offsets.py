"""ListOffsets and OffsetForLeaderEpoch: offsets by time, and the end offsets of leader epochs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7.request import ListOffsetsRequest
from kio.schema.list_offsets.v7.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

from images.broker.metadata.image import ClusterImage
from images.broker.replication.replica import Replica
from images.broker.replication.replica_manager import ReplicaManager, find_replica
from images.broker.replication.replica_results import LatestRead
from images.broker.runtime.server import CloseConnection, Handler, Request
from images.broker.truncation_protocol import TruncationProtocol
from images.wire.field_values import EARLIEST, LATEST, NO_THROTTLE
from images.wire.messages import Api

MAX_TIMESTAMP = -3
SPECIAL_TIMESTAMPS: Mapping[int, int] = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7}
"""Special timestamp → the version of ListOffsets that introduced it. No other negative timestamp is valid."""
FIRST_EPOCH_QUERY_OF_CONSUMERS = 2
"""The first version of OffsetForLeaderEpoch that consumers send (KIP-320)."""


class _BegunRead(NamedTuple):
    """A read of the latest offset of a partition, which its followers have yet to confirm."""

    partition_index: int
    replica: Replica
    read: LatestRead

    async def response(self, until: float) -> ListOffsetsPartitionResponse:
        error, offset, _, _ = await self.replica.latest_offset(self.read, until)
        return ListOffsetsPartitionResponse(
            partition_index=self.partition_index,
            error_code=error,
            timestamp=-1,
            offset=offset,
            leader_epoch=self.read.leader_epoch if error is ErrorCode.none else -1,
        )


class OffsetApis:
    """The handlers of one broker. `image` returns the metadata that this broker has applied."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        image: Callable[[], ClusterImage],
        latest_timeout_s: float,
        release: TruncationProtocol = TruncationProtocol.TRUNCATE_ON_FETCH,
    ) -> None:
        self._newest_epoch_query = release.epoch_query_version
        self._replica_manager = replica_manager
        self._image = image
        self._latest_timeout_s = latest_timeout_s

    def handlers(self) -> dict[Api, Handler]:
        """The handler of each API."""
        return {
            Api.LIST_OFFSETS: self.list_offsets,
            Api.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
        }

    async def list_offsets(self, request: Request[ListOffsetsRequest]) -> ListOffsetsResponse:
        """For each partition the earliest offset, the latest, that of the largest timestamp, or the first not older
        than a timestamp. INVALID_REQUEST for a partition named twice.

        Of the latest offsets all reads begin before any is waited for: the same fetches of a follower confirm them, and
        a partition with a silent one keeps no other back.
        """
        until = asyncio.get_running_loop().time() + self._latest_timeout_s
        requested = Counter(
            (topic.name, part.partition_index) for topic in request.body.topics for part in topic.partitions
        )
        answers_and_reads: list[tuple[str, ListOffsetsPartitionResponse | _BegunRead]] = []
        answers: dict[str, dict[int, ListOffsetsPartitionResponse]] = {}
        with ExitStack() as latest_reads:
            for topic in request.body.topics:
                for part in topic.partitions:
                    twice = requested[topic.name, part.partition_index] > 1
                    answer = (
                        _refused(part.partition_index, ErrorCode.invalid_request)
                        if twice
                        else self._list_offset(topic.name, part, request, latest_reads)
                    )
                    answers_and_reads.append((topic.name, answer))
            for name, answer in answers_and_reads:
                response = await answer.response(until) if isinstance(answer, _BegunRead) else answer
                answers.setdefault(name, {})[response.partition_index] = response
        return ListOffsetsResponse(
            throttle_time=NO_THROTTLE,
            topics=tuple(
                ListOffsetsTopicResponse(name=name, partitions=tuple(partitions.values()))
                for name, partitions in answers.items()
            ),
        )

    def _list_offset(
        self, topic: str, part: Any, request: Request[ListOffsetsRequest], latest_reads: ExitStack
    ) -> ListOffsetsPartitionResponse | _BegunRead:
        """The answer about one partition, or the read that is to give it, which ends with `latest_reads`."""
        replica, error = self._find(topic, part.partition_index)
        offset, timestamp, epoch = -1, -1, -1
        if _is_invalid(part.timestamp, request.version):
            error = ErrorCode.unsupported_version
        elif replica is not None:
            error = replica.check_leader("list_offsets", part.current_leader_epoch)
        if replica is not None and error is ErrorCode.none:
            if part.timestamp == LATEST:
                if request.body.replica_id < 0:
                    read = latest_reads.enter_context(replica.latest_read(part.current_leader_epoch))
                    return _BegunRead(part.partition_index, replica, read)
                offset, epoch = replica.log.end, replica.state.leader_epoch
            elif part.timestamp == EARLIEST:
                offset = replica.log.start
                epoch = replica.log.epochs.epoch_at(offset)
            else:
                time_ms = None if part.timestamp == MAX_TIMESTAMP else part.timestamp
                error, offset, timestamp = replica.offset_for_time(time_ms)
                if offset >= 0:
                    epoch = replica.log.epochs.epoch_at(offset)
            if part.timestamp != LATEST and error is ErrorCode.none:
                told = {
                    "asked": part.timestamp,
                    "requested": part.current_leader_epoch,
                    "timestamp": timestamp,
                    "epoch": epoch,
                }
                replica.trace("offset_told", offset, replica.log.end, told)
        return ListOffsetsPartitionResponse(
            partition_index=part.partition_index,
            error_code=error,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=epoch,
        )

    async def offset_for_leader_epoch(
        self, request: Request[OffsetForLeaderEpochRequest]
    ) -> OffsetForLeaderEpochResponse:
        """The end offset of a leader epoch in this leader's log (KIP-101, KIP-279, KIP-320).

        A follower's request of a later version than the release has is refused as in Kafka. Raises CloseConnection. A
        consumer's is answered, so that the same clients run against every release.
        """
        newest = self._newest_epoch_query
        of_follower = request.version < FIRST_EPOCH_QUERY_OF_CONSUMERS or request.body.replica_id >= 0
        if of_follower and (newest is None or request.version > newest):
            raise CloseConnection(f"OFFSET_FOR_LEADER_EPOCH v{request.version} is later than this release")
        topics = []
        for topic in request.body.topics:
            answers = []
            for part in topic.partitions:
                replica, error = self._find(topic.topic, part.partition)
                epoch, end = -1, -1
                if replica is not None:
                    error = replica.check_leader("offset_for_leader_epoch", part.current_leader_epoch)
                    if error is ErrorCode.none:
                        epoch, end = replica.state.epochs.end_offset_for(part.leader_epoch, replica.state.log_end)
                        requested = part.current_leader_epoch
                        told = {"asked": part.leader_epoch, "requested": requested, "epoch": epoch}
                        replica.trace("epoch_end_told", end, replica.log.end, told)
                answers.append(
                    EpochEndOffset(error_code=error, partition=part.partition, leader_epoch=epoch, end_offset=end)
                )
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(answers)))
        return OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))

    def _find(self, topic: str, index: int) -> tuple[Replica | None, ErrorCode]:
        return find_replica(self._replica_manager, self._image(), topic, index)


def _refused(index: int, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=error)


def _is_invalid(timestamp: int, version: int) -> bool:
    since = SPECIAL_TIMESTAMPS.get(timestamp)
    return timestamp < 0 and (since is None or version < since)
