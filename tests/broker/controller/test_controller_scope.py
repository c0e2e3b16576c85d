"""Every state a small cluster can reach, and long random lives of a larger one.

The scope: one partition, its replicas on two or three brokers, every event at every moment. Beside the controller runs
a model of what each replica holds, a single bit: does it have every committed record? It loses the bit when it
restarts uncleanly, or when a record is committed while it is out of the ISR, and gets it back from a leader that has
it. Leader Candidate Completeness (Kafka Replication Correctness §6.5) is that every member of ISR and ELR has the bit.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from images.broker.controller.alter_partition import AlterPartition, AlterPartitionAnswer, IsrProposal
from images.broker.controller.controller import Controller, ControllerResult
from images.broker.controller.metadata_change import Session
from images.broker.controller.placement import NewTopic
from images.broker.controller.requests import Heartbeat, Registration
from images.broker.controller.unclean_recovery import Strategy, strategy_of
from images.broker.frozen_map import FrozenMap
from images.broker.metadata.image import ClusterImage, PartitionImage, decode, encode
from images.broker.rules import Rules
from images.wire.field_values import NO_LEADER
from tests.broker.controller.controller_driver import SETTINGS, TIMEOUT_MS, TOPIC, TOPIC_ID, Driver, replayed

NOW_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class World:
    """The controller, and which replicas hold every committed record."""

    controller: Controller
    complete: frozenset[int]

    @property
    def partition(self) -> PartitionImage:
        return self.controller.image.topics[TOPIC].partitions[0]

    def key(self) -> object:
        """The key of a state: everything but the counters, which only rise."""
        brokers = tuple((b.id, b.fenced, b.shutting_down) for b in self.controller.image.brokers.values())
        return brokers, replace(self.partition, leader_epoch=0, partition_epoch=0), self.complete


def world(brokers: int, min_isr: int, rules: Rules) -> World:
    """All replicas in sync, nothing committed yet."""
    driver = Driver(*rules.off())
    driver.start(*range(1, brokers + 1))
    driver.topic(*range(1, brokers + 1), min_isr=min_isr)
    return World(quiet(driver.controller), frozenset(driver.partition.replicas))


def quiet(controller: Controller, *expired: int) -> Controller:
    """The same controller, all sessions fresh but those `expired`: which one ends is the explorer's choice."""
    sessions = {
        broker.id: Session(broker.epoch, NOW_MS - (TIMEOUT_MS if broker.id in expired else 0))
        for broker in controller.image.brokers.values()
        if not broker.fenced
    }
    return replace(controller, sessions=FrozenMap(sessions))


def successors(now: World) -> Iterator[tuple[str, World, ControllerResult[Any]]]:
    """Each event that can happen, and the world after it."""
    known, image = now.partition, now.controller.image

    def after(
        name: str, step: ControllerResult[Any], complete: frozenset[int] = now.complete
    ) -> tuple[str, World, ControllerResult[Any]]:
        return name, World(quiet(step.state), complete), step

    for broker in image.brokers.values():
        silent = quiet(now.controller, broker.id)
        for previous in (-1, broker.epoch):
            clean = previous == broker.epoch
            process = Registration(broker.id, f"{image.offset}", "b", 9092, previous)
            name = f"broker {broker.id} restarts {'cleanly' if clean else 'uncleanly'}"
            yield after(name, silent.register(process, NOW_MS), now.complete - (set() if clean else {broker.id}))
        for want in ({}, {"want_shut_down": True}, {"want_fence": True}):
            beat = Heartbeat(broker.id, broker.epoch, image.offset, **want)
            yield after(f"broker {broker.id} heartbeats {want}", now.controller.heartbeat(beat, NOW_MS))
        yield after(f"broker {broker.id} falls silent", silent.tick(NOW_MS))
    if known.leader == NO_LEADER:
        return
    if len(known.isr) >= image.topics[TOPIC].min_isr(known):
        yield after("a record is committed", ControllerResult(now.controller, None), now.complete & set(known.isr))
    leader = image.brokers[known.leader]
    for member in known.replicas:
        if member == leader.id:
            continue
        for leaves in (True, False):
            wanted = (set(known.isr) - {member}) if leaves else {*known.isr, member}
            # The leader's view of the member may be from before its restart, or before the partition last changed;
            # only a sight of the member as it is now proves that it has caught up.
            for seen in ("as it is",) if leaves else ("as it is", "before its restart", "in an older view"):
                members = tuple((i, image.brokers[i].epoch - (i == member and "restart" in seen)) for i in wanted)
                view = known.partition_epoch - ("view" in seen)
                proposal = IsrProposal(TOPIC_ID, 0, known.leader_epoch, view, members)
                step = now.controller.alter_partition(AlterPartition(leader.id, leader.epoch, (proposal,)))
                joined = not leaves and member in step.state.image.topics[TOPIC].partitions[0].isr
                caught_up = joined and seen == "as it is" and leader.id in now.complete
                yield after(
                    f"leader {leader.id} {'removes' if leaves else 'adds'} {member}, seen {seen}",
                    step,
                    now.complete | ({member} if caught_up else set()),
                )


def wrong(before: ClusterImage, image: ClusterImage) -> str | None:
    """Which promise the controller broke in one step, if it did."""
    for topic, partition in image.partitions():
        isr, elr, remembered = set(partition.isr), set(partition.elr), set(partition.last_known_elr)
        old = before.partition(topic.name, partition.index)
        checks = {
            "ISR, ELR and LastKnownELR are replicas": isr | elr | remembered <= set(partition.replicas),
            "nobody is in two of ISR, ELR and LastKnownELR": len(isr) + len(elr) + len(remembered)
            == len(isr | elr | remembered)
            or strategy_of(topic) is Strategy.LAST_KNOWN_LEADER,
            "the leader is in the ISR": partition.leader == NO_LEADER or partition.leader in isr,
            "an ISR has a leader": partition.leader != NO_LEADER or not isr,
            "ISR members are active": all(map(image.is_active, isr)),
            "an ELR is for an ISR that is too small": len(isr) < topic.min_isr(partition) or not elr | remembered,
        }
        if old is not None and old.topic_id == partition.topic_id and old != partition:
            checks |= {
                "a change bumps the partition epoch": partition.partition_epoch == old.partition_epoch + 1,
                "a leader epoch has one leader": partition.leader_epoch - old.leader_epoch
                == (partition.leader != old.leader),
            }
        for name, holds in checks.items():
            if not holds:
                return f"{name}: {partition}"
    for broker in image.brokers.values():
        known = before.brokers.get(broker.id)
        if known is not None and broker.epoch != known.epoch <= max(b.epoch for b in before.brokers.values()):
            newest = max(b.epoch for b in before.brokers.values())
            if broker.epoch <= newest:
                return f"broker epochs rise: {broker} after {newest}"
    return None


def explore(start: World) -> tuple[int, list[str] | None]:
    """How many states there are, and the shortest way to one where a promise is broken."""
    paths: dict[object, list[str]] = {start.key(): []}
    frontier = [start]
    while frontier:
        found = []
        for now in frontier:
            for name, then, step in successors(now):
                path = [*paths[now.key()], name]
                assert now.controller.image.apply_all(step.records, now.controller.image.offset) == step.state.image
                broken = wrong(now.controller.image, then.controller.image)
                if not {*then.partition.isr, *then.partition.elr} <= then.complete:
                    broken = f"a candidate lacks a committed record: {then.partition}, complete: {then.complete}"
                if broken is not None:
                    return len(paths), [*path, broken]
                if then.key() not in paths:
                    paths[then.key()] = path
                    found.append(then)
        frontier = found
    return len(paths), None


@pytest.mark.parametrize(("brokers", "min_isr"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_in_every_reachable_state_isr_and_elr_hold_every_committed_record(brokers: int, min_isr: int) -> None:
    states, broken = explore(world(brokers, min_isr, Rules()))
    assert broken is None
    assert states > 5


@pytest.mark.parametrize(("brokers", "min_isr"), [(2, 2), (3, 2)])
def test_a_refusal_other_than_ineligible_replica_comes_with_a_newer_state_that_settles_the_change(
    brokers: int, min_isr: int
) -> None:
    """A leader rolls an ISR change back only on INELIGIBLE_REPLICA. On any other refusal metadata settles it: the
    controller's state of the partition is newer than the leader's, and the leader will read it."""
    refusals: Counter[ErrorCode] = Counter()
    seen, frontier = set(), [world(brokers, min_isr, Rules())]
    while frontier:
        now = frontier.pop()
        for _, then, step in successors(now):
            answer = step.answer
            for result in answer.results if isinstance(answer, AlterPartitionAnswer) else ():
                refusals[result.error] += 1
                known, proposal = now.partition, result.proposal
                newer = (known.leader_epoch, known.partition_epoch) > (proposal.leader_epoch, proposal.partition_epoch)
                assert newer or result.error in (ErrorCode.none, ErrorCode.ineligible_replica), result
            if then.key() not in seen:
                seen.add(then.key())
                frontier.append(then)
    assert refusals[ErrorCode.ineligible_replica] > 0
    assert refusals[ErrorCode.invalid_update_version] > 0


@pytest.mark.parametrize(
    "name",
    [
        "broker_epoch_checked_in_alter_partition",
        "partition_epoch_checked_in_alter_partition",
        "unclean_leaves_isr",
        "unclean_leaves_elr",
        "elect_from_isr_or_elr",
    ],
)
def test_without_the_rule_a_candidate_that_lacks_a_committed_record_is_within_reach(name: str) -> None:
    _, broken = explore(world(2, 1, Rules().without([name])))
    assert broken is not None
    assert "a candidate lacks a committed record" in broken[-1]


# ---- random lives ----------------------------------------------------------------------------------------------------

BROKERS = strategies.integers(1, 4)


class Lives(RuleBasedStateMachine):
    """Four brokers and a few topics; every step is checked, and the records replayed at the end give the same image."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.before = self.driver.image
        self.stored: dict[int, int] = {}
        self.weakened: set[tuple[uuid.UUID, int]] = set()
        self.topics = 0

    @initialize(count=strategies.integers(1, 4))
    def brokers_start(self, count: int) -> None:
        for broker in range(1, count + 1):
            self.driver.start(broker)

    @rule(
        replicas=strategies.lists(BROKERS, min_size=1, max_size=4, unique=True),
        min_isr=strategies.integers(1, 3),
        unclean=strategies.booleans(),
    )
    def create(self, replicas: list[int], min_isr: int, unclean: bool) -> None:
        self.topics += 1
        config = {"min.insync.replicas": str(min_isr), "unclean.leader.election.enable": str(unclean).lower()}
        topic = NewTopic(
            f"t{self.topics % 3}",
            uuid.UUID(int=self.topics),
            assignments=((0, tuple(replicas)),),
            config=FrozenMap(config),
        )
        self.driver.commit(self.driver.controller.create_topics([topic]))

    @rule(name=strategies.sampled_from(["t0", "t1", "t2"]))
    def delete(self, name: str) -> None:
        self.driver.commit(self.driver.controller.delete_topics([(name, None)]))

    @rule(broker=BROKERS, clean=strategies.booleans())
    def register(self, broker: int, clean: bool) -> None:
        self.driver.register(broker, self.stored.get(broker, -1) if clean else -1)

    @precondition(lambda self: self.driver.image.brokers)
    @rule(data=strategies.data(), lag=strategies.sampled_from([0, 0, 0, 5]), want=strategies.sampled_from("---fs"))
    def beat(self, data: strategies.DataObject, lag: int, want: str) -> None:
        broker = data.draw(strategies.sampled_from(list(self.driver.image.brokers)))
        epoch = self.driver.epoch(broker)
        answer = self.driver.beat(
            broker,
            metadata_offset=self.driver.image.offset - 1 - lag,
            want_fence=want == "f",
            want_shut_down=want == "s",
        )
        if answer.should_shut_down:
            self.stored[broker] = epoch

    @rule(elapsed_ms=strategies.sampled_from([1, TIMEOUT_MS // 2, TIMEOUT_MS]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.driver.now_ms += elapsed_ms
        self.driver.commit(self.driver.controller.tick(self.driver.now_ms))

    @rule()
    def the_controller_restarts(self) -> None:
        fresh = Controller(SETTINGS)
        self.driver.controller = fresh.activate(replayed(self.driver.log), self.driver.now_ms)

    @rule(data=strategies.data(), epoch_back=strategies.sampled_from([0, 0, 0, 1]))
    def alter(self, data: strategies.DataObject, epoch_back: int) -> None:
        led = [partition for _, partition in self.driver.image.partitions() if partition.leader != NO_LEADER]
        if not led:
            return
        known = data.draw(strategies.sampled_from(led))
        wanted = data.draw(strategies.sets(strategies.sampled_from(known.replicas))) | {known.leader}
        registered = self.driver.image.brokers
        members = tuple((member, registered[member].epoch if member in registered else -1) for member in wanted)
        proposal = IsrProposal(
            known.topic_id, known.index, known.leader_epoch, known.partition_epoch - epoch_back, members
        )
        request = AlterPartition(known.leader, self.driver.epoch(known.leader), (proposal,))
        self.driver.commit(self.driver.controller.alter_partition(request))

    @invariant()
    def every_promise_holds(self) -> None:
        before, image = self.before, self.driver.image
        self.before = image
        assert wrong(before, image) is None
        for topic, partition in image.partitions():
            name, old = (topic.id, partition.index), before.partition(topic.name, partition.index)
            candidates, enough = {*partition.isr, *partition.elr}, topic.min_isr(partition)
            if old is None or old.topic_id != topic.id:
                if len(partition.isr) < enough:
                    self.weakened.add(name)
            elif not {*old.isr, *old.elr} - candidates <= {
                broker.id
                for broker in image.brokers.values()
                if broker.id not in before.brokers or broker.epoch != before.brokers[broker.id].epoch
            }:
                # Others than the restarted left the candidates: only with enough of them, or an unclean election.
                unclean = topic.unclean_election and not set(partition.isr) <= {*old.isr, *old.elr}
                assert len(partition.isr) >= enough or unclean
            if old is not None and not {*old.isr, *old.elr} <= candidates:
                self.weakened.add(name)
            if len(partition.isr) >= enough:
                self.weakened.discard(name)
            assert len(candidates) >= enough or name in self.weakened

    @invariant()
    def a_session_stands_behind_every_unfenced_broker(self) -> None:
        unfenced = {broker.id for broker in self.driver.image.brokers.values() if not broker.fenced}
        assert unfenced <= set(self.driver.controller.sessions)

    def teardown(self) -> None:
        assert replayed(self.driver.log) == self.driver.image
        assert replayed([decode(encode(record)) for record in self.driver.log]) == self.driver.image


Lives.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
