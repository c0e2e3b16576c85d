"""Processes that die or stall.

A kill ends the process at once; what it wrote stays in the operating system, so nothing it acknowledged is gone, but it
comes back as a new incarnation that the controller counts as an unclean shutdown. A pause freezes it: its connections
stay open, its timers and what others sent wait, and it wakes up believing that no time has passed. A leader
becomes a zombie in this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle


@dataclass(frozen=True, slots=True)
class Kill(Fault):
    """End processes at once and start them again when the fault heals."""

    name: ClassVar[str] = "kill"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(
        number=2, name="kill", colour="#7a5195", possible=ClusterShape.unclean_restart_possible
    )
    proof: ClassVar[tuple[str, ...]] = ("killed",)

    nodes: tuple[str, ...] = ("any",)

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Nodes that may restart uncleanly; a killed process loses nothing."""
        return cls(nodes=draws.unclean_restarts())

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """Its nodes."""
        return () if cluster.unclean_recovery else self.nodes

    async def inject(self, handle: FaultHandle) -> None:
        """Kill every node."""
        for node in await handle.targets.resolve(self.nodes):
            await handle.kill(node)


@dataclass(frozen=True, slots=True)
class Pause(Fault):
    """Freeze processes (SIGSTOP) until the fault heals (SIGCONT)."""

    name: ClassVar[str] = "pause"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(number=4, name="pause", colour="#3d7ea6")
    proof: ClassVar[tuple[str, ...]] = ("missed",)
    acts_within: ClassVar[float] = 1.0

    nodes: tuple[str, ...] = ("any",)

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Mostly one broker, sometimes several or controllers."""
        kind = draws.random.random()
        if draws.cluster.controllers and kind < 0.2:
            return cls(nodes=draws.controllers())
        if kind < 0.35:
            return cls(nodes=draws.some(draws.cluster.brokers))
        return cls(nodes=(draws.broker(),))

    async def inject(self, handle: FaultHandle) -> None:
        """Freeze every node."""
        for node in await handle.targets.resolve(self.nodes):
            await handle.pause(node)
