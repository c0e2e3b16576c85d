"""Full and slow disks: a node that ended over a full disk is started again, and overlapping faults heal as one."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.disk_full import DiskFull
from nemesis.faults.failing_sync import FailingSync
from nemesis.faults.process import Kill
from nemesis.faults.slow_disk import SlowDisk
from nemesis.nemesis import Injection, Nemesis
from nemesis.ports import KeepUnsynced
from nemesis.schedule import Schedule, ScheduledFault
from tests.nemesis.fake_cluster import FakeCluster
from tests.nemesis.test_nemesis import run


def healed(cluster: FakeCluster, *scheduled: ScheduledFault) -> list[Injection]:
    async def scenario() -> list[Injection]:
        nemesis = Nemesis(cluster, Schedule(scheduled), Random(1), lambda _: None, "t")
        await nemesis.run(asyncio.get_running_loop().time() + 60)
        return nemesis.injections

    injections = run(scenario())
    assert cluster.pristine
    return injections


def starts(cluster: FakeCluster) -> list[str]:
    return [call for call in cluster.calls if call.startswith("start")]


def test_a_node_that_ended_over_a_full_disk_starts_again_when_there_is_room() -> None:
    cluster = FakeCluster()
    (record,) = healed(cluster, ScheduledFault(1, 5, DiskFull(("b2",), 100)))
    assert starts(cluster) == ["start b2"]
    assert record.took_effect
    assert record.evidence["nodes"] == {"b2": {"refused_writes": 1.0, "killed": 1.0}}


def test_a_node_that_was_refused_nothing_goes_on_and_the_fault_missed() -> None:
    cluster = FakeCluster()
    cluster.refuses_writes = False
    (record,) = healed(cluster, ScheduledFault(1, 5, DiskFull(("b2",))))
    assert starts(cluster) == []
    assert not record.took_effect


class Lingering(FakeCluster):
    """A node ends over a refused write only after its disk has been freed."""

    def __init__(self, ends_after_s: float) -> None:
        super().__init__()
        self.ends_after_s = ends_after_s

    async def free_disk(self, node: str) -> dict[str, float]:
        evidence = dict(await super().free_disk(node))
        asyncio.get_running_loop().call_later(self.ends_after_s, self.down.add, node)
        self.down.discard(node)
        return evidence


def test_a_node_that_ends_over_a_refused_write_when_there_is_room_again_starts_at_once() -> None:
    cluster = Lingering(0.005)

    async def scenario() -> list[str]:
        nemesis = Nemesis(cluster, Schedule((ScheduledFault(1, 5, DiskFull(("b2",))),)), Random(1), lambda _: None, "t")
        running = asyncio.ensure_future(nemesis.run(asyncio.get_running_loop().time() + 60))
        await asyncio.sleep(10)
        started = starts(cluster)
        await running
        assert nemesis.injections[0].evidence["nodes"] == {"b2": {"refused_writes": 1.0, "killed": 1.0}}
        return started

    assert run(scenario()) == ["start b2"]


def test_a_node_that_is_slow_to_end_over_a_refused_write_is_started_at_last() -> None:
    cluster = Lingering(1.0)
    healed(cluster, ScheduledFault(1, 5, DiskFull(("b2",))))
    assert starts(cluster) == ["start b2"]


def test_a_node_that_another_fault_holds_down_is_left_to_that_fault() -> None:
    cluster = FakeCluster()
    healed(cluster, ScheduledFault(0, 10, Kill(("b1",))), ScheduledFault(1, 5, DiskFull(("b1",))))
    assert starts(cluster) == ["start b1"]


def test_a_disk_filled_by_two_faults_has_room_again_after_the_last() -> None:
    cluster = FakeCluster()
    first, last = healed(cluster, ScheduledFault(1, 5, DiskFull(("b2",))), ScheduledFault(2, 20, DiskFull(("b2",), 50)))
    assert first.evidence["overlapped"] == 1
    assert "nodes" not in first.evidence
    assert last.evidence["nodes"] == {"b2": {"refused_writes": 1.0, "killed": 1.0}}


def test_a_broker_is_stopped_while_syncs_fail_and_loses_its_power_then() -> None:
    cluster = FakeCluster()
    (record,) = healed(cluster, ScheduledFault(1, 5, FailingSync(("b2",), 2, KeepUnsynced.PREFIX)))
    assert cluster.calls == ["stop b2", "kill b2", "start b2"]
    assert record.took_effect
    assert record.evidence["nodes"]["b2"]["failed_syncs"] == 2


def test_a_stop_in_which_no_sync_failed_is_no_effect() -> None:
    assert not FailingSync(("b2",)).took_effect({"failed_syncs": 0.0, "lost_bytes": 60.0})


def test_only_victims_are_stopped_while_syncs_fail() -> None:
    cluster = ClusterShape(("b1", "b2", "b3"), ("c1",), partitions=1)
    for victims in (("b2",), ()):
        profile = RunProfile(victims, leader_bias=0.5, held_share=0.5, keeps=tuple(KeepUnsynced))
        drawn = [FailingSync.draw(Draws(Random(seed), cluster, profile)) for seed in range(20)]
        assert {fault and fault.at_risk(cluster) for fault in drawn} == {victims or None}


def test_of_two_delays_of_a_disk_the_one_that_is_left_holds() -> None:
    cluster = FakeCluster()
    seen: list[dict[str, float]] = []

    async def scenario() -> None:
        schedule = Schedule(
            (ScheduledFault(1, 20, SlowDisk(("b1",), 5.0)), ScheduledFault(2, 5, SlowDisk(("b1",), 50.0)))
        )
        nemesis = Nemesis(cluster, schedule, Random(1), lambda _: None, "t")
        running = asyncio.ensure_future(nemesis.run(asyncio.get_running_loop().time() + 40))
        for pause_s in (3, 7):
            await asyncio.sleep(pause_s)
            seen.append(dict(cluster.slow))
        await running

    run(scenario())
    assert seen == [{"b1": 50.0}, {"b1": 5.0}]
    assert cluster.pristine


def test_a_fault_in_which_no_sync_fails_is_refused() -> None:
    with pytest.raises(ValueError, match="failing_syncs: 0 is less than 1"):
        FailingSync(("b1",), 0)


def test_a_disk_refuses_writes_or_syncs() -> None:
    with pytest.raises(ValueError, match="room_bytes: 10 where syncs fail"):
        DiskFull(("b1",), 10, failing_syncs=1)
    with pytest.raises(ValueError, match="failing_syncs: -1 is less than 0"):
        DiskFull(("b1",), failing_syncs=-1)


def test_a_node_that_ended_over_a_failing_sync_starts_again_when_there_is_room() -> None:
    cluster = FakeCluster()
    (record,) = healed(cluster, ScheduledFault(1, 5, DiskFull(("b2",), failing_syncs=2)))
    assert starts(cluster) == ["start b2"]
    assert record.evidence["nodes"] == {"b2": {"refused_writes": 1.0, "killed": 1.0}}


@pytest.mark.parametrize(("fault", "line"), [(DiskFull, "room_bytes: -1"), (SlowDisk, "delay_ms: -1")])
def test_a_room_or_a_delay_below_zero_is_refused(fault: type, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        fault(("b1",), -1)
