"""The log of a replica in memory: what `Replica` needs of a `Log`, without files. Every batch has one record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from harness.search.exploration.cluster_values import LogRecord
from images.broker.log.leader_epochs import EpochCache
from images.broker.log.log import Log, OffsetOutOfRange, OutOfPlace
from images.broker.log.log_config import LogConfig
from images.broker.log.producer_state import ProducerTable
from images.broker.log.segment import Segment
from images.wire.batch import Header, assign, build, parse


@cache
def produced(number: int) -> bytes:
    """The batch of a producer's record with this number."""
    return build([b""], timestamp_ms=number)


@cache
def stored_batch(record: LogRecord, offset: int) -> bytes:
    return assign(produced(record.number), offset, record.epoch)


class MemoryLog(Log):
    """A log that holds these records, from offset 0 on."""

    def __init__(self, records: tuple[LogRecord, ...], epochs: EpochCache) -> None:
        self.config = LogConfig()
        self.start = 0
        self.end = len(records)
        self.epochs = epochs
        self.producers = ProducerTable()
        self.recovery_point = 0  # a crash leaves what the exploration says
        self.records = records

    @classmethod
    def recovered(cls, records: tuple[LogRecord, ...]) -> MemoryLog:
        """The log that is opened after a crash that has left these records."""
        log = cls((), EpochCache())
        for offset, record in enumerate(records):
            log.append(stored_batch(record, offset))
        return log

    @property
    def bytes_behind(self) -> int:
        """None: there is no file."""
        return 0

    @property
    def is_behind_unsynced_cut(self) -> bool:
        """Never: a crash leaves what the exploration says."""
        return False

    @property
    def segments(self) -> Sequence[Segment]:
        """None: there are no files."""
        return ()

    @property
    def producer_snapshots_above(self) -> list[int]:
        """None: there are no files."""
        return []

    def begins_segment(self, offset: int) -> bool:
        """See `Log.begins_segment`. There is one segment."""
        return False

    def append(self, batch: bytes, *, trusted: bool = False) -> Header:
        """See `Log.append`."""
        header = parse(batch)
        if header.base_offset != self.end:
            raise OutOfPlace(f"a batch at offset {header.base_offset}, the log ends at {self.end}")
        self.records += (LogRecord(header.leader_epoch, header.max_timestamp),)
        self.end = header.next_offset
        self.epochs = self.epochs.with_batch(header.leader_epoch, header.base_offset)
        return header

    def read(self, offset: int, max_bytes: int, before: int, at_least_one: bool = True) -> bytes:
        """See `Log.read`."""
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(f"offset {offset} is outside {self.start} … {self.end}")
        batches = b""
        for position in range(offset, min(before, self.end)):
            batch = stored_batch(self.records[position], position)
            if len(batches) + len(batch) > max_bytes and (batches or not at_least_one):
                break
            batches += batch
        return batches

    def truncate(self, to: int) -> int:
        """See `Log.truncate`. These logs start at 0, so that no truncation lies below their start."""
        self.records = self.records[:to]
        self.end = len(self.records)
        self.epochs = self.epochs.truncate_end(to)
        return self.end
