"""Processes that die or stall.

A kill ends the process at once; what it wrote stays in the operating system, so nothing it acknowledged is gone, but it
comes back as a new incarnation that the controller counts as an unclean shutdown. A pause freezes it: its connections
stay open, its timers and what others sent wait, and it wakes up believing that no time has passed. That is how a leader
becomes a zombie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nemesis.faults.fault import Fault
from nemesis.handle import FaultHandle


@dataclass(frozen=True, slots=True)
class Kill(Fault):
    """End processes at once and start them again when the fault heals."""

    name: ClassVar[str] = "kill"
    family: ClassVar[str] = "kill"
    proof: ClassVar[tuple[str, ...]] = ("killed",)

    nodes: tuple[str, ...] = ("any",)

    async def inject(self, handle: FaultHandle) -> None:
        """Kill every node."""
        for node in await handle.find(self.nodes):
            await handle.kill(node)


@dataclass(frozen=True, slots=True)
class Pause(Fault):
    """Freeze processes (SIGSTOP) until the fault heals (SIGCONT)."""

    name: ClassVar[str] = "pause"
    family: ClassVar[str] = "pause"
    proof: ClassVar[tuple[str, ...]] = ("missed",)

    nodes: tuple[str, ...] = ("any",)

    async def inject(self, handle: FaultHandle) -> None:
        """Freeze every node."""
        for node in await handle.find(self.nodes):
            await handle.pause(node)
