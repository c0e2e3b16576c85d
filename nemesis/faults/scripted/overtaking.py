"""Scripted faults in which a message arrives after it has ceased to be true.

A leader acts on its view of followers and metadata, and its requests take time to arrive. Each fault here
(`nemesis.faults.scripted.script`) holds one message back until it is no longer true, and then delivers it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar, Final, NamedTuple, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.administrators.replica_moves import claimed, put_back
from nemesis.faults.administrators.requests import recorded
from nemesis.faults.message import API_KEYS, NodeRequest
from nemesis.faults.scripted.script import (
    ISR_LIMIT,
    ScriptedFault,
    ScriptedLeaderFault,
    ScriptedPowerLoss,
    held_by,
    leaders_of_topic,
    until_event,
    until_isr,
    until_led_by,
    until_occurred,
    until_seen,
    until_taken,
)
from nemesis.handle import FaultHandle
from nemesis.ports import (
    DONE,
    AdminResult,
    EnvironmentCapability,
    KeepUnsynced,
    Link,
    MessageEffect,
    MessagePart,
    MessageRule,
    both_ways,
    one_way,
)
from nemesis.situation import Event, Occurrence


@dataclass(frozen=True, slots=True)
class LateProposal(ScriptedLeaderFault):
    """A leader's request to keep a follower in the ISR arrives after the follower has left it and fallen behind (Kafka
    Replication Correctness §6.3).

    L leads, K and F follow.

    1. L no longer hears K, and wants it out of the ISR: its request for the ISR {L, F} is held.
    2. F falls silent towards the controllers until it is fenced, and L hears of it.
    3. L hears K again by then, and no longer F: it commits with K alone.
    4. F is back with the controllers, unfenced in the same broker epoch. Then the request arrives.

    Where messages cannot be told apart, L falls silent towards the controllers after F has, for a while in which it may
    send the request and is not fenced itself: no step waits for the one before.
    """

    name: ClassVar[str] = "late-proposal"
    number: ClassVar[int] = 5

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s = self.patience_ms / 1000
        brokers = await self.leader_and_two(handle)
        if brokers is None:
            return
        leader, follower, laggard = brokers
        controllers = handle.cluster.controllers
        requests, silence = one_way([leader], controllers), both_ways([follower], controllers)
        by_messages = EnvironmentCapability.MESSAGES not in handle.cluster.unsupported
        if by_messages:
            rule = MessageRule(API_KEYS[NodeRequest.ALTER_PARTITION], MessagePart.REQUEST, MessageEffect.HOLD, count=0)
            let_pass, taken = await handle.intercept(requests, rule)
            hear = await handle.hold([Link(laggard, leader)])
            if not await until_taken(handle, taken, ISR_LIMIT * patience_s):
                handle.notes.append(f"{leader} did not want {laggard} out of the ISR")
                return
            await hear()  # it is in the ISR until the request arrives, and needs a while to be connected again
            since = len(handle.situation.events)
            reunite = await handle.hold(silence)
            await until_event(handle, Event(Occurrence.FENCED, follower), since, 2 * patience_s)
        else:
            hear = await handle.hold([Link(laggard, leader)])
            await handle.sleep(handle.random.uniform(0.35, 0.6) * patience_s)
            reunite = await handle.hold(silence)
            await handle.sleep(handle.random.uniform(0.4, 0.5) * patience_s)
            let_pass = await handle.hold(requests)
            await handle.sleep(handle.random.uniform(0.52, 0.6) * patience_s)
        since = len(handle.situation.events)
        await handle.hold(both_ways([follower], [leader]))
        await hear()
        await reunite()
        if by_messages:  # else every message of the leader is held, and it would be fenced itself
            await until_event(handle, Event(Occurrence.UNFENCED, follower), since, patience_s)
        await handle.sleep(handle.random.uniform(0.2, 0.3) * patience_s)
        await let_pass()
        await handle.sleep(patience_s)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """The leader wants nobody out of an ISR that has not two followers."""
        return min(cluster.replication_factor, len(cluster.brokers)) > 2


@dataclass(frozen=True, slots=True)
class LateJoin(ScriptedPowerLoss):
    """A leader's request to let a follower into the ISR arrives after the follower has lost its data and is registered
    anew (KIP-903).

    L leads, the victim follows; a victim that follows nowhere stalls first until another broker leads.

    1. L and the victim do not reach each other until that is out of the ISR.
    2. They do again, and the victim catches up; the request of L for the ISR with the victim is held, and so is every
       repetition.
    3. The victim loses power with everything unsynced, and starts again cut from L, until the controllers have unfenced
       its new incarnation.
    4. The request arrives. The others stall, so that the victim may be elected.

    Unlike in `stale-broker-epoch` L is heard by the controllers all the time, and each step waits for the one before.
    """

    name: ClassVar[str] = "late-join"
    number: ClassVar[int] = 15

    partition: int = 0
    """Another one, if the victim has no replica of it, or leads it and follows elsewhere."""
    keep: KeepUnsynced = KeepUnsynced.NOTHING
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """A victim that loses everything unsynced; None where no broker may, or where an ISR without the victim is so
        small that it stays eligible: its new incarnation then changes the partition, and the request is outdated."""
        if not draws.profile.victims or draws.cluster.replication_factor <= draws.cluster.min_insync_replicas:
            return None
        return cls(draws.victim(), draws.partition(), KeepUnsynced.NOTHING, draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s, controllers = self.patience_ms / 1000, handle.cluster.controllers
        victim = await handle.targets.resolve_one(self.victim)
        partition = await held_by(handle, victim, self.partition)
        if partition is None:
            return
        if await handle.targets.leader(partition) == victim:
            wake = await handle.pause(victim)
            await handle.sleep(1.3 * patience_s)
            await wake()
        (leader,) = await handle.targets.resolve((f"leader/{partition}",))
        if leader == victim:
            handle.notes.append("the victim leads")
            return
        reunite = await handle.hold(both_ways([leader], [victim]))
        if not await until_isr(handle, partition, lambda isr: victim not in isr, patience_s):
            handle.notes.append(f"{victim} stayed in the ISR")
            return
        rule = MessageRule(API_KEYS[NodeRequest.ALTER_PARTITION], MessagePart.REQUEST, MessageEffect.HOLD, count=0)
        let_pass, taken = await handle.intercept(one_way([leader], controllers), rule)
        await reunite()
        if not await until_taken(handle, taken, _JOIN_LIMIT * patience_s):
            handle.notes.append(f"{victim} was not proposed")
            return
        await handle.sleep(handle.random.uniform(0.05, 0.15) * patience_s)  # other partitions may have come first
        since, unfenced = len(handle.situation.events), Event(Occurrence.UNFENCED, victim)
        start = await handle.power_off(victim, self.keep)
        await handle.hold(both_ways([leader], [victim]))
        await handle.sleep(handle.random.uniform(0.05, 0.3) * patience_s)
        await start()
        if not await until_occurred(handle, lambda event: event == unfenced, since, _JOIN_LIMIT * patience_s):
            handle.notes.append(f"{victim} was not unfenced")
            return
        await let_pass()
        await handle.sleep(handle.random.uniform(0.05, 0.5) * patience_s)
        for node in handle.cluster.brokers:
            if node != victim:
                await handle.pause(node)
        await handle.sleep(handle.random.uniform(1.2, 2.0) * patience_s)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Messages that can be told apart."""
        return frozenset({EnvironmentCapability.MESSAGES})

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """The victim must hold a replica."""
        return cluster.every_broker_has_replicas

    def targets(self) -> tuple[str, ...]:
        """The victim, and the leader of the partition."""
        return (self.victim, f"leader/{self.partition}")


@dataclass(frozen=True, slots=True)
class RemovedAndBack(ScriptedLeaderFault):
    """A replica is removed and added again before its leader hears of either, and what the leader knew of it is no
    longer true: it is empty now (Kafka Replication Correctness §6.5.4).

    1. Messages from the leader to the controllers are held, until it has requested the metadata and waits for it.
    2. A follower is taken off the partition, deletes its log, and is put back.
    3. Messages from followers to the leader are held, so that it commits nothing more; then it reads
       both changes at once.
    """

    name: ClassVar[str] = "removed-and-back"
    number: ClassVar[int] = 6
    proof: ClassVar[tuple[str, ...]] = ("reassigned",)
    removes_replicas: ClassVar[bool] = True

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition, where a replica can be spared."""
        if not draws.cluster.replica_can_be_spared:
            return None
        return cls(partition=draws.partition(), patience_ms=draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then, and so does the replica."""
        patience_s, admin = self.patience_ms / 1000, handle.cluster.admin
        (leader,) = await handle.targets.resolve(self.targets())
        before = await claimed(handle, self.partition)
        if not before:
            return
        followers = [replica for replica in before if replica != leader]
        if leader not in before or len(before) <= handle.min_isr or not followers:
            handle.notes.append("no replica can be spared")
            return
        follower = handle.random.choice(followers)
        handle.targets.add((follower,))
        rest = tuple(replica for replica in before if replica != follower)

        answers: list[AdminResult] = []

        handle.add_undo(lambda: put_back(handle, self.partition, before, answers))
        hear = await handle.hold(one_way([leader], handle.cluster.controllers))
        await handle.sleep(handle.random.uniform(0.3, 0.4) * patience_s)
        removed = await recorded(answers, admin.reassign(handle.topic, self.partition, rest))
        await asyncio.sleep(handle.random.uniform(0.002, 0.02) * patience_s)  # requests need no injection
        returned = await admin.reassign(handle.topic, self.partition, before)
        if DONE == removed.outcome == returned.outcome:
            handle.count_evidence("reassigned")
        await handle.hold(one_way(followers, [leader]))
        await hear()
        await handle.sleep(handle.random.uniform(0.6, 1.5) * patience_s)


_JOIN_LIMIT: Final = 4.0
"""Longest wait for a follower to catch up, and for a broker to register anew, in multiples of the patience."""
_ROUNDS: Final = 3
"""How often an answer is late: each time something else may have been committed in time, or nothing."""
_PLACE_LOOK, _PLACE_LIMIT = 0.1, 6.0
"""Polling interval of a place with records, and the longest wait for one, in multiples of the cluster's patience."""
_AWAITED_S: Final = 1.0
"""Less than a follower waits for an answer."""


class _EpochAnswerPlace(NamedTuple):
    """A partition and brokers by their parts in `LateEpochAnswer`: L, K and F."""

    partition: int
    leader: str
    successor: str
    follower: str


@dataclass(frozen=True, slots=True)
class LateEpochAnswer(ScriptedFault):
    """A leader's answer about the end of an epoch arrives when its follower has a new leader, and records of it
    (KIP-320).

    L, K and F hold the partition; L leads another one, which F follows, so that F stays connected to L.

    1. K leads. L is elected, and F asks it where the epoch of its last record ends: the answer is held.
    2. K is elected again. F asks it the same, and fetches what has been written since.
    3. The answer of L arrives, and F is elected.
    """

    name: ClassVar[str] = "late-epoch-answer"
    number: ClassVar[int] = 13
    proof: ClassVar[tuple[str, ...]] = ("intercepted",)
    acts_within: ClassVar[float] = 3.0
    weight: ClassVar[float] = 12.0
    """It is possible in few worlds."""

    partition: int = 0
    """Another one, if this has no records, or no such replicas."""
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition; None where followers ask no such thing, or replicas or partitions are too few."""
        cluster = draws.cluster
        if not cluster.queries_epochs or cluster.partitions < 2 or cluster.replication_factor < 3:
            return None
        return cls(draws.partition(), draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then, and so does the order of replicas."""
        patience_s, admin = self.patience_ms / 1000, handle.cluster.admin
        place = await until_seen(
            handle, lambda: self._place(handle), _PLACE_LIMIT * patience_s, every_s=_PLACE_LOOK * patience_s
        )
        if place is None:
            handle.notes.append("no three replicas of a partition with records are connected by another one")
            return
        before = await claimed(handle, place.partition)
        if not before:
            return
        partition, *brokers = place
        handle.targets.add(brokers)
        answers: list[AdminResult] = []
        handle.add_undo(lambda: put_back(handle, partition, before, answers))

        async def prefer(broker: str) -> None:
            order = (broker, *(replica for replica in before if replica != broker))
            await recorded(answers, admin.reassign(handle.topic, partition, order))

        async def elect(broker: str) -> bool:
            await prefer(broker)
            await admin.elect_preferred(handle.topic, partition)
            return await until_led_by(handle, partition, broker, patience_s)

        for _ in range(_ROUNDS):
            if not await elect(place.successor):
                return
            rule = MessageRule(API_KEYS[NodeRequest.OFFSET_FOR_LEADER_EPOCH], MessagePart.RESPONSE, MessageEffect.HOLD)
            let_pass, taken = await handle.intercept(one_way([place.follower], [place.leader]), rule)
            if not await elect(place.leader):
                return
            if not await until_taken(handle, taken, 2 * patience_s):
                handle.notes.append("nothing was asked")
                return
            await elect(place.successor)
            await self._another_committed(handle, partition)
            await prefer(place.follower)
            await let_pass()
            await admin.elect_preferred(handle.topic, partition)
            await handle.sleep(handle.random.uniform(0.2, 0.5) * patience_s)

    async def _another_committed(self, handle: FaultHandle, partition: int) -> None:
        """Wait until the new leader has committed something, as far as it tells in time."""
        first = -1

        async def more() -> bool | None:
            nonlocal first
            offsets = await handle.cluster.admin.offsets(handle.topic, partition)
            end = -1 if offsets is None else offsets[1]
            first = end if first < 0 else first
            return end > first or None

        await until_seen(handle, more, _AWAITED_S)

    async def _place(self, handle: FaultHandle) -> _EpochAnswerPlace | None:
        """A partition with records, if possible `partition`, and three of its replicas: one that leads another
        partition, one that is to lead, and one that follows the first of them in both. None without."""
        admin, leaders = handle.cluster.admin, await leaders_of_topic(handle)
        replicas = {index: await admin.replicas(handle.topic, index) for index in leaders}
        for partition in sorted(leaders, key=lambda index: (index != self.partition, index)):
            offsets = await admin.offsets(handle.topic, partition)
            if offsets is None or offsets[1] == 0:
                continue
            possible = [
                _EpochAnswerPlace(partition, leader, successor, follower)
                for index, leader in leaders.items()
                for successor, follower in permutations([each for each in replicas[partition] if each != leader], 2)
                if index != partition and leader in replicas[partition] and follower in replicas[index]
            ]
            if possible:
                return handle.random.choice(possible)
        return None

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Messages that can be told apart."""
        return frozenset({EnvironmentCapability.MESSAGES})

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """Every broker must hold every partition for the replicas to be connected by another one in any case."""
        return cluster.replication_factor >= len(cluster.brokers)
