"""One segment of a log: record batches end to end in a file named by the offset of the first.

The offset index is in memory only: base offset and file position, by default of every batch, so that a read is two
binary searches and one call to the file, and decodes nothing. With a distance between two entries (Kafka's
`index.interval.bytes`) a read also walks the headers between them. When the index grows beyond INDEX_ENTRIES_MAX, every
second entry is dropped, and the distance grows. A segment that was closed cleanly is opened without reading it; the
first read builds its index.

Epochs, producers and syncing policy are the log's part.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from errno import EIO

from images.broker.ports import File, Files
from images.wire.batch import HEADER_BYTES, LENGTH_END, CorruptBatch, Header, check, iterate, parse

SUFFIX = ".log"
OFFSET_DIGITS = 20
INDEX_ENTRIES_MAX = 1 << 16
SCAN_BYTES = 1 << 20
HEADER_WALK_BYTES = 1 << 14


def segment_name(base_offset: int) -> str:
    """Kafka's name of the segment that starts at `base_offset`."""
    return f"{base_offset:0{OFFSET_DIGITS}d}{SUFFIX}"


def base_offset_of(name: str) -> int | None:
    """The base offset in a segment's file name, None for a file that is no segment."""
    digits = name.removesuffix(SUFFIX)
    return int(digits) if len(name) == OFFSET_DIGITS + len(SUFFIX) and digits.isdecimal() else None


class Segment:
    """An open segment. `end` is the offset after its last record, `size` its length in bytes."""

    __slots__ = (
        "_file",
        "_first_timestamp",
        "_index_interval",
        "_indexed",
        "_max_timestamp",
        "_offsets",
        "_positions",
        "_sparse",
        "base_offset",
        "cut_unsynced",
        "end",
        "path",
        "size",
        "unsynced",
    )

    def __init__(self, file: File, path: str, base_offset: int, index_interval: int, end: int, size: int) -> None:
        self._file = file
        self.path = path
        self.base_offset = base_offset
        self.end = end
        self.size = size
        self.unsynced = False
        """Whether the file changed since the last fsync."""
        self.cut_unsynced = False
        """Whether a power loss may undo a truncation and restore the removed batches."""
        self._index_interval = index_interval
        self._clear_index()
        self._indexed = size == 0
        self._max_timestamp: int | None = -1 if size == 0 else None
        self._first_timestamp: int | None = None

    @classmethod
    def create(cls, files: Files, directory: str, base_offset: int, index_interval: int) -> Segment:
        """A new, empty segment; a file with its name is emptied."""
        path = f"{directory}/{segment_name(base_offset)}"
        file = files.open(path)
        if file.size():
            file.truncate(0)
        return cls(file, path, base_offset, index_interval, base_offset, 0)

    @classmethod
    def open(cls, files: Files, directory: str, base_offset: int, index_interval: int, end: int) -> Segment:
        """A segment known to be intact and to end at offset `end`."""
        path = f"{directory}/{segment_name(base_offset)}"
        file = files.open(path)
        return cls(file, path, base_offset, index_interval, end, file.size())

    def recover(self, on_batch: Callable[[Header], None], *, is_followed: bool) -> str:
        """Check every batch and truncate the file before the first that is not whole, intact and in its place. Earlier
        cuts of a segment that `is_followed` by another were synced before that began.

        Calls `on_batch` with the header of each good batch, in order. Returns the reason of the truncation, empty
        without one. As in Kafka a damaged leader epoch is not detected: no checksum covers it.
        """
        file_size = self._file.size()
        self.end, self.size, self._max_timestamp = self.base_offset, 0, -1
        self._clear_index()
        self._indexed = True
        reason = ""
        try:
            for batch in self._whole_batches(file_size):
                header = check(batch)
                if header.base_offset != self.end:
                    raise CorruptBatch(f"a batch at offset {header.base_offset} where {self.end} belongs")
                self._index_batch(header)
                on_batch(header)
        except CorruptBatch as error:
            reason = f"{self.path} at byte {self.size}: {error}"
        # A killed process may have left a truncation, or any other write, unsynced.
        self.unsynced, self.cut_unsynced = True, not is_followed
        if self.size < file_size:
            self._file.truncate(self.size)
            self.cut_unsynced = True
        return reason

    @property
    def bytes_behind(self) -> int:
        """Bytes that the file has behind the last batch."""
        return max(0, self._file.size() - self.size)

    @property
    def indexed_above(self) -> int | None:
        """The last offset at its end or above that has an index entry: none, since a cut takes the entries, too."""
        return self._offsets[-1] if self._offsets and self._offsets[-1] >= self.end else None

    def append(self, batch: bytes, header: Header) -> None:
        """Write one batch at the end. On OSError the file may hold part of it: see `discard_partial_write`."""
        self._file.append(batch)
        self.unsynced = True
        self._index_batch(header)

    def discard_partial_write(self) -> None:
        """Truncate what a failed append may have written behind the last whole batch. Raises OSError."""
        if self._file.size() > self.size:
            self._file.truncate(self.size)
            self.unsynced = True

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool) -> bytes:
        """Whole batches from the one with `offset`, base_offset ≤ offset < end, all ending at or below `before`."""
        max_bytes = max(0, max_bytes)
        if not self._indexed:
            self._build_index()
        start = self._position_of(offset)
        stop = self.size if before >= self.end else self._position_of(before)
        if stop - start > max_bytes:
            fits = self._boundary_at_or_below(start + max_bytes)
            if fits <= start:
                if not at_least_one:
                    return b""
                fits = start + parse(self._file.read(start, HEADER_BYTES)).size
            stop = fits
        return self._file.read(start, stop - start) if stop > start else b""

    def headers(self, offset: int) -> Iterator[Header]:
        """The headers of all batches from the one with `offset`, which may be `end`."""
        if offset >= self.end:
            return
        if not self._indexed:
            self._build_index()
        for _, header in self._walk(self._position_of(offset)):
            yield header

    def truncate(self, offset: int) -> None:
        """Truncate before the batch with `offset`, base_offset ≤ offset < end; its base offset is the new `end`."""
        if not self._indexed:
            self._build_index()
        position = self._position_of(offset)
        end = parse(self._file.read(position, HEADER_BYTES)).base_offset
        self._file.truncate(position)
        self.unsynced = self.cut_unsynced = True
        self.end, self.size = end, position
        keep = bisect_left(self._positions, position)
        del self._offsets[keep:], self._positions[keep:]
        self._max_timestamp = None if position else -1

    def age_ms(self, timestamp: int) -> int:
        """The time from the first batch of this segment, which is not empty, to `timestamp`, in ms.

        0 if that batch has no timestamp. As in Kafka both timestamps are from producers' clocks.
        """
        first = self._first_timestamp
        if first is None:
            first = self._first_timestamp = parse(self._file.read(0, HEADER_BYTES)).max_timestamp
        return timestamp - first if first >= 0 else 0

    def max_timestamp(self) -> int:
        """The largest timestamp in any header, -1 without one."""
        if self._max_timestamp is None:
            self._max_timestamp = max((header.max_timestamp for _, header in self._walk(0)), default=-1)
        return self._max_timestamp

    @property
    def known_max_timestamp(self) -> int | None:
        """What `max_timestamp` returns, if no header has to be read for it; else None."""
        return self._max_timestamp

    def fsync(self) -> None:
        """Sync, if anything changed. After an OSError the content on disk is unknown."""
        if self.unsynced:
            self._file.fsync()
            self.unsynced = self.cut_unsynced = False

    def close(self) -> None:
        """Close the file. Does not sync."""
        self._file.close()

    # ---- the index ---------------------------------------------------------------------------------------------------

    def _clear_index(self) -> None:
        self._offsets = array("q")
        self._positions = array("q")
        self._sparse = False

    def _index_batch(self, header: Header) -> None:
        position = self.size
        if position == 0:
            self._first_timestamp = header.max_timestamp
        if self._indexed:
            self._add_to_index(header.base_offset, position)
        # The header's own `size` and `next_offset`, without the calls: this runs for every batch appended.
        self.size = position + header.length + LENGTH_END
        self.end = header.base_offset + header.last_offset_delta + 1
        if self._max_timestamp is not None and header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp

    def _add_to_index(self, base_offset: int, position: int) -> None:
        positions = self._positions
        if positions and position - positions[-1] < self._index_interval:
            self._sparse = True
            return
        positions.append(position)
        self._offsets.append(base_offset)
        if len(positions) > INDEX_ENTRIES_MAX:
            self._positions, self._offsets = positions[::2], self._offsets[::2]
            self._sparse = True
            self._index_interval = max(self._index_interval, position // len(self._positions))

    def _build_index(self) -> None:
        self._clear_index()
        for position, header in self._walk(0):
            self._add_to_index(header.base_offset, position)
        self._indexed = True

    def _position_of(self, offset: int) -> int:
        """The file position of the batch with `offset`."""
        entry = self._positions[bisect_right(self._offsets, offset) - 1]
        if self._sparse:
            for position, header in self._walk(entry):
                if header.next_offset > offset:
                    return position
        return entry

    def _boundary_at_or_below(self, limit: int) -> int:
        """The end of the last batch that ends at or below the position `limit`."""
        if limit >= self.size:
            return self.size
        entry = self._positions[bisect_right(self._positions, limit) - 1]
        if self._sparse:
            for position, header in self._walk(entry):
                if position + header.size > limit:
                    return position
        return entry

    # ---- batches in the file -----------------------------------------------------------------------------------------

    def _walk(self, position: int) -> Iterator[tuple[int, Header]]:
        """Position and header of every batch from `position`, a boundary, without reading what lies between headers."""
        while position < self.size:
            chunk = self._file.read(position, min(HEADER_WALK_BYTES, self.size - position))
            at = 0
            while at + HEADER_BYTES <= len(chunk):
                header = parse(chunk, at)
                if header.length + LENGTH_END < HEADER_BYTES or position + at + header.size > self.size:
                    break
                yield position + at, header
                at += header.size
            if at == 0:
                raise OSError(EIO, "the file was changed by another process", f"{self.path} at byte {position}")
            position += at

    def _whole_batches(self, file_size: int) -> Iterator[bytes]:
        """Every whole batch from the start of the file; raises CorruptBatch at the first other data."""
        position = 0
        chunk_size = SCAN_BYTES
        while position < file_size:
            chunk = self._file.read(position, chunk_size)
            before = position
            for header, batch in iterate(chunk):
                yield batch
                position += header.size
            if position == before:
                missing = position + parse(chunk).size - file_size
                if missing > 0:
                    raise CorruptBatch(f"the last batch is {missing} bytes short")
                chunk_size = max(SCAN_BYTES, parse(chunk).size)


def holds_records(files: Files, directory: str) -> bool:
    """Whether any segment of a log in `directory`, open or not, has a byte. Raises OSError."""
    for name in files.list(directory):
        if base_offset_of(name) is not None:
            file = files.open(f"{directory}/{name}")
            try:
                if file.size():
                    return True
            finally:
                file.close()
    return False
