"""The fault `late-isr-change`: a leader's proposal is refused for a follower that may not join the ISR any more."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.late_isr_change import LateIsrChange
from nemesis.schedule import Schedule, ScheduledFault
from results.run.directory import RunDirectory

PROFILE = RunProfile((), leader_bias=0.5, held_share=0.5, keeps=())
PATIENT_LEADERS = {
    "broker.session.timeout.ms": 1_000,
    "broker.heartbeat.interval.ms": 250,
    "replica.lag.time.max.ms": 4_000,
}
"""They let a follower lag for longer than the controllers let it be silent."""


@pytest.mark.parametrize("seed", range(3))
def test_it_comes_about_where_leaders_are_more_patient_than_controllers(seed: int, tmp_path: Path) -> None:
    spec = parse({"seed": seed, "time_limit": "30s", "settings": PATIENT_LEADERS})
    shape = spec.cluster_shape(spec.broker_names, spec.controller_names)
    fault = LateIsrChange.draw(Draws(Random(seed), shape, PROFILE))
    assert fault is not None
    schedule = Schedule((ScheduledFault(2.0, fault.least_s(shape), fault),))
    (injection,) = run_in_simulation(spec.with_script(schedule), tmp_path).injections
    assert injection.took_effect
    assert "in time" not in injection.note


@pytest.mark.parametrize("fenced", [False, True])
def test_a_late_proposal_is_refused_and_the_partition_recovers(fenced: bool, tmp_path: Path) -> None:
    fault = {"at": "3s", "for": "14s", "fault": "late-isr-change", "fenced": fenced}
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": "20s", "brokers": 4, "faults": [fault]}), tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert [injection.took_effect for injection in outcome.injections] == [True]
    assert outcome.directory is not None
    trace = RunDirectory.open(outcome.directory).load().trace.to_pylist()
    answers = [json.loads(event["detail"])["error"] for event in trace if event["kind"] == "alter_partition_answered"]
    assert "ineligible_replica" in answers


def test_it_is_drawn_where_the_isr_is_large_enough_without_the_follower() -> None:
    def drawn(replication_factor: int) -> list[LateIsrChange | None]:
        cluster = ClusterShape(
            ("b1", "b2", "b3"), ("c1",), partitions=2, replication_factor=replication_factor, min_insync_replicas=2
        )
        return [LateIsrChange.draw(Draws(Random(seed), cluster, PROFILE)) for seed in range(20)]

    assert drawn(2) == [None] * 20
    assert {(fault.partition, fault.fenced) for fault in drawn(3) if fault is not None} == {
        (partition, fenced) for partition in (0, 1) for fenced in (False, True)
    }
