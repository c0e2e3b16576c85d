"""Apache Kafka as a system under test: its configuration, its images, what specs may ask of it. No JVM runs here."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.cluster.layout import Layout, cluster_layout
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Listener
from harness.environments.machines.deployment import MachineDeployment
from harness.environments.ssh import install
from harness.node_images.jars import CHECKSUMS, JarsError, jars
from harness.node_images.recipes import recipes
from harness.node_images.wheels import Target
from harness.spec import Spec, SpecError, loads, parse
from nemesis.faults.clock import Clock
from nemesis.ports import EnvironmentCapability

KAFKA = SYSTEMS["kafka"]
COORDINATES = ("org.example:log:1.0", "org.example:tools:1.0")
FAKE_MAVEN = """#!/bin/sh
for word; do case "$word" in -DoutputDirectory=*) out="${word#*=}";; esac; done
grep -q 'tools</artifactId>' pom.xml || exit 1
mkdir -p "$out" && echo one > "$out/log-1.0.jar" && echo two > "$out/tools-1.0.jar"
"""


def spec(**values: Any) -> Spec:
    return parse({"system": "kafka", "environment": "docker", **values})


def properties(layout: Layout, node: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in layout.properties[node].splitlines())


def test_brokers_and_controllers_listen_each_for_their_own() -> None:
    layout = configured(KAFKA, cluster_layout(2, 2), {"retention.ms": "5000", "some.setting": "7"}, ())
    broker, controller = properties(layout, "b2"), properties(layout, "c1")
    assert (broker["process.roles"], broker["listeners"]) == ("broker", "PLAINTEXT://b2:9092")
    assert (controller["process.roles"], controller["listeners"]) == ("controller", "CONTROLLER://c1:9093")
    assert broker["controller.quorum.voters"] == controller["controller.quorum.voters"] == "101@c1:9093,102@c2:9093"
    assert broker["controller.listener.names"] == "CONTROLLER"
    assert broker["log.retention.ms"] == "5000", "by Kafka's broker name"
    assert broker["some.setting"] == "7", "Kafka decides on settings that are unknown here"
    assert not [name for name in broker if name.startswith("faultline")]


def test_without_controllers_the_brokers_are_the_quorum() -> None:
    chosen = spec(controllers=0)
    layout = configured(chosen.deployed_system, cluster_layout(3, 0), chosen.settings, ())
    node = properties(layout, "b1")
    assert node["process.roles"] == "broker,controller"
    assert node["listeners"] == "PLAINTEXT://b1:9092,CONTROLLER://b1:9093"
    assert node["controller.quorum.voters"] == "1@b1:9093,2@b2:9093,3@b3:9093"
    with pytest.raises(
        SpecError, match=r"^controllers: 0 is less than 1, since the brokers of system broker are none$"
    ):
        parse({"controllers": 0})


def test_a_spec_records_the_release_and_repeats_it() -> None:
    chosen = spec(version="3.9.1", features={"metadata.version": "21"})
    assert loads(chosen.to_yaml()) == chosen
    assert "version: 3.9.1" in chosen.to_yaml()
    assert f"version: {KAFKA.version}" in spec().to_yaml(), "a later default must not change the run"
    assert "version" not in Spec().to_yaml()
    service = chosen.deployed_system.service("", "/home")
    assert service.argv[-1] == "--feature=metadata.version=21"
    assert service.trace is None


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"version": "4"}, "version: '4' is not a release of Kafka, such as "),
        ({"version": "2.8.0"}, "version: 2.8.0 is older than 3.3, the first that runs without ZooKeeper"),
        (
            {"features": {"metadata.version": "new"}},
            "features: metadata.version: new is not a feature's name and a level",
        ),
        ({"environment": "sim"}, "environment: system kafka does not run in simulation; choose one of docker, ssh"),
        ({"without": ["maximal_isr"]}, "without: system kafka has no rule switches"),
        ({"settings": {"faultline.protocol": "kip101"}}, "settings: Kafka has no setting 'faultline.protocol'"),
        (
            {"version": "4.2.0", "settings": {"controller.quorum.fetch.snapshot.max.bytes": "100"}},
            "settings: Kafka 4.2.0 has no setting 'controller.quorum.fetch.snapshot.max.bytes'; Kafka 4.3 has",
        ),
        (
            {"settings": {"controller.quorum.request.timeout.ms": "2000.5"}},
            "settings: controller.quorum.request.timeout.ms: '2000.5' is not a whole number",
        ),
        ({"settings": {"retention.bytes": "1GB"}}, "settings: retention.bytes: '1GB' is not a whole number"),
        ({"settings": {"flush.messages": "often"}}, "settings: flush.messages: 'often' is not a whole number"),
        (
            {"settings": {"metadata.log.segment.bytes": "4096"}},
            "settings: metadata.log.segment.bytes: 4096 is less than 8",
        ),
        (
            {"settings": {"segment.bytes": "4096"}},
            "settings: segment.bytes: 4096 is less than 1048576, the least of Kafka",
        ),
        (
            {"settings": {"broker.session.timeout.ms": "long"}},
            "settings: broker.session.timeout.ms: 'long' is not a whole",
        ),
    ],
)
def test_what_kafka_cannot_do_is_refused_in_one_line(values: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(**values)
    assert str(refused.value).startswith(line)


def test_small_segments_are_for_older_releases() -> None:
    assert spec(version="3.9.1", settings={"segment.bytes": "4096"}).settings["segment.bytes"] == "4096"


def test_each_release_has_an_image_of_its_own_with_java_and_its_archives() -> None:
    *_, newest = recipes([KAFKA])
    *_, older = recipes([KAFKA.release("3.9.1", {})])
    assert (newest.name, older.name) == (f"faultline/kafka-{KAFKA.version}", "faultline/kafka-3.9.1")
    assert b"org.apache.kafka:kafka_2.13:3.9.1\n" in older.inputs["jars.txt"]
    assert newest.inputs["packages.txt"] == b"openjdk-17-jre-headless\n"
    assert "images/kafka/__main__.py" in newest.inputs
    assert not [path for path in newest.inputs if path.startswith("images/broker")]


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "mvn"
    program.parent.mkdir()
    program.write_text(FAKE_MAVEN)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return program


def test_archives_are_fetched_once_and_compared_with_their_checksums(maven: Path) -> None:
    kept = jars(COORDINATES)
    maven.unlink()
    assert jars(COORDINATES) == kept
    assert sorted(path.name for path in kept.iterdir()) == [CHECKSUMS, "log-1.0.jar", "tools-1.0.jar"]
    (kept / "log-1.0.jar").write_text("other")
    with pytest.raises(JarsError, match="are not those that Maven fetched; remove that directory"):
        jars(COORDINATES)


def test_a_host_gets_the_archives_beside_the_launcher(maven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "wheels", lambda packages, target: [])
    shipped = dict(install.contents(Target((3, 11), "x86_64", 36), KAFKA.release("3.9.1", {})))
    assert shipped["kafka/jars/log-1.0.jar"] == b"one\n"
    assert {"images/kafka/__main__.py", "images/base/agent/faultline-node"} <= shipped.keys()


def test_archives_that_cannot_be_fetched_are_one_line(maven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven.write_text("#!/bin/sh\necho '[ERROR] no such release'\necho '[ERROR] see above'\nexit 1\n")
    with pytest.raises(JarsError, match=r"^org.example:log:1.0, .* cannot be fetched: no such release$"):
        jars(COORDINATES)
    monkeypatch.setenv("PATH", str(maven.parent))
    maven.unlink()
    with pytest.raises(JarsError, match=r"Maven is not installed \(on Debian: apt-get install maven\)$"):
        jars(COORDINATES)


def test_faults_that_kafka_cannot_carry_are_known_before_anything_runs() -> None:
    def lacks(controllers: int) -> set[EnvironmentCapability]:
        chosen = spec(controllers=controllers)
        layout = configured(chosen.deployed_system, cluster_layout(3, controllers), chosen.settings, ())

        async def nothing() -> Any: ...

        listener = Listener(on_trace=lambda time_ns, node, event: None, on_log=lambda node, line: None)
        return set(MachineDeployment(layout, nothing, seed=1, listener=listener, facts={}).unsupported)

    of_machines = {
        EnvironmentCapability.LIVE_TRACE,
        EnvironmentCapability.MESSAGES,
        EnvironmentCapability.CHANNELS,
        EnvironmentCapability.FAILING_SYNCS,
        EnvironmentCapability.WALL_CLOCKS,
    }
    of_kafka = {
        EnvironmentCapability.FROZEN_CLOCKS,
        EnvironmentCapability.RESIGNATION,
        EnvironmentCapability.REPLACED_REASSIGNMENTS,
    }
    assert lacks(3) == of_machines | of_kafka
    assert lacks(0) == of_machines | of_kafka | {EnvironmentCapability.EMPTY_DISKS}


def test_a_drawn_schedule_has_nothing_that_the_cluster_lacks() -> None:
    lacking = set(EnvironmentCapability)
    drawn = spec(controllers=0, faults=["clock", "admin", "wipe", "kill"], time_limit="600s")
    names = {
        scheduled.fault.name
        for seed in range(20)
        for scheduled in drawn.schedule(("b1", "b2", "b3"), (), Random(seed), lacking)
    }
    assert {"kill", "reassign"} <= names
    assert not names & {"clock", "wipe-disk", "move-controller"}


def test_a_clock_that_cannot_stand_still_runs_slowly() -> None:
    stopped, fast = Clock(nodes=("b1",), rate=0.0, jump_ms=5.0), Clock(nodes=("b1",), rate=2.0)
    lacking = {EnvironmentCapability.FROZEN_CLOCKS}
    slow = stopped.adapted(lacking, Random(1))
    assert slow is not None
    assert 0.3 <= slow.rate < 1
    assert slow.jump_ms == stopped.jump_ms
    assert fast.adapted(lacking, Random(1)) == fast
    assert stopped.adapted(set(EnvironmentCapability), Random(1)) is None


@pytest.mark.parametrize(("stepped_ms", "jumps_ms"), [(900.0, 900.0), (60_000.0, 4_000.0), (-60_000.0, -4_000.0)])
def test_a_wall_clock_that_cannot_jump_alone_takes_the_clock_with_it(stepped_ms: float, jumps_ms: float) -> None:
    stepped = Clock(nodes=("b1",), wall_jump_ms=stepped_ms)
    assert stepped.adapted({EnvironmentCapability.WALL_CLOCKS}, Random(1)) == Clock(nodes=("b1",), jump_ms=jumps_ms)
