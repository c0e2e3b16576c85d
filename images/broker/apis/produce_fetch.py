"""What a broker does with records: Produce, Fetch, ListOffsets and OffsetForLeaderEpoch.

Each handler looks its partitions up, asks each replica, waits where the request waits (for the high watermark, for
data), and answers. What is allowed is decided in `partition.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.response import EpochEndOffset as DivergingEpoch
from kio.schema.fetch.v16.response import FetchableTopicResponse, FetchResponse, LeaderIdAndEpoch
from kio.schema.fetch.v16.response import PartitionData as FetchedPartition
from kio.schema.list_offsets.v7.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kio.schema.produce.v11.response import LeaderIdAndEpoch as ProduceLeader
from kio.schema.produce.v11.response import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

from images.broker.metadata.image import ClusterImage
from images.broker.metadata.internal_topics import CONSUMER_OFFSETS_TOPIC
from images.broker.replication.fetch_sessions import NO_SESSION, FetchContext, FetchSessionCache
from images.broker.replication.partition import ReplicaFetch
from images.broker.replication.replica import ACKS_ALL, AppendResult, FetchResult, Replica
from images.broker.replication.replica_manager import ReplicaManager, find
from images.broker.runtime.condition import wait_for_any
from images.broker.runtime.server import CloseConnection, Request

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
MEANINGS_SINCE: Mapping[int, int] = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7}
"""Timestamps of ListOffsets that are no times, and the version each came with. No other is negative."""
LAST_FETCH_BY_NAME = 12
"""The last version of Fetch that names topics instead of telling their ids."""
NOW = timedelta(0)


class _Asked(NamedTuple):
    """One partition of a Fetch request, and the replica that answers for it, if this broker has it."""

    topic_id: Any
    partition: Any
    replica: Replica | None
    error: ErrorCode


class Serving:
    """The handlers of one broker. `image` gives the metadata this broker has applied."""

    def __init__(
        self,
        replicas: ReplicaManager,
        image: Callable[[], ClusterImage],
        sessions: FetchSessionCache,
        *,
        fetch_max_bytes: int,
        latest_timeout_s: float,
    ) -> None:
        self._replicas = replicas
        self._image = image
        self._sessions = sessions
        self._fetch_max_bytes = fetch_max_bytes
        self._latest_timeout_s = latest_timeout_s

    # --- Produce ------------------------------------------------------------------------------------------------------

    async def produce(self, request: Request) -> ProduceResponse | None:
        """Append, then (acks=all) wait until what was appended is committed.

        With acks=0 nobody is answered; as in Kafka a producer whose batch was refused loses its connection instead, and
        so learns that it should look for the leader. Raises Hangup.
        """
        body = request.body
        until = asyncio.get_running_loop().time() + body.timeout.total_seconds()
        appended = [
            (topic.name, [self._append(topic.name, part, body.acks) for part in topic.partition_data])
            for topic in body.topic_data
        ]
        if body.acks == 0:
            _hang_up_if_refused(appended)
            return None
        topics = []
        for name, parts in appended:
            answers = []
            for index, replica, found in parts:
                error = found.error
                if error is ErrorCode.none and replica is not None:
                    if body.acks == ACKS_ALL:
                        error = await replica.committed(found, until)
                    if error is ErrorCode.none:
                        replica.acknowledged(found.base_offset, found.end, body.acks)
                answers.append(_produced(index, error, found.base_offset, replica))
            topics.append(TopicProduceResponse(name=name, partition_responses=tuple(answers)))
        return ProduceResponse(responses=tuple(topics), throttle_time=NOW)

    def _append(self, topic: str, part: Any, acks: int) -> tuple[int, Replica | None, AppendResult]:
        if acks not in (0, 1, ACKS_ALL):
            return part.index, None, AppendResult(ErrorCode.invalid_required_acks)
        if topic == CONSUMER_OFFSETS_TOPIC:  # written by the coordinator of groups alone
            return part.index, None, AppendResult(ErrorCode.invalid_topic_exception)
        replica, error = self._find(topic, part.index)
        if replica is None:
            return part.index, None, AppendResult(error)
        return part.index, replica, replica.append(part.records, acks)

    def _find(self, topic: str, index: int) -> tuple[Replica | None, ErrorCode]:
        return find(self._replicas, self._image(), topic, index)

    # --- Fetch --------------------------------------------------------------------------------------------------------

    async def fetch(self, request: Request) -> FetchResponse:
        """Read for a follower or a consumer; wait for data as long as the request allows."""
        body = request.body
        until = asyncio.get_running_loop().time() + body.max_wait.total_seconds()
        replica_id = body.replica_state.replica_id
        by_name = request.version <= LAST_FETCH_BY_NAME
        opened = self._sessions.open(body, of_follower=_is_replica(replica_id), by_name=by_name)
        if opened.error is not ErrorCode.none:
            return FetchResponse(throttle_time=NOW, error_code=opened.error, responses=())
        asked = [self._look_up(topic_id, partition) for topic_id, partition in opened.asked]
        # Consumers are limited by the broker's setting too; followers ask for what their own setting says.
        most = body.max_bytes if _is_replica(replica_id) else min(body.max_bytes, self._fetch_max_bytes)
        enough = min(body.min_bytes, most)
        slices = self._read(asked, request, most, first=True)
        watched = [
            item.replica.offers if _is_replica(replica_id) else item.replica.changes
            for item in asked
            if item.replica is not None
        ]
        while not _worth_answering(slices, enough) and await wait_for_any(watched, until):
            slices = self._read(asked, request, most, first=False)
        if _is_replica(replica_id):
            for item, found in zip(asked, slices, strict=True):
                if item.replica is not None and found.error is ErrorCode.none:
                    item.replica.answered(replica_id, request.connection)
        return _fetched(asked, slices, opened)

    def _look_up(self, topic_id: Any, partition: Any) -> _Asked:
        topic = self._image().topic_by_id(topic_id)
        if topic is None:
            return _Asked(topic_id, partition, None, ErrorCode.unknown_topic_id)
        replica, error = self._find(topic.name, partition.partition)
        return _Asked(topic_id, partition, replica, error)

    def _read(self, asked: list[_Asked], request: Request, most: int, *, first: bool) -> list[FetchResult]:
        """One slice a partition, `most` bytes together; the first partition with data may exceed it by one batch."""
        replica_id = request.body.replica_state.replica_id
        left, slices = most, []
        for item in asked:
            if item.replica is None:
                slices.append(FetchResult(item.error))
                continue
            part, replica = item.partition, item.replica
            size = min(part.partition_max_bytes, left)
            at_least_one = left == most and most > 0
            if not _is_replica(replica_id):
                found = replica.fetch_for_consumer(part.current_leader_epoch, part.fetch_offset, size, at_least_one)
            elif first:
                fetch = ReplicaFetch(
                    replica_id,
                    request.body.replica_state.replica_epoch,
                    part.current_leader_epoch,
                    part.fetch_offset,
                    part.last_fetched_epoch,
                    log_start=part.log_start_offset,
                )
                found = replica.fetch_for_replica(fetch, request.connection, self._replicas.active, size, at_least_one)
            else:
                found = replica.read_for_replica(
                    replica_id, part.current_leader_epoch, part.fetch_offset, size, at_least_one
                )
            left = max(0, left - len(found.records))
            slices.append(found)
        return slices

    # --- ListOffsets and OffsetForLeaderEpoch -------------------------------------------------------------------------

    async def list_offsets(self, request: Request) -> ListOffsetsResponse:
        """Offsets by timestamp: the earliest, the latest, the one of the largest timestamp, or the first not before."""
        until = asyncio.get_running_loop().time() + self._latest_timeout_s
        topics = []
        for topic in request.body.topics:
            answers = [await self._list_offset(topic.name, part, request, until) for part in topic.partitions]
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(answers)))
        return ListOffsetsResponse(throttle_time=NOW, topics=tuple(topics))

    async def _list_offset(self, topic: str, part: Any, request: Request, until: float) -> ListOffsetsPartitionResponse:
        replica, error = self._find(topic, part.partition_index)
        offset, timestamp, epoch = -1, -1, -1
        if _means_nothing(part.timestamp, request.version):
            error = ErrorCode.unsupported_version
        elif replica is not None:
            error = replica.refuses("list_offsets", part.current_leader_epoch)
        if replica is not None and error is ErrorCode.none:
            if part.timestamp == LATEST:
                if _is_replica(request.body.replica_id):
                    offset = replica.log.end
                else:
                    error, offset = await replica.latest(until)
                epoch = replica.state.leader_epoch if error is ErrorCode.none else -1
            elif part.timestamp == EARLIEST:
                offset = replica.log.start
                epoch = replica.log.epochs.epoch_at(offset)
            else:
                time_ms = None if part.timestamp == MAX_TIMESTAMP else part.timestamp
                error, offset, timestamp = replica.offset_for_time(time_ms)
                if offset >= 0:
                    epoch = replica.log.epochs.epoch_at(offset)
        return ListOffsetsPartitionResponse(
            partition_index=part.partition_index,
            error_code=error,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=epoch,
        )

    async def offset_for_leader_epoch(self, request: Request) -> OffsetForLeaderEpochResponse:
        """Where a leader epoch ends in this leader's log (KIP-101, KIP-279, KIP-320)."""
        topics = []
        for topic in request.body.topics:
            answers = []
            for part in topic.partitions:
                replica, error = self._find(topic.topic, part.partition)
                epoch, end = -1, -1
                if replica is not None:
                    error = replica.refuses("offset_for_leader_epoch", part.current_leader_epoch)
                    if error is ErrorCode.none:
                        epoch, end = replica.state.epochs.end_offset_for(part.leader_epoch, replica.state.log_end)
                answers.append(
                    EpochEndOffset(error_code=error, partition=part.partition, leader_epoch=epoch, end_offset=end)
                )
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(answers)))
        return OffsetForLeaderEpochResponse(throttle_time=NOW, topics=tuple(topics))


def _is_replica(replica_id: int) -> bool:
    """Whether it is a broker that asks. Below zero are consumers: -1, and -2 that Kafka's tools used for debugging."""
    return replica_id >= 0


def _means_nothing(timestamp: int, version: int) -> bool:
    since = MEANINGS_SINCE.get(timestamp)
    return timestamp < 0 and (since is None or version < since)


def _hang_up_if_refused(appended: list[tuple[str, list[tuple[int, Replica | None, AppendResult]]]]) -> None:
    for topic, parts in appended:
        for index, _, found in parts:
            if found.error is not ErrorCode.none:
                raise CloseConnection(f"refused with acks=0: {topic}-{index}: {found.error.name}")


def _worth_answering(slices: list[FetchResult], min_bytes: int) -> bool:
    got = 0
    for found in slices:
        if found.error is not ErrorCode.none or found.diverging is not None or found.urgent:
            return True
        got += len(found.records)
    return got >= min_bytes or not slices


def _produced(index: int, error: ErrorCode, base: int, replica: Replica | None) -> PartitionProduceResponse:
    optional: dict[str, Any] = {}
    if error is ErrorCode.not_leader_or_follower and replica is not None:
        optional["current_leader"] = ProduceLeader(
            leader_id=replica.state.leader, leader_epoch=replica.state.leader_epoch
        )
    return PartitionProduceResponse(
        index=index,
        error_code=error,
        base_offset=base if error is ErrorCode.none else -1,
        log_append_time=None,
        record_errors=(),
        **optional,
    )


def _fetched(asked: list[_Asked], slices: list[FetchResult], opened: FetchContext) -> FetchResponse:
    session = opened.session
    topics: dict[int | None, tuple[Any, list[FetchedPartition]]] = {}  # by number: ids hash in Python
    for item, found in zip(asked, slices, strict=True):
        if session is not None:
            key = (item.topic_id, item.partition.partition)
            plain = found.error is ErrorCode.none and found.diverging is None and not found.records
            silent = opened.incremental and plain and not session.is_news(key, found.high_watermark, found.log_start)
            session.answered(key, found.high_watermark, found.log_start, records=bool(found.records))
            if silent:
                continue
        optional: dict[str, Any] = {}
        if found.diverging is not None:
            epoch, end = found.diverging
            optional["diverging_epoch"] = DivergingEpoch(epoch=epoch, end_offset=end)
        if item.replica is not None and found.error is not ErrorCode.none:
            state = item.replica.state
            optional["current_leader"] = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
        number = None if item.topic_id is None else item.topic_id.int
        topics.setdefault(number, (item.topic_id, []))[1].append(
            FetchedPartition(
                partition_index=item.partition.partition,
                error_code=found.error,
                high_watermark=found.high_watermark,
                last_stable_offset=found.high_watermark,
                log_start_offset=found.log_start,
                aborted_transactions=None,
                records=found.records,
                **optional,
            )
        )
    return FetchResponse(
        throttle_time=NOW,
        error_code=ErrorCode.none,
        session_id=NO_SESSION if session is None else session.id,
        responses=tuple(
            FetchableTopicResponse(topic_id=topic, partitions=tuple(parts)) for topic, parts in topics.values()
        ),
    )
