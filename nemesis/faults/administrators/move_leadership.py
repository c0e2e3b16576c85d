"""Leadership of a partition that moves several times in quick succession.

Tools that balance a cluster, such as Cruise Control and Kafka's automatic rebalance, put the replicas of a partition in
another order and have the first of them elected. Each election alone is harmless. Several in a row, within the time in
which followers fetch, leave each leader with records of an epoch that the next one never saw: a follower is then told
of an epoch that it lacks, and has to cut its log in more than one step (docs/protocol.md, section 2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.administrators.admin import Reassign
from nemesis.faults.administrators.replica_moves import claimed, put_back, put_first
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, UNANSWERED, AdminResult, both_ways

_MOVES_MIN, _MOVES_MAX = 2, 6
"""Of a fault that is drawn."""
_CUT_SHARE = 1 / 2
_WRITTEN_WITHIN = 0.4
"""Longest wait for a leader to take records, in multiples of the cluster's patience: a follower that it does not hear
is still in the ISR then."""
_OUTCOMES = {DONE: "moved", "ELECTION_NOT_NEEDED": "not_needed", UNANSWERED: "unanswered"}
"""Answer → what came of a move, as the evidence calls it."""


@dataclass(frozen=True, slots=True)
class MoveLeadership(Fault):
    """Move the leadership of a partition among its replicas several times in quick succession.

    Each move puts a replica first, which is a reassignment that moves no data, and has it elected. The pauses between
    two moves are drawn, most of them short. With `cut` leadership goes to and fro between two brokers that do not reach
    each other meanwhile: both stay in the ISR for a while, and their logs diverge, since each leader takes records
    before the next one is elected. When it heals, the replicas have their order of before; the last leader stays.
    """

    name: ClassVar[str] = "move-leadership"
    number: ClassVar[int] = 10
    family: ClassVar[Family] = Reassign.family
    proof: ClassVar[tuple[str, ...]] = ("moved",)
    ends_by_itself: ClassVar[bool] = True
    in_steps: ClassVar[bool] = True
    weight: ClassVar[float] = 2.0

    partition: int = 0
    moves: int = 4
    cut: bool = False
    patience_ms: float = 2_000.0

    def __post_init__(self) -> None:
        if self.moves < 1:
            raise ValueError(f"moves: {self.moves} is less than 1")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition, if it has several replicas; in half of the draws with a cut."""
        if min(draws.cluster.replication_factor, len(draws.cluster.brokers)) < 2:
            return None
        partition, moves = draws.partition(), draws.random.randint(_MOVES_MIN, _MOVES_MAX)
        return cls(partition, moves, draws.random.random() < _CUT_SHARE, draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """One move after the other; one that is refused is not made up for."""
        before = await claimed(handle, self.partition)
        if len(before) == 1:
            handle.notes.append("no other replica may lead")
        if len(before) < 2:
            return
        leader, among = await handle.targets.leader(self.partition), before
        if self.cut:
            among = _pair(handle, before, leader)
            handle.targets.add(among)
            await handle.hold(both_ways(among[:1], among[1:]))
        answers: list[AdminResult] = []
        handle.add_undo(lambda: put_back(handle, self.partition, before, answers))
        for number in range(self.moves):
            if self.cut and leader is not None:
                await self._written(handle, leader)
            if number:  # requests need no injection: a pause between two may be shorter than that
                await asyncio.sleep(handle.random.random() ** 3 * self.patience_ms / 1000)
            coming = handle.random.choice([replica for replica in among if replica != leader])
            handle.targets.add((coming,))
            answer = await put_first(handle, self.partition, coming, before, answers)
            handle.count_evidence(_OUTCOMES.get(answer, "refused"))
            if answer == DONE:
                leader = coming

    async def _written(self, handle: FaultHandle, leader: str) -> None:
        """Wait for a short time until the log of the leader is longer."""
        ends = handle.situation.partition(self.partition).log_ends
        before, limit_s = ends.get(leader, 0), _WRITTEN_WITHIN * self.patience_ms / 1000
        await handle.situation.until_within(lambda: ends.get(leader, 0) > before, limit_s)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """A cut between brokers that are the controllers, too, may leave none of them active."""
        return bool(cluster.controllers) or not self.cut

    def describe(self) -> str:
        """How often, and what is cut."""
        return f"{self.name} ({self.moves} times{', between brokers that are cut off' if self.cut else ''})"


def _pair(handle: FaultHandle, replicas: Sequence[str], leader: str | None) -> tuple[str, str]:
    """The leader, or any replica while there is none, and another replica."""
    one = leader if leader is not None and leader in replicas else handle.random.choice(replicas)
    return one, handle.random.choice([replica for replica in replicas if replica != one])
