"""Scripted faults in which replicas of a partition are taken off brokers and put back.

A reassignment changes on which brokers committed records rest, and deletes logs. Each fault here
(`nemesis.faults.scripted.script`) has something else go wrong in the middle of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.admin import put_back, recorded
from nemesis.faults.fault import Fault
from nemesis.faults.scripted.script import ScriptedPowerLoss, until_occurred, until_seen
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, AdminResult, Evidence, KeepUnsynced
from nemesis.situation import Event, Occurrence

_ROUNDS: Final = 3
"""How often a replica is taken off and put back: a power loss often keeps all of a deletion, or nothing of it."""
_LOOK: Final = 0.1
"""Polling interval of what an administrator sees, in multiples of the cluster's patience."""


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
    proof: ClassVar[tuple[str, ...]] = ("lost_names",)
    weight: ClassVar[float] = 2.0

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
        (victim,) = await handle.resolve((self.victim,))
        partition, before = await self._claim(handle, victim)
        if not before:
            return
        rest = tuple(replica for replica in before if replica != victim)
        outside = [broker for broker in handle.cluster.brokers if broker not in before]
        spared = len(rest) >= max(1, handle.min_isr)
        if not (spared or outside):
            handle.notes.append("no replica can be spared")
            return
        without = rest if spared else (*rest, handle.random.choice(outside))
        answers: list[AdminResult] = []
        handle.add_undo(lambda: put_back(handle, partition, before, answers))
        for _ in range(_ROUNDS):
            if not await self._round(handle, partition, (victim, *rest), without, answers):
                return

    async def _claim(self, handle: FaultHandle, victim: str) -> tuple[int, tuple[str, ...]]:
        """A partition of which the victim holds a replica, if possible `partition`, reserved for this fault, with its
        replicas; without replicas, and with a note, if there is none that could be moved."""
        places = await handle.cluster.leaders()
        others = [index for topic, index in sorted(places) if topic == handle.topic and index != self.partition]
        for partition in (self.partition, *others):
            before = await handle.cluster.admin.replicas(handle.topic, partition)
            if victim in before and not handle.is_moving(before) and handle.claim_placement(partition):
                return partition, before
        handle.notes.append(f"{victim} holds no replica that no other fault is moving")
        return self.partition, ()

    async def _round(
        self,
        handle: FaultHandle,
        partition: int,
        with_victim: Sequence[str],
        without: Sequence[str],
        answers: list[AdminResult],
    ) -> bool:
        """Take the first of `with_victim` off the partition and put it back; whether it came to be in the ISR again."""
        admin, patience_s, victim = handle.cluster.admin, self.patience_ms / 1000, with_victim[0]
        since, resigned = len(handle.situation.events), Event(Occurrence.RESIGNED, victim, partition)
        removed = await recorded(answers, admin.reassign(handle.topic, partition, without))
        if removed.outcome != DONE:
            handle.notes.append(f"not taken off: {removed.outcome}")
            return False
        # The deletion is the same step. Where no trace shows it, a replica that is not moved is gone by then.
        limit_s = (0.2 if len(without) < len(with_victim) else 2.0) * patience_s
        await until_occurred(handle, lambda event: event == resigned, since, limit_s)
        start = await handle.power_off(victim, self.keep)
        await recorded(answers, admin.reassign(handle.topic, partition, with_victim))
        await handle.sleep(handle.random.uniform(0.0, 0.2) * patience_s)
        await start()

        async def in_sync() -> bool | None:
            view = await admin.describe(handle.topic)
            return (view is not None and victim in view.partitions[partition].isr) or None

        if await until_seen(handle, in_sync, 3 * patience_s, every_s=_LOOK * patience_s) is None:
            handle.notes.append(f"{victim} did not come back into the ISR")
            return False
        await admin.elect_preferred(handle.topic, partition)
        await handle.sleep(handle.random.uniform(0.2, 0.6) * patience_s)
        return True

    def took_effect(self, evidence: Evidence) -> bool:
        """A part of the deletion was lost, or all of it. That every write was synced says nothing about names."""
        return Fault.took_effect(self, evidence)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """The victim must hold a replica."""
        return cluster.every_broker_has_replicas

    def targets(self) -> tuple[str, ...]:
        """The victim."""
        return (self.victim,)
