"""An operator who brings a partition back that has no leader.

With `unclean.recovery.strategy=manual` nothing else does where nobody is left who is known to hold every committed
record: the operator gives up what the others lack (`kafka-leader-election --election-type unclean`, KIP-460). The same
serves where those who hold them are only away. It is drawn for runs alone that name this strategy: from such an
election on a partition may have lost records, and is judged no more by what it lost (`checkers.unclean_elections`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.conditions import NOBODY, LedBy
from nemesis.drawing import Draws
from nemesis.faults.administrators.admin import Reassign
from nemesis.faults.administrators.requests import NotDone
from nemesis.faults.fault import Family, Fault
from nemesis.faults.scripted.script import until_event
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, UNANSWERED, both_ways
from nemesis.situation import Event, Occurrence

_STAGED_SHARE: Final = 0.7
_AGAIN_SHARE: Final = 0.5
_LOOKS_AGAIN: Final = 0.1
"""Time after which an operator who was refused looks again, in multiples of the cluster's patience."""
_LEAVES_LIMIT: Final = 4.0
"""Longest wait for the follower to leave the ISR, in the same."""
_STAGED_WITHIN: Final = 5.0
"""Time for a follower to leave the ISR, for those in it to stop, and for the election, in the same."""
_NOT_NEEDED: Final = "ELECTION_NOT_NEEDED"
_OUTCOMES: Final = {DONE: "elected", _NOT_NEEDED: "not_needed", UNANSWERED: "unanswered"}
"""Answer → what came of a request, as the evidence calls it."""


@dataclass(frozen=True, slots=True)
class ElectUnclean(Fault):
    """Wait until a partition has no leader, and have any live replica elected.

    Whoever asks waits a moment first, in most draws a short one, and asks until it is done. As few replicas have what
    is committed then, the partition may lose its leader for good once more: the same is asked again when everything is
    healed, and until the cluster has recovered. With `staged` the partition comes to have no leader: a follower is cut
    off from the others until it has left the ISR, and all members of the ISR stop cleanly, so that they lose nothing
    but what the follower lacks. They are back when the fault heals.
    """

    name: ClassVar[str] = "elect-unclean"
    number: ClassVar[int] = 11
    family: ClassVar[Family] = Reassign.family
    weight: ClassVar[float] = 4.0
    """There are few runs for it."""
    proof: ClassVar[tuple[str, ...]] = ("elected", "stopped", "held", "refused")
    """Links are cut, and brokers stop, also where the run ends before the request."""
    in_steps: ClassVar[bool] = True

    partition: int = 0
    again_ms: float | None = None
    """So long after it was done the same is asked once more, as by a tool that has not heard the answer; None: it is
    not."""
    staged: bool = False
    patience_ms: float = 2_000.0

    def __post_init__(self) -> None:
        if self.again_ms is not None and self.again_ms < 0:
            raise ValueError(f"again_ms: {self.again_ms:g} is less than 0")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition; None where others bring it back, too. A share of the draws ask twice, and one is staged where
        a follower may leave the ISR without becoming a member of the ELR."""
        cluster, random = draws.cluster, draws.random
        if not cluster.waits_for_operator:
            return None
        partition, staged, again = draws.partition(), random.random(), random.random() < _AGAIN_SHARE
        again_ms = float(round(random.random() * draws.patience_ms)) if again else None
        if not cluster.controllers or not cluster.replica_can_be_spared or staged >= _STAGED_SHARE:
            return cls(partition, again_ms, patience_ms=draws.patience_ms)
        return cls(draws.written(partition), again_ms, True, draws.isr_patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Ask until it is done, maybe once more."""
        admin, patience_s = handle.cluster.admin, self.patience_ms / 1000
        if self.staged:
            await self._end_isr(handle)
        leaderless, outcome = LedBy(NOBODY, self.partition), ""
        while True:
            await handle.situation.until(lambda: leaderless.holds(handle.situation, 0))
            # Requests need no injection: a pause before one may be shorter than that.
            await asyncio.sleep(handle.random.random() ** 3 * patience_s)
            # Also where the answer is lost, and the request is carried out late.
            handle.confirm_at_end(f"electing a leader of partition {self.partition}", lambda: self._confirm(handle))
            outcome = (await admin.elect_unclean(handle.topic, self.partition)).outcome
            handle.count_evidence(_OUTCOMES.get(outcome, "not_elected"))
            if outcome == DONE:
                break
            await asyncio.sleep(_LOOKS_AGAIN * patience_s)
        if self.again_ms is not None:
            await asyncio.sleep(self.again_ms / 1000)
            again = (await admin.elect_unclean(handle.topic, self.partition)).outcome
            handle.count_evidence(_OUTCOMES.get(again, "not_elected"))

    async def _confirm(self, handle: FaultHandle) -> None:
        outcome = (await handle.cluster.admin.elect_unclean(handle.topic, self.partition)).outcome
        if outcome not in (DONE, _NOT_NEEDED):
            raise NotDone(outcome)

    async def _end_isr(self, handle: FaultHandle) -> None:
        """Keep a follower from the other members of the ISR until it has left that, and stop these, the leader last."""
        leader = await handle.targets.leader(self.partition)
        isr = handle.situation.partition(self.partition).isr
        followers = [member for member in isr if member != leader]
        if leader is None or not followers:
            handle.notes.append("there is no follower to be left behind")
            return
        behind, since = handle.random.choice(followers), len(handle.situation.events)
        others = [*(member for member in followers if member != behind), leader]
        handle.targets.add((behind,))
        await handle.hold(both_ways(others, [behind]))
        limit_s = _LEAVES_LIMIT * self.patience_ms / 1000
        if await until_event(handle, Event(Occurrence.LEFT_ISR, behind, self.partition), since, limit_s):
            for broker in others:
                await handle.stop(broker)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """Where it stops the leader itself; while nothing else goes wrong there is one."""
        return self.staged

    def least_s(self, cluster: ClusterShape) -> float:
        """Until it has asked, where it brings about that there is no leader."""
        return _STAGED_WITHIN * cluster.isr_patience_s + (self.again_ms or 0.0) / 1000 if self.staged else 0.0

    def describe(self) -> str:
        """Whether the partition comes to have no leader."""
        return f"{self.name} (partition {self.partition}{', whose ISR stops' if self.staged else ''})"
