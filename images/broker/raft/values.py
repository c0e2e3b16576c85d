"""Values of the Raft state machine: log positions, requests, responses, messages to send."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from images.broker.log.leader_epochs import EpochCache, EpochEnd

NO_NODE = -1


class RaftRole(StrEnum):
    """Role of a voter in its epoch; see the table in `state.py`."""

    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"
    RESIGNED = "resigned"


class RaftTimeouts(NamedTuple):
    """Timeouts in milliseconds."""

    election_ms: int
    fetch_ms: int
    backoff_ms: int


class Moment(NamedTuple):
    """The current time, and a random number from [0, 1) that makes timeouts differ between controllers."""

    ms: int
    random: float


class EpochAndOffset(NamedTuple):
    """The end of a log: the greater of two is the more up to date (Raft §5.4.1)."""

    epoch: int
    """Epoch of the last record, 0 if there is none."""
    offset: int
    """Log end offset."""


class ElectionState(NamedTuple):
    """The content of Kafka's `quorum-state`, which must survive a crash."""

    epoch: int = 0
    leader: int = NO_NODE
    voted_for: int = NO_NODE


class SnapshotId(NamedTuple):
    """Id of a snapshot of everything below `end`; `epoch` is that of the last record in it."""

    end: int
    epoch: int

    @property
    def name(self) -> str:
        """Kafka's name of its file."""
        return f"{self.end:020d}-{self.epoch:010d}.checkpoint"


class LogView(NamedTuple):
    """The view of a log that decides whether a follower's log is a prefix of the leader's."""

    start: int
    end: int
    epochs: EpochCache
    snapshots: tuple[SnapshotId, ...] = ()
    """The snapshots that are kept, the latest last."""


class VoterProgress(NamedTuple):
    """Progress of another voter, as its leader knows it."""

    offset: int
    """Log end offset, UNDEFINED before its first fetch in this epoch."""
    fetched_ms: int
    caught_up_ms: int


class VoteRequest(NamedTuple):
    """A Vote request. Of a pre-vote, `epoch` is the current epoch of the candidate."""

    candidate: int
    epoch: int
    end: EpochAndOffset
    pre_vote: bool


class VoteResponse(NamedTuple):
    """A Vote response. `epoch` and `leader` are those the voter knows."""

    error: ErrorCode
    epoch: int
    leader: int
    granted: bool


class MetadataFetch(NamedTuple):
    """A fetch of the metadata log. An observer may leave `epoch` and `last_epoch` UNDEFINED."""

    replica: int
    epoch: int
    offset: int
    last_epoch: int


class FetchValidation(NamedTuple):
    """Result of validating a fetch. With an error, `diverging` or `snapshot` there are no records."""

    error: ErrorCode = ErrorCode.none
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None


class SendVote(NamedTuple):
    """Send Vote."""

    to: int
    request: VoteRequest


class SendBeginQuorumEpoch(NamedTuple):
    """Send BeginQuorumEpoch, from the leader of `epoch`."""

    to: int
    epoch: int


class SendEndQuorumEpoch(NamedTuple):
    """Send EndQuorumEpoch. `preferred` are the other voters, the one with the longest log first."""

    to: int
    epoch: int
    preferred: tuple[int, ...]


OutgoingMessage = SendVote | SendBeginQuorumEpoch | SendEndQuorumEpoch
