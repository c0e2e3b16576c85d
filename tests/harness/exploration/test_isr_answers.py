"""Answers to ISR changes that are messages of their own, in scopes of seconds, and what that assumes of the shell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any, cast

import pytest
from kio.schema.alter_partition.v3.response import AlterPartitionResponse, PartitionData, TopicData
from kio.schema.errors import ErrorCode

from harness.search.exploration import promises_of_runs
from harness.search.exploration.breadth_first import explore
from harness.search.exploration.cluster_model import ClusterModel
from harness.search.exploration.cluster_values import TOPIC_ID, BrokerState, ExploredCluster, IsrAnswer
from harness.search.exploration.normal_form import normalised
from harness.search.exploration.replica_steps import OpenedReplica
from harness.search.exploration.scope import Scope
from harness.search.exploration.symmetry import renamed_broker, renamed_controller
from harness.search.scripted_schedules.translation import Untranslatable, translated
from harness.search.state_space.explored_model import Numbers
from harness.search.state_space.shortest_schedules import WalkedStep
from images.broker.controller.channel import ControllerChannel
from images.broker.replication import become_leader_or_follower, leader
from images.broker.replication.alter_partition_manager import AlterPartitionManager
from images.broker.replication.partition import (
    IsrRefused,
    LeaderState,
    Limits,
    Partition,
    PartitionRegistration,
    PartitionStep,
    ProposeIsr,
    ReplicaRole,
)
from images.trace import TraceEvent
from images.wire.connection import ConnectionLost
from images.wire.field_values import NO_THROTTLE
from tests.harness.exploration.random_walks import kinds_of_canonical_walks
from tests.workloads.virtual_time import run

ANSWERS = Scope(
    replicas=2, records=1, leader_epochs=1, isr_changes_in_flight=True, isr_answers_in_flight=True, fencings=1
)
BACKOFF_S = 1.0

LATE = (
    *("read 1", "read 2", "lag 1", "alter_partition 1", "receive_isr 1"),
    *("fetch 2", "lose_isr 1", "expire 2", "alter_partition 1", "receive_isr 1"),
)
"""The leader removes its follower from the ISR, proposes it again, and loses the connection with that; the second
request is refused, as the follower is fenced by then."""


def walked(scope: Scope, *actions: str) -> tuple[ClusterModel, Numbers]:
    """The state after these steps, each a kind and a broker."""
    model = ClusterModel(scope)
    state = model.initial()
    for action in actions:
        kind, broker = action.split()
        state = next(it.state for it in model.steps(state) if it.action[:2] == (kind, int(broker)))
    return model, state


# --- what comes when --------------------------------------------------------------------------------------------------


def test_a_refusal_after_a_lost_connection_is_not_certain_and_the_first_request_may_be_committed_after_it() -> None:
    model, state = walked(ANSWERS, *LATE)
    cluster = model.cluster(state)
    assert cluster.brokers[0].partition.leader_state.unresolved_members == (2,)
    assert cluster.controller.partition.isr == (1,)
    model, state = walked(ANSWERS, *LATE, "resume 2", "late_alter_partition 1", "append 1")
    cluster = model.cluster(state)
    assert cluster.controller.partition.isr == (1, 2)
    assert cluster.brokers[0].partition.high_watermark == 0
    assert model.broken(state) is None


def test_an_uncertain_refusal_taken_for_a_certain_one_leaves_a_member_of_the_isr_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = leader.on_isr_refused
    monkeypatch.setattr(
        leader,
        "on_isr_refused",
        lambda state, proposal, answer, limits: refused(state, proposal, replace(answer, certain=True), limits),
    )
    found = explore(ANSWERS, 1).violation
    assert found is not None
    assert found.promise == (
        "leader 1 counts on [1], where [1, 2] are in the ISR and ELR (Replication Quorum Superset)"
    )
    assert "broker 1 receives the answer to its AlterPartition, INELIGIBLE_REPLICA, which is not certain" in (
        line.partition(":")[0] for line in found.schedule
    )
    kinds = {step.action.kind for step in found.steps}
    assert {"lose_isr", "receive_isr", "late_alter_partition", "expire", "resume"} <= kinds
    assert explore(replace(ANSWERS, isr_answers_in_flight=False), 1).violation is None


def test_a_lost_request_is_committed_after_newer_changes_without_the_check_of_the_partition_epoch() -> None:
    scope = replace(ANSWERS, fencings=0, without=("partition_epoch_checked_in_alter_partition",))
    found = explore(scope, 1).violation
    assert found is not None
    assert "Replication Quorum Superset" in found.promise
    assert "late_alter_partition" in {step.action.kind for step in found.steps}
    assert explore(replace(scope, isr_answers_in_flight=False), 1).violation is None


def test_a_leader_that_goes_back_upon_every_refusal_leaves_out_a_member_that_a_lost_request_has_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller refuses the second request since it has committed the first one. Where no request is lost there
    is no such refusal."""

    def roll_back(state: Partition, proposal: ProposeIsr, answer: IsrRefused, limits: Limits) -> PartitionStep:
        return refused(state, proposal, IsrRefused(ErrorCode.ineligible_replica, certain=True), limits)

    refused = leader.on_isr_refused
    monkeypatch.setattr(leader, "on_isr_refused", roll_back)
    scope = replace(ANSWERS, fencings=0)
    found = explore(scope, 1).violation
    assert found is not None
    assert "Replication Quorum Superset" in found.promise
    assert "broker 1 receives the answer to its AlterPartition, INVALID_UPDATE_VERSION, which is not certain" in (
        line.partition(":")[0] for line in found.schedule
    )
    assert explore(replace(scope, isr_answers_in_flight=False), 1).violation is None


def test_metadata_of_a_known_partition_epoch_that_ends_a_later_change_leaves_out_a_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer tells the leader of its change, and it proposes the next one before it reads the metadata."""
    apply = become_leader_or_follower.apply_registration

    def again(state: Partition, known: PartitionRegistration, now_ms: int, limits: Limits) -> PartitionStep:
        if known.partition_epoch == state.partition_epoch:
            state = state._replace(partition_epoch=state.partition_epoch - 1)
        return apply(state, known, now_ms, limits)

    monkeypatch.setattr(become_leader_or_follower, "apply_registration", again)
    scope = replace(ANSWERS, fencings=0)
    found = explore(scope, 1).violation
    assert found is not None
    assert "Replication Quorum Superset" in found.promise
    assert found.steps[-1].action.kind == "read"
    assert explore(replace(scope, isr_answers_in_flight=False), 1).violation is None


def test_the_answer_comes_before_the_metadata_or_after_it_and_the_metadata_is_still_read() -> None:
    committed = ("read 1", "read 2", "lag 1", "alter_partition 1")
    model, answered = walked(ANSWERS, *committed, "receive_isr 1")
    before = model.cluster(answered).brokers[0]
    assert (before.partition.isr, before.told, len(before.unread)) == ((1,), True, 1)
    model, both = walked(ANSWERS, *committed, "receive_isr 1", "read 1")
    after = model.cluster(both).brokers[0]
    assert after == before._replace(told=False, unread=())
    model, other = walked(ANSWERS, *committed, "read 1", "receive_isr 1")
    assert model.cluster(other).brokers[0] == after


def test_an_answer_comes_to_a_leader_that_was_deposed_and_leads_again() -> None:
    scope = replace(ANSWERS, leader_epochs=3, fencings=0)
    again = ("elect 2", "read 1", "read 1", "read 1", "elect 1", "read 1", "receive_isr 1")
    joins = ("read 1", "read 2", "lag 1", "alter_partition 1", "receive_isr 1", "fetch 2", "alter_partition 1")
    model, state = walked(scope, *joins, *again)
    known = model.cluster(state).brokers[0].partition
    assert (known.leader_epoch, known.isr, known.role) == (2, (1, 2), ReplicaRole.LEADER)


# --- symmetry ---------------------------------------------------------------------------------------------------------


def test_the_states_are_the_orbits_of_those_without_symmetry() -> None:
    scope, depth = replace(ANSWERS, replicas=3), 5
    model = ClusterModel(replace(scope, symmetry=False))
    seen, frontier = {model.initial()}, {model.initial()}
    for _ in range(depth):
        frontier = {step.state for state in frontier for step in model.steps(state)} - seen
        seen |= frontier
    orbits = {_least_name(model.cluster(state)) for state in seen}
    reduced = explore(scope, 1, depth_most=depth)
    assert reduced.states == len(orbits) < len(seen)
    assert any(it.isr_exchange and it.isr_exchange.answer for state in seen for it in model.cluster(state).brokers)
    assert any(it.late_proposal for state in seen for it in model.cluster(state).brokers)


def _least_name(cluster: ExploredCluster) -> str:
    """The least text of a state under all names of its brokers."""
    brokers = [it.partition.node for it in cluster.brokers]
    texts = []
    for order in permutations(brokers):
        names = dict(zip(brokers, order, strict=True))
        renamed = sorted((renamed_broker(it, names) for it in cluster.brokers), key=lambda it: it.partition.node)
        texts.append(repr((renamed, renamed_controller(cluster.controller, names), cluster.history)))
    return min(texts)


def test_states_with_answers_in_flight_that_differ_by_names_have_one_canonical_state() -> None:
    scope = replace(ANSWERS, replicas=3, leader_epochs=2, min_insync_replicas=2, restarts=1)
    kinds = kinds_of_canonical_walks(ClusterModel(scope), 8, 20)
    assert {"receive_isr", "lose_isr", "late_alter_partition", "expire", "unfence", "crash", "register"} <= kinds


# --- scripts ----------------------------------------------------------------------------------------------------------


def test_a_schedule_with_an_answer_on_its_way_has_no_script() -> None:
    scope = replace(ANSWERS, as_in_a_run=True)
    model = ClusterModel(scope)
    state, steps = model.initial(), []
    for kind in ("session_ends", "read", "fetch", "alter_partition", "receive_isr"):
        step = next(it for it in model.steps(state) if it.action.kind == kind and it.action.broker != 3)
        steps.append(WalkedStep(step.action, model.cluster(state), model.cluster(step.state), kind))
        state = step.state
    assert promises_of_runs.seen_broken(steps[-1].before, steps[-1].after) is None
    with pytest.raises(Untranslatable, match="alter_partition: a script has no answer to an ISR change that is on"):
        translated(scope, steps)


# --- the shell: the events of the model are those of `AlterPartitionManager` ------------------------------------------


class HeldAnswers:
    """A channel to the controller whose requests are answered, or lost, when a test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, ...]] = []
        """The members of each request."""
        self._answers: list[asyncio.Future[AlterPartitionResponse]] = []

    async def call(self, request: Any) -> AlterPartitionResponse:
        self.sent.append(tuple(it.broker_id for it in request.topics[0].partitions[0].new_isr_with_epochs))
        self._answers.append(asyncio.get_running_loop().create_future())
        return await self._answers[-1]

    def answer(self, answer: IsrAnswer | None) -> None:
        """The answer to the newest request; None for a lost connection."""
        if answer is None:
            self._answers[-1].set_exception(ConnectionLost("reset"))
            return
        committed = answer.committed
        partition = PartitionData(
            partition_index=0,
            error_code=answer.error,
            leader_id=1,
            leader_epoch=committed.leader_epoch if committed else -1,
            isr=committed.isr if committed else (),
            partition_epoch=committed.partition_epoch if committed else -1,
        )
        topic = TopicData(topic_id=TOPIC_ID, partitions=(partition,))
        self._answers[-1].set_result(
            AlterPartitionResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, topics=(topic,))
        )


def manager_of(channel: HeldAnswers, trace: list[TraceEvent]) -> AlterPartitionManager:
    tasks: list[asyncio.Task[None]] = []

    def spawn(work: Any, *arguments: Any) -> asyncio.Task[None]:
        tasks.append(asyncio.ensure_future(work(*arguments)))
        return tasks[-1]

    return AlterPartitionManager(1, cast(ControllerChannel, channel), lambda: 0, BACKOFF_S, spawn, trace.append)


def proposing(state: Partition, proposal: ProposeIsr) -> Partition:
    """A leader that proposes this."""
    return state._replace(
        role=ReplicaRole.LEADER,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        leadership=LeaderState(0, (), proposed=proposal.members),
    )


def exchanges(scope: Scope) -> Iterator[tuple[BrokerState, str, BrokerState]]:
    """Every step of an exchange with the controller in a scope, with the broker before and after it."""
    model = ClusterModel(scope)
    seen, frontier = {model.initial()}, {model.initial()}
    while frontier:
        frontier = {step.state for state in frontier for step in model.steps(state)} - seen
        seen |= frontier
    for number in sorted({broker for state in seen for broker in state[:-2]}):
        for move in model.machines.moves[number]:
            if move.action.kind in ("receive_isr", "lose_isr"):
                yield model.brokers.values[number], move.action.kind, model.brokers.values[move.broker]


def taken_by_shell(
    before: BrokerState, answer: IsrAnswer | None, after: BrokerState, limits: Limits
) -> tuple[BrokerState, int]:
    """The broker once its manager has taken this answer, None for a lost connection, in this state; and the requests
    that it has sent since."""
    exchange = before.isr_exchange
    assert exchange is not None
    opened = OpenedReplica(before, limits)
    replica, state, channel = opened.replica, before.partition, HeldAnswers()
    proposal = before.proposal or replace(exchange.sent.proposal, partition_epoch=state.partition_epoch - 1)

    async def scenario() -> int:
        replica.state = proposing(state, proposal)
        manager_of(channel, []).propose(replica, proposal)
        await asyncio.sleep(0.1)
        if not exchange.certain:
            channel.answer(None)
            await asyncio.sleep(1.5 * BACKOFF_S)
        replica.state = state
        sent = len(channel.sent)
        channel.answer(answer)
        await asyncio.sleep(1.5 * BACKOFF_S)
        return len(channel.sent) - sent

    sent = run(scenario())
    told = before.told or (answer is not None and answer.committed is not None)
    kept = {it: getattr(after, it) for it in ("proposal", "isr_exchange", "late_proposal")}
    return normalised(opened.read_out()._replace(told=told, **kept)), sent


def test_the_manager_takes_answers_and_lost_connections_as_the_model_does() -> None:
    kinds: set[tuple[str, bool, bool]] = set()
    for place, (before, kind, after) in enumerate(exchanges(ANSWERS)):
        exchange = before.isr_exchange
        assert exchange is not None
        shape = (kind, exchange.certain, before.proposal is not None)
        if shape in kinds and place % 8:
            continue
        kinds.add(shape)
        taken, sent = taken_by_shell(before, exchange.answer if kind == "receive_isr" else None, after, ANSWERS.limits)
        assert taken == after
        assert sent == (kind == "lose_isr" and before.proposal is not None)
        assert (after.isr_exchange is not None) == bool(sent)
        assert after.isr_exchange is None or not after.isr_exchange.certain, "it was sent again"
    assert len(kinds) == 8


def test_nobody_waits_for_an_answer_once_another_change_is_proposed_whose_refusal_is_certain_again() -> None:
    model, state = walked(ANSWERS, "read 1", "read 2", "lag 1")
    before = model.cluster(state).brokers[0]
    opened, channel = OpenedReplica(before, ANSWERS.limits), HeldAnswers()
    trace: list[TraceEvent] = []
    first = before.proposal
    assert first is not None
    second = replace(first, members=(1, 2), broker_epochs=(0, 0), partition_epoch=first.partition_epoch + 1)

    async def scenario() -> None:
        manager = manager_of(channel, trace)
        manager.propose(opened.replica, first)
        await asyncio.sleep(0.1)
        channel.answer(None)
        await asyncio.sleep(1.5 * BACKOFF_S)
        opened.replica.state = proposing(before.partition, second)
        manager.propose(opened.replica, second)
        await asyncio.sleep(0.1)
        channel.answer(IsrAnswer(ErrorCode.ineligible_replica))
        await asyncio.sleep(1.5 * BACKOFF_S)

    run(scenario())
    assert channel.sent == [(1,), (1,), (1, 2)]
    answers = [event.detail for event in trace if event.kind == "alter_partition_answered"]
    assert [(it["error"], it["certain"]) for it in answers] == [("lost", False), ("ineligible_replica", True)]
