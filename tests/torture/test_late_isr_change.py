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
from results.run.directory import RunDirectory


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
    profile = RunProfile((), leader_bias=0.5, held_share=0.5, keeps=())

    def drawn(replication_factor: int) -> list[LateIsrChange | None]:
        cluster = ClusterShape(
            ("b1", "b2", "b3"), ("c1",), partitions=2, replication_factor=replication_factor, min_insync_replicas=2
        )
        return [LateIsrChange.draw(Draws(Random(seed), cluster, profile)) for seed in range(20)]

    assert drawn(2) == [None] * 20
    assert {(fault.partition, fault.fenced) for fault in drawn(3) if fault is not None} == {
        (partition, fenced) for partition in (0, 1) for fenced in (False, True)
    }
