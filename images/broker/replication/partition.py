"""One replica of one partition, as a pure decision machine.

A `Partition` is a plain value: it compares, hashes and copies cheaply. This module has the values; the decisions are in
`become_leader_or_follower.py`, `leader.py`, `follower.py`, `truncation.py` and `log_start.py`. Every function there
takes a partition, an event and, if a rule needs it, the time, and returns a `PartitionStep`: the next value, and the
decisions that the caller must apply, in order. Nothing here does I/O, so every interleaving of a few records and
elections can be explored.

The log itself is not in the value, only its start, its end and its epoch cache, which together give the leader epoch of
every offset.

Terms, as in docs/protocol.md: LEO (log end offset) and HW (high watermark) are exclusive; LESO is the LEO at which a
leader took over. The *maximal ISR* is the committed ISR plus every replica that an unresolved ISR change may have
added. A change is unresolved from the moment it is sent until an answer or newer metadata resolves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache
from images.broker.log.retention import LogStartReason
from images.broker.quick_replace import quick_replace
from images.broker.rules import Rules
from images.broker.truncation_protocol import TruncationProtocol
from images.wire.field_values import NO_EPOCH, NO_LEADER


class ReplicaRole(StrEnum):
    """The role of a replica."""

    LEADER = "leader"
    FOLLOWER = "follower"
    NONE = "none"
    """Not a replica of this partition, or no metadata has been read yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of the replication protocol. They change only with the topic's configuration."""

    min_insync_replicas: int
    replica_lag_time_max_ms: int
    rules: Rules
    truncation_protocol: TruncationProtocol = TruncationProtocol.TRUNCATE_ON_FETCH


class Follower(NamedTuple):
    """A leader's state of one other replica. Position and broker epoch come from the same fetch."""

    id: int
    log_end: int | None = None
    """The offset of its last accepted fetch; None before its first fetch in this leadership."""
    broker_epoch: int = -1
    caught_up_ms: int = 0
    """The last time at which it had reached the leader's LEO."""
    fetched_ms: int = 0
    leader_end_at_fetch: int = 0
    """The leader's LEO at its last fetch."""
    read_index: int = 0
    """The latest read index that this follower has acknowledged (see `leader.confirms_latest`)."""
    log_start: int = -1
    """Its log start at its last fetch; -1 before its first one."""


@quick_replace
class LeaderState(NamedTuple):
    """The state that a replica has only while it leads."""

    start: int
    """LESO: the leader epoch start offset."""
    followers: tuple[Follower, ...]
    proposed: tuple[int, ...] | None = None
    """The ISR of the one AlterPartition in flight."""
    unresolved_members: tuple[int, ...] = ()
    """Replicas that an abandoned AlterPartition may still add. They belong to the maximal ISR until the partition epoch
    rises above that of the request."""
    read_index: int = 0
    """The number of reads of the latest offset so far (Raft §6.4 calls such a read's number its read index)."""
    awaited: tuple[int, ...] = ()
    """Followers outside of the ISR for which the high watermark waits, so that they can join it."""

    def follower(self, replica: int) -> Follower | None:
        """The state of `replica`; None for the leader itself and for brokers that are no replicas."""
        for follower in self.followers:
            if follower.id == replica:
                return follower
        return None


@quick_replace
class Partition(NamedTuple):
    """The state of one replica."""

    node: int
    log_start: int = 0
    log_end: int = 0
    epochs: EpochCache = EpochCache()
    high_watermark: int = 0
    role: ReplicaRole = ReplicaRole.NONE
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    """The committed ISR, as this replica knows it."""
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = -1
    leadership: LeaderState | None = None
    epoch_query: int | None = None
    """The epoch whose end offset a follower needs from its leader before it fetches; None if it needs none."""
    truncation_rounds: int = 0
    """Requests to this leader that were answered with the point of divergence."""

    @property
    def leader_state(self) -> LeaderState:
        """The state of this leader. Raises ValueError for a replica that does not lead."""
        if self.leadership is None:
            raise ValueError("this replica does not lead the partition")
        return self.leadership


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    """A partition as the metadata has it."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


@quick_replace
class ReplicaFetch(NamedTuple):
    """The fields of a follower's Fetch that the protocol needs."""

    replica: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    read_index: int = 0
    """The read index of the leader when it sent the answer that precedes this fetch on its connection."""
    log_start: int = -1
    """The follower's log start."""


@dataclass(frozen=True, slots=True)
class IsrCommitted:
    """The controller committed an ISR change."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class IsrRefused:
    """The controller refused an ISR change.

    `certain`: no earlier request with the same change may still reach the controller. Otherwise a refusal proves
    nothing: an earlier request can arrive after the refusal and be committed, once the refused member has become
    eligible.
    """

    error: ErrorCode
    certain: bool


# --- decisions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """Record (leader epoch → LESO) in the log's epoch cache before serving anything."""

    leader_epoch: int
    start: int
    high_watermark: int
    """Before it is moved by what it counts."""


@dataclass(frozen=True, slots=True)
class BecameFollower:
    """Fetch from `leader` in `leader_epoch` from now on; from no broker if there is no leader."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Resigned:
    """This node no longer holds a replica."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log, its epoch cache and its producer state to `to` (exclusive), or to the base offset of the batch
    that contains `to`. A log that starts above `to` then starts there."""

    to: int
    log_end_before: int
    high_watermark_before: int
    answer: tuple[int, int] | None = None
    """The leader's (epoch, end offset) that asked for it; None for a truncation to a known offset."""


@dataclass(frozen=True, slots=True)
class TruncateFullyAndStartAt:
    """Delete all records: the log is empty and starts at `at`, behind a record of `epoch_before` (-1: not known)."""

    at: int
    log_end_before: int
    high_watermark_before: int
    epoch_before: int


@dataclass(frozen=True, slots=True)
class LogStartAdvanced:
    """Advance the log start to `after`, durably, before any answer has the new start."""

    before: int
    after: int
    reason: LogStartReason


@dataclass(frozen=True, slots=True)
class Converged:
    """The follower's log matches the leader's, after so many truncation rounds."""

    truncation_rounds: int


@dataclass(frozen=True, slots=True)
class HighWatermarkMoved:
    """The high watermark changed. For a leader with the members whose positions allowed it."""

    before: int
    after: int
    quorum: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Send AlterPartition with these members and the broker epoch of each."""

    members: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class IsrResolved:
    """The ISR change in flight is resolved: committed, or refused and perhaps rolled back."""

    isr: tuple[int, ...]
    """The ISR that was committed, or that was refused."""
    committed: bool
    rolled_back: bool = False
    error: ErrorCode = ErrorCode.none


Decision = (
    BecameLeader
    | BecameFollower
    | Resigned
    | Truncate
    | TruncateFullyAndStartAt
    | LogStartAdvanced
    | Converged
    | HighWatermarkMoved
    | ProposeIsr
    | IsrResolved
)


class PartitionStep(NamedTuple):
    """The result of an event: the next state, and the decisions to apply, in order."""

    partition: Partition
    decisions: tuple[Decision, ...] = ()
