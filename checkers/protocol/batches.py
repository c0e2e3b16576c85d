"""The batches in the logs of replicas, according to a protocol trace."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from checkers.evidence import SEQUENCE_MODULUS
from checkers.tables import TraceRow

BATCHES_KEPT: Final = 5
"""Batches of a producer that its retries are compared with: as many as it may have in flight (KIP-98)."""
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


class KeptProducer(NamedTuple):
    """A state of a producer that a broker was to forget."""

    node: str
    producer: int
    due_ns: int
    """Since when."""
    until_ns: int
    """As long as it had that, at least."""


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
    forgotten_below: dict[int, int] = field(default_factory=dict)
    """Producer id → the offset below which its state has no batch any more, since it has expired."""
    expired_at: dict[int, list[int]] = field(default_factory=dict)
    """Producer id → where the log ended whenever its state expired. One that is made anew, from a snapshot and the
    batches behind it, may have all batches again, or those since one of these."""
    _states: dict[int, list[ReplicaBatch]] = field(default_factory=dict)
    """The states that were asked for and have not changed otherwise than by a batch since."""

    def append(self, batch: ReplicaBatch) -> None:
        """The replica appends a batch, with a producer id or without."""
        self.resize(batch.base)
        self.end = batch.end
        self.in_order.append(batch)
        if batch.is_numbered:
            self.of_producer.setdefault(batch.producer, []).append(batch)
            if batch.producer in self._states:
                self._states[batch.producer] = _recorded([batch], self._states[batch.producer])

    def resize(self, end: int) -> None:
        """The log ends at `end`: the batches beyond are gone, and those up to there that it had not are unknown."""
        while self.in_order and self.in_order[-1].end > end:
            batch = self.in_order.pop()
            if batch.is_numbered:
                self.of_producer[batch.producer].pop()
                self._states.pop(batch.producer, None)
        self.unknown_below = end if end > self.end else min(self.unknown_below, end)
        self.end = end

    def expire(self, producer: int) -> None:
        """The state of a producer has expired."""
        self.forget_below(producer, self.end)
        self.expired_at.setdefault(producer, []).append(self.end)

    def forget_below(self, producer: int, offset: int) -> None:
        """The state of a producer has its batches from this offset on."""
        self.forgotten_below[producer] = offset
        self._states.pop(producer, None)

    def beginnings(self, producer: int, end: int) -> list[int]:
        """From which offsets on a state of a producer that is made anew for a log up to `end` may have its batches:
        first that from which it had them last."""
        begins = [self.forgotten_below.get(producer, 0), *reversed(self.expired_at.get(producer, [])), 0]
        return [offset for offset in begins if offset <= end]

    def state(self, producer: int) -> list[ReplicaBatch]:
        """The batches that the state of a producer has, oldest first."""
        state = self._states.get(producer)
        if state is None:
            state = self._states[producer] = self.state_of(producer, self.forgotten_below.get(producer, 0), self.end)
        return state

    def state_of(self, producer: int, begin: int, end: int) -> list[ReplicaBatch]:
        """The batches that a state of a producer has that is made from the known ones between two offsets: the last
        ones of its last producer epoch, without second copies of those."""
        begin = max(begin, self.unknown_below)
        return _recorded(
            batch for batch in self.of_producer.get(producer, ()) if begin <= batch.base < batch.end <= end
        )

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


def _recorded(batches: Iterable[ReplicaBatch], state: list[ReplicaBatch] | None = None) -> list[ReplicaBatch]:
    """A producer's state once these batches of it follow."""
    state = state or []
    for batch in batches:
        if state and state[-1].producer_epoch != batch.producer_epoch:
            state = []
        if all(each.numbers != batch.numbers for each in state):
            state = [*state[1 - BATCHES_KEPT :], batch]
    return state
