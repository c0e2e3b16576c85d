"""Results of fetches: records, answers about one partition, and errors of a position that cannot be read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from images.wire import batch as batches
from workloads.clients.positions import OffsetAndEpoch, Truncation
from workloads.history import TopicPartition


class OffsetOutOfRangeError(Exception):
    """A position cannot be read from, and there is no policy to reset it by; go on with `seek`."""

    def __init__(self, why: str, positions: Mapping[TopicPartition, int]) -> None:
        places = ", ".join(f"{topic}-{partition} at {position}" for (topic, partition), position in positions.items())
        super().__init__(f"{why}: {places}")
        self.positions: Mapping[TopicPartition, int] = dict(positions)


class LogTruncationError(OffsetOutOfRangeError):
    """Records read earlier are not in the log any more (Kafka's LogTruncationException); go on with `seek`."""

    def __init__(self, truncations: Mapping[TopicPartition, Truncation]) -> None:
        super().__init__(
            "the log was truncated below the position",
            {key: truncation.position.offset for key, truncation in truncations.items()},
        )
        self.truncation_offsets: Mapping[TopicPartition, OffsetAndEpoch | None] = {
            key: truncation.divergence for key, truncation in truncations.items()
        }
        """The first offset known to diverge from the records read; None where the leader knew no epoch to compare
        by."""


class ConsumerRecord(NamedTuple):
    """One record as read."""

    offset: int
    leader_epoch: int
    """Of the leader that appended it."""
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class CompletedFetch(NamedTuple):
    """One answer, or failure to get one, about one partition."""

    topic: str
    partition: int
    position: int
    """The offset requested."""
    records: tuple[ConsumerRecord, ...] = ()
    leader_epoch: int | None = None
    """The epoch that the answering leader confirmed by not refusing it; None with an error."""
    high_watermark: int | None = None
    error: str | None = None
    next: OffsetAndEpoch | None = None
    """With records: where they end, to be committed or sought."""
    token: int = -1
    """The return value of `on_fetch` when this was sent."""


def epochs(records: Sequence[ConsumerRecord]) -> tuple[OffsetAndEpoch, ...]:
    """The first offset of each epoch among `records`."""
    epoch_starts: list[OffsetAndEpoch] = []
    for record in records:
        if not epoch_starts or record.leader_epoch > epoch_starts[-1].epoch:
            epoch_starts.append(OffsetAndEpoch(record.offset, record.leader_epoch))
    return tuple(epoch_starts)


def read(data: bytes, position: int) -> tuple[tuple[ConsumerRecord, ...], int]:
    """The records at and after `position`, and the next position. Raises CorruptBatch.

    A broker answers with whole batches, so the first may begin before `position`.
    """
    records = []
    next_position = position
    for header, batch in batches.iterate(data):
        next_position = max(next_position, header.next_offset)
        if header.is_control:
            continue
        for record in batches.records(batch):
            if record.offset >= position:
                records.append(
                    ConsumerRecord(record.offset, header.leader_epoch, record.timestamp, record.key, record.value)
                )
    return tuple(records), next_position
