"""What the exploration of the quorum assumes of the shell, compared with the shell."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.fetch.v16.request import FetchRequest

from harness.search.quorum_exploration.durability import Durability, durability
from harness.search.quorum_exploration.explored_node import ExploredNode, node_config
from harness.search.quorum_exploration.memory_metadata_log import MemoryMetadataLog
from harness.search.quorum_exploration.quorum_model import QuorumModel
from harness.search.quorum_exploration.quorum_values import (
    ExploredQuorum,
    QuorumMessage,
    RequestKind,
    SendFetch,
    VoterState,
)
from harness.search.quorum_exploration.scope import QuorumScope
from harness.search.quorum_exploration.voter_steps import VoterSteps, fetch_partition
from harness.simulation.storage.disk import SimDisk
from harness.simulation.storage.files import SimFiles
from images.broker.frozen_map import FrozenMap
from images.broker.log.leader_epochs import EpochCache
from images.broker.metadata.image import LeaderChange
from images.broker.ports import NodePorts
from images.broker.raft.log import KafkaMetadataLog
from images.broker.raft.node import RaftNode
from images.broker.raft.values import ElectionState, RaftRole
from images.broker.rules import Rules
from nemesis.ports import KeepUnsynced
from tests.workloads.virtual_time import run

LATE_FETCHES = QuorumScope(epochs=2, records=0, in_flight=(RequestKind.VOTE, RequestKind.FETCH), messages=1)
LATE_MESSAGES = QuorumScope(epochs=2, records=0, in_flight=tuple(RequestKind), messages=1, restarts=1)


def some_states(scope: QuorumScope, levels: int, states: int) -> list[ExploredQuorum]:
    """At most so many states of each of the first levels of a scope."""
    model = QuorumModel(scope)
    level, found = [model.initial()], []
    for _ in range(levels):
        found += map(model.cluster, level)
        after = dict.fromkeys(step.state for state in level for step in model.steps(state))
        level = Random(0).sample(list(after), min(states, len(after)))
    return found


def arrivals(quorums: list[ExploredQuorum]) -> list[tuple[VoterState, QuorumMessage]]:
    """Every message in flight, and the controller that it may reach."""
    pairs = ((quorum.voters[message.receiver - 1], message) for quorum in quorums for message in quorum.network)
    return list(dict.fromkeys(pairs))


# --- what the exploration forgets -------------------------------------------------------------------------------------


def with_the_past(voter: VoterState) -> VoterState:
    """The controller with what is left of an earlier election and an earlier leadership."""
    state = voter.quorum
    if state.role not in (RaftRole.PROSPECTIVE, RaftRole.CANDIDATE):
        state = replace(state, votes=FrozenMap(dict.fromkeys(state.others, True)))
    if state.role is not RaftRole.LEADER:
        state = replace(state, epoch_start_offset=0)
    return voter._replace(quorum=replace(state, deadline_ms=0))


@pytest.mark.parametrize("without", [(), ("vote_once_per_epoch", "commit_only_own_epoch", "metadata_fetch_fenced")])
def test_no_event_depends_on_earlier_elections_and_leaderships(without: tuple[str, ...]) -> None:
    scope = replace(LATE_MESSAGES, without=without)
    steps, count = VoterSteps(scope), 0
    for voter, message in arrivals(some_states(scope, 9, 60)):
        past = with_the_past(voter)
        assert steps.arrives(past, message) == steps.arrives(voter, message)
        assert steps.timeouts(past) == steps.timeouts(voter)
        assert steps.resigns(past) == steps.resigns(voter)
        count += past != voter
    assert count > 50


# --- a follower sends the fetches of the model, and takes the answers as it does --------------------------------------


class OneAnswer:
    """A connection to the leader: the first fetch is answered once the follower is in another state, the next never."""

    closed = False

    def __init__(self, node: ExploredNode, later: VoterState, partition: Any) -> None:
        self.requests: list[FetchRequest] = []
        self._node, self._later, self._partition = node, later, partition

    async def call(self, request: FetchRequest, timeout_s: float) -> Any:
        self.requests.append(request)
        if len(self.requests) > 1:
            raise asyncio.CancelledError
        self._node.put_into(self._later)
        topic = type("Topic", (), {"partitions": (self._partition,)})
        return type("Response", (), {"responses": (topic,)})

    def close(self) -> None:
        self.closed = True


def test_a_follower_sends_the_fetches_of_the_model_and_takes_the_answers_as_it_does() -> None:
    scope = LATE_FETCHES
    steps = VoterSteps(scope)
    quorums = some_states(scope, 18, 150)
    voters = dict.fromkeys(voter for quorum in quorums for voter in quorum.voters)
    senders = {fetch: voter for voter in voters if (fetch := steps.fetch_of(voter)) is not None}
    answered, taken = 0, 0

    async def fetched(sender: VoterState, message: QuorumMessage, later: VoterState) -> tuple[Any, Any]:
        log = MemoryMetadataLog(sender.records, sender.epochs, sender.stored, scope.rules)
        node = ExploredNode(node_config(message.sender, scope.voters, scope.rules), log)
        node.put_into(sender)
        connection = OneAnswer(node, later, fetch_partition(message.request.fetch.offset, message.answer))

        class OneConnection:
            async def to(self, voter: int) -> OneAnswer:
                assert voter == message.request.to
                return connection

        node._fetch_connections = OneConnection()  # type: ignore[assignment]
        try:
            await RaftNode._fetch_from(node, sender.quorum.leader, sender.quorum.epoch)
        except asyncio.CancelledError:
            pass
        return connection.requests[0], steps.read_out(node, later)

    for voter, message in arrivals(quorums):
        if not isinstance(message.request, SendFetch) or message.answer is None:
            continue
        fetch, sender = message.request.fetch, senders[message._replace(answer=None)]
        request, after = run(fetched(sender, message, voter))
        partition = request.topics[0].partitions[0]
        assert (request.replica_state.replica_id, partition.current_leader_epoch) == (fetch.replica, fetch.epoch)
        assert (partition.fetch_offset, partition.last_fetched_epoch) == (fetch.offset, fetch.last_epoch)
        assert after == steps.arrives(voter, message)
        answered, taken = answered + 1, taken + (after.voter != voter)
    assert answered > 20
    assert taken > 10


# --- the log in memory behaves as the log on a disk, also after a power loss ------------------------------------------

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 4)),
        st.tuples(st.just("vote"), st.integers(1, 3)),
    ),
    max_size=10,
)


def on_disk(disk: SimDisk, rules: Rules) -> KafkaMetadataLog:
    ports = NodePorts(SimFiles(disk), Random(0), lambda event: None, lambda line: None, now_ms=lambda: 0)
    return KafkaMetadataLog(ports, 1 << 20, rules)


@settings(max_examples=40, deadline=None)
@given(OPERATIONS, st.randoms(use_true_random=False))
def test_the_log_in_memory_is_the_log_on_a_disk_and_loses_nothing(
    operations: list[tuple[str, int]], random: Random
) -> None:
    rules, disk = Rules(), SimDisk()
    memory = MemoryMetadataLog((), EpochCache(), ElectionState(), rules)
    logs: tuple[KafkaMetadataLog, ...] = (on_disk(disk, rules), memory)
    epoch = 0
    for kind, number in operations:
        epoch = max(epoch, number)
        for log in logs:
            if kind == "append":
                log.append(log.encode_batch([LeaderChange(1, epoch)], epoch, 0))
            elif kind == "truncate":
                log.truncate(min(number, log.end))
            else:
                log.write_election_state(ElectionState(epoch, -1, number))
        assert len({(log.start, log.end, log.last_entry, log.view) for log in logs}) == 1
    disk.lose_power(KeepUnsynced.PREFIX, random)
    recovered = MemoryMetadataLog.recovered(memory.records, memory.stored, rules)
    reopened = on_disk(disk, rules)
    assert (reopened.last_entry, reopened.view) == (recovered.last_entry, recovered.view)
    assert reopened.read_election_state() == recovered.read_election_state()


@pytest.mark.parametrize(
    ("without", "synced"),
    [
        ((), Durability(True, True, True, True)),
        (("vote_is_synced",), Durability(True, True, True, False)),
        (("metadata_is_synced",), Durability(False, False, False, True)),
    ],
)
def test_a_power_loss_takes_what_the_shipped_log_does_not_sync(without: tuple[str, ...], synced: Durability) -> None:
    assert durability(Rules().without(without)) == synced
