"""Deletions of records, at moments when not every replica has heard of what the leader's log has.

Deletion moves the start of a log, which its replicas follow one after the other, each writing it down by itself. What a
replica has beside it may end below that start: one that is behind, and one that loses what it had not synced.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.administrators.admin import Reassign
from nemesis.faults.administrators.replica_moves import claimed, put_back, put_first
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, AdminResult, KeepUnsynced, both_ways
from nemesis.situation import Event, Occurrence

TO_HIGH_WATERMARK: Final = -1
"""The offset by which an administrator asks for everything below the high watermark to be deleted."""
_TO_HIGH_WATERMARK_SHARE: Final = 0.1
_LOSING_SHARE: Final = 0.4
"""Of the deletions in runs in which brokers may lose data: one does as soon as records are deleted."""
_RETRY_S: Final = 0.5
_BEHIND_WITHIN: Final = 3.0
"""Time for a follower to leave the ISR, and for the request after that, in multiples of the patience."""
_MOMENTS: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 0.925)
"""Where the share of each moment begins, and that of the last one ends: in the rest nothing is waited for."""
_WAITING_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class DeleteRecords(Fault):
    """Delete the records of a partition below a random offset up to its high watermark, in one of ten below all of it.

    Lower offsets are likelier, so that most records stay to be checked. With `stalled` the leader is cut off from the
    other brokers first, for a part of the patience, and everything below the high watermark is deleted: what has been
    appended meanwhile is not committed, and must stay. With `after_election` the request is sent as soon as another
    leader is elected, for which it waits as long as the patience at most: that leader has not heard yet where the logs
    of its followers start. With `moved` leadership moves to a replica that the leader before does not reach any more,
    and the request is sent then: that member of the ISR has told the new leader nothing. With `behind` a follower is
    cut off from the leader until it has left the ISR, and records are deleted that it has not: it begins anew where the
    log of its leader starts, maybe in the middle of a batch. With `alone` the followers are cut off from everybody
    until the leader is alone in its ISR, and the request is sent then: a follower that is in the ELR may lead, and
    still has the records. With `waits`, too, it is sent once they are cut off, and waits until they are out of the ISR.

    The power of the `nodes`, which may lose data, is cut when the request is answered, and they start again at once:
    what is left of their logs may end below the start that they have written down.

    Deleted records stay deleted: nothing is undone. `asked_below` in the evidence is the offset requested, whether or
    not a broker answered; for "below the high watermark" it is not known, and `to_high_watermark` is counted instead.
    """

    name: ClassVar[str] = "delete-records"
    number: ClassVar[int] = 7
    family: ClassVar[Family] = Reassign.family
    weight: ClassVar[float] = 3.0
    """It is several faults: at one moment or another, and with a loss or without."""
    ends_by_itself: ClassVar[bool] = True
    proof: ClassVar[tuple[str, ...]] = ("deleted", "begun", "held")
    """Messages are held where its leader is cut off first, also if the run ends before the request."""
    in_steps: ClassVar[bool] = True
    deletes_records: ClassVar[bool] = True

    partition: int = 0
    stalled: bool = False
    after_election: bool = False
    moved: bool = False
    behind: bool = False
    alone: bool = False
    waits: bool = False
    patience_ms: float = 2_000.0
    nodes: tuple[str, ...] = ()
    keep: KeepUnsynced = KeepUnsynced.NOTHING
    """How much of what they had not synced the `nodes` keep."""

    def __post_init__(self) -> None:
        if self.waits and not self.alone:
            raise ValueError("waits: only a request to a leader that is to be alone waits for that")
        if self.stalled + self.after_election + self.moved + self.behind + self.alone > 1:
            raise ValueError(
                "stalled, after_election, moved, behind and alone: a request is sent at one such moment only"
            )

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition, of a stalled leader in one of five, of a new one in as many, of a moved one, and with a
        follower that is behind in as many, and of a leader alone in one of eight. Where brokers may lose data, one does
        in two of five."""
        partition, when = draws.partition(), draws.random.random()
        stalled, after_election, moved, behind, alone = (first <= when < end for first, end in pairwise(_MOMENTS))
        waits = alone and draws.random.random() < _WAITING_SHARE
        patience_ms = draws.isr_patience_ms if behind else draws.patience_ms
        struck = draws.written(partition) if behind else partition
        drawn = cls(struck, stalled, after_election, moved, behind, alone, waits, patience_ms)
        if not draws.profile.victims or draws.random.random() >= _LOSING_SHARE:
            return drawn
        return replace(drawn, nodes=(draws.victim(),), keep=draws.keep())

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """The nodes whose power is cut."""
        return self.nodes

    async def inject(self, handle: FaultHandle) -> None:
        """Send the request once, as soon as a leader reports where the log starts and ends: for that a new one has to
        hear of its followers, so it is asked before the election."""
        if self.stalled:
            await self._stall(handle)
        offset = await self._draw(handle, await self._leave_behind(handle) if self.behind else None)
        if self.after_election:
            await self._await(handle, Occurrence.ELECTED)
        if self.moved:
            await self._move_leadership(handle)
        if self.alone:
            await self._leave_alone(handle)
        if offset == TO_HIGH_WATERMARK:
            handle.count_evidence("to_high_watermark")
        else:
            handle.note_evidence("asked_below", offset)
        waits_s = 3 * self.patience_ms / 1000 if self.waits else None
        answer = (await handle.cluster.admin.delete_records(handle.topic, self.partition, offset, waits_s)).outcome
        outcome = {DONE: "deleted", "REQUEST_TIMED_OUT": "begun", "UNANSWERED": "unanswered"}
        handle.count_evidence(outcome.get(answer, "refused"))
        for node in await handle.targets.resolve(self.nodes):
            await handle.power_off(node, self.keep)

    def least_s(self, cluster: ClusterShape) -> float:
        """Until the follower that is to be behind has left the ISR, and until the request."""
        return _BEHIND_WITHIN * self.patience_ms / 1000 if self.behind else 0.0

    async def _stall(self, handle: FaultHandle) -> None:
        leader = await handle.targets.leader(self.partition)
        if leader is None:
            handle.notes.append("no leader to be cut off")
            return
        handle.targets.add([leader])
        await handle.hold(both_ways([leader], [broker for broker in handle.cluster.brokers if broker != leader]))
        await handle.sleep(handle.random.uniform(0.1, 0.6) * self.patience_ms / 1000)

    async def _move_leadership(self, handle: FaultHandle) -> None:
        before, leader = await claimed(handle, self.partition), await handle.targets.leader(self.partition)
        others = [replica for replica in before if replica != leader]
        if leader is None or len(others) in (0, len(before)):
            handle.notes.append("leadership is not moved")
            return
        coming = handle.random.choice(others)
        handle.targets.add((leader, coming))
        await handle.hold(both_ways([leader], [coming]))
        answers: list[AdminResult] = []
        handle.add_undo(lambda: put_back(handle, self.partition, before, answers))
        await put_first(handle, self.partition, coming, before, answers)

    async def _leave_behind(self, handle: FaultHandle) -> int | None:
        """Cut a follower off until it has left the ISR, and go on for a while: its log ends here or a little above."""
        leader = await handle.targets.leader(self.partition)
        replicas = await handle.cluster.admin.replicas(handle.topic, self.partition)
        followers = [replica for replica in replicas if replica != leader]
        if leader is None or not followers:
            handle.notes.append("there is no follower")
            return None
        follower = handle.random.choice(followers)
        handle.targets.add((leader, follower))
        _, end = await self._offsets(handle)
        await handle.hold(both_ways([leader], [follower]))
        await self._await(handle, Occurrence.LEFT_ISR, follower)
        await handle.sleep(handle.random.uniform(0.1, 0.5) * self.patience_ms / 1000)
        return end

    async def _leave_alone(self, handle: FaultHandle) -> None:
        """Cut the followers off from all others, and wait until they have left the ISR, unless the request is to."""
        leader = await handle.targets.leader(self.partition)
        followers = [member for member in handle.situation.partition(self.partition).isr if member != leader]
        if leader is None or not followers:
            handle.notes.append("there is no follower in the ISR")
            return
        handle.targets.add((leader, *followers))
        others = [node for node in (*handle.cluster.brokers, *handle.cluster.controllers) if node not in followers]
        await handle.hold(both_ways(followers, others))
        if self.waits:
            return
        try:
            async with asyncio.timeout(2 * self.patience_ms / 1000):
                await handle.situation.until(lambda: handle.situation.partition(self.partition).isr == (leader,))
        except TimeoutError:
            handle.notes.append("the followers did not leave the ISR in time")

    async def _await(self, handle: FaultHandle, kind: Occurrence, node: str = "") -> None:
        def is_met(event: Event) -> bool:
            return event.kind is kind and event.partition == self.partition and node in ("", event.subject)

        events, since = handle.situation.events, len(handle.situation.events)
        try:
            async with asyncio.timeout(2 * self.patience_ms / 1000 if node else self.patience_ms / 1000):
                await handle.situation.until(lambda: any(map(is_met, events[since:])))
        except TimeoutError:
            handle.notes.append(f"not {kind.replace('_', ' ')} in time")

    async def _draw(self, handle: FaultHandle, above: int | None) -> int:
        """An offset up to the high watermark, `above` that of a replica that is behind."""
        if self.stalled or handle.random.random() < _TO_HIGH_WATERMARK_SHARE:
            return TO_HIGH_WATERMARK
        start, end = await self._offsets(handle)
        if above is not None:
            return min(end, above + 1 + int((end - above) * handle.random.random()))
        offset = start + int((end - start) * handle.random.random() ** 3)
        return min(end, max(offset, start + 1)) if self.alone else offset

    async def _offsets(self, handle: FaultHandle) -> tuple[int, int]:
        while (known := await handle.cluster.admin.offsets(handle.topic, self.partition)) is None:
            await handle.sleep(_RETRY_S)
        return known
