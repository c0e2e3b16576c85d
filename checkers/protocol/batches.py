"""The batches in the logs of replicas, according to a protocol trace."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from checkers.evidence import SEQUENCE_MODULUS
from checkers.tables import TraceRow

UNKNOWN = -1
"""The leader epoch of a record that the trace does not contain. It matches every epoch."""


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """One batch as a replica appended it."""

    end: int
    """Exclusive."""
    crc: int
    previous_epoch: int
    """Leader epoch of the record before it; UNKNOWN where the trace does not contain that record."""
    node: str
    time_ns: int

    @property
    def described(self) -> str:
        """The batch in words."""
        before = "" if self.previous_epoch == UNKNOWN else f" behind a record of leader epoch {self.previous_epoch}"
        return f"a batch up to {self.end} with checksum {self.crc:#010x}{before}"


class ReplicaBatch(NamedTuple):
    """One batch in the log of one replica."""

    base: int
    end: int
    """Exclusive."""
    producer: int
    producer_epoch: int
    first_sequence: int
    """-1 without a producer id."""
    timestamp_ms: int = UNKNOWN
    """The largest of its records; UNKNOWN where the trace does not tell."""

    @classmethod
    def of(cls, event: TraceRow) -> ReplicaBatch:
        """The batch of an `appended` event."""
        detail = event.details()
        epoch = int(detail.get("producer_epoch", 0))
        producer, sequence = int(detail.get("producer_id", -1)), int(detail.get("sequence", -1))
        return cls(event.offset, event.log_end, producer, epoch, sequence, int(detail.get("timestamp", UNKNOWN)))

    @property
    def is_numbered(self) -> bool:
        """Whether it is of an idempotent producer."""
        return self.producer >= 0 and self.first_sequence >= 0

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record."""
        return (self.first_sequence + self.end - self.base - 1) % SEQUENCE_MODULUS

    @property
    def numbers(self) -> tuple[int, int, int]:
        """By what a retry of it is recognized, among those of its producer."""
        return self.producer_epoch, self.first_sequence, self.last_sequence


@dataclass(slots=True)
class ReplicaBatches:
    """The batches in the log of one replica."""

    end: int = 0
    """Where the log ends."""
    unknown_below: int = 0
    """The trace may not contain the batches below this offset."""
    in_order: list[ReplicaBatch] = field(default_factory=list)
    of_producer: dict[int, list[ReplicaBatch]] = field(default_factory=dict)
    """Those of idempotent producers by producer id, in the order of the log."""

    def append(self, batch: ReplicaBatch) -> None:
        """The replica appends a batch, with a producer id or without."""
        self.resize(batch.base)
        self.end = batch.end
        self.in_order.append(batch)
        if batch.is_numbered:
            self.of_producer.setdefault(batch.producer, []).append(batch)

    def resize(self, end: int) -> None:
        """The log ends at `end`: the batches beyond are gone, and those up to there that it had not are unknown."""
        while self.in_order and self.in_order[-1].end > end:
            batch = self.in_order.pop()
            if batch.is_numbered:
                self.of_producer[batch.producer].pop()
        self.unknown_below = end if end > self.end else min(self.unknown_below, end)
        self.end = end

    def from_offset(self, start: int) -> list[ReplicaBatch] | None:
        """All that end above `start`, in the order of the log; None if one of them, or its timestamp, is not known."""
        first = bisect_right(self.in_order, start, key=lambda batch: batch.end)
        batches, ends = self.in_order[first:], [start]
        ends += [batch.end for batch in batches]
        follow = all(batch.base <= end for batch, end in zip(batches, ends, strict=False)) and ends[-1] == self.end
        stamped = all(batch.timestamp_ms != UNKNOWN for batch in batches)
        return batches if follow and stamped and self.unknown_below <= start else None

    def repeats(self, producer: int) -> bool:
        """Whether a batch of this producer came once more, or after a later one of its producer epoch."""
        batches = self.of_producer.get(producer, ())
        return any(
            before.producer_epoch == after.producer_epoch and after.first_sequence <= before.last_sequence
            for before, after in pairwise(batches)
        )

    def newest(self, producer: int, start: int, end: int, count: int) -> list[ReplicaBatch]:
        """The last batches of this producer between two offsets, oldest first: `count` of them at most."""
        newest: list[ReplicaBatch] = []
        for batch in reversed(self.of_producer.get(producer, ())):
            if batch.base < start or len(newest) == count:
                break
            if batch.end <= end:
                newest.insert(0, batch)
        return newest
