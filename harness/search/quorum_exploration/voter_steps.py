"""One event of a controller, carried out by the shipped `RaftNode` and `MetadataFetchHandler`.

A fetch is answered at once, with one record at most, where the shell lets it wait for records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v16.response import EpochEndOffset, LeaderIdAndEpoch, PartitionData

from harness.search.exploration.cluster_values import LogRecord
from harness.search.exploration.memory_log import stored_batch
from harness.search.quorum_exploration.durability import Durability, durability
from harness.search.quorum_exploration.explored_node import (
    NOW_MS,
    ExploredNode,
    finished,
    node_config,
    started,
)
from harness.search.quorum_exploration.memory_metadata_log import MemoryMetadataLog
from harness.search.quorum_exploration.quorum_values import (
    FetchAnswer,
    GivenVote,
    LeaderNews,
    QuorumAnswer,
    QuorumMessage,
    Records,
    SendFetch,
    VoterState,
)
from harness.search.quorum_exploration.scope import QuorumScope
from harness.search.state_space.interning import Remembered
from images.broker.frozen_map import FrozenMap
from images.broker.log.leader_epochs import UNDEFINED, EpochEnd
from images.broker.raft import messages
from images.broker.raft.fetch import MetadataFetchHandler
from images.broker.raft.state import QuorumState
from images.broker.raft.values import (
    NO_NODE,
    ElectionState,
    EpochAndOffset,
    MetadataFetch,
    RaftRole,
    SendBeginQuorumEpoch,
    SendVote,
    VoteRequest,
    VoteResponse,
    VoterProgress,
)
from images.broker.runtime.server import Request
from images.wire import batch as batches
from images.wire.messages import Api

_AT_MOST_ONE_RECORD_BYTES = 1


class VoterOutcome(NamedTuple):
    """A controller after an event, the messages that it sends, and the answer that it gives."""

    voter: VoterState
    sent: tuple[QuorumMessage, ...] = ()
    answer: QuorumMessage | None = None
    broken: str | None = None
    """The promise that this breaks."""

    def or_broken(self, promise: str | None) -> VoterOutcome:
        """The outcome, where no other promise is broken with this one."""
        return self if self.broken is not None or promise is None else self._replace(broken=promise)


class VoterSteps:
    """The events of the controllers of a scope."""

    def __init__(self, scope: QuorumScope) -> None:
        self._rules = scope.rules
        self._losses = scope.losses > 0
        self._durability: Durability = durability(self._rules)
        self._configs = {voter: node_config(voter, scope.voters, self._rules) for voter in scope.voters}
        self._nodes = {voter: self._start(voter, (), ElectionState()) for voter in scope.voters}
        self._requests: Remembered[QuorumMessage, Any] = Remembered(self._compute_request)

    # ---- events ------------------------------------------------------------------------------------------------------

    def new(self, node: int) -> VoterState:
        """A controller that starts for the first time."""
        return VoterState(forgetful(self._start(node, (), ElectionState()).state))

    def restarts(self, voter: VoterState, *, lossy: bool) -> list[VoterState]:
        """Every state in which the controller may come back, with a loss or without."""
        left = [(voter.records, voter.stored)]
        if lossy:
            logs, votes = (voter.records, *voter.older_logs), (voter.stored, *voter.older_votes)
            left = [it for it in product(logs, votes) if it != left[0]]
        return [self._restarted(voter, records, stored, lossy=lossy) for records, stored in left]

    def timeouts(self, voter: VoterState) -> list[VoterOutcome]:
        """What the controller may do when its timeout is over; of a leader, whichever followers have fetched lately."""
        timing = voter.quorum.timing
        ages = (0, timing.fetch_ms, timing.fetch_ms * 3 // 2, timing.fetch_ms * 9)
        followers = tuple(voter.quorum.progress)
        outcomes = []
        for since in product(ages, repeat=len(followers)):
            node = self._node(voter, {it: NOW_MS - age for it, age in zip(followers, since, strict=True)})
            node.time_out()
            outcomes.append(self.read_out(node, voter))
        return list(dict.fromkeys(outcomes))

    def resigns(self, voter: VoterState) -> VoterOutcome:
        """The controller is asked to resign."""
        node = self._node(voter)
        node.resign()
        return self.read_out(node, voter)

    def appends(self, voter: VoterState, number: int) -> VoterOutcome:
        """The leader appends a change with this number."""
        node = self._node(voter)
        node.change(number)
        return self.read_out(node, voter)

    def arrives(self, voter: VoterState, message: QuorumMessage) -> VoterOutcome:
        """A request, or an answer to one of its own, reaches the controller."""
        if message.answer is not None:
            return self._answer_arrives(voter, message, message.answer)
        if isinstance(message.request, SendFetch):
            return self._serves(voter, message, message.request.fetch)
        node = self._node(voter)
        body = self._requests[message._replace(awaited=True)]
        if isinstance(message.request, SendVote):
            vote, request = messages.parse_vote_response(finished(node.vote(_request(Api.VOTE, body)))), message.request
            given = older = None
            if vote is not None and vote.granted and not request.request.pre_vote:
                given = GivenVote(request.request.epoch, request.request.candidate)
                older = _older(voter, request.request)
            return self.read_out(node, voter, vote and message._replace(answer=vote), given).or_broken(older)
        if isinstance(message.request, SendBeginQuorumEpoch):
            response = finished(node.begin_epoch(_request(Api.BEGIN_QUORUM_EPOCH, body)))
        else:
            response = finished(node.end_epoch(_request(Api.END_QUORUM_EPOCH, body)))
        news = LeaderNews(*messages.parse_leader_and_epoch(response))
        return self.read_out(node, voter, message._replace(answer=news))

    # ---- fetches -----------------------------------------------------------------------------------------------------

    def fetch_of(self, voter: VoterState) -> QuorumMessage | None:
        """The next fetch of a follower."""
        state = voter.quorum
        if state.role is not RaftRole.FOLLOWER:
            return None
        end = _end_of(voter)
        fetch = MetadataFetch(state.node_id, state.epoch, end.offset, end.epoch or UNDEFINED)
        return QuorumMessage(state.node_id, SendFetch(state.leader, fetch))

    def _serves(self, voter: VoterState, message: QuorumMessage, fetch: MetadataFetch) -> VoterOutcome:
        node = self._node(voter)
        request = replace(messages.fetch_request(fetch, 0, _AT_MOST_ONE_RECORD_BYTES), min_bytes=0)
        response = finished(MetadataFetchHandler(node).fetch(_request(Api.FETCH, request)))
        partition = response.responses[0].partitions[0]
        diverging = partition.diverging_epoch
        answer = FetchAnswer(
            partition.error_code,
            partition.current_leader.leader_epoch,
            partition.current_leader.leader_id,
            partition.high_watermark,
            EpochEnd(diverging.epoch, diverging.end_offset) if diverging.end_offset >= 0 else None,
            tuple(
                LogRecord(header.leader_epoch, header.max_timestamp)
                for header, _ in batches.iterate(partition.records or b"")
            ),
        )
        outcome = self.read_out(node, voter, message._replace(answer=answer))
        return outcome.or_broken(_counts_another_epoch(voter, outcome.voter, fetch))

    def _fetched(self, voter: VoterState, fetch: MetadataFetch, leader: int, answer: FetchAnswer) -> VoterOutcome:
        """The follower ignores an answer once it follows another leader, or has another log."""
        state = voter.quorum
        follows = (state.role, state.epoch, state.leader) == (RaftRole.FOLLOWER, fetch.epoch, leader)
        if not follows or _end_of(voter) != EpochAndOffset(max(0, fetch.last_epoch), fetch.offset):
            return VoterOutcome(voter)
        node = self._node(voter)
        node.fetched(fetch_partition(fetch.offset, answer))
        return self.read_out(node, voter)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _answer_arrives(self, voter: VoterState, message: QuorumMessage, answer: QuorumAnswer) -> VoterOutcome:
        request = message.request
        if isinstance(request, SendFetch):
            assert isinstance(answer, FetchAnswer)
            return self._fetched(voter, request.fetch, request.to, answer)
        node = self._node(voter)
        if isinstance(answer, VoteResponse):
            node.answered(request, messages.vote_response(answer))
        else:
            node.answered(request, messages.begin_quorum_epoch_response(ErrorCode.none, answer.epoch, answer.leader))
        return self.read_out(node, voter)

    def _start(self, node: int, records: Records, stored: ElectionState) -> ExploredNode:
        return started(self._configs[node], MemoryMetadataLog.recovered(records, stored, self._rules))

    def _restarted(self, voter: VoterState, records: Records, stored: ElectionState, *, lossy: bool) -> VoterState:
        node = self._start(voter.quorum.node_id, records, stored)
        synced = lossy or self._durability.openings
        return _with_vote(
            VoterState(
                forgetful(node.state),
                records,
                node.log.view.epochs,
                stored,
                () if synced else voter.older_logs,
                () if lossy else voter.older_votes,
            ),
            _last_vote(voter),
        )

    def _node(self, voter: VoterState, fetched_ms: dict[int, int] | None = None) -> ExploredNode:
        node = self._nodes[voter.quorum.node_id]
        node.put_into(voter, fetched_ms)
        return node

    def _compute_request(self, message: QuorumMessage) -> Any:
        assert not isinstance(message.request, SendFetch)
        return self._nodes[message.sender].request_of(message.request)

    def read_out(
        self,
        node: ExploredNode,
        before: VoterState,
        answer: QuorumMessage | None = None,
        vote: GivenVote | None = None,
    ) -> VoterOutcome:
        """The controller as it is read out after an event, in which it may have given a vote."""
        state = forgetful(node.state)
        if state.role is RaftRole.CANDIDATE and state.epoch != before.quorum.epoch:
            vote = GivenVote(state.epoch, state.node_id)
        log = node.log
        after = before._replace(quorum=state, records=log.records, epochs=log.view.epochs, stored=log.stored)
        if self._losses:
            after = after._replace(
                older_logs=self._older_logs(before, after), older_votes=self._older_votes(before, after)
            )
        last = _last_vote(before)
        broken = _falls(before, after)
        if vote is not None and last is not None and vote.epoch == last.epoch and vote != last:
            broken = (
                f"controller {state.node_id} votes for {vote.candidate} in epoch {vote.epoch}, where it has voted for "
                f"{last.candidate}"
            )
        sent = tuple(QuorumMessage(state.node_id, _without_order(message)) for message in node.sent)
        return VoterOutcome(_with_vote(after, vote or last), sent, answer, broken)

    def _older_logs(self, before: VoterState, after: VoterState) -> tuple[Records, ...]:
        if after.records == before.records:
            return before.older_logs
        grown = after.records[: len(before.records)] == before.records
        if self._durability.appends if grown else self._durability.truncations:
            return ()
        return tuple(sorted({*before.older_logs, before.records} - {after.records}))

    def _older_votes(self, before: VoterState, after: VoterState) -> tuple[ElectionState, ...]:
        if after.stored == before.stored:
            return before.older_votes
        return () if self._durability.votes else tuple(sorted({*before.older_votes, before.stored} - {after.stored}))


def forgetful(state: QuorumState) -> QuorumState:
    """The state without times, and without what is left of earlier elections and leaderships: no event reads the votes
    of an election that is over, or the offset at which a former leader was elected."""
    progress = {voter: VoterProgress(known.offset, 0, 0) for voter, known in state.progress.items()}
    stands = state.role in (RaftRole.PROSPECTIVE, RaftRole.CANDIDATE)
    return replace(
        state,
        deadline_ms=0,
        progress=FrozenMap(progress),
        votes=state.votes if stands else FrozenMap(),
        epoch_start_offset=state.epoch_start_offset if state.role is RaftRole.LEADER else UNDEFINED,
    )


def _without_order(message: Any) -> Any:
    """A message without what decides when, not whether: the order of the voters that EndQuorumEpoch prefers."""
    return message._replace(preferred=tuple(sorted(message.preferred))) if hasattr(message, "preferred") else message


def _end_of(voter: VoterState) -> EpochAndOffset:
    log = MemoryMetadataLog(voter.records, voter.epochs, voter.stored, voter.quorum.rules)
    return log.last_entry


def _last_vote(voter: VoterState) -> GivenVote | None:
    """The last vote that the controller has given."""
    if voter.given is not None:
        return voter.given
    state = voter.quorum
    return None if state.voted_for == NO_NODE else GivenVote(state.epoch, state.voted_for)


def _with_vote(voter: VoterState, last: GivenVote | None) -> VoterState:
    """The controller with its last vote, unless its state has it, or it can never vote in that epoch again."""
    state = voter.quorum
    epochs = (state.epoch, voter.stored.epoch, *(it.epoch for it in voter.older_votes))
    if last is None or last == (state.epoch, state.voted_for) or last.epoch < min(epochs):
        return voter if voter.given is None else voter._replace(given=None)
    return voter._replace(given=last)


def _falls(before: VoterState, after: VoterState) -> str | None:
    """A high watermark never falls within a leadership."""
    old, new = before.quorum, after.quorum
    leads = old.role is RaftRole.LEADER and new.role is RaftRole.LEADER and old.epoch == new.epoch
    if leads and new.high_watermark < old.high_watermark:
        return f"the high watermark of leader {new.node_id} falls from {old.high_watermark} to {new.high_watermark}"
    return None


def _older(voter: VoterState, request: VoteRequest) -> str | None:
    """A controller votes for no candidate whose log is behind its own."""
    own = _end_of(voter)
    if request.end >= own:
        return None
    return (
        f"in epoch {request.epoch} controller {voter.quorum.node_id} votes for {request.candidate}, whose log ends at "
        f"{request.end.offset} with epoch {request.end.epoch}: its own ends at {own.offset} with epoch {own.epoch}"
    )


def _counts_another_epoch(before: VoterState, after: VoterState, fetch: MetadataFetch) -> str | None:
    """A leader takes no position from a fetch of another epoch."""
    old, new = before.quorum, after.quorum
    if fetch.epoch == new.epoch or old.progress == new.progress:
        return None
    return (
        f"leader {new.node_id} of epoch {new.epoch} takes {fetch.offset} as the position of controller "
        f"{fetch.replica}, from a fetch of epoch {fetch.epoch}"
    )


def _request(api: Api, body: Any) -> Request[Any]:
    return Request(api, 0, None, 1, body, {})


def fetch_partition(offset: int, answer: FetchAnswer) -> PartitionData:
    """The answer to a fetch at an offset, as it is sent."""
    epoch, end = answer.diverging or (UNDEFINED, UNDEFINED)
    return PartitionData(
        partition_index=0,
        error_code=answer.error,
        high_watermark=answer.high_watermark,
        diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end),
        current_leader=LeaderIdAndEpoch(leader_id=answer.leader, leader_epoch=answer.epoch),
        aborted_transactions=None,
        records=b"".join(_batches(offset, answer.records)),
    )


def _batches(offset: int, records: Records) -> Iterator[bytes]:
    for place, record in enumerate(records):
        yield stored_batch(record, offset + place)
