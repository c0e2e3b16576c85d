"""What an administrator does while everything else goes wrong.

None of these is a failure, and each of them changes who leads, who follows, what an acknowledgement takes or where a
log starts. They are asked of the cluster over Kafka's protocol like any administrator's request, so a cut-off
controller may leave them undone. What was changed is changed back when the fault heals, which is tried again until it
is done: a cluster that has lost all its other faults must end as it began. A request that somebody left unanswered may
be carried out late, even after it was undone, by a broker that was frozen over it, say; so what undoes it is then asked
for once more when everything is healed. Only deleted records stay deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from nemesis.drawing import Draws
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, UNANSWERED, AdminResult, both_ways

_RETRY_S = 0.5
_RETRIES = 120
_TO_HIGH_WATERMARK_SHARE = 0.1
TO_HIGH_WATERMARK = -1
"""The offset by which an administrator asks for everything below the high watermark to be deleted."""


_FAMILY = Family(number=8, name="admin", colour="#5b5ea6")


@dataclass(frozen=True, slots=True)
class Reassign(Fault):
    """Move a partition to another broker, or take one of its replicas away where all brokers hold one; put it back.

    The replica taken away is drawn, and may be the leader. Put back, it comes as an empty one under an old name
    (Kafka Replication Correctness §6.5.4).
    """

    name: ClassVar[str] = "reassign"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("reassigned",)

    partition: int = 0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition."""
        return cls(draws.partition)

    async def inject(self, handle: FaultHandle) -> None:
        """Ask for it once."""
        asked = await _move(handle, self.partition, [])
        if asked:
            handle.count("reassigned")


@dataclass(frozen=True, slots=True)
class CancelReassignment(Fault):
    """Begin to move a partition, then cancel or replace the move at a drawn moment, and put everything back.

    The second request finds the new replica anywhere between unknown and in sync; where committed records rest on it,
    it must be refused.
    """

    name: ClassVar[str] = "cancel-reassignment"
    number: ClassVar[int] = 2
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("cancelled", "completed", "refused")

    partition: int = 0
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition."""
        return cls(draws.partition, draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Move away, move back, and cancel that."""
        answers: list[AdminResult] = []
        before = await _move(handle, self.partition, answers)
        if not before:
            return
        admin, patience_s = handle.cluster.admin, self.patience_ms / 1000
        await handle.sleep(handle.random.uniform(0.0, 1.0) * patience_s)
        await noted(answers, admin.reassign(handle.topic, self.partition, before))
        await handle.sleep(handle.random.random() ** 3 * patience_s)
        told = (await noted(answers, admin.reassign(handle.topic, self.partition, None))).outcome
        outcome = {DONE: "cancelled", "NO_REASSIGNMENT_IN_PROGRESS": "completed"}.get(told, "refused")
        handle.count("unanswered" if told == UNANSWERED else outcome)


@dataclass(frozen=True, slots=True)
class ElectPreferred(Fault):
    """Have the preferred replica of a partition elected."""

    name: ClassVar[str] = "elect-preferred"
    number: ClassVar[int] = 3
    family: ClassVar[Family] = _FAMILY
    effective_alone: ClassVar[bool] = False
    proof: ClassVar[tuple[str, ...]] = ("elected",)

    partition: int = 0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition."""
        return cls(draws.partition)

    async def inject(self, handle: FaultHandle) -> None:
        """Ask for it once; it bites when leadership moved by it."""
        told = (await handle.cluster.admin.elect_preferred(handle.topic, self.partition)).outcome
        handle.count("elected" if told == DONE else "not_needed" if told == "ELECTION_NOT_NEEDED" else "refused")


@dataclass(frozen=True, slots=True)
class RaiseMinIsr(Fault):
    """Raise min.insync.replicas of the topic by one while it is in use, and lower it again."""

    name: ClassVar[str] = "raise-min-isr"
    number: ClassVar[int] = 4
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("raised",)

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """There is but one."""
        return cls()

    async def inject(self, handle: FaultHandle) -> None:
        """Raise it; healing lowers it to what it was."""
        admin, key = handle.cluster.admin, "min.insync.replicas"
        answers: list[AdminResult] = []

        async def lower() -> AdminResult:
            return await admin.configure(handle.topic, key, str(handle.min_isr))

        handle.undone_by(lambda: until_done(handle, lower, "lowering min.insync.replicas", answers))
        if (await noted(answers, admin.configure(handle.topic, key, str(handle.min_isr + 1)))).outcome == DONE:
            handle.count("raised")


@dataclass(frozen=True, slots=True)
class ControlledRestart(Fault):
    """Tell brokers to leave, one after the other, and start them again: each is down until the fault heals.

    A broker that leaves hands its leadership over, flushes, and comes back as one that may have lost nothing.
    """

    name: ClassVar[str] = "controlled-restart"
    number: ClassVar[int] = 5
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("stopped",)

    nodes: tuple[str, ...] = ("any",)

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """One broker."""
        return cls((draws.broker(),))

    async def inject(self, handle: FaultHandle) -> None:
        """Stop every node."""
        for node in await handle.find(self.nodes):
            await handle.stop(node)


@dataclass(frozen=True, slots=True)
class RollingRestart(Fault):
    """Restart every broker in turn, in an order drawn, each told to leave and started before the next."""

    name: ClassVar[str] = "rolling-restart"
    number: ClassVar[int] = 6
    family: ClassVar[Family] = _FAMILY
    ends_by_itself: ClassVar[bool] = True
    proof: ClassVar[tuple[str, ...]] = ("stopped",)

    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """All brokers."""
        return cls(draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Once around."""
        brokers = list(handle.cluster.brokers)
        handle.random.shuffle(brokers)
        for broker in brokers:
            start = await handle.stop(broker)
            await handle.sleep(handle.random.uniform(0.0, 0.3) * self.patience_ms / 1000)
            await start()
            await handle.sleep(handle.random.uniform(0.2, 1.0) * self.patience_ms / 1000)


@dataclass(frozen=True, slots=True)
class DeleteRecords(Fault):
    """Delete the records of a partition below an offset drawn up to its high watermark, now and again simply below it.

    Lower offsets are likelier, so that most records stay to be judged. With `stalled` the leader is cut off from the
    other brokers first, for a part of the patience, and everything below the high watermark is deleted: what has been
    appended meanwhile is not committed, and must stay.

    What is deleted stays deleted: nothing is undone. `asked_below` in the evidence is what was asked for, whether or
    not anybody answered; for "below the high watermark" it is not known, and `to_high_watermark` is counted instead.
    """

    name: ClassVar[str] = "delete-records"
    number: ClassVar[int] = 7
    family: ClassVar[Family] = _FAMILY
    ends_by_itself: ClassVar[bool] = True
    proof: ClassVar[tuple[str, ...]] = ("deleted", "begun")

    partition: int = 0
    stalled: bool = False
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition, of a stalled leader in one of four."""
        return cls(draws.partition, draws.random.random() < 0.25, draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Ask for it once, as soon as a leader tells where the log starts and ends."""
        if self.stalled:
            await self._stall(handle)
        offset = await self._draw(handle)
        if offset == TO_HIGH_WATERMARK:
            handle.count("to_high_watermark")
        else:
            handle.note("asked_below", offset)
        told = (await handle.cluster.admin.delete_records(handle.topic, self.partition, offset)).outcome
        outcome = {DONE: "deleted", "REQUEST_TIMED_OUT": "begun", "UNANSWERED": "unanswered"}
        handle.count(outcome.get(told, "refused"))

    async def _stall(self, handle: FaultHandle) -> None:
        leader = await handle.leader(self.partition)
        if leader is None:
            handle.notes.append("no leader to be cut off")
            return
        handle.aim([leader])
        await handle.cut(both_ways([leader], [broker for broker in handle.cluster.brokers if broker != leader]))
        await handle.sleep(handle.random.uniform(0.1, 0.6) * self.patience_ms / 1000)

    async def _draw(self, handle: FaultHandle) -> int:
        if self.stalled or handle.random.random() < _TO_HIGH_WATERMARK_SHARE:
            return TO_HIGH_WATERMARK
        while (known := await handle.cluster.admin.offsets(handle.topic, self.partition)) is None:
            await handle.sleep(_RETRY_S)
        start, end = known
        return start + int((end - start) * handle.random.random() ** 3)


class MoveController(Fault):
    """Have the active controller resign, so that another one takes over in the midst of everything."""

    name: ClassVar[str] = "move-controller"
    number: ClassVar[int] = 8
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("moved",)

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """The active controller."""
        return cls()

    async def inject(self, handle: FaultHandle) -> None:
        """Ask for it once."""
        handle.aim((await handle.active_controller(),))
        told = (await handle.cluster.admin.move_controller()).outcome
        if told == DONE:
            handle.count("moved")
        else:
            handle.notes.append(f"not moved: {told}")


async def _move(handle: FaultHandle, partition: int, answers: list[AdminResult]) -> tuple[str, ...]:
    """Ask for other replicas; the ones before, to which healing goes back, or nothing when it was not done. What is
    answered to this and to later requests about the partition goes into `answers`."""
    admin = handle.cluster.admin
    if not handle.claim_placement(partition):
        handle.notes.append("another fault is moving it")
        return ()
    before = await admin.replicas(handle.topic, partition)
    outside = [broker for broker in handle.cluster.brokers if broker not in before]
    if len(before) < 2 or (not outside and len(before) <= handle.min_isr):
        handle.notes.append("no replica can be spared")
        return ()
    leaving = handle.random.choice(before)
    coming = (handle.random.choice(outside),) if outside else ()
    target = tuple(broker for broker in before if broker != leaving) + coming
    handle.aim((leaving, *coming))

    async def back() -> AdminResult:
        return await admin.reassign(handle.topic, partition, before)

    if not outside:
        handle.undone_by(lambda: until_done(handle, back, put_back(partition), answers))
    told = (await noted(answers, admin.reassign(handle.topic, partition, target))).outcome
    if told != DONE:
        handle.notes.append(f"not reassigned: {told}")
        return ()
    return before


def put_back(partition: int) -> str:
    """What undoes the removal of a replica, in words."""
    return f"putting the replica of partition {partition} back"


async def noted(answers: list[AdminResult], request: Awaitable[AdminResult]) -> AdminResult:
    """The answer to `request`, which counts as in doubt from the beginning: the fault may be cancelled over it."""
    answers.append(AdminResult(UNANSWERED, in_doubt=True))
    place = len(answers) - 1
    answers[place] = await request
    return answers[place]


async def until_done(
    handle: FaultHandle, request: Callable[[], Awaitable[AdminResult]], what: str, undone: Sequence[AdminResult]
) -> None:
    """Ask until it is done. Where an answer to what is undone is in doubt, ask once more when everything is healed."""

    async def ask() -> None:
        told = ""
        for _ in range(_RETRIES):
            told = (await request()).outcome
            if told == DONE:
                return
            await handle.sleep(_RETRY_S)
        handle.notes.append(f"{what} was not done: {told}")

    await ask()
    if any(answer.in_doubt for answer in undone):
        handle.confirmed_by(what, ask)
