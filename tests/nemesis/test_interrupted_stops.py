"""Power that is lost in the middle of a clean stop: what goes is tolerated as after any power loss, and no more."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from checkers.fault_model import node_failures
from checkers.tables import trace_rows
from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker import broker_node
from images.broker.broker_node import BrokerNode
from images.broker.replication.replica_manager import ReplicaManager
from images.broker.runtime.shutdown_mark import ShutdownMark
from nemesis.faults.disk import PowerLoss
from nemesis.fields import FieldError
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.ports import Evidence, KeepUnsynced
from nemesis.schedule import parse_script
from nemesis.situation import Situation
from results.explanation.standing.nodes import restart_steps
from results.run.directory import RunDirectory
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads import virtual_time

LOG = ("t", 0)
STOPPING = PowerLoss(("b2",), KeepUnsynced.NOTHING, stopping_ms=300.0)


def injected(cluster: FakeCluster, situation: Situation) -> tuple[Evidence, list[str]]:
    """What the fault measured, and its notes; it is healed."""

    async def inject() -> tuple[Evidence, list[str]]:
        handle = FaultHandle(cluster, ActiveEffects(), Random(1), situation=situation)
        await STOPPING.inject(handle)
        await handle.heal()
        return handle.evidence, handle.notes

    return virtual_time.run(inject())


def test_a_broker_is_told_to_stop_before_its_power_is_cut() -> None:
    cluster = FakeCluster()
    evidence, notes = injected(cluster, Situation())
    assert (STOPPING.took_effect(evidence), notes) == (True, [])
    assert cluster.calls == ["tell b2 to stop", "kill b2", "start b2"]


def test_a_stop_that_was_over_has_not_been_interrupted() -> None:
    cluster = FakeCluster()
    cluster.down.add("b2")
    evidence, notes = injected(cluster, Situation())
    assert evidence["lost_bytes"] > 0
    assert not STOPPING.took_effect(evidence)
    assert notes == ["b2: no clean stop was under way when its power was cut"]


def test_power_that_another_fault_left_nothing_to_stop_for_takes_what_was_not_synced_and_that_is_said() -> None:
    kill = {"at": 3, "for": 6, "fault": "kill", "nodes": ["b2"]}
    cut = {"at": 3.1, "for": 2, "fault": "power-loss", "nodes": ["b2"], "keep": "nothing", "stopping_ms": 300}
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": "12s", "faults": [kill, cut]}))
    (finding,) = next(verdict.findings for verdict in outcome.verdicts if verdict.checker == "faults")
    first, evidence = finding.lines
    assert first.startswith("power-loss at ")
    assert first.endswith(" on b2 did not do what it is for")
    assert "b2: no clean stop was under way when its power was cut" in evidence


def test_a_time_before_the_stop_is_refused() -> None:
    with pytest.raises(FieldError, match="stopping_ms: -5 is less than 0"):
        parse_script([{"at": 1, "for": 1, "fault": "power-loss", "stopping_ms": -5}])


def test_a_broker_has_to_regain_what_it_appended_while_it_stopped() -> None:
    situation = Situation()
    wholeness = situation.wholeness

    class Appends(FakeCluster):
        async def power_off(self, node: str, keep: KeepUnsynced, stopping_s: float | None = None) -> Evidence:
            wholeness.log_ends(node, LOG, 7)
            return await super().power_off(node, keep, stopping_s)

    wholeness.decided(LOG, ("b1", "b2"), ("b1", "b2"))
    wholeness.log_ends("b2", LOG, 5)
    injected(Appends(), situation)
    wholeness.registered("b2")
    wholeness.recovered("b2", LOG, 5)
    assert not wholeness.is_whole("b2")
    wholeness.log_ends("b2", LOG, 7)
    assert wholeness.is_whole("b2")


def interrupted_stops(path: Path) -> Outcome:
    """One broker after the other loses its power while it stops."""
    losses = [
        {"at": at, "for": 2, "fault": "power-loss", "nodes": ["victim/0"], "keep": "nothing", "stopping_ms": 800}
        for at in range(3, 20, 4)
    ]
    return run_in_simulation(parse({"seed": 2, "time_limit": "22s", "rate": 40, "faults": losses}), path)


def test_the_power_goes_while_logs_are_closed_and_what_goes_with_it_is_no_violation(tmp_path: Path) -> None:
    outcome = interrupted_stops(tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert sum(injection.took_effect for injection in outcome.injections) > 2
    assert outcome.directory is not None
    evidence = RunDirectory.open(outcome.directory).load()
    failures = node_failures(evidence.faults)
    assert any(failure.interrupted and failure.lost_bytes > 1_000 for failure in failures)

    opened = [event for event in trace_rows(evidence.trace) if event.kind == "log_recovered" and event.log_end > 0]
    assert {event.details()["clean"] for event in opened} == {True, False}, "some had been closed, and some had not"
    for number in (0, 1):
        assert not list(restart_steps(evidence.trace, failures, "faultline", number))


def test_a_broker_that_marks_its_stop_as_clean_before_it_closes_its_logs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a power loss of a broker that was told nothing nor one after its stop finds it."""

    def leave(broker: BrokerNode, replica_manager: ReplicaManager) -> None:
        broker_node.leave_clean_shutdown(broker._node_ports.files, ShutdownMark(broker._epoch))
        replica_manager.close()

    monkeypatch.setattr(BrokerNode, "_leave", leave)
    outcome = interrupted_stops(tmp_path)
    kinds = {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}
    assert outcome.validity is Validity.INVALID
    assert "clean-shutdown-lost-records" in kinds
