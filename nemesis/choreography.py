"""Faults that are a sequence of steps.

Some wrong turns of the protocol need several things to happen in one order and within tight bounds, which
independent faults meet too rarely. Each fault here is such a sequence, told in its docstring; the times between its
steps are drawn, so that repeated injections probe around the story and not only at one point of it. `patience_ms` is
how long the cluster takes to act on a silent broker (session timeout, lag time) and scales every wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nemesis.fault import Fault, Site, both_ways, one_way
from nemesis.ports import Keep, Link


@dataclass(frozen=True, slots=True)
class ZombieFollower(Fault):
    """A follower's requests outlive the leadership they were sent in.

    1. What the follower sends to the leader is held; all else goes on.
    2. The leader stalls or is cut from the controller until leadership has moved away.
    3. The new leader is cut from the controller until leadership has moved on, often back.
    4. The held requests arrive at a leader of another epoch than the one they were sent in.
    """

    name: ClassVar[str] = "zombie-follower"
    family: ClassVar[str] = "choreography"
    decisive: ClassVar[tuple[str, ...]] = ("held", "refused")

    partition: int = 0
    patience_ms: float = 2_000.0

    async def inject(self, site: Site) -> None:
        """Run through the steps; what is still held comes back when the fault heals."""
        (leader,) = await site.find((f"leader/{self.partition}",))
        follower = site.random.choice([broker for broker in site.cluster.brokers if broker != leader])
        site.aim((follower,))
        release = await site.cut([Link(follower, leader)])
        await site.sleep(site.random.uniform(0, 0.3) * self.patience_ms / 1000)
        for _ in range(2):
            deposed = await site.leader(self.partition) or leader
            if site.random.random() < 0.5:
                back = await site.pause(deposed)
            else:
                back = await site.cut(both_ways([deposed], site.cluster.controllers))
            await site.sleep(site.random.uniform(1.1, 1.6) * self.patience_ms / 1000)
            await back()
            await site.sleep(site.random.uniform(0.05, 0.6) * self.patience_ms / 1000)
        await release()

    def targets(self) -> tuple[str, ...]:
        """The leader of the partition."""
        return (f"leader/{self.partition}",)


@dataclass(frozen=True, slots=True)
class UncleanReturn(Fault):
    """A replica that lost data comes back just when the others cannot speak for themselves.

    1. All replicas but the victim and one survivor stall until they have left the ISR.
    2. The victim loses power with everything unsynced, and is found dead: it leaves the ISR for the ELR.
    3. The survivor stalls, and the victim starts again, alone.
    4. Whoever stalled wakes up.
    """

    name: ClassVar[str] = "unclean-return"
    family: ClassVar[str] = "choreography"
    decisive: ClassVar[tuple[str, ...]] = ("lost_bytes",)

    victim: str
    keep: Keep = Keep.NOTHING
    patience_ms: float = 2_000.0

    async def inject(self, site: Site) -> None:
        """Run through the steps; what is still held comes back when the fault heals."""
        patience_s = self.patience_ms / 1000
        (victim,) = await site.find((self.victim,))
        others = [broker for broker in site.cluster.brokers if broker != victim]
        survivor = others.pop(site.random.randrange(len(others)))
        for node in others:
            await site.pause(node)
        await site.sleep(site.random.uniform(1.2, 1.8) * patience_s)
        start = await site.power_off(victim, self.keep)
        await site.sleep(site.random.uniform(1.1, 1.5) * patience_s)
        wake = await site.pause(survivor)
        if site.random.random() < 0.5:
            await site.sleep(site.random.uniform(0, 1.2) * patience_s)
        await start()
        await site.sleep(site.random.uniform(1.2, 2.0) * patience_s)
        await wake()

    def targets(self) -> tuple[str, ...]:
        """The victim."""
        return (self.victim,)


@dataclass(frozen=True, slots=True)
class DeafLeader(Fault):
    """An ISR change is decided, and the leader that asked for it does not learn of it.

    1. A follower stalls until the leader wants it out of the ISR, and wakes up.
    2. What the controllers send to the leader is held: the leader proposes, the controller decides, the answer waits.
    3. Meanwhile another follower stalls; then the answer arrives.
    """

    name: ClassVar[str] = "deaf-leader"
    family: ClassVar[str] = "choreography"
    decisive: ClassVar[tuple[str, ...]] = ("held", "refused")

    partition: int = 0
    patience_ms: float = 2_000.0

    async def inject(self, site: Site) -> None:
        """Run through the steps; what is still held comes back when the fault heals."""
        patience_s = self.patience_ms / 1000
        (leader,) = await site.find((f"leader/{self.partition}",))
        followers = [broker for broker in site.cluster.brokers if broker != leader]
        site.random.shuffle(followers)
        wake = await site.pause(followers[0])
        await site.sleep(site.random.uniform(1.0, 1.4) * patience_s)
        answer = await site.cut(one_way(site.cluster.controllers, [leader]))
        await wake()
        await site.sleep(site.random.uniform(0.05, 0.5) * patience_s)
        await site.pause(followers[-1])
        await site.sleep(site.random.uniform(0.2, 1.5) * patience_s)
        await answer()

    def targets(self) -> tuple[str, ...]:
        """The leader of the partition."""
        return (f"leader/{self.partition}",)
