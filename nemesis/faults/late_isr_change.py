"""A proposal to let a follower into the ISR that arrives when the follower may not join any more.

A leader proposes a follower that it knows as unfenced, in the life whose fetch it has seen. Until the controllers read
that, the follower may have been fenced, or be in another life, and the change is refused as that of an ineligible
replica (KIP-903). What a leader does then is hardly ever seen otherwise: it has to give the change up, although an
earlier request with it may still arrive and be granted, once the follower may join again.

1. A follower and its leader do not reach each other until the follower is out of the ISR. They do again, and it catches
   up; the request to let it in is held, and so is every repetition.
2. The process of the follower stops cleanly and starts again, until it is registered or unfenced. With `fenced` it does
   not reach the controllers instead, until they have fenced it.
3. The requests arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.message import API_KEYS, NodeRequest
from nemesis.faults.message_steps import MessageSteps
from nemesis.faults.scripted.script import drawn_pause, until_event, until_taken
from nemesis.handle import FaultHandle
from nemesis.ports import MessageEffect, MessagePart, MessageRule, both_ways, one_way
from nemesis.situation import Event, Occurrence

_LIMIT: Final = 4.0
"""Longest wait for anything, in multiples of the cluster's patience."""
_STEPS: Final = 6.0
"""Time for all steps, in the same: until the follower has left, is back, is fenced or unfenced, and the last pause."""


@dataclass(frozen=True, slots=True)
class LateIsrChange(MessageSteps):
    """Hold the request to let a follower into the ISR until the follower is fenced, or has restarted."""

    name: ClassVar[str] = "late-isr-change"
    number: ClassVar[int] = 4
    weight: ClassVar[float] = 2.0

    partition: int = 0
    fenced: bool = False
    """The follower is fenced; else its process stops and starts again."""
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition to which clients write; None where an ISR without the follower is so small that the follower
        stays eligible to lead: its new life then changes the partition, and the request is outdated."""
        cluster = draws.cluster
        if not cluster.controllers or cluster.replication_factor <= cluster.min_insync_replicas:
            return None
        return cls(draws.written(draws.partition()), draws.random.random() < 0.5, draws.isr_patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held or down at the end comes back then."""
        (leader,) = await handle.targets.resolve(self.targets())
        followers = [each for each in handle.situation.partition(self.partition).isr if each != leader]
        if not followers:
            handle.notes.append("the ISR has no follower")
            return
        follower, controllers = handle.random.choice(followers), handle.cluster.controllers
        handle.targets.add((follower,))
        since = len(handle.situation.events)
        reunite = await handle.hold(both_ways([leader], [follower]))
        if not await until_event(handle, Event(Occurrence.LEFT_ISR, follower, self.partition), since, self._limit_s):
            return
        rule = MessageRule(API_KEYS[NodeRequest.ALTER_PARTITION], MessagePart.REQUEST, MessageEffect.HOLD, count=0)
        let_pass, taken = await handle.intercept(one_way([leader], controllers), rule)
        await reunite()
        if not await until_taken(handle, taken, self._limit_s):
            handle.notes.append(f"{follower} was not proposed")
            return
        await drawn_pause(handle, self.patience_ms, 0.05, 0.15)  # other partitions may have come first
        since = len(handle.situation.events)
        if self.fenced:
            await handle.hold(both_ways([follower], controllers))
            await until_event(handle, Event(Occurrence.FENCED, follower), since, self._limit_s)
        else:
            start = await handle.stop(follower)
            await drawn_pause(handle, self.patience_ms, 0.02, 0.3)
            await start()
            moment = handle.random.choice((Occurrence.REGISTERED, Occurrence.UNFENCED))
            await until_event(handle, Event(moment, follower), since, self._limit_s)
        await let_pass()
        await drawn_pause(handle, self.patience_ms, 0.5, 1.5)

    @property
    def _limit_s(self) -> float:
        return _LIMIT * self.patience_ms / 1000

    def least_s(self, cluster: ClusterShape) -> float:
        """Until the request has arrived."""
        return _STEPS * self.patience_ms / 1000

    def targets(self) -> tuple[str, ...]:
        """The leader of the partition."""
        return (f"leader/{self.partition}",)

    def describe(self) -> str:
        """What the follower goes through."""
        return f"a late proposal of a follower that is {'fenced' if self.fenced else 'restarted'}"
