"""Rules whose absence random faults do not meet, each played in a running cluster with and without the rule."""

from __future__ import annotations

import asyncio

import pytest

from nemesis.ports import DONE, Link, LinkQuality, both_ways
from tests.scenarios.one_partition import RECORDS, Scene, broken_promises, played


@pytest.mark.parametrize("off", [(), ("elect_from_isr_or_elr",)])
def test_a_replica_outside_the_isr_is_elected_without_committed_records_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    """The follower misses what the others commit while it is down, and is back when both are."""

    async def scenario(scene: Scene) -> list[int]:
        leader, other, follower = scene.replicas
        await scene.kill(follower)
        await scene.until("partition_changed", isr=scene.ids(leader, other))
        assert await scene.append() == "ok"
        await scene.kill(leader, other)
        since = len(scene.trace)
        await scene.deployment.start(follower)
        await scene.happens("broker_unfenced", broker=follower, since=since)
        await asyncio.sleep(5)
        return [event.offset for event in scene.events(follower, "became_leader", since)]

    assert played(scenario, *off) == ([RECORDS] if off else []), "the record at this offset is committed"


@pytest.mark.parametrize("off", [(), ("fenced_stay_out_of_isr",)])
def test_a_leader_proposes_a_follower_that_the_controllers_have_fenced_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    """The follower goes on to fetch from the leader, and reaches no controller."""

    async def scenario(scene: Scene) -> bool:
        leader, other, follower = scene.replicas
        since = len(scene.trace)
        await scene.deployment.cut(both_ways([follower], scene.deployment.controllers))
        await scene.until("partition_changed", isr=scene.ids(leader, other), since=since)
        await asyncio.sleep(3)
        assert await scene.append() == "ok"
        proposals = scene.events(leader, "isr_proposed", since)
        return any(scene.ids(follower) <= set(event.members) for event in proposals)

    assert played(scenario, *off) == bool(off)


@pytest.mark.parametrize("off", [(), ("follower_high_watermark_within_log",)])
def test_a_follower_elected_while_it_is_behind_calls_records_committed_that_it_lacks_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    """It catches up batch by batch, and each answer has the high watermark of the leader, which then falls."""

    async def scenario(scene: Scene) -> tuple[int, int]:
        leader, other, follower = scene.replicas
        await scene.deployment.wipe(follower)
        await scene.deployment.degrade([Link(leader, follower)], LinkQuality(delay_ms=200))
        since = len(scene.trace)
        await scene.deployment.start(follower)
        await scene.happens("appended", node=follower, since=since)
        await scene.deployment.cut([Link(leader, follower)])
        await scene.kill(leader, other)
        elected = await scene.until("became_leader", node=follower)
        offsets = await scene.deployment.admin.offsets("t", 0)
        assert offsets is not None
        return elected.log_end, offsets[1]

    settings = {
        "replica.fetch.response.max.bytes": "1",
        "unclean.leader.election.enable": "true",
        "min.insync.replicas": "1",
    }
    log_end, high_watermark = played(scenario, *off, settings=settings)
    assert 0 < log_end < RECORDS
    assert high_watermark == (RECORDS if off else log_end)


@pytest.mark.parametrize(("off", "end"), [((), RECORDS), (("recovery_keeps_last_known_elr",), 0)])
def test_a_second_recovery_elects_an_emptied_replica_exactly_without_the_rule(off: tuple[str, ...], end: int) -> None:
    """The first recovery elects one of two replicas that hold everything. Before the other one is in sync again, the
    elected one loses its disk."""

    async def scenario(scene: Scene) -> int:
        third, *both = scene.replicas
        since = len(scene.trace)
        await scene.kill(third)
        await scene.until("partition_changed", isr=scene.ids(*both), since=since)
        await scene.deployment.cut(both_ways(both[:1], both[1:]))
        await scene.kill(*both)
        await asyncio.sleep(15)
        since = len(scene.trace)
        for broker in both:
            await scene.deployment.start(broker)
        elected = await scene.until("became_leader", since=since)
        (first,) = (broker for broker in both if scene.ids(broker) == set(elected.members))
        await scene.deployment.wipe(first)
        since = len(scene.trace)
        await scene.deployment.start(first)
        return (await scene.until("became_leader", since=since)).offset

    assert played(scenario, *off, settings={"unclean.recovery.strategy": "balanced"}) == end


@pytest.mark.parametrize("off", [(), ("recovery_counts_current_lives_only",)])
def test_a_log_that_is_gone_counts_in_a_recovery_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    """One of two replicas answers that its log is whole, and restarts with an empty disk before the other answers."""

    async def scenario(scene: Scene) -> tuple[int, set[str]]:
        third, gone, slow = scene.replicas
        since = len(scene.trace)
        await scene.kill(third)
        await scene.until("partition_changed", isr=scene.ids(gone, slow), since=since)
        await scene.kill(gone, slow)
        await asyncio.sleep(50)
        since = len(scene.trace)
        await scene.deployment.start(slow)
        await scene.happens("broker_unfenced", broker=slow, since=since)
        await scene.deployment.start(gone)
        await scene.happens("broker_registered", broker=gone, since=since)
        await scene.deployment.pause(slow)
        await scene.happens("broker_unfenced", broker=gone, since=since)
        await asyncio.sleep(2)  # both have been asked, and one of them has answered
        await scene.deployment.stop(gone)
        await scene.deployment.wipe(gone)
        restarted = len(scene.trace)
        await scene.deployment.start(gone)
        await scene.happens("broker_unfenced", broker=gone, since=restarted)
        await scene.deployment.resume(slow)
        start = (await scene.until("became_leader", since=since)).offset
        return start, broken_promises(scene.trace) & {"recovery-outdated"}

    settings = {"unclean.recovery.strategy": "balanced", "broker.session.timeout.ms": "20000"}
    assert played(scenario, *off, settings=settings) == ((0, {"recovery-outdated"}) if off else (RECORDS, set()))


# --- reassignments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [(), ("reassignment_waits_for_isr",)])
def test_a_reassignment_completes_on_one_replica_exactly_without_the_rule(off: tuple[str, ...]) -> None:
    """The new replica cannot fetch, so what two replicas have acknowledged would be left on one."""

    async def scenario(scene: Scene) -> int:
        leader, _ = scene.replicas
        (new,) = (broker for broker in scene.deployment.brokers if broker not in scene.replicas)
        await scene.deployment.cut(both_ways([leader], [new]))
        since = len(scene.trace)
        assert (await scene.deployment.admin.reassign("t", 0, [leader, new])).outcome == DONE
        await asyncio.sleep(3)
        return min(len(event.members) for event in scene.changes(since))

    assert played(scenario, *off, replicas=2) == (1 if off else 2)


@pytest.mark.parametrize("off", [(), ("cancel_needs_min_isr",)])
def test_a_cancelled_reassignment_leaves_committed_records_on_one_replica_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    """One of the original replicas is down, and the new one has acknowledged a record instead of it."""

    async def scenario(scene: Scene) -> tuple[str, bool, set[str]]:
        leader, other = scene.replicas
        *_, new, absent = (broker for broker in scene.deployment.brokers if broker not in scene.replicas)
        await scene.kill(absent)
        since = len(scene.trace)
        assert (await scene.deployment.admin.reassign("t", 0, [leader, other, new, absent])).outcome == DONE
        await scene.until("partition_changed", member=new, since=since)
        await scene.kill(other)
        await scene.until("partition_changed", isr=scene.ids(leader, new), since=since)
        assert await scene.append() == "ok"
        outcome = (await scene.deployment.admin.reassign("t", 0, None)).outcome
        await asyncio.sleep(2)
        return outcome, set(scene.changes()[-1].members) == scene.ids(leader), broken_promises(scene.trace)

    outcome, alone, broken = played(scenario, *off, brokers=4, replicas=2)
    assert (outcome == DONE, alone) == (bool(off), bool(off))
    assert ("reassignment-shrinks-isr" in broken) is bool(off)


@pytest.mark.parametrize(("off", "end"), [((), RECORDS), (("removal_bumps_leader_epoch",), 0)])
def test_a_fetch_from_before_its_removal_counts_for_an_emptied_replica_exactly_without_the_rule(
    off: tuple[str, ...], end: int
) -> None:
    """The last fetch of a replica is on its way while the replica is taken off and put back, empty. Its answers are
    slow then, so that it joins the ISR by that fetch or not at all."""

    async def scenario(scene: Scene) -> int:
        leader, other, follower = scene.replicas
        admin = scene.deployment.admin
        await scene.deployment.degrade([Link(follower, leader)], LinkQuality(delay_ms=4000))
        await asyncio.sleep(1)
        assert (await admin.reassign("t", 0, [leader, other])).outcome == DONE
        await asyncio.sleep(0.5)
        since = len(scene.trace)
        assert (await admin.reassign("t", 0, [leader, other, follower])).outcome == DONE
        await scene.deployment.degrade([Link(leader, follower)], LinkQuality(delay_ms=20_000))
        await asyncio.sleep(6)
        joined = any(scene.ids(follower) <= set(event.members) for event in scene.changes(since))
        return 0 if joined else RECORDS

    settings = {"replica.lag.time.max.ms": "30000", "replica.socket.timeout.ms": "30000"}
    assert played(scenario, *off, settings=settings) == end
