"""Scripted faults of the controllers' quorum; see `nemesis.faults.scripted.script`.

Where a step needs the cluster to commit something, it names a throttled replica of the topic, which has no effect
without a rate, and asks once to have the list deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.administrators.replica_moves import move
from nemesis.faults.message import API_KEYS, NodeRequest
from nemesis.faults.scripted.script import ScriptedFault, lead_again, until_seen, until_taken, until_traced
from nemesis.handle import FaultHandle
from nemesis.ports import (
    ConfigOperation,
    EnvironmentCapability,
    Link,
    MessageEffect,
    MessagePart,
    MessageRule,
    both_ways,
    one_way,
)

_THROTTLED: Final = "leader.replication.throttled.replicas"
_REPLICAS: Final = 9
"""Of one partition; they need not exist."""


@dataclass(frozen=True, slots=True)
class ScriptedQuorumFault(ScriptedFault):
    """A scripted fault of the active controller and its possible successors."""

    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """None where there are fewer than three controllers."""
        return cls(draws.patience_ms) if len(draws.cluster.controllers) >= 3 else None

    def targets(self) -> tuple[str, ...]:
        """The active controller."""
        return ("controller",)

    async def active_of_three(self, handle: FaultHandle) -> str | None:
        """The active controller; None, with a note, where there are fewer than three."""
        if len(handle.cluster.controllers) < 3:
            handle.notes.append("three controllers are needed")
            return None
        (active,) = await handle.targets.resolve(self.targets())
        return active


@dataclass(frozen=True, slots=True)
class ZombieController(ScriptedQuorumFault):
    """A deposed controller appends records that it can never commit, and must truncate them when it follows.

    1. The active controller is cut from the others; brokers see all of them.
    2. It is asked for a change, which only its own log takes.
    3. Another controller is elected and decides, at the same offset.
    4. The zombie is back, and follows; after a while its successor falls silent, so that the zombie may be elected.
    """

    name: ClassVar[str] = "zombie-controller"
    number: ClassVar[int] = 9

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s, controllers = self.patience_ms / 1000, handle.cluster.controllers
        zombie = await self.active_of_three(handle)
        if zombie is None:
            return
        reunite = await handle.hold(both_ways([zombie], controllers))
        await _commit_something(handle)
        successor = await _until_another_is_active(handle, zombie, 3 * patience_s)
        if successor is None:
            return
        await handle.sleep(handle.random.uniform(0.0, 0.3) * patience_s)
        if handle.random.random() < 0.5:
            await _commit_something(handle)
        await reunite()
        await handle.sleep(handle.random.uniform(0.1, 0.5) * patience_s)
        await handle.hold(both_ways([successor], (*controllers, *handle.cluster.brokers)))
        await handle.sleep(handle.random.uniform(1.0, 2.0) * patience_s)


@dataclass(frozen=True, slots=True)
class LaggingController(ScriptedQuorumFault):
    """A controller that missed what was committed stands for election.

    1. A controller that is not active is cut from the others.
    2. The others commit something.
    3. The active one stalls, and the laggard sees the last one again: it has been without a leader for longer.
    """

    name: ClassVar[str] = "lagging-controller"
    number: ClassVar[int] = 10

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s, controllers = self.patience_ms / 1000, handle.cluster.controllers
        active = await self.active_of_three(handle)
        if active is None:
            return
        laggard = handle.random.choice([controller for controller in controllers if controller != active])
        handle.targets.add((laggard,))
        reunite = await handle.hold(both_ways([laggard], controllers))
        await handle.sleep(handle.random.uniform(0.3, 0.6) * patience_s)
        await _commit_something(handle)
        await handle.pause(active)
        await reunite()
        await handle.sleep(handle.random.uniform(1.5, 2.5) * patience_s)


@dataclass(frozen=True, slots=True)
class LateQuorumFetch(ScriptedQuorumFault):
    """A controller's fetch arrives when its receiver is active again, in a later epoch than that of the fetch (Kafka
    Replication Correctness §6.3; KIP-595).

    A is active; F follows it.

    1. A fetch of F is held on its way to A, and F stalls, so that it hears of no later epoch.
    2. Whichever controller is active resigns, until A is elected again.
    3. The fetch arrives, and something is committed while F still stalls.
    """

    name: ClassVar[str] = "late-quorum-fetch"
    number: ClassVar[int] = 14
    proof: ClassVar[tuple[str, ...]] = ("intercepted",)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s = self.patience_ms / 1000
        active = await self.active_of_three(handle)
        if active is None:
            return
        follower = handle.random.choice([each for each in handle.cluster.controllers if each != active])
        handle.targets.add((follower,))
        rule = MessageRule(API_KEYS[NodeRequest.FETCH], MessagePart.REQUEST, MessageEffect.HOLD)
        let_pass, taken = await handle.intercept(one_way([follower], [active]), rule)
        if not await until_taken(handle, taken, 2 * patience_s):
            handle.notes.append(f"{follower} does not fetch from {active}")
            return
        await handle.pause(follower)
        if not await lead_again(handle, active, 3 * patience_s):
            handle.notes.append(f"{active} was not elected again")
            return
        await handle.sleep(handle.random.uniform(0.0, 0.2) * patience_s)
        await let_pass()
        await _commit_something(handle)
        await handle.sleep(handle.random.uniform(0.1, 0.5) * patience_s)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Messages that can be told apart, and controllers that resign when they are asked to."""
        return frozenset({EnvironmentCapability.MESSAGES, EnvironmentCapability.RESIGNATION})

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """A controller that follows fetches all the time."""
        return len(cluster.controllers) >= 3


@dataclass(frozen=True, slots=True)
class LateVote(ScriptedQuorumFault):
    """A controller's vote arrives when its candidate stands in a later election.

    A is active; C is whichever other controller stands for election, V the third.

    1. A stalls, and C stands. V votes for it, and its answers are held.
    2. C gives this election up, and asks whether it may stand again. V stalls, and A wakes up, which lets C stand.
    3. Once it does, its requests are held, and V's answer arrives: a vote of the election before. It arrives only where
       C waits longer for answers (`controller.quorum.request.timeout.ms`) than for an election.
    """

    name: ClassVar[str] = "late-vote"
    number: ClassVar[int] = 17

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """None but where there are three controllers (of more, others vote for C as well) whose votes outlast their
        elections."""
        possible = len(draws.cluster.controllers) == 3 and draws.cluster.votes_outlast_elections
        return cls(draws.patience_ms) if possible else None

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s, controllers = self.patience_ms / 1000, handle.cluster.controllers
        active = await self.active_of_three(handle)
        if active is None:
            return
        if len(controllers) > 3:
            handle.notes.append("of more than three controllers others vote as well")
            return
        stands, lets_stand = "quorum_candidate", "quorum_prevote_granted"
        with handle.situation.watching((stands, lets_stand)):
            wake = await handle.pause(active)
            candidate = await until_traced(handle, stands, [each for each in controllers if each != active], patience_s)
            if candidate is None:
                return
            (voter,) = (each for each in controllers if each not in (active, candidate))
            handle.targets.add((candidate, voter))
            late = await handle.hold([Link(voter, candidate)])
            if await until_traced(handle, lets_stand, [voter], patience_s) is None:
                return
            await handle.pause(voter)
            await wake()
            if await until_traced(handle, stands, [candidate], patience_s) is None:
                return
        await handle.hold(one_way([candidate], controllers))
        await late()
        await handle.sleep(handle.random.uniform(0.2, 0.5) * patience_s)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """The trace, while the run goes on, since no metadata shows who stands; and steps that take no longer than a
        message, as where messages can be told apart."""
        return frozenset({EnvironmentCapability.LIVE_TRACE, EnvironmentCapability.MESSAGES})


@dataclass(frozen=True, slots=True)
class UnawareController(ScriptedQuorumFault):
    """A controller that does not know that it is deposed is asked what its successor has decided.

    A is active.

    1. A sees no other controller, and of the brokers the last one alone. The connections to all others break.
    2. Another controller is elected.
    3. There a replica of a partition is moved, and every broker is asked at once which reassignments are under way. The
       last one passes that on to A, which still leads for a while without a majority.
    """

    name: ClassVar[str] = "unaware-controller"
    number: ClassVar[int] = 19
    removes_replicas: ClassVar[bool] = True

    partition: int = 0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition; None where there are fewer than three controllers, or no replica can be moved."""
        if len(draws.cluster.controllers) < 3 or not draws.cluster.replica_can_be_moved:
            return None
        return cls(draws.patience_ms, draws.partition())

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is cut comes back then, and so does the replica."""
        patience_s = self.patience_ms / 1000
        active = await self.active_of_three(handle)
        if active is None:
            return
        *others, _ = handle.cluster.brokers
        await handle.cut(both_ways([active], [*handle.cluster.controllers, *others]), reset=True)
        if await _until_another_is_active(handle, active, 3 * patience_s) is None:
            return
        if await move(handle, self.partition, [], restored=True) is not None:
            await handle.cluster.admin.list_reassignments()
            await handle.sleep(handle.random.uniform(0.0, 0.5) * patience_s)


async def _commit_something(handle: FaultHandle) -> None:
    admin = handle.cluster.admin

    async def back() -> None:
        await admin.configure(handle.topic, _THROTTLED, "", ConfigOperation.DELETE)

    handle.add_undo(back)
    await admin.configure(handle.topic, _THROTTLED, f"0:{handle.random.randint(1, _REPLICAS)}")


async def _until_another_is_active(handle: FaultHandle, former: str, limit_s: float) -> str | None:
    """The controller that takes over from `former` within `limit_s`, or None."""

    async def another() -> str | None:
        active = await handle.cluster.controller()
        return active if active != former else None

    active = await until_seen(handle, another, limit_s)
    if active is None:
        handle.notes.append(f"nobody took over from {former}")
    return active
