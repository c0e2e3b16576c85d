"""Followers of a leadership that moves to and fro lack the diverging epoch of their leader, and converge."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.log.divergence import truncation_offset
from images.broker.log.leader_epochs import EpochCache, EpochEnd
from images.broker.replication import follower

MOVED: dict[str, Any] = {"at": "2s", "for": "12s", "fault": "move-leadership", "moves": 6}


@pytest.mark.parametrize("workload", ["append", "groups"])
def test_followers_that_lack_the_diverging_epoch_of_their_leader_converge(
    workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leadership goes to and fro between two brokers that do not fetch from each other, each of which appends."""
    lacking: list[EpochEnd] = []

    def spied(epochs: EpochCache, log_end: int, diverging: EpochEnd) -> int:
        own = epochs.end_offset_for(diverging.epoch, log_end)
        if not own.undefined and own.epoch != diverging.epoch:
            lacking.append(diverging)
        return truncation_offset(epochs, log_end, diverging)

    monkeypatch.setattr(follower, "truncation_offset", spied)
    world = {"seed": 1, "time_limit": "16s", "partitions": 1, "workload": workload}
    outcome = run_in_simulation(parse({**world, "faults": [MOVED | {"cut": True}]}))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (injection,) = outcome.injections
    assert injection.evidence["moved"] >= 3
    assert lacking


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        {"fault": "kill", "nodes": ["b3"]},
        {"fault": "pause", "nodes": ["leader/0"]},
        {"fault": "raise-min-isr"},
        {"fault": "cancel-reassignment", "partition": 0},
        {"fault": "partition", "shape": "isolate", "nodes": ["b2"]},
    ],
    ids=lambda other: other["fault"],
)
def test_leadership_moves_while_other_faults_are_active(other: dict[str, Any], cut: bool) -> None:
    """Also while a replica is out of the ISR: it is not elected."""
    world = {"seed": 4, "time_limit": "16s", "partitions": 1}
    faults = [{"at": "1s", "for": "10s", **other}, MOVED | {"cut": cut}]
    outcome = run_in_simulation(parse({**world, "faults": faults}))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.recovery["unhealed"] == []
    (moved,) = (injection for injection in outcome.injections if injection.fault == "move-leadership")
    assert moved.took_effect is (other["fault"] != "cancel-reassignment"), moved
