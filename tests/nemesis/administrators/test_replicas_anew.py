"""Replicas that are drawn anew keep within what the protocol promises, and those of before are put back."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from nemesis.cluster_shape import ClusterShape
from nemesis.faults.administrators import admin
from nemesis.faults.administrators.admin import CancelReassignment, Reassign
from nemesis.faults.fault import Fault
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.ports import DONE, UNANSWERED, EnvironmentCapability
from nemesis.schedule import Schedule
from nemesis.swarm import draw
from tests.nemesis.administrators.carried_out import carried_out
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

BEFORE = ("b1", "b2", "b3")
ANEW = [Reassign(0, anew=True), Reassign(0, again_ms=1.0, anew=True), CancelReassignment(0, anew=True)]


def five_brokers() -> FakeCluster:
    cluster = FakeCluster(brokers=5)
    cluster.placed = BEFORE
    return cluster


def asked_for(fault: Fault, seed: int) -> list[tuple[str, ...]]:
    """The replicas that the fault asks for, without those that it puts back."""
    cluster = five_brokers()
    carried_out(fault, cluster, seed)
    *moves, back = cluster.calls
    assert back == "reassign t-0 b1 b2 b3"
    return [tuple(move.split()[2:]) for move in moves if not move.endswith(" cancel")]


@pytest.mark.parametrize("fault", ANEW)
def test_replicas_are_any_brokers_that_are_enough_to_acknowledge_a_record(fault: Fault) -> None:
    drawn = [target for seed in range(60) for target in asked_for(fault, seed)]
    assert all(len(set(target)) == len(target) >= 2 for target in drawn)
    assert {broker for target in drawn for broker in target} == set(five_brokers().brokers)
    assert {len(target) for target in drawn} == {2, 3, 4, 5}
    firsts = [asked_for(fault, seed)[0] for seed in range(200)]
    assert BEFORE not in firsts
    assert any(len(set(target) - set(BEFORE)) == 2 and len(target) == 3 for target in firsts), "two move at once"
    assert any(sorted(target) == list(BEFORE) for target in firsts), "another one is preferred"


def test_what_takes_the_place_of_a_reassignment_is_another_one() -> None:
    for seed in range(60):
        first, second = asked_for(CancelReassignment(0, anew=True), seed)
        assert first != second
    seconds = [asked_for(Reassign(0, again_ms=1.0, anew=True), seed) for seed in range(60)]
    assert {first == second for first, second in seconds} == {True, False}


def test_a_replica_that_is_out_of_the_isr_is_one_of_those_drawn() -> None:
    for seed in range(30):
        cluster = five_brokers()
        handle = FaultHandle(cluster, ActiveEffects(), Random(seed), "t", min_isr=2)
        handle.situation.isr_changed(0, BEFORE)

        async def scenario(handle: FaultHandle = handle) -> None:
            await Reassign(0, again_ms=1.0, short=True, anew=True).inject(handle)

        run(scenario())
        (follower,) = {link.target for link in cluster.cuts} - {"b1"}
        assert all(follower in move.split() for move in cluster.calls if move.startswith("reassign"))


def test_where_a_reassignment_does_not_replace_another_one_that_one_is_cancelled_before() -> None:
    cluster = five_brokers()
    cluster.unsupported = {EnvironmentCapability.REPLACED_REASSIGNMENTS: "it goes on"}
    carried_out(CancelReassignment(0, anew=True), cluster)
    cancelled = [call.endswith(" cancel") for call in cluster.calls]
    assert cancelled == [False, True, False, True, True, False]


def test_a_fault_that_ends_over_its_request_puts_back_what_it_may_have_moved() -> None:
    cluster, effects = five_brokers(), ActiveEffects()
    cluster.answers = ["UNANSWERED"]
    handle = FaultHandle(cluster, effects, Random(3), "t", min_isr=2)

    async def scenario() -> None:
        await Reassign(0, anew=True).inject(handle)
        await handle.heal()
        assert cluster.calls[1:] == ["reassign t-0 b1 b2 b3"]
        (confirm,) = effects.confirmations.values()
        await confirm()

    run(scenario())
    assert cluster.calls[1:] == ["reassign t-0 b1 b2 b3"] * 2
    assert not Reassign(0, anew=True).took_effect(handle.evidence)


def test_a_cancel_without_an_answer_may_come_late_and_so_the_replicas_of_before_are_confirmed() -> None:
    cluster, effects = five_brokers(), ActiveEffects()
    cluster.unsupported = {EnvironmentCapability.REPLACED_REASSIGNMENTS: "it goes on"}
    cluster.answers = [DONE, UNANSWERED]
    handle = FaultHandle(cluster, effects, Random(3), "t", min_isr=2)

    async def scenario() -> None:
        await CancelReassignment(0, anew=True).inject(handle)
        await handle.heal()

    run(scenario())
    assert cluster.calls[1].endswith(" cancel")
    assert len(effects.confirmations) == 1


def test_some_of_the_drawn_faults_have_their_replicas_anew_and_nothing_else_of_a_schedule_depends_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = ClusterShape(("b1", "b2", "b3", "b4"), ("c1",), partitions=2)

    def schedules() -> list[Schedule]:
        return [draw(Random(seed), cluster, 60.0, triggers=0.3) for seed in range(60)]

    with_anew = schedules()
    monkeypatch.setattr(admin, "_ANEW_SHARE", 0.0)
    moves = [fault for fault in faults_of(with_anew) if isinstance(fault, Reassign | CancelReassignment)]
    for kind in (Reassign, CancelReassignment):
        assert {move.anew for move in moves if isinstance(move, kind)} == {True, False}
    assert [as_before(each) for each in with_anew] == [as_before(each) for each in schedules()]


def faults_of(schedules: list[Schedule]) -> list[Fault]:
    return [each.fault for schedule in schedules for each in schedule]


def as_before(schedule: Schedule) -> list[object]:
    return [
        replace(each, fault=replace(each.fault, anew=False))
        if isinstance(each.fault, Reassign | CancelReassignment)
        else each
        for each in schedule
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cluster_has_its_replicas_again_whatever_was_under_way(seed: int) -> None:
    """Moves of both partitions overlap, one after the other, with a broker that is frozen over some of the requests and
    another one that loses what it had."""
    moves = [
        {"at": at, "for": 1.5, "fault": fault, "partition": partition, "anew": True}
        for partition in (0, 1)
        for at, fault in ((1 + partition, "reassign"), (3 + partition, "cancel-reassignment"), (6, "reassign"))
    ]
    faults = [
        *moves,
        {"at": 2, "for": 2, "fault": "pause", "nodes": ["b2"]},
        {"at": 3.2, "for": 2, "fault": "power-loss", "nodes": ["b3"], "keep": "nothing"},
        {"at": 7, "for": 1.5, "fault": "pause", "nodes": ["controller"]},
    ]
    spec = {"seed": seed, "brokers": 5, "partitions": 2, "time_limit": "9s", "recovery_limit": "10s", "faults": faults}
    outcome = run_in_simulation(parse(spec))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    anew = [injection for injection in outcome.injections if injection.detail.get("anew")]
    assert sum(injection.took_effect for injection in anew) >= 4
