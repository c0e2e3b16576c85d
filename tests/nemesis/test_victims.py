"""Victims rotate: another broker may lose data once the last one is whole again, and not before."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import loads, parse
from nemesis.cluster_shape import ClusterShape
from nemesis.faults.disk import PowerLoss, PowerLossAll
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.situation import Situation
from nemesis.swarm import draw, is_fair
from nemesis.targets import TargetError, check_target
from nemesis.wholeness import Wholeness
from tests.nemesis.fake_cluster import FakeCluster

BROKERS = ("b1", "b2", "b3")
CLUSTER = ClusterShape(BROKERS, ("c1",), partitions=2)
LOG = ("t", 0)


def cluster_of_three() -> Wholeness:
    """One partition, whose logs end at 10 everywhere."""
    wholeness = Wholeness()
    wholeness.decided(LOG, BROKERS, BROKERS)
    for broker in BROKERS:
        wholeness.log_ends(broker, LOG, 10)
    return wholeness


def test_a_broker_that_never_went_down_is_whole() -> None:
    assert cluster_of_three().is_whole("b1")


def test_a_broker_is_whole_again_when_it_has_registered_recovered_caught_up_and_rejoined() -> None:
    wholeness = cluster_of_three()
    wholeness.went_down("b1")
    steps = (
        lambda: wholeness.decided(LOG, BROKERS, ("b2", "b3")),
        lambda: wholeness.registered("b1"),
        lambda: wholeness.recovered("b1", LOG, 4),
        lambda: wholeness.log_ends("b1", LOG, 9),
        lambda: wholeness.decided(LOG, BROKERS, BROKERS),
        lambda: wholeness.log_ends("b1", LOG, 10),
    )
    for step in steps:
        assert not wholeness.is_whole("b1")
        step()
    assert wholeness.is_whole("b1")


@pytest.mark.parametrize("missing", ["registered", "recovered", "in the ISR"])
def test_a_long_log_alone_does_not_make_a_broker_whole(missing: str) -> None:
    """The former end of its log is known until its new one is, and an ISR has it until the controllers know."""
    wholeness = cluster_of_three()
    wholeness.went_down("b1")
    if missing != "registered":
        wholeness.registered("b1")
    if missing != "recovered":
        wholeness.recovered("b1", LOG, 10)
    if missing == "in the ISR":
        wholeness.decided(LOG, BROKERS, ("b2", "b3"))
    assert not wholeness.is_whole("b1")


def test_a_broker_that_goes_down_twice_has_to_regain_what_it_had_first() -> None:
    wholeness = cluster_of_three()
    wholeness.went_down("b1")
    wholeness.registered("b1")
    wholeness.recovered("b1", LOG, 4)
    wholeness.went_down("b1")
    wholeness.registered("b1")
    wholeness.recovered("b1", LOG, 6)
    assert not wholeness.is_whole("b1")
    wholeness.log_ends("b1", LOG, 10)
    assert wholeness.is_whole("b1")


def test_what_a_broker_holds_no_more_need_not_come_back() -> None:
    wholeness = cluster_of_three()
    wholeness.went_down("b1")
    wholeness.registered("b1")
    wholeness.decided(LOG, ("b2", "b3"), ("b2", "b3"))
    assert wholeness.is_whole("b1")


def made_whole(wholeness: Wholeness, broker: str) -> None:
    wholeness.registered(broker)
    wholeness.recovered(broker, LOG, 10)


def resolved(handle: FaultHandle, *targets: str) -> tuple[str, ...]:
    return asyncio.run(handle.targets.resolve(targets))


def handle_of(situation: Situation, effects: ActiveEffects, seed: int) -> FaultHandle:
    return FaultHandle(FakeCluster(), effects, Random(seed), situation=situation)


def test_the_victim_stays_until_it_is_whole_and_then_may_be_any() -> None:
    situation, effects = Situation(), ActiveEffects()
    situation.wholeness = cluster_of_three()
    (first,) = resolved(handle_of(situation, effects, 0), "victim/0")
    for seed in range(20):
        assert resolved(handle_of(situation, effects, seed), "victim/0") == (first,)
    later = set()
    for seed in range(20):
        handle = handle_of(situation, ActiveEffects(victims=effects.victims), seed)
        (victim,) = resolved(handle, "victim/0")
        made_whole(situation.wholeness, victim)
        asyncio.run(handle.heal())
        later.add(victim)
    assert later == set(BROKERS)


def test_a_victim_that_restarts_before_its_fault_ends_it_stays_the_victim() -> None:
    for seed in range(20):
        situation, effects = Situation(), ActiveEffects()
        situation.wholeness = cluster_of_three()
        story = handle_of(situation, effects, seed)
        (victim,) = resolved(story, "victim/0")
        made_whole(situation.wholeness, victim)
        assert resolved(handle_of(situation, effects, seed + 1), "victim/0") == (victim,)


def test_a_broker_whose_full_disk_refused_writes_has_ended_uncleanly() -> None:
    situation = Situation()
    situation.wholeness = cluster_of_three()
    handle = handle_of(situation, ActiveEffects(), 0)
    asyncio.run(handle.fill_disk("b1", 0))
    assert situation.wholeness.is_whole("b1")
    asyncio.run(handle.heal())
    assert not situation.wholeness.is_whole("b1")


def test_two_victims_are_two_brokers() -> None:
    for seed in range(20):
        situation = Situation()
        situation.wholeness = cluster_of_three()
        assert len(resolved(handle_of(situation, ActiveEffects(), seed), "victim/0", "victim/1")) == 2


def test_without_a_trace_the_victim_stays() -> None:
    situation, effects = Situation(), ActiveEffects()
    victims = {resolved(handle_of(situation, effects, seed), "victim/0") for seed in range(20)}
    assert len(victims) == 1


def test_half_of_the_random_schedules_have_victims_that_rotate() -> None:
    rotating = 0
    for seed in range(200):
        targets = {
            target for each in draw(Random(seed), CLUSTER, 60.0, ["power-loss"]) for target in each.fault.targets()
        }
        rotating += "victim/0" in targets
        assert not ("victim/0" in targets and targets & set(BROKERS))
    assert 60 < rotating < 140


@pytest.mark.parametrize("target", ["victim/3", "victim/x", "victim"])
def test_a_victim_that_no_cluster_has_is_refused(target: str) -> None:
    with pytest.raises(TargetError, match=target):
        check_target(target, BROKERS, ())


def test_brokers_lose_data_one_after_the_other_and_nothing_that_was_acknowledged_is_lost() -> None:
    losses = [
        {"at": at, "for": 2, "fault": "power-loss", "nodes": ["victim/0"], "keep": "nothing"} for at in range(2, 40, 6)
    ]
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": "45s", "faults": losses}))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert len({node for injection in outcome.injections for node in injection.nodes}) > 1


RESTARTED_BEFORE_ITS_END = """
workload: groups
seed: 6244
time_limit: 22s
faults:
  - {at: 1.018, for: 0.705, fault: disk-full, nodes: [victim/0], room_bytes: 3568}
  - {at: 1.262, for: 0.193, fault: clock, nodes: [b2], rate: 2.474}
  - {at: 1.733, for: 20.0, fault: deaf-leader, partition: 1}
  - {at: 2.915, for: 0.05, fault: clock, nodes: [leader/0], jump_ms: -1818}
  - {at: 5.468, for: 0.183, fault: disk-full, nodes: [c3], room_bytes: 1296}
  - {at: 6.512, for: 20.0, fault: rolling-restart}
  - {at: 7.823, for: 0.34, fault: clock, nodes: [leader/1], rate: 0.605}
  - {at: 8.64, for: 20.0, fault: unclean-return, victim: victim/0, keep: prefix}
  - {at: 11.383, for: 0.616, fault: partition, shape: isolate, nodes: [b1]}
  - {at: 11.728, for: 0.114, fault: disk-full, nodes: [victim/0], room_bytes: 786}
"""


def test_the_victim_of_a_story_is_the_only_broker_that_ends_uncleanly_although_it_was_restarted_before() -> None:
    outcome = run_in_simulation(loads(RESTARTED_BEFORE_ITS_END))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (story,) = (each for each in outcome.injections if each.fault == "unclean-return")
    full = [each for each in outcome.injections if each.fault == "disk-full" and each.started_ns > story.started_ns]
    assert [each.nodes for each in full] == [story.nodes[:1]]


def test_a_victim_that_synced_every_append_loses_nothing_and_its_end_is_the_effect() -> None:
    """Seed 362 of the suite torture had such a fault, and one that could spare no replica: it was `unknown`, as if
    nothing had happened."""
    fault = {"at": 3, "for": 17, "fault": "unclean-return", "victim": "b2", "patience_ms": 1000}
    outcome = run_in_simulation(parse({"time_limit": 20, "faults": [fault], "settings": {"flush.messages": 1}}))
    (injection,) = outcome.injections
    assert (injection.evidence["killed"], injection.evidence["lost_bytes"]) == (1, 0)
    assert injection.took_effect
    assert outcome.validity is Validity.VALID, outcome.verdicts


@pytest.mark.parametrize(
    ("fault", "fair"),
    [
        (PowerLossAll(), False),
        (PowerLoss(("b1", "b2")), False),
        (PowerLoss(("b1",)), True),
        (PowerLoss(("controllers",)), True),
        (PowerLoss(("c1", "controller")), True),
    ],
)
def test_no_more_brokers_lose_data_in_a_fair_schedule_than_the_promise_has_room_for(
    fault: PowerLoss | PowerLossAll, fair: bool
) -> None:
    cluster = ClusterShape(("b1", "b2", "b3"), ("c1", "c2", "c3"), 1, 2)
    assert is_fair(Schedule((ScheduledFault(1, 1, fault),)), cluster) is fair
