"""Clocks that are wrong.

A node's clock jumps, or runs fast, slow, or not at all, while the others stay true. A jump forward lets sessions and
lag timers run out early; a frozen or slow clock keeps a deposed leader in its belief. A wall clock that is stepped, as
by NTP, is what no session may go by.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, some
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import ClockChange, EnvironmentCapability

_SLOWEST_RATE = 0.1
"""Below it a clock counts as standing still: a wait of half a second takes more than five."""
_NEAR_MS = 4_000.0
"""The furthest that a clock jumps where a wall clock would have: one of timers that jumps back stands still as long."""
_FAR_MS = (5_000, 60_000)
"""Of a wall clock's jump: longer than any session, and than it takes until somebody else is in charge."""
_LEFT_BEHIND_SHARE = 0.5
"""Of the jumps of wall clocks: far back, on the active controller. One that went by it would keep every session."""


def _slightly_wrong(random: Random, cluster: ClusterShape) -> list[Fault]:
    """In three of ten runs some clocks run a little fast or slow for the whole run."""
    if random.random() < 0.7:
        return []
    nodes = some(random, cluster.brokers + cluster.controllers)
    return [Clock(nodes=(node,), rate=round(random.choice((0.9, 0.98, 1.02, 1.1)), 3)) for node in nodes]


@dataclass(frozen=True, slots=True)
class Clock(Fault):
    """Change clocks until the fault heals: they jump by `jump_ms` at once and then run at `rate`, or wall clocks alone
    jump by `wall_jump_ms`."""

    name: ClassVar[str] = "clock"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(
        number=5,
        name="clock",
        colour="#a08a1c",
        possible=lambda cluster: EnvironmentCapability.CLOCKS not in cluster.unsupported,
        background=_slightly_wrong,
    )
    proof: ClassVar[tuple[str, ...]] = ("offset_ms",)

    nodes: tuple[str, ...] = ("any",)
    jump_ms: float = 0.0
    """Size of the jump; negative values jump back."""
    rate: float = 1.0
    """0 is frozen, 1 is true, 1.1 gains six seconds a minute."""
    wall_jump_ms: float = 0.0
    """How far the wall clock jumps beside that, which timers do not go by."""

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"rate: {self.rate} would run backwards; 0 is frozen, 1 is true")
        if self.rate == 1 and not self.jump_ms and not self.wall_jump_ms:
            raise ValueError("rate: 1 without jump_ms and wall_jump_ms leaves the clock as it is")

    def gain_ms(self, lasting_s: float) -> float:
        """How far apart it brings a clock and the time that passes, at most, while it lasts."""
        return abs(self.jump_ms) + abs(self.wall_jump_ms) + abs(self.rate - 1) * lasting_s * 1000

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """One node: its clock jumps, stands still, runs at another rate, or jumps and does; or its wall clock jumps."""
        random, has_groups = draws.random, draws.cluster.has_groups
        # Coordinators of groups measure sessions, as controllers do, so more of their wall clocks jump.
        kind = random.choice(("jump", "freeze", "skew", "both", "wall", *(("wall",) if has_groups else ())))
        node = draws.broker()
        if draws.cluster.controllers and random.random() < (0.5 if kind == "wall" and not has_groups else 0.2):
            node = draws.controller()
        if kind == "wall":
            size_ms = random.choice((random.uniform(0.05, 2.0) * draws.patience_ms, random.uniform(*_FAR_MS)))
            jumped_ms = random.choice((-1, 1)) * max(1, round(size_ms))
            # Drawn last, so that the other jumps are as they were without it.
            if draws.cluster.controllers and random.random() < _LEFT_BEHIND_SHARE:
                return cls(nodes=("controller",), wall_jump_ms=-round(random.uniform(*_FAR_MS)))
            return cls(nodes=(node,), wall_jump_ms=jumped_ms)
        jump_ms = random.choice((-1, 1, 1)) * max(1, round(draws.patience_ms * random.uniform(0.05, 2.0)))
        rate = round(random.choice((random.uniform(0.3, 0.95), random.uniform(1.05, 3.0))), 3)
        return cls(
            nodes=(node,),
            jump_ms=jump_ms if kind in ("jump", "both") else 0.0,
            rate=0.0 if kind == "freeze" else rate if kind in ("skew", "both") else 1.0,
        )

    async def inject(self, handle: FaultHandle) -> None:
        """Change the clock of every node."""
        for node in await handle.targets.resolve(self.nodes):
            await handle.set_clock(node, ClockChange(self.jump_ms, self.rate, self.wall_jump_ms))

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Clocks that can be changed, some that can stand still, and wall clocks that can be changed alone."""
        needs = {EnvironmentCapability.CLOCKS}
        if self.rate < _SLOWEST_RATE:
            needs.add(EnvironmentCapability.FROZEN_CLOCKS)
        if self.wall_jump_ms:
            needs.add(EnvironmentCapability.WALL_CLOCKS)
        return frozenset(needs)

    def adapted(self, unsupported: Collection[EnvironmentCapability], random: Random) -> Self | None:
        """A slow clock where none can stand still, and a short jump of the clock where no wall clock jumps alone."""
        lacking = self.needs() & frozenset(unsupported)
        if EnvironmentCapability.CLOCKS in lacking:
            return None
        fault = self
        if EnvironmentCapability.FROZEN_CLOCKS in lacking:
            fault = replace(fault, rate=round(random.uniform(0.3, 0.95), 3))
        if EnvironmentCapability.WALL_CLOCKS in lacking:
            jump_ms = max(-_NEAR_MS, min(self.wall_jump_ms, _NEAR_MS))
            fault = replace(fault, jump_ms=self.jump_ms or jump_ms, wall_jump_ms=0.0)
        return fault

    def describe(self) -> str:
        """Targets, and what their clocks do."""
        does = [f"jumps {self.jump_ms:+.0f} ms"] if self.jump_ms else []
        if self.rate == 0:
            does.append("stands still")
        elif self.rate != 1:
            does.append(f"runs ×{self.rate:.3g}")
        if self.wall_jump_ms:
            does.append(f"jumps {self.wall_jump_ms:+.0f} ms on the wall")
        return f"clock of {' '.join(self.nodes)} {' and '.join(does)}"
