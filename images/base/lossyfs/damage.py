"""Requested damage as one value, and its effect on the current operation.

Damage is an overlay on the pristine volume and never changes it: with `armed` off every operation goes through
undamaged. Counters say how often damage took effect.
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
    """Kinds of operations."""

    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    CHANGE = "change"
    """Create, remove or rename."""


@dataclass(frozen=True, slots=True)
class InjectedError:
    """An error injected into operations."""

    error: str
    """EIO or ENOSPC."""
    after_bytes: int = 0
    """Bytes read and written before the first error; with ENOSPC the remaining room."""
    path: str | None = None
    """Only files matching this shell pattern, in which * also matches /; paths have no leading slash."""
    kinds: frozenset[OperationKind] = frozenset()
    """Empty: with EIO reads, writes and syncs; with ENOSPC operations that need room: writes past the end, and
    creations. With ENOSPC only those of the kinds that need room, and syncs, which find out late that there is none."""

    def matches(self, kind: OperationKind, grows: bool) -> bool:
        """Whether the error applies to such operations."""
        if self.kinds and kind not in self.kinds:
            return False
        if self.error == "ENOSPC":
            return grows or (kind is OperationKind.SYNC and bool(self.kinds))
        return bool(self.kinds) or kind is not OperationKind.CHANGE


@dataclass(frozen=True, slots=True)
class Damage:
    """All requested damage."""

    armed: bool = True
    """Off: no damage acts, a power loss included."""
    lying: bool = False
    """Syncs are acknowledged and make nothing durable."""
    slow_ms: float = 0.0
    slow_kinds: frozenset[OperationKind] = frozenset(OperationKind)
    failures: tuple[InjectedError, ...] = ()
    """At most one for each error."""

    acts: bool = field(init=False)
    """Whether any damage can act; checked before every operation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "acts", self.armed and bool(self.lying or self.slow_ms or self.failures))


@dataclass(slots=True)
class DamageCounters:
    """How often damage took effect since the mount."""

    lies: int = 0
    """Syncs acknowledged and not carried out."""
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
    """By error: bytes read and written since it was requested."""

    def fail(self, error: str, failure: InjectedError | None) -> None:
        """Replace the injected error `error`, counting bytes from zero; None removes it."""
        others = tuple(other for other in self.damage.failures if other.error != error)
        self._passed_bytes[error] = 0
        self.damage = replace(self.damage, failures=others if failure is None else (*others, failure))

    def delay(self, kind: OperationKind) -> None:
        """Sleep for the requested delay of an operation."""
        damage = self.damage
        if damage.acts and damage.slow_ms and kind in damage.slow_kinds:
            time.sleep(damage.slow_ms / 1000)
            self.counters.slowed += 1
            self.counters.slowed_seconds += damage.slow_ms / 1000

    def lies(self) -> bool:
        """Whether the current sync is only acknowledged."""
        lying = self.damage.acts and self.damage.lying
        self.counters.lies += lying
        return lying

    def allow(self, kind: OperationKind, path: Callable[[], str], size: int = 0, *, grows: bool = False) -> int:
        """How many of `size` bytes go through. Raises the injected OSError.

        A write may go through in part; a read, or an operation without a size, entirely or not at all.
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
