"""Scripted faults: between two steps lies nothing shorter than the environment takes for one, they strike who holds the
partition, and leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice, pairwise
from random import Random

import pytest

from nemesis.cluster_shape import ClusterShape
from nemesis.faults.fault import Fault
from nemesis.faults.scripted.controllers import LaggingController, LateVote, ZombieController
from nemesis.faults.scripted.leader import DeafLeader, HiddenCommit, QuickSuccession, ZombieFollower
from nemesis.faults.scripted.overtaking import LateProposal
from nemesis.faults.scripted.script import ScriptedLeaderFault
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.nemesis import Injection, Nemesis
from nemesis.ports import EnvironmentCapability, Evidence, Link
from nemesis.registry import FAULTS
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.situation import Occurrence, Situation
from nemesis.swarm import draw
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

IMPATIENT = ClusterShape(("b1", "b2", "b3", "b4"), ("c1", "c2", "c3"), partitions=2, patience_s=0.5)
STEPS = {"cut", "heal_links", "pause", "resume", "kill", "stop", "start"}
"""Calls that an environment carries out by a command; requests to the cluster need none."""
OF_REQUESTS = ("late-epoch-answer", "late-quorum-fetch", "slow-catch-up", "late-vote", "there-and-back")
"""They ask the cluster, and look at messages: between these lie no two steps; or they act between two messages."""
SCRIPTED = [
    fault
    for fault in FAULTS.values()
    if (fault.family.name == "scripted" and fault.name not in OF_REQUESTS) or fault.name == "rolling-restart"
]


class _Calls(list[str]):
    """The calls of a cluster, and the times of its steps."""

    def __init__(self) -> None:
        self.times_ms: list[int] = []

    def append(self, call: str) -> None:
        super().append(call)
        if call.split()[0] in STEPS:
            self.times_ms.append(round(asyncio.get_running_loop().time() * 1000))


class _Electing(FakeCluster):
    """A cluster in which every cut makes the next broker lead, and the next controller active."""

    async def cut(self, links: Sequence[Link], *, reset: bool = False, kept: bool = False) -> None:
        await super().cut(links, reset=reset, kept=kept)
        for partition, leader in self.leading.items():
            self.leading[partition] = self.brokers[self.brokers.index(leader) - 1]
        self.active = self.controllers[self.controllers.index(str(self.active)) - 1]


def _pauses_ms(fault: Fault, seed: int, step_s: float) -> list[int]:
    """The times between the steps of a fault that has the run to itself, without those that come at once."""
    cluster, calls = _Electing(brokers=4, controllers=3), _Calls()
    cluster.calls, cluster.placed = calls, cluster.brokers[:3]
    cluster.unsupported = {EnvironmentCapability.MESSAGES: "machines tell no message from another"}

    async def scenario() -> None:
        schedule = Schedule((ScheduledFault(1, 50, fault),))
        nemesis = Nemesis(cluster, schedule, Random(seed), lambda _: None, "t", min_isr=2, step_s=step_s)
        await nemesis.run(asyncio.get_running_loop().time() + 60)

    run(scenario())
    return [later - sooner for sooner, later in pairwise(calls.times_ms) if later - sooner > 1]


@pytest.mark.parametrize("fault", SCRIPTED, ids=lambda fault: fault.name)
def test_no_two_steps_are_closer_than_the_environment_can_bring_them(fault: type[Fault]) -> None:
    schedules = (draw(Random(seed), IMPATIENT, 60.0, [fault.family.name]) for seed in range(300))
    drawn = (each.fault for schedule in schedules for each in schedule if type(each.fault) is fault)
    examples = list(enumerate(islice(drawn, 8)))
    assert any(pause < 300 for seed, example in examples for pause in _pauses_ms(example, seed, 0.0))
    assert all(pause >= 300 for seed, example in examples for pause in _pauses_ms(example, seed, 0.3))


@pytest.mark.parametrize("fault", [ZombieFollower, HiddenCommit, LateProposal, DeafLeader, QuickSuccession])
def test_the_followers_of_a_scripted_fault_hold_the_partition(fault: type[ScriptedLeaderFault]) -> None:
    """Of five brokers two follow: with any others nothing of the fault comes about."""
    for seed in range(10):
        cluster, situation = FakeCluster(brokers=5, controllers=3), Situation()
        situation.isr_changed(0, ("b1", "b3", "b5"))
        handle = FaultHandle(cluster, ActiveEffects(), Random(seed), "t", situation=situation)
        run(fault(0, patience_ms=50.0).inject(handle))
        cut = ({link.source, link.target} for link in cluster.ever_cut)
        struck = {*cluster.paused}.union(*(ends for ends in cut if "b1" not in ends))  # a leader is cut from everybody
        assert struck & {"b3", "b5"}
        assert not struck & {"b2", "b4"}, seed


def test_a_leader_all_of_whose_messages_are_held_is_not_fenced_meanwhile() -> None:
    """Where messages cannot be told apart nobody may tell either that a broker is fenced: brokers are asked for their
    metadata only in a run that waits for a condition."""
    patience_s, leader_link = 1.0, Link("b1", "c1")

    class Timed(FakeCluster):
        async def cut(self, links: Sequence[Link], *, reset: bool = False, kept: bool = False) -> None:
            times_s.extend([asyncio.get_running_loop().time()] * (leader_link in links))
            await super().cut(links, reset=reset, kept=kept)

        async def heal_links(self, links: Sequence[Link]) -> Evidence:
            times_s.extend([asyncio.get_running_loop().time()] * (leader_link in links))
            return await super().heal_links(links)

    for seed in range(10):
        times_s: list[float] = []
        cluster = Timed()
        cluster.unsupported = {EnvironmentCapability.MESSAGES: "machines tell no message from another"}
        handle = FaultHandle(cluster, ActiveEffects(), Random(seed), "t")
        run(LateProposal(0, patience_ms=1000 * patience_s).inject(handle))
        held_s, freed_s = times_s
        assert 0.7 * patience_s < freed_s - held_s < 0.95 * patience_s


def test_a_follower_that_was_fenced_before_is_waited_for_again() -> None:
    """Another fault had it fenced while the leader had not yet sent the request that is to be held."""

    class Fencing(FakeCluster):
        async def intercepted(self, number: int) -> int:
            for broker in self.brokers:
                situation.occurred(Occurrence.FENCED, broker)
                situation.occurred(Occurrence.UNFENCED, broker)
            return 1

    cluster, situation = Fencing(), Situation()
    handle = FaultHandle(cluster, ActiveEffects(), Random(1), "t", situation=situation)

    async def took_s() -> float:
        began_s = asyncio.get_running_loop().time()
        await LateProposal(0, patience_ms=1000.0).inject(handle)
        return asyncio.get_running_loop().time() - began_s

    assert run(took_s()) > 2 + 1 + 1.2, "neither is fenced nor unfenced again"


@pytest.mark.parametrize("controllers", [2, 5])
def test_a_late_vote_says_that_it_needs_three_controllers(controllers: int) -> None:
    handle = FaultHandle(cluster := FakeCluster(controllers=controllers), ActiveEffects(), Random(1), "t")
    run(LateVote(patience_ms=50.0).inject(handle))
    assert "three controllers" in handle.notes[0]
    assert cluster.pristine


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_late_vote_that_is_cut_short_leaves_nothing_behind(kept: int) -> None:
    """After each of its steps: nobody stands, nobody is let stand, and nobody stands again."""
    cluster, situation = FakeCluster(controllers=3), Situation()
    handle = FaultHandle(cluster, ActiveEffects(), Random(1), "t", situation=situation)

    async def scenario() -> None:
        fault = asyncio.ensure_future(LateVote(patience_ms=1000.0).inject(handle))
        await asyncio.sleep(0.1)
        for node, kind in [("c3", "quorum_candidate"), ("c2", "quorum_prevote_granted")][: kept - 1]:
            assert situation.watched[kind]
            situation.occurred(Occurrence.TRACED, node, traced=kind)
            await asyncio.sleep(0.1)
        assert not cluster.pristine
        fault.cancel()
        await asyncio.wait([fault])
        await handle.heal()

    run(scenario())
    assert cluster.pristine
    assert not any(situation.watched.values())


def test_the_nodes_of_a_deaf_leader_are_it_and_the_follower_that_it_may_not_hear_of() -> None:
    handle = FaultHandle(FakeCluster(), ActiveEffects(), Random(1), "t")
    run(DeafLeader(0, patience_ms=50.0).inject(handle))
    assert set(handle.targets.nodes) == {"b1", "b2", "b3"}


@pytest.mark.parametrize("fault", [ZombieController, LaggingController])
def test_a_scripted_fault_of_controllers_leaves_no_setting_of_the_topic_behind(fault: type[Fault]) -> None:
    cluster = FakeCluster(controllers=3)
    records: list[Injection] = []

    async def scenario() -> None:
        schedule = Schedule((ScheduledFault(1, 20, fault()),))
        await Nemesis(cluster, schedule, Random(1), records.append, "t").run(asyncio.get_running_loop().time() + 30)

    run(scenario())
    asked = [call for call in cluster.calls if call.startswith("configure")]
    keys = {call.removeprefix("configure t ").split("=")[0] for call in asked if "delete" not in call}
    assert keys == {"leader.replication.throttled.replicas"}, "and this has no effect"
    assert asked[-1] == "configure t delete leader.replication.throttled.replicas="
