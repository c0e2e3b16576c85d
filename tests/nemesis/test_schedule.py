"""Swarms of faults vary from seed to seed, and keep to the fair budget and to what a cluster allows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from harness.cluster.layout import cluster_layout
from harness.cluster.random_streams import run_stream
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Listener
from harness.environments.machines.deployment import MachineDeployment
from harness.environments.machines.machine import Machine
from harness.environments.sim import SimDeployment
from harness.simulation.world import World
from harness.spec import parse
from images.broker.truncation_protocol import TruncationProtocol
from nemesis.cluster_shape import ClusterShape, queries_epochs
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.administrators.recreate_topic import RecreateTopic
from nemesis.faults.disk import PowerLoss
from nemesis.faults.disk_full import DiskFull
from nemesis.faults.network_partition import NetworkPartition, PartitionShape
from nemesis.faults.packets import Packets
from nemesis.faults.scripted.leader import UncleanReturn
from nemesis.ports import EnvironmentCapability, KeepUnsynced
from nemesis.registry import FAIR_FAMILIES, FAMILIES, FAULTS
from nemesis.schedule import Schedule, parse_script
from nemesis.swarm import draw, is_fair

CLUSTER = ClusterShape(brokers=("b1", "b2", "b3"), controllers=("c1",), partitions=2)


def names_drawn(cluster: ClusterShape, family: str, runs: int) -> set[str]:
    return {each.fault.name for seed in range(runs) for each in draw(Random(seed), cluster, 60.0, [family])}


@cache
def drawn_of(seed: int) -> Schedule:
    """The schedule of a minute from all families; several tests look at those of the same seeds."""
    return draw(Random(seed), CLUSTER, 60.0)


def test_several_schedules_at_once_have_the_first_among_them_and_its_victims_alone() -> None:
    faults, of_first = 0, 0
    for seed in range(100):
        first, dense = drawn_of(seed), draw(Random(seed), CLUSTER, 60.0, schedules=8)
        assert not Counter(first) - Counter(dense)
        assert is_fair(dense, CLUSTER)
        assert parse_script(dense.to_script()) == dense
        faults, of_first = faults + len(dense), of_first + len(first)
    assert faults > 6 * of_first


def test_administrators_come_beside_all_other_faults_where_their_family_is_drawn() -> None:
    victims = 0
    for seed in range(100):
        alone, administered = drawn_of(seed), draw(Random(seed), CLUSTER, 60.0, administrators=2)
        assert not Counter(alone) - Counter(administered)
        assert is_fair(administered, CLUSTER)
        added = Counter(administered) - Counter(alone)
        assert [type(each.fault) for each in added.elements()] == [RecreateTopic] * 2
        assert all(each.fault.to_mapping()["changes"] and each.at_s <= 30.0 for each in added)
        victims += sum(added[each] for each in added if each.fault.to_mapping()["earlier"])
        assert draw(Random(seed), CLUSTER, 60.0, ["kill"], administrators=2) == draw(
            Random(seed), CLUSTER, 60.0, ["kill"]
        )
        slow = replace(CLUSTER, injection_s=2.0)
        for time_limit_s, count in ((1.9, 0), (2.0, 1)):
            assert len(draw(Random(seed), slow, time_limit_s, ["admin"], administrators=1)) >= count
            assert all(each.at_s >= 0 for each in draw(Random(seed), slow, time_limit_s, administrators=1))
    assert 40 < victims < 100


@pytest.mark.parametrize("new", FAIR_FAMILIES)
def test_a_new_family_takes_slots_of_old_schedules_and_leaves_the_others_as_they_were(new: str) -> None:
    """Each of today's families stands for one that did not exist before."""
    before = [family for family in FAIR_FAMILIES if family != new]
    unchanged = 0
    for seed in range(150):
        old, schedule = draw(Random(seed), CLUSTER, 60.0, before), drawn_of(seed)
        unchanged += old == schedule
        others = [scheduled for scheduled in schedule if scheduled.fault.family.name != new]
        if others:
            assert set(others) <= set(old)
    assert unchanged > 50


def test_the_order_in_which_families_are_asked_for_changes_nothing() -> None:
    assert draw(Random(3), CLUSTER, 60.0, FAIR_FAMILIES[::-1]) == draw(Random(3), CLUSTER, 60.0, FAIR_FAMILIES)


def test_the_same_stream_draws_the_same_schedule() -> None:
    assert draw(Random(7), CLUSTER, 60.0) == draw(Random(7), CLUSTER, 60.0)
    assert draw(Random(7), CLUSTER, 60.0) != draw(Random(8), CLUSTER, 60.0)


@pytest.mark.parametrize("min_isr", [1, 2, 3])
def test_unclean_restarts_hit_fewer_brokers_than_min_insync_replicas(min_isr: int) -> None:
    cluster = ClusterShape(CLUSTER.brokers, CLUSTER.controllers, 2, min_isr)
    for seed in range(300):
        hit: set[str] = set()
        for scheduled in draw(Random(seed), cluster, 60.0):
            if scheduled.fault.family.name in ("kill", "power-loss"):
                hit.update(scheduled.fault.targets())
            hit.update(filter(None, [getattr(scheduled.fault, "victim", "")]))
        assert len(hit - {*cluster.controllers, "controller"}) <= min_isr - 1


@pytest.mark.parametrize("family", ["kill", "power-loss", "pause", "clock", "partition"])
def test_controllers_are_broken_like_any_node_the_active_one_most(family: str) -> None:
    cluster = ClusterShape(CLUSTER.brokers, ("c1", "c2", "c3"), 2)
    hit = Counter(
        target
        for seed in range(300)
        for scheduled in draw(Random(seed), cluster, 60.0, [family])
        for target in scheduled.fault.targets()
    )
    assert min(hit[name] for name in cluster.controllers) > 0
    assert hit["controller"] > max(hit[name] for name in cluster.controllers)


def test_all_leaves_out_what_the_protocol_promises_nothing_against() -> None:
    drawn = {family for seed in range(300) for family in drawn_of(seed).families}
    assert drawn == set(FAIR_FAMILIES)
    assert drawn < set(FAMILIES)


def test_schedules_differ_in_kind_and_number_from_seed_to_seed() -> None:
    drawn = [drawn_of(seed) for seed in range(300)]
    subsets = Counter(schedule.families for schedule in drawn)
    assert len(subsets) > 30
    sizes = sorted(len(schedule) for schedule in drawn)
    assert sizes[15] <= 4
    assert sizes[-15] >= 40


def test_every_drawn_fault_ends_within_the_run_and_names_what_exists() -> None:
    for seed in range(300):
        schedule = drawn_of(seed)
        schedule.check(CLUSTER.brokers, CLUSTER.controllers, CLUSTER.partitions)
        assert all(scheduled.at_s >= 0 and scheduled.at_s + scheduled.for_s <= 60.0 + 1e-6 for scheduled in schedule)


@pytest.mark.parametrize("family", ["admin", "disk-full", "partition", "slow-disk"])
def test_the_only_fault_of_a_run_is_one_that_bites_alone(family: str) -> None:
    """Seed 940 of the default run had nothing but an election of the replica that led already; seed 21977 nothing but a
    broker cut from a controller that was not the active one."""
    alone = [schedule for seed in range(400) if len(schedule := draw(Random(seed), CLUSTER, 60.0, [family])) == 1]
    assert len(alone) > 20
    assert all(scheduled.fault.effective_alone(CLUSTER) for schedule in alone for scheduled in schedule)


def test_the_only_scripted_fault_of_a_run_is_one_that_bites_alone() -> None:
    """Seed 3000467 of runs of 20 s had the deletion of a replica on a broker that held none, and time for no other."""
    few = replace(CLUSTER, partitions=1, replication_factor=2)
    alone = [schedule for seed in range(400) if len(schedule := draw(Random(seed), few, 20.0, ["scripted"])) == 1]
    assert len(alone) > 20
    assert all(scheduled.fault.effective_alone(few) for schedule in alone for scheduled in schedule)


@pytest.mark.parametrize(
    "partition",
    [
        NetworkPartition(shape=PartitionShape.ONE_WAY, nodes=("b3",), against=("c1",)),
        NetworkPartition(shape=PartitionShape.BRIDGE, nodes=("b1",)),
        NetworkPartition(shape=PartitionShape.RING, nodes=("b1", "b2", "b3")),
    ],
)
def test_a_partition_of_two_nodes_may_cut_nothing(partition: NetworkPartition) -> None:
    assert not partition.effective_alone(CLUSTER)
    assert NetworkPartition(shape=PartitionShape.ONE_WAY, nodes=("b3",)).effective_alone(CLUSTER)


def test_where_replicas_are_few_a_leader_may_be_cut_from_nobody_and_a_disk_be_idle() -> None:
    """Seeds 3000100 and 3000239 of runs of 20 s had such a fault alone."""
    cut, full = NetworkPartition(shape=PartitionShape.LEADER_ONLY, nodes=("leader/0",)), DiskFull(nodes=("b3",))
    for fault in (cut, full):
        assert fault.effective_alone(CLUSTER)
        assert not fault.effective_alone(replace(CLUSTER, partitions=1, replication_factor=1))


def test_the_last_fault_of_a_run_waits_until_clients_have_written() -> None:
    """Seed 6322 of the default run had nothing but a power loss 26 ms after the first append."""
    last = [max(each.at_s for each in drawn) for seed in range(400) if len(drawn := drawn_of(seed))]
    assert min(last) == CLUSTER.patience_s / 4
    at_once = draw(Random(0), CLUSTER, CLUSTER.patience_s / 10)
    assert all(each.at_s + each.for_s <= CLUSTER.patience_s / 10 for each in at_once)


def test_whoever_comes_back_uncleanly_has_lost_something_and_so_has_some_power_loss_of_a_run() -> None:
    """Seed 970 of the groups had nothing but returns of a broker whose disk had kept everything."""
    for seed in range(3000):
        faults = [scheduled.fault for scheduled in draw(Random(seed), CLUSTER, 60.0, ["scripted", "power-loss"])]
        assert not any(isinstance(fault, UncleanReturn) and fault.keep is KeepUnsynced.EVERYTHING for fault in faults)
        losses = [fault.keep for fault in faults if isinstance(fault, PowerLoss)]
        assert len(losses) < 12 or set(losses) != {KeepUnsynced.EVERYTHING}


def test_a_cluster_of_one_broker_can_be_tortured_too() -> None:
    cluster = ClusterShape(("b1",), ("c1",), 1, 1)
    assert any(len(draw(Random(seed), cluster, 60.0)) for seed in range(20))


DELAY = frozenset({EnvironmentCapability.DELAY})
PLACES = {
    "sim": replace(CLUSTER, controllers=("c1", "c2", "c3"), injection_s=0.02),
    "docker with netem": replace(CLUSTER, controllers=("c1", "c2", "c3"), injection_s=0.3),
    "docker without netem": replace(CLUSTER, controllers=("c1", "c2", "c3"), injection_s=0.3, unsupported=DELAY),
}


def test_the_same_seed_gives_the_same_schedule_wherever_it_can() -> None:
    replaced = longer = 0
    for seed in range(200):
        sim, docker, without = (draw(Random(seed), place, 60.0).faults for place in PLACES.values())
        sim = tuple(one for one in sim if one.at_s <= 59.7)
        assert [one.fault for one in docker] == [one.fault for one in sim]
        assert [(one.at_s, one.for_s) for one in docker] == [
            (one.at_s, max(one.for_s, 0.3) if one.for_s < 0.3 else one.for_s) for one in sim
        ]
        longer += sum(one.for_s < 0.3 for one in sim)
        assert len(without) == len(docker)
        for there, here in zip(docker, without, strict=True):
            if not there.fault.needs() & DELAY:
                assert here == there
            else:
                replaced += 1
                assert here.at_s == there.at_s
                assert here.fault.family == there.fault.family
                assert not here.fault.needs() & DELAY
    assert replaced > 100
    assert longer > 100


def test_links_that_cannot_be_slowed_are_lossy_and_else_as_they_were() -> None:
    drawn = [draw(Random(seed), place, 60.0, ["packets"]) for place in PLACES.values() for seed in range(50)]
    for slow, lossy in zip(drawn[50:100], drawn[100:], strict=True):
        for there, here in zip(slow, lossy, strict=True):
            assert isinstance(there.fault, Packets)
            assert isinstance(here.fault, Packets)
            assert here.fault.loss > 0
            assert here.fault == replace(there.fault, delay_ms=0.0, jitter_ms=0.0, loss=here.fault.loss)
            assert here.fault.loss == there.fault.loss or there.fault.loss < 0.4 <= here.fault.loss


def test_links_between_controllers_are_degraded_where_snapshots_have_parts_and_all_else_stays_as_it_was() -> None:
    whole = ClusterShape(brokers=CLUSTER.brokers, controllers=("c1", "c2", "c3"), partitions=2)
    in_parts = replace(whole, snapshots_have_parts=True)
    profile = RunProfile(victims=("b1",), leader_bias=0.5, held_share=0.5, keeps=tuple(KeepUnsynced))

    def drawn(cluster: ClusterShape) -> list[Packets]:
        return [fault for seed in range(300) if (fault := Packets.draw(Draws(Random(seed), cluster, profile)))]

    changed = [here for there, here in zip(drawn(whole), drawn(in_parts), strict=True) if here != there]
    assert 60 < len(changed) < 120
    assert {fault.against for fault in changed} == {("controllers",)}
    assert {fault.nodes for fault in changed} == {("controller",), ("c1",), ("c2",), ("c3",)}
    alone = replace(whole, controllers=("c1",))
    assert drawn(replace(alone, snapshots_have_parts=True)) == drawn(alone)


def test_nothing_shorter_than_an_injection_is_drawn() -> None:
    for seed in range(200):
        schedule = draw(Random(seed), PLACES["docker with netem"], 60.0)
        assert all(one.for_s >= 0.3 and one.at_s <= 59.7 for one in schedule)


def test_some_fault_of_a_run_may_have_an_effect_by_itself_also_where_no_broker_may_be_a_victim() -> None:
    cluster = replace(CLUSTER, min_insync_replicas=1)
    controllers_alone = 0
    for seed in range(300):
        schedule = draw(Random(seed), cluster, 30.0, ["partition", "disk-full"])
        assert not len(schedule) or any(scheduled.fault.effective_alone(CLUSTER) for scheduled in schedule), seed
        controllers_alone += not any(
            scheduled.fault.effective_alone(CLUSTER) for scheduled in draw(Random(seed), cluster, 30.0, ["disk-full"])
        )
    assert controllers_alone == 300, "full disks of controllers alone prove nothing"


@pytest.mark.parametrize("name", ["sim", "docker"])
def test_every_environment_draws_a_seed_from_the_same_numbers(name: str) -> None:
    """The streams of a run are named after its seed alone."""
    layout = configured(SYSTEMS["broker"], cluster_layout(3, 3), {}, ())
    listener = Listener(on_trace=lambda *_: None, on_log=lambda *_: None)
    if name == "sim":
        with World(7) as world:
            stream = SimDeployment(world, layout, listener).stream("schedule")
    else:

        async def nothing() -> dict[str, Machine]:
            return {}

        stream = MachineDeployment(layout, nothing, seed=7, listener=listener, facts={}).stream("schedule")
    assert stream.random() == run_stream(7, "schedule").random()


@pytest.mark.parametrize(
    ("brokers", "replication_factor", "min_isr", "moved"),
    [(3, 3, 2, True), (3, 3, 3, False), (4, 3, 3, True), (3, 1, 1, False), (2, 3, 1, True)],
)
def test_a_replica_is_moved_or_taken_away_only_where_one_can_be_spared(
    brokers: int, replication_factor: int, min_isr: int, moved: bool
) -> None:
    names = tuple(f"b{number}" for number in range(1, brokers + 1))
    cluster = ClusterShape(names, ("c1",), 1, min_isr, replication_factor=replication_factor)
    drawn = names_drawn(cluster, "admin", 60)
    assert (drawn & {"reassign", "cancel-reassignment"} != set()) is moved
    assert {"delete-records", "elect-preferred"} <= drawn


@pytest.mark.parametrize(("replication_factor", "min_isr", "drawn"), [(3, 2, True), (3, 3, False), (1, 1, False)])
def test_a_replica_is_removed_and_added_again_only_where_one_can_be_spared(
    replication_factor: int, min_isr: int, drawn: bool
) -> None:
    brokers = ("b1", "b2", "b3", "b4")
    cluster = ClusterShape(brokers, ("c1", "c2", "c3"), 1, min_isr, replication_factor=replication_factor)
    faults = names_drawn(cluster, "scripted", 60)
    assert len(faults) > 3
    assert ("removed-and-back" in faults) is drawn


@pytest.mark.parametrize(
    ("brokers", "replication_factor", "min_isr", "drawn"),
    [(4, 3, 2, True), (3, 2, 2, True), (5, 3, 3, True), (3, 3, 2, False), (4, 3, 1, False)],
)
def test_a_reassignment_is_cancelled_in_doubt_only_where_it_may_bring_another_broker_in(
    brokers: int, replication_factor: int, min_isr: int, drawn: bool
) -> None:
    names = tuple(f"b{number}" for number in range(1, brokers + 1))
    cluster = ClusterShape(names, ("c1", "c2", "c3"), 1, min_isr, replication_factor=replication_factor)
    faults = names_drawn(cluster, "scripted", 60)
    assert len(faults) > 3
    assert ("cancelled-in-doubt" in faults) is drawn


@pytest.mark.parametrize(
    ("protocol", "replication_factor", "partitions", "drawn"),
    [
        ("kip320", 3, 2, True),
        ("kip101", 3, 2, True),
        ("truncate_on_fetch", 3, 2, False),
        ("high_watermark", 3, 2, False),
        ("kip320", 2, 2, False),
        ("kip320", 3, 1, False),
    ],
)
def test_an_answer_about_an_epoch_is_late_only_where_followers_ask_for_it_and_stay_connected(
    protocol: str, replication_factor: int, partitions: int, drawn: bool
) -> None:
    values = {"replication_factor": replication_factor, "partitions": partitions, "faults": ["scripted"]}
    spec = parse({**values, "settings": {"faultline.protocol": protocol}})
    cluster = spec.cluster_shape(spec.broker_names, spec.controller_names)
    faults = names_drawn(cluster, "scripted", 30)
    assert len(faults) > 3
    assert ("late-epoch-answer" in faults) is drawn


@pytest.mark.parametrize(
    ("settings", "replication_factor", "drawn"),
    [
        ({"replica.fetch.max.bytes": "300"}, 3, True),
        ({"replica.fetch.response.max.bytes": "1000"}, 3, True),
        ({"replica.fetch.max.bytes": "10000"}, 3, False),
        ({}, 3, False),
        ({"replica.fetch.max.bytes": "300"}, 2, False),
    ],
)
def test_a_follower_catches_up_slowly_only_where_it_takes_several_fetches(
    settings: dict[str, str], replication_factor: int, drawn: bool
) -> None:
    spec = parse({"replication_factor": replication_factor, "faults": ["scripted"], "settings": settings})
    faults = names_drawn(spec.cluster_shape(spec.broker_names, spec.controller_names), "scripted", 30)
    assert len(faults) > 3
    assert ("slow-catch-up" in faults) is drawn


@pytest.mark.parametrize(("replication_factor", "min_isr", "drawn"), [(3, 2, True), (3, 3, False), (3, 1, False)])
def test_a_follower_joins_late_only_where_the_isr_is_large_enough_without_it_and_it_may_lose_data(
    replication_factor: int, min_isr: int, drawn: bool
) -> None:
    cluster = ClusterShape(("b1", "b2", "b3"), ("c1", "c2", "c3"), 1, min_isr, replication_factor=replication_factor)
    assert ("late-join" in names_drawn(cluster, "scripted", 60)) is drawn


def test_a_fetch_of_a_controller_is_late_only_where_three_can_elect_without_one() -> None:
    for controllers in (1, 3):
        names = tuple(f"c{number}" for number in range(1, controllers + 1))
        cluster = ClusterShape(("b1", "b2", "b3"), names, 1)
        assert ("late-quorum-fetch" in names_drawn(cluster, "scripted", 60)) is (controllers == 3)


@pytest.mark.parametrize(("controllers", "request_ms", "drawn"), [(3, 1_000, True), (3, 500, False), (5, 1_000, False)])
def test_a_vote_is_late_only_where_three_controllers_wait_for_it_longer_than_for_an_election(
    controllers: int, request_ms: int, drawn: bool
) -> None:
    settings = {"controller.quorum.request.timeout.ms": request_ms, "controller.quorum.election.timeout.ms": 500}
    spec = parse({"controllers": controllers, "settings": settings})
    cluster = spec.cluster_shape(spec.broker_names, spec.controller_names)
    assert ("late-vote" in names_drawn(cluster, "scripted", 60)) is drawn


def test_a_fault_of_twice_the_weight_is_drawn_about_twice_as_often() -> None:
    cluster = ClusterShape(("b1", "b2", "b3"), ("c1", "c2", "c3"), 1)
    runs = (draw(Random(seed), cluster, 60.0, ["scripted"]) for seed in range(150))
    drawn = Counter(each.fault.name for run in runs for each in run)
    others = [count for name, count in drawn.items() if FAULTS[name].weight == 1]
    assert FAULTS["half-deleted-replica"].weight == 2
    assert 1.7 < drawn["half-deleted-replica"] / (sum(others) / len(others)) < 2.3


@pytest.mark.parametrize(
    ("brokers", "replication_factor", "min_isr", "settings", "drawn"),
    [
        (3, 3, 2, {"segment.bytes": "1024"}, True),
        (3, 3, 2, {"segment.ms": "1000"}, True),
        (3, 3, 2, {}, False),
        (3, 3, 2, {"log.segment.bytes": str(1 << 30)}, False),
        (4, 3, 3, {"segment.bytes": "1024"}, True),
        (3, 3, 3, {"segment.bytes": "1024"}, False),
        (3, 3, 1, {"segment.bytes": "1024"}, False),
    ],
)
def test_a_replica_is_half_deleted_only_where_it_may_move_lose_data_and_has_several_segments(
    brokers: int, replication_factor: int, min_isr: int, settings: dict[str, str], drawn: bool
) -> None:
    values = {"brokers": brokers, "replication_factor": replication_factor, "faults": ["scripted"]}
    spec = parse({**values, "settings": {"min.insync.replicas": min_isr, **settings}})
    cluster = spec.cluster_shape(spec.broker_names, spec.controller_names)
    faults = names_drawn(cluster, "scripted", 60)
    assert len(faults) > 3
    assert ("half-deleted-replica" in faults) is drawn


@pytest.mark.parametrize("protocol", TruncationProtocol)
def test_faults_know_the_protocols_in_which_followers_query_epochs(protocol: TruncationProtocol) -> None:
    assert queries_epochs({"faultline.protocol": protocol.value}) is protocol.queries_epoch_end
