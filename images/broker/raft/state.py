"""Raft over the metadata log, as in KRaft: one voter of the quorum as a pure state machine.

Each method takes an event (a request, a response, the passing of time) and returns the next state and the messages to
send. Time is milliseconds of one monotonic clock and comes with a random number from [0, 1) (`Moment`). There is no
I/O. The shell guarantees that a changed `election_state` is on disk before any message leaves, and that a log end
passed in is on disk too.

role         meaning                                              until
-----------  ---------------------------------------------------  -------------------------------------------------
unattached   knows no leader of its epoch                         election timeout → prospective
prospective  asks whether it could win (pre-vote, KIP-996)        a majority grants → candidate; else waits again
candidate    stands for election in a new epoch                   a majority grants → leader; else waits
follower     fetches from the leader of its epoch                 fetch timeout → prospective
leader       appends; commits records fetched by a majority       no majority fetches any more → resigned
resigned     former leader of this epoch; grants no vote          election timeout → prospective

Safety rests on five rules, each a switch in `rules`: one vote per epoch, stored durably; no vote for a log that is less
up to date (last epoch, then end offset); a leader commits records held by a majority, and only together with a record
of its own epoch (Raft §5.4.2: a record of an older epoch may be on a majority and still be overwritten); a fetch counts
in its own epoch only; and a follower truncates its log where it diverges from the leader's.

A pre-vote changes nothing on disk, so a controller that cannot win does not depose a working leader. A leader that
receives no fetches from a majority resigns (check quorum), so that brokers do not wait for a zombie that can commit
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kio.schema.errors import ErrorCode

from images.broker.frozen_map import FrozenMap
from images.broker.log.leader_epochs import UNDEFINED
from images.broker.raft.fetch_validation import validate_fetch
from images.broker.raft.values import (
    NO_NODE,
    ElectionState,
    EpochAndOffset,
    FetchValidation,
    LogView,
    MetadataFetch,
    Moment,
    OutgoingMessage,
    RaftRole,
    RaftTimeouts,
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendVote,
    VoteRequest,
    VoteResponse,
    VoterProgress,
)
from images.broker.rules import Rules

Outcome = tuple["QuorumState", tuple[OutgoingMessage, ...]]


@dataclass(frozen=True, slots=True)
class QuorumState:
    """State of one voter. A value: every method returns the next one."""

    node_id: int
    voters: tuple[int, ...]
    timing: RaftTimeouts
    rules: Rules = field(default_factory=Rules)
    epoch: int = 0
    leader: int = NO_NODE
    voted_for: int = NO_NODE
    role: RaftRole = RaftRole.UNATTACHED
    deadline_ms: int = 0
    """Time of the next timeout."""
    votes: FrozenMap[int, bool] = field(default_factory=FrozenMap)
    """Votes received in the current election."""
    leader_answered: bool = False
    """As follower: whether this leader has answered a fetch."""
    epoch_start_offset: int = UNDEFINED
    """As leader: log end offset at its election."""
    high_watermark: int = 0
    progress: FrozenMap[int, VoterProgress] = field(default_factory=FrozenMap)
    """As leader: progress of the other voters."""

    # ---- what holds --------------------------------------------------------------------------------------------------

    @property
    def election_state(self) -> ElectionState:
        """The state that must be on disk before any message leaves."""
        return ElectionState(self.epoch, self.leader, self.voted_for)

    @property
    def leadership(self) -> tuple[RaftRole, int, int]:
        """Its role, the epoch, and the leader of that epoch."""
        return self.role, self.epoch, self.leader

    @property
    def majority(self) -> int:
        """Size of a majority."""
        return len(self.voters) // 2 + 1

    @property
    def others(self) -> tuple[int, ...]:
        """The other voters."""
        return tuple(voter for voter in self.voters if voter != self.node_id)

    @property
    def positions(self) -> dict[str, int]:
        """As leader: the other voters, and where it knows their logs to reach in its own; -1 before a first fetch."""
        return {str(voter): progress.offset for voter, progress in self.progress.items()}

    @property
    def active(self) -> bool:
        """Whether this is the leader and has committed a record of its own epoch, so that it knows all committed
        records."""
        return self.role is RaftRole.LEADER and self.high_watermark > self.epoch_start_offset

    # ---- time --------------------------------------------------------------------------------------------------------

    def restarted(
        self, election_state: ElectionState, last_epoch: int, high_watermark: int, now: Moment
    ) -> QuorumState:
        """The state after a restart with a log whose last record is of `last_epoch`. A former leader restarts as
        resigned, since its uncommitted tail is unverified. A log may be ahead of the election state alone where that
        was lost: then nothing is known of its epoch."""
        election_state = max(election_state, ElectionState(last_epoch), key=lambda known: known.epoch)
        state = replace(
            self,
            epoch=election_state.epoch,
            leader=election_state.leader,
            voted_for=election_state.voted_for,
            high_watermark=high_watermark,
            deadline_ms=now.ms + (self._election_ms(now) if self.others else 0),
        )
        if election_state.leader == self.node_id:
            return replace(state, role=RaftRole.RESIGNED)
        if election_state.leader != NO_NODE:
            return state._follower(election_state.epoch, election_state.leader, now)
        return state

    def tick(self, end: EpochAndOffset, now: Moment) -> Outcome:
        """Handle the timeout at `deadline_ms`."""
        if now.ms < self.deadline_ms:
            return self, ()
        if self.role is RaftRole.LEADER:
            return self._check_quorum(now)
        if self.role is RaftRole.PROSPECTIVE and self.leader not in (NO_NODE, self.node_id):
            return self._follower(self.epoch, self.leader, now), ()
        return self._prospective(end, now)

    def resign(self, now: Moment) -> Outcome:
        """Resign and send EndQuorumEpoch. No effect unless it is the leader."""
        if self.role is not RaftRole.LEADER:
            return self, ()
        order = sorted(self.others, key=lambda voter: (-self.progress[voter].offset, voter))
        state = replace(self, role=RaftRole.RESIGNED, deadline_ms=now.ms + self._election_ms(now), progress=FrozenMap())
        return state, tuple(SendEndQuorumEpoch(voter, self.epoch, tuple(order)) for voter in order)

    # ---- elections ---------------------------------------------------------------------------------------------------

    def on_vote_request(
        self, request: VoteRequest, end: EpochAndOffset, now: Moment
    ) -> tuple[QuorumState, VoteResponse]:
        """Handle a Vote request; `end` is that of the own log."""
        if request.candidate not in self.voters:
            return self, self._vote_response(ErrorCode.inconsistent_voter_set)
        if request.epoch < self.epoch:
            return self, self._vote_response(ErrorCode.fenced_leader_epoch)
        state = self if request.epoch == self.epoch else self._unattached(request.epoch, now)
        granted = state._grants(request, end)
        if granted and not request.pre_vote:
            state = replace(
                state,
                voted_for=request.candidate,
                role=RaftRole.UNATTACHED,
                deadline_ms=now.ms + state._election_ms(now),
            )
        return state, state._vote_response(ErrorCode.none, granted)

    def on_vote_response(
        self, sender: int, request: VoteRequest, answer: VoteResponse, end: EpochAndOffset, now: Moment
    ) -> Outcome:
        """Handle the response of `sender` to a Vote request."""
        state = self.on_leader_and_epoch(answer.epoch, answer.leader, now)
        expected_role = RaftRole.PROSPECTIVE if request.pre_vote else RaftRole.CANDIDATE
        if state.role is not expected_role or state.epoch != request.epoch or sender not in self.voters:
            return state, ()
        return replace(state, votes=state.votes.set(sender, answer.granted))._count_votes(end, now)

    def on_leader_and_epoch(self, epoch: int, leader: int, now: Moment) -> QuorumState:
        """A message carries `epoch` and, unless NO_NODE, its `leader`."""
        leader = leader if leader in self.others else NO_NODE
        if epoch > self.epoch:
            return self._unattached(epoch, now) if leader == NO_NODE else self._follower(epoch, leader, now)
        if epoch == self.epoch and leader != NO_NODE and self.leader == NO_NODE:
            return self._follower(epoch, leader, now)
        return self

    def on_begin_quorum_epoch(self, epoch: int, leader: int, now: Moment) -> tuple[QuorumState, ErrorCode]:
        """Handle BeginQuorumEpoch: `leader` is leader of `epoch`."""
        if leader not in self.voters:
            return self, ErrorCode.inconsistent_voter_set
        if epoch < self.epoch:
            return self, ErrorCode.fenced_leader_epoch
        if leader == self.node_id or (epoch == self.epoch and self.leader not in (NO_NODE, leader)):
            return self, ErrorCode.invalid_request
        if epoch == self.epoch and self.role is RaftRole.FOLLOWER:
            return self, ErrorCode.none
        return self._follower(epoch, leader, now), ErrorCode.none

    def on_end_quorum_epoch(
        self, epoch: int, leader: int, preferred: tuple[int, ...], now: Moment
    ) -> tuple[QuorumState, ErrorCode]:
        """Handle EndQuorumEpoch: `leader` resigned in `epoch`. The first of `preferred` stands for election at once,
        the others later."""
        if epoch < self.epoch:
            return self, ErrorCode.fenced_leader_epoch
        state = self.on_leader_and_epoch(epoch, leader, now)
        if state.role is not RaftRole.FOLLOWER or state.leader != leader:
            return state, ErrorCode.none
        rank = preferred.index(self.node_id) if self.node_id in preferred else len(preferred)
        backoff_ms = int(self.timing.backoff_ms * rank * (0.5 + now.random / 2))
        return replace(state, leader_answered=False, deadline_ms=now.ms + backoff_ms), ErrorCode.none

    # ---- replication -------------------------------------------------------------------------------------------------

    def on_fetch(self, fetch: MetadataFetch, log: LogView, now: Moment) -> tuple[QuorumState, FetchValidation]:
        """Handle a fetch. A valid fetch of a voter proves that the voter holds all records below its offset.

        Voters give their epoch, so a fetch without one is not a voter's.
        """
        if fetch.epoch not in (UNDEFINED, self.epoch) and self.rules.metadata_fetch_fenced:
            behind = fetch.epoch < self.epoch
            return self, FetchValidation(ErrorCode.fenced_leader_epoch if behind else ErrorCode.unknown_leader_epoch)
        if self.role is not RaftRole.LEADER:
            return self, FetchValidation(ErrorCode.not_leader_or_follower)
        state = self
        progress = self.progress.get(fetch.replica) if fetch.epoch != UNDEFINED else None
        if progress is not None:
            state = replace(self, progress=self.progress.set(fetch.replica, progress._replace(fetched_ms=now.ms)))
        verdict = validate_fetch(fetch, log, self.rules)
        if progress is None or verdict != FetchValidation():
            return state, verdict
        caught_up_ms = now.ms if fetch.offset >= log.end else progress.caught_up_ms
        position = VoterProgress(fetch.offset, now.ms, caught_up_ms)
        state = replace(state, progress=state.progress.set(fetch.replica, position))
        return state._advance_high_watermark(log.end), verdict

    def on_fetch_snapshot(self, replica: int, epoch: int, now: Moment) -> QuorumState:
        """Handle a request for a chunk of a snapshot: of a voter in this epoch, it says that the voter follows."""
        progress = self.progress.get(replica) if epoch == self.epoch else None
        if progress is None:
            return self
        return replace(self, progress=self.progress.set(replica, progress._replace(fetched_ms=now.ms)))

    def on_append(self, end: int) -> QuorumState:
        """As leader: the own log has grown to `end`, on disk."""
        return self._advance_high_watermark(end)

    def on_fetch_response(self, high_watermark: int, end: int, now: Moment) -> QuorumState:
        """As follower: the leader answered a fetch with records or none, and the own log now ends at `end`."""
        progress = max(self.high_watermark, min(high_watermark, end))
        return replace(self.on_leader_contact(now), high_watermark=progress)

    def on_leader_contact(self, now: Moment) -> QuorumState:
        """As follower: the leader answered a fetch, or sent a chunk of a snapshot. A diverging epoch or a snapshot id
        does not update the high watermark: the own log below it may still differ from the leader's."""
        return replace(self, leader_answered=True, deadline_ms=now.ms + self.timing.fetch_ms)

    def on_snapshot_installed(self, end: int, now: Moment) -> QuorumState:
        """As follower: the own log was replaced by the leader's snapshot of everything below `end`."""
        return replace(self.on_leader_contact(now), high_watermark=max(self.high_watermark, end))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _election_ms(self, now: Moment) -> int:
        return int(self.timing.election_ms * (1 + now.random))

    def _vote_response(self, error: ErrorCode, granted: bool = False) -> VoteResponse:
        return VoteResponse(error, self.epoch, self.leader, granted)

    def _grants(self, request: VoteRequest, end: EpochAndOffset) -> bool:
        up_to_date = request.end >= end or not self.rules.vote_needs_up_to_date_log
        if self.role is RaftRole.LEADER:
            return False
        if request.pre_vote:
            return up_to_date and not (self.role is RaftRole.FOLLOWER and self.leader_answered)
        granted = up_to_date and self.leader == NO_NODE
        if self.voted_for != NO_NODE:
            granted = self.voted_for == request.candidate and self.role is not RaftRole.FOLLOWER
        return granted if granted == up_to_date or self.rules.vote_once_per_epoch else up_to_date

    def _prospective(self, end: EpochAndOffset, now: Moment) -> Outcome:
        leader = NO_NODE if self.leader == self.node_id else self.leader
        state = replace(
            self,
            role=RaftRole.PROSPECTIVE,
            leader=leader,
            voted_for=self.node_id if self.leader == self.node_id else self.voted_for,
            votes=FrozenMap(),
            leader_answered=False,
            deadline_ms=now.ms + self._election_ms(now),
        )
        return state._ask_for_votes(end, now, pre_vote=True)

    def _ask_for_votes(self, end: EpochAndOffset, now: Moment, *, pre_vote: bool) -> Outcome:
        if not self.others:
            return self._count_votes(end, now)
        request = VoteRequest(self.node_id, self.epoch, end, pre_vote)
        return self, tuple(SendVote(voter, request) for voter in self.others)

    def _count_votes(self, end: EpochAndOffset, now: Moment) -> Outcome:
        granted = 1 + sum(self.votes.values())
        if granted >= self.majority:
            return self._candidate(end, now) if self.role is RaftRole.PROSPECTIVE else self._elected(end, now)
        if len(self.voters) - (1 + len(self.votes) - granted) >= self.majority:
            return self, ()
        if self.role is RaftRole.PROSPECTIVE and self.leader != NO_NODE:
            return self._follower(self.epoch, self.leader, now), ()
        backoff_ms = int(self.timing.backoff_ms * (0.2 + now.random))
        return replace(self, role=RaftRole.UNATTACHED, deadline_ms=now.ms + backoff_ms), ()

    def _candidate(self, end: EpochAndOffset, now: Moment) -> Outcome:
        state = replace(
            self,
            epoch=self.epoch + 1,
            leader=NO_NODE,
            voted_for=self.node_id,
            role=RaftRole.CANDIDATE,
            votes=FrozenMap(),
            deadline_ms=now.ms + self._election_ms(now),
        )
        return state._ask_for_votes(end, now, pre_vote=False)

    def _elected(self, end: EpochAndOffset, now: Moment) -> Outcome:
        state = replace(
            self,
            leader=self.node_id,
            role=RaftRole.LEADER,
            votes=FrozenMap(),
            epoch_start_offset=end.offset,
            progress=FrozenMap({voter: VoterProgress(UNDEFINED, now.ms, UNDEFINED) for voter in self.others}),
            deadline_ms=now.ms + self.timing.fetch_ms // 2,
        )
        return state, tuple(SendBeginQuorumEpoch(voter, self.epoch) for voter in self.others)

    def _check_quorum(self, now: Moment) -> Outcome:
        """Check quorum: resign if no majority fetches; else send BeginQuorumEpoch to voters that do not fetch."""
        patience_ms = self.timing.fetch_ms + self.timing.fetch_ms // 2
        reachable = 1 + sum(now.ms - position.fetched_ms < patience_ms for position in self.progress.values())
        if reachable < self.majority:
            return self.resign(now)
        silent_voters = [
            voter
            for voter, position in self.progress.items()
            if position.offset == UNDEFINED or now.ms - position.fetched_ms >= self.timing.fetch_ms
        ]
        state = replace(self, deadline_ms=now.ms + self.timing.fetch_ms // 2)
        return state, tuple(SendBeginQuorumEpoch(voter, self.epoch) for voter in silent_voters)

    def _unattached(self, epoch: int, now: Moment) -> QuorumState:
        return replace(
            self,
            epoch=epoch,
            leader=NO_NODE,
            voted_for=NO_NODE,
            role=RaftRole.UNATTACHED,
            leader_answered=False,
            progress=FrozenMap(),
            deadline_ms=now.ms + self._election_ms(now),
        )

    def _follower(self, epoch: int, leader: int, now: Moment) -> QuorumState:
        return replace(
            self,
            epoch=epoch,
            leader=leader,
            voted_for=self.voted_for if epoch == self.epoch else NO_NODE,
            role=RaftRole.FOLLOWER,
            leader_answered=False,
            progress=FrozenMap(),
            deadline_ms=now.ms + self.timing.fetch_ms,
        )

    def _advance_high_watermark(self, end: int) -> QuorumState:
        offsets = sorted([end, *(position.offset for position in self.progress.values())], reverse=True)
        majority_offset = offsets[self.majority - 1] if self.rules.metadata_needs_majority else end
        if majority_offset <= self.high_watermark:
            return self
        if majority_offset <= self.epoch_start_offset and self.rules.commit_only_own_epoch:
            return self
        return replace(self, high_watermark=majority_offset)
