"""The leader epoch cache: where each leader epoch begins in a replica's log.

docs/protocol.md §1; Kafka Log Divergence §3.2; KIP-101; KIP-279. An entry `(epoch, start)` says that the first record
written in `epoch` has offset `start`. Epochs and starts both rise strictly from entry to entry. A leader also enters
its own epoch at its log end offset before it serves anything (the leader epoch start offset, LESO), so the last entry,
and only the last, may stand for an epoch without records. The first one may stand for the last deleted record alone: a
log that starts at 9 keeps the epoch of the record at 8, by which it knows a log that ends there with another record.

End offset for epoch E, with h the first entry above E and f the greatest entry at or below E:

    E                                             answer
    --------------------------------------------  --------------------------------------
    -1 (undefined)                                (-1, -1)
    the latest epoch                              (E, log end offset)
    above every entry, or the cache is empty      (-1, -1)
    otherwise                                     (f.epoch, h.start), or (E, h.start) without f

The cache is a value: every change returns a new one. The log end offset is an argument.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple, Self

UNDEFINED = -1
"""No leader epoch, or no offset."""

CHECKPOINT_VERSION = 0


class EpochEntry(NamedTuple):
    """The first record of `epoch` has offset `start`."""

    epoch: int
    start: int


class EpochEnd(NamedTuple):
    """Where `epoch` ends (exclusive): the answer to a lookup. `(-1, -1)` is undefined."""

    epoch: int
    end: int

    @property
    def undefined(self) -> bool:
        return self.end == UNDEFINED


UNDEFINED_END = EpochEnd(UNDEFINED, UNDEFINED)


@dataclass(frozen=True, slots=True)
class EpochCache:
    """The epochs of one replica's log, oldest first. Compares and hashes by its entries."""

    entries: tuple[EpochEntry, ...] = ()

    @classmethod
    def of(cls, *entries: tuple[int, int]) -> Self:
        """The cache with these (epoch, start) pairs, given oldest first."""
        return cls(tuple(EpochEntry(*entry) for entry in entries))

    @property
    def latest(self) -> int:
        """The latest epoch, -1 when there is none."""
        return self.entries[-1].epoch if self.entries else UNDEFINED

    @property
    def latest_start(self) -> int:
        """The start offset of the latest epoch, -1 when there is none."""
        return self.entries[-1].start if self.entries else UNDEFINED

    def assign(self, epoch: int, offset: int) -> EpochCache:
        """The cache once a batch of `epoch` begins at `offset`, or a leader takes over there.

        Entries at the tail that contradict it (epoch or start not below the new one) go. The same cache comes back
        when nothing changes, so that the common case costs one comparison.
        """
        entries = self.entries
        keep = len(entries)
        if keep:
            last = entries[-1]
            if last.epoch == epoch and offset >= last.start:
                return self
            while keep and (entries[keep - 1].epoch >= epoch or entries[keep - 1].start >= offset):
                keep -= 1
        return EpochCache((*entries[:keep], EpochEntry(epoch, offset)))

    def with_batch(self, epoch: int, offset: int) -> EpochCache:
        """The cache with one more batch at the end of the log: of `epoch` (-1: of none), beginning at `offset`."""
        cache = self
        if 0 <= epoch < cache.latest:
            # An epoch without batches may stand at the end of the log. Were it still there when an older epoch goes
            # on, the older one's own entry would be moved up with it.
            cache = cache.truncate_end(offset)
        return cache.assign(epoch, offset) if epoch >= 0 else cache

    def truncate_end(self, offset: int) -> EpochCache:
        """The cache once the log is cut to `offset`: no entry starts there or above, wherever the log ended."""
        keep = bisect_left(self.entries, offset, key=_start)
        return self if keep == len(self.entries) else EpochCache(self.entries[:keep])

    @classmethod
    def behind(cls, epoch: int, start: int) -> Self:
        """The cache of an empty log that starts at `start`, behind a record of `epoch` (-1: not known)."""
        return cls() if epoch == UNDEFINED else cls.of((epoch, start - 1))

    def advance_start(self, offset: int) -> EpochCache:
        """The cache once the log starts at `offset`: the epoch of the last deleted record starts with that one, older
        ones are gone."""
        last = offset - 1
        drop = bisect_right(self.entries, last, key=_start)
        if drop == 0 or (drop == 1 and self.entries[0].start == last):
            return self
        return EpochCache((EpochEntry(self.entries[drop - 1].epoch, last), *self.entries[drop:]))

    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        """Where `epoch`, or the greatest epoch below it, ends in a log whose end offset is `log_end`."""
        entries = self.entries
        if epoch == UNDEFINED or not entries:
            return UNDEFINED_END
        if epoch == entries[-1].epoch:
            return EpochEnd(epoch, log_end)
        above = bisect_right(entries, epoch, key=_epoch)
        if above == len(entries):
            return UNDEFINED_END
        known = entries[above - 1].epoch if above else epoch
        return EpochEnd(known, entries[above].start)

    def epoch_at(self, offset: int) -> int:
        """The epoch in force at `offset`, -1 below the first entry. Meaningful below the log end offset."""
        at = bisect_right(self.entries, offset, key=_start)
        return self.entries[at - 1].epoch if at else UNDEFINED

    def next_lower(self, epoch: int) -> int:
        """The greatest epoch strictly below `epoch`, -1 when there is none."""
        at = bisect_left(self.entries, epoch, key=_epoch)
        return self.entries[at - 1].epoch if at else UNDEFINED

    def to_checkpoint(self) -> str:
        """The text of Kafka's `leader-epoch-checkpoint`: version, count, then an `epoch start` line an entry."""
        lines = [str(CHECKPOINT_VERSION), str(len(self.entries))]
        lines += [f"{entry.epoch} {entry.start}" for entry in self.entries]
        return "\n".join(lines) + "\n"

    @staticmethod
    def from_checkpoint(text: str) -> EpochCache | None:
        """Read what `to_checkpoint` wrote. None when torn or garbled in any way: the log is the authority then."""
        if not text.endswith("\n"):
            return None
        lines = text[:-1].split("\n")
        if len(lines) < 2 or lines[0] != str(CHECKPOINT_VERSION) or lines[1] != str(len(lines) - 2):
            return None
        entries: list[EpochEntry] = []
        for line in lines[2:]:
            epoch, _, start = line.partition(" ")
            if not (_is_plain_number(epoch) and _is_plain_number(start)):
                return None
            entry = EpochEntry(int(epoch), int(start))
            if entries and (entry.epoch <= entries[-1].epoch or entry.start <= entries[-1].start):
                return None
            entries.append(entry)
        return EpochCache(tuple(entries))


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch


def _start(entry: EpochEntry) -> int:
    return entry.start


def _is_plain_number(text: str) -> bool:
    # int() also takes signs, blanks, underscores and other scripts' digits, none of which this file ever holds.
    return text.isascii() and text.isdigit()
