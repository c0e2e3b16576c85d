"""Finds records of a log by their timestamps.

A batch's header has its largest timestamp, so most batches need not be decoded. Producers' compressed records are not
looked into before: for a batch whose records cannot be read, or have no timestamp as large as the header claims, the
result is its first offset and its largest timestamp. A batch has a record for each of its offsets, so the offsets of
records follow from the header, whatever the records say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from images.broker.log.segment import Segment
from images.wire.batch import CorruptBatch, Header, timestamps


def first_not_older(segments: Sequence[Segment], start: int, timestamp: int) -> tuple[int, int] | None:
    """Offset and timestamp (ms) of the first record from `start` on not older than `timestamp`; None without one."""
    for segment in segments:
        if segment.max_timestamp() < timestamp:
            continue
        for header in segment.headers(max(start, segment.base_offset)):
            if header.max_timestamp < timestamp:
                continue
            try:
                for offset, record_timestamp in _timestamps(segment, header):
                    if record_timestamp >= timestamp and offset >= start:
                        return offset, record_timestamp
            except CorruptBatch:
                return max(start, header.base_offset), header.max_timestamp
            if header.base_offset >= start:
                return header.base_offset, header.max_timestamp
    return None


def largest(segments: Sequence[Segment], start: int) -> int:
    """The largest timestamp (ms) of any record from `start` on, which lies in the first of `segments`."""
    first = segments[0]
    of_segments = [segment.max_timestamp() for segment in segments[1:]]
    if first.base_offset == start:
        of_segments.append(first.max_timestamp())
    else:
        of_segments += [_largest_in(first, header, start) for header in first.headers(start)]
    return max(of_segments, default=-1)


def _largest_in(segment: Segment, header: Header, start: int) -> int:
    if header.base_offset >= start:
        return header.max_timestamp
    try:
        own = (timestamp for offset, timestamp in _timestamps(segment, header) if offset >= start)
        return min(max(own, default=header.max_timestamp), header.max_timestamp)
    except CorruptBatch:
        return header.max_timestamp


def _timestamps(segment: Segment, header: Header) -> Iterator[tuple[int, int]]:
    """Offset and timestamp of each record of a batch. Raises CorruptBatch."""
    batch = segment.read(header.base_offset, header.size, header.next_offset, at_least_one=True)
    return enumerate(timestamps(batch), header.base_offset)
