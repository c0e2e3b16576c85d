"""Snapshots of the metadata: the records that rebuild an image, in a file beside the metadata log.

A snapshot stands for everything below its end offset. It is a file of record batches with Kafka's name, `<end
offset>-<epoch>.checkpoint`, written atomically. A fetch from below the start of the log is answered with the id of the
latest snapshot; the follower reads it with FetchSnapshot, chunk by chunk. One older snapshot is kept for those that
still read it when the next is written (`log.py`).

Offsets inside a snapshot have no meaning; broker epochs, which are offsets of registrations, are written explicitly.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.fetch_snapshot.v1 import request as fetch_snapshot_schema

from images.broker.metadata.image import (
    BrokerConfigRecord,
    ChangeBroker,
    ClusterImage,
    MetadataError,
    ProducerIdsBlock,
    Record,
    RegisterBroker,
    TopicConfigRecord,
    TopicRecord,
    decode,
    encode,
)
from images.broker.metadata.internal_topics import CLUSTER_METADATA_TOPIC
from images.broker.ports import Files
from images.broker.raft.values import SnapshotId
from images.broker.runtime.files import read_whole, write_durably
from images.wire import batch as batches

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_RECORDS_PER_BATCH = 200


def image_records(image: ClusterImage) -> Iterator[Record]:
    """The records that rebuild `image`, except for its offset, from an empty image."""
    for broker in image.brokers.values():
        yield RegisterBroker(broker.id, broker.incarnation, broker.host, broker.port, broker.epoch)
        yield ChangeBroker(broker.id, broker.epoch, broker.fenced, broker.shutting_down)
    for broker_id, config in image.broker_configs.items():
        yield BrokerConfigRecord(broker_id, config)
    for topic in image.topics.values():
        yield TopicRecord(topic.name, topic.id)
        yield TopicConfigRecord(topic.name, topic.config)
        yield from topic.partitions
    # Always the last record, so that a snapshot is known to be whole.
    yield ProducerIdsBlock(image.next_producer_id)


def encode_snapshot(image: ClusterImage, epoch: int) -> bytes:
    """The content of a snapshot of `image`, taken in controller epoch `epoch`."""
    values = [encode(record) for record in image_records(image)]
    return b"".join(
        batches.build(values[first : first + _RECORDS_PER_BATCH], timestamp_ms=0, leader_epoch=epoch, base_offset=first)
        for first in range(0, len(values), _RECORDS_PER_BATCH)
    )


def decode_snapshot(data: bytes, snapshot: SnapshotId) -> ClusterImage:
    """The image in a snapshot. Raises CorruptBatch or MetadataError; a snapshot that lacks its end is damaged."""
    image, size, last = ClusterImage(), 0, None
    for header, batch in batches.iterate(data):
        batches.check(batch)
        records = [decode(record.value or b"") for record in batches.records(batch)]
        image = image.apply_all(records, header.base_offset)
        size, last = size + len(batch), records[-1] if records else None
    if size < len(data) or not isinstance(last, ProducerIdsBlock):
        raise MetadataError(f"the snapshot {snapshot.name} of {len(data)} bytes is damaged: its end is missing")
    return replace(image, offset=snapshot.end)


class MetadataSnapshots:
    """The snapshots in one directory."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        matches = [_NAME.fullmatch(name) for name in files.list(directory)]
        self.ids = tuple(sorted(SnapshotId(int(match[1]), int(match[2])) for match in matches if match))
        """All of them, the latest last."""

    def read(self, snapshot: SnapshotId) -> bytes | None:
        """The content of a snapshot; None if the file does not exist. Raises OSError."""
        return read_whole(self._files, self._path(snapshot))

    def write(self, snapshot: SnapshotId, data: bytes) -> None:
        """Write a snapshot durably. Raises OSError."""
        write_durably(self._files, self._path(snapshot), data)
        self.ids = tuple(sorted({*self.ids, snapshot}))

    def delete(self, snapshots: Sequence[SnapshotId]) -> None:
        """Delete these snapshots; a power loss may bring them back. Raises OSError."""
        for snapshot in snapshots:
            self._files.delete(self._path(snapshot))
        self.ids = tuple(snapshot for snapshot in self.ids if snapshot not in snapshots)

    def _path(self, snapshot: SnapshotId) -> str:
        return f"{self._directory}/{snapshot.name}"


async def fetch_snapshot(
    call: Callable[[Any], Awaitable[Any]],
    replica: int,
    epoch: int,
    snapshot: SnapshotId,
    max_bytes: int,
    on_chunk: Callable[[], None] = lambda: None,
) -> bytes | None:
    """Fetch a snapshot from the leader of the quorum, in chunks of `max_bytes`, with a call of `on_chunk` upon each;
    None if the leader refuses. Raises the exceptions of `call`."""
    data = b""
    while True:
        partition = fetch_snapshot_schema.PartitionSnapshot(
            partition=0,
            current_leader_epoch=epoch,
            snapshot_id=fetch_snapshot_schema.SnapshotId(end_offset=snapshot.end, epoch=snapshot.epoch),
            position=len(data),
        )
        topic = fetch_snapshot_schema.TopicSnapshot(name=CLUSTER_METADATA_TOPIC, partitions=(partition,))
        answer = await call(
            fetch_snapshot_schema.FetchSnapshotRequest(replica_id=replica, max_bytes=max_bytes, topics=(topic,))
        )
        chunk = answer.topics[0].partitions[0] if answer.topics else None
        if chunk is None or chunk.error_code is not ErrorCode.none:
            return None
        on_chunk()
        data += chunk.unaligned_records
        if len(data) >= chunk.size or not chunk.unaligned_records:
            return data if len(data) == chunk.size else None
