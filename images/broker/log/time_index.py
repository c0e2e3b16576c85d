"""Finds records of a log by their timestamps.

A batch's header has its largest timestamp, so most batches need not be decoded. For a batch whose records cannot be
read, the result is its first offset and its largest timestamp.
"""

from __future__ import annotations

from collections.abc import Sequence

from images.broker.log.segment import Segment
from images.wire.batch import CorruptBatch, Header, records


def first_not_older(segments: Sequence[Segment], start: int, timestamp: int) -> tuple[int, int] | None:
    """Offset and timestamp (ms) of the first record from `start` on not older than `timestamp`; None without one."""
    for segment in segments:
        if segment.max_timestamp() < timestamp:
            continue
        for header in segment.headers(max(start, segment.base_offset)):
            if header.max_timestamp < timestamp:
                continue
            try:
                for record in records(_batch(segment, header)):
                    if record.timestamp >= timestamp and record.offset >= start:
                        return record.offset, record.timestamp
            except CorruptBatch:
                return max(start, header.base_offset), header.max_timestamp
    return None


def largest(segments: Sequence[Segment], start: int) -> int:
    """The largest timestamp (ms) of any record from `start` on, which lies in the first of `segments`."""
    first = segments[0]
    timestamps = [segment.max_timestamp() for segment in segments[1:]]
    if first.base_offset == start:
        timestamps.append(first.max_timestamp())
    else:
        timestamps += [_largest_in(first, header, start) for header in first.headers(start)]
    return max(timestamps, default=-1)


def _largest_in(segment: Segment, header: Header, start: int) -> int:
    if header.base_offset >= start:
        return header.max_timestamp
    try:
        return max(record.timestamp for record in records(_batch(segment, header)) if record.offset >= start)
    except CorruptBatch:
        return header.max_timestamp


def _batch(segment: Segment, header: Header) -> bytes:
    return segment.read(header.base_offset, header.size, header.next_offset, at_least_one=True)
