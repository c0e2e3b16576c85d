"""A last leader that comes back first.

With fewer replicas in the ISR than `min.insync.replicas`, whoever left it in time still holds all that is committed:
the ELR (KIP-966). Where the last leader fails, too, one of these is to lead, also if the last leader is back long
before them, since that may have lost what it had. Faults that are drawn each by itself hardly ever leave all but one
broker away and take that one as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.fault import Family, Fault
from nemesis.faults.process import Pause
from nemesis.faults.scripted.script import drawn_pause, until_event
from nemesis.handle import FaultHandle
from nemesis.situation import Event, Occurrence

_LIMIT: Final = 3.0
"""Longest wait for a broker to be fenced or unfenced, in multiples of the cluster's patience."""


@dataclass(frozen=True, slots=True)
class LastLeader(Fault):
    """Pause all brokers but one until they are fenced, kill that one, and let it come back before the others."""

    name: ClassVar[str] = "last-leader"
    number: ClassVar[int] = 2
    family: ClassVar[Family] = Pause.family
    weight: ClassVar[float] = 0.5
    proof: ClassVar[tuple[str, ...]] = ("killed",)
    of_brokers: ClassVar[bool] = True
    ends_by_itself: ClassVar[bool] = True
    in_steps: ClassVar[bool] = True

    victim: str = "any"
    """The broker that leads last."""
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """A broker that may restart uncleanly; None where there is none, or brokers are the controllers, too."""
        cluster = draws.cluster
        if not cluster.controllers or len(cluster.brokers) < 2 or not draws.profile.victims:
            return None
        return cls(draws.victim(), draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; the paused brokers go on at the end."""
        events = handle.situation.events
        victim = await handle.targets.resolve_one(self.victim)
        others = [broker for broker in handle.cluster.brokers if broker != victim]
        if not others:
            handle.notes.append("two brokers are needed")
            return
        began = len(events)
        for broker in others:
            await handle.pause(broker)
        await self._until(handle, Occurrence.FENCED, others, began)
        ended = len(events)
        restart = await handle.kill(victim)
        await restart()
        await self._until(handle, Occurrence.UNFENCED, (victim,), ended)
        await drawn_pause(handle, self.patience_ms, 0.0, 1.0)

    async def _until(self, handle: FaultHandle, kind: Occurrence, brokers: Sequence[str], since: int) -> None:
        for broker in brokers:
            await until_event(handle, Event(kind, broker), since, _LIMIT * self.patience_ms / 1000)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """Where brokers are controllers, too, nobody fences them."""
        return bool(cluster.controllers)

    def targets(self) -> tuple[str, ...]:
        """Every broker, and the one that ends."""
        return ("brokers", self.victim)

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """The victim, where a kill is a risk."""
        return () if cluster.unclean_recovery else (self.victim,)

    def describe(self) -> str:
        """Who leads last."""
        return f"pause all brokers but {self.victim}, kill it, and let it come back first"
