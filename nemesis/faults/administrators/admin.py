"""Administrative operations while other faults are active.

None of these is a failure, but each changes leaders, followers, the replicas that an acknowledgement needs, or the
start of a log. They are requests over Kafka's protocol, so a controller that is cut off may leave them undone. What
takes a replica away, or raises a minimum, is reverted when the fault heals, with retries until it succeeds: a healed
cluster must be as able as it began. A request without an answer may take effect late, even after it was reverted, for
example in a broker that was paused; so the reverting request is then sent again when everything is healed, until the
cluster has recovered. A partition of which one replica moved to another broker stays there, as does an elected leader,
and deleted records stay deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.administrators.replica_moves import move, replace_anew
from nemesis.faults.administrators.requests import recorded, until_done
from nemesis.faults.fault import Family, Fault
from nemesis.faults.message import API_KEYS, NodeRequest
from nemesis.faults.scripted.script import until_event
from nemesis.handle import FaultHandle
from nemesis.ports import (
    DONE,
    UNANSWERED,
    AdminResult,
    EnvironmentCapability,
    KeepUnsynced,
    MessageEffect,
    MessagePart,
    MessageRule,
    both_ways,
    one_way,
)
from nemesis.situation import Event, Occurrence

_ALL_ALIKE_SHARE = 0.25
_CONTROLLER_SHARE = 0.2
_UNHEARD_SHARE = 0.25
_AGAIN_SHARE = 0.3
_SHORT_SHARE = 1 / 3
_ANEW_SHARE = 0.5
_SAME_AGAIN_SHARE = 0.5
_LEAVES_LIMIT: Final = 4.0
"""Longest wait for a replica to leave the ISR, in multiples of the cluster's patience."""
_REGISTERED_LIMIT_S = 4.0
"""Longest wait for the controllers to register a broker."""
_LEAVES_WITHIN: Final = 3.0
"""Time for a follower to leave the ISR, and for the move after that, in multiples of the cluster's patience."""
_CANCELLED_WITHIN: Final = 2.2
"""Time for both pauses between the requests of a reassignment that is cancelled, in the same."""
_TWICE_WITHIN: Final = 1.0
"""Time for a broker to stop, to be registered again, and to stop once more, in the same."""
_ANEW = " (any brokers)"
_KEEPS = (KeepUnsynced.NOTHING, KeepUnsynced.PREFIX, KeepUnsynced.TORN)

_FAMILY = Family(number=8, name="admin", colour="#5b5ea6", weight=3.0)
"""A dozen faults, most of them in several ways."""


@dataclass(frozen=True, slots=True)
class Reassign(Fault):
    """Move a partition to another broker; or take one of its replicas away where all brokers hold one, and put it back.

    The replica taken away is drawn, and may be the leader. Put back, it comes as an empty one under an old name
    (Kafka Replication Correctness §6.5.4). With `short` another replica, which stays, is cut off from the leader before
    and has left the ISR: the move has to wait for it where those that stay would be too few.

    With `anew` the replicas are drawn from all brokers, at least min.insync.replicas of them, in any order: several
    move at once, there are more or fewer of them, or another one is preferred. Those of before are put back.
    """

    name: ClassVar[str] = "reassign"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("reassigned", "held", "refused")
    """Links are cut where a replica is to be out of the ISR, also if the run ends before the request."""
    weight: ClassVar[float] = 2.0
    """With all members of the ISR or not."""
    in_steps: ClassVar[bool] = True
    removes_replicas: ClassVar[bool] = True

    partition: int = 0
    again_ms: float | None = None
    """After so long the same is asked once more, as by a tool that has not heard the answer; None: it is not. With
    `anew` it may be other replicas, in place of the first."""
    short: bool = False
    anew: bool = False
    """Whether the replicas are any brokers."""
    patience_ms: float = 2_000.0

    def __post_init__(self) -> None:
        if self.again_ms is not None and self.again_ms < 0:
            raise ValueError(f"again_ms: {self.again_ms:g} is less than 0")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition; shares of the draws ask twice, have a replica out of the ISR, and have replicas drawn from
        all brokers."""
        if not draws.cluster.replica_can_be_moved:
            return None
        partition, again = draws.partition(), draws.random.random() < _AGAIN_SHARE
        again_ms = float(round(draws.random.random() * draws.patience_ms)) if again else None
        short = draws.random.random() < _SHORT_SHARE
        patience_ms = draws.isr_patience_ms if short else draws.patience_ms
        struck = draws.written(partition) if short else partition
        return cls(struck, again_ms, short, draws.random.random() < _ANEW_SHARE, patience_ms)

    async def inject(self, handle: FaultHandle) -> None:
        """Ask for it, maybe twice, and what is under way then."""
        answers: list[AdminResult] = []
        staying = await self._cut_off(handle) if self.short else ""
        moved = await move(handle, self.partition, answers, staying, anew=self.anew)
        if moved is None:
            return
        handle.count_evidence("reassigned")
        await handle.cluster.admin.list_reassignments()
        if self.again_ms is None:
            return
        await asyncio.sleep(self.again_ms / 1000)
        if self.anew and handle.random.random() >= _SAME_AGAIN_SHARE:
            await replace_anew(handle, self.partition, moved, answers, staying)
        else:
            await recorded(answers, handle.cluster.admin.reassign(handle.topic, self.partition, moved.target))

    def least_s(self, cluster: ClusterShape) -> float:
        """Until the follower that is cut off has left the ISR, and until it asks again."""
        return (_LEAVES_WITHIN * cluster.isr_patience_s if self.short else 0.0) + (self.again_ms or 0.0) / 1000

    async def _cut_off(self, handle: FaultHandle) -> str:
        """Keep a follower from its leader until it has left the ISR."""
        leader = await handle.targets.leader(self.partition)
        followers = [member for member in handle.situation.partition(self.partition).isr if member != leader]
        if leader is None or not followers:
            handle.notes.append("there is no follower to be cut off")
            return ""
        follower, since = handle.random.choice(followers), len(handle.situation.events)
        handle.targets.add((leader, follower))
        await handle.hold(both_ways([leader], [follower]))
        limit_s = _LEAVES_LIMIT * self.patience_ms / 1000
        await until_event(handle, Event(Occurrence.LEFT_ISR, follower, self.partition), since, limit_s)
        return follower

    def describe(self) -> str:
        """Whether the replicas are any brokers."""
        return Fault.describe(self) + (_ANEW if self.anew else "")


@dataclass(frozen=True, slots=True)
class CancelReassignment(Fault):
    """Begin to move a partition, then cancel or replace the move at a drawn moment.

    The second request finds the new replica anywhere between unknown and in sync; where committed records rest on it,
    it must be refused. With `anew` the replicas of both requests are drawn as those of `reassign` are. The replicas of
    before are put back: an earlier fault's reassignment that is still under way is cancelled with the others, and what
    it adds is not a replica then.
    """

    name: ClassVar[str] = "cancel-reassignment"
    number: ClassVar[int] = 2
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("reassigned", "cancelled", "completed", "refused")
    """The move that is to be cancelled is one by itself, also where the run ends before it is."""
    in_steps: ClassVar[bool] = True
    removes_replicas: ClassVar[bool] = True

    partition: int = 0
    patience_ms: float = 2_000.0
    anew: bool = False
    """Whether the replicas are any brokers."""

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition; a share of the draws have replicas drawn from all brokers."""
        if not draws.cluster.replica_can_be_moved:
            return None
        return cls(draws.partition(), draws.patience_ms, draws.random.random() < _ANEW_SHARE)

    async def inject(self, handle: FaultHandle) -> None:
        """Move away, move back or elsewhere, and cancel that."""
        answers: list[AdminResult] = []
        moved = await move(handle, self.partition, answers, anew=self.anew, restored=True)
        if moved is None:
            return
        handle.count_evidence("reassigned")
        admin, patience_s = handle.cluster.admin, self.patience_ms / 1000
        # Requests need no injection: a pause between two may be shorter than that.
        await asyncio.sleep(handle.random.uniform(0.0, 1.0) * patience_s)
        if self.anew:
            await replace_anew(handle, self.partition, moved, answers)
        else:
            await recorded(answers, admin.reassign(handle.topic, self.partition, moved.before))
        await asyncio.sleep(handle.random.random() ** 3 * patience_s)
        answer = (await recorded(answers, admin.reassign(handle.topic, self.partition, None))).outcome
        outcome = {DONE: "cancelled", "NO_REASSIGNMENT_IN_PROGRESS": "completed"}.get(answer, "refused")
        handle.count_evidence("unanswered" if answer == UNANSWERED else outcome)

    def least_s(self, cluster: ClusterShape) -> float:
        """Until it cancels what it has begun."""
        return _CANCELLED_WITHIN * cluster.patience_s

    def describe(self) -> str:
        """Whether the replicas are any brokers."""
        return Fault.describe(self) + (_ANEW if self.anew else "")


@dataclass(frozen=True, slots=True)
class ElectPreferred(Fault):
    """Have the preferred replica of a partition elected."""

    name: ClassVar[str] = "elect-preferred"
    number: ClassVar[int] = 3
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("elected",)
    in_steps: ClassVar[bool] = True

    partition: int = 0

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """Some partition."""
        return cls(draws.partition())

    async def inject(self, handle: FaultHandle) -> None:
        """Ask for it once; it takes effect when leadership moves."""
        answer = (await handle.cluster.admin.elect_preferred(handle.topic, self.partition)).outcome
        handle.count_evidence(
            "elected" if answer == DONE else "not_needed" if answer == "ELECTION_NOT_NEEDED" else "refused"
        )

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """The preferred replica leads already while nothing else goes wrong."""
        return False


@dataclass(frozen=True, slots=True)
class RaiseMinIsr(Fault):
    """Raise min.insync.replicas of the topic by one while it is in use, and lower it again."""

    name: ClassVar[str] = "raise-min-isr"
    number: ClassVar[int] = 4
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("raised",)
    in_steps: ClassVar[bool] = True

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

        handle.add_undo(lambda: until_done(handle, lower, "lowering min.insync.replicas", answers))
        if (await recorded(answers, admin.configure(handle.topic, key, str(handle.min_isr + 1)))).outcome == DONE:
            handle.count_evidence("raised")


@dataclass(frozen=True, slots=True)
class ControlledRestart(Fault):
    """Stop nodes cleanly, one after the other, and start them again when the fault heals.

    A broker that stops cleanly hands its leadership over, flushes, and restarts without a loss of data; an active
    controller resigns and tells the others. With `keep` a node loses its power once it has stopped: everything that
    counts must be on its disk by then, so any node may, and all of one role may. With `unheard` a broker starts again
    at once, and stops once the controllers have registered it, before it hears of that: it has written nothing, so the
    stop before still counts.
    """

    name: ClassVar[str] = "controlled-restart"
    number: ClassVar[int] = 5
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("stopped",)
    in_steps: ClassVar[bool] = True

    nodes: tuple[str, ...] = ("any",)
    keep: KeepUnsynced | None = None
    """How much of what they had not synced they keep when their power is cut; without it they keep their power."""
    unheard: bool = False
    """Whether brokers stop twice, the second time before they hear that they are registered."""

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """One broker; in one of five a controller, where these are nodes of their own."""
        node = draws.broker()
        if draws.cluster.controllers and draws.random.random() < _CONTROLLER_SHARE:
            return cls((draws.controller(),))
        return cls((node,), unheard=bool(draws.cluster.controllers) and draws.random.random() < _UNHEARD_SHARE)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Messages that can be told apart, to lose the answer to a registration."""
        return frozenset({EnvironmentCapability.MESSAGES}) if self.unheard else frozenset()

    def adapted(self, unsupported: Collection[EnvironmentCapability], random: Random) -> Self | None:
        """One stop alone where messages cannot be told apart."""
        return replace(self, unheard=False) if self.needs() & frozenset(unsupported) else self

    def blacked_out(self, random: Random, cluster: ClusterShape) -> Self:
        """The power of the stopped node is cut; in some draws that of every node of its role, each once it has
        stopped."""
        keep = random.choice(_KEEPS)
        of_controllers = {"controller", *cluster.controllers}.issuperset(self.nodes)
        alike = cluster.controllers if of_controllers else cluster.brokers
        nodes = alike if random.random() < _ALL_ALIKE_SHARE else self.nodes
        return replace(self, nodes=nodes, keep=keep)

    async def inject(self, handle: FaultHandle) -> None:
        """Stop every node."""
        for node in await handle.targets.resolve(self.nodes):
            start = await handle.stop(node, self.keep)
            if self.unheard and node in handle.cluster.brokers:
                rule = MessageRule(
                    API_KEYS[NodeRequest.BROKER_REGISTRATION], MessagePart.RESPONSE, MessageEffect.DROP, count=0
                )
                let_pass, _ = await handle.intercept(one_way([node], handle.cluster.controllers), rule)
                since = len(handle.situation.events)
                await start()
                await until_event(handle, Event(Occurrence.REGISTERED, node), since, _REGISTERED_LIMIT_S)
                await handle.stop(node, self.keep)
                await let_pass()

    def least_s(self, cluster: ClusterShape) -> float:
        """Until a broker that stops twice has done so."""
        return _TWICE_WITHIN * cluster.patience_s if self.unheard else 0.0

    def describe(self) -> str:
        """Targets, whether they stop twice, and what is kept where the power is cut."""
        twice = ", and again before it hears of its registration" if self.unheard else ""
        return Fault.describe(self) + twice + _then_power_loss(self.keep)


@dataclass(frozen=True, slots=True)
class RollingRestart(Fault):
    """Restart every broker in a random order, each stopped cleanly and started before the next.

    With `keep` each loses its power once it has stopped.
    """

    name: ClassVar[str] = "rolling-restart"
    number: ClassVar[int] = 6
    family: ClassVar[Family] = _FAMILY
    ends_by_itself: ClassVar[bool] = True
    proof: ClassVar[tuple[str, ...]] = ("stopped",)
    in_steps: ClassVar[bool] = True

    patience_ms: float = 2_000.0
    keep: KeepUnsynced | None = None
    """As of a controlled restart."""

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """All brokers."""
        return cls(draws.patience_ms)

    def blacked_out(self, random: Random, cluster: ClusterShape) -> Self:
        """The power of every broker is cut once it has stopped."""
        return replace(self, keep=random.choice(_KEEPS))

    def describe(self) -> str:
        """Whether the power is cut."""
        return Fault.describe(self) + _then_power_loss(self.keep)

    async def inject(self, handle: FaultHandle) -> None:
        """Once around."""
        brokers = list(handle.cluster.brokers)
        handle.random.shuffle(brokers)
        for broker in brokers:
            start = await handle.stop(broker, self.keep)
            await handle.sleep(handle.random.uniform(0.0, 0.3) * self.patience_ms / 1000)
            await start()
            await handle.sleep(handle.random.uniform(0.2, 1.0) * self.patience_ms / 1000)


def _then_power_loss(keep: KeepUnsynced | None) -> str:
    return "" if keep is None else f", then power loss (keeps {keep})"


class MoveController(Fault):
    """Have the active controller resign, so that another one takes over while other faults are active."""

    name: ClassVar[str] = "move-controller"
    number: ClassVar[int] = 8
    family: ClassVar[Family] = _FAMILY
    proof: ClassVar[tuple[str, ...]] = ("moved",)
    in_steps: ClassVar[bool] = True

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """The active controller."""
        return cls()

    async def inject(self, handle: FaultHandle) -> None:
        """Ask for it once."""
        handle.targets.add((await handle.targets.active_controller(),))
        answer = (await handle.cluster.admin.move_controller()).outcome
        if answer == DONE:
            handle.count_evidence("moved")
        else:
            handle.notes.append(f"not moved: {answer}")

    def needs(self) -> frozenset[EnvironmentCapability]:
        """A controller that resigns when it is asked to."""
        return frozenset({EnvironmentCapability.RESIGNATION})
