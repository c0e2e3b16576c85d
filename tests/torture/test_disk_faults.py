"""Full and slow disks in simulated clusters: brokers end over one and wait for the other, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.runtime.fatal_error import FatalError
from tests.simulation.applied_mistake import replace_in

NO_SPACE = "[Errno 28] No space left on device"
ONE_SYNC_FAILS = {
    "seed": 1,
    "partitions": 1,
    "time_limit": "15s",
    "recovery_limit": "8s",
    "settings": {"flush.messages": 1, "replica.high.watermark.checkpoint.interval.ms": 5_000},
    "faults": [{"at": "6s", "for": "1s", "fault": "disk-full", "nodes": ["b2"], "failing_syncs": 1}],
}


def outcome_of(**fault: Any) -> Outcome:
    faults = [{"at": "3s", "for": "8s", **fault}]
    return run_in_simulation(parse({"seed": 1, "time_limit": "25s", "faults": faults}))


def figure(outcome: Outcome, checker: str, name: str) -> float:
    return next(verdict.figures[name] for verdict in outcome.verdicts if verdict.checker == checker)


@pytest.mark.parametrize("room_bytes", [0, 150, 3000])
def test_a_leader_with_a_full_disk_says_so_ends_and_comes_back(room_bytes: int) -> None:
    outcome = outcome_of(fault="disk-full", nodes=["leader/0"], room_bytes=room_bytes)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (injection,) = outcome.injections
    assert [dict(numbers) for numbers in injection.evidence["nodes"].values()] == [{"refused_writes": 1, "killed": 1}]
    (crash,) = outcome.recovery["crashes"]
    assert crash["error"] == f"{injection.nodes[0]} failed: {NO_SPACE}"
    assert figure(outcome, "processes", "crashes") == 0


def test_a_follower_whose_disk_fails_a_sync_says_so_ends_and_comes_back() -> None:
    outcome = run_in_simulation(parse(ONE_SYNC_FAILS))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (injection,) = outcome.injections
    assert injection.evidence["nodes"] == {"b2": {"refused_writes": 1, "killed": 1}}
    assert [crash["error"] for crash in outcome.recovery["crashes"]] == [f"b2 failed: {NO_SPACE}"]


def test_a_follower_that_goes_on_after_a_failed_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log takes no append any more, since nobody knows what is on the disk."""
    replica = "images.broker.replication.replica:Replica.replicate"
    replace_in(monkeypatch, replica, "except CorruptBatch as", by="except (CorruptBatch, OSError) as")
    outcome = run_in_simulation(parse(ONE_SYNC_FAILS))
    assert outcome.validity is Validity.INVALID
    assert "not-recovered" in {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}


def test_a_controller_with_a_full_disk_comes_back_as_well() -> None:
    full = {"at": "3s", "for": "8s", "fault": "disk-full", "nodes": ["controllers"]}
    change = {"at": "5s", "for": "2s", "fault": "kill", "nodes": ["leader/0"]}
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": "25s", "faults": [full, change]}))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert {crash["node"][0] for crash in outcome.recovery["crashes"]} == {"c"}


def test_a_vote_that_the_disk_refuses_is_not_given() -> None:
    # The PreVote answers of two controllers arrive one after the other, the second while the candidate is ending over
    # the disk that refused the vote for itself.
    everyone = [f"c{number}" for number in range(1, 6)]
    full = {"at": "6s", "for": "3s", "fault": "disk-full", "nodes": everyone, "room_bytes": 20}
    election = {"at": "6.1s", "for": "2s", "fault": "kill", "nodes": ["controller"]}
    spec = {"seed": 0, "rate": 5, "controllers": 5, "time_limit": "20s", "faults": [full, election]}
    outcome = run_in_simulation(parse(spec))
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert {crash["error"].split(" failed: ")[1] for crash in outcome.recovery["crashes"]} == {NO_SPACE}


@pytest.mark.parametrize("delay_ms", [2.0, 40.0, 200.0])
def test_a_leader_with_a_slow_disk_waits_as_long_as_its_writes_take(delay_ms: float) -> None:
    outcome = outcome_of(fault="slow-disk", nodes=["leader/0"], delay_ms=delay_ms)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (injection,) = outcome.injections
    assert injection.ended_ns is not None
    held_ms = (injection.ended_ns - injection.started_ns) / 1e6
    assert injection.evidence["delayed_operations"] > 20
    assert 20 * delay_ms < injection.evidence["delayed_ms"] <= delay_ms * injection.evidence["delayed_operations"]
    assert injection.evidence["delayed_ms"] <= held_ms + delay_ms, "a process waits for one write after the other"


def test_appends_to_a_slow_disk_are_acknowledged_later() -> None:
    fast = outcome_of(fault="slow-disk", nodes=["brokers"], delay_ms=0.001)
    slow = outcome_of(fault="slow-disk", nodes=["brokers"], delay_ms=120.0)
    assert slow.validity is Validity.VALID, slow.verdicts
    assert figure(slow, "availability", "append_ms_p99") > figure(fast, "availability", "append_ms_p99") + 120


@pytest.mark.parametrize("seed", range(4))
def test_full_and_slow_disks_together_are_withstood(seed: int) -> None:
    faults = ["disk-full", "slow-disk", "pause", "kill"]
    outcome = run_in_simulation(parse({"seed": seed, "time_limit": "30s", "faults": faults}))
    assert outcome.validity is Validity.VALID, outcome.verdicts


def test_a_broker_that_loses_its_power_before_it_has_opened_its_logs_again_has_broken_no_promise() -> None:
    """It syncs nothing in its clean stop, and has kept what the life before had not synced in the page cache alone."""
    kill = {"at": "4s", "for": "300ms", "fault": "kill", "nodes": ["b1"]}
    stop = {"at": "4600ms", "for": "1s", "fault": "failing-sync", "nodes": ["b1"]}
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": "8s", "faults": [kill, stop]}))
    assert outcome.injections[1].evidence["lost_bytes"] > 0
    assert outcome.injections[1].evidence["failed_syncs"] == 0
    broken = {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}
    assert broken <= {"fault-missed"}


def test_a_replica_that_could_not_be_made_is_gone_after_the_next_start() -> None:
    """A disk is full in the moment in which its broker makes a replica that a reassignment adds; while the broker is
    down, the reassignment is cancelled. The directory that was left behind counted as a log, empty for ever, of a
    partition whose other replicas have records: `logs` found them to differ. The varied seed 8000212 of `append`,
    reduced to its two faults."""
    script = [
        {"at": 3, "for": 2, "fault": "cancel-reassignment", "partition": 0, "patience_ms": 1000},
        {"at": 3.006, "for": 1, "fault": "failing-sync", "nodes": ["b2"], "failing_syncs": 2, "keep": "everything"},
    ]
    cluster = {"brokers": 3, "controllers": 1, "partitions": 1, "replication_factor": 2}
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": 6, **cluster, "faults": script}))
    full, reassigned = outcome.injections
    assert reassigned.evidence["reassigned"]
    assert full.evidence["failed_syncs"] == 1
    assert [crash["error"] for crash in outcome.recovery["crashes"]] == [f"b2 failed: {NO_SPACE}"]
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert figure(outcome, "logs", "logs") == 2


def test_a_broker_that_goes_on_after_a_failed_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync fails within an append, so that the log has a batch that nobody was told of. Until the process had ended
    it answered by that log, and came to lead with it. The varied seed 78000202 of both workloads, told with two
    faults."""
    script = [
        {"at": 2, "for": 6, "fault": "slow-disk", "nodes": ["brokers"], "delay_ms": 30},
        {"at": 3, "for": 6, "fault": "failing-sync", "nodes": ["brokers"], "failing_syncs": 1, "keep": "everything"},
    ]
    clients = {"producers": 4, "rate": 200, "clients": {"time_readers": 4, "clock_error": 0.3}}
    cluster = {"partitions": 1, "settings": {"flush.messages": 1}}
    spec = parse({"seed": 2, "time_limit": 10, **cluster, **clients, "faults": script})
    kept = run_in_simulation(spec)
    assert kept.validity is Validity.VALID, kept.verdicts
    monkeypatch.setattr(FatalError, "occurred", False)
    broken = run_in_simulation(spec)
    found = {finding.kind for verdict in broken.verdicts for finding in verdict.findings}
    assert found == {"offset-misstated"}
