"""The state of a cluster in an exploration, as plain values that compare, hash and pickle.

Numbers that only rise would make the states endless, so partition epochs are relative: the newest one that the
controller has committed is 0, the one before it -1. Partition epochs of different brokers are never compared, only
those of one broker with the controller's, so each broker counts back over the updates that it has not read.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochEnd
from images.broker.metadata.image import PartitionImage
from images.broker.replication.partition import (
    IsrCommitted,
    Partition,
    PartitionRegistration,
    ProposeIsr,
    ReplicaFetch,
)
from images.broker.replication.replica_results import FetchResult

TOPIC: Final = "explored"
TOPIC_ID: Final = uuid.UUID(int=1)


class LogRecord(NamedTuple):
    """A record in a log. Records of one epoch at one offset have different numbers unless they are the same record."""

    epoch: int
    number: int


class MetadataUpdate(NamedTuple):
    """A committed change of the metadata, as a broker reads it: of the partition, or of brokers alone and then in the
    same partition epoch."""

    registration: PartitionRegistration
    active: tuple[tuple[int, int], ...]
    """Id and broker epoch of the brokers that may be in an ISR."""


class FollowerRequest(NamedTuple):
    """A follower's Fetch, or with `epoch_query` its OffsetForLeaderEpoch."""

    fetch: ReplicaFetch
    leader_epoch: int
    """The follower's leader epoch, which decides whether the answer still applies."""
    fence: int
    """The leader epoch in requests other than Fetch."""
    epoch_query: int | None = None


class LeaderAnswer(NamedTuple):
    """The answer to a `FollowerRequest`."""

    fetched: FetchResult | None = None
    leader_end: int | None = None
    """The answer of ListOffsets, with which a follower goes on whose offset is out of range."""
    epoch_end: EpochEnd | None = None
    """The answer of OffsetForLeaderEpoch, None for an error."""


class Exchange(NamedTuple):
    """A request on its way to a leader, or its answer on its way back."""

    leader: int
    request: FollowerRequest
    answer: LeaderAnswer | None = None


class SharedExchange(Exchange):
    """That of a fetcher which has other partitions of that leader, and so stays when this one gets another leader."""

    __slots__ = ()


class SentProposal(NamedTuple):
    """An ISR change that a leader has sent."""

    broker_epoch: int
    """The leader's."""
    proposal: ProposeIsr


class IsrAnswer(NamedTuple):
    """The controller's answer to an ISR change."""

    error: ErrorCode
    committed: IsrCommitted | None = None


class IsrExchange(NamedTuple):
    """The AlterPartition of a leader that waits for the answer, or that answer on its way. Nobody may wait for what it
    tells any more."""

    sent: SentProposal
    """In the partition epochs of the controller."""
    certain: bool = True
    """Whether it is the only request with this change."""
    answer: IsrAnswer | None = None
    """In the partition epochs of the leader."""


class ReplicaDisk(NamedTuple):
    """The files of a replica, beside its log as it is, that a crash may bring back."""

    checkpoint: int = 0
    """The greatest high watermark that the checkpoint may have."""
    truncated: tuple[tuple[LogRecord, ...], ...] = ()
    """The log before each truncation behind which nothing was appended: a loss may undo it."""

    def after(self, before: tuple[LogRecord, ...], log: tuple[LogRecord, ...], high_watermark: int) -> ReplicaDisk:
        """The files once the log `before` has become `log`, with this high watermark."""
        checkpoint = max(self.checkpoint, high_watermark)
        if log[: len(before)] == before:
            return ReplicaDisk(checkpoint, () if len(log) > len(before) else self.truncated)
        left = {it for it in (*self.truncated, before) if log[: len(it)] != it}
        return ReplicaDisk(checkpoint, tuple(sorted(left)))


class BrokerState(NamedTuple):
    """One broker: its replica, and what it has sent and not yet read."""

    partition: Partition
    records: tuple[LogRecord, ...] = ()
    broker_epoch: int = 0
    """The broker epoch of its running process."""
    fetched_epoch: int = -1
    """The leader epoch in which a fetch of this follower was answered last."""
    active: tuple[tuple[int, int], ...] = ()
    """The active brokers in the metadata that a leader has read; followers do not need it."""
    unread: tuple[MetadataUpdate, ...] = ()
    """Updates that this broker has yet to read, oldest first. Those that would change nothing are left out."""
    proposal: ProposeIsr | None = None
    """The AlterPartition that this leader sends until it is answered."""
    exchange: Exchange | None = None
    """The request in flight of this follower; None where a request and its answer are one step."""
    late: Exchange | None = None
    """A request on a connection that is lost: it may still reach the leader, and nobody waits for the answer."""
    down: bool = False
    """Whether its process has crashed, and no new one has registered yet."""
    unclean: bool = False
    """Whether it has crashed, and has not been in the ISR since it registered again."""
    lossy: bool = False
    """Whether it has lost data, too."""
    late_proposal: SentProposal | None = None
    """The AlterPartition of an earlier incarnation, or of a lost connection, which may still reach the controller."""
    told: bool = False
    """Whether it knows its partition epoch from the answer to an ISR change, and has yet to read its update."""
    isr_exchange: IsrExchange | None = None
    """The AlterPartition in flight, or its answer; None where the controller's decision and its answer are one step."""
    disk: ReplicaDisk | None = None
    """None where no broker can crash any more."""


class RegisteredBroker(NamedTuple):
    """A broker as the controller has it."""

    id: int
    epoch: int
    fenced: bool = False
    shutting_down: bool = False


class ControllerState(NamedTuple):
    """The controller's committed metadata."""

    brokers: tuple[RegisteredBroker, ...]
    partition: PartitionImage

    @property
    def active(self) -> tuple[tuple[int, int], ...]:
        """Id and broker epoch of the brokers that may be in an ISR."""
        return tuple((it.id, it.epoch) for it in self.brokers if not it.fenced and not it.shutting_down)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once a reassignment is complete, if one is under way. Any of them may be the preferred one."""
        return tuple(it for it in self.partition.replicas if it not in self.partition.removing)


class ClusterHistory(NamedTuple):
    """What the promises and the bounds of a scope need of the past."""

    committed: tuple[LogRecord, ...] = ()
    """The records that lay below the high watermark of a leader at some time."""
    appended: int = 0
    """Records that producers have appended so far."""
    crashes: int = 0
    losses: int = 0
    """Crashes in which a broker has lost data."""
    reassignments: int = 0
    """Reassignments that were started."""
    fencings: int = 0
    """Sessions that ended in a step of their own."""


class ExploredCluster(NamedTuple):
    """The whole cluster."""

    brokers: tuple[BrokerState, ...]
    """By id, from 1 on."""
    controller: ControllerState
    history: ClusterHistory
