"""Where metadata changes are committed, and how a controller reads them back.

A controller sees its log through `MetadataLog` alone: one change is one batch, appended and awaited until committed;
what is read is always committed. `LocalMetadataLog` is the log of a controller on its own: a batch is committed once
it is on this disk. A quorum's log is committed by a majority instead, and looks the same from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from images.broker import batch as batches
from images.broker.doors import Doors
from images.broker.log import Log, LogConfig, OffsetOutOfRange
from images.broker.metadata import TOPIC_NAME, ClusterImage, Record, decode, encode

DIRECTORY = f"{TOPIC_NAME}-0"
_REPLAY_BYTES = 1 << 20

__all__ = ["LocalMetadataLog", "MetadataLog", "OffsetOutOfRange"]


class MetadataLog(Protocol):
    """Committed metadata changes, in order."""

    @property
    def start(self) -> int:
        """Offset of the first record."""

    @property
    def end(self) -> int:
        """Offset after the last committed record: the high watermark."""

    @property
    def epoch(self) -> int:
        """The controller epoch in which this node appends."""

    async def append(self, records: Sequence[Record], timestamp_ms: int) -> None:
        """Return once `records`, one change, are committed at `end` as it was. All of them survive or none does.

        Raises OSError when this node cannot keep them; then nobody knows whether they will be there after a restart.
        """

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole committed batches from `offset` on, at least one if there is one. Raises OffsetOutOfRange."""

    def close(self) -> None:
        """Release the files."""


class LocalMetadataLog:
    """The log of a single controller: written and synced is committed. Its epoch rises with every start."""

    def __init__(self, doors: Doors, segment_bytes: int) -> None:
        """Open and recover the log. Raises OSError."""
        config = LogConfig(segment_bytes=segment_bytes, flush_interval_messages=1)
        self._log = Log.open(doors.files, DIRECTORY, config, doors.log)
        # What a crash left unsynced is about to be acted upon, so it must not be lost any more.
        self._log.flush()
        self.end = self._log.end
        self.epoch = self._log.last_batch_epoch + 1

    @property
    def start(self) -> int:
        """Offset of the first record."""
        return self._log.start

    async def append(self, records: Sequence[Record], timestamp_ms: int) -> None:
        """As `MetadataLog.append`."""
        batch = batches.build(
            [encode(record) for record in records],
            timestamp_ms=timestamp_ms,
            leader_epoch=self.epoch,
            base_offset=self.end,
        )
        self._log.append(batch)
        self.end = self._log.end

    def read(self, offset: int, max_bytes: int) -> bytes:
        """As `MetadataLog.read`."""
        return self._log.read(offset, max_bytes, self.end)

    def close(self) -> None:
        """As `MetadataLog.close`."""
        self._log.close(clean=True)


def replay(log: MetadataLog) -> ClusterImage:
    """The image that everything committed adds up to. Raises MetadataError when the log makes no sense."""
    image = ClusterImage(offset=log.start)
    while image.offset < log.end:
        for header, batch in batches.iterate(log.read(image.offset, _REPLAY_BYTES)):
            image = image.apply_all(changes(batch), header.base_offset)
    return image


def changes(batch: bytes) -> list[Record]:
    """The records of one batch of the metadata log. Raises CorruptBatch or MetadataError."""
    return [decode(record.value or b"") for record in batches.records(batch)]
