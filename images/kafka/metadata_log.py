"""The metadata log of one node, `__cluster_metadata-0`, read from its segments.

A torn or corrupt tail ends the log, as it does for Kafka when it opens it. Snapshots are not read: a log whose records
they replaced begins where its first segment does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from images.wire import batch

DIRECTORY: Final = "__cluster_metadata-0"
_LEADER_CHANGE: Final = 2
"""Type of a control record."""
_CONTROL_KEY: Final = struct.Struct(">hh")
"""Version and type."""
_LEADER: Final = struct.Struct(">hi")
"""The beginning of LeaderChangeMessage: version, leader."""


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


def committed(logs: Sequence[Sequence[MetadataBatch]]) -> list[MetadataBatch]:
    """The batches that a majority of these logs, one of each voter, holds: of the log that would win an election, as
    far as they agree."""
    longest = max(logs, key=lambda log: (log[-1].leader_epoch, log[-1].end) if log else (-1, -1), default=())
    holders: dict[tuple[int, int, int, int], int] = {}
    for log in logs:
        for held in log:
            holders[held[:4]] = holders.get(held[:4], 0) + 1
    agreed: list[MetadataBatch] = []
    for held in longest:
        if holders[held[:4]] < len(logs) // 2 + 1:
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
