"""A life that begins after a clean stop and ends at once: the life after it is the successor of an unclean one."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from checkers.tables import trace_rows
from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker import broker_node
from images.broker.ports import Files
from images.broker.runtime.files import read_whole
from images.broker.runtime.shutdown_mark import CLEAN_SHUTDOWN, ShutdownMark
from nemesis.faults.disk import ShortLife
from nemesis.handle import ActiveEffects, FaultHandle
from nemesis.ports import Evidence, KeepUnsynced
from nemesis.situation import Situation
from results.run.directory import RunDirectory
from tests.nemesis.fake_cluster import FakeCluster
from tests.workloads import virtual_time

SHORT = ShortLife(("b2",), KeepUnsynced.NOTHING, life_ms=300.0)


def test_a_node_stops_starts_and_loses_its_power() -> None:
    cluster = FakeCluster()

    async def inject() -> Evidence:
        handle = FaultHandle(cluster, ActiveEffects(), Random(1), situation=Situation())
        await SHORT.inject(handle)
        await handle.heal()
        return handle.evidence

    assert SHORT.took_effect(virtual_time.run(inject()))
    assert [call.split()[0] for call in cluster.calls] == ["stop", "start", "kill", "start"], cluster.calls


def test_a_power_cut_is_told_from_one_after_the_clean_stop_although_the_node_had_ended_by_itself() -> None:
    cluster = FakeCluster()

    async def inject() -> Evidence:
        handle = FaultHandle(cluster, ActiveEffects(), Random(1), situation=Situation())
        start = await handle.stop("b2")
        assert "started_again" not in handle.evidence_of_node["b2"]
        await start()
        cluster.down.add("b2")
        await handle.power_off("b2", KeepUnsynced.NOTHING)
        await handle.heal()
        return handle.evidence_of_node["b2"]

    evidence = virtual_time.run(inject())
    assert (evidence["started_again"], evidence["killed"]) == (1, 0)


def test_a_life_of_less_than_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="life_ms"):
        ShortLife(life_ms=-1)


def _played(tmp_path: Path, duration: str = "3s") -> tuple[Outcome, list[int]]:
    """The outcome of a run with one short life of b2, and what each of its lives claims."""
    script = [{"at": "3s", "for": duration, "fault": "short-life", "nodes": ["b2"], "keep": "nothing", "life_ms": 60}]
    outcome = run_in_simulation(parse({"seed": 5, "time_limit": "10s", "faults": script}), tmp_path)
    assert outcome.directory is not None
    trace = RunDirectory.open(outcome.directory).load().trace
    return outcome, [
        each.broker_epoch for each in trace_rows(trace) if (each.kind, each.node) == ("node_started", "b2")
    ]


@pytest.mark.parametrize("duration", ["3s", "10ms"])
def test_the_life_after_a_short_one_claims_no_clean_shutdown(duration: str, tmp_path: Path) -> None:
    """Also where the fault lasts for less time than the life."""
    outcome, claims = _played(tmp_path, duration)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert [claim >= 0 for claim in claims] == [False, True, False]


def test_what_the_only_replica_loses_of_a_short_life_exceeds_the_fault_model() -> None:
    script = [{"at": "2s", "for": "8s", "fault": "short-life", "nodes": ["b1"], "life_ms": 3000}]
    settings = {"min.insync.replicas": "1"}
    spec = {"seed": 1, "time_limit": "15s", "rate": 100, "replication_factor": 1, "settings": settings}
    outcome = run_in_simulation(parse(spec | {"faults": script}))
    assert outcome.validity is Validity.UNKNOWN, outcome.verdicts


def test_a_mark_that_is_not_taken_back_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def left(files: Files) -> ShutdownMark:
        content = read_whole(files, CLEAN_SHUTDOWN)
        return ShutdownMark() if content is None else ShutdownMark(json.loads(content)["brokerEpoch"])

    monkeypatch.setattr(broker_node, "take_clean_shutdown", left)
    outcome, claims = _played(tmp_path)
    assert [claim >= 0 for claim in claims] == [False, True, True]
    assert "clean-claim-repeated" in {finding.kind for each in outcome.verdicts for finding in each.findings}
