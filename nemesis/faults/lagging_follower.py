"""A follower that lags although nothing is wrong with it, nor with its leader.

A leader takes a follower out of the ISR that has not been caught up for `replica.lag.time.max.ms`, and goes on without.
Partitions and pauses seldom show whether it does: who does not fetch at all is soon fenced, or back. So either

1. a follower fetches all the time, and every answer to it is lost, or
2. with `elected`, a member of the ISR is elected to which every fetch of a follower is lost, so that the new leader
   never hears of it.

With `stepped_back` the wall clock of that leader is stepped back meanwhile, by which no lag may be measured.

In both cases it ends soon after the follower has left the ISR, which alone shows that it lagged: one that has all
records of an idle partition stays caught up in case 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.administrators.replica_moves import claimed, put_back, put_first
from nemesis.faults.message import API_KEYS, NodeRequest
from nemesis.faults.message_steps import MessageSteps
from nemesis.faults.scripted.script import drawn_pause, until_event, until_led_by
from nemesis.handle import FaultHandle
from nemesis.ports import (
    AdminResult,
    ClockChange,
    EnvironmentCapability,
    MessageEffect,
    MessagePart,
    MessageRule,
    one_way,
)
from nemesis.situation import Event, Occurrence

_LIMIT: Final = 4.0
"""Longest wait for the follower to leave, in multiples of the cluster's patience."""
_STEPS: Final = 3.0
"""Time for all steps, in the same: a leader looks at its followers twice in the time that they may lag."""
_STEP_BACK: Final = ClockChange(wall_jump_ms=-60_000)
"""Longer than the follower may lag."""
_STEPPED_BACK_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class LaggingFollower(MessageSteps):
    """Lose the answers to all fetches of a follower, or its fetches from a new leader, until it has left the ISR."""

    name: ClassVar[str] = "lagging-follower"
    number: ClassVar[int] = 5
    proof: ClassVar[tuple[str, ...]] = ("left",)

    partition: int = 0
    elected: bool = False
    """The fetches are lost to a new leader, so that none of them arrives."""
    patience_ms: float = 2_000.0
    stepped_back: bool = False
    """The wall clock of the leader is stepped back by a minute for as long."""

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition; the first one, to which clients always write, where others may be idle and the leader stays.
        None where the ISR is too small without the follower, or where brokers are the controllers, too: between these,
        fetches of the metadata log would be lost as well."""
        cluster = draws.cluster
        if not cluster.controllers or cluster.replication_factor <= cluster.min_insync_replicas:
            return None
        partition, elected = draws.partition(), draws.random.random() < 0.5
        elected = elected and cluster.replication_factor > 2  # another follower is to be elected
        struck = partition if elected else draws.written(partition)
        return cls(struck, elected, draws.isr_patience_ms, draws.random.random() < _STEPPED_BACK_SHARE)

    async def inject(self, handle: FaultHandle) -> None:
        """Lose the messages, and wait until the follower has left."""
        (leader,) = await handle.targets.resolve(self.targets())
        followers = [each for each in handle.situation.partition(self.partition).isr if each != leader]
        if len(followers) < 1 + self.elected:
            handle.notes.append("the ISR has too few followers")
            return
        follower, *others = handle.random.sample(followers, len(followers))
        fetched_from = others[0] if self.elected else leader
        handle.targets.add((fetched_from, follower))
        since, before, answers = len(handle.situation.events), tuple[str, ...](), list[AdminResult]()
        if self.elected:
            before = await claimed(handle, self.partition)
            if fetched_from not in before:
                handle.notes.append("leadership is not moved")
                return
            handle.add_undo(lambda: put_back(handle, self.partition, before, answers))
        part = MessagePart.REQUEST if self.elected else MessagePart.RESPONSE
        rule = MessageRule(API_KEYS[NodeRequest.FETCH], part, MessageEffect.DROP, count=0)
        await handle.intercept(one_way([follower], [fetched_from]), rule)
        if self.stepped_back:
            await handle.set_clock(fetched_from, _STEP_BACK)
        if self.elected:
            await put_first(handle, self.partition, fetched_from, before, answers)
            if not await until_led_by(handle, self.partition, fetched_from, self._limit_s):
                return
        if await until_event(handle, Event(Occurrence.LEFT_ISR, follower, self.partition), since, self._limit_s):
            handle.count_evidence("left")
        await drawn_pause(handle, self.patience_ms, 0.05, 0.5)

    @property
    def _limit_s(self) -> float:
        return _LIMIT * self.patience_ms / 1000

    def least_s(self, cluster: ClusterShape) -> float:
        """Until the follower has left."""
        return _STEPS * self.patience_ms / 1000

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Wall clocks that can be changed alone, where one is stepped back."""
        clocks = frozenset({EnvironmentCapability.CLOCKS, EnvironmentCapability.WALL_CLOCKS})
        return MessageSteps.needs(self) | (clocks if self.stepped_back else frozenset())

    def targets(self) -> tuple[str, ...]:
        """The leader of the partition."""
        return (f"leader/{self.partition}",)

    def describe(self) -> str:
        """What is lost, and whether a clock is wrong."""
        lost = f"every {'fetch from a new leader' if self.elected else 'answer to a follower'} is lost until it lags"
        return f"{lost}; its leader's wall clock is stepped back" if self.stepped_back else lost
