"""The fault `lagging-follower`: who is never caught up leaves the ISR, however often it fetches, or without a fetch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.replication import leader
from images.broker.replication.partition import Limits, Partition, PartitionStep
from images.broker.replication.replica import Replica
from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.lagging_follower import LaggingFollower
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.situation import Situation
from tests.nemesis.fake_cluster import FakeCluster
from tests.torture.mistakes.caught_up import caught_up, caught_up_by_any_fetch
from tests.workloads.virtual_time import run

SOUND_TICK = leader.on_tick


def struck(elected: bool, **facts: Any) -> Outcome:
    fault = {"at": "3s", "for": "14s", "fault": "lagging-follower", "elected": elected, **facts}
    clients = {"idle_partitions": 1}
    return run_in_simulation(parse({"seed": 1, "time_limit": "20s", "faults": [fault], "clients": clients}))


def silent_ones_do_not_lag(patch: pytest.MonkeyPatch) -> None:
    """A leader takes followers for caught up that it has not heard of."""

    def tick(partition: Partition, active: Mapping[int, int], now_ms: int, limits: Limits) -> PartitionStep:
        known = caught_up(partition, now_ms, lambda follower: follower.log_end is None)
        return SOUND_TICK(known, active, now_ms, limits)

    patch.setattr(leader, "on_tick", tick)


def lag_is_measured_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """A leader measures by a clock that may be stepped how long ago its followers were caught up."""
    patch.setattr(Replica, "_now_ms", lambda self: self._record_ms())


@pytest.mark.parametrize("stepped_back", [False, True])
@pytest.mark.parametrize("elected", [False, True])
def test_a_follower_that_lags_leaves_the_isr(elected: bool, stepped_back: bool) -> None:
    outcome = struck(elected, stepped_back=stepped_back)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert [injection.took_effect for injection in outcome.injections] == [True]


@pytest.mark.parametrize("elected", [False, True])
def test_it_leaves_where_its_leader_is_more_patient_than_the_controllers(elected: bool) -> None:
    settings = {
        "broker.session.timeout.ms": 1_000,
        "broker.heartbeat.interval.ms": 250,
        "replica.lag.time.max.ms": 4_000,
    }
    spec = parse({"seed": 1, "time_limit": "20s", "settings": settings})
    shape, profile = spec.cluster_shape(spec.broker_names, spec.controller_names), RunProfile((), 0.5, 0.5, ())
    drawn = (LaggingFollower.draw(Draws(Random(seed), shape, profile)) for seed in range(20))
    fault = next(fault for fault in drawn if fault is not None and fault.elected is elected)
    schedule = Schedule((ScheduledFault(2.0, fault.least_s(shape), fault),))
    (injection,) = run_in_simulation(spec.with_script(schedule)).injections
    assert injection.took_effect, injection.note


@pytest.mark.parametrize("elected", [False, True])
def test_of_an_idle_partition_only_a_follower_lags_that_its_leader_never_hears_of(elected: bool) -> None:
    (injection,) = struck(elected, partition=1).injections
    assert (injection.took_effect, injection.evidence["intercepted"] > 0) == (elected, True)


@pytest.mark.parametrize(
    ("claimed", "answer", "note", "intercepted"),
    [(True, "", "leadership is not moved", 0), (False, "REASSIGNMENT_IN_PROGRESS", "b3 did not come to lead", 1)],
    ids=["another fault moves it", "it is refused"],
)
def test_where_leadership_is_not_moved_nothing_is_lost_for_long(
    claimed: bool, answer: str, note: str, intercepted: int
) -> None:
    cluster, situation, effects = FakeCluster(), Situation(), ActiveEffects()
    cluster.answers = [answer]
    situation.isr_changed(0, ("b1", "b2", "b3"))
    other, handle = (FaultHandle(cluster, effects, Random(1), "t", situation=situation) for _ in range(2))
    if claimed:
        other.claim_placement(0)

    async def scenario() -> None:
        await LaggingFollower(0, elected=True, patience_ms=500.0).inject(handle)
        await handle.heal()

    run(scenario())
    assert len(cluster.intercepted_by) == intercepted
    assert any(note in line for line in handle.notes), handle.notes
    assert not LaggingFollower().took_effect(handle.evidence)


@pytest.mark.parametrize(
    ("mistaken", "elected", "stepped_back"),
    [
        (caught_up_by_any_fetch, False, False),
        (silent_ones_do_not_lag, True, False),
        (lag_is_measured_by_the_wall_clock, False, True),
    ],
)
def test_one_that_stays_is_found(
    mistaken: Callable[[pytest.MonkeyPatch], None], elected: bool, stepped_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistaken(monkeypatch)
    outcome = struck(elected, stepped_back=stepped_back)
    found = {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}
    assert "isr-shrink-overdue" in found


def test_it_is_drawn_where_the_isr_is_large_enough_without_the_follower_and_where_clients_write() -> None:
    profile = RunProfile((), leader_bias=0.5, held_share=0.5, keeps=())

    def drawn(replication_factor: int, always_written: bool = True) -> list[LaggingFollower | None]:
        cluster = ClusterShape(
            ("b1", "b2", "b3"),
            ("c1",),
            partitions=2,
            replication_factor=replication_factor,
            min_insync_replicas=2,
            always_written=always_written,
        )
        return [LaggingFollower.draw(Draws(Random(seed), cluster, profile)) for seed in range(20)]

    assert drawn(2) == [None] * 20
    assert {(fault.partition, fault.elected) for fault in drawn(3) if fault is not None} == {
        (partition, elected) for partition in (0, 1) for elected in (False, True)
    }
    assert {(fault.partition, fault.elected) for fault in drawn(3, always_written=False) if fault is not None} == {
        (0, False),
        (0, True),
        (1, True),
    }
