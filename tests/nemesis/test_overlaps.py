"""Faults that overlap on one node or link, and what is left when one of them heals, fails to heal or is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from nemesis.faults.administrators.admin import ControlledRestart
from nemesis.faults.clock import Clock
from nemesis.faults.process import Pause
from nemesis.faults.scripted.leader import DeafLeader
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.nemesis import Injection, Nemesis
from nemesis.ports import ClockChange, Evidence, KeepUnsynced, Link, LinkQuality
from nemesis.schedule import Schedule, ScheduledFault
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

SECOND = 1_000_000_000


def test_a_clock_that_two_faults_change_runs_at_the_rate_of_the_one_that_is_left() -> None:
    cluster, rates = FakeCluster(), list[float | None]()
    fast, frozen = ScheduledFault(1, 9, Clock(("b1",), rate=1.02)), ScheduledFault(2, 1, Clock(("b1",), rate=0.0))

    async def watch(nemesis: Nemesis, until_s: Sequence[float]) -> None:
        healing = asyncio.ensure_future(nemesis.run(asyncio.get_running_loop().time() + 20))
        for before, now in zip((0.0, *until_s), until_s, strict=False):
            await asyncio.sleep(now - before)
            change = cluster.clocks.get("b1")
            rates.append(None if change is None else change.rate)
        await healing

    run(watch(Nemesis(cluster, Schedule((fast, frozen)), Random(1), lambda _: None, "t"), (1.5, 2.5, 3.5, 11)))
    assert rates == [1.02, 0.0, 1.02, None]


def test_a_clock_that_has_jumped_does_not_jump_again_when_another_fault_heals() -> None:
    async def scenario() -> ClockChange:
        cluster, effects = FakeCluster(), ActiveEffects()
        jumped, frozen = (FaultHandle(cluster, effects, Random(1)) for _ in range(2))
        await jumped.set_clock("b1", ClockChange(jump_ms=900, rate=1.1))
        await frozen.set_clock("b1", ClockChange(rate=0.0))
        await frozen.heal()
        return cluster.clocks["b1"]

    assert run(scenario()) == ClockChange(rate=1.1)


def test_a_clock_goes_back_to_what_the_latest_of_the_faults_that_are_left_made_of_it() -> None:
    async def scenario() -> list[ClockChange]:
        cluster, effects, seen = FakeCluster(), ActiveEffects(), []
        handles = [FaultHandle(cluster, effects, Random(1)) for _ in range(4)]
        changes = (ClockChange(rate=2), ClockChange(rate=3), ClockChange(rate=2), ClockChange(wall_jump_ms=-900))
        for handle, change in zip(handles, changes, strict=True):
            await handle.set_clock("b1", change)
        for handle in (handles[3], handles[2], handles[0]):
            await handle.heal()
            seen.append(cluster.clocks["b1"])
        return seen

    assert run(scenario()) == [ClockChange(rate=2), ClockChange(rate=3), ClockChange(rate=3)]


def test_of_two_faults_that_give_the_same_value_the_one_that_heals_takes_its_own_back() -> None:
    async def scenario() -> FakeCluster:
        cluster, effects, link = FakeCluster(), ActiveEffects(), Link("b1", "b2")
        handles = [FaultHandle(cluster, effects, Random(1)) for _ in range(3)]
        for handle, delay_ms in zip(handles, (100, 200, 100), strict=True):
            await handle.slow_disk("b1", delay_ms)
            await handle.degrade([link], LinkQuality(delay_ms))
        await handles[2].heal()
        return cluster

    cluster = run(scenario())
    assert cluster.slow == {"b1": 200}
    assert cluster.qualities == {Link("b1", "b2"): LinkQuality(200)}


class FailsToHealOnce(FakeCluster):
    """The first attempt to mend links fails."""

    failed = False

    async def heal_links(self, links: Sequence[Link]) -> Evidence:
        if not self.failed:
            self.failed = True
            raise RuntimeError("no answer")
        return await super().heal_links(links)


def test_a_step_that_a_fault_fails_to_undo_early_is_known_as_unhealed() -> None:
    cluster = FailsToHealOnce()

    async def scenario() -> Nemesis:
        nemesis = Nemesis(cluster, Schedule((ScheduledFault(1, 60, DeafLeader(0)),)), Random(1), lambda _: None, "t")
        await nemesis.run(asyncio.get_running_loop().time() + 60)
        return nemesis

    unhealed = run(scenario()).unhealed
    assert cluster.cuts
    assert unhealed == ("RuntimeError: no answer",)


class StopsOnce(FakeCluster):
    """A node stops by itself the first time alone."""

    stops = 0

    async def stop(self, node: str) -> Evidence:
        self.stops += 1
        await super().stop(node)
        return {"stopped": float(self.stops == 1)}


@pytest.mark.parametrize("stops", [1, 2])
def test_a_node_that_does_not_stop_by_itself_a_second_time_keeps_its_power(stops: int) -> None:
    cluster = StopsOnce()

    async def scenario() -> FaultHandle:
        handle = FaultHandle(cluster, ActiveEffects(), Random(1))
        for _ in range(stops):
            start = await handle.stop("b1", KeepUnsynced.NOTHING)
            handle.situation.wholeness.is_whole = lambda _: True  # type: ignore[method-assign]
            await start()
        return handle

    handle = run(scenario())
    assert ("it keeps its power" in " ".join(handle.notes)) is (stops == 2)


class SlowlyThawed(FakeCluster):
    """Takes a second to let a process go on."""

    async def resume(self, node: str) -> Evidence:
        await asyncio.sleep(1)
        return await super().resume(node)


def test_a_nemesis_that_is_cancelled_while_a_fault_heals_heals_the_rest_and_records_it() -> None:
    cluster, records = SlowlyThawed(), list[Injection]()

    async def scenario() -> None:
        pause = ScheduledFault(1, 1, Pause(("b1", "b2", "b3")))
        nemesis = Nemesis(cluster, Schedule((pause,)), Random(1), records.append, "t")
        running = asyncio.ensure_future(nemesis.run(asyncio.get_running_loop().time() + 60))
        await asyncio.sleep(2.5)
        assert len(cluster.paused) == 3
        running.cancel()
        await asyncio.wait({running})
        await asyncio.sleep(5)

    run(scenario())
    assert cluster.pristine
    assert records[-1].ended_ns is not None


def test_a_fault_of_several_steps_counts_from_its_first() -> None:
    records = list[Injection]()

    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.now_ns()
        restart = ScheduledFault(1, 30, ControlledRestart(("b1", "b2", "b3")))
        await Nemesis(cluster, Schedule((restart,)), Random(1), records.append, "t").run(
            asyncio.get_running_loop().time() + 40
        )

    run(scenario())
    assert records[-1].started_ns == SECOND
