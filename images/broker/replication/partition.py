"""One replica of one partition, as a pure decision machine.

A `Partition` is a plain value: it compares, hashes and copies cheaply. This module holds the values; the decisions are
in `roles.py` (who leads), `leading.py` and `following.py`. Every function there takes a partition, an event and the
time where a rule needs it, and gives back a `Step`: the next value and the decisions the shell must carry out, in
order. Nothing here does I/O, so every interleaving of a few records and elections can be explored.

The log itself is not in the value, only what the protocol decides upon: start, end and the epoch cache, which together
tell the leader epoch of every offset.

Terms, as in the protocol notes: LEO (log end offset) and HW (high watermark) are exclusive; LESO is the LEO at which a
leader took over. The *maximal ISR* is the committed ISR joined with everybody whom a change that may have been
committed could have added: a change is in doubt from the moment it is sent until an answer or newer metadata settles
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache
from images.broker.log.retention import LogStartReason
from images.broker.rules import Rules
from images.broker.truncation_protocol import TruncationProtocol

NO_LEADER = -1
NO_EPOCH = -1


class ReplicaRole(StrEnum):
    """What a replica is at the moment."""

    LEADER = "leader"
    FOLLOWER = "follower"
    NONE = "none"
    """Not a replica of this partition, or nothing is known yet."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rules are measured against; the same for the life of a topic's configuration."""

    min_insync_replicas: int
    replica_lag_time_max_ms: int
    rules: Rules
    truncation_protocol: TruncationProtocol = TruncationProtocol.TRUNCATE_ON_FETCH


class Follower(NamedTuple):
    """What a leader knows of one other replica. Position and broker epoch come from one and the same fetch."""

    id: int
    log_end: int | None = None
    """Where its last accepted fetch began; None until it has been heard in this leadership."""
    broker_epoch: int = -1
    caught_up_ms: int = 0
    """The last time at which it is known to have had everything the leader had."""
    fetched_ms: int = 0
    leader_end_then: int = 0
    """The leader's LEO at its last fetch."""
    read_index: int = 0
    """The newest question for the latest offset that it has been heard from since (see `confirms_latest`)."""
    log_start: int = -1
    """Where its log started at that fetch; -1 until it has told."""


class LeaderState(NamedTuple):
    """What a replica holds only while it leads."""

    start: int
    """LESO: the leader epoch start offset."""
    followers: tuple[Follower, ...]
    proposed: tuple[int, ...] | None = None
    """The ISR of the one AlterPartition in flight."""
    unresolved_members: tuple[int, ...] = ()
    """Members that a request given up on may yet add: they count until the partition epoch moves past it."""
    read_index: int = 0
    """Questions for the latest offset asked so far."""

    def follower(self, replica: int) -> Follower | None:
        """What is known of `replica`; None for the leader itself and for strangers."""
        for follower in self.followers:
            if follower.id == replica:
                return follower
        return None


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
    """The epoch whose end a follower must learn of its leader before it fetches; None when there is nothing to ask."""
    truncation_rounds: int = 0
    """Exchanges with the leader since this replica began to follow it, as far as they were about where to cut."""

    @property
    def leader_state(self) -> LeaderState:
        """The leadership; asking a replica that does not lead is an error of the caller."""
        if self.leadership is None:
            raise ValueError("this replica does not lead the partition")
        return self.leadership


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    """What the controller's metadata says of a partition."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


class ReplicaFetch(NamedTuple):
    """A Fetch of a follower, as far as the protocol looks at it."""

    replica: int
    broker_epoch: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    read_index: int = 0
    """The newest question that had been asked when the answer this fetch follows upon was sent."""
    log_start: int = -1
    """Where the follower's log starts."""


@dataclass(frozen=True, slots=True)
class IsrCommitted:
    """The controller committed an ISR change."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class IsrRefused:
    """The controller refused an ISR change, or its answer is lost for good.

    `certain`: no earlier attempt at the same change may still be on its way. Without it even a refusal proves
    nothing: an attempt given up on can reach the controller after the refusal and be committed, once the member that
    was refused has become eligible.
    """

    error: ErrorCode
    certain: bool


# --- decisions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """Record (leader epoch → LESO) in the log's epoch cache before serving anything."""

    leader_epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class BecameFollower:
    """Fetch from `leader` in `leader_epoch` from now on (from nobody if there is no leader)."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Resigned:
    """This node no longer holds a replica."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log, its epoch cache and its producer state to `to` (exclusive), or to the base of the batch it is in; a
    log that started above starts there."""

    to: int
    log_end_before: int
    high_watermark_before: int


@dataclass(frozen=True, slots=True)
class TruncateFullyAndStartAt:
    """Drop everything: the log is empty and starts at `at`."""

    at: int
    log_end_before: int
    high_watermark_before: int


@dataclass(frozen=True, slots=True)
class LogStartAdvanced:
    """Let the log start at `after`, for good, before anybody is told."""

    before: int
    after: int
    reason: LogStartReason


@dataclass(frozen=True, slots=True)
class Converged:
    """The follower's log fits the leader's, after so many exchanges about where they part."""

    truncation_rounds: int


@dataclass(frozen=True, slots=True)
class HighWatermarkMoved:
    """The high watermark changed; for a leader, which members' positions allowed it."""

    before: int
    after: int
    quorum: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    """The LEO the leader held for each member of `quorum`."""


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Send AlterPartition with these members and the broker epoch each was judged by."""

    members: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class IsrSettled:
    """The ISR change in flight ended: committed, or refused and (perhaps) rolled back."""

    isr: tuple[int, ...]
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
    | IsrSettled
)


class PartitionStep(NamedTuple):
    """Where an event leads: the next state, and what the shell must do, in order."""

    partition: Partition
    decisions: tuple[Decision, ...] = ()
