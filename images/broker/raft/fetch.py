"""The metadata partition as brokers and other controllers read it: Fetch, answered by the leader of the quorum.

Brokers follow the metadata log as they follow any partition, with a fetch that waits here until there is something
new. They are shown committed batches only, and whole ones, so that no broker ever acts on half a change. Controllers
are shown everything, since their fetches are what commits it. Whoever asks from below the start of the log is sent to
the snapshot that stands for what was there (FetchSnapshot); whoever asks a controller that does not lead is told who
does, as far as it knows.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.response import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)
from kio.schema.fetch_snapshot.v1 import response as snapshots

from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC, CLUSTER_METADATA_TOPIC_ID
from images.broker.raft.log import OffsetOutOfRange
from images.broker.raft.node import QuorumNode
from images.broker.raft.values import Fetched, Role
from images.broker.raft.values import SnapshotId as Snapshot
from images.broker.runtime.server import Request


class MetadataServing:
    """Answers fetches of the metadata partition."""

    def __init__(self, quorum: QuorumNode) -> None:
        self._quorum = quorum

    async def fetch(self, request: Request) -> FetchResponse:
        """Whole batches from the offset asked, once there are `min_bytes` of them or `max_wait` is over.

        Errors, at once: UNKNOWN_TOPIC_ID (100), UNKNOWN_TOPIC_OR_PARTITION (3), OFFSET_OUT_OF_RANGE (1),
        NOT_LEADER_OR_FOLLOWER (6), FENCED_LEADER_EPOCH (74), UNKNOWN_LEADER_EPOCH (75). So are a diverging epoch and
        a snapshot.
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
                    await self._quorum.until_changed()
                    answer, waiting_for = self._read(body, enough)
        except TimeoutError:
            pass
        return answer

    async def fetch_snapshot(self, request: Request) -> snapshots.FetchSnapshotResponse:
        """A piece of a snapshot, from the position asked.

        Errors: UNKNOWN_TOPIC_OR_PARTITION (3), NOT_LEADER_OR_FOLLOWER (6), SNAPSHOT_NOT_FOUND (98),
        POSITION_OUT_OF_RANGE (99).
        """
        body = request.body
        topics = tuple(
            snapshots.TopicSnapshot(
                name=topic.name,
                partitions=tuple(self._piece(topic.name, asked, body.max_bytes) for asked in topic.partitions),
            )
            for topic in body.topics
        )
        return snapshots.FetchSnapshotResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, topics=topics)

    def _piece(self, topic: str, asked: Any, max_bytes: int) -> snapshots.PartitionSnapshot:
        state, error, data = self._quorum.state, ErrorCode.none, b""
        if topic != CLUSTER_METADATA_TOPIC or asked.partition != 0:
            error = ErrorCode.unknown_topic_or_partition
        elif state.role is not Role.LEADER:
            error = ErrorCode.not_leader_or_follower
        else:
            found = self._quorum.log.snapshot_content(Snapshot(asked.snapshot_id.end_offset, asked.snapshot_id.epoch))
            data = found or b""
            if found is None:
                error = ErrorCode.snapshot_not_found
            elif not 0 <= asked.position < len(data):
                error, data = ErrorCode.position_out_of_range, b""
        return snapshots.PartitionSnapshot(
            index=asked.partition,
            error_code=error,
            snapshot_id=snapshots.SnapshotId(end_offset=asked.snapshot_id.end_offset, epoch=asked.snapshot_id.epoch),
            current_leader=snapshots.LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.epoch),
            size=len(data),
            position=asked.position,
            unaligned_records=data[asked.position : asked.position + max(0, max_bytes)] if data else b"",
        )

    def _read(self, body: Any, enough: int) -> tuple[FetchResponse, bool]:
        """The answer as things stand, and whether it is worth waiting for a better one."""
        topics, size, settled = [], 0, False
        replica = body.replica_state.replica_id
        for topic in body.topics:
            partitions = []
            for wanted in topic.partitions:
                partition = self._read_partition(topic.topic_id, replica, wanted, body.max_bytes - size)
                partitions.append(partition)
                size += len(partition.records)
                elsewhere = max(partition.diverging_epoch.end_offset, partition.snapshot_id.end_offset) >= 0
                settled |= partition.error_code is not ErrorCode.none or elsewhere
            topics.append(FetchableTopicResponse(topic_id=topic.topic_id, partitions=tuple(partitions)))
        answer = FetchResponse(throttle_time=timedelta(0), error_code=ErrorCode.none, responses=tuple(topics))
        return answer, size < enough and not settled

    def _read_partition(self, topic_id: uuid.UUID | None, replica: int, wanted: Any, max_bytes: int) -> PartitionData:
        if topic_id != CLUSTER_METADATA_TOPIC_ID:
            return self._answer(wanted.partition, ErrorCode.unknown_topic_id)
        if wanted.partition != 0:
            return self._answer(wanted.partition, ErrorCode.unknown_topic_or_partition)
        quorum = self._quorum
        fetched = Fetched(replica, wanted.current_leader_epoch, wanted.fetch_offset, wanted.last_fetched_epoch)
        verdict = quorum.fetched_by(fetched)
        if verdict.error is not ErrorCode.none:
            return self._answer(wanted.partition, verdict.error)
        if verdict.diverging is not None:
            parted = EpochEndOffset(epoch=verdict.diverging.epoch, end_offset=verdict.diverging.end)
            return self._answer(wanted.partition, diverging=parted)
        if verdict.snapshot is not None:
            latest = SnapshotId(end_offset=verdict.snapshot.end, epoch=verdict.snapshot.epoch)
            return self._answer(wanted.partition, snapshot=latest)
        before = quorum.log.end if replica in quorum.state.positions else quorum.state.high_watermark
        try:
            size = min(max_bytes, wanted.partition_max_bytes)
            records = quorum.log.read(wanted.fetch_offset, size, before) if max_bytes > 0 else b""
        except OffsetOutOfRange:
            return self._answer(wanted.partition, ErrorCode.offset_out_of_range)
        return self._answer(wanted.partition, records=records)

    def _answer(
        self,
        partition: int,
        error: ErrorCode = ErrorCode.none,
        records: bytes = b"",
        diverging: EpochEndOffset | None = None,
        snapshot: SnapshotId | None = None,
    ) -> PartitionData:
        state, log = self._quorum.state, self._quorum.log
        known = error is ErrorCode.none or error is ErrorCode.offset_out_of_range
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
