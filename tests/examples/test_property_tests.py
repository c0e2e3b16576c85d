"""The strategies of `faultline.testing` shrink to little, and a failure leaves an incident that comes back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, find, given, settings

from faultline.testing import Spec, Undecided, assert_holds, specs
from harness.cli.main import main
from harness.spec import loads, parse
from nemesis import strategies
from nemesis.cluster_shape import ClusterShape

ROOT = Path(__file__).parents[2]
CLUSTER = ClusterShape(brokers=("b1", "b2", "b3"), controllers=("c1",), partitions=1)
TINY = {"time_limit": 3, "partitions": 1, "controllers": 1, "producers": 1, "consumers": 1, "faults": "none"}


def test_the_example_to_copy_passes() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(ROOT / "examples" / "test_my_cluster.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs(time_limit=7, acks="1", clients={"batch": 2}, settings={"min.insync.replicas": "2"}))
def test_the_fields_of_a_test_stay_and_every_spec_reads_back(spec: Spec) -> None:
    assert (spec.time_limit_s, spec.acks, spec.clients.batch, spec.min_insync_replicas) == (7, "1", 2, 2)
    assert loads(spec.to_yaml()) == spec


@settings(max_examples=5, deadline=None)
@given(specs(time_limit=7, faults="kill,pause"))
def test_families_of_faults_that_are_given_stay(spec: Spec) -> None:
    assert (spec.families, len(spec.script)) == (("kill", "pause"), 0)


def test_worlds_and_schedules_shrink_to_little() -> None:
    quick = settings(max_examples=100, derandomize=True, database=None)
    schedule = find(
        strategies.schedules(CLUSTER, 8.0, 2),
        lambda schedule: any(each.fault.name == "kill" for each in schedule),
        settings=quick,
    )
    (kill,) = schedule
    assert (kill.at_s, kill.for_s, kill.fault.nodes_named()) == (0.0, 0.1, ("b1",))
    world = find(strategies.worlds(), lambda world: world["partitions"] > 1, settings=quick)
    settled = {"brokers": 3, "controllers": 1, "partitions": 2, "clients": {}}
    assert world == {**settled, "settings": {"min.insync.replicas": "2"}}


def test_a_failure_writes_an_incident_that_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mutant = parse({**TINY, "name": "early-ack", "without": ["ack_after_high_watermark"]})
    with pytest.raises(AssertionError, match=r"protocol: a promise was broken\n(.|\n)*early-ack\.yaml"):
        assert_holds(mutant, directory=tmp_path / "found")
    incident = tmp_path / "found" / "early-ack.yaml"
    assert main(["incident", "run", str(incident), "--store", str(tmp_path / "runs")]) == 0
    assert "1 of 1 variants are as expected" in capsys.readouterr().out


def test_a_failure_is_told_where_its_incident_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    mutant = parse({**TINY, "without": ["ack_after_high_watermark"]})
    with pytest.raises(AssertionError, match=r"a promise was broken\n(.|\n)*without an incident: cannot write"):
        assert_holds(mutant, directory=tmp_path / "taken")


def test_a_run_that_decides_nothing_is_neither_a_pass_nor_a_failure(tmp_path: Path) -> None:
    script = [{"when": {"restarted": "b1"}, "for": 1, "fault": "kill", "nodes": ["b2"]}]
    with pytest.raises(Undecided, match="unknown"):
        assert_holds(parse({**TINY, "faults": script}), directory=tmp_path)
    assert list(tmp_path.iterdir()) == []
