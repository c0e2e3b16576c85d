"""Disks without room: a write that needs room fails with ENOSPC.

Nothing is lost, so the fault uses no loss budget. But a broker cannot go on without its log: it says so in one line and
ends, which is no crash, and its next start counts as unclean, as after a kill. So random faults fill the disks of the
nodes that random kills may hit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle

_ROOM_OF_A_BATCH: Final = 100
"""Two batches do not fit into it; some kilobytes hold all that a short run writes at a low rate or compressed."""


@dataclass(frozen=True, slots=True)
class DiskFull(Fault):
    """Leave disks no room, so that writes fail with ENOSPC; nodes that this stops start again when the fault heals."""

    name: ClassVar[str] = "disk-full"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(
        number=12, name="disk-full", colour="#8f8f3a", possible=ClusterShape.unclean_restart_possible
    )
    proof: ClassVar[tuple[str, ...]] = ("refused_writes",)
    acts_within: ClassVar[float] = 1.0

    nodes: tuple[str, ...] = ("any",)
    room_bytes: int = 0
    """Room that is left on each disk."""

    def __post_init__(self) -> None:
        if self.room_bytes < 0:
            raise ValueError(f"room_bytes: {self.room_bytes} is less than 0")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """The nodes of a random kill, and up to 10 kB of room, so that the disk fills in the middle of something."""
        return cls(nodes=draws.unclean_restarts(), room_bytes=round(10 ** draws.random.uniform(0, 4)))

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """Its nodes: a broker ends over a full disk."""
        return () if cluster.unclean_recovery else self.nodes

    async def inject(self, handle: FaultHandle) -> None:
        """Fill the disk of every node."""
        for node in await handle.targets.resolve(self.nodes):
            await handle.fill_disk(node, self.room_bytes)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """Only where more is written to the disk than it has room for."""
        return self.room_bytes <= _ROOM_OF_A_BATCH and cluster.writes_on(self.nodes)

    def describe(self) -> str:
        """Targets, and the room left."""
        return f"disk full {' '.join(self.nodes)} ({self.room_bytes} bytes left)"
