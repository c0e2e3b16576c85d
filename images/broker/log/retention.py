"""Retention: which segments `retention.ms` and `retention.bytes` delete, as in Kafka.

Segments are deleted whole and oldest first, and only below the high watermark: uncommitted records are never deleted. A
segment is deleted

- by time, if its largest timestamp is more than `retention.ms` before now. Timestamps come from producers' clocks, now
  from this node's clock: a wrong clock deletes early or late. A segment without timestamps is kept;
- by size, if the log without it still has `retention.bytes`.

If the last segment is deleted, the log is rolled first, so that it always has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

UNLIMITED = -1


class LogStartReason(StrEnum):
    """The reason for which a log start advanced."""

    DELETE_RECORDS = "delete_records"
    RETENTION_MS = "retention_ms"
    RETENTION_BYTES = "retention_bytes"
    LEADER = "leader"
    """The leader's log starts there (on a follower)."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a topic's logs; UNLIMITED deletes nothing."""

    ms: int = UNLIMITED
    bytes: int = UNLIMITED


class RetainedSegment(Protocol):
    """The properties of a segment that retention needs."""

    @property
    def end(self) -> int:
        """Exclusive."""

    @property
    def size(self) -> int:
        """In bytes."""

    def max_timestamp(self) -> int:
        """The largest timestamp in ms, -1 without any. May have to read the segment."""


class Expiry(NamedTuple):
    """The log start that retention allows."""

    offset: int
    reason: LogStartReason


def expiry(segments: Sequence[RetainedSegment], retention: Retention, *, now_ms: int, below: int) -> Expiry | None:
    """The log start once all expired segments that end at or below `below` are deleted; None if none is expired."""
    expired, by_time = 0, 0
    if retention.ms != UNLIMITED:
        while (
            expired < len(segments)
            and _may_be_deleted(segments[expired], below)
            and _is_old(segments[expired], retention.ms, now_ms)
        ):
            expired += 1
        by_time = expired
    if retention.bytes != UNLIMITED:
        excess = sum(segment.size for segment in segments[expired:]) - retention.bytes
        while (
            expired < len(segments) and _may_be_deleted(segments[expired], below) and excess >= segments[expired].size
        ):
            excess -= segments[expired].size
            expired += 1
    if not expired:
        return None
    return Expiry(
        segments[expired - 1].end, LogStartReason.RETENTION_MS if expired == by_time else LogStartReason.RETENTION_BYTES
    )


def _may_be_deleted(segment: RetainedSegment, below: int) -> bool:
    return segment.size > 0 and segment.end <= below


def _is_old(segment: RetainedSegment, retention_ms: int, now_ms: int) -> bool:
    youngest = segment.max_timestamp()
    return youngest >= 0 and now_ms - youngest > retention_ms
