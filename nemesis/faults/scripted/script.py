"""Faults that are a sequence of steps.

Some wrong turns of the protocol need several things to happen in one order and within tight bounds, which
independent faults meet too rarely. Each such fault is a sequence, told in its docstring; the times between its steps
are drawn, so that repeated injections probe around the story and not only at one point of it. `patience_ms` is how long
the cluster takes to act on a silent broker (session timeout, lag time) and scales every wait.

`inject` runs through the steps; what is still held at their end comes back then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar, Final, Self, TypeVar

from nemesis.drawing import Draws
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle

T = TypeVar("T")

_LOOK_S: Final = 0.02
"""How often a step that waits for the cluster looks at it."""


@dataclass(frozen=True, slots=True)
class ScriptedFault(Fault):
    """A sequence of steps, told once."""

    family: ClassVar[Family] = Family(number=7, name="scripted", colour="#c26ea8", alone_share=0.5)
    ends_by_itself: ClassVar[bool] = True
    proof: ClassVar[tuple[str, ...]] = ("held", "refused")


@dataclass(frozen=True, slots=True)
class ScriptedLeaderFault(ScriptedFault):
    """A story about the leader of a partition and those that follow it."""

    partition: int = 0
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition."""
        return cls(partition=draws.partition, patience_ms=draws.patience_ms)

    def targets(self) -> tuple[str, ...]:
        """The leader of the partition."""
        return (f"leader/{self.partition}",)

    async def leader_and_two(self, handle: FaultHandle) -> tuple[str, str, str] | None:
        """The leader, and two of the other brokers in an order drawn; None, and noted, where there are no two."""
        (leader,) = await handle.find(self.targets())
        others = [broker for broker in handle.cluster.brokers if broker != leader]
        handle.random.shuffle(others)
        if len(others) < 2:
            handle.notes.append("two followers are needed")
            return None
        handle.aim(others[:2])
        return leader, others[0], others[1]


async def until_seen(handle: FaultHandle, look: Callable[[], Awaitable[T | None]], limit_s: float) -> T | None:
    """What `look` comes to see within `limit_s`; None when it sees nothing."""
    for _ in range(round(limit_s / _LOOK_S)):
        seen = await look()
        if seen is not None:
            return seen
        await handle.sleep(_LOOK_S)
    return None
