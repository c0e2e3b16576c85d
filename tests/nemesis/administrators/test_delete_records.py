"""Deletions of records ask once, at the moment that they are for, and tell what was asked for and what came of it."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from nemesis.cluster_shape import ClusterShape
from nemesis.faults.administrators.delete_records import DeleteRecords
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.ports import Link, both_ways
from nemesis.situation import Occurrence
from tests.nemesis.administrators.carried_out import carried_out
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads.virtual_time import run


def test_records_are_deleted_within_the_log_or_below_its_high_watermark_and_what_was_asked_is_told() -> None:
    offsets = set()
    for seed in range(60):
        cluster = FakeCluster()
        cluster.offsets_told = (4, 9)
        handle = FaultHandle(cluster, ActiveEffects(), Random(seed), "t", min_isr=2)
        run(DeleteRecords(0).inject(handle))
        (call,) = cluster.calls
        offset = int(call.split()[-1])
        offsets.add(offset)
        asked = {"to_high_watermark": 1.0} if offset == -1 else {"asked_below": float(offset)}
        assert handle.evidence == asked | {"deleted": 1.0}
    assert offsets >= {-1, 4, 5, 8}
    assert offsets <= {-1, *range(4, 10)}


@pytest.mark.parametrize(
    ("answer", "outcome", "bit"),
    [
        ("REQUEST_TIMED_OUT", "begun", True),
        ("UNANSWERED", "unanswered", False),
        ("OFFSET_OUT_OF_RANGE", "refused", False),
    ],
)
def test_a_deletion_bites_once_a_leader_has_begun_it(answer: str, outcome: str, bit: bool) -> None:
    cluster = FakeCluster()
    cluster.answers = [answer]
    handle = carried_out(DeleteRecords(0), cluster)
    assert handle.evidence[outcome] == 1.0
    assert DeleteRecords(0).took_effect(handle.evidence) is bit


def test_a_stalled_deletion_cuts_the_leader_off_first_and_asks_for_all_that_is_committed() -> None:
    cluster = FakeCluster()
    cuts: list[int] = []

    async def scenario() -> None:
        handle = FaultHandle(cluster, ActiveEffects(), Random(3), "t", min_isr=2)
        await DeleteRecords(0, stalled=True).inject(handle)
        cuts.append(len(cluster.cuts))
        await handle.heal()
        assert handle.evidence["to_high_watermark"] == 1.0
        assert DeleteRecords(0, stalled=True).took_effect({"held": 1.0})

    run(scenario())
    assert cuts == [4]
    assert cluster.calls == ["cut", "delete t-0 -1", "heal_links"]
    assert cluster.pristine


def test_a_deletion_after_a_move_is_asked_of_a_leader_that_the_one_before_does_not_reach() -> None:
    cluster = FakeCluster()
    handle = FaultHandle(cluster, ActiveEffects(), Random(3), "t", min_isr=2)
    cuts: set[Link] = set()

    async def scenario() -> None:
        await DeleteRecords(0, moved=True).inject(handle)
        cuts.update(cluster.cuts)
        await handle.heal()

    run(scenario())
    cut, moved, elected, deleted, *healing = cluster.calls
    coming, *others = moved.removeprefix("reassign t-0 ").split()
    assert coming != "b1"
    assert sorted([coming, *others]) == ["b1", "b2", "b3"]
    assert cuts == set(both_ways(["b1"], [coming]))
    assert (cut, elected, deleted.rpartition(" ")[0]) == ("cut", "elect t-0", "delete t-0")
    assert healing == ["reassign t-0 b1 b2 b3", "heal_links"]
    assert cluster.pristine


@pytest.mark.parametrize(("elected", "partition", "calls"), [(0.5, 0, 1), (0.5, 1, 0), (5.0, 0, 0)])
def test_a_deletion_after_an_election_is_sent_at_once_when_a_leader_of_its_partition_is_elected(
    elected: float, partition: int, calls: int
) -> None:
    """It waits no longer than the patience, two seconds."""
    cluster = FakeCluster()
    handle = FaultHandle(cluster, ActiveEffects(), Random(3), "t", min_isr=2)
    handle.situation.occurred(Occurrence.ELECTED, "b1", 0)

    async def scenario() -> None:
        injecting = asyncio.ensure_future(DeleteRecords(0, after_election=True).inject(handle))
        asyncio.get_running_loop().call_later(elected, handle.situation.occurred, Occurrence.ELECTED, "b2", partition)
        await asyncio.sleep(1)
        assert len(cluster.calls) == calls
        await injecting

    run(scenario())
    assert len(cluster.calls) == 1
    assert handle.notes == ([] if calls else ["not elected in time"])


def test_a_deletion_past_a_follower_waits_until_that_has_left_the_isr() -> None:
    cluster = FakeCluster()
    cluster.offsets_told = (0, 10)
    handle = FaultHandle(cluster, ActiveEffects(), Random(3), "t", min_isr=2)
    cuts: set[Link] = set()

    async def scenario() -> None:
        injecting = asyncio.ensure_future(DeleteRecords(0, behind=True).inject(handle))
        await asyncio.sleep(1)
        cuts.update(cluster.cuts)
        cluster.offsets_told = (0, 40)
        for follower in ("b2", "b3"):
            handle.situation.occurred(Occurrence.LEFT_ISR, follower, 0)
        await asyncio.sleep(1.5)
        assert any(call.startswith("delete") for call in cluster.calls)
        await injecting
        await handle.heal()

    run(scenario())
    assert any(cuts == set(both_ways(["b1"], [follower])) for follower in ("b2", "b3"))
    cut, deleted, healed = cluster.calls
    assert (cut, healed) == ("cut", "heal_links")
    assert 10 < int(deleted.removeprefix("delete t-0 ")) <= 40
    assert cluster.pristine


def test_a_broker_may_lose_its_power_once_records_are_deleted() -> None:
    fault = DeleteRecords(0, nodes=("b2",))
    assert fault.at_risk(ClusterShape(("b1", "b2", "b3"), (), partitions=1)) == ("b2",)
    cluster = FakeCluster()
    carried_out(fault, cluster)
    assert cluster.calls[0].startswith("delete t-0")
    assert [call.split()[:2] for call in cluster.calls[1:]] == [["kill", "b2"], ["start", "b2"]]


def test_until_a_leader_tells_offsets_nothing_is_deleted() -> None:
    cluster = FakeCluster()
    cluster.offsets_told = None
    handle = FaultHandle(cluster, ActiveEffects(), Random(3), "t", min_isr=2)

    async def scenario() -> None:
        injecting = asyncio.ensure_future(DeleteRecords(0).inject(handle))
        await asyncio.sleep(5)
        assert not cluster.calls
        cluster.offsets_told = (3, 3)
        await injecting

    run(scenario())
    assert cluster.calls == ["delete t-0 3"]


@pytest.mark.parametrize("waits", [False, True], ids=["asked once it is alone", "asked before"])
def test_a_deletion_of_a_leader_alone_cuts_its_followers_off_from_everybody(waits: bool) -> None:
    cluster = FakeCluster(controllers=3)
    cluster.offsets_told = (0, 40)
    handle = FaultHandle(cluster, ActiveEffects(), Random(3), "t", min_isr=2)
    handle.situation.isr_changed(0, ("b1", "b2", "b3"))
    cuts: set[Link] = set()

    async def scenario() -> None:
        injecting = asyncio.ensure_future(DeleteRecords(0, alone=True, waits=waits).inject(handle))
        await asyncio.sleep(1)
        assert (len(cluster.calls) == 2) is waits
        cuts.update(cluster.cuts)
        handle.situation.isr_changed(0, ("b1",))
        await injecting
        await handle.heal()

    run(scenario())
    assert cuts == set(both_ways(["b2", "b3"], ["b1", "c1", "c2", "c3"]))
    cut, deleted, healed = cluster.calls
    assert (cut, healed) == ("cut", "heal_links")
    assert 0 < int(deleted.removeprefix("delete t-0 ")) <= 40
    assert cluster.pristine


@pytest.mark.parametrize(
    ("moments", "message"),
    [({"waits": True}, "waits: only"), ({"alone": True, "behind": True}, "at one such moment only")],
)
def test_a_deletion_is_for_one_moment(moments: dict[str, bool], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeleteRecords(0, **moments)  # type: ignore[arg-type]
