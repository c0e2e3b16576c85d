"""The situation of a cluster: what the conditions of a schedule are checked against.

A source feeds it: in simulation the protocol trace, as it happens; elsewhere the metadata that brokers answer, as often
as it is polled (`harness.runner.observation`). The nemesis adds what it does itself. A situation has two parts:

- the *state* that holds now: leaders, ISR, high watermarks …;
- the *occurrences* so far: elections, restarts, truncations, injected and healed faults …

Nodes go by their names.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from nemesis.wholeness import Wholeness


class Occurrence(StrEnum):
    """A kind of occurrence."""

    ELECTED = "elected"
    """A node becomes leader of a partition."""
    RESTARTED = "restarted"
    """A process starts again."""
    REGISTERED = "registered"
    """The controller registers a broker."""
    FENCED = "fenced"
    UNFENCED = "unfenced"
    TRUNCATED = "truncated"
    """A replica cuts its log."""
    LEFT_ISR = "left_isr"
    """A replica leaves the ISR."""
    JOINED_ISR = "joined_isr"
    RESIGNED = "resigned"
    """A replica neither leads nor follows any more: its partition has no leader, or is no longer on the broker."""
    REPLICA_DELETED = "replica_deleted"
    """A broker has deleted the log of a replica that it hosts no more."""
    LOG_START_MOVED = "log_start_moved"
    """A replica has deleted records at the start of its log."""
    CONTROLLER_ELECTED = "controller_elected"
    TRACED = "traced"
    """A node writes an event to its trace, of a kind that is watched; the kind stands in `traced`."""
    INJECTED = "injected"
    """A fault of the schedule has taken hold; its id stands in `subject`."""
    HEALED = "healed"
    """A fault of the schedule has healed, or a scripted operation has ended."""


class Event(NamedTuple):
    """One occurrence: to which node or step it happened, and in which partition (-1 where that means nothing)."""

    kind: Occurrence
    subject: str
    partition: int = -1
    traced: str = ""
    """The kind of the event in the trace; empty for all that is no `TRACED`."""


@dataclass(slots=True)
class PartitionSituation:
    """The state of one partition; what is not known yet is empty or -1."""

    leader: str | None = None
    isr: tuple[str, ...] = ()
    elr: tuple[str, ...] = ()
    proposed_isr: tuple[str, ...] = ()
    """The ISR that the leader has asked the controller for and has no answer about; empty without one."""
    high_watermark: int = -1
    """The highest that any replica is known to have had."""
    high_watermarks: dict[str, int] = field(default_factory=dict)
    """By replica, as `log_ends`."""
    log_ends: dict[str, int] = field(default_factory=dict)
    """By replica; without those that are deleted, or that may have lost data and have not been opened since."""
    known: bool = False
    """Whether leader and ISR have been reported."""


class Situation:
    """State and occurrences; wakes those that wait for a change."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.partitions: dict[int, PartitionSituation] = {}
        self.acknowledged: dict[int, int] = {}
        """Acknowledged appends of each partition."""
        self.names: dict[str, tuple[str, ...]] = {}
        """The nodes that the names of a schedule (`as: old-leader`) are bound to; none before a step has bound it."""
        self.watched: Counter[str] = Counter()
        """Kinds of events in the trace for which a step waits, with how many do: only these become occurrences."""
        self.wholeness = Wholeness()
        self._waiting: list[asyncio.Future[None]] = []

    def partition(self, number: int) -> PartitionSituation:
        """The state of a partition; a fresh one when nothing is known of it."""
        known = self.partitions.get(number)
        if known is None:
            known = self.partitions[number] = PartitionSituation()
        return known

    def occurred(self, kind: Occurrence, subject: str, partition: int = -1, traced: str = "") -> None:
        """Add an occurrence."""
        self.events.append(Event(kind, subject, partition, traced))
        self.changed()

    def isr_changed(self, partition: int, isr: tuple[str, ...]) -> None:
        """The ISR of a partition is `isr` now; add who left and who joined, unless it was not known before."""
        state = self.partition(partition)
        before, state.isr = state.isr, isr
        if state.known:
            for node in before:
                if node not in isr:
                    self.occurred(Occurrence.LEFT_ISR, node, partition)
            for node in isr:
                if node not in before:
                    self.occurred(Occurrence.JOINED_ISR, node, partition)

    def replica_lost(self, partition: int, node: str) -> None:
        """The log of a replica may be shorter now, or gone: where it ends is unknown until its broker opens it."""
        state = self.partition(partition)
        state.log_ends.pop(node, None)
        state.high_watermarks.pop(node, None)

    def data_lost(self, node: str) -> None:
        """A node lost data, or may have: `replica_lost` for each of its replicas."""
        for partition in self.partitions:
            self.replica_lost(partition, node)

    def changed(self) -> None:
        """Have every condition that is waited for checked again. Costs nothing while nobody waits."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def nodes_of(self, name: str) -> tuple[str, ...]:
        """The nodes that `name` is bound to; the node itself when it is no bound name."""
        return self.names.get(name, (name,))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds` is true, checked at every change."""
        while not holds():
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    async def until_within(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """As `until`, for at most `limit_s`; whether it came to hold."""
        try:
            async with asyncio.timeout(limit_s):
                await self.until(holds)
        except TimeoutError:
            return False
        return True

    @contextmanager
    def watching(self, kinds: Sequence[str]) -> Iterator[None]:
        """Have events of these kinds in the trace become occurrences meanwhile."""
        self.watched.update(kinds)
        try:
            yield
        finally:
            self.watched.subtract(kinds)
