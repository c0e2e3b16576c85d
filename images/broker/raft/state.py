"""Raft over the metadata log, as KRaft has it: one controller's part in the quorum, as a pure decision machine.

What happened goes in (a request, an answer, the passing of time); out comes the controller as it is then, with what it
has to say. Time is milliseconds of one monotonic clock and comes with a draw from [0, 1) (`Moment`). There is no I/O.
The shell owes this: whatever differs in `durable` is on disk before anyone is told; a log end that is handed in is on
disk, too.

role         is                                                   until
-----------  ---------------------------------------------------  -------------------------------------------------
unattached   in an epoch whose leader it does not know            election timeout → prospective
prospective  asking whether it could win (pre-vote, KIP-996)      a majority could → candidate; else waits again
candidate    standing for election in a new epoch                 a majority votes for it → leader; else waits
follower     fetching from the leader of its epoch                fetch timeout → prospective
leader       appending; commits what a majority has fetched       no majority fetches any more → resigned
resigned     the former leader of this epoch; votes for nobody    election timeout → prospective

Safety rests on five rules, each a switch in `rules`: one vote an epoch, kept on disk; no vote for a log that is behind
(last epoch, then end offset); a leader counts what a majority holds, and only once that includes a record of its own
epoch (Raft 5.4.2: a record of an older epoch may be on a majority and still be overwritten); a fetch counts in its own
epoch only; and a follower cuts its log where the leader's differs.

A pre-vote changes nothing on disk, so that a controller which cannot win does not depose a leader that works. A leader
that hears from no majority resigns, so that a zombie does not keep brokers waiting for what it can never commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kio.schema.errors import ErrorCode

from images.broker.frozen_map import FrozenMap
from images.broker.log.leader_epochs import UNDEFINED
from images.broker.raft.divergence import placed
from images.broker.raft.values import (
    NOBODY,
    AskVote,
    Begin,
    Durable,
    End,
    Fetched,
    FetchVerdict,
    LogEnd,
    LogView,
    Message,
    Moment,
    Position,
    Role,
    Timing,
    VoteAnswer,
    VoteAsked,
)
from images.broker.rules import Rules

Outcome = tuple["Quorum", tuple[Message, ...]]


@dataclass(frozen=True, slots=True)
class Quorum:
    """One controller. A value: every method returns the next one."""

    me: int
    voters: tuple[int, ...]
    timing: Timing
    rules: Rules = field(default_factory=Rules)
    epoch: int = 0
    leader: int = NOBODY
    voted: int = NOBODY
    role: Role = Role.UNATTACHED
    deadline_ms: int = 0
    """When time alone changes something."""
    votes: FrozenMap[int, bool] = field(default_factory=FrozenMap)
    """Answers in the election under way."""
    heard: bool = False
    """As follower: whether the leader has answered a fetch in this spell."""
    epoch_start: int = UNDEFINED
    """As leader: where the log ended when it was elected."""
    high_watermark: int = 0
    positions: FrozenMap[int, Position] = field(default_factory=FrozenMap)
    """As leader: the other voters."""

    # ---- what holds --------------------------------------------------------------------------------------------------

    @property
    def durable(self) -> Durable:
        """What has to be on disk before anybody is told of this state."""
        return Durable(self.epoch, self.leader, self.voted)

    @property
    def majority(self) -> int:
        """How many voters decide."""
        return len(self.voters) // 2 + 1

    @property
    def others(self) -> tuple[int, ...]:
        """The other voters."""
        return tuple(voter for voter in self.voters if voter != self.me)

    @property
    def active(self) -> bool:
        """Whether this is a leader with a record of its own epoch committed, so that it knows all that is committed."""
        return self.role is Role.LEADER and self.high_watermark > self.epoch_start

    # ---- time --------------------------------------------------------------------------------------------------------

    def started(self, durable: Durable, high_watermark: int, at: Moment) -> Quorum:
        """This controller after a start. One that led its epoch leads no more: what it had not committed is no one's
        to vouch for."""
        state = replace(
            self,
            epoch=durable.epoch,
            leader=durable.leader,
            voted=durable.voted,
            high_watermark=high_watermark,
            deadline_ms=at.ms + (self._election_ms(at) if self.others else 0),
        )
        if durable.leader == self.me:
            return replace(state, role=Role.RESIGNED)
        if durable.leader != NOBODY:
            return state._follower(durable.epoch, durable.leader, at)
        return state

    def tick(self, end: LogEnd, at: Moment) -> Outcome:
        """Whatever is due at `deadline_ms`."""
        if at.ms < self.deadline_ms:
            return self, ()
        if self.role is Role.LEADER:
            return self._keep_leading(at)
        if self.role is Role.PROSPECTIVE and self.leader not in (NOBODY, self.me):
            return self._follower(self.epoch, self.leader, at), ()
        return self._prospective(end, at)

    def resign(self, at: Moment) -> Outcome:
        """Lead no more, and say so. Nothing when it does not lead."""
        if self.role is not Role.LEADER:
            return self, ()
        order = sorted(self.others, key=lambda voter: (-self.positions[voter].offset, voter))
        state = replace(self, role=Role.RESIGNED, deadline_ms=at.ms + self._election_ms(at), positions=FrozenMap())
        return state, tuple(End(voter, self.epoch, tuple(order)) for voter in order)

    # ---- elections ---------------------------------------------------------------------------------------------------

    def asked_for_vote(self, asked: VoteAsked, end: LogEnd, at: Moment) -> tuple[Quorum, VoteAnswer]:
        """Vote; `end` is the own log's."""
        if asked.candidate not in self.voters:
            return self, self._vote(ErrorCode.inconsistent_voter_set)
        if asked.epoch < self.epoch:
            return self, self._vote(ErrorCode.fenced_leader_epoch)
        state = self if asked.epoch == self.epoch else self._unattached(asked.epoch, at)
        granted = state._grants(asked, end)
        if granted and not asked.pre_vote:
            state = replace(
                state, voted=asked.candidate, role=Role.UNATTACHED, deadline_ms=at.ms + state._election_ms(at)
            )
        return state, state._vote(ErrorCode.none, granted)

    def vote_answered(self, sender: int, asked: VoteAsked, answer: VoteAnswer, end: LogEnd, at: Moment) -> Outcome:
        """`sender` answered what this controller asked."""
        state = self.learned(answer.epoch, answer.leader, at)
        standing = Role.PROSPECTIVE if asked.pre_vote else Role.CANDIDATE
        if state.role is not standing or state.epoch != asked.epoch or sender not in self.voters:
            return state, ()
        return replace(state, votes=state.votes.set(sender, answer.granted))._counted(end, at)

    def learned(self, epoch: int, leader: int, at: Moment) -> Quorum:
        """Somebody knows of `epoch` and, unless NOBODY, its `leader`."""
        leader = leader if leader in self.others else NOBODY
        if epoch > self.epoch:
            return self._unattached(epoch, at) if leader == NOBODY else self._follower(epoch, leader, at)
        if epoch == self.epoch and leader != NOBODY and self.leader == NOBODY:
            return self._follower(epoch, leader, at)
        return self

    def begun(self, epoch: int, leader: int, at: Moment) -> tuple[Quorum, ErrorCode]:
        """BeginQuorumEpoch: `leader` leads `epoch`."""
        if leader not in self.voters:
            return self, ErrorCode.inconsistent_voter_set
        if epoch < self.epoch:
            return self, ErrorCode.fenced_leader_epoch
        if leader == self.me or (epoch == self.epoch and self.leader not in (NOBODY, leader)):
            return self, ErrorCode.invalid_request
        if epoch == self.epoch and self.role is Role.FOLLOWER:
            return self, ErrorCode.none
        return self._follower(epoch, leader, at), ErrorCode.none

    def ended(self, epoch: int, leader: int, preferred: tuple[int, ...], at: Moment) -> tuple[Quorum, ErrorCode]:
        """EndQuorumEpoch: `leader` leads `epoch` no more. The first of `preferred` stands at once, others later."""
        if epoch < self.epoch:
            return self, ErrorCode.fenced_leader_epoch
        state = self.learned(epoch, leader, at)
        if state.role is not Role.FOLLOWER or state.leader != leader:
            return state, ErrorCode.none
        rank = preferred.index(self.me) if self.me in preferred else len(preferred)
        wait_ms = int(self.timing.backoff_ms * rank * (0.5 + at.draw / 2))
        return replace(state, heard=False, deadline_ms=at.ms + wait_ms), ErrorCode.none

    # ---- replication -------------------------------------------------------------------------------------------------

    def fetched_by(self, fetch: Fetched, log: LogView, at: Moment) -> tuple[Quorum, FetchVerdict]:
        """Someone fetches; a voter whose log is a prefix of the leader's is known to hold it, and what a majority
        holds is committed."""
        if self.rules.metadata_fetch_fenced and fetch.epoch != UNDEFINED and fetch.epoch != self.epoch:
            behind = fetch.epoch < self.epoch
            return self, FetchVerdict(ErrorCode.fenced_leader_epoch if behind else ErrorCode.unknown_leader_epoch)
        if self.role is not Role.LEADER:
            return self, FetchVerdict(ErrorCode.not_leader_or_follower)
        state = self
        known = self.positions.get(fetch.replica)
        if known is not None:
            state = replace(self, positions=self.positions.set(fetch.replica, known._replace(fetched_ms=at.ms)))
        verdict = placed(fetch, log, self.rules)
        if known is None or verdict != FetchVerdict():
            return state, verdict
        caught_up_ms = at.ms if fetch.offset >= log.end else known.caught_up_ms
        position = Position(fetch.offset, at.ms, caught_up_ms)
        return replace(state, positions=state.positions.set(fetch.replica, position))._committed(log.end), verdict

    def appended(self, end: int) -> Quorum:
        """As leader: the own log has grown to `end`, on disk."""
        return self._committed(end)

    def fetched(self, high_watermark: int, end: int, at: Moment) -> Quorum:
        """As follower: the leader has answered a fetch with records, or none, and the own log now ends at `end`."""
        known = max(self.high_watermark, min(high_watermark, end))
        return replace(self.answered(at), high_watermark=known)

    def answered(self, at: Moment) -> Quorum:
        """As follower: the leader has answered a fetch. One that sends it elsewhere (diverging, snapshot) tells no
        high watermark: what the own log holds below it need not be what the leader's does."""
        return replace(self, heard=True, deadline_ms=at.ms + self.timing.fetch_ms)

    def restored(self, end: int, at: Moment) -> Quorum:
        """As follower: the own log has been replaced by the leader's snapshot of everything below `end`."""
        return replace(self.answered(at), high_watermark=max(self.high_watermark, end))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _election_ms(self, at: Moment) -> int:
        return int(self.timing.election_ms * (1 + at.draw))

    def _vote(self, error: ErrorCode, granted: bool = False) -> VoteAnswer:
        return VoteAnswer(error, self.epoch, self.leader, granted)

    def _grants(self, asked: VoteAsked, end: LogEnd) -> bool:
        up_to_date = asked.end >= end or not self.rules.vote_needs_up_to_date_log
        if self.role is Role.LEADER:
            return False
        if asked.pre_vote:
            return up_to_date and not (self.role is Role.FOLLOWER and self.heard)
        if not self.rules.vote_once_per_epoch:
            return up_to_date
        if self.voted != NOBODY:
            return self.voted == asked.candidate
        return up_to_date and self.leader == NOBODY

    def _prospective(self, end: LogEnd, at: Moment) -> Outcome:
        leader = NOBODY if self.leader == self.me else self.leader
        state = replace(
            self,
            role=Role.PROSPECTIVE,
            leader=leader,
            voted=self.me if self.leader == self.me else self.voted,
            votes=FrozenMap(),
            heard=False,
            deadline_ms=at.ms + self._election_ms(at),
        )
        if len(self.voters) == 1:
            return state._counted(end, at)
        asked = VoteAsked(self.me, state.epoch, end, pre_vote=True)
        return state, tuple(AskVote(voter, asked) for voter in self.others)

    def _counted(self, end: LogEnd, at: Moment) -> Outcome:
        granted = 1 + sum(self.votes.values())
        if granted >= self.majority:
            return self._candidate(end, at) if self.role is Role.PROSPECTIVE else self._elected(end, at)
        if len(self.voters) - (1 + len(self.votes) - granted) >= self.majority:
            return self, ()
        if self.role is Role.PROSPECTIVE and self.leader != NOBODY:
            return self._follower(self.epoch, self.leader, at), ()
        wait_ms = int(self.timing.backoff_ms * (0.2 + at.draw))
        return replace(self, role=Role.UNATTACHED, deadline_ms=at.ms + wait_ms), ()

    def _candidate(self, end: LogEnd, at: Moment) -> Outcome:
        state = replace(
            self,
            epoch=self.epoch + 1,
            leader=NOBODY,
            voted=self.me,
            role=Role.CANDIDATE,
            votes=FrozenMap(),
            deadline_ms=at.ms + self._election_ms(at),
        )
        if len(self.voters) == 1:
            return state._counted(end, at)
        asked = VoteAsked(self.me, state.epoch, end, pre_vote=False)
        return state, tuple(AskVote(voter, asked) for voter in self.others)

    def _elected(self, end: LogEnd, at: Moment) -> Outcome:
        state = replace(
            self,
            leader=self.me,
            role=Role.LEADER,
            votes=FrozenMap(),
            epoch_start=end.offset,
            positions=FrozenMap({voter: Position(UNDEFINED, at.ms, UNDEFINED) for voter in self.others}),
            deadline_ms=at.ms + self.timing.fetch_ms // 2,
        )
        return state, tuple(Begin(voter, self.epoch) for voter in self.others)

    def _keep_leading(self, at: Moment) -> Outcome:
        """Tell whoever does not fetch that there is a leader; resign when that is a majority."""
        patience_ms = self.timing.fetch_ms + self.timing.fetch_ms // 2
        present = 1 + sum(at.ms - position.fetched_ms < patience_ms for position in self.positions.values())
        if present < self.majority:
            return self.resign(at)
        silent = [
            voter
            for voter, position in self.positions.items()
            if position.offset == UNDEFINED or at.ms - position.fetched_ms >= self.timing.fetch_ms
        ]
        state = replace(self, deadline_ms=at.ms + self.timing.fetch_ms // 2)
        return state, tuple(Begin(voter, self.epoch) for voter in silent)

    def _unattached(self, epoch: int, at: Moment) -> Quorum:
        return replace(
            self,
            epoch=epoch,
            leader=NOBODY,
            voted=NOBODY,
            role=Role.UNATTACHED,
            heard=False,
            positions=FrozenMap(),
            deadline_ms=at.ms + self._election_ms(at),
        )

    def _follower(self, epoch: int, leader: int, at: Moment) -> Quorum:
        return replace(
            self,
            epoch=epoch,
            leader=leader,
            voted=self.voted if epoch == self.epoch else NOBODY,
            role=Role.FOLLOWER,
            heard=False,
            positions=FrozenMap(),
            deadline_ms=at.ms + self.timing.fetch_ms,
        )

    def _committed(self, end: int) -> Quorum:
        held = sorted([end, *(position.offset for position in self.positions.values())], reverse=True)
        reached = held[self.majority - 1] if self.rules.metadata_needs_majority else end
        own = reached > self.epoch_start or not self.rules.commit_only_own_epoch
        return replace(self, high_watermark=reached) if reached > self.high_watermark and own else self
