"""Controllers without a network, a disk or a clock: the quorum's decision machines and a pool of messages between them.

Anything may happen to a message (it comes late, twice or never) and to a controller (it stops and starts, time stands
still for it). Its disk is modelled: the log, its vote, and how much of both a power loss leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from images.broker.log.divergence import truncation_offset
from images.broker.log.leader_epochs import UNDEFINED, EpochCache
from images.broker.raft.state import QuorumState
from images.broker.raft.values import (
    ElectionState,
    EpochAndOffset,
    LogView,
    MetadataFetch,
    Moment,
    OutgoingMessage,
    RaftRole,
    RaftTimeouts,
    SendBeginQuorumEpoch,
    SendVote,
)
from images.broker.rules import Rules

TIMING = RaftTimeouts(election_ms=500, fetch_ms=1000, backoff_ms=300)

Entry = tuple[int, int]
"""A record: the epoch it was written in, and a number no other record has."""


class Broken(AssertionError):
    """A promise of the quorum is broken."""


@dataclass
class Replica:
    """A controller and its disk."""

    state: QuorumState
    log: list[Entry] = field(default_factory=list)
    synced: int = 0
    vote_on_disk: ElectionState = field(default_factory=ElectionState)
    up: bool = True

    def view(self) -> LogView:
        epochs = EpochCache()
        for offset, (epoch, _) in enumerate(self.log):
            epochs = epochs.assign(epoch, offset)
        return LogView(0, len(self.log), epochs)

    @property
    def end(self) -> EpochAndOffset:
        return EpochAndOffset(self.log[-1][0] if self.log else 0, len(self.log))


class World:
    """All of them. `check` is called after every step and raises Broken."""

    def __init__(self, seed: int, controllers: int = 3, rules: Rules | None = None) -> None:
        self.random = Random(seed)
        self.rules = rules or Rules()
        voters = tuple(range(101, 101 + controllers))
        self.replicas = {
            voter: Replica(
                QuorumState(voter, voters, TIMING, self.rules).restarted(ElectionState(), 0, 0, Moment(0, 0.5))
            )
            for voter in voters
        }
        self.now_ms = 0
        self.pool: list[Callable[[], None]] = []
        self.leaders: dict[int, int] = {}
        self.committed: list[Entry] = []
        self.written = 0
        self.lossy = False
        """Whether a stopped controller loses its unsynced data."""

    # ---- what happens ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One random thing."""
        self.now_ms += self.random.choice((0, 1, 5, 60, 150))
        act = self.random.choices(
            (
                *(self.deliver, self.drop, self.repeat, self.tick),
                *(self.fetch, self.write, self.stop, self.start, self.resign),
            ),
            (50, 6, 2, 14, 24, 8, 0.8, 3, 1),
        )[0]
        act()
        self.check()

    def deliver(self) -> None:
        if self.pool:
            self.pool.pop(self.random.randrange(len(self.pool)))()

    def drop(self) -> None:
        if self.pool:
            self.pool.pop(self.random.randrange(len(self.pool)))

    def repeat(self) -> None:
        if self.pool:
            self.random.choice(self.pool)()

    def tick(self) -> None:
        replica = self.any(lambda it: it.up)
        if replica is not None:
            self.settle(replica, *replica.state.tick(replica.end, self.moment()))

    def write(self) -> None:
        replica = self.any(lambda it: it.up and it.state.role is RaftRole.LEADER)
        if replica is not None:
            self.append(replica)

    def stop(self) -> None:
        replica = self.any(lambda it: it.up)
        if replica is not None:
            replica.up = False
            if self.lossy:
                del replica.log[replica.synced :]
            else:
                replica.vote_on_disk = replica.state.election_state

    def start(self) -> None:
        replica = self.any(lambda it: not it.up)
        if replica is not None:
            replica.up = True
            fresh = QuorumState(replica.state.node_id, replica.state.voters, TIMING, self.rules)
            replica.state = fresh.restarted(replica.vote_on_disk, replica.end.epoch, 0, self.moment())
            replica.synced = len(replica.log)

    def resign(self) -> None:
        replica = self.any(lambda it: it.up and it.state.role is RaftRole.LEADER)
        if replica is not None:
            self.settle(replica, *replica.state.resign(self.moment()))

    def fetch(self) -> None:
        """A follower asks its leader; question and answer travel like any message."""
        follower = self.any(lambda it: it.up and it.state.role is RaftRole.FOLLOWER)
        if follower is None:
            return
        state, end = follower.state, follower.end
        asked = MetadataFetch(state.node_id, state.epoch, end.offset, end.epoch or UNDEFINED)
        leader = self.replicas[state.leader]

        def arrive() -> None:
            if not leader.up:
                return
            after, validation = leader.state.on_fetch(asked, leader.view(), self.moment())
            self.settle(leader, after, ())
            records, known = leader.log[asked.offset : asked.offset + 4], leader.state.high_watermark
            self.pool.append(lambda: self.answered(follower, asked, validation, records, known))

        self.pool.append(arrive)

    def answered(
        self, follower: Replica, asked: MetadataFetch, validation: Any, records: list[Entry], known: int
    ) -> None:
        state = follower.state
        still = follower.up and state.role is RaftRole.FOLLOWER and state.epoch == asked.epoch
        there = EpochAndOffset(max(0, asked.last_epoch), asked.offset)
        if not still or follower.end != there or validation.error.value:
            return
        if validation.diverging is not None:
            view = follower.view()
            del follower.log[truncation_offset(view.epochs, view.end, validation.diverging) :]
            follower.synced = min(follower.synced, len(follower.log))
            follower.state = state.on_leader_contact(self.moment())
        else:
            follower.log += records
            self.sync(follower)
            follower.state = state.on_fetch_response(known, len(follower.log), self.moment())

    # ---- inside ------------------------------------------------------------------------------------------------------

    def moment(self) -> Moment:
        return Moment(self.now_ms, self.random.random())

    def any(self, wanted: Callable[[Replica], bool]) -> Replica | None:
        found = [replica for replica in self.replicas.values() if wanted(replica)]
        return self.random.choice(found) if found else None

    def sync(self, replica: Replica) -> None:
        if self.rules.metadata_is_synced:
            replica.synced = len(replica.log)

    def append(self, replica: Replica) -> None:
        self.written += 1
        replica.log.append((replica.state.epoch, self.written))
        self.sync(replica)
        replica.state = replica.state.on_append(len(replica.log))

    def settle(self, replica: Replica, after: QuorumState, messages: tuple[OutgoingMessage, ...]) -> None:
        before, replica.state = replica.state, after
        if self.rules.vote_is_synced:
            replica.vote_on_disk = after.election_state
        elected = after.role is RaftRole.LEADER and before.role is not RaftRole.LEADER
        if elected:
            holder = self.leaders.setdefault(after.epoch, after.node_id)
            if holder != after.node_id:
                raise Broken(f"{holder} and {after.node_id} lead epoch {after.epoch}")
            self.append(replica)
        for message in messages:
            self.send(replica, message)

    def send(self, sender: Replica, message: OutgoingMessage) -> None:
        receiver = self.replicas[message.to]

        def arrive() -> None:
            if not receiver.up:
                return
            state, at = receiver.state, self.moment()
            if isinstance(message, SendVote):
                after, answer = state.on_vote_request(message.request, receiver.end, at)
                self.settle(receiver, after, ())

                def return_home() -> None:
                    if sender.up:
                        outcome = sender.state.on_vote_response(
                            message.to, message.request, answer, sender.end, self.moment()
                        )
                        self.settle(sender, *outcome)

                self.pool.append(return_home)
            elif isinstance(message, SendBeginQuorumEpoch):
                self.settle(receiver, state.on_begin_quorum_epoch(message.epoch, sender.state.node_id, at)[0], ())
            else:
                ended = state.on_end_quorum_epoch(message.epoch, sender.state.node_id, message.preferred, at)
                self.settle(receiver, ended[0], ())

        self.pool.append(arrive)

    def check(self) -> None:
        """Check that committed records stay committed and equal everywhere, and that logs match (equal at one offset,
        equal below)."""
        for replica in self.replicas.values():
            known = replica.log[: replica.state.high_watermark]
            if replica.up and len(known) < replica.state.high_watermark:
                raise Broken(f"{replica.state.node_id} lacks what it knows to be committed")
            if known[: len(self.committed)] != self.committed[: len(known)]:
                raise Broken(f"{replica.state.node_id} committed something else")
            if replica.up:
                self.committed += known[len(self.committed) :]
        leaders = [it for it in self.replicas.values() if it.up and it.state.role is RaftRole.LEADER]
        for leader in leaders:
            if leader.state.epoch == max(self.leaders) and leader.log[: len(self.committed)] != self.committed:
                raise Broken(f"{leader.state.node_id} leads without everything committed")
        held = [replica.log for replica in self.replicas.values()]
        for position, one in enumerate(held):
            for other in held[position + 1 :]:
                length = min(len(one), len(other))
                same = [one[offset] == other[offset] for offset in range(length)]
                if same != sorted(same, reverse=True):
                    raise Broken("two logs part and meet again")
