"""The position of a consumer in a partition, and how it detects that the log was truncated below it (KIP-320). Pure.

A position is more than an offset: it carries the leader epoch of the record before it. A log in which another record
stands before that offset, one of another epoch, is not the log that was read. Before a consumer fetches from a leader
it has not fetched from, it asks that leader for the end offset of the position's epoch (OffsetForLeaderEpoch): the
position is valid only if the leader answers for the very epoch queried, and with an end at or after the position. An
end alone proves nothing: the log may have been truncated and have grown past the position since.

When it is not valid, the logs diverge at an earlier offset. A consumer remembers, as a replica does, at which offset it
first read a record of each epoch; so it determines the exact offset by the same steps: it takes the lesser of the
leader's end and its own end of the epoch answered, and asks again, with its own next lower epoch, while it never read
the epoch answered. It cannot compare records that it has not read: after `seek` it knows of one record only, and the
resulting offset may lie before the true one, never after it by more than the records that were not read.

An older consumer (rule `validate_position` off) skips all this; it misses the records written between the truncation
and its offset, or reads on in another log without noticing.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from workloads.clients.consumer_rules import ConsumerRules

UNKNOWN_EPOCH: Final = -1
UNKNOWN_OFFSET: Final = -1

FetchPrecondition = Literal["fetch", "validate", "wait"]


class OffsetAndEpoch(NamedTuple):
    """A position as it is committed and sought: the next offset, and the leader epoch of the record before it."""

    offset: int
    epoch: int = UNKNOWN_EPOCH


class CommittedPosition(NamedTuple):
    """A position as a group has committed it."""

    offset: int
    epoch: int = UNKNOWN_EPOCH
    metadata: str = ""
    """The text that was committed with it."""


class FetchPosition(NamedTuple):
    """The fetch position of a consumer in one partition."""

    offset: int
    epoch: int = UNKNOWN_EPOCH
    """Of the record before `offset`; unknown after a seek without one, and then nothing can be validated."""
    validated_in: int = UNKNOWN_EPOCH
    """The leader epoch in which the position was valid, or was read."""
    seen: tuple[OffsetAndEpoch, ...] = ()
    """The first offset known to hold a record of each epoch, oldest first."""

    @classmethod
    def sought(cls, offset: int, epoch: int = UNKNOWN_EPOCH) -> FetchPosition:
        """After a seek: of the record before, only its epoch is known, if that."""
        known = (OffsetAndEpoch(max(0, offset - 1), epoch),) if epoch != UNKNOWN_EPOCH else ()
        return cls(offset, epoch, seen=known)

    def read(self, epochs: tuple[OffsetAndEpoch, ...], next_offset: int, leader_epoch: int) -> FetchPosition:
        """After a fetch in `leader_epoch` gave records: `epochs` has the first offset of each of their epochs."""
        seen = self.seen
        for start in epochs:
            if not seen or start.epoch > seen[-1].epoch:
                seen = (*seen, start)
        return FetchPosition(next_offset, epochs[-1].epoch if epochs else self.epoch, leader_epoch, seen)

    def cut(self, offset: int, epoch: int, leader_epoch: int) -> FetchPosition:
        """After a truncation detected in `leader_epoch`: records read from `offset` on do not count."""
        seen = tuple(start for start in self.seen if start.offset < offset and start.epoch <= epoch)
        return FetchPosition(offset, epoch, leader_epoch, seen)


class Truncation(NamedTuple):
    """A partition's log is not the one that was read."""

    position: OffsetAndEpoch
    """The position of the consumer."""
    divergence: OffsetAndEpoch | None
    """The first offset known to hold another record, or none; None when the leader knows no epoch to compare by."""


class EpochEndQuery(NamedTuple):
    """A query for the end of `epoch`; the logs agree at most up to `offset`, as far as is known yet."""

    offset: int
    epoch: int


def required_before_fetch(position: FetchPosition, leader_epoch: int, rules: ConsumerRules) -> FetchPrecondition:
    """The precondition of a fetch from the leader of `leader_epoch`: none, a validation, or newer metadata."""
    if not rules.validate_position:
        return "fetch"
    if position.epoch == UNKNOWN_EPOCH or leader_epoch == UNKNOWN_EPOCH or position.validated_in == leader_epoch:
        return "fetch"
    if position.epoch > leader_epoch and rules.wait_for_position_epoch:
        return "wait"  # it was committed by a client that knew of a later leader
    return "validate"


def first_query(position: FetchPosition) -> EpochEndQuery:
    """The query that begins a validation."""
    return EpochEndQuery(position.offset, position.epoch)


def interpret_answer(
    position: FetchPosition, query: EpochEndQuery, epoch: int, end: int, rules: ConsumerRules
) -> FetchPosition | Truncation | EpochEndQuery:
    """Interpret a leader's answer (`epoch`, `end`): the position is valid, the log was truncated, or the next query.

    A returned `FetchPosition` is the one queried; the caller marks it as validated.
    """
    at = OffsetAndEpoch(position.offset, position.epoch)
    if end == UNKNOWN_OFFSET:
        return Truncation(at, None)
    if epoch == UNKNOWN_EPOCH:
        return position  # a broker from before KIP-279 answers without an epoch, so nothing can be compared
    if not rules.compare_epochs_in_validation and end >= position.offset:
        return position
    if epoch == query.epoch:
        offset = min(query.offset, end)
        return position if offset == position.offset else Truncation(at, OffsetAndEpoch(offset, epoch))
    own = [start for start in position.seen if start.epoch <= epoch]
    above = [start for start in position.seen if start.epoch > epoch]
    offset = min(query.offset, above[0].offset) if above else query.offset
    if own and own[-1].epoch != epoch:
        return EpochEndQuery(offset, own[-1].epoch)
    return Truncation(at, OffsetAndEpoch(min(offset, end), epoch))
