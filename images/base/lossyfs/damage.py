"""Damage asked for, as one value, and what it does to the operation at hand.

It lies over the pristine volume and never changes it: with `armed` off every operation goes through as if nothing had
been asked for. Counters say how often damage bit.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

ERRORS: Final = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}


class OperationKind(StrEnum):
    """What a program asks of the disk."""

    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    CHANGE = "change"
    """Create, remove or rename."""


@dataclass(frozen=True, slots=True)
class InjectedError:
    """Operations that fail."""

    error: str
    """EIO or ENOSPC."""
    after_bytes: int = 0
    """Bytes read and written before the first failure; with ENOSPC the room that is left."""
    path: str | None = None
    """Only files matching this pattern, as in the shell, where * also matches /; paths have no leading slash."""
    kinds: frozenset[OperationKind] = frozenset()
    """Empty: with EIO reads, writes and syncs; with ENOSPC what takes room: writes past the end, and creations."""

    def matches(self, kind: OperationKind, grows: bool) -> bool:
        """Whether it is about such operations."""
        if self.error == "ENOSPC" and not grows:
            return False
        if self.kinds:
            return kind in self.kinds
        return self.error == "ENOSPC" or kind is not OperationKind.CHANGE


@dataclass(frozen=True, slots=True)
class Damage:
    """Everything that is asked for."""

    armed: bool = True
    """Off: nothing of it acts, a power loss included."""
    lying: bool = False
    """Syncs are acknowledged and make nothing durable."""
    slow_ms: float = 0.0
    slow_kinds: frozenset[OperationKind] = frozenset(OperationKind)
    failures: tuple[InjectedError, ...] = ()
    """At most one for each error."""

    acts: bool = field(init=False)
    """Whether there is anything to do; asked before every operation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "acts", self.armed and bool(self.lying or self.slow_ms or self.failures))


@dataclass(slots=True)
class DamageCounters:
    """How often damage bit since the mount."""

    lies: int = 0
    """Syncs acknowledged and not kept."""
    slowed: int = 0
    slowed_seconds: float = 0.0
    failed_eio: int = 0
    failed_enospc: int = 0
    power_losses: int = 0


@dataclass(slots=True)
class DamageInjector:
    """Damages operations."""

    damage: Damage = field(default_factory=Damage)
    counters: DamageCounters = field(default_factory=DamageCounters)
    _passed_bytes: dict[str, int] = field(default_factory=dict)
    """By error: read and written since that failure was asked for."""

    def fail(self, error: str, failure: InjectedError | None) -> None:
        """Replace what fails with `error`, counting bytes anew; None: nothing does."""
        others = tuple(other for other in self.damage.failures if other.error != error)
        self._passed_bytes[error] = 0
        self.damage = replace(self.damage, failures=others if failure is None else (*others, failure))

    def delay(self, kind: OperationKind) -> None:
        """Sleep as long as an operation is to be slowed."""
        damage = self.damage
        if damage.acts and damage.slow_ms and kind in damage.slow_kinds:
            time.sleep(damage.slow_ms / 1000)
            self.counters.slowed += 1
            self.counters.slowed_seconds += damage.slow_ms / 1000

    def lies(self) -> bool:
        """Whether the sync at hand is to be a lie."""
        lying = self.damage.acts and self.damage.lying
        self.counters.lies += lying
        return lying

    def allow(self, kind: OperationKind, path: Callable[[], str], size: int = 0, *, grows: bool = False) -> int:
        """How many of `size` bytes go through. Raises the OSError that is asked for.

        A write may go through in part; a read, or what has no size, goes through or does not.
        """
        damage = self.damage
        if not damage.acts:
            return size
        allowed = size
        for failure in damage.failures:
            if not failure.matches(kind, grows):
                continue
            if failure.path is not None and not fnmatchcase(path().lstrip("/"), failure.path.lstrip("/")):
                continue
            room = failure.after_bytes - self._passed_bytes[failure.error]
            if room <= 0:
                self._count(failure.error)
                raise OSError(ERRORS[failure.error], os.strerror(ERRORS[failure.error]))
            allowed = min(allowed, room) if kind is OperationKind.WRITE else allowed
            self._passed_bytes[failure.error] += min(size, room)
        return allowed

    def _count(self, error: str) -> None:
        if error == "EIO":
            self.counters.failed_eio += 1
        else:
            self.counters.failed_enospc += 1
