"""Whole runs over SSH, on hosts as fresh as they come: checked, cleaned up after, and found again when killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from harness.exit_codes import BAD_USAGE, INTERRUPTED, NOT_CARRIED_OUT, VALID
from tests.machines.sshd import Lab, lab
from tests.machines.stretching import stretched

pytestmark = pytest.mark.docker

ROOT = Path(__file__).parents[2]
NAMES = ("b1", "b2", "b3", "c1")
TWO = ("b1", "c1")
ON_TWO = "brokers: 1\nsettings: {min.insync.replicas: 1}\ntime_limit: 2s\nfaults: none"
"""For what a host says and is left with; replicas are needed by the run with faults alone."""
FAULTS = """
time_limit: 16s
recovery_limit: 300s
rate: 30
faults:
  - {at: 1s, for: 2s, fault: partition, shape: isolate, nodes: [b1]}
  - {at: 4s, for: 2s, fault: pause, nodes: [b2]}
  - {at: 7s, for: 2s, fault: power-loss, nodes: [b3], keep: nothing}
  - {at: 10s, for: 2s, fault: clock, nodes: [b1], jump_ms: 700}
  - {at: 13s, for: 2s, fault: packets, nodes: [b2], loss: 0.3}
"""
FAMILIES = {"partition", "pause", "power-loss", "clock", "packets"}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A host for each of three brokers and a controller."""
    with lab(tmp_path_factory.mktemp("lab"), NAMES) as hosts:
        yield hosts


@pytest.fixture
def spec(four: Lab, tmp_path: Path) -> Path:
    """Runs on two of the hosts, without faults."""
    path = tmp_path / "lab.yaml"
    path.write_text(four.spec(ON_TWO, TWO))
    return path


def faultline(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, without a Docker engine: whatever others do there is not for these tests to see or to clean."""
    return subprocess.run(
        [sys.executable, "-m", "harness", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "DOCKER_HOST": "unix:///no-engine.sock"},
        check=False,
    )


def state_of(hosts: Lab) -> dict[str, str]:
    """Everything that a run may leave on a host."""
    look = (
        "ls -A /opt /run /var/lib /tmp /dev/shm | grep -v motd; mount | grep -i fuse; nft list tables | grep faultline;"
        "ps -e -o comm= | grep -v -e '^ps$' -e '^sh$' -e '^grep$' -e sshd; true"
    )
    return {name: hosts.shell(name, look) for name in hosts.hosts}


def test_a_run_with_every_kind_of_fault_is_judged_and_leaves_the_hosts_as_they_were(four: Lab, tmp_path: Path) -> None:
    before = state_of(four)
    path = tmp_path / "faults.yaml"
    for spec in stretched(yaml.safe_load(four.spec(FAULTS))):
        path.write_text(yaml.safe_dump(spec))
        done = faultline("run", path, "--store", tmp_path / "runs", "--json")
        assert done.returncode == VALID, done.stdout + done.stderr
        assert state_of(four) == before
        summary = json.loads(done.stdout)
        effective = {family for family, counts in summary["faults"].items() if counts["took_effect"]}
        if effective == FAMILIES:
            break
    assert effective == FAMILIES, summary["faults"]
    run = Path(summary["run"])
    for name in NAMES:
        assert (run / "nodes" / name / "node.log").exists()
        assert any((run / "nodes" / name / "data").rglob("*.log"))


def test_a_run_that_cannot_begin_is_one_line_and_leaves_nothing(four: Lab, spec: Path, tmp_path: Path) -> None:
    before = state_of(four)
    broken = spec.read_text().replace(four.hosts["c1"].key, str(tmp_path / "no-such-key"), 1)
    spec.write_text(broken)
    done = faultline("run", spec, "--store", tmp_path / "runs")
    assert done.returncode == NOT_CARRIED_OUT
    assert "no-such-key cannot be read: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
    assert state_of(four) == before


def test_a_port_in_use_ends_the_run_and_what_nodes_said_is_there(four: Lab, spec: Path, tmp_path: Path) -> None:
    before = state_of(four)
    listen = "import socket, time; s = socket.create_server(('0.0.0.0', 9092)); time.sleep(600)"
    four.containers["b1"].exec_run(["python3", "-c", listen], detach=True)
    try:
        done = faultline("run", spec, "--store", tmp_path / "runs")
    finally:
        four.shell("b1", "pkill -f '[c]reate_server'")
    assert done.returncode == NOT_CARRIED_OUT
    assert "b1" in done.stderr
    assert "Traceback" not in done.stderr
    log = tmp_path / "runs" / "latest" / "nodes" / "b1" / "node.log"
    assert "address already in use" in log.read_text()
    assert state_of(four) == before


@contextmanager
def running(spec: Path, store: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run of some length, from when clients and faults begin; killed if it still goes on after the block."""
    command = [sys.executable, "-m", "harness", "run", str(spec), "--store", str(store), "--time-limit", "120"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while not any(json.loads(path.read_text())["stage"] == "running" for path in store.glob("*/status.json")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait(300)


def test_an_interrupted_run_leaves_nothing(four: Lab, spec: Path, tmp_path: Path) -> None:
    before = state_of(four)
    with running(spec, tmp_path / "runs") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == INTERRUPTED
    assert state_of(four) == before


def test_what_a_killed_run_left_is_refused_told_and_cleaned(four: Lab, spec: Path, tmp_path: Path) -> None:
    before = state_of(four)
    with running(spec, tmp_path / "runs"):
        spared = faultline("clean", spec)
        assert spared.returncode == VALID
        assert spared.stdout.count("the run is still going") == len(TWO)
        refused = faultline("run", spec, "--store", tmp_path / "runs")
        assert refused.returncode == NOT_CARRIED_OUT
        assert " is in use by run " in refused.stderr
    assert state_of(four) != before

    again = faultline("run", spec, "--store", tmp_path / "runs")
    assert again.returncode == NOT_CARRIED_OUT
    assert "was left behind by it; in that case remove it: faultline clean" in again.stderr
    told = faultline("doctor", spec)
    assert told.returncode == NOT_CARRIED_OUT
    assert told.stdout.count(" is in use by run ") == len(TWO)

    cleaned = faultline("clean", spec, "--run", "another")
    assert "removed host" not in cleaned.stdout
    cleaned = faultline("clean", spec)
    assert cleaned.returncode == VALID, cleaned.stdout
    assert cleaned.stdout.count("removed host") == len(TWO)
    assert state_of(four) == before


def test_the_doctor_tries_every_host_and_leaves_it_as_it_was(four: Lab, spec: Path) -> None:
    before = state_of(four)
    done = faultline("doctor", spec)
    lines = [line for line in done.stdout.splitlines() if " host " in line]
    assert len(lines) == len(TWO)
    assert all(line.startswith("ok ") for line in lines), done.stdout
    assert done.returncode == VALID
    four.shell("b1", "mv /usr/sbin/nft /usr/sbin/nft.away")
    try:
        done = faultline("doctor", spec)
    finally:
        four.shell("b1", "mv /usr/sbin/nft.away /usr/sbin/nft")
    assert done.returncode == NOT_CARRIED_OUT
    (line,) = (line for line in done.stdout.splitlines() if " host b1 " in line)
    assert line.startswith("missing  host b1 ")
    assert "lacks nftables" in line
    assert "apt-get install fuse3" in line
    assert state_of(four) == before


def test_a_doctor_that_is_interrupted_leaves_the_hosts_as_they_were(four: Lab, spec: Path) -> None:
    before = state_of(four)
    command = [sys.executable, "-m", "harness", "doctor", str(spec)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        four.shell("b1", "for _ in $(seq 3000); do [ -d /opt/faultline-ssh ] && exit; sleep 0.02; done; exit 1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == INTERRUPTED
    finally:
        process.kill()
        process.wait(300)
    assert state_of(four) == before


def test_a_host_that_cannot_be_reached_is_a_line_of_doctor_and_of_clean(four: Lab, spec: Path) -> None:
    spec.write_text(spec.read_text().replace("'address'", "'port': 9, 'address'", 1))
    told = faultline("doctor", spec)
    assert told.returncode == NOT_CARRIED_OUT
    assert f"missing  host b1        no SSH at {four.hosts['b1'].address} port 9" in told.stdout
    cleaned = faultline("clean", spec)
    assert cleaned.returncode == NOT_CARRIED_OUT
    assert f"failed host b1 at {four.hosts['b1'].address}: no SSH at" in cleaned.stdout


def test_a_spec_without_enough_hosts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("environment: ssh\nhosts: {b1: {address: 192.0.2.1}}\n")
    done = faultline("run", path)
    assert done.returncode == BAD_USAGE
    missing = "b2, b3, c1, c2, c3"
    assert f"hosts: {missing} missing; environment ssh needs a host for each of b1, {missing}" in done.stderr
