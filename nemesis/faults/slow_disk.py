"""Disks that take their time: every write and every fsync waits.

A process that waits for its disk does nothing else meanwhile, so it answers late and its timers fire late. A node can
seem dead to the others again and again without ever having stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle


@dataclass(frozen=True, slots=True)
class SlowDisk(Fault):
    """Delay every write and fsync by `delay_ms` until the fault heals."""

    name: ClassVar[str] = "slow-disk"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(number=13, name="slow-disk", colour="#3c9d8f")
    proof: ClassVar[tuple[str, ...]] = ("delayed_ms",)
    acts_within: ClassVar[float] = 1.0

    nodes: tuple[str, ...] = ("any",)
    delay_ms: float = 20.0

    def __post_init__(self) -> None:
        if self.delay_ms <= 0:
            raise ValueError(f"delay_ms: {self.delay_ms} is not more than 0")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Mostly one broker, sometimes several or controllers; 1 to 200 ms."""
        delay_ms = round(10 ** draws.random.uniform(0.0, 2.3), 1)
        kind = draws.random.random()
        if draws.cluster.controllers and kind < 0.2:
            return cls(draws.controllers(), delay_ms)
        if kind < 0.35:
            return cls(draws.some(draws.cluster.brokers), delay_ms)
        return cls((draws.broker(),), delay_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Slow the disk of every node."""
        for node in await handle.targets.resolve(self.nodes):
            await handle.slow_disk(node, self.delay_ms)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """Only where something is written to the disk."""
        return cluster.writes_on(self.nodes)

    def describe(self) -> str:
        """Targets, and the delay."""
        return f"slow disk {' '.join(self.nodes)} (+{self.delay_ms:g} ms)"
