"""What a controller knows, is asked and has to say as a member of the quorum: plain values, which decide nothing.

Offsets are of the metadata log, epochs are controller epochs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache, EpochEnd

NO_NODE = -1


class RaftRole(StrEnum):
    """What a controller is in its epoch; the module's table says more."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"
    RESIGNED = "resigned"


class RaftTimeouts(NamedTuple):
    """How long to wait, in milliseconds."""

    election_ms: int
    fetch_ms: int
    backoff_ms: int


class Moment(NamedTuple):
    """Now, and a draw from [0, 1) for whatever is to differ between controllers."""

    ms: int
    random: float


class EpochAndOffset(NamedTuple):
    """How far a log goes: the greater of two is the more up to date, as Raft compares them."""

    epoch: int
    """Of the last record, 0 when there is none."""
    offset: int
    """Log end offset."""


class ElectionState(NamedTuple):
    """What must survive: the content of Kafka's `quorum-state`."""

    epoch: int = 0
    leader: int = NO_NODE
    voted_for: int = NO_NODE


class SnapshotId(NamedTuple):
    """A snapshot of everything below `end`; `epoch` is that of the record before it."""

    end: int
    epoch: int


class LogView(NamedTuple):
    """What a leader looks at to see whether a follower's log is a prefix of its own."""

    start: int
    end: int
    epochs: EpochCache
    snapshot: SnapshotId | None = None
    """The latest one."""


class VoterProgress(NamedTuple):
    """What a leader knows of another voter."""

    offset: int
    """Log end offset, UNDEFINED before its first fetch in this epoch."""
    fetched_ms: int
    caught_up_ms: int


class VoteRequest(NamedTuple):
    """A candidate's Vote request. Of a pre-vote, `epoch` is the epoch it is in."""

    candidate: int
    epoch: int
    end: EpochAndOffset
    pre_vote: bool


class VoteResponse(NamedTuple):
    """`epoch` and `leader` are what the voter knows."""

    error: ErrorCode
    epoch: int
    leader: int
    granted: bool


class MetadataFetch(NamedTuple):
    """A fetch of the metadata log. `epoch` and `last_epoch` are UNDEFINED where an observer does not tell them."""

    replica: int
    epoch: int
    offset: int
    last_epoch: int


class FetchValidation(NamedTuple):
    """May it be served? With an error, or with `diverging` or `snapshot`, there are no records."""

    error: ErrorCode = ErrorCode.none
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None


class SendVote(NamedTuple):
    """To send: Vote."""

    to: int
    request: VoteRequest


class SendBeginQuorumEpoch(NamedTuple):
    """To send: BeginQuorumEpoch, from the leader of `epoch`."""

    to: int
    epoch: int


class SendEndQuorumEpoch(NamedTuple):
    """To send: EndQuorumEpoch. `preferred` are the others, the one with the longest log first."""

    to: int
    epoch: int
    preferred: tuple[int, ...]


OutgoingMessage = SendVote | SendBeginQuorumEpoch | SendEndQuorumEpoch
