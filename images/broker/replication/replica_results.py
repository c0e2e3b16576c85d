"""Results of appending to a replica, of beginning and ending a read of its latest offset, and of fetching from it."""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from images.wire.batch import Header


class AppendResult(NamedTuple):
    """Result of appending a produced batch. `end` is exclusive; a duplicate has the offsets of the first append."""

    error: ErrorCode
    base_offset: int = -1
    end: int = -1
    leader_epoch: int = -1
    """The leader epoch of this result. A leader of a later epoch cannot acknowledge it."""
    log_start: int = -1
    """The log start after the append. As in Kafka, the errors of a batch that the log does not even look into come
    without it."""
    retry: Header | None = None
    """The header of a duplicate; None for a batch that was appended now."""


class LatestRead(NamedTuple):
    """A read of the latest offset that has begun on the leader of this leader epoch."""

    leader_epoch: int
    read_index: int
    """The number of the read in its leader epoch."""


class LatestOffset(NamedTuple):
    """Result of reading the latest offset; without error, the number of the read, and the leader and the followers that
    confirm it."""

    error: ErrorCode
    offset: int = -1
    read: int = -1
    confirmed: tuple[int, ...] = ()


class FetchResult(NamedTuple):
    """Result of fetching from one partition."""

    error: ErrorCode
    records: bytes = b""
    high_watermark: int = -1
    log_start: int = -1
    diverging: tuple[int, int] | None = None
    urgent: bool = False
    """Answer at once, even without records."""
