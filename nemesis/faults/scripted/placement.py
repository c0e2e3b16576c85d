"""Scripted faults in which replicas of a partition are taken off brokers and put back.

A reassignment changes on which brokers committed records rest, and deletes logs. Each fault here
(`nemesis.faults.scripted.script`) has something else go wrong in the middle of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, NamedTuple, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.administrators.replica_moves import claimed, put_back, put_first
from nemesis.faults.administrators.requests import recorded
from nemesis.faults.fault import Fault
from nemesis.faults.scripted.script import (
    ScriptedLeaderFault,
    ScriptedPowerLoss,
    drawn_pause,
    leaders_of_topic,
    until_isr,
    until_occurred,
)
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, AdminResult, Evidence, KeepUnsynced, both_ways
from nemesis.situation import Event, Occurrence

_ROUNDS: Final = 3
"""How often a replica is taken off and put back: a power loss often keeps all of a deletion, or nothing of it."""


@dataclass(frozen=True, slots=True)
class HalfDeletedReplica(ScriptedPowerLoss):
    """A replica loses power within its deletion, and is put back on what is left of its log (Kafka Replication
    Correctness §6.5.4).

    1. The victim is taken off a partition, and begins to delete its log; where no replica can be spared, another broker
       takes its place.
    2. It loses power: a part of the deletion is on its disk.
    3. It is put back before it starts again, as the preferred replica, so that it does not go on with the deletion.
    4. Once it is in the ISR again, it is elected. The whole is repeated a few times.

    What is left can be taken for a log only where logs have several segments.
    """

    name: ClassVar[str] = "half-deleted-replica"
    number: ClassVar[int] = 11
    proof: ClassVar[tuple[str, ...]] = (*ScriptedPowerLoss.proof, "lost_names")
    acts_within: ClassVar[float] = 2.0
    weight: ClassVar[float] = 2.0
    removes_replicas: ClassVar[bool] = True

    partition: int = 0
    """Another one, if the victim has no replica of it."""
    keep: KeepUnsynced = KeepUnsynced.PREFIX
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """A victim that keeps a part of what it has not synced; None where no broker may lose data, where replicas have
        to stay where they are, or where a log has a single segment."""
        cluster = draws.cluster
        if not (draws.profile.victims and cluster.replica_can_be_moved and cluster.logs_roll):
            return None
        keep = draws.random.choice((KeepUnsynced.PREFIX, KeepUnsynced.TORN))
        return cls(draws.victim(), draws.partition(), keep, draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then, and so does the replica."""
        victim = await handle.targets.resolve_one(self.victim)
        partition, before = await self._claim(handle, victim)
        if not before:
            return
        move = _moved_away(handle, partition, victim, before)
        if move is None:
            return
        handle.add_undo(lambda: put_back(handle, partition, before, move.answers))
        for _ in range(_ROUNDS):
            if not await move.take_off(handle, self.patience_ms):
                return
            start = await handle.power_off(victim, self.keep)
            await move.ask_back(handle)
            await drawn_pause(handle, self.patience_ms, 0.0, 0.2)
            await start()
            if not await move.lead_again(handle, self.patience_ms):
                return

    async def _claim(self, handle: FaultHandle, victim: str) -> tuple[int, tuple[str, ...]]:
        """A partition of which the victim holds a replica, if possible `partition`, reserved for this fault, with its
        replicas; without replicas, and with a note, if there is none that could be moved."""
        others = [index for index in await leaders_of_topic(handle) if index != self.partition]
        for partition in (self.partition, *others):
            before = await handle.cluster.admin.replicas(handle.topic, partition)
            if victim in before and not handle.is_moving(before) and handle.claim_placement(partition):
                return partition, before
        handle.notes.append(f"{victim} holds no replica that no other fault is moving")
        return self.partition, ()

    def took_effect(self, evidence: Evidence) -> bool:
        """Something was lost: a part of the deletion, or other writes. That all of them were synced says nothing about
        names."""
        return Fault.took_effect(self, evidence)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """The victim must hold a replica."""
        return cluster.every_broker_has_replicas

    def targets(self) -> tuple[str, ...]:
        """The victim."""
        return (self.victim,)


@dataclass(frozen=True, slots=True)
class ThereAndBack(ScriptedLeaderFault):
    """A leader is taken off its partition and leads it again, in one life: what it, its followers and its consumers
    have kept of its first replica is of another one by then.

    It leads another partition, too, if it holds one, so that those who follow both stay connected to it.

    1. The leader is taken off, and deletes its log; where no replica can be spared, another broker takes its place.
    2. It is put back as the preferred replica.
    3. Once it is in the ISR again, it is elected.
    """

    name: ClassVar[str] = "there-and-back"
    number: ClassVar[int] = 18
    proof: ClassVar[tuple[str, ...]] = ("reassigned",)
    acts_within: ClassVar[float] = 2.0
    removes_replicas: ClassVar[bool] = True

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition; None where replicas have to stay where they are."""
        return cls(draws.partition(), draws.patience_ms) if draws.cluster.replica_can_be_moved else None

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; the replicas of before come back at the end."""
        (leader,) = await handle.targets.resolve(self.targets())
        before = await claimed(handle, self.partition)
        move = _moved_away(handle, self.partition, leader, before) if leader in before else None
        if move is None:
            return
        handle.add_undo(partial(put_back, handle, self.partition, before, move.answers))
        await self._lead_another(handle, leader)
        if not await move.take_off(handle, self.patience_ms):
            return
        handle.count_evidence("reassigned")
        await drawn_pause(handle, self.patience_ms, 0.0, 0.5)
        await move.ask_back(handle)
        await move.lead_again(handle, self.patience_ms)

    async def _lead_another(self, handle: FaultHandle, leader: str) -> None:
        """Have the leader lead another partition, too, if it holds one, so that those who follow both stay connected to
        it."""
        others = await leaders_of_topic(handle)
        others.pop(self.partition, None)
        if leader in others.values():
            return
        for index in others:
            if leader not in await handle.cluster.admin.replicas(handle.topic, index):
                continue
            replicas, answers = await claimed(handle, index), list[AdminResult]()
            if replicas:
                handle.add_undo(partial(put_back, handle, index, replicas, answers))
                await put_first(handle, index, leader, replicas, answers)
                return


class _MoveAway(NamedTuple):
    """A replica that leaves a partition, and is to lead it again."""

    partition: int
    replica: str
    without: tuple[str, ...]
    """The replicas meanwhile."""
    again: tuple[str, ...]
    """Those afterwards: as before, and this one is preferred."""
    answers: list[AdminResult]

    async def take_off(self, handle: FaultHandle, patience_ms: float) -> bool:
        """Take it off, and wait until it is gone; False, with a note, if that is refused."""
        since, resigned = len(handle.situation.events), Event(Occurrence.RESIGNED, self.replica, self.partition)
        request = handle.cluster.admin.reassign(handle.topic, self.partition, self.without)
        removed = await recorded(self.answers, request)
        if removed.outcome != DONE:
            handle.notes.append(f"not taken off: {removed.outcome}")
            return False
        # The deletion is the same step. Where no trace shows it, a replica that is not moved is gone by then.
        limit_s = (0.2 if len(self.without) < len(self.again) else 2.0) * patience_ms / 1000
        await until_occurred(handle, lambda event: event == resigned, since, limit_s)
        return True

    async def ask_back(self, handle: FaultHandle) -> None:
        """Ask for the replicas afterwards."""
        await recorded(self.answers, handle.cluster.admin.reassign(handle.topic, self.partition, self.again))

    async def lead_again(self, handle: FaultHandle, patience_ms: float) -> bool:
        """Have it elected once it is in the ISR again; False, with a note, if it does not come back."""
        if not await until_isr(handle, self.partition, lambda isr: self.replica in isr, patience_ms / 1000):
            handle.notes.append(f"{self.replica} did not come back into the ISR")
            return False
        await handle.cluster.admin.elect_preferred(handle.topic, self.partition)
        await drawn_pause(handle, patience_ms, 0.2, 0.6)
        return True


def _moved_away(handle: FaultHandle, partition: int, replica: str, before: Sequence[str]) -> _MoveAway | None:
    """How a replica can leave; None, with a note, where none can be spared and no other broker can have one."""
    rest = tuple(each for each in before if each != replica)
    outside = [broker for broker in handle.cluster.brokers if broker not in before]
    spared = len(rest) >= max(1, handle.min_isr)
    if not (spared or outside):
        handle.notes.append("no replica can be spared")
        return None
    without = rest if spared else (*rest, handle.random.choice(outside))
    return _MoveAway(partition, replica, without, (replica, *rest), [])


@dataclass(frozen=True, slots=True)
class CancelledInDoubt(ScriptedLeaderFault):
    """A reassignment is cancelled while committed records rest on the replica that it has added, since original ones
    have left the ISR: it must be refused (Kafka Replication Correctness §6.5.4).

    L leads.

    1. L no longer reaches so many of the other replicas that the rest of the ISR is smaller than min.insync.replicas.
    2. The partition is to move from L to another broker. That catches up and joins the ISR, and with it L commits; but
       too few of the replicas that are to stay are in sync for the move to be complete.
    3. The move is cancelled.
    """

    name: ClassVar[str] = "cancelled-in-doubt"
    number: ClassVar[int] = 12
    proof: ClassVar[tuple[str, ...]] = (*ScriptedLeaderFault.proof, "cancelled", "cancel_refused")
    """The cut with which it begins is an effect, too, where the cluster never comes to the move."""
    weight: ClassVar[float] = 2.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition; None where every broker has a replica, or where a leader commits alone."""
        cluster = draws.cluster
        if not 2 <= cluster.min_insync_replicas <= cluster.replication_factor < len(cluster.brokers):
            return None
        return cls(draws.partition(), draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then, and the replicas of before with it."""
        patience_s, admin = self.patience_ms / 1000, handle.cluster.admin
        (leader,) = await handle.targets.resolve(self.targets())
        before = await claimed(handle, self.partition)
        if not before:
            return
        outside = [broker for broker in handle.cluster.brokers if broker not in before]
        rest = [replica for replica in before if replica != leader]
        if leader not in before or not outside or not 2 <= handle.min_isr <= len(before):
            handle.notes.append("the original replicas cannot be too few")
            return
        new = handle.random.choice(outside)
        handle.random.shuffle(rest)
        apart = rest[handle.min_isr - 2 :]
        handle.targets.add((*apart, new))
        answers: list[AdminResult] = []
        handle.add_undo(lambda: put_back(handle, self.partition, before, answers))
        await handle.hold(both_ways([leader], apart))
        if not await until_isr(handle, self.partition, lambda isr: not set(isr) & set(apart), patience_s):
            handle.notes.append("the other replicas stayed in the ISR")
            return
        await recorded(answers, admin.reassign(handle.topic, self.partition, (new, *rest)))
        if not await until_isr(handle, self.partition, lambda isr: new in isr, patience_s):
            handle.notes.append(f"{new} did not join the ISR")
            return
        await handle.sleep(handle.random.uniform(0.0, 0.5) * patience_s)
        outcome = (await recorded(answers, admin.reassign(handle.topic, self.partition, None))).outcome
        evidence = {DONE: "cancelled", "INVALID_REPLICA_ASSIGNMENT": "cancel_refused"}.get(outcome)
        if evidence is None:
            handle.notes.append(f"not cancelled: {outcome}")
        else:
            handle.count_evidence(evidence)
        await handle.sleep(handle.random.uniform(0.1, 0.5) * patience_s)
