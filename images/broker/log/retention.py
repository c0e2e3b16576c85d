"""How much of a log may go: Kafka's `retention.ms` and `retention.bytes`.

Segments go whole and oldest first, and only while all of a segment lies below a bound, the high watermark: what is not
committed is not deleted, however old or large. A segment goes

- by time, when its largest timestamp is more than `retention.ms` before now. Timestamps are the producers', now is
  this node's: a clock that is wrong deletes early or late. A segment that tells no time stays;
- by size, while the log without it would still be `retention.bytes` large.

The last segment may go too. The log is then rolled first, so that it is never without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

UNLIMITED = -1


class LogStartReason(StrEnum):
    """Why a log's start moved."""

    DELETE_RECORDS = "delete_records"
    RETENTION_MS = "retention_ms"
    RETENTION_BYTES = "retention_bytes"
    LEADER = "leader"
    """The leader's log starts there."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much is kept of a topic's logs; UNLIMITED is everything."""

    ms: int = UNLIMITED
    bytes: int = UNLIMITED


class Removable(Protocol):
    """A segment, as far as retention looks at it."""

    @property
    def end(self) -> int:
        """Exclusive."""

    @property
    def size(self) -> int:
        """In bytes."""

    def max_timestamp(self) -> int:
        """The largest timestamp in ms, -1 without any. May have to read the segment."""


class Expiry(NamedTuple):
    """The log may start at `offset`."""

    offset: int
    reason: LogStartReason


def expiry(segments: Sequence[Removable], retention: Retention, *, now_ms: int, below: int) -> Expiry | None:
    """How far the start may move for `retention`, all that is removed ending at or below `below`; None for nowhere."""
    gone, by_time = 0, 0
    if retention.ms != UNLIMITED:
        while gone < len(segments) and _may_go(segments[gone], below) and _is_old(segments[gone], retention.ms, now_ms):
            gone += 1
        by_time = gone
    if retention.bytes != UNLIMITED:
        excess = sum(segment.size for segment in segments[gone:]) - retention.bytes
        while gone < len(segments) and _may_go(segments[gone], below) and excess >= segments[gone].size:
            excess -= segments[gone].size
            gone += 1
    if not gone:
        return None
    return Expiry(
        segments[gone - 1].end, LogStartReason.RETENTION_MS if gone == by_time else LogStartReason.RETENTION_BYTES
    )


def _may_go(segment: Removable, below: int) -> bool:
    return segment.size > 0 and segment.end <= below


def _is_old(segment: Removable, retention_ms: int, now_ms: int) -> bool:
    youngest = segment.max_timestamp()
    return youngest >= 0 and now_ms - youngest > retention_ms
