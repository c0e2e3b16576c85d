"""Single messages that are late, held up or lost.

A partition stops everything between two nodes, for long enough to be noticed. Protocols break on less: one response
that is lost after its request took effect, so that the request is sent again, or one request that arrives in a later
life of its sender (`nemesis.faults.late_message` waits for that). `part` says whether the fault concerns requests of
`nodes` to `against`, or the responses to them; a response is known by its request, which must be sent while the fault
lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple, Self

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws
from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle
from nemesis.ports import EnvironmentCapability, MessageEffect, MessagePart, MessageRule, one_way


class NodeRequest(StrEnum):
    """A request that nodes send each other, some of them because a client has asked for it, as Kafka calls it."""

    FETCH = "Fetch"
    CREATE_TOPICS = "CreateTopics"
    DELETE_TOPICS = "DeleteTopics"
    OFFSET_FOR_LEADER_EPOCH = "OffsetForLeaderEpoch"
    CREATE_PARTITIONS = "CreatePartitions"
    ELECT_LEADERS = "ElectLeaders"
    INCREMENTAL_ALTER_CONFIGS = "IncrementalAlterConfigs"
    ALTER_PARTITION_REASSIGNMENTS = "AlterPartitionReassignments"
    VOTE = "Vote"
    BEGIN_QUORUM_EPOCH = "BeginQuorumEpoch"
    END_QUORUM_EPOCH = "EndQuorumEpoch"
    ALTER_PARTITION = "AlterPartition"
    FETCH_SNAPSHOT = "FetchSnapshot"
    BROKER_REGISTRATION = "BrokerRegistration"
    BROKER_HEARTBEAT = "BrokerHeartbeat"
    ALLOCATE_PRODUCER_IDS = "AllocateProducerIds"
    GET_REPLICA_LOG_INFO = "GetReplicaLogInfo"


API_KEYS: Final = {
    NodeRequest.FETCH: 1,
    NodeRequest.CREATE_TOPICS: 19,
    NodeRequest.DELETE_TOPICS: 20,
    NodeRequest.OFFSET_FOR_LEADER_EPOCH: 23,
    NodeRequest.CREATE_PARTITIONS: 37,
    NodeRequest.ELECT_LEADERS: 43,
    NodeRequest.INCREMENTAL_ALTER_CONFIGS: 44,
    NodeRequest.ALTER_PARTITION_REASSIGNMENTS: 45,
    NodeRequest.VOTE: 52,
    NodeRequest.BEGIN_QUORUM_EPOCH: 53,
    NodeRequest.END_QUORUM_EPOCH: 54,
    NodeRequest.ALTER_PARTITION: 56,
    NodeRequest.FETCH_SNAPSHOT: 59,
    NodeRequest.BROKER_REGISTRATION: 62,
    NodeRequest.BROKER_HEARTBEAT: 63,
    NodeRequest.ALLOCATE_PRODUCER_IDS: 67,
    NodeRequest.GET_REPLICA_LOG_INFO: 93,
}


class Traffic(NamedTuple):
    """Requests that nodes send each other."""

    api: NodeRequest
    by_controller: bool
    against: str
    weight: int
    """How often it is drawn, relative to the others."""
    weight_late: int = 0
    """The same of messages that are to arrive when they are no longer true: how much a protocol rests on one. 0 of
    those that `LateMessage` cannot bring about."""

    def is_sent_in(self, cluster: ClusterShape) -> bool:
        """Whether there are nodes that send it, and that receive it."""
        if len(cluster.controllers) < self.by_controller + (self.against == "controllers"):
            return False
        if self.api is NodeRequest.OFFSET_FOR_LEADER_EPOCH:
            return cluster.queries_epochs
        return self.api is not NodeRequest.GET_REPLICA_LOG_INFO or cluster.recovery_compares_logs


_TRAFFIC: Final = (
    Traffic(NodeRequest.FETCH, by_controller=False, against="brokers", weight=10, weight_late=5),
    Traffic(NodeRequest.ALTER_PARTITION, by_controller=False, against="controllers", weight=8, weight_late=8),
    Traffic(NodeRequest.FETCH, by_controller=False, against="controllers", weight=4, weight_late=1),
    Traffic(NodeRequest.BROKER_HEARTBEAT, by_controller=False, against="controllers", weight=2, weight_late=3),
    Traffic(NodeRequest.BROKER_REGISTRATION, by_controller=False, against="controllers", weight=6, weight_late=1),
    Traffic(NodeRequest.FETCH, by_controller=True, against="controllers", weight=4, weight_late=2),
    Traffic(NodeRequest.VOTE, by_controller=True, against="controllers", weight=2, weight_late=1),
    Traffic(NodeRequest.BEGIN_QUORUM_EPOCH, by_controller=True, against="controllers", weight=2, weight_late=1),
    Traffic(NodeRequest.END_QUORUM_EPOCH, by_controller=True, against="controllers", weight=1),
    Traffic(NodeRequest.FETCH_SNAPSHOT, by_controller=False, against="controllers", weight=1),
    Traffic(NodeRequest.FETCH_SNAPSHOT, by_controller=True, against="controllers", weight=1),
    Traffic(NodeRequest.GET_REPLICA_LOG_INFO, by_controller=True, against="brokers", weight=2),
    Traffic(NodeRequest.OFFSET_FOR_LEADER_EPOCH, by_controller=False, against="brokers", weight=4),
    Traffic(NodeRequest.ALLOCATE_PRODUCER_IDS, by_controller=False, against="controllers", weight=2),
    Traffic(NodeRequest.ALTER_PARTITION_REASSIGNMENTS, by_controller=False, against="controllers", weight=2),
    Traffic(NodeRequest.CREATE_TOPICS, by_controller=False, against="controllers", weight=1),
    Traffic(NodeRequest.DELETE_TOPICS, by_controller=False, against="controllers", weight=1),
    Traffic(NodeRequest.CREATE_PARTITIONS, by_controller=False, against="controllers", weight=1),
    Traffic(NodeRequest.ELECT_LEADERS, by_controller=False, against="controllers", weight=1),
    Traffic(NodeRequest.INCREMENTAL_ALTER_CONFIGS, by_controller=False, against="controllers", weight=1),
)
_WITHOUT_CAUSE: Final = (NodeRequest.FETCH, NodeRequest.BROKER_HEARTBEAT)
"""Sent all the time."""


def draw_traffic(draws: Draws, weight: Callable[[Traffic], int]) -> Traffic:
    """Requests that the nodes of the cluster send each other."""
    usual = [each for each in _TRAFFIC if each.is_sent_in(draws.cluster)]
    (traffic,) = draws.random.choices(usual, list(map(weight, usual)))
    return traffic


def is_sent_anyway(api: NodeRequest, senders: Sequence[str], receivers: Sequence[str]) -> bool:
    """Whether such requests are sent where nothing goes wrong. Some are sent only when something has changed, a broker
    that leads everything fetches from no other, and the active controller from nobody."""
    return api in _WITHOUT_CAUSE and tuple(receivers) == ("controllers",) and not senders[0].startswith("c")


def _possible(cluster: ClusterShape) -> bool:
    return EnvironmentCapability.MESSAGES not in cluster.unsupported


@dataclass(frozen=True, slots=True)
class MessageFault(Fault):
    """Delay, hold or drop the next `count` requests of an API (all of them with 0), or the responses to them."""

    name: ClassVar[str] = "message"
    number: ClassVar[int] = 1
    family: ClassVar[Family] = Family(number=14, name="message", colour="#7d6bb0", possible=_possible, weight=2.0)
    proof: ClassVar[tuple[str, ...]] = ("intercepted",)
    acts_within: ClassVar[float] = 1.0

    nodes: tuple[str, ...] = ("any",)
    """Send the requests."""
    against: tuple[str, ...] = ("all",)
    """Send the responses."""
    api: NodeRequest = NodeRequest.FETCH
    part: MessagePart = MessagePart.REQUEST
    effect: MessageEffect = MessageEffect.DROP
    delay_ms: float = 0.0
    count: int = 1

    def __post_init__(self) -> None:
        if (self.effect is MessageEffect.DELAY) is not (self.delay_ms > 0):
            raise ValueError(f"delay_ms: {self.delay_ms:g} with effect {self.effect}; a delay takes time, others none")
        if self.count < 0:
            raise ValueError(f"count: {self.count} is not 0 or more")

    @classmethod
    def draw(cls, draws: Draws) -> Self | None:
        """What brokers send each other most often, then what they ask controllers, and controllers each other; at times
        what is seldom sent, such as what clients have a broker ask the active controller."""
        random, traffic = draws.random, draw_traffic(draws, lambda each: each.weight)
        effect = random.choice(list(MessageEffect))
        return cls(
            nodes=(draws.controller() if traffic.by_controller else draws.broker(),),
            against=(traffic.against,),
            api=traffic.api,
            part=random.choice(list(MessagePart)),
            effect=effect,
            delay_ms=round(10 ** random.uniform(1.0, 3.7), 1) if effect is MessageEffect.DELAY else 0.0,
            count=random.choice((1, 1, 1, 3, 0)),
        )

    async def inject(self, handle: FaultHandle) -> None:
        """Look at the messages between the nodes."""
        nodes = await handle.targets.resolve(self.nodes)
        against = await handle.targets.resolve_peers(self.against)
        rule = MessageRule(API_KEYS[self.api], self.part, self.effect, self.delay_ms, self.count)
        await handle.intercept(one_way(nodes, against), rule)

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """Only if such a message is sent at all."""
        return is_sent_anyway(self.api, self.nodes, self.against)

    def strikes_starts(self) -> bool:
        """A broker registers once, and asks again where it has no answer."""
        return self.api is NodeRequest.BROKER_REGISTRATION

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Messages that can be told apart."""
        return frozenset({EnvironmentCapability.MESSAGES})

    def describe(self) -> str:
        """The effect, the messages, and between which nodes."""
        effect = f"{self.effect} {self.delay_ms:g} ms" if self.delay_ms else str(self.effect)
        count = f"{self.count}× " if self.count else "every "
        return f"{effect} {count}{self.api} {self.part} {' '.join(self.nodes)} → {' '.join(self.against)}"
