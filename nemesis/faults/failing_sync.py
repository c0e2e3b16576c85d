"""Disks that take what is written and have no room for it when it is synced.

A file system that allocates late, or lies on a volume with less room than it promises, accepts a write and says ENOSPC
at the fsync. A process that goes on learns at once that it cannot write; one that stops has to notice that its last
sync failed. This fault stops a broker cleanly while the first syncs of its disk fail, and later ones succeed: what it
could not sync is at risk, so it must not present its end as a clean one. Then its power is cut. Such a broker may lose
data, so it is a victim of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.disk_full import DiskFull
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import EnvironmentCapability, KeepUnsynced

_FAILING_SYNCS_MAX = 3
"""Of a fault that is drawn."""


@dataclass(frozen=True, slots=True)
class FailingSync(Fault):
    """Stop brokers cleanly while their first syncs fail for want of room, and cut their power then; they start again
    when the fault heals."""

    name: ClassVar[str] = "failing-sync"
    number: ClassVar[int] = 2
    family: ClassVar[Family] = DiskFull.family
    proof: ClassVar[tuple[str, ...]] = ("failed_syncs",)
    in_steps: ClassVar[bool] = True

    nodes: tuple[str, ...] = ("any",)
    failing_syncs: int = 1
    """How many syncs fail."""
    keep: KeepUnsynced = KeepUnsynced.NOTHING
    """How much of what is not synced they keep when their power is cut."""

    def __post_init__(self) -> None:
        if self.failing_syncs < 1:
            raise ValueError(f"failing_syncs: {self.failing_syncs} is less than 1")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """A victim; None where there is none."""
        if not draws.profile.victims:
            return None
        failing_syncs = draws.random.randint(1, _FAILING_SYNCS_MAX)
        return cls(nodes=(draws.victim(),), failing_syncs=failing_syncs, keep=draws.keep())

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Syncs that fail."""
        return frozenset({EnvironmentCapability.FAILING_SYNCS})

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """Its nodes: what they could not sync may be gone."""
        return self.nodes

    async def inject(self, handle: FaultHandle) -> None:
        """Stop every node, and cut its power."""
        for node in await handle.targets.resolve(self.nodes):
            try:
                await handle.stop_unsynced(node, self.failing_syncs, self.keep)
            finally:  # its logs may have grown since it was told to stop
                handle.situation.wholeness.went_down(node)

    def describe(self) -> str:
        """Targets, how many syncs fail, and what is kept."""
        syncs = "1 sync fails" if self.failing_syncs == 1 else f"{self.failing_syncs} syncs fail"
        return f"clean stop {' '.join(self.nodes)} while {syncs}, then power loss (keeps {self.keep})"
