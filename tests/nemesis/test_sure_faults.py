"""Which faults are sure to have an effect by themselves, and that a short run leaves some of them the time for it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from harness.spec import parse
from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.administrators.admin import CancelReassignment, ControlledRestart, Reassign
from nemesis.faults.administrators.coordinator_trouble import CoordinatorTrouble
from nemesis.faults.administrators.delete_records import DeleteRecords
from nemesis.faults.administrators.recreate_topic import RecreateTopic
from nemesis.faults.disk_full import DiskFull
from nemesis.faults.fault import Fault
from nemesis.faults.lagging_follower import LaggingFollower
from nemesis.faults.late_isr_change import LateIsrChange
from nemesis.faults.late_message import LateMessage
from nemesis.faults.message import NodeRequest
from nemesis.faults.network_partition import NetworkPartition, PartitionShape
from nemesis.faults.packets import Packets
from nemesis.faults.scripted.leader import StaleBrokerEpoch
from nemesis.faults.scripted.overtaking import LateProposal
from nemesis.faults.scripted.placement import HalfDeletedReplica
from nemesis.ports import EnvironmentCapability, KeepUnsynced
from nemesis.schedule import Schedule
from nemesis.swarm import draw

CLUSTER = ClusterShape(brokers=("b1", "b2", "b3"), controllers=("c1",), partitions=2)


def test_a_broker_beyond_the_rows_of_replicas_holds_none() -> None:
    """Seed 3000791 of varied runs of 10 s: five brokers, two partitions of three replicas each, and a victim without
    one. The replicas of a partition are on brokers in a row, which begins one broker later for the next."""
    five = replace(CLUSTER, brokers=("b1", "b2", "b3", "b4", "b5"))
    assert not five.every_broker_has_replicas
    assert not HalfDeletedReplica("b4").effective_alone(five)
    assert replace(five, partitions=3).every_broker_has_replicas
    assert replace(five, partitions=1, replication_factor=5).every_broker_has_replicas
    assert CLUSTER.every_broker_has_replicas


def test_a_story_about_replicas_that_there_are_not_is_not_sure_to_have_an_effect() -> None:
    """Seed 105000026 of varied runs of 10 s was unknown: its only fault waited for a leader without followers."""
    of = [replace(CLUSTER, replication_factor=replicas) for replicas in (1, 2, 3)]
    assert [LateProposal().effective_alone(cluster) for cluster in of] == [False, False, True]
    five = replace(CLUSTER, brokers=("b1", "b2", "b3", "b4", "b5"))
    assert [StaleBrokerEpoch("b4").effective_alone(cluster) for cluster in (CLUSTER, five)] == [True, False]


def test_a_disk_is_not_sure_to_be_written_where_clients_leave_partitions_alone() -> None:
    """Seed 7000236 of varied runs of 10 s: the only fault filled a disk to which nobody wrote for four seconds."""
    shapes = [
        parse({"clients": clients}).cluster_shape(("b1", "b2", "b3"), ("c1",))
        for clients in ({}, {"written_share": 0.2}, {"idle_partitions": 1})
    ]
    assert [DiskFull(("b2",)).effective_alone(shape) for shape in shapes] == [True, False, False]


def test_a_disk_with_room_is_not_sure_to_be_full_in_time() -> None:
    """Seed 7001881 of varied runs of 10 s: 6 kB held four seconds of compressed batches of three brokers."""
    assert [DiskFull(("b2",), room).effective_alone(CLUSTER) for room in (0, 100, 6093)] == [True, True, False]


def test_a_link_that_loses_few_packets_is_not_sure_to_lose_one() -> None:
    """Seed 8001181 of varied runs of 10 s: one packet in twenty of an idle broker, for four seconds."""
    few, many, slow = Packets(loss=0.046), Packets(loss=0.4), Packets(loss=0.046, delay_ms=2.0)
    assert [fault.effective_alone(CLUSTER) for fault in (few, many, slow)] == [False, True, True]
    without_delay = slow.adapted([EnvironmentCapability.DELAY], Random(1))
    assert without_delay is not None
    assert without_delay.effective_alone(CLUSTER)


def test_a_fault_in_steps_is_drawn_with_time_for_them() -> None:
    """In 85 varied runs of 30 s three of 28 reassignments that were to be cancelled came to that, and two of 19 moves
    that were to wait for a follower out of the ISR to the move."""
    needed = 0
    for seed in range(100):
        for scheduled in draw(Random(seed), CLUSTER, 60.0, ["admin"]):
            least_s = scheduled.fault.least_s(CLUSTER)
            needed += least_s > 0
            assert scheduled.for_s >= min(least_s, 60.0 - scheduled.at_s) - 0.001, scheduled
    assert needed > 50
    patience_s = CLUSTER.patience_s
    assert CancelReassignment().least_s(CLUSTER) > 2 * patience_s
    assert Reassign(short=True, again_ms=500.0).least_s(CLUSTER) == pytest.approx(3 * patience_s + 0.5)
    assert ControlledRestart(("b1",), unheard=True).least_s(CLUSTER) == patience_s
    assert ControlledRestart(("b1",)).least_s(CLUSTER) == Reassign().least_s(CLUSTER) == 0.0


@pytest.mark.parametrize("time_limit_s", [10.0, 15.0, 60.0])
def test_a_fault_in_steps_begins_early_enough_for_them(time_limit_s: float) -> None:
    """In 53 varied runs of 10 s four of 69 late changes of an ISR arrived after what they were to outlive: most had not
    even been sent when the run was over."""
    began_s = []
    for seed in range(100):
        for scheduled in draw(Random(seed), CLUSTER, time_limit_s, ["message", "admin"]):
            least_s = scheduled.fault.least_s(CLUSTER)
            if least_s > 0:
                began_s.append(scheduled.at_s)
                assert scheduled.at_s <= max(time_limit_s - least_s, time_limit_s / 4) + 0.001, scheduled
    assert len(began_s) > 50
    assert len(set(began_s)) > 0.9 * len(began_s)


LAGGING = replace(CLUSTER, patience_s=1.0, lag_s=4.0)
"""Leaders look at their followers every two seconds, so that one leaves the ISR after six at the latest."""


@pytest.mark.parametrize("family", ["message", "admin"])
def test_a_fault_that_waits_for_a_follower_to_leave_the_isr_has_the_patience_of_its_leader(family: str) -> None:
    """None of ten late ISR changes, and none of ten followers that were to lag, came about in such a cluster."""

    def waits(fault: Fault) -> bool:
        proposes = isinstance(fault, LateMessage) and fault.api is NodeRequest.ALTER_PARTITION
        behind = isinstance(fault, DeleteRecords) and fault.behind
        short = isinstance(fault, Reassign) and fault.short
        return proposes or behind or short or isinstance(fault, LateIsrChange | LaggingFollower)

    def is_alone(fault: Fault) -> bool:
        return isinstance(fault, RecreateTopic) and fault.coordinator is CoordinatorTrouble.ALONE

    seen, alone = set(), 0
    for seed in range(150):
        for scheduled in draw(Random(seed), LAGGING, 60.0, [family]):
            fault = scheduled.fault
            if hasattr(fault, "patience_ms"):
                assert fault.patience_ms == (4_000 if waits(fault) or is_alone(fault) else 1_000), fault
            alone += is_alone(fault)
            if waits(fault):
                seen.add(fault.name)
                assert scheduled.for_s >= min(12.0, 60.0 - scheduled.at_s) - 0.001, scheduled
    assert (
        seen
        == {
            "message": {"late-message", "late-isr-change", "lagging-follower"},
            "admin": {"delete-records", "reassign"},
        }[family]
    )
    assert (alone > 0) is (family == "admin")


def test_the_shape_of_a_cluster_has_the_lag_time_of_its_settings() -> None:
    settings = {"broker.session.timeout.ms": 1_000, "replica.lag.time.max.ms": 4_000}
    shape = parse({"settings": settings}).cluster_shape(("b1", "b2", "b3"), ("c1",))
    assert (shape.patience_s, shape.lag_s, shape.isr_patience_s) == (1.0, 4.0, 4.0)
    assert replace(shape, lag_s=0.5).isr_patience_s == 1.0


def test_where_brokers_are_the_controllers_no_partition_is_one_between_both() -> None:
    of_both = NetworkPartition(PartitionShape.CONTROLLER_FROM_BROKERS, ("b1",))
    combined = replace(CLUSTER, controllers=())
    assert [of_both.effective_alone(shape) for shape in (CLUSTER, combined)] == [True, False]
    profile = RunProfile(victims=(), leader_bias=0.5, held_share=0.5, keeps=(KeepUnsynced.NOTHING,))
    drawn = [NetworkPartition.draw(Draws(Random(seed), combined, profile)) for seed in range(200)]
    assert {each.shape for each in drawn if each} == {*PartitionShape} - {
        PartitionShape.CONTROLLER_FROM_BROKERS,
        PartitionShape.CONTROLLERS_APART,
    }


LATE = replace(CLUSTER, patience_s=4.0, controllers=("c1", "c2", "c3"))
"""A run of 10 s is short where a cluster takes 4 s to act on a silent broker."""


def best_share(schedule: Schedule, cluster: ClusterShape) -> float:
    """The share that one fault which waits for nothing has of the time that it may need to have an effect by itself:
    the largest of such shares."""
    sure = [each for each in schedule if each.when is None and each.fault.effective_alone(cluster)]
    needed_s = [each.fault.acts_within * cluster.patience_s for each in sure]
    return max(each.for_s / needed if needed else 1.0 for each, needed in zip(sure, needed_s, strict=True))


def test_a_story_of_a_short_run_begins_early_enough_to_have_an_effect() -> None:
    """Seed 3001102 of varied runs of 10 s: a leader that had nothing to say to its victim, a second before the end."""
    alone = [schedule for seed in range(400) if len(schedule := draw(Random(seed), LATE, 10.0, ["scripted"])) == 1]
    at_the_latest = 0
    for (only,) in alone:
        latest_s = 10.0 - only.fault.acts_within * LATE.patience_s
        assert 0 < only.at_s <= latest_s < 10.0
        at_the_latest += only.at_s == latest_s
    assert 20 < at_the_latest < len(alone) / 2
    assert len(draw(Random(3), LATE, 1.5, ["scripted"])) == 1


@pytest.mark.parametrize("shares", [{}, {"triggers": 1.0}, {"triggers": 0.5, "channels": 0.5, "blackouts": 0.5}])
def test_a_fault_that_waits_for_nothing_lasts_long_enough_to_have_an_effect(shares: dict[str, float]) -> None:
    """Seeds of varied runs of 10 s: 3000493 with a slow disk for 0.1 s in which nobody wrote, and nothing else that did
    not wait for a condition in vain; 3000983 with one response held, whose request was not sent within 0.4 s; 8004941
    with two late messages and a story, each of which had nearly the time that it may need, and none of which acted."""
    for seed in range(600):
        schedule = draw(Random(seed), LATE, 10.0, **shares)
        assert best_share(schedule, LATE) >= 1 - 1e-3, seed


def test_no_follower_is_to_be_elected_instead_of_the_only_one() -> None:
    """In 9 varied runs of 10 s with such a fault the ISR had too few followers in 6."""
    two, profile = replace(CLUSTER, replication_factor=2, min_insync_replicas=1), RunProfile((), 0.5, 0.5, ())
    for shape, expected in ((two, {False}), (CLUSTER, {False, True})):
        drawn = [LaggingFollower.draw(Draws(Random(seed), shape, profile)) for seed in range(20)]
        assert {fault.elected for fault in drawn if fault is not None} == expected
