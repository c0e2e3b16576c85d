"""Steps that a script alone has; no random schedule draws them.

    - {when: {isr: {partition: 0, below: 2}}, fault: observe, nodes: [leader/0], as: last-leader, id: alone}
    - {at: 2s, fault: place-replicas, partition: 0, nodes: [b1, b2], id: taken-off}
    - {after: taken-off, fault: alter-config, key: min.insync.replicas, value: "1"}

`observe` breaks nothing: it finds nodes and binds a name to them, or marks a moment for other steps. The others are
requests of an administrator: a script says what is asked for, where the faults of `nemesis.faults.administrators` draw
it. Each asks until it is done, or until its time is over. Nothing is undone: a script puts back what it changes, above
all the replicas of a partition, since a cluster is whole again only with all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, AdminResult

_RETRY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Observe(Fault):
    """Find nodes and leave them alone."""

    name: ClassVar[str] = "observe"
    number: ClassVar[int] = 0
    family: ClassVar[Family] = Family(number=0, name="observe", colour="#777777", fair=False)
    proof: ClassVar[tuple[str, ...]] = ("observed",)
    ends_by_itself: ClassVar[bool] = True
    nodes: tuple[str, ...] = ()

    async def inject(self, handle: FaultHandle) -> None:
        """Resolve the targets."""
        await handle.targets.resolve(self.nodes)
        handle.count_evidence("observed")


@dataclass(frozen=True, slots=True)
class AdminStep(Fault):
    """One request of an administrator."""

    family: ClassVar[Family] = Family(number=-1, name="administrator", colour="#777777", fair=False)
    proof: ClassVar[tuple[str, ...]] = ("done",)
    ends_by_itself: ClassVar[bool] = True
    in_steps: ClassVar[bool] = True

    async def ask(self, handle: FaultHandle, request: Callable[[], Awaitable[AdminResult]]) -> None:
        """Send the request until it is done; the handle keeps its last refusal where it never is."""
        while (answer := (await request()).outcome) != DONE:
            handle.refusal = answer
            await handle.sleep(_RETRY_S)
        handle.refusal = ""
        handle.count_evidence("done")


@dataclass(frozen=True, slots=True)
class PlaceReplicas(AdminStep):
    """Have a partition's replicas be these nodes, the preferred one first."""

    name: ClassVar[str] = "place-replicas"
    number: ClassVar[int] = 1
    nodes: tuple[str, ...]
    partition: int = 0

    async def inject(self, handle: FaultHandle) -> None:
        """Ask for the reassignment; it completes once the new replicas are in sync."""
        replicas = await handle.targets.resolve(self.nodes)
        await self.ask(handle, lambda: handle.cluster.admin.reassign(handle.topic, self.partition, replicas))


@dataclass(frozen=True, slots=True)
class CancelPlacement(AdminStep):
    """Have the reassignment of a partition cancelled, so that it keeps the replicas of before."""

    name: ClassVar[str] = "cancel-placement"
    number: ClassVar[int] = 3
    partition: int = 0

    async def inject(self, handle: FaultHandle) -> None:
        """Ask for it; with too few of the replicas of before in sync it is refused."""
        await self.ask(handle, lambda: handle.cluster.admin.reassign(handle.topic, self.partition, None))


@dataclass(frozen=True, slots=True)
class AlterConfig(AdminStep):
    """Change a setting of the topic."""

    name: ClassVar[str] = "alter-config"
    number: ClassVar[int] = 2
    key: str
    value: str

    async def inject(self, handle: FaultHandle) -> None:
        """Ask for the change."""
        await self.ask(handle, lambda: handle.cluster.admin.configure(handle.topic, self.key, self.value))

    def describe(self) -> str:
        """The setting with its value."""
        return f"{self.name} {self.key}={self.value}"
