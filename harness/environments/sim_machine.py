"""State of one node of a simulated cluster, and the moments at which its process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from harness.simulation.node import SimNode
from harness.simulation.storage.disk import SimDisk

STOP_LOOK_S = 0.05
"""Polling interval while waiting for a process to exit."""
CRASH_POINT_SHARE = 0.5
CRASH_POINT_EFFECTS_MAX = 8
CRASH_POINT_WITHIN_S = 0.02
"""Also the longest time that injecting a fault takes, one that stops a process first aside."""
STOP_EFFECTS, STOP_EFFECTS_OF_FILE, STOP_EFFECTS_MAX = 10, 4, 150
"""Effects of a clean stop, about: so many, and more for each file on the disk, since a broker closes its logs."""


@dataclass(slots=True)
class SimMachine:
    """One node of a simulated cluster: the world's machine, and what the environment knows of it."""

    node: SimNode
    properties: str
    disk_random: Random
    log: list[str] = field(default_factory=list)
    lies_before: int = 0
    refused_before: int | None = None
    """Writes and syncs that the disk had refused before it had no room; None while it has."""
    delayed_before: tuple[int, int] = (0, 0)
    """Operations delayed, and nanoseconds, before the disk became slow."""
    offset_before_ns: int | None = None
    """Offset of the clock of timers before the fault; None without one."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to stop the running process."""
    leaving: int = 0
    """The incarnation that was asked to stop."""
    left: int = 0
    """The last incarnation that stopped cleanly."""

    @property
    def wall_offset_ns(self) -> int:
        """How far the fault of the clock has moved what the wall clock reads."""
        clock, before_ns = self.node.clock, self.offset_before_ns or 0
        return clock.offset_now_ns() + clock.wall_ahead_ns - before_ns

    def disk_without_room(self) -> SimDisk:
        """The disk, which counts from now on what it refuses, if it does not yet."""
        if self.refused_before is None:
            self.refused_before = self.node.disk.counters.refused
        return self.node.disk

    def ask_to_stop(self) -> None:
        """Set the event that a real process sets upon SIGTERM; one that is frozen sees it when it thaws."""
        if self.leaving != self.node.incarnation:
            self.leaving = self.node.incarnation
            self.node.loop.call_soon(self.stopping.set)

    async def until_left(self) -> None:
        """Return once no process is stopping."""
        while True:
            if not self.node.alive or self.leaving != self.node.incarnation:
                return
            await asyncio.sleep(STOP_LOOK_S)

    async def at_crash_point(self, random: Random, action: Callable[[], object]) -> None:
        """Carry out `action` now or, every other time, just before one of the process's next effects."""
        at_once = random.random() >= CRASH_POINT_SHARE
        effects = random.randint(1, CRASH_POINT_EFFECTS_MAX)
        if at_once or not self.node.alive or self.node.paused:
            action()
        else:
            await self._before_effect(effects, CRASH_POINT_WITHIN_S, action)

    async def while_stopping(self, random: Random, within_s: float, action: Callable[[], object]) -> None:
        """Ask the process to stop, and carry out `action` just before one of its next effects, or after `within_s`."""
        most = STOP_EFFECTS + STOP_EFFECTS_OF_FILE * sum(1 for _ in self.node.disk.files())
        effects = random.randint(1, min(most, STOP_EFFECTS_MAX))
        if self.node.alive:
            self.ask_to_stop()
            await self._before_effect(effects, within_s, action)
        else:
            action()

    async def _before_effect(self, effects: int, within_s: float, action: Callable[[], object]) -> None:
        reached = asyncio.Event()

        def reach() -> None:
            reached.set()
            action()

        self.node.arm(effects, reach)
        try:
            async with asyncio.timeout(within_s):
                await reached.wait()
        except TimeoutError:
            pass
        finally:  # also when the fault is cancelled: the action happens
            if not reached.is_set():
                self.node.disarm()
                action()
