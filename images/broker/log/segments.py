"""The segments of one log, oldest first: finding the one with an offset, adding, syncing and removing them.

The order of the calls to the disk is the log's part, see `log.py`; each method here says what is synced on return.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from images.broker.log.segment import Segment
from images.broker.ports import Files
from images.wire.batch import Header


class LogSegments(Sequence[Segment]):
    """The open segments of the log in `directory`. An open log always has at least one."""

    __slots__ = ("_directory", "_files", "_names_unsynced", "_segments", "active")

    active: Segment
    """The last segment, to which batches are appended."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._segments: list[Segment] = []
        self._names_unsynced = False

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments)

    def index_of(self, offset: int) -> int:
        """The index of the segment with `offset`, which is at or above the first base offset."""
        return bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1

    def headers(self, offset: int) -> Iterator[Header]:
        """The headers of all batches from the one with `offset`, the base offset of a segment or of a batch."""
        for segment in self._segments[self.index_of(offset) :]:
            yield from segment.headers(max(offset, segment.base_offset))

    def add(self, segment: Segment) -> None:
        """Add a segment that was opened, as the last."""
        self._segments.append(segment)
        self.active = segment

    def create(self, base_offset: int, index_interval: int) -> None:
        """Create an empty segment at `base_offset`, as the last. Its file name is not synced."""
        segment = Segment.create(self._files, self._directory, base_offset, index_interval)
        self._names_unsynced = True
        self.add(segment)

    def close_all(self) -> None:
        """Close and forget all segments; their files stay."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()

    def sync_names(self) -> None:
        """Sync the directory if a segment was created since the last time."""
        if self._names_unsynced:
            self.sync_directory()

    def sync_directory(self) -> None:
        """Return once the creation and removal of segments survives a power loss."""
        self._files.sync_directory(self._directory)
        self._names_unsynced = False

    def remove_from(self, first: int) -> None:
        """Remove all segments from index `first`, durably. The last is removed first, so that a crash leaves a
        prefix."""
        if first == len(self._segments):
            return
        while len(self._segments) > first:
            segment = self._segments.pop()
            if self._segments:
                self.active = self._segments[-1]
            segment.close()
            self._files.delete(segment.path)
        self._files.sync_directory(self._directory)

    def delete_files_before(self, first: int) -> None:
        """Close and delete the segments before index `first`; not durable before `sync_directory`."""
        for segment in self._segments[:first]:
            segment.close()
            self._files.delete(segment.path)

    def forget_before(self, first: int) -> None:
        """Forget the segments before index `first`, whose files are deleted."""
        del self._segments[:first]
