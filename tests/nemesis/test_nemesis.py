"""The nemesis follows a schedule: times, targets, records, and healing."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.clock import Clock
from nemesis.faults.disk import PowerLoss
from nemesis.faults.fault import Fault
from nemesis.faults.network_partition import NetworkPartition, PartitionShape
from nemesis.faults.packets import Packets
from nemesis.faults.process import Kill, Pause
from nemesis.faults.scripted.leader import DeafLeader, UncleanReturn, ZombieFollower
from nemesis.nemesis import Injection, Nemesis
from nemesis.ports import Evidence, KeepUnsynced, Link
from nemesis.schedule import Schedule, ScheduledFault, parse_script
from nemesis.situation import Situation
from nemesis.strategies import schedules
from nemesis.targets import TargetError, check_target
from results.run.deviations import fault_deviations
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

CLUSTER = ClusterShape(brokers=("b1", "b2", "b3"), controllers=("c1",), partitions=2)


def _in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def carry_out(*scheduled: ScheduledFault, cluster: FakeCluster | None = None, until_s: float = 60.0) -> list[Injection]:
    """Every record of a schedule, in order."""
    cluster = cluster or FakeCluster()
    records: list[Injection] = []

    async def scenario() -> None:
        cluster.now_ns()
        await Nemesis(cluster, Schedule(scheduled), Random(1), records.append, "t").run(_in(until_s))

    run(scenario())
    assert cluster.pristine
    return records


def healed(*scheduled: ScheduledFault, cluster: FakeCluster | None = None, until_s: float = 60.0) -> list[Injection]:
    return [record for record in carry_out(*scheduled, cluster=cluster, until_s=until_s) if record.ended_ns is not None]


def test_a_fault_is_injected_at_its_time_and_healed_after_its_duration() -> None:
    (record,) = healed(ScheduledFault(5, 3, Kill(nodes=("b2",))))
    assert (record.started_ns, record.ended_ns) == (5_000_000_000, 8_000_000_000)
    assert record.took_effect
    assert record.nodes == ("b2",)


def test_everything_is_healed_at_the_end_of_the_run_whatever_the_schedule_says() -> None:
    (record,) = healed(ScheduledFault(5, 1000, NetworkPartition(PartitionShape.ISOLATE, ("b1",))), until_s=10)
    assert record.ended_ns == 10_000_000_000


def test_a_fault_planned_after_the_end_of_the_run_never_happens() -> None:
    assert carry_out(ScheduledFault(11, 1, Kill()), until_s=10) == []


def test_a_fault_is_recorded_when_it_begins_with_the_nodes_it_hit() -> None:
    fault = PowerLoss(nodes=("leader/1",), keep=KeepUnsynced.NOTHING)
    begun, _, holding, ended = carry_out(ScheduledFault(5, 3, fault))
    assert begun.number == holding.number == ended.number
    assert begun.ended_ns is holding.ended_ns is None
    assert holding.nodes == ("b2",)
    assert holding.evidence["lost_bytes"] == 60


def test_a_symbolic_target_is_resolved_when_the_fault_is_injected() -> None:
    cluster = FakeCluster()

    async def scenario() -> list[Injection]:
        nemesis = Nemesis(
            cluster, Schedule((ScheduledFault(5, 1, Pause(("leader/0",))),)), Random(1), lambda _: None, "t"
        )
        running = asyncio.ensure_future(nemesis.run(_in(20)))
        await asyncio.sleep(1)
        cluster.leading["t", 0] = "b3"
        await running
        return nemesis.injections

    (record,) = run(scenario())
    assert record.nodes == ("b3",)
    assert record.detail["resolved"] == {"leader/0": ["b3"]}


def test_a_partition_without_leader_still_finds_a_target_and_says_so() -> None:
    cluster = FakeCluster()
    cluster.leading.clear()
    (record,) = healed(ScheduledFault(0, 1, Pause(("leader/0",))), cluster=cluster)
    assert len(record.nodes) == 1
    assert "none at the time" in record.note


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_a_minority_is_as_many_brokers_as_may_be_away_from_a_majority(count: int) -> None:
    """One of two, without which the other is no majority."""
    cluster = FakeCluster(brokers=count)
    (record,) = healed(ScheduledFault(0, 1, Pause(("minority",))), cluster=cluster)
    assert len(record.nodes) == max(1, (count - 1) // 2)


def test_a_link_cut_by_two_faults_is_mended_by_the_last() -> None:
    cluster = FakeCluster()
    seen: list[bool] = []

    async def scenario() -> list[Injection]:
        schedule = Schedule(
            (
                ScheduledFault(0, 5, NetworkPartition(PartitionShape.ONE_WAY, ("b1",), ("b2",))),
                ScheduledFault(2, 6, NetworkPartition(PartitionShape.ONE_WAY, ("b1",), ("b2", "b3"))),
            )
        )
        nemesis = Nemesis(cluster, schedule, Random(1), lambda _: None)
        running = asyncio.ensure_future(nemesis.run(_in(20)))
        await asyncio.sleep(6)
        seen.append(Link("b1", "b2") in cluster.cuts)
        await running
        return nemesis.injections

    first, last = run(scenario())
    assert seen == [True]
    assert first.evidence["overlapped"] == 1
    assert last.evidence["held"] == 2


def test_a_node_stopped_by_two_faults_starts_with_the_last() -> None:
    cluster = FakeCluster()
    healed(ScheduledFault(0, 10, Kill(("b1",))), ScheduledFault(1, 2, PowerLoss(("b1",))), cluster=cluster)
    assert [call for call in cluster.calls if "start" in call] == ["start b1"]


def test_a_fault_that_changed_nothing_has_not_bitten() -> None:
    second = healed(ScheduledFault(0, 10, Kill(("b1",))), ScheduledFault(1, 2, Kill(("b1",))))[0]
    assert not second.took_effect


@pytest.mark.parametrize(
    ("fault", "bit"),
    [
        (PowerLoss(("b1",), KeepUnsynced.EVERYTHING), True),
        (PowerLoss(("b1",), KeepUnsynced.PREFIX), True),
        (Clock(("b1",), jump_ms=-300), True),
        (Clock(("b1",), rate=0.0), True),
        (Clock(("b1",), wall_jump_ms=9000), True),
        (Packets(("b1",), delay_ms=10), True),
        (Pause(("c1",)), True),
    ],
)
def test_every_family_says_by_its_evidence_whether_it_bit(fault: Fault, bit: bool) -> None:
    (record,) = healed(ScheduledFault(0, 5, fault))
    assert record.took_effect is bit


@pytest.mark.parametrize("controllers", [(), ("c1", "c2", "c3")])
def test_many_jumps_of_wall_clocks_are_far_back_on_the_active_controller(controllers: tuple[str, ...]) -> None:
    """Further back than any session lasts: a controller that went by this clock would keep them all."""
    shape = ClusterShape(("b1", "b2", "b3"), controllers, 1)
    profile = RunProfile((), 0.5, 1.0, (KeepUnsynced.NOTHING,))
    drawn = [clock for seed in range(400) if (clock := Clock.draw(Draws(Random(seed), shape, profile))) is not None]
    walls = [clock for clock in drawn if clock.wall_jump_ms]
    left_behind = [clock for clock in walls if clock.nodes == ("controller",) and clock.wall_jump_ms <= -5_000]
    assert bool(left_behind) is bool(controllers)
    assert len(left_behind) >= len(walls) / 3 or not controllers
    assert {clock.wall_jump_ms > 0 for clock in walls} == {True, False}


def test_losses_of_several_nodes_are_told_node_by_node() -> None:
    (record,) = healed(ScheduledFault(0, 5, PowerLoss(("b1", "b2"))))
    assert record.evidence["lost_bytes"] == 120
    assert record.evidence["nodes"]["b1"]["lost_bytes"] == 60


def test_a_scripted_fault_cut_off_in_the_middle_leaves_nothing_broken() -> None:
    for until_s in (0.5, 2.6, 3.5, 5.0, 7.0, 9.0):
        healed(ScheduledFault(0, 60, ZombieFollower()), ScheduledFault(0, 60, UncleanReturn("b2")), until_s=until_s)


@pytest.mark.parametrize("fault", [DeafLeader(0), UncleanReturn("b1")])
def test_a_scripted_fault_that_needs_others_says_so_on_a_broker_alone(fault: Fault) -> None:
    (record,) = healed(ScheduledFault(1, 5, fault), cluster=FakeCluster(brokers=1))
    assert "two brokers are needed" in record.note


def test_cancelling_the_nemesis_heals() -> None:
    cluster = FakeCluster()

    async def scenario() -> None:
        schedule = Schedule(
            (
                ScheduledFault(0, 50, Kill(("b1",))),
                ScheduledFault(1, 50, NetworkPartition(PartitionShape.ISOLATE, ("b2",))),
            )
        )
        running = asyncio.ensure_future(Nemesis(cluster, schedule, Random(1), lambda _: None).run(_in(100)))
        await asyncio.sleep(5)
        assert not cluster.pristine
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(scenario())
    assert cluster.pristine


@pytest.mark.parametrize("error", [OSError("ssh: no answer"), TimeoutError("ssh: no answer")])
def test_an_injection_that_fails_says_so(error: OSError) -> None:
    class Unreachable(FakeCluster):
        async def pause(self, node: str) -> None:
            raise error

    (record,) = healed(ScheduledFault(1, 3, Pause(nodes=("b2",))), cluster=Unreachable())
    assert record.note.endswith(f"injecting failed: {type(error).__name__}: ssh: no answer")
    assert [*fault_deviations(record.fault, record.detail)] == [
        f"pause b2 failed: {type(error).__name__}: ssh: no answer"
    ]


@pytest.mark.parametrize("fault", ["last-leader", "unclean-return", "stale-broker-epoch"])
def test_a_victim_whose_name_is_bound_to_several_nodes_says_so(fault: str) -> None:
    records: list[Injection] = []
    script = [
        {"at": 1, "fault": "observe", "nodes": ["b1", "b2"], "as": "old-isr"},
        {"at": 2, "for": 1, "fault": fault, "victim": "old-isr"},
    ]

    async def scenario() -> None:
        await Nemesis(FakeCluster(), parse_script(script), Random(1), records.append).run(_in(5))

    run(scenario())
    last = {record.number: record for record in records}
    (line,) = fault_deviations(last[1].fault, last[1].detail)
    assert line.endswith("failed: TargetError: 'old-isr' stands for b1, b2, and one node is asked for")


def test_a_fault_of_a_name_that_is_bound_to_nothing_yet_says_so() -> None:
    records: list[Injection] = []
    script = [
        {"at": 1, "for": 1, "fault": "kill", "nodes": ["old-leader"]},
        {"at": 3, "fault": "observe", "nodes": ["b1"], "as": "old-leader"},
    ]

    async def scenario() -> None:
        await Nemesis(FakeCluster(), parse_script(script), Random(1), records.append).run(_in(5))

    run(scenario())
    last = {record.number: record for record in records}
    assert not last[0].took_effect
    (line,) = fault_deviations(last[0].fault, last[0].detail)
    assert line == "kill old-leader failed: TargetError: no step has bound 'old-leader' to any node yet"


def test_a_fault_whose_time_comes_long_after_its_condition_holds_nobody_up() -> None:
    cluster, situation = FakeCluster(), Situation()
    script = [
        {"id": "cut", "at": 1, "for": 1, "fault": "pause", "nodes": ["b1"]},
        {"after": "cut", "then_after": "10m", "for": 1, "fault": "kill", "nodes": ["b2"]},
    ]
    records: list[Injection] = []

    async def scenario() -> None:
        cluster.now_ns()
        nemesis = Nemesis(cluster, parse_script(script), Random(1), records.append, "t", situation=situation)
        await nemesis.run(_in(10))
        assert cluster.now_ns() == 10_000_000_000

    run(scenario())
    assert records[-1].note.endswith("not injected: its moment came after the end of the workload")


def test_a_heal_that_fails_does_not_stop_the_others() -> None:
    class Stubborn(FakeCluster):
        async def start(self, node: str) -> None:
            if node == "b2":
                raise RuntimeError("it will not start")
            await super().start(node)

    cluster = Stubborn()
    records: list[Injection] = []

    async def scenario() -> None:
        schedule = Schedule((ScheduledFault(0, 1, Kill(("b1", "b2", "b3"))),))
        await Nemesis(cluster, schedule, Random(1), records.append).run(_in(10))

    run(scenario())
    assert cluster.down == {"b2"}
    assert "it will not start" in records[-1].note


@settings(max_examples=60, deadline=None)
@given(schedules(CLUSTER))
def test_any_schedule_leaves_the_cluster_whole_and_records_every_fault(schedule: Schedule) -> None:
    ended = healed(*schedule, until_s=25)
    assert sorted(record.number for record in ended) == [
        number for number, scheduled in enumerate(schedule) if scheduled.at_s < 25
    ]


@pytest.mark.parametrize("target", ["b4", "leaders", "leader/9", "leader/x", ""])
def test_a_target_that_names_nothing_is_refused(target: str) -> None:
    with pytest.raises(TargetError):
        check_target(target, ("b1", "b2", "b3"), ("c1",), 2)


def test_a_fault_counts_and_lasts_from_when_it_holds() -> None:
    class Slow(FakeCluster):
        async def kill(self, node: str) -> Evidence:
            await asyncio.sleep(0.5)
            return dict(await super().kill(node))

    begun, *_, ended = carry_out(ScheduledFault(5, 3, Kill(("b1", "b2"))), cluster=Slow())
    assert begun.started_ns == 5_000_000_000
    assert (ended.started_ns, ended.ended_ns) == (6_000_000_000, 9_000_000_000)
    assert (ended.evidence["injection_seconds"], ended.evidence["healing_seconds"]) == (1.0, 0.0)


class _SlowCluster(FakeCluster):
    """A cluster on a busy machine, where ending a process takes six seconds."""

    async def kill(self, node: str) -> Evidence:
        await asyncio.sleep(6)
        return await super().kill(node)


def test_the_duration_of_a_fault_counts_from_when_it_holds() -> None:
    (record,) = healed(ScheduledFault(5, 3, Kill(nodes=("b2",))), cluster=_SlowCluster())
    assert (record.started_ns, record.ended_ns) == (11_000_000_000, 14_000_000_000)
    assert record.took_effect


def test_a_fault_injected_as_the_run_ends_is_injected_whole_and_healed_at_once() -> None:
    (record,) = healed(ScheduledFault(5, 3, Kill(nodes=("b2",))), cluster=_SlowCluster(), until_s=7)
    assert (record.started_ns, record.ended_ns) == (11_000_000_000, 11_000_000_000)
    assert record.took_effect
