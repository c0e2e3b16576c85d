"""Scripted faults of a partition: its leader, its followers, its next leaders. See `nemesis.faults.scripted.script`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.scripted.script import (
    ScriptedLeaderFault,
    ScriptedPowerLoss,
    held_by,
    until_event,
    until_isr,
    until_led_by,
    until_seen,
)
from nemesis.handle import FaultHandle
from nemesis.ports import EnvironmentCapability, KeepUnsynced, Link, LinkQuality, both_ways, one_way
from nemesis.situation import Event, Occurrence


@dataclass(frozen=True, slots=True)
class ZombieFollower(ScriptedLeaderFault):
    """A fetch outlives the leadership it was sent in and reaches the same leader in a later one, after its sender has
    cut its log below the offset it asked for.

    Truncation on fetch finds every fetch that does not fit the leader's log, so the leader must come back with its log
    as it was: as an eligible leader replica that has not followed anyone in between. L leads, K and F follow.

    1. F is cut from the controllers until it is out of the ISR; it goes on fetching from L.
    2. K no longer hears L until it is out of the ISR, too, and eligible: L takes no more appends, F holds all of them,
       K does not.
    3. Messages from F to L are held, among them a fetch at the end of L's log. F is back with the controllers.
    4. L is cut from the controllers until K leads. F follows K and cuts its log to K's.
    5. K is cut from the controllers before it can have F back in the ISR; L is back with them, leads again, and has
       learned nothing of K.
    6. The fetch that was held reaches L, whose answers do not reach F. L stalls, so that F may be elected.
    """

    name: ClassVar[str] = "zombie-follower"
    number: ClassVar[int] = 1

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s = self.patience_ms / 1000
        controllers = handle.cluster.controllers
        brokers = await self.leader_and_two(handle)
        if brokers is None:
            return
        leader, follower, successor = brokers
        reunite_follower = await handle.hold(both_ways([follower], controllers))
        await handle.sleep(handle.random.uniform(1.2, 1.4) * patience_s)
        await handle.hold(both_ways([leader], [successor]))
        await handle.sleep(handle.random.uniform(1.3, 1.6) * patience_s)
        release = await handle.hold([Link(follower, leader)])
        await handle.sleep(handle.random.uniform(0.3, 0.5) * patience_s)
        await reunite_follower()
        await handle.degrade([Link(follower, successor)], LinkQuality(delay_ms=0.3 * self.patience_ms))
        reunite_leader = await handle.hold(both_ways([leader], controllers))
        await until_led_by(handle, self.partition, successor, 2 * patience_s)
        await reunite_leader()
        await handle.sleep(0.05 * patience_s)
        await handle.hold(both_ways([successor], controllers))
        await until_led_by(handle, self.partition, leader, 2 * patience_s)
        await handle.sleep(0.05 * patience_s)
        await handle.hold([Link(leader, follower)])
        await release()
        await handle.sleep(handle.random.uniform(0.05, 0.8) * patience_s)
        await handle.pause(leader)
        await handle.sleep(2 * patience_s)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """The successor is to learn late that the follower is back."""
        return frozenset({EnvironmentCapability.DELAY})


@dataclass(frozen=True, slots=True)
class UncleanReturn(ScriptedPowerLoss):
    """A replica that lost data comes back while all complete replicas are stalled.

    1. All replicas but the victim and one survivor stall until they have left the ISR.
    2. The victim loses power with everything unsynced, and is found dead: it leaves the ISR for the ELR.
    3. The survivor stalls, and the victim starts again, alone.
    4. The stalled brokers resume.
    """

    name: ClassVar[str] = "unclean-return"
    number: ClassVar[int] = 7

    keep: KeepUnsynced = KeepUnsynced.NOTHING
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """A victim that loses something; None where no broker may."""
        if not draws.profile.victims:
            return None
        victim, keep = draws.victim(), draws.keep()
        return cls(victim, KeepUnsynced.NOTHING if keep is KeepUnsynced.EVERYTHING else keep, draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s = self.patience_ms / 1000
        victim = await handle.targets.resolve_one(self.victim)
        others = [broker for broker in handle.cluster.brokers if broker != victim]
        if not others:
            handle.notes.append("two brokers are needed")
            return
        survivor = others.pop(handle.random.randrange(len(others)))
        for node in others:
            await handle.pause(node)
        await handle.sleep(handle.random.uniform(1.2, 1.8) * patience_s)
        start = await handle.power_off(victim, self.keep)
        await handle.sleep(handle.random.uniform(1.1, 1.5) * patience_s)
        wake = await handle.pause(survivor)
        if handle.random.random() < 0.5:
            await handle.sleep(handle.random.uniform(0, 1.2) * patience_s)
        await start()
        await handle.sleep(handle.random.uniform(1.2, 2.0) * patience_s)
        await wake()

    def targets(self) -> tuple[str, ...]:
        """The victim."""
        return (self.victim,)


@dataclass(frozen=True, slots=True)
class DeafLeader(ScriptedLeaderFault):
    """The controller commits an ISR change, and the leader that asked for it does not learn of it.

    1. A follower and the leader do not reach each other until the follower is out of the ISR; it stays unfenced, so
       that the leader may want it back.
    2. Messages from the controllers to the leader are held, and the two reach each other again: the leader proposes the
       follower, the controller answers in vain.
    3. Meanwhile another follower stalls; then the answer arrives.
    """

    name: ClassVar[str] = "deaf-leader"
    number: ClassVar[int] = 3
    proof: ClassVar[tuple[str, ...]] = (*ScriptedLeaderFault.proof, "reset")

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s = self.patience_ms / 1000
        (leader,) = await handle.targets.resolve((f"leader/{self.partition}",))
        followers = self.followers(handle, leader)
        if not followers:
            handle.notes.append("two brokers are needed")
            return
        handle.random.shuffle(followers)
        follower = followers[0]
        handle.targets.add((follower,))
        # With their connections broken off they reach each other soon, and not after a timeout.
        reunite = await handle.cut(both_ways([leader], [follower]), reset=True)
        if not await until_isr(handle, self.partition, lambda isr: follower not in isr, patience_s):
            handle.notes.append(f"{follower} stayed in the ISR")
            return
        answer = await handle.hold(one_way(handle.cluster.controllers, [leader]))
        await reunite()
        await handle.sleep(handle.random.uniform(0.05, 0.5) * patience_s)
        await handle.pause(followers[-1])
        await handle.sleep(handle.random.uniform(0.2, 1.5) * patience_s)
        await answer()


@dataclass(frozen=True, slots=True)
class HiddenCommit(ScriptedLeaderFault):
    """A new leader has a stale high watermark, and a follower has an older one.

    A follower learns the high watermark one answer late, and slow answers make that much. L leads, B and C follow.

    1. C is cut from the controllers until it is out of the ISR; it goes on fetching.
    2. Messages from L to the others become slow: B holds committed records without knowing it, and C,
       which is served out of step with B, may lack them.
    3. L falls silent and C is back with the controllers: B leads, with a stale high watermark, and C catches up slowly.
    4. B stalls: C may be elected, if it was let into the ISR.
    """

    name: ClassVar[str] = "hidden-commit"
    number: ClassVar[int] = 2

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s = self.patience_ms / 1000
        controllers = handle.cluster.controllers
        brokers = await self.leader_and_two(handle)
        if brokers is None:
            return
        leader, successor, laggard = brokers
        delay_ms = handle.random.uniform(0.2, 0.35) * self.patience_ms
        slow, slower = LinkQuality(delay_ms), LinkQuality(delay_ms * handle.random.uniform(1.05, 1.4))
        reunite = await handle.hold(both_ways([laggard], controllers))
        await handle.sleep(handle.random.uniform(1.2, 1.4) * patience_s)
        await handle.degrade([Link(leader, successor)], slow)
        await handle.degrade([Link(leader, laggard)], slower)
        await handle.sleep(handle.random.uniform(1.5, 2.5) * patience_s)
        await handle.hold(both_ways([leader], handle.cluster.brokers + controllers))
        await handle.degrade([Link(successor, laggard)], slow)
        await reunite()
        await until_led_by(handle, self.partition, successor, 2 * patience_s)
        # One delay until the laggard is connected and fetches, another one until it has the answer.
        await handle.sleep(handle.random.uniform(1.1, 1.8) * delay_ms / 1000)
        await handle.pause(successor)
        await handle.sleep(2 * patience_s)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Slow answers make the high watermarks stale."""
        return frozenset({EnvironmentCapability.DELAY})


@dataclass(frozen=True, slots=True)
class StaleBrokerEpoch(ScriptedPowerLoss):
    """A leader proposes a follower for the ISR that has meanwhile lost its data and restarted in a new broker epoch.

    L leads; a victim that follows nowhere stalls first until another broker leads.

    1. The victim and L do not reach each other until the victim is out of the ISR.
    2. Messages from L to the controllers are held, and the victim catches up: L proposes it for the ISR in vain.
    3. The victim, silent towards the controllers for a while, loses power with everything unsynced, and starts again
       cut from L: the controllers know its new incarnation, which holds nothing.
    4. The proposal arrives. The others stall, so that the victim may be elected.
    """

    name: ClassVar[str] = "stale-broker-epoch"
    number: ClassVar[int] = 8
    proof: ClassVar[tuple[str, ...]] = (*ScriptedPowerLoss.proof, "reset")
    acts_within: ClassVar[float] = 2.0
    """The victim may have nothing to fetch from L; it has something to tell the controllers."""

    partition: int = 0
    """Another one, if the victim has no replica of it, or leads it and follows elsewhere."""
    keep: KeepUnsynced = KeepUnsynced.NOTHING
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """A victim that loses everything unsynced; None where no broker may."""
        if not draws.profile.victims:
            return None
        return cls(draws.victim(), draws.partition(), KeepUnsynced.NOTHING, draws.patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s = self.patience_ms / 1000
        controllers = handle.cluster.controllers
        victim = await handle.targets.resolve_one(self.victim)
        partition = await held_by(handle, victim, self.partition)
        if partition is None:
            return
        if await handle.targets.leader(partition) == victim:
            wake = await handle.pause(victim)
            await handle.sleep(1.3 * patience_s)
            await wake()
            await handle.sleep(0.3 * patience_s)
        (leader,) = await handle.targets.resolve((f"leader/{partition}",))
        if leader == victim:
            handle.notes.append("the victim leads")
            return
        # With their connections broken off the victim catches up soon, and not after a timeout.
        apart = await handle.cut(both_ways([leader], [victim]), reset=True)
        if not await until_isr(handle, partition, lambda isr: victim not in isr, patience_s):
            handle.notes.append(f"{victim} stayed in the ISR")
            return
        silent = await handle.hold(both_ways([victim], controllers))
        await handle.sleep(handle.random.uniform(0.45, 0.55) * patience_s)
        unheard = await handle.hold(one_way([leader], controllers))
        await apart()
        await handle.sleep(handle.random.uniform(0.2, 0.4) * patience_s)
        start = await handle.power_off(victim, self.keep)
        await handle.hold(both_ways([victim], [leader]))
        await handle.sleep(handle.random.uniform(0.15, 0.2) * patience_s)
        since = len(handle.situation.events)
        await silent()
        await start()
        await handle.sleep(0.05 * patience_s)  # a step, where the environment takes longer for one
        await until_event(handle, Event(Occurrence.UNFENCED, victim), since, 0.25 * patience_s)
        await unheard()
        await handle.sleep(handle.random.uniform(0.05, 0.5) * patience_s)
        for node in handle.cluster.brokers:
            if node != victim:
                await handle.pause(node)
        await handle.sleep(2 * patience_s)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """The victim must hold a replica."""
        return cluster.every_broker_has_replicas

    def targets(self) -> tuple[str, ...]:
        """The victim, and the leader of the partition."""
        return (self.victim, f"leader/{self.partition}")


@dataclass(frozen=True, slots=True)
class QuickSuccession(ScriptedLeaderFault):
    """Two leaders fail one after the other, and the third had begun to follow the second without any answer from it.

    The changes of a follower to its log before the first answer of its new leader are its own. L leads, B and C follow.

    1. B and C no longer hear each other; both follow L on.
    2. L falls silent towards all. One of B and C leads, and the other begins to follow it.
    3. Before the lag time has passed the new leader falls silent, too: the other one is elected, if it was in the ISR.
    """

    name: ClassVar[str] = "quick-succession"
    number: ClassVar[int] = 4

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        patience_s = self.patience_ms / 1000
        everyone = [*handle.cluster.brokers, *handle.cluster.controllers]
        (leader,) = await handle.targets.resolve((f"leader/{self.partition}",))
        followers = self.followers(handle, leader)
        if len(followers) < 2:
            handle.notes.append("two followers are needed")
            return
        await handle.hold(both_ways([followers[0]], followers[1:]))
        await handle.sleep(handle.random.uniform(0.0, 0.3) * patience_s)
        await handle.hold(both_ways([leader], everyone))

        async def one_of_them() -> str | None:
            successor = await handle.targets.leader(self.partition)
            return successor if successor in followers else None

        successor = await until_seen(handle, one_of_them, 2 * patience_s)
        if successor is None:
            handle.notes.append("no leader was elected")
            return
        handle.targets.add((successor,))
        await handle.sleep(handle.random.uniform(0.05, 0.4) * patience_s)
        await handle.hold(both_ways([successor], everyone))
        await handle.sleep(2 * patience_s)
