"""Replicas join the ISR of a running cluster, one rule after another switched off.

In each scenario some brokers are left to be elected that the controllers count as in sync. An answer or a request that
is slow at the right moment makes the difference between the leader's and the controllers' knowledge, and what was
acknowledged in between is lost exactly without the rule.
"""

from __future__ import annotations

import asyncio

import pytest

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.trace import TraceEvent
from nemesis.ports import DONE, Link, LinkQuality, both_ways, one_way
from tests.scenarios.one_partition import RECORDS, SLOW, TOPIC, Scene, played
from workloads.clients.native import Client, Producer


@pytest.mark.parametrize(("off", "end"), [((), RECORDS), (("high_watermark_gates_isr_join",), 0)])
def test_6_5_3_a_wiped_follower_is_elected_without_committed_records_exactly_without_the_rule(
    off: tuple[str, ...], end: int
) -> None:
    """The leader's answers to the follower are slow: a join before it has the records is committed before they come."""

    async def scenario(scene: Scene) -> int:
        leader, other, follower = scene.replicas
        await scene.deployment.wipe(follower)
        await scene.deployment.degrade([Link(leader, follower)], LinkQuality(delay_ms=400))
        await scene.deployment.start(follower)
        await scene.until("isr_committed", node=leader, member=follower)
        await scene.deployment.cut([Link(leader, follower)])
        await scene.kill(leader, other)
        return (await scene.until("became_leader", node=follower)).offset

    assert played(scenario, *off) == end


@pytest.mark.parametrize("off", [(), ("min_isr_counts_committed_isr",)])
def test_6_5_2_a_proposed_member_counts_towards_the_minimum_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    """The ISR is the leader alone and the ELR has another broker, when a third one is proposed. The proposal never
    reaches the controllers, and the one in the ELR is elected."""

    async def scenario(scene: Scene) -> tuple[bool, int]:
        leader, eligible, proposed = scene.replicas
        await scene.kill(proposed)
        await scene.until("partition_changed", isr=scene.ids(leader, eligible))
        since = len(scene.trace)
        await scene.deployment.stop(eligible)
        await scene.until("partition_changed", isr=scene.ids(leader), since=since)
        to_controllers = one_way([leader], scene.deployment.controllers)
        await scene.deployment.degrade(to_controllers, SLOW)
        await scene.deployment.start(proposed)
        await scene.until("isr_proposed", node=leader, member=proposed)
        acknowledged = await scene.acknowledged()
        await scene.deployment.cut(to_controllers)
        await scene.kill(leader)
        await scene.deployment.start(eligible)
        return acknowledged, (await scene.until("became_leader", node=eligible)).offset

    acknowledged, end = played(scenario, *off)
    assert end == RECORDS
    assert acknowledged == bool(off), "the new leader does not have it"


@pytest.mark.parametrize("off", [(), ("one_isr_change_at_a_time",)])
def test_6_5_2_a_second_proposal_hides_the_first_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    """Two brokers are back. The one proposed first is in the ISR of the controllers before the leader knows, and does
    not have what the others acknowledge meanwhile."""

    async def scenario(scene: Scene) -> tuple[bool, int]:
        leader, stays, *back = scene.replicas
        await scene.kill(back[0])
        await scene.until("partition_changed", isr=scene.ids(leader, stays, back[1]))
        await scene.deployment.start(back[0])
        await scene.until("isr_committed", node=leader, member=back[0])  # now the leader has a connection for proposals
        await scene.kill(*back)
        await scene.until("partition_changed", isr=scene.ids(leader, stays))
        await scene.deployment.degrade(one_way([leader], scene.deployment.controllers), SLOW)
        for broker in back:
            await scene.deployment.start(broker)
        proposal = await scene.until("isr_proposed", node=leader)
        (first,) = (broker for broker in back if scene.ids(broker) <= set(proposal.members))
        (second,) = (broker for broker in back if broker != first)
        since = len(scene.trace)
        await scene.deployment.cut([Link(leader, first)])
        if off:
            await scene.until("isr_proposed", node=leader, isr=scene.ids(leader, stays, second), since=since)
        acknowledged = await scene.acknowledged()
        await scene.until("partition_changed", isr=scene.ids(leader, stays, first), since=since)
        await scene.kill(leader, stays)
        return acknowledged, (await scene.until("became_leader", node=first)).offset

    acknowledged, end = played(scenario, *off, brokers=4, replicas=4)
    assert end == RECORDS
    assert acknowledged == bool(off), "the new leader does not have it"


def test_6_7_a_reassignment_in_a_running_cluster_adds_nobody_to_the_isr_before_it_has_caught_up() -> None:
    """All replicas move to brokers whose links from the leader are slow, and the ISR is never below the minimum."""

    async def scenario(scene: Scene) -> tuple[set[int], list[tuple[str, TraceEvent]]]:
        target = [broker for broker in scene.deployment.brokers if broker not in scene.replicas]
        await scene.deployment.degrade(one_way(scene.replicas, target), LinkQuality(delay_ms=100))
        since = len(scene.trace)
        assert (await scene.deployment.admin.reassign(TOPIC, 0, target)).outcome == DONE
        await scene.until("became_leader", since=since)
        await asyncio.sleep(3)
        return scene.ids(*target), scene.trace[since:]

    target, trace = played(scenario, brokers=4, replicas=2)
    changes = [event for _, event in trace if event.kind == "partition_changed" and event.topic == TOPIC]
    assert all(len(event.members) >= 2 for event in changes)
    grown, *_, complete = changes
    assert len(set(map(int, _replicas(grown)))) == 4
    assert not target & set(grown.members)
    assert (set(_replicas(complete)), set(complete.members)) == (target, target)
    caught_up: set[str] = set()
    for node, event in trace:
        if event.topic == TOPIC and event.kind == "appended" and event.log_end == RECORDS:
            caught_up.add(node)
        if event.topic == TOPIC and event.kind == "partition_changed":
            assert {f"b{member}" for member in set(event.members) & target} <= caught_up


def _replicas(event: TraceEvent) -> list[int]:
    replicas = event.detail["replicas"]
    assert isinstance(replicas, list | tuple)
    return [int(replica) for replica in replicas]


def test_a_proposal_that_a_deposed_controller_refuses_since_it_does_not_know_the_topic_is_sent_again() -> None:
    """The leader reaches only the controller that was deposed before the topic was created, when a follower returns."""
    topic = "new"

    async def scenario(scene: Scene) -> object:
        cluster = scene.deployment
        deposed = await cluster.controller()
        assert deposed is not None
        others = [name for name in cluster.controllers if name != deposed]
        isolated = both_ways([deposed], [*others, *cluster.brokers])
        await cluster.cut(isolated, reset=True)
        while await cluster.controller() in (None, deposed):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        since = len(scene.trace)
        await scene.create_topic(topic, 3)
        await scene.until("became_leader", topic=topic, since=since)
        leader, stays, returns = await cluster.admin.replicas(topic, 0)
        client = Client(cluster.bootstrap(), topic, cluster.stream(topic))
        producer = Producer(client, topic, acks=1)
        await cluster.cut(both_ways([leader], [returns]))
        assert (await producer.append(0, [b"x"])).outcome == "ok"
        await scene.until("partition_changed", topic=topic, isr=scene.ids(leader, stays))
        await cluster.heal_links(both_ways([leader], [deposed]))
        await cluster.cut(both_ways([leader], others), reset=True)
        await asyncio.sleep(1)
        since = len(scene.trace)
        await cluster.heal_links(both_ways([leader], [returns]))
        refused = await scene.happens("alter_partition_refused", since=since)
        since = len(scene.trace)
        await cluster.heal_links([*isolated, *both_ways([leader], others)])
        await scene.until("partition_changed", topic=topic, isr=scene.ids(leader, stays, returns), since=since)
        await producer.close()
        await client.close()
        return refused.detail["error"]

    settings = {
        "controller.quorum.fetch.timeout.ms": "40000",
        "replica.lag.time.max.ms": "2000",
        "replica.socket.timeout.ms": "500",
        "replica.fetch.wait.max.ms": "200",
        "broker.session.timeout.ms": "120000",
    }
    assert played(scenario, settings=settings) == "unknown_topic_id"


LOAD = {
    "seed": 1,
    "time_limit": "6s",
    "partitions": 1,
    "producers": 8,
    "consumers": 0,
    "rate": 1500,
    "clients": {"pipeline": 50},
    "settings": {"min.insync.replicas": 2},
}
BACK_OVER_A_SLOW_LINK = [
    {"at": "1s", "for": "0.5s", "fault": "kill", "nodes": ["b3"]},
    {"at": "1.4s", "for": "4s", "fault": "packets", "nodes": ["b3"], "against": ["b1", "b2"], "delay_ms": 10},
    {"at": "2s", "for": "4s", "fault": "pause", "nodes": ["c3"], "when": {"joined_isr": "b3"}},
]
"""What is paused once b3 has joined is not needed: the pause shows when that was."""
HEALED_S = 5.4


@pytest.mark.parametrize("waits", [True, False])
def test_a_broker_that_returns_under_load_joins_the_isr_as_the_high_watermark_waits_for_it(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not waits:
        monkeypatch.setattr("images.broker.replication.leader._await_caught_up", lambda partition, *_: partition)
    outcome = run_in_simulation(parse(LOAD | {"faults": BACK_OVER_A_SLOW_LINK}))
    assert outcome.validity is Validity.VALID
    (joined_s,) = (each.detail["struck_s"] for each in outcome.injections if each.fault == "pause")
    assert (joined_s < HEALED_S) is waits
