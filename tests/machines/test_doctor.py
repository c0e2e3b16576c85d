"""The doctor, on machines made up for it: what is missing is told with what to do, and counts when it is needed."""

from __future__ import annotations

import asyncio
import io
import math
import os
import re
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from harness.cli.main import main
from harness.cluster.hosts import Host
from harness.cluster.systems import SYSTEMS
from harness.doctor import engine_and_hosts
from harness.doctor.diagnosis import GIB, Diagnosis, Prerequisite, Purpose, all_met, diagnose, show
from harness.doctor.engine_and_hosts import diagnosis
from harness.doctor.probes import Engine, Kernel, ThisMachine, package_lists_age_days, parse_options
from harness.environments.docker.engine import EngineUnreachable
from harness.environments.ssh.install import ROOT
from harness.environments.ssh.machine import SshMachine
from harness.errors import EnvironmentUnavailable
from harness.exit_codes import BAD_USAGE, NOT_CARRIED_OUT, VALID
from harness.node_images.building import Image, ImageState
from harness.runner.client_processes import programs
from harness.spec import Spec, loads

FULL = dict.fromkeys(("NF_TABLES", "NF_TABLES_INET", "NFT_NUMGEN", "NET_SCH_NETEM", "FUSE_FS"), "y")
ENGINE = Engine("28.0", "6.1.0", "overlay2", "2", "/var/lib/docker")


@dataclass
class Machine:
    """A machine that has everything, but for what a test takes away."""

    reached: Engine | None = ENGINE
    options: dict[str, str] | None = field(default_factory=lambda: dict(FULL))
    modules: frozenset[str] = frozenset()
    fuse: bool = True
    groups: str = "2"
    java_version: str | None = "17.0.15"
    free: int | None = 50 * GIB
    memory: int | None = 8 * GIB
    programs: frozenset[str] = frozenset({"dockerd", "debootstrap", "fusermount3"})
    lists_age_days: float | None = 1.0

    def engine(self) -> Engine:
        if self.reached is None:
            raise EngineUnreachable("no Docker engine answers", "start it")
        return self.reached

    def kernel(self) -> Kernel:
        return Kernel("6.1.0", self.options, self.modules)

    def cgroup(self) -> str:
        return self.groups

    def opens(self, device: str) -> bool:
        return self.fuse

    def program(self, name: str) -> bool:
        return name in self.programs

    def package_lists_age_days(self) -> float | None:
        return self.lists_age_days

    def java(self) -> str | None:
        return self.java_version

    def available_memory_bytes(self) -> int | None:
        return self.memory

    def free_bytes(self, path: Path) -> int | None:
        return self.free


def findings(
    machine: Machine,
    spec: Spec | None = None,
    images: Sequence[Prerequisite] = (),
    lacks: Mapping[str, str] | None = None,
    hosts: Sequence[Prerequisite] = (),
) -> dict[str, Prerequisite]:
    found = diagnose(Diagnosis(machine, Path("runs"), lambda: images, lambda: lacks, lambda: hosts), spec)
    return {finding.subject: finding for finding in found}


def test_a_machine_with_everything_is_well() -> None:
    found = findings(Machine())
    assert all(finding.ok for finding in found.values())
    assert list(found) == [
        "Docker engine",
        "nftables",
        "netem",
        "FUSE",
        "cgroup",
        "debootstrap",
        "fuse3",
        "Java",
        "disk for runs",
        "disk for images",
    ]


def without(*options: str) -> dict[str, str]:
    return {name: value for name, value in FULL.items() if name not in options}


@pytest.mark.parametrize(
    ("machine", "subject", "said", "counts"),
    [
        (Machine(reached=None), "Docker engine", "no Docker engine answers; start it", True),
        (Machine(options=without("NFT_NUMGEN")), "nftables", "the kernel 6.1.0 lacks CONFIG_NFT_NUMGEN; use", True),
        (Machine(options=without("FUSE_FS")), "FUSE", "the kernel 6.1.0 lacks CONFIG_FUSE_FS; use", True),
        (Machine(fuse=False), "/dev/fuse", "it cannot be opened; modprobe fuse", True),
        (Machine(reached=None, groups=""), "cgroup", "no control groups are mounted", True),
        (
            Machine(options=without("NET_SCH_NETEM")),
            "netem",
            "the kernel 6.1.0 lacks CONFIG_NET_SCH_NETEM; only",
            False,
        ),
        (Machine(java_version=None), "Java", "not found; only suites need it; install Java 17", False),
        (Machine(java_version="11.0.2"), "Java", "11.0.2 is too old for Spark; only suites need it", False),
        (Machine(java_version="1.8.0_392"), "Java", "1.8.0_392 is too old for Spark", False),
        (Machine(free=GIB // 2), "disk for runs", "0.5 GiB free at runs; make room, at least 1 GiB", True),
        (Machine(free=2 * GIB), "disk for images", "2.0 GiB free at /var/lib/docker; make room", True),
        (Machine(free=None), "disk for runs", "free space at runs is unknown", True),
    ],
)
def test_what_is_missing_is_told_with_what_to_do(machine: Machine, subject: str, said: str, counts: bool) -> None:
    found = findings(machine)
    assert not found[subject].ok
    assert found[subject].text().startswith(said)
    assert all_met(found.values()) is not counts


def test_a_bare_machine_is_told_every_step_at_once_in_the_order_of_doing() -> None:
    bare = Machine(None, options={}, fuse=False, groups="", java_version=None, free=0)
    bare.programs, bare.lists_age_days = frozenset(), math.inf
    missing = {finding.subject: finding.text() for finding in findings(bare).values() if not finding.ok}
    assert list(missing) == [
        "package lists",
        "Docker engine",
        "nftables",
        "netem",
        "FUSE",
        "/dev/fuse",
        "cgroup",
        "debootstrap",
        "fuse3",
        "Java",
        "disk for runs",
        "images",
    ]
    assert missing["package lists"] == "apt has none; before any apt-get install: apt-get update"
    assert missing["Docker engine"].startswith(
        "no Docker engine answers; install it (on Debian: apt-get install docker.io), then start it: systemctl start"
    )
    assert missing["debootstrap"] == (
        "not installed; only images built without a registry need it; on Debian: apt-get install debootstrap"
    )
    assert missing["fuse3"].endswith("on Debian: apt-get install fuse3")
    assert missing["images"].endswith("then: faultline images build")


def test_an_installed_engine_is_to_be_started_and_not_installed() -> None:
    assert "install" not in findings(Machine(reached=None))["Docker engine"].text()


@pytest.mark.parametrize(("age_days", "named"), [(None, False), (14.0, False), (15.0, True), (math.inf, True)])
def test_old_package_lists_are_named_if_something_is_to_be_installed(age_days: float | None, named: bool) -> None:
    assert "package lists" not in findings(Machine(lists_age_days=age_days))
    unneeded = findings(Machine(lists_age_days=age_days, programs=frozenset({"dockerd"})))
    assert ("package lists" in unneeded) is named
    assert all_met(unneeded.values()), "debootstrap and fuse3 count for no run, and neither do the lists"
    needed = findings(Machine(lists_age_days=age_days, options=without("FUSE_FS")))
    assert ("package lists" in needed) is named


def test_package_lists_are_as_old_as_the_last_update(tmp_path: Path) -> None:
    assert package_lists_age_days(tmp_path / "absent", 0.0) == math.inf
    (tmp_path / "lock").touch()
    assert package_lists_age_days(tmp_path, 0.0) == math.inf
    (tmp_path / "mirror_dists_stable_main_binary-amd64_Packages").touch()
    os.utime(tmp_path / "mirror_dists_stable_main_binary-amd64_Packages", (0, 0))
    os.utime(tmp_path, (864_000, 864_000))
    assert package_lists_age_days(tmp_path, 3 * 864_000.0) == pytest.approx(20)


def test_a_module_counts_only_if_it_is_on_disk() -> None:
    as_module = {**FULL, "NET_SCH_NETEM": "m"}
    assert not findings(Machine(options=as_module))["netem"].ok
    assert findings(Machine(options=as_module, modules=frozenset({"sch_netem"})))["netem"].ok


def test_a_kernel_that_keeps_its_configuration_to_itself_is_not_taken_to_be_well() -> None:
    found = findings(Machine(options=None, modules=frozenset({"fuse"})))
    assert found["FUSE"].ok
    assert found["nftables"].text().startswith("the kernel 6.1.0 does not show whether it has nf_tables, nft_numgen;")


def test_the_kernel_of_an_engine_elsewhere_is_not_taken_to_be_ours() -> None:
    elsewhere = Engine("28.0", "5.15.0-cloud", "overlay2", "1", "/var/lib/docker")
    found = findings(Machine(reached=elsewhere))
    assert "the kernel 5.15.0-cloud does not show" in found["nftables"].text()
    assert found["cgroup"].text() == "v1"
    assert "disk for images" not in found


def test_what_a_container_found_counts_more_than_what_the_kernel_says_of_itself() -> None:
    lacks = {"nftables": "", "netem": "tc: Specified qdisc kind is unknown.", "fuse": ""}
    found = findings(Machine(options=None, fuse=False), lacks=lacks)
    assert found["nftables"].text() == "partitions and packet loss: tried in a container"
    assert found["FUSE"].ok
    assert (
        found["netem"].text().startswith("tc: Specified qdisc kind is unknown (kernel 6.1.0); only faults that delay")
    )
    assert all_met(found.values())
    assert not findings(Machine(reached=None, options={}), lacks=lacks)["FUSE"].ok, (
        "without an engine there is no container"
    )


def test_a_scripted_delay_needs_netem() -> None:
    lacks = {"nftables": "", "netem": "no such queue", "fuse": ""}
    script = "environment: docker\nfaults: [{at: 1s, for: 1s, fault: packets, nodes: [b1], %s}]"
    assert not all_met(findings(Machine(), loads(script % "delay_ms: 20"), lacks=lacks).values())
    assert all_met(findings(Machine(), loads(script % "loss: 0.5"), lacks=lacks).values())


def test_the_hosts_of_a_spec_count_and_docker_does_not() -> None:
    hosts = "\n".join(
        f"  {name}: {{address: 192.0.2.{number}}}" for number, name in enumerate(("b1", "b2", "b3", "c1"))
    )
    spec = loads(f"environment: ssh\ncontrollers: 1\nhosts:\n{hosts}")
    bare = Machine(reached=None, options={}, fuse=False, groups="")
    well, ill = (Prerequisite("host b1", ok, "192.0.2.0", purpose=Purpose.HOSTS) for ok in (True, False))
    assert all_met(findings(bare, spec, hosts=[well]).values())
    assert not all_met(findings(bare, spec, hosts=[ill]).values())


@dataclass
class HalfInstalled:
    """A host on which an installation never gets beyond the claim."""

    seconds_to_leave: float = 0.0
    claim: bytes = b""
    claimed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> bytes:
        if "mkdir" in argv[2]:
            self.claim = argv[-1].encode()
        elif argv[0] == "python3":
            self.claimed.set()
            await asyncio.Event().wait()
        elif argv[0] == "rm" and ROOT in argv:
            await asyncio.sleep(self.seconds_to_leave)
            self.claim = b""
        return self.claim

    async def close(self) -> None:
        pass


def test_a_doctor_interrupted_while_it_installs_leaves_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"b1": HalfInstalled(), "b2": HalfInstalled(seconds_to_leave=0.2)}

    async def connect(name: str, address: Host) -> HalfInstalled:
        return hosts[name]

    def interrupted(trials: Coroutine[Any, Any, Any]) -> Any:
        async def scenario() -> None:
            tried = asyncio.create_task(trials)
            for host in hosts.values():
                await host.claimed.wait()
                assert b"faultline-doctor" in host.claim
            tried.cancel()
            await tried

        return asyncio.run(scenario())

    monkeypatch.setattr(SshMachine, "connect", connect)
    monkeypatch.setattr(engine_and_hosts, "run_cancellable", interrupted)
    with pytest.raises(asyncio.CancelledError):
        engine_and_hosts.host_prerequisites({name: Host("192.0.2.1") for name in hosts}, SYSTEMS["broker"])
    assert [host.claim for host in hosts.values()] == [b"", b""]


def test_a_doctor_interrupted_while_a_container_describes_itself_removes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[str] = []

    def run(image: str, command: Sequence[str], *, name: str = "", **_: object) -> bytes:
        there.append(name)
        raise KeyboardInterrupt

    api = SimpleNamespace(remove_container=lambda name, **_: there.remove(name))
    client = SimpleNamespace(api=api, containers=SimpleNamespace(run=run), close=lambda: None)
    base = Image("faultline/base", ImageState.READY, "tag")
    monkeypatch.setattr(engine_and_hosts, "connect", lambda: client)
    monkeypatch.setattr(engine_and_hosts, "states", lambda client, systems: [base])
    with pytest.raises(KeyboardInterrupt):
        engine_and_hosts.container_lacks()
    assert there == []


def test_a_probe_that_fails_is_a_line_and_no_traceback() -> None:
    def images() -> Sequence[Prerequisite]:
        raise EnvironmentUnavailable("the engine went away")

    found = {each.subject: each for each in diagnose(Diagnosis(Machine(), Path("runs"), images))}
    assert not found["images"].ok
    assert found["images"].text() == "the engine went away"


def test_images_are_asked_about_only_where_an_engine_answers() -> None:
    absent = Prerequisite("image base", False, "not built", "faultline images build")
    assert findings(Machine(), images=[absent])["image base"].text() == "not built; faultline images build"
    assert (
        "start the engine, then: faultline images build"
        in findings(Machine(reached=None), images=[absent])["images"].text()
    )


def test_what_a_spec_does_not_need_does_not_count() -> None:
    bare = Machine(reached=None, options={}, fuse=False, groups="", java_version=None)
    assert all_met(findings(bare, loads("environment: sim")).values())
    assert not all_met(findings(bare).values())
    assert not all_met(findings(Machine(free=0), loads("environment: sim")).values())


def test_a_missing_thing_is_one_line_of_three_columns() -> None:
    said = io.StringIO()
    show(Console(file=said, width=60), diagnose(Diagnosis(Machine(java_version=None, reached=None), Path("runs"))))
    lines = said.getvalue().splitlines()
    assert lines[0].startswith("missing  Docker engine  no Docker engine answers; start it: systemctl start docker")
    assert [line.split()[0] for line in lines] == ["missing", *["ok"] * 6, "missing", "ok", "missing"]
    assert all(line[9 + len("Docker engine") :].startswith("  ") for line in lines)


def test_a_kernel_configuration_is_read_for_what_is_built() -> None:
    text = "# CONFIG_NET_SCH_NETEM is not set\nCONFIG_FUSE_FS=y\nCONFIG_NF_TABLES=m\nCONFIG_HZ=250\n"
    assert parse_options(text) == {"FUSE_FS": "y", "NF_TABLES": "m"}


def test_this_machine_answers_everything_without_a_traceback(tmp_path: Path) -> None:
    machine = ThisMachine()
    assert machine.kernel().release
    assert machine.cgroup() in ("", "1", "2")
    assert machine.free_bytes(tmp_path / "not" / "there") == pytest.approx(machine.free_bytes(tmp_path), rel=0.1)
    assert not machine.opens(str(tmp_path / "nothing"))


def test_java_home_is_where_spark_would_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert ThisMachine().java() == "21.0.1"
    program.unlink()
    assert ThisMachine().java() is None


def test_the_command_ends_with_3_when_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert main(["doctor", "--store", str(tmp_path)]) == NOT_CARRIED_OUT
    assert re.search(r"^missing +Docker engine +no Docker engine answers; ", capsys.readouterr().out, re.MULTILINE)
    spec = tmp_path / "spec.yaml"
    spec.write_text("environment: sim\n")
    assert main(["doctor", str(spec), "--store", str(tmp_path)]) == VALID
    spec.write_text("environment: mars\n")
    assert main(["doctor", str(spec)]) == BAD_USAGE


def test_a_spec_for_kafka_needs_its_archives_or_maven_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = loads("system: kafka\nenvironment: docker\n")
    archives = f"archives of kafka {spec.version}"

    def found(machine: Machine, spec: Spec | None = spec) -> dict[str, Prerequisite]:
        ours = replace(diagnosis(machine, Path("runs"), spec), images=tuple, node=lambda: None)
        return {finding.subject: finding for finding in diagnose(ours, spec)}

    absent = found(Machine())[archives]
    assert (absent.ok, absent.needed) == (False, True)
    assert absent.remedy == (
        f"on Debian: apt-get install maven; then: faultline images build --system kafka --version {spec.version}"
    )
    assert found(Machine(programs=frozenset({"mvn"})))[archives].ok
    assert found(Machine())["memory"].state == "8.0 GiB available, 2.6 GiB for 6 nodes of kafka"
    assert not found(Machine(memory=2 * GIB))["memory"].ok
    assert "memory" not in found(Machine(memory=None))
    assert archives not in found(Machine(), loads("environment: docker\n"))
    assert not {archives, "memory"} & found(Machine(), None).keys()


def test_a_spec_whose_clients_are_of_a_library_needs_that_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(programs, "jdk", lambda: None)
    monkeypatch.setattr(programs, "has_librdkafka", lambda: False)

    def unmet(library: str) -> list[tuple[str, str]]:
        spec = loads(f"environment: docker\nclients: {{library: {library}}}\n")
        ours = replace(diagnosis(Machine(), Path("runs"), spec), images=tuple, node=lambda: None)
        clients = [finding for finding in diagnose(ours, spec) if finding.purpose is Purpose.CLIENTS]
        assert all(finding.needed for finding in clients)
        return [(finding.subject, finding.text()) for finding in clients if not finding.ok]

    assert unmet("native") == []
    assert unmet("librdkafka") == [
        ("librdkafka", "the Python package confluent-kafka is not installed; pip install confluent-kafka")
    ]
    jdk, archives = unmet("java")
    assert jdk[0] == "JDK"
    assert "apt-get install openjdk-17-jdk-headless" in jdk[1]
    assert archives[1] == "not here, and Maven is not installed; on Debian: apt-get install maven"
