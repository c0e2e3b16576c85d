"""Scripted faults of a follower that catches up while others act; see `nemesis.faults.scripted.script`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from nemesis.drawing import Draws
from nemesis.faults.administrators.replica_moves import claimed, put_back
from nemesis.faults.administrators.requests import recorded
from nemesis.faults.message import API_KEYS, NodeRequest
from nemesis.faults.scripted.script import ScriptedLeaderFault, until_isr
from nemesis.handle import FaultHandle
from nemesis.ports import (
    AdminResult,
    EnvironmentCapability,
    LinkQuality,
    MessageEffect,
    MessagePart,
    MessageRule,
    one_way,
)

_READS: Final = 4


@dataclass(frozen=True, slots=True)
class SlowCatchUp(ScriptedLeaderFault):
    """A new leader is asked for the end of its log while a member of the ISR still fetches what the last leader had: a
    high watermark below the leader epoch start offset is no answer (Kafka Replication Correctness §6.4.2).

    L leads, K and F follow.

    1. Requests of L and K for ISR changes are held, so that F stays in the ISR however long it is behind.
    2. F no longer hears L. L appends and K follows, and no high watermark passes what F lacks.
    3. K is elected. F fetches the rest from it, in small and slow pieces.
    4. Meanwhile the end of the log is read, a few times.
    """

    name: ClassVar[str] = "slow-catch-up"
    number: ClassVar[int] = 16
    weight: ClassVar[float] = 3.0
    """It is possible in few worlds, and takes much that is written."""

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition; None where one fetch catches up, or where replicas are too few."""
        if not draws.cluster.fetches_are_small or draws.cluster.replication_factor < 3:
            return None
        return cls(draws.partition(), draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then, and so does the order of replicas."""
        patience_s, admin = self.patience_ms / 1000, handle.cluster.admin
        (leader,) = await handle.targets.resolve(self.targets())
        before = await claimed(handle, self.partition)
        followers = [replica for replica in before if replica != leader]
        if leader not in before or len(followers) < 2:
            handle.notes.append("two followers are needed")
            return
        handle.random.shuffle(followers)
        successor, follower, *_ = followers
        handle.targets.add((successor, follower))
        if not await until_isr(handle, self.partition, {leader, successor, follower}.issubset, patience_s):
            handle.notes.append("the followers are not in the ISR")
            return
        answers: list[AdminResult] = []
        handle.add_undo(lambda: put_back(handle, self.partition, before, answers))
        order = (successor, *(replica for replica in before if replica != successor))
        await recorded(answers, admin.reassign(handle.topic, self.partition, order))
        rule = MessageRule(API_KEYS[NodeRequest.ALTER_PARTITION], MessagePart.REQUEST, MessageEffect.HOLD, count=0)
        await handle.intercept(one_way([leader, successor], handle.cluster.controllers), rule)
        slow = LinkQuality(delay_ms=handle.random.uniform(0.05, 0.12) * self.patience_ms)
        await handle.degrade(one_way([successor], [follower]), slow)
        hear = await handle.hold(one_way([leader], [follower]))
        await handle.sleep(handle.random.uniform(1.2, 2.4) * patience_s)
        await admin.elect_preferred(handle.topic, self.partition)
        for _ in range(_READS):  # the first one, if possible, before the follower has asked for anything
            await admin.offsets(handle.topic, self.partition)
            await handle.sleep(handle.random.uniform(0.0, 0.05) * patience_s)
        await hear()

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Slow answers, so that the follower is behind for a while, and messages that can be told apart."""
        return frozenset({EnvironmentCapability.DELAY, EnvironmentCapability.MESSAGES})
