"""A message that arrives when it is no longer true.

A request speaks for the life of the broker that sent it, for the leadership that it was sent in, and for brokers as its
sender knew them. A message that is late by a time drawn at random outlives none of these. This fault holds one until
something has happened that makes it untrue, and then lets it arrive:

1. The next request of `api` that `nodes` send to `against` is held, or the response to it. What is sent only upon a
   change is brought about: for an ISR change a follower and its leader do not reach each other for a while (all others
   stall until the sender leads something), a broker registers because it has ended once before, and controllers vote
   because the active one stalls.
2. The process of `victim` ends, or it loses its power with `keep`, and it starts again. Without a victim the leader of
   `partition` stalls for a while (between controllers the active one).
3. The message arrives a moment after `arrives_after` has happened, or after some times `patience_ms` if it has not.

A leader that lives on repeats its request for an ISR change: all that it sends are held.

A fetch that is to arrive when its receiver `leads_again` is one of a controller: once it is held its sender stalls, and
whichever controller is active resigns, until the receiver is active again, in a later epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.message import API_KEYS, NodeRequest, draw_traffic, is_sent_anyway
from nemesis.faults.message_steps import MessageSteps
from nemesis.faults.scripted.script import (
    drawn_pause,
    lead_again,
    until_event,
    until_occurred,
    until_seen,
    until_taken,
)
from nemesis.handle import FaultHandle, Heal
from nemesis.ports import (
    EnvironmentCapability,
    KeepUnsynced,
    Link,
    MessageEffect,
    MessagePart,
    MessageRule,
    both_ways,
    one_way,
)
from nemesis.situation import Event, Occurrence


class LateMoment(StrEnum):
    """What has happened when a message arrives."""

    RESTARTED = Occurrence.RESTARTED.value
    """The process of the victim runs again."""
    REGISTERED = Occurrence.REGISTERED.value
    """The controllers have registered it anew."""
    UNFENCED = Occurrence.UNFENCED.value
    """The controllers let it take part again, or the leader that stalled."""
    JOINED_ISR = Occurrence.JOINED_ISR.value
    """It is back in the ISR of a partition."""
    ELECTED = Occurrence.ELECTED.value
    """Another broker leads, or another controller is active."""
    LEADS_AGAIN = "leads_again"
    """The controller that receives it is active again, after others."""


_OF_ANOTHER_LIFE: Final = (LateMoment.REGISTERED, LateMoment.UNFENCED, LateMoment.JOINED_ISR)
_OF_ELECTIONS: Final = (NodeRequest.VOTE, NodeRequest.BEGIN_QUORUM_EPOCH)
"""Sent when there is no active controller."""
_STALLED_SHARE: Final = 0.3
"""Of the faults drawn, but for proposals and registrations: a leader stalls, and no process ends."""
_MEMBER_SHARE: Final = 0.4
"""Of the proposals for an ISR that a process ends over: a follower's, and not the sender's."""
_LATER_SHARE: Final = 0.25
"""Of the fetches that arrive when their receiver leads again: not at its election, but a while after it."""
_LIMIT: Final = 3.0
"""Longest wait for anything, in multiples of the cluster's patience."""
_PROPOSED_WITHIN: Final = 6.0
"""Time for all steps with a proposal for the ISR, in the same: until a follower has left it, and until the message
arrives."""


class _Interception(NamedTuple):
    """Messages that are held."""

    let_pass: Heal
    taken: Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class LateMessage(MessageSteps):
    """Hold a message until a process has ended and started again, or another leader was elected; then it arrives."""

    name: ClassVar[str] = "late-message"
    number: ClassVar[int] = 2
    acts_within: ClassVar[float] = 1.0
    weight: ClassVar[float] = 3.0

    nodes: tuple[str, ...] = ("any",)
    """Send the requests."""
    against: tuple[str, ...] = ("all",)
    """Send the responses."""
    api: NodeRequest = NodeRequest.FETCH
    part: MessagePart = MessagePart.REQUEST
    victim: str | None = None
    """The node whose process ends; without one a leader stalls."""
    keep: KeepUnsynced | None = None
    """The unsynced writes that it keeps when it loses power; without it, it is killed."""
    arrives_after: LateMoment = LateMoment.ELECTED
    partition: int = 0
    """Whose leader stalls, or proposes another ISR."""
    patience_ms: float = 2_000.0

    def __post_init__(self) -> None:
        if self.victim is None and self.keep is not None:
            raise ValueError(f"keep: {self.keep} without a victim that loses power")
        if self.victim is None and self.arrives_after in (LateMoment.RESTARTED, LateMoment.REGISTERED):
            raise ValueError(f"arrives_after: {self.arrives_after} without a victim that starts again")
        fetches = (self.api, self.part, self.victim) == (NodeRequest.FETCH, MessagePart.REQUEST, None)
        if self.arrives_after is LateMoment.LEADS_AGAIN and not fetches:
            raise ValueError(
                f"arrives_after: {self.arrives_after} is for {NodeRequest.FETCH} requests without a victim"
            )

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Most often a proposal for the ISR, or a fetch. Mostly the process of its sender ends, or of the follower that
        a proposal is about; else a leader stalls. None where nobody may end whose end it takes, or leaders are without
        followers."""
        random, traffic, partition = draws.random, draw_traffic(draws, lambda each: each.weight_late), draws.partition()
        proposes = traffic.api is NodeRequest.ALTER_PARTITION
        partition = draws.written(partition) if proposes else partition
        patience_ms = draws.isr_patience_ms if proposes else draws.patience_ms
        message = cls(against=(traffic.against,), api=traffic.api, partition=partition, patience_ms=patience_ms)
        part, keep = random.choice(list(MessagePart)), draws.keep() if random.random() < 0.5 else None
        stalls, leader = random.random() < _STALLED_SHARE, (f"leader/{partition}",)
        if traffic.by_controller:
            message, fetches = replace(message, nodes=("controllers",)), traffic.api is NodeRequest.FETCH
            again = replace(message, arrives_after=LateMoment.LEADS_AGAIN) if fetches else None
            if stalls:
                return again if again and part is MessagePart.REQUEST else replace(message, part=part)
            moment, victim = random.choice((LateMoment.RESTARTED, LateMoment.ELECTED)), draws.controller()
            if again and moment is LateMoment.ELECTED:
                return again
            return replace(message, victim=victim, keep=keep, arrives_after=moment)
        registers = traffic.api is NodeRequest.BROKER_REGISTRATION
        replicates = traffic.against == "brokers"
        alone = draws.cluster.replication_factor < 2 and (proposes or replicates)
        if alone or (registers and not draws.profile.victims):
            return None
        if not draws.profile.victims or (stalls and not (registers or proposes)):
            nodes = (draws.broker(),) if replicates else leader
            moment = random.choice((LateMoment.UNFENCED, LateMoment.ELECTED))
            return replace(message, nodes=nodes, part=part, arrives_after=moment)
        victim = draws.victim()
        if proposes and random.random() < _MEMBER_SHARE:
            return replace(message, nodes=leader, victim=victim, keep=keep, arrives_after=LateMoment.UNFENCED)
        return replace(
            message, nodes=(victim,), victim=victim, keep=keep, arrives_after=random.choice(_OF_ANOTHER_LIFE)
        )

    async def inject(self, handle: FaultHandle) -> None:
        """Run through the steps; what is still held at the end comes back then."""
        senders: Sequence[str] = await handle.targets.resolve(self.nodes)
        again = self.arrives_after is LateMoment.LEADS_AGAIN
        receivers: Sequence[str]
        if again:
            senders, receivers = await self._follower_and_leader(handle, senders)
        else:
            receivers = await handle.targets.resolve_peers(self.against)
        if not senders:
            return
        interception = await self._hold(handle, senders[0], one_way(senders, receivers))
        if interception is None:
            handle.notes.append("no such message was sent")
            return
        held_ns = handle.cluster.now_ns()
        if again:
            await handle.pause(senders[0])
            await self._lead_again(handle, receivers[0])
        else:
            await drawn_pause(handle, self.patience_ms, 0.0, 0.2)
            await self._overtake(handle, among_controllers=senders[0] in handle.cluster.controllers)
            await drawn_pause(handle, self.patience_ms, 0.0, 0.3)
        await interception.let_pass()
        handle.note_evidence("late_ms", (handle.cluster.now_ns() - held_ns) / 1e6)
        await drawn_pause(handle, self.patience_ms, 0.2, 1.0)

    async def _follower_and_leader(self, handle: FaultHandle, senders: Sequence[str]) -> tuple[list[str], list[str]]:
        """A sender that is not the active controller, and this; nobody where there is none."""
        active = await handle.targets.active_controller()
        others = [sender for sender in senders if sender != active]
        if not others:
            handle.notes.append(f"{active} is active, and fetches from nobody")
            return [], []
        follower = handle.random.choice(others)
        handle.targets.add((follower, active))
        return [follower], [active]

    # ---- the message -------------------------------------------------------------------------------------------------

    async def _hold(self, handle: FaultHandle, sender: str, links: Sequence[Link]) -> _Interception | None:
        """Have a message held, once it has been brought about; None when none is sent in time."""
        interception: _Interception | None
        restore: Heal | None = None
        if self.api is NodeRequest.ALTER_PARTITION:
            interception, restore = await self._propose(handle, sender, links)
        else:
            interception = await self._intercept(handle, links)
            if self.api is NodeRequest.BROKER_REGISTRATION and self.victim is not None:
                start = await self._end(handle, self.victim)
                await drawn_pause(handle, self.patience_ms, 0.02, 0.3)
                await start()
            elif self.api in _OF_ELECTIONS:
                restore = await handle.pause(await handle.targets.active_controller())
        if interception is None:
            return None
        held = await until_taken(handle, interception.taken, self._limit_s)
        if restore is not None:
            await restore()
        return interception if held else None

    async def _propose(
        self, handle: FaultHandle, leader: str, links: Sequence[Link]
    ) -> tuple[_Interception | None, Heal | None]:
        """Have a leader propose to take a follower out of the ISR, or to have it in again: the victim, if that is
        another node. One that stands alone proposes whoever comes next. None where the leader comes to lead nothing;
        what comes second has the follower and the leader reach each other again."""
        partition, victims = await self._led_by(handle, leader), await handle.targets.resolve(self._victims)
        if partition is None:
            handle.notes.append(f"{leader} leads no partition")
            return None, None
        followers = [broker for broker in handle.situation.partition(partition).isr if broker != leader]
        if not followers:
            return await self._intercept(handle, links), None
        follower = handle.random.choice([each for each in followers if each in victims] or followers)
        if follower not in victims and handle.random.random() < 0.5:
            interception = await self._intercept(handle, links)
            return interception, await handle.hold(both_ways([leader], [follower]))
        since, left = len(handle.situation.events), Event(Occurrence.LEFT_ISR, follower, partition)
        reunite = await handle.hold(both_ways([leader], [follower]))
        await until_event(handle, left, since, self._limit_s)
        interception = await self._intercept(handle, links)
        await reunite()
        return interception, None

    async def _led_by(self, handle: FaultHandle, leader: str) -> int | None:
        """A partition that the broker leads, if possible `partition`. While it leads none, all others stall, once it is
        in the ISR of one."""

        async def led() -> int | None:
            leaders = sorted((await handle.cluster.leaders()).items())
            led = [index for (topic, index), it in leaders if it == leader and handle.topic in ("", topic)]
            return self.partition if self.partition in led else next(iter(led), None)

        partition = await led()
        if partition is not None:
            return partition

        async def may_lead() -> bool | None:
            return any(leader in each.isr for each in handle.situation.partitions.values()) or None

        if await until_seen(handle, may_lead, self._limit_s) is None:
            return None
        wake = [await handle.pause(broker) for broker in handle.cluster.brokers if broker != leader]
        partition = await until_seen(handle, led, self._limit_s)
        for resume in wake:
            await resume()
        return partition

    async def _intercept(self, handle: FaultHandle, links: Sequence[Link]) -> _Interception:
        repeated = self.api is NodeRequest.ALTER_PARTITION and self.victim not in self.nodes
        rule = MessageRule(API_KEYS[self.api], self.part, MessageEffect.HOLD, count=0 if repeated else 1)
        return _Interception(*await handle.intercept(links, rule))

    # ---- what makes it untrue ----------------------------------------------------------------------------------------

    async def _overtake(self, handle: FaultHandle, *, among_controllers: bool) -> None:
        """End a process or stall it, and return when the moment has come after which the message arrives."""
        leader = "controller" if among_controllers else f"leader/{self.partition}"
        node = await handle.targets.resolve_one(self.victim or leader)
        since = len(handle.situation.events)
        undo = await (self._end(handle, node) if self.victim else handle.pause(node))
        if self.arrives_after is LateMoment.ELECTED:
            kind = Occurrence.CONTROLLER_ELECTED if among_controllers else Occurrence.ELECTED

            def comes(event: Event) -> bool:
                return event.kind is kind and event.subject != node
        else:
            briefly = self.victim is not None and handle.random.random() < 0.5
            await drawn_pause(handle, self.patience_ms, *((0.02, 0.3) if briefly else (1.1, 1.6)))
            await undo()

            def comes(event: Event) -> bool:
                return event.kind.value == self.arrives_after.value and event.subject == node

        if not await until_occurred(handle, comes, since, self._limit_s):
            handle.notes.append(f"not in time: {self.arrives_after}")
        if handle.random.random() < 0.5:
            await undo()

    async def _lead_again(self, handle: FaultHandle, controller: str) -> None:
        """Have this controller elected again. Mostly the message arrives then, before anything is committed in the new
        epoch."""
        if not await lead_again(handle, controller, self._limit_s):
            handle.notes.append(f"not in time: {self.arrives_after}")
        elif handle.random.random() < _LATER_SHARE:
            await drawn_pause(handle, self.patience_ms, 0.0, 0.3)

    async def _end(self, handle: FaultHandle, target: str) -> Heal:
        (node,) = await handle.targets.resolve((target,))
        return await handle.end(node, self.keep)

    @property
    def _limit_s(self) -> float:
        return _LIMIT * self.patience_ms / 1000

    # ---- the declaration ---------------------------------------------------------------------------------------------

    def least_s(self, cluster: ClusterShape) -> float:
        """Of a proposal until it has arrived: a follower has to leave the ISR before."""
        return _PROPOSED_WITHIN * self.patience_ms / 1000 if self.api is NodeRequest.ALTER_PARTITION else 0.0

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """Only if such a message is sent at all."""
        return is_sent_anyway(self.api, self.nodes, self.against)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Messages that can be told apart, and perhaps controllers that resign when they are asked to."""
        again = {EnvironmentCapability.RESIGNATION} if self.arrives_after is LateMoment.LEADS_AGAIN else set()
        return frozenset({EnvironmentCapability.MESSAGES, *again})

    def targets(self) -> tuple[str, ...]:
        """Both ends of the message, and the victim."""
        return (*self.nodes, *self.against, *self._victims)

    def at_risk(self, cluster: ClusterShape) -> tuple[str, ...]:
        """The victim."""
        return self._victims

    @property
    def _victims(self) -> tuple[str, ...]:
        return () if self.victim is None else (self.victim,)

    def describe(self) -> str:
        """The message, what overtakes it, and when it arrives."""
        message = f"late {self.api} {self.part} {' '.join(self.nodes)} → {' '.join(self.against)}"
        ends = f"kill {self.victim}" if self.keep is None else f"power loss {self.victim} (keeps {self.keep})"
        stalls = "its sender stalls" if self.arrives_after is LateMoment.LEADS_AGAIN else "its leader stalls"
        overtaking = stalls if self.victim is None else ends
        return f"{message}; {overtaking}; {self.arrives_after.replace('_', ' ')}"
