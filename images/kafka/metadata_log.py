"""The metadata log of one node, `__cluster_metadata-0`, read from its segments and snapshots.

A torn or corrupt tail ends the log, as it does for Kafka when it opens it. Where segments were deleted, or never
fetched, the log begins where its first segment does, and a snapshot (KIP-630) has the state up to there or further:
`<end offset>-<epoch>.checkpoint`, batches of records that make up the state, between a control record that begins it
and one that ends it. It is synced before it gets this name, and has only what was committed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from images.wire import batch

DIRECTORY: Final = "__cluster_metadata-0"
_LEADER_CHANGE, _SNAPSHOT_HEADER, _SNAPSHOT_FOOTER = 2, 3, 4
"""Types of control records."""
_CONTROL_KEY: Final = struct.Struct(">hh")
"""Version and type."""
_LEADER: Final = struct.Struct(">hi")
"""The beginning of LeaderChangeMessage: version, leader."""
_HEADER: Final = struct.Struct(">hq")
"""The beginning of SnapshotHeaderRecord: version, timestamp of the last batch that the snapshot stands for."""
_SNAPSHOT: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class MetadataBatch(NamedTuple):
    """One batch of the log."""

    offset: int
    end: int
    """Exclusive."""
    leader_epoch: int
    crc: int
    timestamp_ms: int
    """By the clock of the controller that appended it."""
    leader: int | None
    """The node that begins to lead with this batch; None for any other batch."""
    records: tuple[tuple[int, bytes], ...]
    """(offset, record); none in a control batch."""


def read_metadata_log(data: Path) -> list[MetadataBatch]:
    """The metadata log below a node's data directory; empty when it has none. Raises OSError."""
    batches: list[MetadataBatch] = []
    for segment in sorted((data / DIRECTORY).glob("*.log")):
        contents, whole = segment.read_bytes(), 0
        try:
            for header, payload in batch.iterate(contents):
                batch.check(payload)
                batches.append(_batch(header, payload))
                whole += header.size
        except batch.CorruptBatch:
            pass
        if contents[whole:].strip(b"\0"):
            break
    return batches


class MetadataSnapshot(NamedTuple):
    """The state of the metadata up to an offset."""

    end: int
    """Exclusive."""
    leader_epoch: int
    """Of the last batch below `end`."""
    timestamp_ms: int
    """Of that batch."""
    records: tuple[bytes, ...]


def read_snapshots(data: Path) -> list[MetadataSnapshot]:
    """The whole snapshots below a node's data directory, oldest first. Raises OSError."""
    snapshots = []
    for path in sorted((data / DIRECTORY).glob("*.checkpoint")):
        match = _SNAPSHOT.fullmatch(path.name)
        if match is None:
            continue
        try:
            timestamp_ms, records = _content(path.read_bytes())
        except (batch.CorruptBatch, struct.error):
            continue
        snapshots.append(MetadataSnapshot(int(match[1]), int(match[2]), timestamp_ms, records))
    return snapshots


def _content(contents: bytes) -> tuple[int, tuple[bytes, ...]]:
    """The timestamp in the header of a snapshot, and its records. Raises CorruptBatch, also where it does not end."""
    timestamp_ms, controls, values, whole = 0, [], [], 0
    for header, payload in batch.iterate(contents):
        batch.check(payload)
        whole += header.size
        for record in batch.records(payload):
            if not header.is_control:
                values.append(record.value or b"")
                continue
            controls.append(_CONTROL_KEY.unpack(record.key or b"")[1])
            if controls[-1] == _SNAPSHOT_HEADER:
                timestamp_ms = _HEADER.unpack_from(record.value or b"")[1]
    if whole < len(contents) or [*controls[:1], *controls[-1:]] != [_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER]:
        raise batch.CorruptBatch("a snapshot begins with a header and ends with a footer")
    return timestamp_ms, tuple(values)


class VoterLog(NamedTuple):
    """What one voter has of the metadata."""

    batches: Sequence[MetadataBatch]
    snapshots: Sequence[MetadataSnapshot] = ()
    """Oldest first; they matter where `batches` do not begin at offset 0."""

    @property
    def start(self) -> int:
        """Where the batches begin; where they would, when a snapshot is all that there is."""
        return self.batches[0].offset if self.batches else self.snapshots[-1].end if self.snapshots else 0

    @property
    def last(self) -> tuple[int, int]:
        """Leader epoch and offset of its end."""
        if self.batches:
            return self.batches[-1].leader_epoch, self.batches[-1].end
        return (self.snapshots[-1].leader_epoch, self.snapshots[-1].end) if self.snapshots else (-1, -1)

    def stands_for(self, held: MetadataBatch) -> bool:
        """Whether a snapshot has taken the place of the batch, below these or, once it was fetched, behind them."""
        elsewhere = held.end <= self.start or held.offset >= self.last[1]
        return elsewhere and any(snapshot.end >= held.end for snapshot in self.snapshots)


def longest(logs: Sequence[VoterLog]) -> VoterLog:
    """The log that would win an election, of several the one that begins first."""
    return max(logs, key=lambda log: (log.last, -log.start), default=VoterLog(()))


def committed(logs: Sequence[VoterLog]) -> list[MetadataBatch]:
    """The batches that a majority of these logs, one of each voter, holds, or has in a snapshot: of the longest of
    them, as far as they agree."""
    holders: dict[tuple[int, int, int, int], int] = {}
    for log in logs:
        for held in log.batches:
            holders[held[:4]] = holders.get(held[:4], 0) + 1
    agreed: list[MetadataBatch] = []
    for held in longest(logs).batches:
        if holders[held[:4]] + sum(log.stands_for(held) for log in logs) < len(logs) // 2 + 1:
            break
        agreed.append(held)
    return agreed


def _batch(header: batch.Header, payload: bytes) -> MetadataBatch:
    records = batch.records(payload)
    leader = None
    if header.is_control:
        for record in records:
            if record.key and record.value and _CONTROL_KEY.unpack(record.key)[1] == _LEADER_CHANGE:
                leader = _LEADER.unpack_from(record.value)[1]
        records = ()
    return MetadataBatch(
        header.base_offset,
        header.next_offset,
        header.leader_epoch,
        header.crc,
        header.max_timestamp,
        leader,
        tuple((record.offset, record.value) for record in records if record.value is not None),
    )
