"""The boundary of a system under test holds for a second one, three processes that share nothing with the broker."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from checkers.evidence import RunEvidence
from checkers.registry import CHECKERS, applicable_checkers
from checkers.verdict import Validity
from harness.cluster import systems
from harness.cluster.layout import Layout
from harness.cluster.loopback import LoopbackCluster, loopback_layout
from harness.cluster.readiness import ReadinessProbe
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Listener
from harness.environments.machines.deployment import HOME, MachineDeployment
from harness.environments.machines.machine import Machine
from harness.environments.ssh import install
from harness.node_images.recipes import recipes
from harness.node_images.wheels import Target
from harness.spec import Spec
from images.trace import TraceEvent
from tests.systems.tiny.system import STOP_LIMIT_S, TINY

GENEROUS_S = 120.0


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS, TINY.name, TINY)  # type: ignore[misc]


def spec(**values: Any) -> Spec:
    return Spec(**{"system": "tiny", "environment": "docker", "brokers": 1, "controllers": 2, **values})


def test_systems_are_found_by_their_folder(tmp_path: Path) -> None:
    images = Path(systems.__file__).parents[2] / "images"
    shipped = systems._registered(images)
    assert "broker" in shipped
    assert {name: system.name for name, system in shipped.items()} == {name: name for name in shipped}
    assert systems._registered(tmp_path) == {}
    packed = tmp_path / "images.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for name in shipped:
            archive.write(images / name / "system.py", f"images/{name}/system.py")
    assert systems._registered(zipfile.Path(packed, "images/")).keys() == shipped.keys(), "as executors get them"


def test_a_spec_takes_settings_and_defaults_from_the_system() -> None:
    assert spec(settings={"greeting": "hello"}).settings == {**TINY.defaults, "greeting": "hello"}
    with pytest.raises(ValueError, match=r"^settings: the tiny system has no setting 'replica\.lag\.time\.max\.ms'$"):
        spec(settings={"replica.lag.time.max.ms": "1"})


def test_a_spec_refuses_a_simulation_that_the_system_lacks() -> None:
    with pytest.raises(ValueError, match=r"^environment: system tiny does not run in simulation; choose one of docker"):
        spec(environment="sim")


def test_a_spec_refuses_rule_switches_that_the_system_lacks() -> None:
    with pytest.raises(ValueError, match=r"^without: system tiny has no rule switches$"):
        spec(without=("maximal_isr",))


def test_checks_that_need_a_trace_are_left_out_and_say_why_when_asked() -> None:
    settings = spec().check_settings()
    of_traces = {"protocol", "raft"}
    assert of_traces <= CHECKERS.keys() - applicable_checkers(settings).keys()
    for name in of_traces:
        verdict = CHECKERS[name](RunEvidence(settings=settings))
        assert (verdict.checker, verdict.validity) == (name, Validity.UNKNOWN)
        assert "no protocol trace" in str(verdict.findings)


def test_images_and_hosts_get_what_the_system_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "wheels", lambda packages, target: [])
    *_, recipe = recipes([TINY])
    on_hosts = dict(install.contents(Target((3, 11), "x86_64", 36), TINY))
    for shipped in (recipe.inputs, on_hosts):
        assert {"tests/systems/tiny/node.py", "images/wire/connection.py"} <= shipped.keys()
        assert not [path for path in shipped if path.startswith("images/broker")]
    assert recipe.name == "faultline/tiny"
    assert recipe.inputs["requirements.txt"].startswith(b"kio")
    assert "images/base/agent/faultline-node" in on_hosts


def test_a_loopback_cluster_of_it_starts_answers_and_stops(tmp_path: Path) -> None:
    with LoopbackCluster(tmp_path, system=TINY, brokers=1, controllers=2) as cluster:
        assert len(cluster.pids) == 3
        assert "node 101 listens" in _eventually(lambda: cluster.log_of("c1"))
        assert cluster.stop("b1") == 0


def test_it_is_deployed_on_machines_stopped_within_its_own_limit_and_collected(tmp_path: Path) -> None:
    layout = configured(TINY, loopback_layout(1, 2), TINY.defaults, ())
    traced: list[TraceEvent] = []
    commands: list[str] = []
    machines = {node.name: LocalMachine(node.name, tmp_path / node.name, commands) for node in layout.nodes}
    asyncio.run(_run_on(layout, machines, traced, tmp_path / "collected"))
    assert machines["b1"].stop_limits_s == [STOP_LIMIT_S]
    assert (tmp_path / "collected/b1/data/started").read_text() == "1"
    assert "node 102 listens" in (tmp_path / "collected/c2/node.log").read_text()
    assert traced == []
    assert commands[-6:] == ["kill"] * 3 + ["collect"] * 3, "no file is read while a process writes"


async def _run_on(layout: Layout, machines: Mapping[str, LocalMachine], traced: list[TraceEvent], into: Path) -> None:
    async def provide() -> Mapping[str, Machine]:
        return machines

    listener = Listener(on_trace=lambda time_ns, node, event: traced.append(event), on_log=lambda node, line: None)
    deployment = MachineDeployment(layout, provide, seed=1, listener=listener, facts={})
    probe = ReadinessProbe({node.name: (node.host, node.port) for node in layout.brokers})
    try:
        await deployment.deploy()
        assert not await probe.until_ready(asyncio.get_running_loop().time() + GENEROUS_S)
        for machine in machines.values():
            assert await asyncio.to_thread(_eventually, machine.log_of_listener)
        assert await deployment.leaders() == {}
        assert await deployment.stop("b1") == {"stopped": 1, "killed": 0}
        assert deployment.crashes == []
        await deployment.collect(into)
    finally:
        probe.close()
        await deployment.close()
        for machine in machines.values():
            machine.end()


@dataclass
class LocalMachine:
    """A machine whose agent runs the node as a process of this machine, below a directory of its own."""

    name: str
    root: Path
    commands: list[str]
    """Commands of the agent on all machines, in order."""
    address: str = "127.0.0.1"
    stop_limits_s: list[float] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    stopped: bool = False

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> bytes:
        answer = await asyncio.to_thread(self._answer, list(argv[1:]), stdin.decode().replace(HOME, str(self.root)))
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    def log_of_listener(self) -> str:
        """The log of its node, empty until it listens, which may be long after it was started."""
        text = self.log.read_text() if self.log is not None else ""
        return text if "listens" in text else ""

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _answer(self, command: list[str], text: str) -> bytes | dict[str, Any]:
        request = json.loads(text) if text else {}
        self.commands.append(command[0])
        match command:
            case ["prepare"]:
                for path, contents in request["files"].items():
                    Path(path).parent.mkdir(parents=True, exist_ok=True)
                    Path(path).write_text(contents)
                boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
                lacks = {"nftables": "", "libfaketime": "", "netem": ""}
                return {"lacks": lacks, "kernel": "", "boot_id": boot_id}
            case ["start"]:
                argv = [sys.executable, *request["argv"][1:]]
                self.log = Path(request["log"])
                with self.log.open("ab") as log:
                    self.process = subprocess.Popen(argv, stdout=log, stderr=log)
                return {"incarnation": 1, "started": True}
            case ["wait", *_]:
                assert self.process is not None
                status = self.process.wait()
                return {"ended": {"expected": self.stopped, "error": "", "status": status, "time_ns": 0}}
            case ["stop" | "kill", *options]:
                assert self.process is not None
                self.stopped = True
                if options:
                    self.stop_limits_s.append(float(options[1]))
                    self.process.terminate()
                    self.process.wait(GENEROUS_S)
                    return {"stopped": 1, "killed": 0}
                self.process.kill()
                return {"stopped": 0, "killed": 1}
            case ["collect", *places]:
                packed = io.BytesIO()
                with tarfile.open(fileobj=packed, mode="w") as archive:
                    for place in places:
                        name, _, path = place.partition("=")
                        archive.add(path.replace(HOME, str(self.root)), arcname=name)
                return packed.getvalue()
        raise AssertionError(f"the agent is asked for {command}")


def _eventually(read: Any) -> str:
    deadline_s = time.monotonic() + GENEROUS_S
    while not (text := read()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return str(text)
