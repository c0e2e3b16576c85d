"""A request of a client that arrives after the client has gone on.

A client that gets no answer in time closes its connection, asks again on another one, and goes on. The first request is
not gone for that: it may wait on its way, and arrive when much has followed. A broker knows the last few batches of a
producer. A copy of one of these it answers like the first one; anything older it has to refuse, since records that are
appended a second time are duplicates. So it is with the requests of a group's member, which may be in another
generation by then, or another member.

1. The next request of `api` that a client sends to the leader of `partition` (of a member: to any broker) is held, and
   so is all that follows on its connection.
2. After `timeout_ms` the client has given it up. Once `appends` more of the partition are acknowledged, it arrives;
   where they are not within twenty seconds, then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, draw_scale
from nemesis.faults.message_steps import MessageSteps
from nemesis.faults.scripted.script import until_taken
from nemesis.handle import FaultHandle
from nemesis.ports import CLIENTS, MessageEffect, MessagePart, MessageRule, one_way


class ClientRequest(StrEnum):
    """A request that changes something, as Kafka calls it."""

    PRODUCE = "Produce"
    OFFSET_COMMIT = "OffsetCommit"
    JOIN_GROUP = "JoinGroup"
    HEARTBEAT = "Heartbeat"
    LEAVE_GROUP = "LeaveGroup"
    SYNC_GROUP = "SyncGroup"


_NUMBERS: Final = {
    ClientRequest.PRODUCE: 0,
    ClientRequest.OFFSET_COMMIT: 8,
    ClientRequest.JOIN_GROUP: 11,
    ClientRequest.HEARTBEAT: 12,
    ClientRequest.LEAVE_GROUP: 13,
    ClientRequest.SYNC_GROUP: 14,
}
_APPENDS: Final = (4.0, 100.0)
"""So many are acknowledged before it arrives: those of one batch, or of more than a broker remembers."""
_LIMIT: Final = 3.0
"""Longest wait for a request, in multiples of the client's timeout."""
_LIMIT_S: Final = 20.0
"""Longest wait for the appends."""


@dataclass(frozen=True, slots=True)
class LateRequest(MessageSteps):
    """Hold a client's request until the client has given it up, sent it again, and gone on."""

    name: ClassVar[str] = "late-request"
    number: ClassVar[int] = 6
    weight: ClassVar[float] = 3.0

    api: ClientRequest = ClientRequest.PRODUCE
    partition: int = 0
    appends: int = 50
    timeout_ms: float = 1_500.0
    """`clients.request_timeout`."""

    def __post_init__(self) -> None:
        if self.appends < 0:
            raise ValueError(f"appends: {self.appends} is less than 0")
        if self.timeout_ms <= 0:
            raise ValueError(f"timeout_ms: {self.timeout_ms:g} is not more than 0")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """A producer's, to the leader of some partition (the first one, to which clients always write, where others may
        be idle), or, where there are groups, as often a member's."""
        random, cluster = draws.random, draws.cluster
        partition, appends = draws.partition(), round(draw_scale(random, *_APPENDS))
        of_member = random.random() < 0.5
        api = random.choice(list(ClientRequest)[1:]) if of_member and cluster.has_groups else ClientRequest.PRODUCE
        return cls(api, draws.written(partition), appends, 1000 * cluster.request_timeout_s)

    async def inject(self, handle: FaultHandle) -> None:
        """Hold the request, and let it arrive."""
        brokers = await handle.targets.resolve(self.targets())
        rule = MessageRule(_NUMBERS[self.api], MessagePart.REQUEST, MessageEffect.HOLD)
        _, taken = await handle.intercept(one_way([CLIENTS], brokers), rule)
        if not await until_taken(handle, taken, _LIMIT * self.timeout_ms / 1000):
            handle.notes.append("no such request was sent")
            return
        held_ns = handle.cluster.now_ns()
        await handle.sleep(self.timeout_ms / 1000)
        acknowledged = handle.situation.acknowledged
        awaited = acknowledged.get(self.partition, 0) + self.appends
        await handle.situation.until_within(lambda: acknowledged.get(self.partition, 0) >= awaited, _LIMIT_S)
        handle.note_evidence("late_ms", (handle.cluster.now_ns() - held_ns) / 1e6)

    def least_s(self, cluster: ClusterShape) -> float:
        """Until the client has given the request up."""
        return self.timeout_ms / 1000

    def targets(self) -> tuple[str, ...]:
        """The leader of the partition, or whichever broker is the group's coordinator."""
        return (f"leader/{self.partition}",) if self.api is ClientRequest.PRODUCE else ("brokers",)

    def describe(self) -> str:
        """Which request it is, and when it arrives."""
        appends = f"{self.appends} more appends of partition {self.partition}"
        return f"{self.api} of a client to {' '.join(self.targets())} arrives after {appends}"
