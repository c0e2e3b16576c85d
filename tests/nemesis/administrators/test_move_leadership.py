"""Leadership that an administrator moves to and fro, and the order of the replicas that it had before."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from nemesis.cluster_shape import ClusterShape
from nemesis.faults.administrators.admin import Reassign
from nemesis.faults.administrators.move_leadership import MoveLeadership
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.nemesis import Nemesis
from nemesis.ports import EnvironmentCapability, Link, both_ways
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.swarm import draw
from tests.nemesis.administrators.carried_out import carried_out
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

BACK, ELECTED = "reassign t-0 b1 b2 b3", "elect t-0"
SHAPE = ClusterShape(("b1", "b2", "b3"), ("c1",), partitions=2)


def moved(fault: MoveLeadership, cluster: FakeCluster, seed: int = 3) -> FaultHandle:
    """The fault carried out in runs with as many replicas as there are."""
    return carried_out(fault, cluster, seed, replication_factor=len(cluster.placed))


def firsts(cluster: FakeCluster) -> list[str]:
    """The replica that each move puts first; the others keep their order, and the first is elected then."""
    requests = [call for call in cluster.calls if not call.startswith(("cut", "heal"))]
    assert requests.pop() == BACK
    orders = [call.removeprefix("reassign t-0 ").split() for call in requests[::2]]
    assert requests[1::2] == [ELECTED] * len(orders)
    for order in orders:
        assert order[1:] == [broker for broker in cluster.placed if broker != order[0]]
    return [order[0] for order in orders]


@pytest.mark.parametrize("seed", range(5))
def test_each_move_elects_another_replica_and_healing_restores_their_order(seed: int) -> None:
    cluster = FakeCluster()
    handle = moved(MoveLeadership(0, moves=6), cluster, seed)
    leaders = ["b1", *firsts(cluster)]
    assert len(leaders) == 7
    assert all(one != other for one, other in pairwise(leaders))
    assert handle.evidence == {"moved": 6.0}
    assert MoveLeadership().took_effect(handle.evidence)


def test_with_a_cut_two_brokers_that_do_not_reach_each_other_take_turns() -> None:
    pairs = set()
    for seed in range(10):
        cluster, cuts = FakeCluster(), set[Link]()
        handle = FaultHandle(cluster, ActiveEffects(), Random(seed), "t", min_isr=2, replication_factor=3)

        async def scenario(
            handle: FaultHandle = handle, cluster: FakeCluster = cluster, cuts: set[Link] = cuts
        ) -> None:
            await MoveLeadership(0, moves=4, cut=True).inject(handle)
            cuts.update(cluster.cuts)
            await handle.heal()

        run(scenario())
        other = firsts(cluster)[0]
        assert firsts(cluster) == [other, "b1", other, "b1"]
        assert cuts == {*both_ways(["b1"], [other])}
        assert cluster.pristine
        pairs.add(other)
    assert pairs == {"b2", "b3"}


@pytest.mark.parametrize(
    ("answers", "evidence"),
    [
        (["", "ELECTION_NOT_NEEDED"], "not_needed"),
        (["", "PREFERRED_LEADER_NOT_AVAILABLE"], "refused"),
        (["", "UNANSWERED"], "unanswered"),
        (["REASSIGNMENT_IN_PROGRESS"], "refused"),
        (["UNANSWERED"], "unanswered"),
    ],
)
def test_a_move_that_does_not_take_effect_is_counted_by_its_answer(answers: list[str], evidence: str) -> None:
    cluster = FakeCluster()
    cluster.answers = list(answers)
    handle = moved(MoveLeadership(0, moves=1), cluster)
    assert handle.evidence == {evidence: 1.0}
    assert not MoveLeadership().took_effect(handle.evidence)
    assert cluster.calls.count(ELECTED) == len(answers) - 1


def test_a_partition_with_one_replica_is_left_alone_and_none_is_drawn() -> None:
    cluster = FakeCluster()
    cluster.placed = ("b1",)
    handle = moved(MoveLeadership(0, cut=True), cluster)
    assert not cluster.calls
    assert handle.notes == ["no other replica may lead"]

    def drawn(shape: ClusterShape) -> bool:
        faults = [each.fault for seed in range(40) for each in draw(Random(seed), shape, 60.0, ["admin"])]
        return any(isinstance(fault, MoveLeadership) for fault in faults)

    assert drawn(SHAPE)
    assert drawn(replace(SHAPE, replication_factor=2, min_insync_replicas=2))
    assert not drawn(replace(SHAPE, replication_factor=1, min_insync_replicas=1))
    assert not drawn(replace(SHAPE, brokers=("b1",), min_insync_replicas=1))


def test_without_a_leader_any_replica_comes_first() -> None:
    cluster = FakeCluster()
    cluster.leading = {}
    for cut in (False, True):
        assert moved(MoveLeadership(0, moves=2, cut=cut), cluster).evidence["moved"] == 2.0


def test_no_other_fault_moves_the_partition_meanwhile() -> None:
    cluster, effects = FakeCluster(), ActiveEffects()
    first, second = (FaultHandle(cluster, effects, Random(seed), "t", min_isr=2) for seed in (3, 4))

    async def scenario() -> None:
        await MoveLeadership(0, moves=1).inject(first)
        await Reassign(0).inject(second)
        await MoveLeadership(0).inject(second)
        assert second.notes == ["another fault is moving it"] * 2
        await second.heal()
        await first.heal()

    run(scenario())
    assert firsts(cluster)
    assert not effects.placements


def test_what_is_under_way_is_cancelled_first_where_it_would_go_on() -> None:
    cluster = FakeCluster()
    cluster.unsupported = {EnvironmentCapability.REPLACED_REASSIGNMENTS: "it goes on"}
    moved(MoveLeadership(0, moves=1), cluster)
    assert cluster.calls[-2:] == ["reassign t-0 cancel", BACK]


def test_an_order_in_doubt_is_restored_once_more_when_everything_is_healed() -> None:
    cluster = FakeCluster()
    cluster.answers = ["UNANSWERED"]
    schedule = Schedule((ScheduledFault(1, 20, MoveLeadership(0, moves=2)),))

    async def scenario() -> None:
        await Nemesis(cluster, schedule, Random(1), lambda _: None, "t", min_isr=2).run(
            asyncio.get_running_loop().time() + 40
        )

    run(scenario())
    assert cluster.calls.count(BACK) >= 2
    assert cluster.calls[-1] == BACK


def test_a_cut_is_not_sure_to_leave_a_controller_where_brokers_are_the_controllers() -> None:
    combined = replace(SHAPE, controllers=())
    cases = [(MoveLeadership(cut=cut), shape) for shape in (SHAPE, combined) for cut in (False, True)]
    assert [fault.effective_alone(shape) for fault, shape in cases] == [True, True, True, False]


def test_the_fault_says_how_often_it_moves_and_what_is_cut() -> None:
    assert MoveLeadership(moves=3).describe() == "move-leadership (3 times)"
    assert MoveLeadership(cut=True).describe() == "move-leadership (4 times, between brokers that are cut off)"
