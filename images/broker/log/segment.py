"""One segment of a log: record batches end to end in a file named after the offset of the first.

The offset index lives in memory only: the base offset and file position of batches, by default of every batch, so
that a read is two binary searches and one call to the file, and decodes nothing. When the index grows past
INDEX_ENTRIES_MAX every second entry is dropped; from then on a read also walks the headers between two entries.
A segment that was closed cleanly is opened without looking inside; its index is built by the first read.

A segment knows nothing of epochs, producers or syncing policy: that is the log's part.
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
        """Whether a truncation may be undone by a power loss, bringing back what it removed."""
        self._index_interval = index_interval
        self._clear_index()
        self._indexed = size == 0
        self._max_timestamp: int | None = -1 if size == 0 else None
        self._first_timestamp: int | None = None

    @classmethod
    def create(cls, files: Files, directory: str, base_offset: int, index_interval: int) -> Segment:
        """A new, empty segment, whatever a file of its name held before."""
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

    def recover(self, seen: Callable[[Header], None]) -> str:
        """Check every batch and cut the file before the first that is not whole, intact and in its place.

        Each good batch's header goes to `seen`, in order. Returns why the file was cut, empty when it was not.
        A damaged leader epoch goes unnoticed, as in Kafka: no checksum covers it.
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
                self._note(header)
                seen(header)
        except CorruptBatch as error:
            reason = f"{self.path} at byte {self.size}: {error}"
        if self.size < file_size:
            self._file.truncate(self.size)
        # A process that was killed may have left a cut, or anything else, unsynced.
        self.unsynced = self.cut_unsynced = True
        return reason

    def append(self, batch: bytes, header: Header) -> None:
        """Write one batch at the end. On OSError the file may hold part of it: see `discard_partial_write`."""
        self._file.append(batch)
        self.unsynced = True
        self._note(header)

    def discard_partial_write(self) -> None:
        """Remove what a failed append may have left behind the last whole batch. Raises OSError."""
        if self._file.size() > self.size:
            self._file.truncate(self.size)
            self.unsynced = True

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool) -> bytes:
        """Whole batches from the one that holds `offset`, base_offset ≤ offset < end, as far as `before` allows."""
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
        """The headers of all batches from the one that holds `offset`, which may be `end`."""
        if offset >= self.end:
            return
        if not self._indexed:
            self._build_index()
        for _, header in self._walk(self._position_of(offset)):
            yield header

    def truncate(self, offset: int) -> None:
        """Cut before the batch that holds `offset`, base_offset ≤ offset < end; that batch's base is the new `end`."""
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
        """How much younger a record of `timestamp` is than the first batch here, which is not empty; both in ms.

        0 when that batch tells no time. As in Kafka it is the producers' clocks that are compared.
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

    def fsync(self) -> None:
        """Sync, if anything changed. On OSError nothing is known of what is on disk."""
        if self.unsynced:
            self._file.fsync()
            self.unsynced = self.cut_unsynced = False

    def close(self) -> None:
        """Release the file. Does not sync."""
        self._file.close()

    # ---- the index ---------------------------------------------------------------------------------------------------

    def _clear_index(self) -> None:
        self._offsets = array("q")
        self._positions = array("q")
        self._sparse = False

    def _note(self, header: Header) -> None:
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
        """Where the batch that holds `offset` begins."""
        found = self._positions[bisect_right(self._offsets, offset) - 1]
        if self._sparse:
            for position, header in self._walk(found):
                if header.next_offset > offset:
                    return position
        return found

    def _boundary_at_or_below(self, limit: int) -> int:
        """The end of the last batch that ends at or below the position `limit`."""
        if limit >= self.size:
            return self.size
        found = self._positions[bisect_right(self._positions, limit) - 1]
        if self._sparse:
            for position, header in self._walk(found):
                if position + header.size > limit:
                    return position
        return found

    # ---- what the file holds -----------------------------------------------------------------------------------------

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
                raise OSError(EIO, "the file changed behind the log's back", f"{self.path} at byte {position}")
            position += at

    def _whole_batches(self, file_size: int) -> Iterator[bytes]:
        """Every whole batch from the start of the file; CorruptBatch where the next thing is not one."""
        position = 0
        wanted = SCAN_BYTES
        while position < file_size:
            chunk = self._file.read(position, wanted)
            before = position
            for header, batch in iterate(chunk):
                yield batch
                position += header.size
            if position == before:
                missing = position + parse(chunk).size - file_size
                if missing > 0:
                    raise CorruptBatch(f"the last batch is {missing} bytes short")
                wanted = max(SCAN_BYTES, parse(chunk).size)


def holds_records(files: Files, directory: str) -> bool:
    """Whether a log in `directory`, opened or not, has as much as a byte in any segment. Raises OSError."""
    for name in files.list(directory):
        if base_offset_of(name) is not None:
            file = files.open(f"{directory}/{name}")
            try:
                if file.size():
                    return True
            finally:
                file.close()
    return False
