"""Exploration with reassignments: replicas are created, deleted, and created again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from harness.search.exploration import replica_steps, restart_steps
from harness.search.exploration.breadth_first import explore
from harness.search.exploration.cluster_model import ClusterModel, ClusterStep
from harness.search.exploration.cluster_values import (
    TOPIC,
    TOPIC_ID,
    BrokerState,
    LeaderAnswer,
    MetadataUpdate,
    ReplicaDisk,
)
from harness.search.exploration.memory_log import produced
from harness.search.exploration.normal_form import normalised, publish
from harness.search.exploration.replica_steps import ReplicaEvents
from harness.search.exploration.scope import Scope
from harness.search.state_space.explored_model import Numbers
from images.broker.metadata.image import ClusterImage, PartitionImage, TopicConfigRecord, TopicRecord
from images.broker.ports import NodePorts
from images.broker.replication.partition import Partition, PartitionRegistration, ReplicaRole
from images.broker.replication.replica_manager import ReplicaManager
from images.broker.replication.replica_results import FetchResult
from images.wire.batch import assign
from tests.broker.apis.data_path import CONFIG
from tests.broker.log.disk_model import DiskModel
from tests.harness.exploration.random_walks import kinds_of_canonical_walks

ONE_OF_TWO = Scope(
    replicas=1,
    spare_brokers=1,
    records=1,
    isr_changes_in_flight=True,
    fetches_in_flight=True,
    reassignments=2,
)
"""The shipped scope `reassignment`."""
AT_ONCE = replace(ONE_OF_TWO, isr_changes_in_flight=False, fetches_in_flight=False)
TWO_OF_THREE = Scope(replicas=2, spare_brokers=1, records=1, reassignments=2)
TWO_OF_FOUR = replace(TWO_OF_THREE, spare_brokers=2)

INCOMPLETE = "broker 2, in the ISR, lacks a committed record: it has no record; committed: records of leader epochs [0]"


def test_a_partition_that_moves_keeps_every_promise_in_every_state() -> None:
    result = explore(ONE_OF_TWO, 1)
    assert result.violation is None
    assert result.states > 7_500
    assert result.depth > 25


@pytest.mark.parametrize(
    ("scope", "rule", "promise", "line"),
    [
        (AT_ONCE, "reassignment_keeps_isr", INCOMPLETE, "an administrator moves the partition to brokers [2]"),
        (AT_ONCE, "reassignment_waits_for_isr", "no broker has all committed records", "and deletes its replica"),
        (AT_ONCE, "removal_bumps_leader_epoch", INCOMPLETE, "an administrator cancels the reassignment"),
        (ONE_OF_TWO, "fence_fetch_epoch", INCOMPLETE, "an administrator cancels the reassignment"),
        (ONE_OF_TWO, "current_epoch_fetch_gates_isr_join", INCOMPLETE, "leader 1 looks at its followers"),
    ],
)
def test_without_the_rule_a_replica_counts_for_what_it_does_not_have(
    scope: Scope, rule: str, promise: str, line: str
) -> None:
    violation = explore(replace(scope, without=(rule,)), 1).violation
    assert violation is not None
    assert promise in violation.promise
    assert any(line in step for step in violation.schedule)


def test_a_partition_that_moves_while_a_broker_restarts_keeps_every_promise_in_every_state() -> None:
    """The shipped scope `reassignment-with-restarts` with less of both."""
    result = explore(replace(ONE_OF_TWO, leader_epochs=2, restarts=1, reassignments=1), 1)
    assert result.violation is None
    assert result.states > 7_500
    assert result.depth > 25


def walked(model: ClusterModel, *actions: str) -> Numbers:
    """The state after these steps, each a kind and its numbers: brokers, or the target of a reassignment. Whoever reads
    reads the newest metadata."""
    state = model.initial()
    for action in actions:
        state = matching(model, state, action)[-1].state
    return state


def matching(model: ClusterModel, state: Numbers, action: str) -> list[ClusterStep]:
    kind, *numbers = action.split()
    steps = [step for step in model.steps(state) if step.action.kind == kind]
    if kind == "reassign":
        return [it for it in steps if model.cluster(it.state).controller.target == tuple(map(int, numbers))]
    return [it for it in steps if not numbers or it.action.broker == int(numbers[0])]


@pytest.mark.parametrize("without", [(), ("cancel_needs_min_isr",)])
def test_a_reassignment_cannot_be_cancelled_while_its_new_replicas_alone_have_a_committed_record(
    without: tuple[str, ...],
) -> None:
    """Broker 3 has joined the ISR, both replicas of before have left it, and broker 4 has yet to join."""
    model = ClusterModel(replace(TWO_OF_FOUR, without=without))
    joined = ("read 1", "reassign 3 4", "read 1", "read 3", "fetch 3", "session_ends 2", "session_ends 1", "read 3")
    committed = (*joined, "append 3")
    state = walked(model, *committed)
    assert model.cluster(state).controller.partition.isr == (3,)
    assert model.cluster(state).history.committed
    if not without:
        assert matching(model, state, "cancel") == []
        return
    lost = walked(model, *committed, "cancel", "read 3")
    assert (
        model.broken(lost)
        == "no broker has all committed records (records of leader epochs [1]): an acknowledged record is lost"
    )


@pytest.mark.parametrize("without", [(), ("unclean_leaves_elr",)])
def test_a_replica_that_was_added_and_lost_its_log_is_no_candidate(without: tuple[str, ...]) -> None:
    """In the shipped scope `reassignment-with-losses`: broker 3 has joined the ISR, and broker 2 has left it."""
    scope = replace(TWO_OF_THREE, leader_epochs=1, min_insync_replicas=2, isr_changes_in_flight=True, reassignments=1)
    model = ClusterModel(replace(scope, restarts=1, losses=1, without=without))
    added = ("read 1", "session_ends 2", "reassign 2 3", "read 1", "read 3", "fetch 3", "alter_partition 1")
    state = walked(model, *added, "append 1", "fetch 3", "fetch 3", "crash 3", "fence 3", "register 3")
    cluster = model.cluster(state)
    assert cluster.history.committed
    assert cluster.brokers[2].lossy
    assert (3 in cluster.controller.partition.elr) == bool(without)
    assert ("broker 3, in the ELR, lacks a committed record" in (model.broken(state) or "")) == bool(without)


def test_any_replica_of_the_target_may_lead_once_the_leader_is_taken_off() -> None:
    model = ClusterModel(TWO_OF_FOUR)
    state = walked(model, "read 1", "reassign 3 4", "read 1", "read 3", "fetch 3", "read 4")
    completed = [model.cluster(step.state).controller.partition for step in matching(model, state, "fetch 4")]
    assert {(it.replicas, it.isr, it.leader, it.leader_epoch) for it in completed} == {
        ((3, 4), (3, 4), leader, 1) for leader in (3, 4)
    }


def test_a_broker_that_reads_of_its_removal_comes_back_empty_and_one_that_skips_it_keeps_its_log() -> None:
    model = ClusterModel(TWO_OF_THREE)
    replicated = ("read 1", "read 2", "append 1", "fetch 2", "reassign 1 3", "read 1", "read 3", "fetch 3", "fetch 3")
    state = walked(model, *replicated, "reassign 1 2")
    assert model.cluster(walked(model, *replicated)).controller.partition.replicas == (1, 3)
    removed, skipped = (model.cluster(step.state).brokers[1] for step in matching(model, state, "read 2"))
    assert (removed.partition.role, removed.records, len(removed.unread)) == (ReplicaRole.NONE, (), 1)
    assert (skipped.partition.role, len(skipped.records), skipped.unread) == (ReplicaRole.FOLLOWER, 1, ())
    added = replica_steps.read_update(removed, 0, ReplicaEvents(model.scope.limits))
    assert (added.partition.role, added.partition.leader, added.records) == (ReplicaRole.FOLLOWER, 1, ())


def test_leader_epochs_bound_the_reassignments_that_are_completed() -> None:
    """A step whose ISR change would complete one in a later leader epoch is none of the scope."""
    model = ClusterModel(replace(TWO_OF_THREE, leader_epochs=1))
    state = walked(model, "read 1", "reassign 1 3", "read 1", "read 3")
    assert matching(model, state, "fetch 3") == matching(model, state, "cancel") == []


@pytest.mark.parametrize(
    ("scope", "rare"),
    [
        (replace(TWO_OF_FOUR, isr_changes_in_flight=True), "alter_partition"),
        (ONE_OF_TWO, "serve"),
        (replace(TWO_OF_THREE, min_insync_replicas=2, restarts=2, losses=1), "register"),
    ],
)
def test_states_with_reassignments_that_differ_by_the_names_of_brokers_have_one_canonical_state(
    scope: Scope, rare: str
) -> None:
    model = ClusterModel(scope)
    kinds = kinds_of_canonical_walks(model, 5, 30)
    assert {"reassign", "cancel", "read", rare} <= kinds


def test_symmetry_leaves_out_states_of_a_reassignment_and_changes_no_verdict() -> None:
    """The brokers that may be added are alike."""
    scope = replace(AT_ONCE, spare_brokers=2, leader_epochs=2, reassignments=1)
    reduced, whole = (explore(replace(scope, symmetry=symmetry), 1) for symmetry in (True, False))
    assert reduced.states < whole.states < 2 * reduced.states + 10
    assert (reduced.violation, reduced.depth, reduced.situations) == (None, whole.depth, whole.situations)
    assert whole.violation is None


# --- a broker creates and deletes its replica as `ReplicaManager` does ------------------------------------------------

NOBODY, FOLLOWS, LEADS = "no replica", "follows", "leads"
Seen = tuple[ReplicaRole, int, int, int] | None
"""Role, leader, leader epoch and log end of a replica; None without one."""


def updates(kinds: tuple[str, ...], bumps: bool) -> list[MetadataUpdate]:
    """Updates in which broker 1 has these roles, beside broker 2. A removal `bumps` the leader epoch, as an election
    does."""
    epoch, before = 0, FOLLOWS
    made = []
    for partition_epoch, kind in enumerate(kinds, 2):
        elected = (kind == LEADS) != (before == LEADS)
        removed = kind == NOBODY and before != NOBODY
        epoch += elected or (bumps and removed)
        members = (2,) if kind == NOBODY else (1, 2)
        leader = 1 if kind == LEADS else 2
        made.append(MetadataUpdate(PartitionRegistration(members, members, leader, epoch, partition_epoch), ()))
        before = kind
    return made


def seen_by_model(begins: BrokerState, published: list[MetadataUpdate]) -> set[tuple[Seen, ...]]:
    """What the broker is, one after the other, in every way in which it may read these updates."""
    for update in published:
        one = replace(update.registration, partition_epoch=1)
        begins = publish(begins, update._replace(registration=one))

    def follow(broker: BrokerState, seen: tuple[Seen, ...]) -> Iterator[tuple[Seen, ...]]:
        state = broker.partition
        now = (state.role, state.leader, state.leader_epoch, state.log_end)
        seen = (*seen, None if state.role is ReplicaRole.NONE else now)
        yield seen
        for position in range(len(broker.unread)):
            yield from follow(replica_steps.read_update(broker, position, ReplicaEvents(ONE_OF_TWO.limits)), seen)

    return {without_repeats(seen) for seen in follow(begins, ())}


def seen_by_shell(
    first: MetadataUpdate | None, published: list[MetadataUpdate], *, restarts: bool = False
) -> set[tuple[Seen, ...]]:
    """The same of a `ReplicaManager`, which has replicated one record if it has applied a `first` update; or of the one
    that opens its files after it."""
    result = set()
    for count in range(len(published) + 1):
        for applied in combinations(published, count):
            disk = DiskModel()
            replicas = replica_manager(disk)
            seen: list[Seen] = []
            for update in (first, *applied):
                if update is not None:
                    replicas.apply(image_of(update.registration))
                replica = replicas.get(TOPIC, 0)
                if replica is not None and update is first:
                    replica.replicate(0, 0, assign(produced(0), 0, 0), 0)
                    if restarts:
                        replicas = replica_manager(disk)
                        replica = replicas.get(TOPIC, 0)
                state = replica and replica.state
                seen.append(state and (state.role, state.leader, state.leader_epoch, state.log_end))
            result.add(without_repeats(seen))
    return result


def replica_manager(disk: DiskModel) -> ReplicaManager:
    ports = NodePorts(disk, Random(1), lambda event: None, lambda line: None)
    return ReplicaManager(CONFIG, ports, lambda: 0.0, lambda: 0, lambda *_: None, lambda *_: None)  # type: ignore[arg-type, return-value]


def image_of(known: PartitionRegistration) -> ClusterImage:
    epochs = (known.leader, known.leader_epoch, known.partition_epoch)
    partition = PartitionImage(TOPIC, TOPIC_ID, 0, known.replicas, known.isr, (), (), *epochs)
    return ClusterImage().apply_all(
        [TopicRecord(TOPIC, TOPIC_ID), TopicConfigRecord(TOPIC, ONE_OF_TWO.topic_config), partition], 0
    )


def without_repeats(seen: Iterator[Seen] | list[Seen] | tuple[Seen, ...]) -> tuple[Seen, ...]:
    kept: list[Seen] = []
    for each in seen:
        if kept[-1:] != [each]:
            kept.append(each)
    return tuple(kept)


FIRST = MetadataUpdate(PartitionRegistration((1, 2), (1, 2), 2, 0, 1), ())
"""Broker 1 follows broker 2."""


def replicated() -> BrokerState:
    """Broker 1 once it has read this and replicated one record."""
    broker = normalised(BrokerState(Partition(1), disk=ReplicaDisk()))
    broker = replica_steps.read_update(publish(broker, FIRST), 0, ReplicaEvents(ONE_OF_TWO.limits))
    request = replica_steps.request_of(broker, ReplicaEvents(ONE_OF_TWO.limits))
    answer = LeaderAnswer(FetchResult(ErrorCode.none, assign(produced(0), 0, 0), 0, 0))
    return replica_steps.receive(broker, request, answer, ReplicaEvents(ONE_OF_TWO.limits))


@pytest.mark.parametrize("bumps", [True, False])
@pytest.mark.parametrize("hosts", [True, False])
def test_a_broker_is_what_a_replica_manager_is_whichever_updates_it_skips(hosts: bool, bumps: bool) -> None:
    """Also without the rule removal_bumps_leader_epoch."""
    broker = replicated() if hosts else normalised(BrokerState(Partition(1)))
    first = FIRST if hosts else None
    kept_logs = 0
    for kinds in product((NOBODY, FOLLOWS, LEADS), repeat=3):
        published = updates(kinds, bumps)
        expected = seen_by_shell(first, published)
        assert seen_by_model(broker, published) == expected, kinds
        kept_logs += sum(seen[-1] is not None and seen[-1][-1] == 1 for seen in expected)
    assert bool(kept_logs) == hosts


def test_a_broker_that_restarts_deletes_its_log_when_it_reads_that_it_was_taken_off_and_else_keeps_it() -> None:
    """What was decided while it was down is one update to it: the first that it may read, the one at its
    registration."""
    lengths = set()
    for kinds in product((NOBODY, FOLLOWS, LEADS), repeat=3):
        published = updates(kinds, bumps=True)
        registered = published[0]._replace(registration=replace(published[0].registration, partition_epoch=1))
        (restarted,) = restart_steps.restarts(
            publish(restart_steps.crashed(replicated()), registered), registered, 1, ONE_OF_TWO.limits, lossy=False
        )
        expected = seen_by_shell(FIRST, published, restarts=True)
        assert seen_by_model(restarted, published[1:]) == expected, kinds
        lengths |= {seen[-1][-1] for seen in expected if seen[-1] is not None}
    assert lengths == {0, 1}
