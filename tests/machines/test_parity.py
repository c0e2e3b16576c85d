"""One table of specs, in the simulation and in Docker: both agree on verdicts and on which faults took effect."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from checkers.verdict import Validity
from harness.exit_codes import INVALID, VALID
from harness.runner.run import run_in_simulation
from harness.spec import loads, parse
from tests.machines.stretching import FACTORS, stretched

ROOT = Path(__file__).parents[2]
EVERY_KIND = "every kind of fault"
TOO_SOON = "a broker that acknowledges too soon"
IN_DOCKER_RUNS = {EVERY_KIND, TOO_SOON}
"""In Docker these rows are run by test_docker_runs, which looks at what the runs leave and lose, too."""
COMMON = "seed: 1\nrate: 40\nrecovery_limit: 300s\n"
RETURNS = {Validity.VALID: VALID, Validity.INVALID: INVALID}


@dataclass(frozen=True)
class Row:
    """The result of a spec in every environment."""

    spec: str
    verdict: Validity
    effective: frozenset[str]


def row(spec: str, *effective: str, verdict: Validity = Validity.VALID, controllers: int = 1) -> Row:
    limit = "" if "time_limit" in spec else "time_limit: 9s\n"
    return Row(f"controllers: {controllers}\n{limit}{spec}", verdict, frozenset(effective))


TABLE = {
    EVERY_KIND: row(
        "time_limit: 22s\n"
        "faults: [{at: 1, for: 2, fault: partition, shape: isolate, nodes: [b1]},"
        " {at: 4, for: 2, fault: pause, nodes: [leader/0]},"
        " {at: 7, for: 2, fault: pause, nodes: [leader/1]},"
        " {at: 10, for: 2, fault: power-loss, nodes: [b3], keep: nothing},"
        " {at: 13, for: 2, fault: clock, nodes: [b1], jump_ms: 900},"
        " {at: 13, for: 2, fault: clock, nodes: [c1], rate: 0.5},"
        " {at: 16, for: 2, fault: packets, nodes: [b2], loss: 0.3},"
        " {at: 19, for: 2, fault: kill, nodes: [b3]}]",
        "partition",
        "pause",
        "power-loss",
        "clock",
        "packets",
        "kill",
        controllers=3,
    ),
    "a leader cut off, one direction reset, a ring, then kills, then a power loss of a leader": row(
        "time_limit: 28s\n"
        "faults: [{at: 1, for: 3, fault: partition, shape: isolate, nodes: [leader/0]},"
        " {at: 5.5, for: 3, fault: partition, shape: one-way, nodes: [b1], against: [b2], flavour: reset},"
        " {at: 10, for: 3, fault: partition, shape: ring},"
        " {at: 15, for: 3, fault: kill, nodes: [leader/0]}, {at: 19, for: 3, fault: kill, nodes: [c1]},"
        " {at: 24, for: 3, fault: power-loss, nodes: [leader/0], keep: nothing}]",
        "partition",
        "kill",
        "power-loss",
        controllers=3,
    ),
    "lossy links, then torn writes, then a full disk, a slow one, a wiped one": row(
        "time_limit: 23s\n"
        "faults: [{at: 1, for: 4, fault: packets, nodes: [b1], loss: 0.2},"
        " {at: 6, for: 2, fault: power-loss, nodes: [b2], keep: torn},"
        " {at: 10, for: 3, fault: disk-full, nodes: [leader/0], room_bytes: 300},"
        " {at: 14, for: 3, fault: slow-disk, nodes: [brokers], delay_ms: 20},"
        " {at: 19, for: 3, fault: wipe-disk, nodes: [b2]}]",  # of b2 again: on a busy machine the two losses overlap
        "packets",
        "power-loss",
        "disk-full",
        "slow-disk",
        "wipe",
    ),
    "all brokers lose power once they have stopped, one while it stops, then all nodes at once": row(
        "time_limit: 26s\n"
        "settings: {flush.messages: 1, unclean.recovery.strategy: balanced}\n"
        "faults: [{at: 2, for: 3, fault: controlled-restart, nodes: [brokers], keep: nothing},"
        " {at: 10, for: 3, fault: power-loss, nodes: [b2], keep: nothing, stopping_ms: 50},"
        " {at: 18, for: 3, fault: power-loss, nodes: [all], keep: nothing}]",
        "admin",
        "power-loss",
    ),
    "the return of a replica that forgot": row(
        "time_limit: 12s\n"
        "faults: [{at: 1, for: 10, fault: unclean-return, victim: b3, keep: nothing, patience_ms: 2000}]",
        "scripted",
    ),
    TOO_SOON: row(
        "without: [ack_after_high_watermark]\nfaults:"
        " [{at: 1, for: 6, fault: partition, shape: leader-only, nodes: [leader/0]},"
        " {at: 2.5, for: 5, fault: power-loss, nodes: [leader/0], keep: nothing}]",
        "partition",
        "power-loss",
        verdict=Validity.INVALID,
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_spec_comes_to_its_result_in_the_simulation(name: str) -> None:
    expected = TABLE[name]
    outcome = run_in_simulation(loads(COMMON + expected.spec))
    assert outcome.validity is expected.verdict, outcome.verdicts
    assert frozenset(outcome.effective_families) == expected.effective


@pytest.mark.parametrize("name", TABLE)
def test_a_spec_for_a_busy_machine_has_longer_times_alone(name: str) -> None:
    plain, longer = (parse(spec) for spec in stretched(yaml.safe_load(COMMON + TABLE[name].spec)))
    assert plain == loads(COMMON + TABLE[name].spec)
    assert longer.time_limit_s == plain.time_limit_s * FACTORS[-1]
    times = [[(each.at_s, each.for_s) for each in spec.script] for spec in (plain, longer)]
    assert times[1] == [(at_s * FACTORS[-1], for_s * FACTORS[-1]) for at_s, for_s in times[0]]


@pytest.mark.docker
@pytest.mark.usefixtures("broker_images")
@pytest.mark.parametrize("name", [name for name in TABLE if name not in IN_DOCKER_RUNS])
def test_a_spec_comes_to_the_same_in_docker(name: str, tmp_path: Path) -> None:
    expected = TABLE[name]
    path = tmp_path / "spec.yaml"
    command = [sys.executable, "-m", "harness", "run", str(path), "--environment", "docker", "--json"]
    for spec in stretched(yaml.safe_load(COMMON + expected.spec)):
        path.write_text(yaml.safe_dump(spec))
        done = subprocess.run(
            [*command, "--store", str(tmp_path / "runs")], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert done.returncode == RETURNS[expected.verdict], done.stdout + done.stderr
        effective = {family for family, counts in json.loads(done.stdout)["faults"].items() if counts["took_effect"]}
        if effective == expected.effective:
            break
    assert effective == expected.effective
