"""The log of one partition on one replica: segments, epoch cache and producer state in one directory.

    <20-digit offset>.log       a segment, named by its first offset, in Kafka's format
    <20-digit offset>.snapshot  producer state before that offset
    leader-epoch-checkpoint     the epoch cache, in Kafka's format
    log-start-checkpoint        the log start, once it has advanced (`log_start_checkpoint.py`)
    clean-shutdown              the end of the log; exists only from a clean close to the next open

Guarantees:
- `append` is one write without a sync, unless `flush_interval_messages` asks for one, or a truncation before it is not
  on disk. `flush` returns once all appended batches survive a power loss. No other method promises that of them.
- After a crash the log is a prefix, in whole intact batches, of some state that it had since the last flush, and
  contains at least the batches that were flushed and not truncated since. A truncation may be undone until a batch is
  appended behind it: the old tail is back as it was, and replication detects the divergence again.
- Epoch cache and producer table equal those built from the batches alone, except that the cache may end in one epoch
  without batches, entered by `assign_epoch`, which is lost when the log is closed, and begin with that of the record
  before the log start; and that producers may have expired (`expire_producers`), whom a truncation or a restart brings
  back until they next do. Advancing the log start deletes batches but no producer state: retries of deleted batches are
  still detected (KAFKA-7190).
- Once `advance_start` has returned, no crash restores a record below that start. As in Kafka, only a truncation below
  the log start lowers it.

What an open does with what a crash left: `log_recovery.py`.

Files lose their unsynced writes independently of each other, so these orders are kept. A segment with an unsynced
truncation is synced before a batch is appended or the next segment created: the old tail could come back in place of
the batch, or join on to that segment. The removal of segments is durable before new ones are written in their place. A
segment is removed at the log start only when the snapshot and the checkpoint that replace it are on disk. A log that
begins anew at its end or above writes down its new start before its segments go: a kill in between would have it end
lower than it did, without any loss.

**Choice**: Kafka syncs no truncation (docs/decisions/0025-nothing-is-appended-behind-an-unsynced-cut.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EIO

from images.broker.log.clean_shutdown import (
    CleanShutdownMarker,
    take_clean_shutdown_marker,
    write_clean_shutdown_marker,
)
from images.broker.log.epoch_checkpoint import EPOCH_CHECKPOINT, read_epoch_checkpoint, write_epoch_checkpoint
from images.broker.log.leader_epochs import UNDEFINED, EpochCache
from images.broker.log.log_config import LogConfig
from images.broker.log.log_recovery import LeftOver, LogRecovery, delete_left_over, drop_segments
from images.broker.log.log_start_checkpoint import LogStart, read_log_start, write_log_start
from images.broker.log.producer_history import ProducerHistory
from images.broker.log.producer_snapshots import ProducerSnapshots
from images.broker.log.producer_state import ProducerTable, record, without_expired
from images.broker.log.segment import Segment, base_offset_of
from images.broker.log.segments import LogSegments
from images.broker.log.time_index import first_not_older, largest
from images.broker.ports import Files
from images.broker.runtime.files import TEMPORARY_SUFFIX, sync_parents
from images.wire.batch import Header, check, parse


class OffsetOutOfRange(Exception):
    """The offset is below the start or above the end of the log."""


class OutOfPlace(ValueError):
    """The batch does not begin where the log ends."""


class Log:
    """An open log. `start` and `end` (exclusive; the LEO) are offsets; `epochs` and `producers` are values."""

    def __init__(self, files: Files, directory: str, config: LogConfig, log_line: Callable[[str], None]) -> None:
        """Internal: use `open`."""
        self.config = config
        self.directory = directory
        self.start = 0
        self.end = 0
        self.recovery_point = 0
        """Batches below it survive a power loss."""
        self.epochs = EpochCache()
        self.producers = ProducerTable()
        self.recovery = LogRecovery(clean=True)
        self.left_over: LeftOver | None = None
        """The segments that were deleted when it was opened."""
        self._files = files
        self._log_line = log_line
        self._snapshots = ProducerSnapshots(files, directory)
        self._segments = LogSegments(files, directory)
        self._start_checkpoint: LogStart | None = None
        """The log-start checkpoint, None without one."""
        self._history = ProducerHistory(self._snapshots)
        self._failure: OSError | None = None
        """The error of the change that left the state on disk unknown; all others are refused then."""

    # ---- opening and closing -----------------------------------------------------------------------------------------

    @classmethod
    def open(cls, files: Files, directory: str, config: LogConfig, log_line: Callable[[str], None]) -> Log:
        """The log in `directory`, recovered; a new empty one if there is none. Raises OSError."""
        log, names = cls(files, directory, config, log_line), files.list(directory)
        bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                files.delete(f"{directory}/{name}")
        closed = take_clean_shutdown_marker(files, directory)
        checkpoint = log._start_checkpoint = read_log_start(files, directory)
        if checkpoint is not None:
            log.left_over = delete_left_over(files, directory, bases, checkpoint, config.index_interval_bytes)
            bases = [base for base in bases if base >= checkpoint.base]
        first = 0 if checkpoint is None else checkpoint.base
        dropped = None
        if bases and bases[0] != first and config.rules.delete_replica_durably:
            dropped = drop_segments(files, directory, bases, first)
            log_line(f"log {directory}: dropped {dropped.cut_bytes} bytes: {dropped.cut_reason}")
            bases = []
        if not bases:
            log._snapshots.delete_above(-1)
            start = 0 if checkpoint is None else checkpoint.offset
            if start != first:
                log._write_start(start, start, log._epoch_before_start)
            log._start_empty_at(start)
            log.recovery = dropped or log.recovery
            sync_parents(files, directory)
        elif closed is None or not log._open_clean(bases, closed):
            log._recover(bases)
        return log

    def close(self, clean: bool) -> OSError | None:
        """Close the files. With `clean` all batches are synced first, and the next open has none to check.

        Never raises: a clean close that fails is logged, and the next open checks all batches. Returns the error after
        which appended batches may not be on disk, if `clean` was asked for.
        """
        failed_flush: OSError | None = None
        if clean:
            try:
                self.flush()
            except OSError as error:
                failed_flush = error
                self._log_line(f"log {self.directory}: not closed cleanly: {error}")
        if clean and failed_flush is None:
            try:
                if self.end > self._segments[0].base_offset:
                    self._snapshots.write(self.end, self.producers)
                write_epoch_checkpoint(self._files, self.directory, self.epochs)
                last = self._segments.active
                write_clean_shutdown_marker(
                    self._files, self.directory, CleanShutdownMarker(self.end, last.base_offset, last.size)
                )
            except OSError as error:
                self._log_line(f"log {self.directory}: not closed cleanly: {error}")
        self._segments.close_all()
        return failed_flush

    def _open_clean(self, bases: list[int], closed: CleanShutdownMarker) -> bool:
        """Open without checking batches. False, with no segment open, if the files are not those that were closed."""
        if bases[-1] != closed.last_base:
            return False
        end, interval = closed.end, self.config.index_interval_bytes
        for base, segment_end in zip(bases, [*bases[1:], end], strict=True):
            self._segments.add(Segment.open(self._files, self.directory, base, interval, segment_end))
        if self._segments.active.size != closed.last_size:
            self._segments.close_all()
            return False
        self._begin_at(bases[0])
        self.end = self.recovery_point = end
        epochs = read_epoch_checkpoint(self._files, self.directory, end)
        if epochs is None:
            self._log_line(f"log {self.directory}: {EPOCH_CHECKPOINT} is missing or torn; rebuilt from the batches")
            for header in self._segments.headers(bases[0]):
                self.epochs = self.epochs.with_batch(header.leader_epoch, header.base_offset)
        self.epochs = (self.epochs if epochs is None else epochs).advance_start(self.start)
        scanned = self._rebuild_producers()
        self.recovery = LogRecovery(clean=True, epochs_rebuilt=epochs is None, producers_rebuilt=scanned)
        return True

    def _recover(self, bases: list[int]) -> None:
        """Check every batch and rebuild everything else from the batches."""
        self._begin_at(bases[0])
        self._snapshots.delete_above(-1, but=bases[0])
        self.end, self.producers = bases[0], self._history.before
        bytes_before, reason = 0, ""
        for base in bases:
            segment = Segment.open(self._files, self.directory, base, self.config.index_interval_bytes, base)
            bytes_before += segment.size
            if not reason and base != self.end:
                reason = f"{segment.path} does not begin at {self.end}, where the segment before it ends"
            if reason:
                segment.close()
                self._files.delete(segment.path)
                continue
            if self._segments:
                self._snapshots.write(self.end, self.producers)
            self._segments.add(segment)
            reason = segment.recover(self._on_batch, is_followed=base != bases[-1])
        cut_bytes = bytes_before - self._segments.size
        self._files.sync_directory(self.directory)
        self.recovery_point = self.start
        if reason:
            self._log_line(f"log {self.directory}: cut {cut_bytes} bytes, now ends at {self.end}: {reason}")
        if self.end < self.start:
            self._log_line(f"log {self.directory}: ends at {self.end}, before its start; continues at {self.start}")
            self.truncate_fully_and_start_at(self.start, self._epoch_before_start)
        if self.end - self.recovery_point >= self.config.flush_interval_messages:
            self.flush()  # they count as held from now on, and maybe none follows by which they would be synced
        self.epochs = self.epochs.advance_start(self.start)
        self.recovery = LogRecovery(False, cut_bytes, reason, epochs_rebuilt=True, producers_rebuilt=True)

    def _start_empty_at(self, offset: int) -> None:
        """Create one empty segment at `offset`, durably: without it a later segment would be taken for the log
        start."""
        self._segments.create(offset, self.config.index_interval_bytes)
        self._segments.sync_directory()
        self.start = self.end = self.recovery_point = offset
        self.epochs = EpochCache.behind(self._epoch_before_start, offset)
        self.producers = ProducerTable()
        self._history.begin(offset)

    # ---- appending and reading ---------------------------------------------------------------------------------------

    @property
    def bytes_behind(self) -> int:
        """Bytes in the file behind the end of the log: none, but for what a failed append left."""
        return self._segments.active.bytes_behind

    @property
    def is_behind_unsynced_cut(self) -> bool:
        """Whether a loss of power may bring back what was cut before the last batch was appended: never."""
        return any(segment.cut_unsynced for segment in self._segments[-2:])

    def begins_segment(self, offset: int) -> bool:
        """Whether the last segment, not being the only one, begins with the batch at `offset`."""
        return offset > self.start and self._segments.active.base_offset == offset

    @property
    def last_batch_epoch(self) -> int:
        """The leader epoch of the last batch, -1 when the log is empty."""
        if self.end == self.start:
            return UNDEFINED
        return self.epochs.latest if self.epochs.latest_start < self.end else self.epochs.epoch_at(self.end - 1)

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return self._segments.size

    @property
    def producer_snapshots_above(self) -> list[int]:
        """Offsets above the end of the log of which it has producer snapshots: none. Raises OSError."""
        return [offset for offset in self._snapshots.offsets() if offset > self.end]

    @property
    def producers_before(self) -> ProducerTable:
        """The producer table before the first segment."""
        return self._history.before

    def append(self, batch: bytes, *, trusted: bool = False) -> Header:
        """Append one batch, whose base offset must be `end`. Returns its header.

        Raises CorruptBatch (unless `trusted`: checked by the caller), OutOfPlace, or OSError, after which the log is
        unchanged or, if that is impossible, refuses all changes.
        """
        header = parse(batch) if trusted else check(batch)
        if header.base_offset != self.end:
            raise OutOfPlace(f"a batch at {header.base_offset} for log {self.directory}, which ends at {self.end}")
        self._check_usable()
        segment = self._segments.active
        if segment.cut_unsynced:
            self._sync_cut()
        if segment.size and (
            segment.size + len(batch) > self.config.segment_bytes
            or segment.age_ms(header.max_timestamp) > self.config.segment_ms
        ):
            self._roll()
            segment = self._segments.active
        try:
            segment.append(batch, header)
        except OSError as error:
            self._restore(segment, error)
            raise
        self._on_batch(header)
        if self.end - self.recovery_point >= self.config.flush_interval_messages:
            self.flush()
        return header

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool = True) -> bytes:
        """Whole batches from the one with `offset`, all ending at or below the offset `before`.

        At most `max_bytes`, but with `at_least_one` the first batch of any size. A read ends with its segment, so a
        short result does not mean the end of the log. Empty at `end`. Raises OffsetOutOfRange outside start … end.
        """
        if offset >= self.end or offset < self.start:
            if offset == self.end:
                return b""
            raise OffsetOutOfRange(f"offset {offset} is outside {self.start} … {self.end} of log {self.directory}")
        if offset >= before:
            return b""
        segment = self._segments.active
        if offset < segment.base_offset:
            segment = self._segments[self._segments.index_of(offset)]
        return segment.read(offset, max_bytes, before, at_least_one)

    def offset_for_time(self, timestamp: int) -> tuple[int, int] | None:
        """Offset and timestamp (ms) of the first record not older than `timestamp`; None if all are older."""
        return first_not_older(self._segments, self.start, timestamp)

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Offset and timestamp (ms) of the first record with the largest timestamp; None if the log is empty."""
        if self.end == self.start:
            return None
        return first_not_older(self._segments, self.start, largest(self._segments, self.start))

    # ---- syncing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return once all appended batches, and all truncations, survive a power loss.

        Raises OSError. After a failed sync the log refuses all changes, since a later success would prove nothing.
        """
        with self._changing():
            for segment in self._segments:
                segment.fsync()
            self._segments.sync_names()
        self.recovery_point = self.end

    # ---- the start ---------------------------------------------------------------------------------------------------

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, oldest first; the last may be empty. Valid until the next change of the log."""
        return self._segments

    def roll(self) -> None:
        """Begin a new segment, so that retention can remove the last one; no change if that is empty."""
        self._check_usable()
        if self._segments.active.size:
            self._sync_cut()
            self._roll()

    def advance_start(self, offset: int) -> None:
        """Advance the log start to `offset`, durably, and remove the segments that end there or below.

        No change if the log starts there or above. Raises OffsetOutOfRange above the end, or OSError, after which the
        log refuses all changes.
        """
        if offset <= self.start:
            return
        if offset > self.end:
            raise OffsetOutOfRange(f"log {self.directory} cannot start at {offset}: it ends at {self.end}")
        first = self._segments.index_of(offset)
        base = self._segments[first].base_offset
        epochs = self.epochs.advance_start(offset)
        with self._changing():
            before = self._history.before
            if first:
                is_end = base == self.end
                before = self.producers if is_end else self._history.table_before(self._segments, base)
                self._snapshots.write_durably(base, before)
            self._write_start(offset, base, epochs.epoch_at(offset - 1))
            self._segments.delete_files_before(first)
            if first:
                self._snapshots.delete_below(base)
                self._segments.sync_directory()
        self._segments.forget_before(first)
        self._history.advance(base, before)
        self.start = offset
        self.recovery_point = max(self.recovery_point, offset)
        self.epochs = epochs

    def _write_start(self, offset: int, base: int, epoch: int) -> None:
        """Write the log-start checkpoint. From now on a snapshot of `base` is trusted: it is on disk, or there is
        none."""
        start = LogStart(offset, base, epoch)
        write_log_start(self._files, self.directory, start)
        self._start_checkpoint = start

    def _begin_at(self, base: int) -> None:
        """The first segment begins at `base`: the log starts there, or above at its checkpoint."""
        checkpoint = self._start_checkpoint
        self.start = base if checkpoint is None else max(base, checkpoint.offset)
        self.epochs = EpochCache.behind(self._epoch_before_start, base) if base == self.start else EpochCache()
        self._history.begin(base, trust_snapshot=checkpoint is not None and checkpoint.base == base)

    @property
    def _epoch_before_start(self) -> int:
        return UNDEFINED if self._start_checkpoint is None else self._start_checkpoint.epoch

    # ---- epochs and truncation ---------------------------------------------------------------------------------------

    def assign_epoch(self, epoch: int, offset: int) -> None:
        """Enter an epoch without a batch: of a new leader, at its log end offset."""
        self.epochs = self.epochs.assign(epoch, offset)

    def truncate(self, to: int) -> int:
        """Truncate the log to `to`, or to the base offset of the batch with `to` inside. Returns the new end.

        Above the end only the epoch cache is truncated. Below the log start the log begins anew, empty, at `to`.
        """
        if to < self.start:
            self.truncate_fully_and_start_at(to)
            return self.end
        if to >= self.end:
            self.epochs = self.epochs.truncate_end(to)
            return self.end
        with self._changing():
            self._remove_segments(self._segments.index_of(to) + 1)
            if to < self.end:
                self._segments.active.truncate(to)
                self.end = self._segments.active.end
            if self.end < self.start:
                self.truncate_fully_and_start_at(self.end)
                return self.end
            self.recovery_point = min(self.recovery_point, self.end)
            self._snapshots.delete_above(self.end)
            self.epochs = self.epochs.truncate_end(self.end)
            self._rebuild_producers()
        return self.end

    def truncate_fully_and_start_at(self, offset: int, epoch_before: int = UNDEFINED) -> None:
        """Delete all records; the log is empty and starts at `offset`, behind a record of `epoch_before` if that is
        known. If `offset` is not below its end, no crash meanwhile leaves a log that ends lower than it did."""
        is_upwards = offset >= self.end
        with self._changing():
            if is_upwards:
                self._replace_start(offset, epoch_before)
            self._remove_segments(0)
            if not is_upwards:
                self._replace_start(offset, epoch_before)
            self._snapshots.delete_above(-1)
            self._start_empty_at(offset)

    def _replace_start(self, offset: int, epoch_before: int) -> None:
        """Write down, if anything says where the log starts, that it starts at `offset`, and has no producers from
        before. The snapshot that stands for the removed batches goes only once nothing trusts it."""
        before = self._start_checkpoint
        if before is not None or offset > 0:
            self._snapshots.delete_above(-1, but=before.base if before is not None and before.base != offset else -1)
            self._files.sync_directory(self.directory)
            self._write_start(offset, offset, epoch_before)

    def expire_producers(self, now_ms: int) -> None:
        """Forget the producers whose newest batch is too old at `now_ms`, a time of the records' timestamps."""
        self.producers = without_expired(self.producers, now_ms, self.config.producer_expiration_ms)

    # ---- segments ----------------------------------------------------------------------------------------------------

    def _sync_cut(self) -> None:
        """Return once no power loss undoes a truncation of the last segment."""
        if self._segments.active.cut_unsynced:
            with self._changing():
                self._segments.active.fsync()

    def _roll(self) -> None:
        self._snapshots.write(self.end, self.producers)
        self._segments.create(self.end, self.config.index_interval_bytes)

    def _remove_segments(self, first: int) -> None:
        try:
            self._segments.remove_from(first)
        finally:
            self.end = self._segments.active.end if self._segments else self.start

    def _on_batch(self, header: Header) -> None:
        """Update end, epochs and producers for a batch at the end."""
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
            self._failure = error
            self._log_line(f"log {self.directory}: a failed append cannot be undone, all changes are refused: {error}")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A change of the files, after which the log refuses all others if it fails."""
        self._check_usable()
        try:
            yield
        except OSError as error:
            self._failure = error
            raise

    def _check_usable(self) -> None:
        """Raises OSError when an earlier failure has left the log's state on disk unknown."""
        if self._failure is not None:
            error = self._failure
            raise OSError(error.errno or EIO, f"the log failed before ({error})", self.directory)

    def _rebuild_producers(self) -> bool:
        """Rebuild the producer table at `end` from the newest known one. Returns whether batches had to be read."""
        self.producers, scanned = self._history.rebuild(self._segments, self.end)
        return scanned
