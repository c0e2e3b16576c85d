"""Scripted faults in which a message arrives after it has ceased to be true.

A leader acts on its view of followers and metadata, and its requests take time to arrive. Each fault here
(`nemesis.faults.scripted.script`) holds one message back until it is no longer true, and then delivers it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar, Self

from nemesis.drawing import Draws
from nemesis.faults.admin import claimed, put_back, recorded
from nemesis.faults.scripted.script import ScriptedLeaderFault
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, AdminResult, Link, both_ways, one_way


@dataclass(frozen=True, slots=True)
class LateProposal(ScriptedLeaderFault):
    """A leader's request to keep a follower in the ISR arrives when that has left it and fallen behind (Kafka
    Replication Correctness §6.3).

    L leads, K and F follow.

    1. L no longer hears K, and will want it out of the ISR. F falls silent towards the controllers.
    2. Messages from L to the controllers are held, among them the request for the ISR {L, F}.
    3. F is fenced, and L hears of it. L hears K again and no longer F: it commits with K alone.
    4. F is back with the controllers, unfenced in the same broker epoch. Then the request arrives.
    """

    name: ClassVar[str] = "late-proposal"
    number: ClassVar[int] = 5

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s = self.patience_ms / 1000
        controllers = handle.cluster.controllers
        brokers = await self.leader_and_two(handle)
        if brokers is None:
            return
        leader, follower, laggard = brokers
        hear = await handle.cut([Link(laggard, leader)])
        await handle.sleep(handle.random.uniform(0.35, 0.6) * patience_s)
        reunite = await handle.cut(both_ways([follower], controllers))
        await handle.sleep(handle.random.uniform(0.4, 0.5) * patience_s)
        unheard = await handle.cut(one_way([leader], controllers))
        await handle.sleep(handle.random.uniform(0.52, 0.6) * patience_s)
        await handle.cut(both_ways([follower], [leader]))
        await hear()
        await reunite()
        await handle.sleep(handle.random.uniform(0.2, 0.3) * patience_s)
        await unheard()
        await handle.sleep(patience_s)


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
        (leader,) = await handle.resolve(self.targets())
        before = await claimed(handle, self.partition)
        if not before:
            return
        followers = [replica for replica in before if replica != leader]
        if leader not in before or len(before) <= handle.min_isr or not followers:
            handle.notes.append("no replica can be spared")
            return
        follower = handle.random.choice(followers)
        handle.add_targets((follower,))
        rest = tuple(replica for replica in before if replica != follower)

        answers: list[AdminResult] = []

        handle.add_undo(lambda: put_back(handle, self.partition, before, answers))
        hear = await handle.cut(one_way([leader], handle.cluster.controllers))
        await handle.sleep(handle.random.uniform(0.3, 0.4) * patience_s)
        removed = await recorded(answers, admin.reassign(handle.topic, self.partition, rest))
        await asyncio.sleep(handle.random.uniform(0.002, 0.02) * patience_s)  # requests need no injection
        returned = await admin.reassign(handle.topic, self.partition, before)
        if DONE == removed.outcome == returned.outcome:
            handle.count_evidence("reassigned")
        await handle.cut(one_way(followers, [leader]))
        await hear()
        await handle.sleep(handle.random.uniform(0.6, 1.5) * patience_s)
