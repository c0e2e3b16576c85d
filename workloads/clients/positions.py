"""Where a consumer stands in a partition, and how it finds out that the log was cut behind its back (KIP-320). Pure.

A position is more than an offset: it carries the leader epoch of the record before it. A log in which another record
stands before that offset, one of another epoch, is not the log that was read. Before a consumer fetches from a leader
it has not fetched from, it asks that leader where the epoch of its position ends (OffsetForLeaderEpoch): the position
is valid only if the leader answers for the very epoch asked, and with an end at or after the position. An end alone
proves nothing: the log may have been cut and have grown past the position since.

When it is not valid, the logs part somewhere before. A consumer remembers, as a replica does, at which offset it first
read a record of each epoch; so it finds the exact offset by the same steps: it takes the lesser of the leader's end
and its own end of the epoch answered, and asks again, with its own next lower epoch, while it never read the epoch
answered.
What it has not read itself it cannot compare: after `seek` it knows of one record only, and the offset found may lie
before the true one, never after it by more than what was not read.

An older consumer (`validates` off) skips all this; it misses what was written between where the log was cut and its
offset, or reads on in another log without noticing.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

UNKNOWN_EPOCH: Final = -1
UNKNOWN_OFFSET: Final = -1

FetchPrecondition = Literal["fetch", "validate", "wait"]


class OffsetAndEpoch(NamedTuple):
    """A position as it is committed and sought: the next offset, and the leader epoch of the record before it."""

    offset: int
    epoch: int = UNKNOWN_EPOCH


class FetchPosition(NamedTuple):
    """Where a consumer stands."""

    offset: int
    epoch: int = UNKNOWN_EPOCH
    """Of the record before `offset`; unknown after a seek without one, and then nothing can be validated."""
    validated_in: int = UNKNOWN_EPOCH
    """The leader epoch in which the position was found to be valid, or was read."""
    seen: tuple[OffsetAndEpoch, ...] = ()
    """The first offset known to hold a record of each epoch, oldest first."""

    @classmethod
    def sought(cls, offset: int, epoch: int = UNKNOWN_EPOCH) -> FetchPosition:
        """After a seek: of the record before, only its epoch is known, if that."""
        known = (OffsetAndEpoch(max(0, offset - 1), epoch),) if epoch != UNKNOWN_EPOCH else ()
        return cls(offset, epoch, seen=known)

    def read(self, epochs: tuple[OffsetAndEpoch, ...], next_offset: int, leader_epoch: int) -> FetchPosition:
        """After a fetch in `leader_epoch` gave records: `epochs` tells where each of their epochs begins."""
        seen = self.seen
        for found in epochs:
            if not seen or found.epoch > seen[-1].epoch:
                seen = (*seen, found)
        return FetchPosition(next_offset, epochs[-1].epoch if epochs else self.epoch, leader_epoch, seen)

    def cut(self, offset: int, epoch: int, leader_epoch: int) -> FetchPosition:
        """After a truncation found in `leader_epoch`: what was read from `offset` on does not count."""
        seen = tuple(found for found in self.seen if found.offset < offset and found.epoch <= epoch)
        return FetchPosition(offset, epoch, leader_epoch, seen)


class Truncation(NamedTuple):
    """A partition's log is not the one that was read."""

    position: OffsetAndEpoch
    """Where the consumer stood."""
    divergence: OffsetAndEpoch | None
    """The first offset known to hold something else, or nothing; None when the leader knows no epoch to compare by."""


class EpochEndQuery(NamedTuple):
    """Ask where `epoch` ends; the logs agree at most up to `offset`, as far as is known yet."""

    offset: int
    epoch: int


def required_before_fetch(position: FetchPosition, leader_epoch: int) -> FetchPrecondition:
    """What must come before a fetch from the leader of `leader_epoch`: nothing, a validation, or newer metadata."""
    if position.epoch == UNKNOWN_EPOCH or leader_epoch == UNKNOWN_EPOCH or position.validated_in == leader_epoch:
        return "fetch"
    if position.epoch > leader_epoch:
        return "wait"  # it was committed by somebody who knows of a later leader
    return "validate"


def first_query(position: FetchPosition) -> EpochEndQuery:
    """The question that begins a validation."""
    return EpochEndQuery(position.offset, position.epoch)


def interpret_answer(
    position: FetchPosition, asked: EpochEndQuery, epoch: int, end: int
) -> FetchPosition | Truncation | EpochEndQuery:
    """What a leader's answer (`epoch`, `end`) means: the position stands, the log was truncated, or ask this next.

    A returned `FetchPosition` is the one asked about; the caller marks it as validated.
    """
    stood = OffsetAndEpoch(position.offset, position.epoch)
    if end == UNKNOWN_OFFSET:
        return Truncation(stood, None)
    if epoch == UNKNOWN_EPOCH:
        return position  # a broker from before KIP-279 tells no epoch: nothing can be compared, as without KIP-320
    if epoch == asked.epoch:
        offset = min(asked.offset, end)
        return position if offset == position.offset else Truncation(stood, OffsetAndEpoch(offset, epoch))
    own = [found for found in position.seen if found.epoch <= epoch]
    above = [found for found in position.seen if found.epoch > epoch]
    offset = min(asked.offset, above[0].offset) if above else asked.offset
    if own and own[-1].epoch != epoch:
        return EpochEndQuery(offset, own[-1].epoch)
    return Truncation(stood, OffsetAndEpoch(min(offset, end), epoch))
