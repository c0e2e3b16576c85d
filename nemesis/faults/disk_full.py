"""Disks without room: a write that needs room fails with ENOSPC, or, where the file system allocates late, a sync.

Nothing is lost, so the fault uses no loss budget. But a broker cannot go on without its log: it says so in one line and
ends, which is no crash, and its next start counts as unclean, as after a kill. So random faults fill the disks of the
nodes that random kills may hit.

Of failing syncs there are a few, and later ones succeed: a node that takes the first for a passing failure goes on with
a log of which it does not know what is on the disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import EnvironmentCapability

_ROOM_OF_A_BATCH: Final = 100
"""Two batches do not fit into it; some kilobytes hold all that a short run writes at a low rate or compressed."""
_SYNCS_SHARE: Final = 0.25
_FAILING_SYNCS_MAX: Final = 3
"""Of a fault that is drawn."""


@dataclass(frozen=True, slots=True)
class DiskFull(Fault):
    """Leave disks no room, so that writes or syncs fail with ENOSPC; nodes that this stops start again when the fault
    heals."""

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
    failing_syncs: int = 0
    """How many of the next syncs fail; writes do not, then."""

    def __post_init__(self) -> None:
        if self.room_bytes < 0:
            raise ValueError(f"room_bytes: {self.room_bytes} is less than 0")
        if self.failing_syncs < 0:
            raise ValueError(f"failing_syncs: {self.failing_syncs} is less than 0")
        if self.room_bytes and self.failing_syncs:
            raise ValueError(f"room_bytes: {self.room_bytes} where syncs fail, and no writes")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """The nodes of a random kill, and up to 10 kB of room, so that the disk fills in the middle of something; or a
        few syncs that fail."""
        nodes, room_bytes = draws.unclean_restarts(), round(10 ** draws.random.uniform(0, 4))
        late = draws.random.random() < _SYNCS_SHARE
        if late and EnvironmentCapability.FAILING_SYNCS not in draws.cluster.unsupported:
            return cls(nodes, failing_syncs=draws.random.randint(1, _FAILING_SYNCS_MAX))
        return cls(nodes, room_bytes)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Syncs that fail, where any are to."""
        return frozenset({EnvironmentCapability.FAILING_SYNCS} if self.failing_syncs else ())

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """Its nodes: a broker ends over a full disk."""
        return () if cluster.unclean_recovery else self.nodes

    async def inject(self, handle: FaultHandle) -> None:
        """Fill the disk of every node."""
        for node in await handle.targets.resolve(self.nodes):
            await handle.fill_disk(node, self.room_bytes, self.failing_syncs)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """Only where more is written to the disk than it has room for. It may be long until something is synced."""
        return not self.failing_syncs and self.room_bytes <= _ROOM_OF_A_BATCH and cluster.writes_on(self.nodes)

    def describe(self) -> str:
        """Targets, and the room left or the syncs that fail."""
        left = f"{self.failing_syncs} syncs fail" if self.failing_syncs else f"{self.room_bytes} bytes left"
        return f"disk full {' '.join(self.nodes)} ({left})"
