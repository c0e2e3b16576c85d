"""Fetch and FetchSnapshot of the metadata partition, answered by the leader of the quorum.

Brokers follow the metadata log as they follow any partition: a fetch waits here until there are new records. Brokers
receive committed batches only, and whole ones, so that no broker acts on half a change. Controllers receive all
records, since their fetches commit them. A fetch from below the start of the log is answered with the id of the latest
snapshot. A controller that is not the leader answers with the leader it knows.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.request import FetchRequest
from kio.schema.fetch.v16.response import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)
from kio.schema.fetch_snapshot.v1 import response as snapshots
from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest

from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID
from images.broker.raft.log import OffsetOutOfRange
from images.broker.raft.node import RaftNode
from images.broker.raft.values import NO_NODE, MetadataFetch, RaftRole
from images.broker.raft.values import SnapshotId as Snapshot
from images.broker.runtime.server import Request
from images.wire.field_values import NO_ERROR

NO_BROKER_EPOCH = -1


class MetadataFetchHandler:
    """Handles Fetch and FetchSnapshot."""

    def __init__(self, node: RaftNode) -> None:
        self._node = node

    async def fetch(self, request: Request[FetchRequest]) -> FetchResponse:
        """Fetch: whole batches from the fetch offset, once there are `min_bytes` of them or `max_wait` is over.

        Errors, answered at once: UNKNOWN_TOPIC_ID (100), UNKNOWN_TOPIC_OR_PARTITION (3), OFFSET_OUT_OF_RANGE (1),
        NOT_LEADER_OR_FOLLOWER (6), FENCED_LEADER_EPOCH (74), UNKNOWN_LEADER_EPOCH (75). A diverging epoch and a
        snapshot id are answered at once, too.
        """
        body = request.body
        min_bytes = min(body.min_bytes, body.max_bytes)
        answer, waiting_for = self._fetch_response(body, min_bytes)
        if not waiting_for:
            return answer
        deadline = asyncio.get_running_loop().time() + body.max_wait.total_seconds()
        try:
            async with asyncio.timeout_at(deadline):
                while waiting_for:
                    await self._node.wait_for_progress()
                    answer, waiting_for = self._fetch_response(body, min_bytes)
        except TimeoutError:
            pass
        return answer

    async def fetch_snapshot(self, request: Request[FetchSnapshotRequest]) -> snapshots.FetchSnapshotResponse:
        """FetchSnapshot: a chunk of a snapshot, from the requested position.

        Errors: UNKNOWN_TOPIC_OR_PARTITION (3), NOT_LEADER_OR_FOLLOWER (6), SNAPSHOT_NOT_FOUND (98),
        POSITION_OUT_OF_RANGE (99).
        """
        body = request.body
        topics = tuple(
            snapshots.TopicSnapshot(
                name=topic.name,
                partitions=tuple(
                    self._snapshot_chunk(topic.name, body.replica_id, requested, body.max_bytes)
                    for requested in topic.partitions
                ),
            )
            for topic in body.topics
        )
        return snapshots.FetchSnapshotResponse(throttle_time=timedelta(0), error_code=NO_ERROR, topics=topics)

    def _snapshot_chunk(self, topic: str, replica: int, requested: Any, max_bytes: int) -> snapshots.PartitionSnapshot:
        state, error, data = self._node.state, NO_ERROR, b""
        if topic != CLUSTER_METADATA_TOPIC or requested.partition != 0:
            error = ErrorCode.unknown_topic_or_partition
        elif state.role is not RaftRole.LEADER:
            error = ErrorCode.not_leader_or_follower
        else:
            content = self._node.log.read_snapshot(
                Snapshot(requested.snapshot_id.end_offset, requested.snapshot_id.epoch)
            )
            data = content or b""
            if content is None:
                error = ErrorCode.snapshot_not_found
            elif not 0 <= requested.position < len(data):
                error, data = ErrorCode.position_out_of_range, b""
            else:
                self._node.on_fetch_snapshot(replica, requested.current_leader_epoch)
        return snapshots.PartitionSnapshot(
            index=requested.partition,
            error_code=error,
            snapshot_id=snapshots.SnapshotId(
                end_offset=requested.snapshot_id.end_offset, epoch=requested.snapshot_id.epoch
            ),
            current_leader=snapshots.LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.epoch),
            size=len(data),
            position=requested.position,
            unaligned_records=data[requested.position : requested.position + max(0, max_bytes)] if data else b"",
        )

    def _fetch_response(self, body: Any, min_bytes: int) -> tuple[FetchResponse, bool]:
        """The response from the current state, and whether to wait for more records."""
        topics, size, answer_now = [], 0, False
        # Only a broker gives a broker epoch. Whatever its node id, its fetch is never the fetch of a voter.
        sender = body.replica_state
        replica = sender.replica_id if sender.replica_epoch == NO_BROKER_EPOCH else NO_NODE
        for topic in body.topics:
            partitions = []
            for request in topic.partitions:
                partition = self._read_partition(topic.topic_id, replica, request, body.max_bytes - size)
                partitions.append(partition)
                size += len(partition.records or b"")
                redirected = max(partition.diverging_epoch.end_offset, partition.snapshot_id.end_offset) >= 0
                answer_now |= partition.error_code is not NO_ERROR or redirected
            topics.append(FetchableTopicResponse(topic_id=topic.topic_id, partitions=tuple(partitions)))
        answer = FetchResponse(throttle_time=timedelta(0), error_code=NO_ERROR, responses=tuple(topics))
        return answer, size < min_bytes and not answer_now

    def _read_partition(self, topic_id: uuid.UUID | None, replica: int, request: Any, max_bytes: int) -> PartitionData:
        if topic_id != CLUSTER_METADATA_TOPIC_ID:
            return self._partition_response(request.partition, ErrorCode.unknown_topic_id)
        if request.partition != 0:
            return self._partition_response(request.partition, ErrorCode.unknown_topic_or_partition)
        node = self._node
        fetch = MetadataFetch(replica, request.current_leader_epoch, request.fetch_offset, request.last_fetched_epoch)
        validation = node.on_fetch(fetch)
        if validation.error is not NO_ERROR:
            return self._partition_response(request.partition, validation.error)
        if validation.diverging is not None:
            parted = EpochEndOffset(epoch=validation.diverging.epoch, end_offset=validation.diverging.end)
            return self._partition_response(request.partition, diverging=parted)
        if validation.snapshot is not None:
            latest = SnapshotId(end_offset=validation.snapshot.end, epoch=validation.snapshot.epoch)
            return self._partition_response(request.partition, snapshot=latest)
        before = node.log.end if replica in node.state.progress else node.state.high_watermark
        try:
            size = min(max_bytes, request.partition_max_bytes)
            records = node.log.read(request.fetch_offset, size, before) if max_bytes > 0 else b""
        except OffsetOutOfRange:
            return self._partition_response(request.partition, ErrorCode.offset_out_of_range)
        return self._partition_response(request.partition, records=records)

    def _partition_response(
        self,
        partition: int,
        error: ErrorCode = NO_ERROR,
        records: bytes = b"",
        diverging: EpochEndOffset | None = None,
        snapshot: SnapshotId | None = None,
    ) -> PartitionData:
        state, log = self._node.state, self._node.log
        known = error is NO_ERROR or error is ErrorCode.offset_out_of_range
        return PartitionData(
            partition_index=partition,
            error_code=error,
            high_watermark=state.high_watermark if known else -1,
            last_stable_offset=state.high_watermark if known else -1,
            log_start_offset=log.start if known else -1,
            diverging_epoch=diverging or EpochEndOffset(),
            snapshot_id=snapshot or SnapshotId(),
            current_leader=LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.epoch),
            aborted_transactions=None,
            records=records,
        )
