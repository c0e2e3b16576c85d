"""Saved extents: bytes of a file, saved before they are replaced.

An extent is zeros, bytes in memory, or, if large, an unnamed file that the file system frees with the extent.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from tempfile import TemporaryFile
from typing import IO, Final

SPILLED_ABOVE_BYTES: Final = 1 << 20
"""Larger extents go to a file."""

_CHUNK: Final = 1 << 20
_offset = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class SavedExtent:
    """The old content of [offset, offset + length) of a file."""

    offset: int
    length: int
    source: bytes | IO[bytes] | None
    """None means zeros."""
    skip: int = 0
    """Start of the extent in its source."""

    @property
    def end(self) -> int:
        """End of the extent."""
        return self.offset + self.length

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory."""
        return self.length if isinstance(self.source, bytes) else 0

    def clipped(self, start: int, end: int) -> SavedExtent | None:
        """The part within [start, end), None if empty."""
        start, end = max(start, self.offset), min(end, self.end)
        if start >= end:
            return None
        skip = self.skip + start - self.offset
        if isinstance(self.source, bytes):  # a copy, so that a small part does not keep the whole in memory
            return SavedExtent(start, end - start, self.source[skip : skip + end - start])
        return SavedExtent(start, end - start, self.source, skip)

    def write_back(self, descriptor: int, size_before: int) -> None:
        """Write the old content back. Zeros are not written past `size_before`, where the file has been
        extended again."""
        if isinstance(self.source, bytes):
            _write(descriptor, memoryview(self.source), self.offset)
            return
        end = self.end if self.source is not None else min(self.end, size_before)
        for at in range(self.offset, end, _CHUNK):
            length = min(_CHUNK, end - at)
            if self.source is None:
                data = bytes(length)
            else:
                data = os.pread(self.source.fileno(), length, self.skip + at - self.offset)
            _write(descriptor, memoryview(data), at)


def save_extents(descriptor: int, start: int, end: int, directory: str) -> tuple[SavedExtent, ...]:
    """Save [start, end) of a file, which must lie within it; large extents go to files in `directory`."""
    if end - start <= SPILLED_ABOVE_BYTES:
        return (SavedExtent(start, end - start, _read(descriptor, start, end)),) if start < end else ()
    extents: list[SavedExtent] = []
    at = start
    while at < end:
        data_start, data_end = _next_data(descriptor, at, end)
        if data_start > at:
            extents.append(SavedExtent(at, data_start - at, None))
        if data_end - data_start > SPILLED_ABOVE_BYTES:
            extents.append(_spill_to_file(descriptor, data_start, data_end, directory))
        elif data_end > data_start:
            extents.append(SavedExtent(data_start, data_end - data_start, _read(descriptor, data_start, data_end)))
        at = data_end
    return tuple(extents)


def earliest_extents(extents: Iterable[SavedExtent], size: int) -> tuple[SavedExtent, ...]:
    """Disjoint extents below `size`, ordered by offset; where extents overlap, the first given wins."""
    kept: list[SavedExtent] = []
    for extent in extents:
        at = extent.offset
        end = min(extent.end, size)
        new_extents: list[SavedExtent] = []
        index = max(0, bisect_right(kept, at, key=_offset) - 1)
        while at < end:
            following = kept[index] if index < len(kept) else None
            stop = end if following is None else min(end, following.offset)
            part = extent.clipped(at, stop)
            if part is not None:
                new_extents.append(part)
            at = max(at, stop) if following is None else max(at, stop, following.end)
            index += 1
        for part in new_extents:
            insort(kept, part, key=_offset)
    return tuple(kept)


def _next_data(descriptor: int, at: int, end: int) -> tuple[int, int]:
    """The next extent of data in [at, end); (end, end) if only a hole follows."""
    try:
        start = os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end, end
        raise
    return min(start, end), min(os.lseek(descriptor, start, os.SEEK_HOLE), end)


def _spill_to_file(descriptor: int, start: int, end: int, directory: str) -> SavedExtent:
    file = TemporaryFile(dir=directory, buffering=0)
    for at in range(start, end, _CHUNK):
        _write(file.fileno(), memoryview(_read(descriptor, at, min(end, at + _CHUNK))), at - start)
    return SavedExtent(start, end - start, file)


def _read(descriptor: int, start: int, end: int) -> bytes:
    data = os.pread(descriptor, end - start, start)
    if len(data) == end - start:
        return data
    parts = [data]
    have = len(data)
    while have < end - start:
        data = os.pread(descriptor, end - start - have, start + have)
        if not data:  # truncated by another program: the missing bytes read as zeros
            data = bytes(end - start - have)
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data = data[written:]
        offset += written
