"""Clocks that are wrong.

A node's clock jumps, or runs fast, slow, or not at all, while the others stay true. A jump forward lets sessions and
lag timers run out early; a frozen or slow clock keeps a deposed leader in its belief.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nemesis.faults.fault import Fault
from nemesis.handle import FaultHandle
from nemesis.ports import ClockChange


@dataclass(frozen=True, slots=True)
class Clock(Fault):
    """Bend clocks until the fault heals: they jump by `jump_ms` at once and then run at `rate`."""

    name: ClassVar[str] = "clock"
    family: ClassVar[str] = "clock"
    proof: ClassVar[tuple[str, ...]] = ("offset_ms",)

    nodes: tuple[str, ...] = ("any",)
    jump_ms: float = 0.0
    """How far the clock jumps, back when negative."""
    rate: float = 1.0
    """0 is frozen, 1 is true, 1.1 gains six seconds a minute."""

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"rate: {self.rate} would run backwards; 0 is frozen, 1 is true")
        if self.rate == 1 and not self.jump_ms:
            raise ValueError("rate: 1 without jump_ms leaves the clock as it is")

    async def inject(self, handle: FaultHandle) -> None:
        """Bend the clock of every node."""
        for node in await handle.find(self.nodes):
            await handle.set_clock(node, ClockChange(self.jump_ms, self.rate))

    def describe(self) -> str:
        """Targets, and what their clocks do."""
        does = [f"jumps {self.jump_ms:+.0f} ms"] if self.jump_ms else []
        if self.rate == 0:
            does.append("stands still")
        elif self.rate != 1:
            does.append(f"runs ×{self.rate:.3g}")
        return f"clock of {' '.join(self.nodes)} {' and '.join(does)}"
