"""An operator who has a partition brought back that has no leader."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from harness.spec import parse
from nemesis.cluster_shape import ClusterShape, facts_of
from nemesis.faults.administrators.elect_unclean import ElectUnclean
from nemesis.faults.administrators.requests import NotDone
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.ports import UNANSWERED, both_ways
from nemesis.swarm import draw
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run

ASKS = "elect t-0 uncleanly"
SHAPE = ClusterShape(("b1", "b2", "b3"), ("c1",), partitions=2, waits_for_operator=True)


def handle_of(cluster: FakeCluster, *, leader: str | None, effects: ActiveEffects | None = None) -> FaultHandle:
    """Of a cluster whose first partition has this leader, as far as is known, and all brokers in its ISR."""
    handle = FaultHandle(cluster, effects or ActiveEffects(), Random(3), "t", min_isr=2)
    partition = handle.situation.partition(0)
    partition.leader, partition.known = leader, True
    partition.isr = cluster.brokers if leader else ()
    return handle


def test_an_operator_asks_once_there_is_no_leader() -> None:
    cluster = FakeCluster()
    handle = handle_of(cluster, leader="b1")

    async def scenario() -> None:
        injecting = asyncio.create_task(ElectUnclean().inject(handle))
        await asyncio.sleep(60.0)
        assert not cluster.calls, "there is a leader"
        handle.situation.partition(0).leader = None
        handle.situation.changed()
        await injecting

    run(scenario())
    assert cluster.calls == [ASKS]
    assert handle.evidence == {"elected": 1.0}
    assert ElectUnclean().took_effect(handle.evidence)


@pytest.mark.parametrize(
    ("answer", "evidence"),
    [
        ("ELIGIBLE_LEADERS_NOT_AVAILABLE", "not_elected"),
        ("ELECTION_NOT_NEEDED", "not_needed"),
        (UNANSWERED, "unanswered"),
    ],
)
def test_an_operator_asks_until_it_is_done(answer: str, evidence: str) -> None:
    cluster = FakeCluster()
    cluster.answers = [answer, answer]
    handle = handle_of(cluster, leader=None)
    run(ElectUnclean().inject(handle))
    assert cluster.calls == [ASKS] * 3
    assert handle.evidence == {evidence: 2.0, "elected": 1.0}
    assert not ElectUnclean().took_effect({evidence: 2.0})


def test_a_tool_that_has_not_heard_the_answer_asks_once_more() -> None:
    cluster = FakeCluster()
    cluster.answers = ["", "ELECTION_NOT_NEEDED"]
    handle = handle_of(cluster, leader=None)
    run(ElectUnclean(again_ms=500.0).inject(handle))
    assert cluster.calls == [ASKS] * 2
    assert handle.evidence == {"elected": 1.0, "not_needed": 1.0}
    with pytest.raises(ValueError, match="again_ms: -1 is less than 0"):
        ElectUnclean(again_ms=-1.0)


def test_a_partition_is_looked_after_also_where_the_answer_is_lost() -> None:
    cluster, effects = FakeCluster(), ActiveEffects()
    cluster.answers = [UNANSWERED] * 1_000
    handle = handle_of(cluster, leader=None, effects=effects)

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ElectUnclean().inject(handle), 5.0)

    run(scenario())
    assert effects.confirmations


def test_a_partition_that_was_brought_back_is_looked_after_until_the_end() -> None:
    cluster, effects = FakeCluster(), ActiveEffects()
    handle = handle_of(cluster, leader=None, effects=effects)
    cluster.answers = ["ELIGIBLE_LEADERS_NOT_AVAILABLE", "", "ELECTION_NOT_NEEDED", "", UNANSWERED]

    async def scenario() -> None:
        await ElectUnclean().inject(handle)
        (confirm,) = effects.confirmations.values()
        await confirm()
        await confirm()
        with pytest.raises(NotDone, match=UNANSWERED):
            await confirm()

    run(scenario())
    assert cluster.calls == [ASKS] * 5


@pytest.mark.parametrize("leaves", [True, False])
def test_the_isr_stops_once_a_follower_has_left_it(leaves: bool) -> None:
    cluster = FakeCluster()
    handle = handle_of(cluster, leader="b1")

    async def scenario() -> str:
        injecting = asyncio.create_task(ElectUnclean(staged=True).inject(handle))
        await asyncio.sleep(0.1)
        (behind,) = {link.target for link in cluster.cuts} & {
            link.source for link in cluster.cuts if link.target == "b1"
        }
        others = tuple(broker for broker in cluster.brokers if broker != behind)
        assert cluster.cuts == {*both_ways(others, [behind])}
        assert not cluster.down
        if leaves:
            handle.situation.isr_changed(0, others)
        await asyncio.sleep(60.0)
        assert cluster.down == ({*others} if leaves else set())
        handle.situation.partition(0).leader = None
        handle.situation.changed()
        await injecting
        await handle.heal()
        return behind

    behind = run(scenario())
    assert ASKS in cluster.calls
    assert behind in {"b2", "b3"}
    assert cluster.pristine


def test_it_is_drawn_where_nothing_else_brings_a_partition_back() -> None:
    def drawn(shape: ClusterShape) -> list[ElectUnclean]:
        faults = [each.fault for seed in range(60) for each in draw(Random(seed), shape, 60.0, ["admin"])]
        return [fault for fault in faults if isinstance(fault, ElectUnclean)]

    assert {(fault.staged, fault.again_ms is None) for fault in drawn(SHAPE)} == {
        (staged, once) for staged in (True, False) for once in (True, False)
    }
    assert not drawn(replace(SHAPE, waits_for_operator=False))
    for lacking in (replace(SHAPE, controllers=()), replace(SHAPE, min_insync_replicas=3)):
        assert {fault.staged for fault in drawn(lacking)} == {False}


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({}, False),
        ({"unclean.recovery.strategy": "manual"}, True),
        ({"unclean.recovery.strategy": "balanced"}, False),
        ({"unclean.recovery.strategy": "manual", "unclean.leader.election.enable": "true"}, False),
    ],
)
def test_nothing_else_does_where_the_spec_names_the_strategy_for_that(settings: dict[str, str], waits: bool) -> None:
    assert facts_of(parse({"settings": settings}).settings)["waits_for_operator"] is waits
