"""The state of the controllers in an exploration, as plain values that compare, hash and pickle.

Times are left out: every deadline and every time of a fetch is 0.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from harness.search.exploration.cluster_values import LogRecord
from images.broker.log.leader_epochs import EpochCache, EpochEnd
from images.broker.raft.state import QuorumState
from images.broker.raft.values import (
    ElectionState,
    MetadataFetch,
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendVote,
    VoteResponse,
)

Records = tuple[LogRecord, ...]


class GivenVote(NamedTuple):
    """A vote that a controller has given."""

    epoch: int
    candidate: int


class VoterState(NamedTuple):
    """A controller and its disk."""

    quorum: QuorumState
    records: Records = ()
    epochs: EpochCache = EpochCache()
    stored: ElectionState = ElectionState()
    """What its file has of epoch, leader and vote."""
    older_logs: tuple[Records, ...] = ()
    """Logs that a power loss may leave instead, since nothing was synced after them."""
    older_votes: tuple[ElectionState, ...] = ()
    """Election states that a power loss may leave instead."""
    given: GivenVote | None = None
    """Its last vote, where its state does not say so any more."""


class LeaderNews(NamedTuple):
    """The answer to BeginQuorumEpoch and EndQuorumEpoch: an epoch, and its leader if it is known."""

    epoch: int
    leader: int


class FetchAnswer(NamedTuple):
    """The answer to a fetch, with one record at most."""

    error: ErrorCode
    epoch: int
    leader: int
    high_watermark: int
    diverging: EpochEnd | None
    records: Records


class SendFetch(NamedTuple):
    """Send a fetch to the leader."""

    to: int
    fetch: MetadataFetch


class RequestKind(StrEnum):
    """The requests between controllers."""

    PRE_VOTE = "pre-vote"
    VOTE = "vote"
    BEGIN = "begin"
    END = "end"
    FETCH = "fetch"


QuorumRequest = SendVote | SendBeginQuorumEpoch | SendEndQuorumEpoch | SendFetch
QuorumAnswer = VoteResponse | LeaderNews | FetchAnswer


class QuorumMessage(NamedTuple):
    """A request on its way, or its answer on its way back."""

    sender: int
    """The sender of the request."""
    request: QuorumRequest
    answer: QuorumAnswer | None = None
    awaited: bool = True
    """Whether its sender still waits for the answer."""

    @property
    def receiver(self) -> int:
        """The controller that gets it."""
        return self.request.to if self.answer is None else self.sender

    @property
    def kind(self) -> RequestKind:
        """The kind of its request."""
        if isinstance(self.request, SendVote):
            return RequestKind.PRE_VOTE if self.request.request.pre_vote else RequestKind.VOTE
        return _KINDS[type(self.request)]


_KINDS = {
    SendBeginQuorumEpoch: RequestKind.BEGIN,
    SendEndQuorumEpoch: RequestKind.END,
    SendFetch: RequestKind.FETCH,
}


Network = tuple[QuorumMessage, ...]
"""All messages in flight, each of them once, in the order of their texts."""


class QuorumHistory(NamedTuple):
    """What the promises and the bounds of a scope need of the past."""

    committed: Records = ()
    """The records that lay below the high watermark of a leader at some time."""
    commit_epoch: int = 0
    """The epoch of the last leader that committed some."""
    appended: int = 0
    restarts: int = 0
    losses: int = 0


class ExploredQuorum(NamedTuple):
    """All controllers."""

    voters: tuple[VoterState, ...]
    """By id, from 1 on."""
    network: Network
    history: QuorumHistory
