"""Brokers that are whole again after an unclean end.

The protocol promises that acknowledged records survive while fewer than `min.insync.replicas` brokers lack what they
had at one time. So another broker may lose data as soon as the last one is *whole*: it has registered anew and
recovered its logs, each of them has passed its former end, and it is in the ISR of every partition of which it holds a
replica.

Where nothing tells of logs and ISR (a system without a trace, or one that is collected when the run ends) a broker that
went down is never known to be whole, and no other takes its place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(slots=True)
class _Absence:
    """What a broker has to regain."""

    former_ends: dict[Place, int]
    registered: bool = False
    recovered: set[Place] = field(default_factory=set)


class Wholeness:
    """What is known of the replicas of each broker, and of those that went down."""

    def __init__(self) -> None:
        self._replicas: dict[Place, Collection[str]] = {}
        self._isr: dict[Place, Collection[str]] = {}
        self._log_ends: dict[str, dict[Place, int]] = {}
        self._absences: dict[str, _Absence] = {}

    def decided(self, place: Place, replicas: Collection[str], isr: Collection[str]) -> None:
        """The controllers decided on the replicas and the ISR of a partition."""
        self._replicas[place] = replicas
        self._isr[place] = isr

    def registered(self, broker: str) -> None:
        """A broker registered, so its unclean end is known to the controllers."""
        if broker in self._absences:
            self._absences[broker].registered = True

    def recovered(self, broker: str, place: Place, log_end: int) -> None:
        """A broker opened the log of a replica, which ends at `log_end`."""
        self.log_ends(broker, place, log_end)
        if broker in self._absences:
            self._absences[broker].recovered.add(place)

    def log_ends(self, broker: str, place: Place, log_end: int) -> None:
        """The log of a replica ends at `log_end` now."""
        self._log_ends.setdefault(broker, {})[place] = log_end

    def went_down(self, broker: str) -> None:
        """A broker ends uncleanly, or is about to. One that was not whole still lacks what it lacked."""
        ends = dict(self._log_ends.get(broker, {}))
        before = self._absences.get(broker)
        if before is not None:
            for place, end in before.former_ends.items():
                ends[place] = max(end, ends.get(place, 0))
        self._absences[broker] = _Absence(ends)

    def is_whole(self, broker: str) -> bool:
        """Whether a broker has all that it had, and takes part in every partition of which it holds a replica."""
        absence = self._absences.get(broker)
        if absence is None:
            return True
        if not absence.registered:
            return False
        held = [place for place, replicas in self._replicas.items() if broker in replicas]
        return all(broker in self._isr[place] for place in held) and all(
            place in absence.recovered and self._log_ends[broker][place] >= end
            for place, end in absence.former_ends.items()
            if place in held
        )
