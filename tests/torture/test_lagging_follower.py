"""The fault `lagging-follower`: who is never caught up leaves the ISR, however often it fetches, or without a fetch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.replication import leader
from images.broker.replication.partition import Follower, Limits, Partition, PartitionStep, ReplicaFetch
from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.lagging_follower import LaggingFollower

SOUND_RECORD, SOUND_TICK = leader._record_fetch, leader.on_tick


def struck(elected: bool) -> Outcome:
    fault = {"at": "3s", "for": "14s", "fault": "lagging-follower", "elected": elected}
    return run_in_simulation(parse({"seed": 1, "time_limit": "20s", "faults": [fault]}))


def caught_up(partition: Partition, now_ms: int, whom: Callable[[Follower], bool]) -> Partition:
    """The partition, whose leader takes some followers for caught up now."""
    if partition.leadership is None:
        return partition
    followers = (
        follower._replace(caught_up_ms=now_ms) if whom(follower) else follower
        for follower in partition.leadership.followers
    )
    return partition._replace(leadership=partition.leadership._replace(followers=tuple(followers)))


def any_fetch_counts(partition: Partition, fetch: ReplicaFetch, now_ms: int) -> Partition:
    return caught_up(SOUND_RECORD(partition, fetch, now_ms), now_ms, lambda follower: follower.id == fetch.replica)


def who_is_silent_does_not_lag(
    partition: Partition, active: Mapping[int, int], now_ms: int, limits: Limits
) -> PartitionStep:
    known = caught_up(partition, now_ms, lambda follower: follower.log_end is None)
    return SOUND_TICK(known, active, now_ms, limits)


@pytest.mark.parametrize("elected", [False, True])
def test_a_follower_that_lags_leaves_the_isr(elected: bool) -> None:
    outcome = struck(elected)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert [injection.took_effect for injection in outcome.injections] == [True]


@pytest.mark.parametrize(
    ("name", "mistake", "elected"),
    [("_record_fetch", any_fetch_counts, False), ("on_tick", who_is_silent_does_not_lag, True)],
)
def test_one_that_stays_is_found(name: str, mistake: object, elected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, name, mistake)
    found = {finding.kind for verdict in struck(elected).verdicts for finding in verdict.findings}
    assert "isr-shrink-overdue" in found


def test_it_is_drawn_where_the_isr_is_large_enough_without_the_follower() -> None:
    profile = RunProfile((), leader_bias=0.5, held_share=0.5, keeps=())

    def drawn(replication_factor: int) -> list[LaggingFollower | None]:
        cluster = ClusterShape(
            ("b1", "b2", "b3"), ("c1",), partitions=2, replication_factor=replication_factor, min_insync_replicas=2
        )
        return [LaggingFollower.draw(Draws(Random(seed), cluster, profile)) for seed in range(20)]

    assert drawn(2) == [None] * 20
    assert {(fault.partition, fault.elected) for fault in drawn(3) if fault is not None} == {
        (partition, elected) for partition in (0, 1) for elected in (False, True)
    }
