"""Evidence of faults: of each node what was measured there, kept when it happens, and unknown when it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.administrators.admin import RaiseMinIsr
from nemesis.faults.disk import PowerLoss, WipeDisk
from nemesis.faults.process import Kill, Pause
from nemesis.faults.scripted.leader import DeafLeader, StaleBrokerEpoch
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.nemesis import Injection, Nemesis
from nemesis.ports import EnvironmentCapability, Evidence, KeepUnsynced, Link, LinkQuality
from nemesis.registry import FAULTS
from nemesis.schedule import Schedule, ScheduledFault
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

SECOND = 1_000_000_000


class SlowDisks(FakeCluster):
    """Takes 400 ms to wipe a disk or to cut a node's power."""

    async def wipe(self, node: str) -> Evidence:
        await asyncio.sleep(0.4)
        return await super().wipe(node)

    async def power_off(self, node: str, keep: KeepUnsynced, stopping_s: float | None = None) -> Evidence:
        await asyncio.sleep(0.4)
        return await super().power_off(node, keep, stopping_s)


class Unreadable(FakeCluster):
    """Does what it is asked to, and fails to report the effect on b2."""

    async def wipe(self, node: str) -> Evidence:
        evidence = await super().wipe(node)
        if node == "b2":
            raise RuntimeError("b2: no answer")
        return evidence


def carried_out(
    cluster: FakeCluster, *scheduled: ScheduledFault, until_s: float = 30.0
) -> tuple[list[Injection], Nemesis]:
    """All records, and the nemesis afterwards."""
    records: list[Injection] = []

    async def scenario() -> Nemesis:
        cluster.now_ns()
        nemesis = Nemesis(cluster, Schedule(scheduled), Random(1), records.append, "t")
        await nemesis.run(asyncio.get_running_loop().time() + until_s)
        return nemesis

    return records, run(scenario())


def ended(records: list[Injection]) -> list[Injection]:
    return [record for record in records if record.ended_ns is not None]


def test_three_wiped_disks_of_50_ms_end_after_their_evidence_was_read() -> None:
    records, _ = carried_out(SlowDisks(), ScheduledFault(1, 0.05, WipeDisk(("b1", "b2", "b3"))))
    (record,) = ended(records)
    assert {node: numbers["lost_bytes"] for node, numbers in record.evidence["nodes"].items()} == {
        "b1": 200.0,
        "b2": 200.0,
        "b3": 200.0,
    }
    assert (record.started_ns, record.ended_ns) == (round(2.2 * SECOND), round(2.25 * SECOND))


def test_the_answer_of_an_action_cut_short_by_the_end_of_the_run_is_kept() -> None:
    """The run ends while the power of the victim is being cut."""
    records, _ = carried_out(SlowDisks(), ScheduledFault(1, 60, StaleBrokerEpoch("b3")), until_s=2.5)
    (record,) = ended(records)
    assert record.evidence["nodes"]["b3"]["lost_bytes"] == 60.0
    assert record.ended_ns == record.evidence["nodes"]["b3"]["down_ns"]
    assert 2.5 * SECOND < record.evidence["nodes"]["b3"]["down_ns"] < 2.9 * SECOND


def test_a_story_that_ends_while_its_first_node_stalls_has_had_an_effect_if_that_missed_something() -> None:
    """Seed 3000455 of varied runs of 10 s was unknown: its follower had stalled for 5 s and missed 37 messages."""
    (record,) = ended(carried_out(FakeCluster(), ScheduledFault(1, 60, DeafLeader(0)), until_s=2.0)[0])
    assert record.evidence["missed"] == 1.0
    assert record.took_effect
    assert not DeafLeader(0).took_effect({"frozen_seconds": 1.0, "missed": 0.0, "held": 0.0, "refused": 0.0})


def test_the_evidence_of_a_single_node_stands_under_its_name_with_the_time() -> None:
    """A scripted fault of two nodes, cut short after one of them lost its unsynced writes: the other lost nothing."""
    records, _ = carried_out(FakeCluster(), ScheduledFault(1, 1.9, StaleBrokerEpoch("b3")))
    (record,) = ended(records)
    assert record.nodes == ("b3", "b1")
    assert record.evidence["lost_bytes"] == 60.0
    assert {node: numbers.get("lost_bytes", 0) for node, numbers in record.evidence["nodes"].items()} == {"b3": 60.0}
    assert 2 * SECOND < record.evidence["nodes"]["b3"]["down_ns"] < 2.9 * SECOND


def test_evidence_is_recorded_as_soon_as_it_is_measured() -> None:
    records, _ = carried_out(SlowDisks(), ScheduledFault(1, 5, PowerLoss(("b1", "b2"), KeepUnsynced.NOTHING)))
    nodes = [tuple(record.evidence.get("nodes", {})) for record in records]
    assert nodes.index(("b1",)) < nodes.index(("b1", "b2"))
    assert records[nodes.index(("b1",))].ended_ns is None


def test_an_effect_that_was_not_read_back_is_unknown_and_not_none() -> None:
    records, _ = carried_out(Unreadable(), ScheduledFault(1, 5, WipeDisk(("b1", "b2"))))
    (record,) = ended(records)
    assert record.evidence["nodes"]["b1"]["lost_bytes"] == 200.0
    assert record.evidence["nodes"]["b2"]["unknown_lost_bytes"] == 1.0
    assert record.evidence["nodes"]["b2"]["down_ns"] == SECOND
    assert "b2: no answer" in record.note


def test_a_node_that_a_fault_ends_twice_counts_as_ended_from_the_first_time_on() -> None:
    """Else what its first power loss took would have been lost without a fault."""
    handle = FaultHandle(FakeCluster(), ActiveEffects(), Random(1))

    async def scenario() -> None:
        handle.cluster.now_ns()
        for _ in range(2):
            await asyncio.sleep(1)
            start = await handle.power_off("b1", KeepUnsynced.NOTHING)
            await start()

    run(scenario())
    assert handle.evidence_of_node["b1"]["lost_bytes"] == 120.0
    times_ns = {name: handle.evidence_of_node["b1"][name] for name in ("down_ns", "loss_ns")}
    assert times_ns == {"down_ns": SECOND, "loss_ns": 2 * SECOND}


def test_a_node_that_is_killed_or_stops_loses_nothing() -> None:
    handle = FaultHandle(FakeCluster(), ActiveEffects(), Random(1))

    async def scenario() -> None:
        await handle.kill("b1")
        await handle.stop("b2")

    run(scenario())
    assert [sorted(numbers.keys() & {"down_ns", "loss_ns"}) for numbers in handle.evidence_of_node.values()] == [
        ["down_ns"],
        ["down_ns"],
    ]


def test_what_could_not_be_healed_is_known_by_name() -> None:
    class Stubborn(FakeCluster):
        async def start(self, node: str) -> None:
            raise RuntimeError(f"{node} will not start")

    _, nemesis = carried_out(Stubborn(), ScheduledFault(1, 1, Kill(("b1",))))
    assert nemesis.unhealed == ("RuntimeError: b1 will not start",)
    _, nemesis = carried_out(FakeCluster(), ScheduledFault(1, 1, Pause(("b1",))))
    assert nemesis.unhealed == ()


def test_a_late_effect_that_cannot_be_reverted_is_known_and_ends_no_run() -> None:
    class Forgetful(FakeCluster):
        """Answers the change and its reversal; the reversal that is repeated at the end fails."""

        async def configure(self, topic: str, name: str, value: str) -> Any:
            if len(self.calls) >= 2:
                raise RuntimeError("nobody answers")
            return await super().configure(topic, name, value)

    cluster = Forgetful()
    cluster.frozen_over_a_request = True
    _, nemesis = carried_out(cluster, ScheduledFault(1, 1, RaiseMinIsr()))
    assert nemesis.unhealed == ("lowering min.insync.replicas: RuntimeError: nobody answers",)


@pytest.mark.parametrize(("cancels", "confirmed"), [(False, 7), (True, 3)], ids=["in place", "by cancelling"])
def test_what_is_healed_is_confirmed_again_and_again_while_the_cluster_recovers(cancels: bool, confirmed: int) -> None:
    """The first confirmation fails, and those after it succeed: nothing is left unhealed. They come ever more seldom
    where each one may undo what the one before has begun."""

    class Busy(FakeCluster):
        async def configure(self, topic: str, name: str, value: str, *_: Any, **__: Any) -> Any:
            answer = await super().configure(topic, name, value)
            if len(self.calls) == 3:
                raise RuntimeError("nobody answers")
            return answer

    cluster = Busy()
    cluster.frozen_over_a_request = True
    cluster.unsupported = {EnvironmentCapability.REPLACED_REASSIGNMENTS: "it refuses them"} if cancels else {}

    async def scenario() -> tuple[tuple[str, ...], tuple[str, ...]]:
        cluster.now_ns()
        nemesis = Nemesis(cluster, Schedule((ScheduledFault(1, 1, RaiseMinIsr()),)), Random(1), lambda _: None, "t")
        await nemesis.run(asyncio.get_running_loop().time() + 30)
        before = nemesis.unhealed
        with suppress(TimeoutError):
            await asyncio.wait_for(nemesis.keep_confirmed(), 30)
        return before, nemesis.unhealed

    before, after = run(scenario())
    assert before == ("lowering min.insync.replicas: RuntimeError: nobody answers",)
    assert after == ()
    raised, *lowered = cluster.calls
    assert raised == "configure t min.insync.replicas=2"
    assert lowered == ["configure t min.insync.replicas=1"] * (2 + confirmed)


class WithoutNetem(FakeCluster):
    """Cannot slow a link, as a kernel without netem."""

    async def degrade(self, links: Sequence[Link], quality: LinkQuality) -> None:
        if quality.delay_ms or quality.jitter_ms:
            raise RuntimeError("no netem")
        await super().degrade(links, quality)


def test_exactly_the_faults_that_slow_links_need_it() -> None:
    """A fault that does not name the need is drawn where it fails half-way, and counts."""
    cluster = FakeCluster(brokers=3, controllers=3)
    profile = RunProfile(("b3",), leader_bias=0.5, held_share=0.5, keeps=(KeepUnsynced.NOTHING,))
    shape = ClusterShape(cluster.brokers, cluster.controllers, partitions=2)
    failing, needing = set(), set()
    for name, kind in FAULTS.items():
        fault = kind.draw(Draws(Random(1), shape, profile))
        if fault is None:
            continue
        records, _ = carried_out(WithoutNetem(brokers=3, controllers=3), ScheduledFault(1, 40, fault), until_s=60)
        failing |= {name} if "no netem" in ended(records)[-1].note else set()
        needing |= {name} if EnvironmentCapability.DELAY in fault.needs() else set()
    assert failing == needing == {"packets", "zombie-follower", "hidden-commit"}
