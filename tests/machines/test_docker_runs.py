"""Whole runs in Docker, as a user starts them: checked, cleaned up after, and clear in a line when they cannot be."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from harness.environments.docker.engine import RUN_LABEL, connect
from harness.exit_codes import INTERRUPTED, INVALID, NOT_CARRIED_OUT, UNKNOWN, VALID
from tests.machines.docker_proxy import docker_proxy
from tests.machines.stretching import stretched
from tests.machines.test_parity import COMMON, EVERY_KIND, TABLE, TOO_SOON

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("broker_images")]

ROOT = Path(__file__).parents[2]
NODES = ("b1", "b2", "b3", "c1", "c2", "c3")
FEW = "environment: docker\nbrokers: 1\ncontrollers: 1\nsettings: {min.insync.replicas: 1}\n"
"""Two containers instead of six, for runs that need neither replicas nor a quorum of controllers."""
FEW_NODES = ("b1", "c1")
ALL_OFF = """
environment: docker
controllers: 1
time_limit: 8s
recovery_limit: 120s
settings: {min.insync.replicas: 1}
faults:
  - {at: 4, for: 3, fault: power-loss-all, keep: nothing}
"""


class Attempt:
    """One `faultline run --environment docker`, from its end."""

    def __init__(self, store: Path, returncode: int, stdout: str, stderr: str) -> None:
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr
        self.directories = [path for path in store.iterdir() if not path.is_symlink()]

    @property
    def directory(self) -> Path:
        """The run's; a run that was refused leaves none."""
        (directory,) = self.directories
        return directory

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "status.json").read_text())
        return found

    @property
    def complaint(self) -> str:
        """The one line that says why it was not carried out."""
        complaints = [line for line in self.stderr.splitlines() if line.startswith("faultline: ")]
        assert len(complaints) == 1, self.stderr
        assert "Traceback" not in self.stderr
        return complaints[0].removeprefix("faultline: ")


def attempt(spec: str, directory: Path, *options: str, engine: str = "") -> Attempt:
    directory.mkdir(exist_ok=True)
    (directory / "spec.yaml").write_text(spec)
    store = directory / "runs"
    store.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "harness", "run", str(directory / "spec.yaml"), "--store", str(store)]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, cwd=ROOT, env=_environment(engine), check=False
    )
    return Attempt(store, done.returncode, done.stdout, done.stderr)


def attempt_until(returncode: int, spec: str, directory: Path) -> Attempt:
    """The first attempt that ends so: on a busy machine faults may come too late to lose anything."""
    for number, stretched_spec in enumerate(stretched(yaml.safe_load(spec))):
        done = attempt(yaml.safe_dump(stretched_spec), directory / str(number), "--json")
        if done.returncode == returncode:
            break
    assert done.returncode == returncode, done.stdout + done.stderr
    return done


def _environment(engine: str) -> dict[str, str]:
    return {**os.environ, **({"DOCKER_HOST": engine} if engine else {})}


def left_of(run: str) -> list[str]:
    """The containers and networks of a run that the engine still has."""
    client = connect()
    try:
        marked = {"label": f"{RUN_LABEL}={run}"}
        containers = client.containers.list(all=True, filters=marked, ignore_removed=True)
        return [item.name for item in (*containers, *client.networks.list(filters=marked))]
    finally:
        client.close()


def processes_of_nodes() -> list[str]:
    """Command lines of file systems and brokers of ours on this machine."""
    said = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if "/var/lib/faultline/" in line]


def _stored(directory: Path) -> dict[tuple[int, int], set[int]]:
    """(partition, offset) → values that the replicas' collected logs hold there."""
    stored: dict[tuple[int, int], set[int]] = {}
    for row in pq.read_table(directory / "replicas.parquet").to_pylist():
        stored.setdefault((row["partition"], row["offset"]), set()).add(row["value"])
    return stored


def _lost(directory: Path) -> list[dict[str, str]]:
    with (directory / "lost.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_run_with_every_kind_of_fault_is_valid_shows_that_each_bit_and_leaves_nothing(tmp_path: Path) -> None:
    expected = TABLE[EVERY_KIND]
    plain = {"environment": "docker", **yaml.safe_load(COMMON + expected.spec)}
    for number, spec in enumerate(stretched(plain)):
        done = attempt(yaml.safe_dump(spec), tmp_path / str(number), "--json")
        assert done.returncode == VALID, done.stdout + done.stderr
        effective = {family for family, counts in done.summary["faults"].items() if counts["took_effect"]}
        if effective == expected.effective:
            break
    assert effective == expected.effective
    facts = done.status["facts"]
    assert left_of(facts["containers"]) == []
    assert facts["image_digest"].startswith("sha256:")
    for node in NODES:
        assert (done.directory / "nodes" / node / "node.log").stat().st_size
        assert any((done.directory / "nodes" / node / "data").rglob("*.log"))
    assert "plotly" in (done.directory / "report.html").read_text()


def test_records_acknowledged_too_soon_are_told_lost_by_value_and_offset(tmp_path: Path) -> None:
    expected = TABLE[TOO_SOON]
    done = attempt_until(INVALID, f"environment: docker\n{COMMON}{expected.spec}", tmp_path)
    assert {family for family, counts in done.summary["faults"].items() if counts["took_effect"]} == expected.effective
    lost, stored = _lost(done.directory), _stored(done.directory)
    assert lost
    for record in lost:
        where = (int(record["partition"]), int(record["offset"]))
        assert int(record["value"]) not in stored.get(where, set()), f"{record} is in a replica's log"
    history = pq.read_table(done.directory / "history.parquet").to_pylist()
    acknowledged = {
        (row["partition"], row["offset"], row["value"])
        for row in history
        if row["kind"] == "append" and row["outcome"] == "ok"
    }
    assert {tuple(int(record[name]) for name in ("partition", "offset", "value")) for record in lost} <= acknowledged


def test_with_one_replica_in_sync_enough_a_power_loss_of_all_is_told_as_what_was_lost(tmp_path: Path) -> None:
    done = attempt_until(UNKNOWN, ALL_OFF, tmp_path)
    loss = next(check for check in done.summary["checks"] if check["checker"] == "loss")
    assert {finding["kind"] for finding in loss["findings"]} >= {"fault-model-exceeded"}
    lost, stored = _lost(done.directory), _stored(done.directory)
    assert len(lost) == loss["figures"]["lost"] > 0
    assert not any(int(r["value"]) in stored.get((int(r["partition"]), int(r["offset"])), set()) for r in lost)


STARTING = '"argv": ["start"]'
"""In the request that has a container start its node."""


def container_of(directory: Path, node: str) -> Any:
    """The container of a node, of the one run whose directory is here."""
    (status,) = (directory / "runs").glob("2*/status.json")
    return connect().containers.get(f"{json.loads(status.read_text())['facts']['containers']}-{node}")


@contextmanager
def going(directory: Path, engine: str = "", time_limit_s: int = 120) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A long run, from when clients and faults began; killed if it still goes on after the block."""
    store = directory / "runs"
    (directory / "going.yaml").write_text(f"{FEW}faults: [kill, pause]\n")
    command = [sys.executable, "-m", "harness", "run", str(directory / "going.yaml")]
    # A process that a shell starts in the background ignores SIGINT, and so do its children.
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *command, "--store", str(store), "--time-limit", str(time_limit_s)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(engine),
    )
    try:
        deadline = time.monotonic() + 300
        while not any(json.loads(path.read_text())["stage"] == "running" for path in store.glob("*/status.json")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process, next(path.parent for path in store.glob("*/status.json") if not path.parent.is_symlink())
    finally:
        process.kill()
        process.communicate(timeout=300)


def containers_of(directory: Path) -> str:
    run: str = json.loads((directory / "status.json").read_text())["facts"]["containers"]
    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_in_the_engine(tmp_path: Path, number: signal.Signals) -> None:
    with going(tmp_path) as (process, directory):
        run = containers_of(directory)
        assert len(left_of(run)) == len(FEW_NODES) + 1
        process.send_signal(number)
        assert process.wait(300) == INTERRUPTED
    assert left_of(run) == []
    for node in FEW_NODES:
        assert (directory / "nodes" / node / "node.log").exists()


def test_what_a_killed_run_left_is_judged_as_far_as_it_goes_and_cleaned(tmp_path: Path) -> None:
    def faultline(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "harness", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    with going(tmp_path) as (process, directory):
        run = containers_of(directory)
        spared = faultline("clean", "--run", run)
        assert spared.stdout.count("the run is still going") == len(FEW_NODES) + 1, spared.stdout
        process.kill()
        process.wait(300)
    assert len(left_of(run)) == len(FEW_NODES) + 1
    checked = faultline("check", directory)
    assert checked.returncode == UNKNOWN, checked.stdout + checked.stderr
    assert "the run did not end" in checked.stdout
    cleaned = faultline("clean", "--run", run)
    assert cleaned.returncode == VALID, cleaned.stdout
    assert left_of(run) == []
    assert not any(run in line for line in processes_of_nodes())


def test_an_engine_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = attempt("time_limit: 5s\nenvironment: docker\n", tmp_path, engine=f"unix://{tmp_path}/none.sock")
    assert done.returncode == NOT_CARRIED_OUT
    assert done.complaint.startswith("no Docker engine answers: start it")
    assert not done.directories


def test_an_image_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    words = {"faultline/broker": "faultline/absent", "faultline%2Fbroker": "faultline%2Fabsent"}
    with docker_proxy(tmp_path, words=words) as engine:
        done = attempt(f"{FEW}time_limit: 5s\n", tmp_path, engine=engine.address)
    assert done.returncode == NOT_CARRIED_OUT
    assert done.complaint == "there is no image faultline/broker; build it: faultline images build"
    assert not done.directories


def test_an_engine_without_fuse_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with docker_proxy(tmp_path, words={"/dev/fuse": "/dev/none"}) as engine:
        done = attempt(f"{FEW}time_limit: 5s\n", tmp_path, engine=engine.address)
    assert done.returncode == NOT_CARRIED_OUT
    assert "the engine's machine has no /dev/fuse" in done.complaint
    assert not done.directories
    (run,) = engine.runs
    assert left_of(run) == []


def test_a_port_in_use_is_one_line_and_what_the_node_said_is_there(tmp_path: Path) -> None:
    def take_the_port() -> None:
        listen = "import socket, time; s = socket.create_server(('0.0.0.0', 9092)); print(flush=True); time.sleep(600)"
        command = ["docker", "exec", container_of(tmp_path, "b1").name, "python3", "-c", listen]
        listener = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert listener.stdout is not None
        assert listener.stdout.readline(), "it does not listen"

    with ExitStack() as stack, docker_proxy(tmp_path, before={STARTING: take_the_port}) as engine:
        done = attempt(f"{FEW}time_limit: 5s\n", tmp_path, engine=engine.address)
    assert done.returncode == NOT_CARRIED_OUT
    assert "b1" in done.complaint
    assert "address already in use" in (done.directory / "nodes" / "b1" / "node.log").read_text()
    assert left_of(containers_of(done.directory)) == []


def test_a_node_that_never_becomes_ready_is_one_line_and_what_it_said_is_there(tmp_path: Path) -> None:
    def shut_out() -> None:
        rules = "table inet shut { chain in { type filter hook input priority 0; policy drop; }; }"
        status, said = container_of(tmp_path, "b1").exec_run(["nft", rules])
        assert status == 0, said

    with docker_proxy(tmp_path, before={STARTING: shut_out}) as engine:
        done = attempt(f"{FEW}ready_limit: 45s\n", tmp_path, engine=engine.address)
    assert done.returncode == NOT_CARRIED_OUT
    assert "not ready" in done.complaint
    assert "b1 does not answer" in done.complaint
    assert (done.directory / "nodes" / "b1" / "node.log").stat().st_size
    assert left_of(containers_of(done.directory)) == []


def test_an_engine_that_goes_away_ends_the_run_in_one_line(tmp_path: Path) -> None:
    with docker_proxy(tmp_path) as engine, going(tmp_path, engine.address, 15) as (process, directory):
        run = containers_of(directory)
        engine.cut_off()
        _, stderr = process.communicate(timeout=600)
    try:
        assert process.returncode == NOT_CARRIED_OUT
        assert "faultline clean" in stderr
        assert len([line for line in stderr.splitlines() if line.startswith("faultline: ")]) == 1, stderr
        assert "Traceback" not in stderr
    finally:
        subprocess.run([sys.executable, "-m", "harness", "clean", "--run", run], cwd=ROOT, check=True)
    assert left_of(run) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", tmp_path / "runs"], check=True)
    try:
        done = attempt("environment: docker\ncontrollers: 1\ntime_limit: 6s\nrate: 150\nfaults: none\n", tmp_path)
        assert done.returncode == NOT_CARRIED_OUT
        assert "No space left on device" in done.complaint
        assert left_of(containers_of(done.directory)) == []
    finally:
        subprocess.run(["umount", tmp_path / "runs"], check=True)
