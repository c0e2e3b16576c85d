"""The log of one partition on one replica: segments, epoch cache and producer state in one directory.

    <20-digit offset>.log       a segment, named after its first offset (Kafka's format, nothing of ours in it)
    <20-digit offset>.snapshot  producer state before that offset
    leader-epoch-checkpoint     the epoch cache, in Kafka's format
    log-start-checkpoint        where the log starts, once that has been moved (`log_start.py`)
    clean-shutdown              there only between a clean close and the next open: where the log ended

What a caller may rely on:
- `append` is one write and never syncs, unless `flush_interval_messages` says so; `flush` returns once all that was
  appended survives a power loss. Nothing else does.
- After a crash the log is a prefix, of whole intact batches, of some state it had since the last flush, and has at
  least what was flushed and not cut since. A cut that was not flushed may be undone: then the old tail is back, just
  as it was, and replication finds it divergent once more.
- Epoch cache and producer table always equal those made from the batches alone, except that the cache may end in one
  epoch without batches, entered by `assign_epoch`; it is forgotten when the log is closed. A start that moves takes
  batches away, but no producer's state: their retries must still be known (KAFKA-7190).
- Once `advance_start` has returned, no crash brings back anything below that start. Only cutting the log below its
  start lowers it, as in Kafka.

Recovery: after a clean close the end, the checkpoint and the newest snapshot are believed, and rebuilt from the
batches if torn or missing. Otherwise none of them is: every batch is checked from the first, the log ends before the
first that is damaged or out of place, and the rest is made anew. A checkpoint can survive a power loss that undid the
cut it was written after, and an epoch cache that contradicts the log hides divergence. That is why. One snapshot is
believed all the same, that of the segment the log-start checkpoint names: it is synced before the checkpoint, and below
the start nothing is ever cut. A log found to end below its start lost what was to be deleted anyway, and more; it goes
on, empty, at its start.

Three orders matter when files lose their unsynced writes independently of each other, and are kept here: a segment
whose own cut is unsynced is synced before the next one is created, or the old tail could come back and join on to it;
removed segments are gone for good before anything is written where they were; and a segment is removed from the start
only when snapshot and checkpoint that stand for it are on disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from errno import EIO

from images.broker.log.clean_shutdown import (
    CleanShutdownMarker,
    take_clean_shutdown_marker,
    write_clean_shutdown_marker,
)
from images.broker.log.leader_epochs import UNDEFINED, EpochCache
from images.broker.log.log_start_checkpoint import LogStart, read_log_start, write_log_start
from images.broker.log.producer_history import ProducerHistory
from images.broker.log.producer_snapshots import ProducerSnapshots
from images.broker.log.producer_state import ProducerTable, record
from images.broker.log.retention import Removable
from images.broker.log.segment import Segment, base_offset_of, segment_name
from images.broker.log.time_index import first_not_older, largest
from images.broker.ports import Files
from images.broker.runtime.files import TEMPORARY_SUFFIX, read_whole, write_durably
from images.wire.batch import Header, check, parse

EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
LOG_START_CHECKPOINT = "log-start-checkpoint"
NEVER = (1 << 63) - 1


class OffsetOutOfRange(Exception):
    """The offset is below the start or above the end of the log."""


class OutOfPlace(ValueError):
    """The batch does not begin where the log ends."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one log is kept. Sizes in bytes."""

    segment_bytes: int = 1 << 30
    """A batch that would make a segment larger goes to a new one."""
    segment_ms: int = NEVER
    """So does one that is so much younger, by its timestamp, than the first batch of the segment."""
    flush_interval_messages: int = NEVER
    """Sync after so many records (Kafka's `flush.messages`)."""
    max_batch_bytes: int = 1_048_588
    """Largest batch a leader takes from a producer. The leader's check: the log stores what it is given."""
    index_interval_bytes: int = 0
    """Least distance between two index entries; 0 enters every batch."""


@dataclass(frozen=True, slots=True)
class LogRecovery:
    """What opening a log found."""

    clean: bool
    """Whether it had been closed cleanly, so that nothing had to be checked."""
    cut_bytes: int = 0
    """Bytes removed from the end: torn, damaged, or behind such a place."""
    cut_reason: str = ""
    epochs_rebuilt: bool = False
    """Whether the epoch cache had to be made from the batches."""
    producers_rebuilt: bool = False
    """Whether the producer table had to be made, at least in part, from the batches."""


class Log:
    """An open log. `start` and `end` (exclusive; the LEO) are offsets; `epochs` and `producers` are values."""

    def __init__(self, files: Files, directory: str, config: LogConfig, log_line: Callable[[str], None]) -> None:
        """For `open`, which is the way to get a log."""
        self.config = config
        self.directory = directory
        self.start = 0
        self.end = 0
        self.recovery_point = 0
        """What lies below survives a power loss."""
        self.epochs = EpochCache()
        self.producers = ProducerTable()
        self.recovery = LogRecovery(clean=True)
        self._files = files
        self._log_line = log_line
        self._snapshots = ProducerSnapshots(files, directory)
        self._segments: list[Segment] = []
        self._moved_start: LogStart | None = None
        """What the log-start checkpoint holds."""
        self._history = ProducerHistory(self._snapshots)
        self._names_unsynced = False
        self._fatal_error: OSError | None = None

    # ---- opening and closing -----------------------------------------------------------------------------------------

    @classmethod
    def open(cls, files: Files, directory: str, config: LogConfig, log_line: Callable[[str], None]) -> Log:
        """The log in `directory`, recovered; a new empty one when there is none. Raises OSError."""
        log = cls(files, directory, config, log_line)
        names = files.list(directory)
        bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                files.delete(f"{directory}/{name}")
        closed = take_clean_shutdown_marker(files, directory)
        moved = log._moved_start = read_log_start(files, log._path(LOG_START_CHECKPOINT))
        if moved is not None:
            for base in bases:
                if base < moved.base:
                    files.delete(log._path(segment_name(base)))
            bases = [base for base in bases if base >= moved.base]
        if not bases:
            log._snapshots.delete_above(-1)
            log._start_empty_at(0 if moved is None else moved.offset)
            parent = directory
            while parent:
                parent = parent.rpartition("/")[0]
                files.sync_directory(parent)
        elif closed is None or not log._open_clean(bases, closed):
            log._recover(bases)
        return log

    def close(self, clean: bool) -> bool:
        """Release the files. With `clean` everything is synced first and the next open has nothing to check.

        Never raises: when a clean close fails, it says so in the node's log and the next open checks everything.
        Returns whether everything appended is certain to survive.
        """
        flushed = False
        if clean:
            try:
                self.flush()
                flushed = True
                if self.end > self._segments[0].base_offset:
                    self._snapshots.write(self.end, self.producers)
                write_durably(self._files, self._path(EPOCH_CHECKPOINT), self.epochs.to_checkpoint().encode())
                last = self._segments[-1]
                write_clean_shutdown_marker(
                    self._files, self.directory, CleanShutdownMarker(self.end, last.base_offset, last.size)
                )
            except OSError as error:
                self._log_line(f"log {self.directory}: not closed cleanly: {error}")
        for segment in self._segments:
            segment.close()
        return flushed

    def _open_clean(self, bases: list[int], closed: CleanShutdownMarker) -> bool:
        """Open without checking, or nothing and False when the files are not those that were closed."""
        if bases[-1] != closed.last_base:
            return False
        end = closed.end
        interval = self.config.index_interval_bytes
        for base, segment_end in zip(bases, [*bases[1:], end], strict=True):
            self._segments.append(Segment.open(self._files, self.directory, base, interval, segment_end))
        if self._segments[-1].size != closed.last_size:
            for segment in self._segments:
                segment.close()
            self._segments.clear()
            return False
        self._begin_at(bases[0])
        self.end = self.recovery_point = end
        epochs = self._read_epochs()
        if epochs is None:
            self._log_line(f"log {self.directory}: {EPOCH_CHECKPOINT} is missing or torn; made anew from the batches")
            rebuilt = EpochCache()
            for segment in self._segments:
                for header in segment.headers(segment.base_offset):
                    rebuilt = rebuilt.with_batch(header.leader_epoch, header.base_offset)
        self.epochs = (rebuilt if epochs is None else epochs).advance_start(self.start)
        scanned = self._rebuild_producers()
        self.recovery = LogRecovery(clean=True, epochs_rebuilt=epochs is None, producers_rebuilt=scanned)
        return True

    def _recover(self, bases: list[int]) -> None:
        """Check every batch and make everything else from them."""
        self._begin_at(bases[0])
        self._snapshots.delete_above(-1, but=bases[0])
        self.end, self.producers = bases[0], self._history.before
        found_bytes = 0
        reason = ""
        for base in bases:
            segment = Segment.open(self._files, self.directory, base, self.config.index_interval_bytes, base)
            found_bytes += segment.size
            if not reason and base != self.end:
                reason = f"{segment.path} does not begin at {self.end}, where the segment before it ends"
            if reason:
                segment.close()
                self._files.delete(segment.path)
                continue
            if self._segments:
                self._snapshots.write(self.end, self.producers)
            self._segments.append(segment)
            reason = segment.recover(self._seen)
        cut_bytes = found_bytes - sum(segment.size for segment in self._segments)
        self._files.sync_directory(self.directory)
        self.recovery_point = self.start
        if reason:
            self._log_line(f"log {self.directory}: cut {cut_bytes} bytes, now ends at {self.end}: {reason}")
        if self.end < self.start:
            self._log_line(
                f"log {self.directory}: ends at {self.end}, before its start; goes on, empty, at {self.start}"
            )
            self.truncate_fully_and_start_at(self.start)
        self.epochs = self.epochs.advance_start(self.start)
        self.recovery = LogRecovery(False, cut_bytes, reason, epochs_rebuilt=True, producers_rebuilt=True)

    def _start_empty_at(self, offset: int) -> None:
        """One empty segment at `offset`, there for good: without it a later one could pass for the log's start."""
        segment = Segment.create(self._files, self.directory, offset, self.config.index_interval_bytes)
        self._segments = [segment]
        self._files.sync_directory(self.directory)
        self._names_unsynced = False
        self.start = self.end = self.recovery_point = offset
        self.epochs = EpochCache()
        self.producers = ProducerTable()
        self._history.begin(offset)

    # ---- appending and reading ---------------------------------------------------------------------------------------

    @property
    def last_batch_epoch(self) -> int:
        """The leader epoch of the last batch, -1 when the log is empty."""
        if self.end == self.start:
            return UNDEFINED
        return self.epochs.latest if self.epochs.latest_start < self.end else self.epochs.epoch_at(self.end - 1)

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments)

    def append(self, batch: bytes, *, trusted: bool = False) -> Header:
        """Store one batch that has its offset, `end`, and leader epoch already. Returns its header.

        Raises CorruptBatch (unless `trusted`: checked by the caller), OutOfPlace, or OSError, after which the log is
        as before or, if even that cannot be had, takes no more.
        """
        header = parse(batch) if trusted else check(batch)
        if header.base_offset != self.end:
            raise OutOfPlace(
                f"a batch at offset {header.base_offset} for log {self.directory}, which ends at {self.end}"
            )
        if self._fatal_error is not None:
            self._refuse()
        segment = self._segments[-1]
        if segment.size and (
            segment.size + len(batch) > self.config.segment_bytes
            or segment.age_ms(header.max_timestamp) > self.config.segment_ms
        ):
            segment = self._roll()
        try:
            segment.append(batch, header)
        except OSError as error:
            self._restore(segment, error)
            raise
        self._seen(header)
        if self.end - self.recovery_point >= self.config.flush_interval_messages:
            self.flush()
        return header

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool = True) -> bytes:
        """Whole batches from the one that holds `offset`, none reaching beyond the offset `before`.

        At most `max_bytes`, but with `at_least_one` the first batch whatever its size; of one segment only, so fewer
        than asked for does not mean the end. Empty at `end`. Raises OffsetOutOfRange outside start … end.
        """
        if offset >= self.end or offset < self.start:
            if offset == self.end:
                return b""
            raise OffsetOutOfRange(f"offset {offset} is outside {self.start} … {self.end} of log {self.directory}")
        if offset >= before:
            return b""
        segment = self._segments[-1]
        if offset < segment.base_offset:
            segment = self._segments[self._segment_at(offset)]
        return segment.read(offset, max_bytes, before, at_least_one)

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """Offset and timestamp (ms) of the first record not older than `timestamp`; None when all are older."""
        return first_not_older(self._segments, self.start, timestamp)

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Offset and timestamp (ms) of the first record that carries the largest timestamp; None when empty."""
        if self.end == self.start:
            return None
        return first_not_older(self._segments, self.start, largest(self._segments, self.start))

    # ---- syncing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return once all that was appended, and every cut, survives a power loss.

        Raises OSError. After a failed fsync the log takes no more, since a later success would prove nothing.
        """
        if self._fatal_error is not None:
            self._refuse()
        for segment in self._segments:
            self._fsync(segment)
        if self._names_unsynced:
            self._files.sync_directory(self.directory)
            self._names_unsynced = False
        self.recovery_point = self.end

    def _fsync(self, segment: Segment) -> None:
        try:
            segment.fsync()
        except OSError as error:
            self._fatal_error = error
            raise

    # ---- the start ---------------------------------------------------------------------------------------------------

    @property
    def segments(self) -> Sequence[Removable]:
        """What retention looks at, oldest first; the last may be empty. Gone with the next change of the log."""
        return self._segments

    def roll(self) -> None:
        """Begin a new segment at the end, so that retention can remove the one before; nothing if that is empty."""
        if self._fatal_error is not None:
            self._refuse()
        if self._segments[-1].size:
            self._roll()

    def advance_start(self, offset: int) -> None:
        """Let the log start at `offset`, for good, and remove the segments that end there or before; never back.

        Raises OffsetOutOfRange above the end, or OSError, after which the log takes no more.
        """
        if offset <= self.start:
            return
        if offset > self.end:
            raise OffsetOutOfRange(f"log {self.directory} cannot start at {offset}: it ends at {self.end}")
        if self._fatal_error is not None:
            self._refuse()
        first = self._segment_at(offset)
        base = self._segments[first].base_offset
        try:
            before = self._history.before
            if first:
                before = self._producers_at(base)
                self._snapshots.write_durably(base, before)
            self._keep_start(offset, base)
            for segment in self._segments[:first]:
                segment.close()
                self._files.delete(segment.path)
            if first:
                self._snapshots.delete_below(base)
                self._files.sync_directory(self.directory)
                self._names_unsynced = False
        except OSError as error:
            self._fatal_error = error
            raise
        del self._segments[:first]
        self._history.advance(base, before)
        self.start = offset
        self.recovery_point = max(self.recovery_point, offset)
        self.epochs = self.epochs.advance_start(offset)

    def _keep_start(self, offset: int, base: int) -> None:
        """Write the start down. A snapshot of `base` counts from now on, so it must be on disk, or be none."""
        start = LogStart(offset, base)
        write_log_start(self._files, self._path(LOG_START_CHECKPOINT), start)
        self._moved_start = start

    def _begin_at(self, base: int) -> None:
        """The first segment found begins at `base`: the log starts there, or where its start was moved to."""
        moved = self._moved_start
        self.start = base if moved is None else max(base, moved.offset)
        self._history.begin(base, snapshot_counts=moved is not None and moved.base == base)

    # ---- epochs and cutting ------------------------------------------------------------------------------------------

    def assign_epoch(self, epoch: int, offset: int) -> None:
        """Enter an epoch without a batch: a new leader, at its log end offset."""
        self.epochs = self.epochs.assign(epoch, offset)

    def truncate(self, to: int) -> int:
        """Cut the log so that it ends at `to`, or at the base of the batch `to` falls into. Returns the new end.

        Above the end only the epoch cache is cut; below the start everything goes and the log starts at `to`.
        """
        if to < self.start:
            self.truncate_fully_and_start_at(to)
            return self.end
        if to >= self.end:
            self.epochs = self.epochs.truncate_end(to)
            return self.end
        if self._fatal_error is not None:
            self._refuse()
        try:
            self._remove_segments(self._segment_at(to) + 1)
            if to < self.end:
                self._segments[-1].truncate(to)
                self.end = self._segments[-1].end
            if self.end < self.start:
                self.truncate_fully_and_start_at(self.end)
                return self.end
            self.recovery_point = min(self.recovery_point, self.end)
            self._snapshots.delete_above(self.end)
            self.epochs = self.epochs.truncate_end(self.end)
            self._rebuild_producers()
        except OSError as error:
            self._fatal_error = error
            raise
        return self.end

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the log is empty and starts at `offset`."""
        if self._fatal_error is not None:
            self._refuse()
        try:
            self._remove_segments(0)
            self._snapshots.delete_above(-1)
            if self._moved_start is not None:
                self._files.sync_directory(self.directory)
                self._keep_start(offset, offset)
            self._start_empty_at(offset)
        except OSError as error:
            self._fatal_error = error
            raise

    # ---- segments ----------------------------------------------------------------------------------------------------

    def _segment_at(self, offset: int) -> int:
        return bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1

    def _roll(self) -> Segment:
        last = self._segments[-1]
        if last.cut_unsynced:
            self._fsync(last)
        self._snapshots.write(self.end, self.producers)
        segment = Segment.create(self._files, self.directory, self.end, self.config.index_interval_bytes)
        self._names_unsynced = True
        self._segments.append(segment)
        return segment

    def _remove_segments(self, first: int) -> None:
        """Remove all segments from index `first`, the last one first, so that a crash between two leaves a prefix."""
        if first == len(self._segments):
            return
        while len(self._segments) > first:
            segment = self._segments.pop()
            self.end = self._segments[-1].end if self._segments else self.start
            segment.close()
            self._files.delete(segment.path)
        self._files.sync_directory(self.directory)

    def _seen(self, header: Header) -> None:
        """A batch was added at the end."""
        self.end = header.next_offset
        if header.leader_epoch != self.epochs.latest:
            self.epochs = self.epochs.with_batch(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            self.producers = record(self.producers, header)
        self._history.appended(self.end, self.producers)

    def _restore(self, segment: Segment, error: OSError) -> None:
        try:
            segment.discard_partial_write()
        except OSError:
            self._fatal_error = error
            self._log_line(f"log {self.directory}: a failed append cannot be undone, nothing more is taken: {error}")

    def _refuse(self) -> None:
        raise OSError(EIO, f"the log failed before ({self._fatal_error})", self.directory)

    # ---- epoch checkpoint and producer snapshots ---------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _read_epochs(self) -> EpochCache | None:
        data = read_whole(self._files, self._path(EPOCH_CHECKPOINT))
        epochs = None if data is None else EpochCache.from_checkpoint(data.decode("ascii", "replace"))
        return None if epochs is None else epochs.truncate_end(self.end)

    def _rebuild_producers(self) -> bool:
        """Make the producer table of `end` from the newest known one at or below it. Whether batches had to be read."""
        self._history.cut(self.end)
        known, table = self._history.known(self.end)
        for header in self._headers(known):
            table = record(table, header)
            self._history.appended(header.next_offset, table)
        self.producers = table
        return known < self.end

    def _producers_at(self, offset: int) -> ProducerTable:
        """The producer table before `offset`, the base of a segment."""
        if offset == self.end:
            return self.producers
        known, table = self._history.known(offset)
        for header in self._headers(known):
            if header.base_offset >= offset:
                break
            table = record(table, header)
        return table

    def _headers(self, offset: int) -> Iterator[Header]:
        """The headers of all batches from the one that holds `offset`, a segment's base or a batch's."""
        for segment in self._segments[self._segment_at(offset) :]:
            yield from segment.headers(max(offset, segment.base_offset))
