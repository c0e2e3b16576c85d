"""A log end that is told when it is no longer true.

An unclean recovery compares what replicas tell of their logs, and such an answer holds for one life of its broker: in
the next one the log may be shorter. The answers of a round are counted when the last one has come. So one answer that
is slow gives another replica the time to tell of its log, to end and to come back, before both are counted:

1. Every broker is killed, so that no replica is left that is known to hold all committed records: the victim and
   another replica of a partition of its own once the rest are fenced, so that a recovery needs these two. They do not
   reach each other for a moment before, so that their logs end at different offsets; the one that leads, which has the
   longer log, is put last among the replicas, where a choice by any other order does not find it. All but that other
   one are back, and take part again.
2. The other one comes back, too, and the next request of the controllers for its log ends is held, or the
   response to it. The other replicas have answered.
3. The process of `victim` stops and starts again at once: after a clean stop it is registered without delay, before the
   controllers give the round up. With `keep` syncs of that stop fail, and it loses its power.
4. Once the controllers let it take part, what was held arrives; where the victim stays `away`, before it starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.administrators.replica_moves import claimed, put_back
from nemesis.faults.administrators.requests import recorded
from nemesis.faults.message import API_KEYS, NodeRequest
from nemesis.faults.message_steps import MessageSteps
from nemesis.faults.scripted.script import drawn_pause, held_by, until_event, until_taken
from nemesis.handle import FaultHandle
from nemesis.ports import (
    AdminResult,
    EnvironmentCapability,
    KeepUnsynced,
    MessageEffect,
    MessagePart,
    MessageRule,
    both_ways,
    one_way,
)
from nemesis.situation import Event, Occurrence

_LIMIT: Final = 3.0
"""Longest wait for anything, in multiples of the cluster's patience."""
_MOMENT: Final = 0.03
"""Longest pause within the time that the controllers wait for an answer, in the same unit."""
_AWAY_SHARE: Final = 1 / 3
_FAILING_SYNCS: Final = 2
"""Of the stop after which the victim loses its power."""


@dataclass(frozen=True, slots=True)
class LateLogEnd(MessageSteps):
    """Kill every broker, and while the controllers wait for the log ends of one, restart another one that has
    answered."""

    name: ClassVar[str] = "late-log-end"
    number: ClassVar[int] = 3
    weight: ClassVar[float] = 4.0
    of_brokers: ClassVar[bool] = True

    victim: str = "any"
    """The broker that has answered."""
    keep: KeepUnsynced | None = None
    """The unsynced writes that it keeps when it loses its power; without it, it loses none."""
    part: MessagePart = MessagePart.RESPONSE
    patience_ms: float = 2_000.0
    away: bool = False
    """Whether the victim starts again only after what was held has arrived."""
    partition: int = 0
    """Another one, if the victim has no replica of it."""

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """A victim that loses its power, or any broker; None where no recovery compares logs, as of single replicas."""
        cluster, random = draws.cluster, draws.random
        if not cluster.recovery_compares_logs or not cluster.controllers or cluster.replication_factor < 2:
            return None
        part, loses_power = random.choice(list(MessagePart)), random.random() < 0.5
        loses_power = loses_power and bool(draws.profile.victims)
        victim, keep = (draws.victim(), draws.keep()) if loses_power else (random.choice(cluster.brokers), None)
        away = random.random() < _AWAY_SHARE
        return cls(victim, keep, part, draws.patience_ms, away, draws.partition())

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held or down at the end comes back then."""
        brokers, events = handle.cluster.brokers, handle.situation.events
        victim = await handle.targets.resolve_one(self.victim)
        partition = await held_by(handle, victim, self.partition)
        if partition is None:
            return
        replicas = await handle.cluster.admin.replicas(handle.topic, partition)
        others = [broker for broker in replicas if broker != victim]
        if not others:
            handle.notes.append("two replicas are needed")
            return
        slow = handle.random.choice(others)
        rest = [broker for broker in brokers if broker not in (victim, slow)]
        ended, start = len(events), {broker: await handle.kill(broker) for broker in rest}
        await self._until(handle, Occurrence.FENCED, rest, ended)
        await self._put_leader_last(handle, partition)
        reunite = await handle.hold(both_ways([victim], [slow]))
        await drawn_pause(handle, self.patience_ms, 0.05, 0.4)
        start |= {broker: await handle.kill(broker) for broker in (victim, slow)}
        await reunite()
        await drawn_pause(handle, self.patience_ms, 0.02, 0.3)
        for broker in (*rest, victim):
            await start[broker]()
        await self._until(handle, Occurrence.UNFENCED, (*rest, victim), ended)
        rule = MessageRule(API_KEYS[NodeRequest.GET_REPLICA_LOG_INFO], self.part, MessageEffect.HOLD)
        let_pass, taken = await handle.intercept(one_way(handle.cluster.controllers, (slow,)), rule)
        await start[slow]()
        if not await until_taken(handle, taken, self._limit_s):
            handle.notes.append(f"the controllers asked {slow} for no log end")
            return
        await drawn_pause(handle, self.patience_ms, 0.0, _MOMENT)
        ended = len(events)
        if self.keep is None:
            restart = await handle.stop(victim)
        else:
            restart = await handle.stop_unsynced(victim, _FAILING_SYNCS, self.keep)
            handle.situation.wholeness.went_down(victim)  # its logs may have grown since it was told to stop
        if self.away:
            await let_pass()
            await drawn_pause(handle, self.patience_ms, 0.02, 0.3)
        await restart()
        await self._until(handle, Occurrence.UNFENCED, (victim,), ended)
        await drawn_pause(handle, self.patience_ms, 0.0, _MOMENT)
        await let_pass()
        await drawn_pause(handle, self.patience_ms, 0.2, 1.0)

    async def _put_leader_last(self, handle: FaultHandle, partition: int) -> None:
        """Put the replica that leads last, if one does."""
        before, answers = await claimed(handle, partition), list[AdminResult]()
        leader = await handle.targets.leader(partition)
        if leader not in before:
            return
        order = (*(replica for replica in before if replica != leader), leader)
        handle.add_undo(lambda: put_back(handle, partition, before, answers))
        await recorded(answers, handle.cluster.admin.reassign(handle.topic, partition, order))

    async def _until(self, handle: FaultHandle, kind: Occurrence, brokers: Sequence[str], since: int) -> None:
        for broker in brokers:
            await until_event(handle, Event(kind, broker), since, self._limit_s)

    @property
    def _limit_s(self) -> float:
        return _LIMIT * self.patience_ms / 1000

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Messages that can be told apart, and syncs that fail."""
        return frozenset({EnvironmentCapability.MESSAGES, EnvironmentCapability.FAILING_SYNCS})

    def targets(self) -> tuple[str, ...]:
        """Every broker, and the one that ends twice."""
        return ("brokers", self.victim)

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """The victim, where it loses power; others only where a kill is a risk."""
        killed = () if cluster.unclean_recovery else cluster.brokers
        return killed if self.keep is None else (*killed, self.victim)

    def describe(self) -> str:
        """What ends, and what is late."""
        loses_power = "" if self.keep is None else f" and loses its power (keeps {self.keep})"
        away = ", and stays away" if self.away else ""
        return f"kill every broker; late log ends ({self.part}); {self.victim} stops{loses_power}{away}"
