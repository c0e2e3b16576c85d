"""The facts from which a situation is computed: of each replica, and of the controllers' decision.

A replay of a trace changes these values from event to event; an exploration makes them from each of its states.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

UNKNOWN: Final = -1
"""The leader epoch of a record that is not known, or below the start of its log. It equals every other."""


@dataclass(slots=True)
class LogEpochs:
    """A log as the leader epochs of its records, each with the offset at which it begins."""

    start: int = 0
    end: int = 0
    epochs: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, epochs: Iterable[int]) -> LogEpochs:
        """The log with a record of each of these leader epochs."""
        log = cls()
        for offset, epoch in enumerate(epochs):
            log.append(epoch, offset, offset + 1)
        return log

    def append(self, epoch: int, offset: int, end: int) -> None:
        """Append the records of one epoch from `offset` to `end`, exclusive."""
        if offset != self.end:
            self.resize(offset)
        if not self.epochs or self.epochs[-1] != epoch:
            self.epochs.append(epoch)
            self.begins.append(offset)
        self.end = end

    def resize(self, end: int) -> None:
        """The log ends at `end`; records that no event has are UNKNOWN."""
        if end > self.end:
            self.epochs.append(UNKNOWN)
            self.begins.append(self.end)
        while self.begins and self.begins[-1] >= end:
            self.begins.pop()
            self.epochs.pop()
        self.end = end

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record at `offset`."""
        if not self.begins or offset < self.start:
            return UNKNOWN
        if self.begins[-1] <= offset:
            return self.epochs[-1]
        place = bisect_right(self.begins, offset)
        return self.epochs[place - 1] if place else UNKNOWN


@dataclass(slots=True)
class ReplicaFacts:
    """What one replica has, and what it believes."""

    leads: bool | None = None
    """Whether it leads or follows; None without a role."""
    leader_epoch: int = -1
    log: LogEpochs = field(default_factory=LogEpochs)
    high_watermark: int = 0
    epoch_start: int = 0
    """LESO, of a leader."""
    isr: frozenset[int] = frozenset()
    """The ISR that a leader knows to be committed."""
    proposed: frozenset[int] | None = None
    """The ISR that a leader has proposed."""
    unresolved: frozenset[int] = frozenset()
    """Replicas that an abandoned proposal of a leader may have added."""

    def drop_proposal(self) -> None:
        """No ISR change is in flight or unresolved any more."""
        self.proposed, self.unresolved = None, frozenset()


@dataclass(slots=True)
class PartitionFacts:
    """One partition: the controllers' last decision, its replicas, and the records that were ever committed."""

    members: tuple[int, ...] = ()
    """The brokers that host a replica; empty before the first decision."""
    leader: int = -1
    leader_epoch: int = -1
    isr: frozenset[int] = frozenset()
    elr: frozenset[int] = frozenset()
    adding: frozenset[int] = frozenset()
    min_isr: int = 1
    unclean: set[int] = field(default_factory=set)
    """Brokers that registered after an unclean shutdown and have been in no ISR since."""
    replicas: dict[int, ReplicaFacts] = field(default_factory=dict)
    committed: int = 0
    """The end of the records that were ever below the high watermark of a leader."""
    committed_epoch: int = UNKNOWN
    """The leader epoch of the last of them."""

    def replica(self, broker: int) -> ReplicaFacts:
        """The replica of `broker`."""
        replica = self.replicas.get(broker)
        if replica is None:
            replica = self.replicas[broker] = ReplicaFacts()
        return replica

    def commit(self, leader: ReplicaFacts) -> None:
        """The leader has its high watermark."""
        if leader.high_watermark > self.committed:
            self.committed = leader.high_watermark
            self.committed_epoch = leader.log.epoch_at(self.committed - 1)
