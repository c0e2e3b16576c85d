"""Faults that are a sequence of steps.

Some errors of a protocol need several events in one order and within tight bounds, which independent faults meet too
rarely. Each such fault is a sequence of steps, listed in its docstring. The times between the steps are drawn, so that
repeated injections probe different timings of one sequence. `patience_ms` is how long the cluster takes to act on a
silent broker (session timeout) and scales every wait. What waits for a leader to give a follower up waits for
`ISR_LIMIT` times as long: a follower that is cut off from its leader alone leaves the ISR by the lag time, which may be
longer, or much shorter. A wait that is shorter than the environment takes for one step becomes as long as that
(`FaultHandle.sleep`).

`inject` runs through the steps; what is still held at their end comes back then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from operator import eq
from typing import ClassVar, Final, Self, TypeVar

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.disk import had_nothing_to_lose
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import DONE, Evidence
from nemesis.situation import Event, Occurrence

T = TypeVar("T")

_LOOK_S: Final = 0.02
"""Polling interval of a step that waits for the cluster."""
_ISR_LOOK: Final = 0.1
"""Polling interval of what brokers report, in multiples of the cluster's patience."""
ISR_LIMIT: Final = 8.0
"""Longest wait for a leader to change the ISR, in the same: it looks at its followers twice in the time that they may
lag, which may be four times as long."""
_RESIGNATIONS: Final = 4
"""At most, until a controller leads again; of three it is elected upon the second one."""


@dataclass(frozen=True, slots=True)
class ScriptedFault(Fault):
    """A sequence of steps, run once."""

    family: ClassVar[Family] = Family(number=7, name="scripted", colour="#c26ea8", alone_share=0.5)
    ends_by_itself: ClassVar[bool] = True
    in_steps: ClassVar[bool] = True
    proof: ClassVar[tuple[str, ...]] = ("held", "refused", "missed")
    """Messages that were stopped on their way, or reached a node that stalled: steps have such effects also where a run
    ends before the last of them."""
    acts_within: ClassVar[float] = 1.0


@dataclass(frozen=True, slots=True)
class ScriptedPowerLoss(ScriptedFault):
    """A scripted fault in which one broker, the victim, loses its power."""

    proof: ClassVar[tuple[str, ...]] = (*ScriptedFault.proof, "lost_bytes")
    of_brokers: ClassVar[bool] = True

    victim: str

    def took_effect(self, evidence: Evidence) -> bool:
        """Messages were held or refused on the way, or bytes were lost. Where the victim had synced all that it wrote,
        its end is the effect."""
        return had_nothing_to_lose(evidence) or Fault.took_effect(self, evidence)

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """The victim."""
        return (self.victim,)


@dataclass(frozen=True, slots=True)
class ScriptedLeaderFault(ScriptedFault):
    """A scripted fault of the leader of a partition and its followers."""

    partition: int = 0
    patience_ms: float = 2_000.0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition."""
        return cls(partition=draws.partition(), patience_ms=draws.patience_ms)

    def targets(self) -> tuple[str, ...]:
        """The leader of the partition."""
        return (f"leader/{self.partition}",)

    async def leader_and_two(self, handle: FaultHandle) -> tuple[str, str, str] | None:
        """The leader, and two of its followers in an order drawn; None, with a note, where there are fewer."""
        (leader,) = await handle.targets.resolve(self.targets())
        followers = self.followers(handle, leader)
        handle.random.shuffle(followers)
        if len(followers) < 2:
            handle.notes.append("two followers are needed")
            return None
        handle.targets.add(followers[:2])
        return leader, followers[0], followers[1]

    def followers(self, handle: FaultHandle, leader: str) -> list[str]:
        """The members of the ISR beside the leader; where these are not two, every other broker."""
        others = [broker for broker in handle.cluster.brokers if broker != leader]
        in_sync = [broker for broker in others if broker in handle.situation.partition(self.partition).isr]
        return in_sync if len(in_sync) > 1 else others


async def leaders_of_topic(handle: FaultHandle) -> dict[int, str]:
    """The leader of each partition of the topic that has one, in their order."""
    places = await handle.cluster.leaders()
    return {index: leader for (topic, index), leader in sorted(places.items()) if topic == handle.topic}


async def held_by(handle: FaultHandle, broker: str, partition: int) -> int | None:
    """A partition of which the broker has a replica: if possible `partition`, and one that it does not lead. None, with
    a note, where there is none."""
    admin, leaders = handle.cluster.admin, await leaders_of_topic(handle)
    held = [index for index in leaders if broker in await admin.replicas(handle.topic, index)]
    if not held:
        handle.notes.append(f"{broker} holds no replica")
        return None
    return min(held, key=lambda index: (leaders[index] == broker, index != partition, index))


async def drawn_pause(handle: FaultHandle, patience_ms: float, shortest: float, longest: float) -> None:
    """A pause between two steps, drawn in multiples of the cluster's patience."""
    await handle.sleep(handle.random.uniform(shortest, longest) * patience_ms / 1000)


async def until_seen(
    handle: FaultHandle, look: Callable[[], Awaitable[T | None]], limit_s: float, every_s: float = _LOOK_S
) -> T | None:
    """The first result of `look` within `limit_s` that is not None, else None."""
    for _ in range(round(limit_s / every_s)):
        seen = await look()
        if seen is not None:
            return seen
        await asyncio.sleep(every_s)  # a look is no step
    return None


async def until_taken(handle: FaultHandle, taken: Callable[[], Awaitable[int]], limit_s: float) -> bool:
    """Wait until an interception has taken a message; False when none comes in time."""

    async def one() -> bool | None:
        return await taken() > 0 or None

    return await until_seen(handle, one, limit_s) is not None


async def until_led_by(handle: FaultHandle, partition: int, node: str, limit_s: float) -> bool:
    """Wait until `node` leads, as far as the cluster reports; False, with a note, after `limit_s`."""

    async def it() -> str | None:
        return node if await handle.targets.leader(partition) == node else None

    if await until_seen(handle, it, limit_s) is None:
        handle.notes.append(f"{node} did not come to lead partition {partition}")
        return False
    return True


async def until_isr(
    handle: FaultHandle, partition: int, holds: Callable[[Collection[str]], bool], patience_s: float
) -> bool:
    """Wait until this holds of the ISR, as brokers report it; False when it does not in time."""

    async def look() -> bool | None:
        view = await handle.cluster.admin.describe(handle.topic)
        known = view and view.partitions.get(partition)  # a broker that has just started may not know of the topic
        return (known is not None and holds(known.isr)) or None

    return await until_seen(handle, look, ISR_LIMIT * patience_s, every_s=_ISR_LOOK * patience_s) is not None


async def until_occurred(handle: FaultHandle, met_by: Callable[[Event], bool], since: int, limit_s: float) -> bool:
    """Wait until something has occurred, from number `since` on, that is met by `met_by`; False after `limit_s`."""
    events = handle.situation.events
    return await handle.situation.until_within(lambda: any(map(met_by, events[since:])), limit_s)


async def until_event(handle: FaultHandle, awaited: Event, since: int, limit_s: float) -> bool:
    """Wait until `awaited` has occurred, as event number `since` or later; False, with a note, after `limit_s`."""
    if await until_occurred(handle, partial(eq, awaited), since, limit_s):
        return True
    handle.notes.append(f"{awaited.subject}: not {awaited.kind} in time")
    return False


async def until_traced(handle: FaultHandle, kind: str, nodes: Sequence[str], limit_s: float) -> str | None:
    """The first of these nodes that writes such an event to its trace from now on, if they are watched; None, with a
    note, where none does in time."""
    events = handle.situation.events
    since = len(events)

    def is_it(event: Event) -> bool:
        return event.traced == kind and event.subject in nodes

    if not await until_occurred(handle, is_it, since, limit_s):
        handle.notes.append(f"{' '.join(nodes)}: no {kind} in time")
        return None
    return next(filter(is_it, events[since:])).subject


async def lead_again(handle: FaultHandle, controller: str, limit_s: float) -> bool:
    """Have whichever controller is active resign, again and again, until this one is elected; False when it is not.
    Each resignation, and each election, has `limit_s`."""
    events = handle.situation.events

    async def resigned() -> bool | None:
        return (await handle.cluster.admin.move_controller()).outcome == DONE or None

    def elected(event: Event) -> bool:
        return event.kind is Occurrence.CONTROLLER_ELECTED

    for _ in range(_RESIGNATIONS):
        since = len(events)
        if await until_seen(handle, resigned, limit_s) is None:
            return False
        if not await until_occurred(handle, elected, since, limit_s):
            return False
        if [event.subject for event in events[since:] if elected(event)][-1] == controller:
            return True
    return False
