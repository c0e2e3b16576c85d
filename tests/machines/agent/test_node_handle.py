"""A node on its machine: pauses, and starts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.cluster.layout import cluster_layout
from harness.cluster.systems import SYSTEMS, configured
from harness.environments.base import Listener
from harness.environments.docker.container import Container
from harness.environments.machines.deployment import MachineDeployment
from harness.environments.machines.machine import MachineError
from harness.environments.machines.node_handle import NodeHandle
from images.system import Service


@dataclass
class BusyMachine:
    """A machine that the engine cannot freeze; its agent answers."""

    name: str = "b1"
    address: str = "192.0.2.1"
    commands: list[str] = field(default_factory=list)

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> bytes:
        self.commands.append(argv[1])
        return json.dumps({"frozen_seconds": 2.0, "missed": 3, "missed_bytes": 0}).encode()

    async def freeze(self) -> None:
        raise MachineError("b1: OCI runtime pause failed: unable to freeze")

    async def thaw(self) -> int:
        raise AssertionError("it is not frozen")


def node_handle(machine: BusyMachine) -> NodeHandle:
    (node,) = cluster_layout(1, 0, lambda _: ("192.0.2.1", 9092)).brokers
    service = Service(argv=(), files={}, data="", log="", trace="", stop_limit_s=1.0)
    return NodeHandle(node, machine, service, alive=True)  # type: ignore[arg-type]


def test_a_process_is_stopped_where_its_machine_cannot_be_frozen() -> None:
    machine = BusyMachine()

    async def scenario() -> dict[str, float]:
        handle = node_handle(machine)
        await handle.pause(from_outside=True)
        assert (handle.paused, handle.frozen) == (True, False)
        return dict(await handle.resume())

    assert asyncio.run(scenario()) == {"frozen_seconds": 2.0, "missed": 3, "missed_bytes": 0}
    assert machine.commands == ["pause", "resume"]


@dataclass
class FrozenMachine(BusyMachine):
    """A machine that the engine freezes; two packets wait for it when it is thawed."""

    async def freeze(self) -> None:
        self.commands.append("freeze")

    async def thaw(self) -> int:
        self.commands.append("thaw")
        return 2


@pytest.mark.parametrize(
    ("machine", "woken", "missed", "commands"),
    [
        (BusyMachine(), False, 3, ["pause", "kill"]),
        (FrozenMachine(), False, 2, ["freeze", "thaw", "kill"]),
        (FrozenMachine(), True, 5, ["freeze", "thaw", "pause", "network", "kill"]),
    ],
)
def test_a_pause_that_a_kill_ends_is_told_by_its_resume(
    machine: BusyMachine, woken: bool, missed: int, commands: list[str]
) -> None:
    async def scenario() -> tuple[dict[str, float], dict[str, float]]:
        handle = node_handle(machine)
        await handle.pause(from_outside=True)
        if woken:
            await handle.ask("network")
        await handle.end("kill", timeout_s=1.0)
        assert (handle.alive, handle.paused) == (False, False)
        return dict(await handle.resume()), dict(await handle.resume())

    evidence, none_left = asyncio.run(scenario())
    assert evidence["missed"] == missed
    assert evidence["frozen_seconds"] > 0
    assert ("awake_seconds" in evidence) is woken
    assert none_left == {"frozen_seconds": 0.0, "missed": 0}
    assert machine.commands == commands


@dataclass
class UnreadMachine(FrozenMachine):
    """A machine that thaws, and does not tell what waited for it."""

    async def thaw(self) -> int | None:  # type: ignore[override]
        self.commands.append("thaw")
        return None


@pytest.mark.parametrize(("ended", "commands"), [(False, ["freeze", "thaw"]), (True, ["freeze", "thaw", "kill"])])
def test_a_pause_of_which_nothing_can_be_read_ends_and_its_effect_is_unknown(ended: bool, commands: list[str]) -> None:
    machine = UnreadMachine()

    async def scenario() -> dict[str, float]:
        handle = node_handle(machine)
        await handle.pause(from_outside=True)
        if ended:
            await handle.end("kill", timeout_s=1.0)
        evidence = dict(await handle.resume())
        assert not handle.frozen
        return evidence

    evidence = asyncio.run(scenario())
    assert (evidence["missed"], evidence["unknown_missed"]) == (0, 1)
    assert machine.commands == commands


@dataclass
class CutOffMachine(BusyMachine):
    """A machine whose agent pauses the process, and is not heard to have done it."""

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> bytes:
        answer = await super().run(argv, stdin=stdin, timeout_s=timeout_s)
        if argv[1] == "pause":
            raise MachineError("b1: the node agent was cut off")
        return answer


def test_a_pause_that_was_cut_off_is_undone_all_the_same() -> None:
    machine = CutOffMachine()

    async def scenario() -> dict[str, float]:
        handle = node_handle(machine)
        with pytest.raises(MachineError):
            await handle.pause(from_outside=False)
        return dict(await handle.resume())

    assert asyncio.run(scenario())["frozen_seconds"] == 2
    assert machine.commands == ["pause", "resume"]


@dataclass
class Engine:
    """The API of an engine with one container, of which no statistics can be read once it is frozen."""

    frozen: bool = False
    unreadable: bool = True
    late: bool = False
    """It freezes, and does not answer in time."""

    @property
    def api(self) -> Engine:
        return self

    def pause(self, container: str) -> None:
        self.frozen = True
        if self.late:
            raise RuntimeError("read timed out")

    def unpause(self, container: str) -> None:
        self.frozen = False

    def stats(self, container: str, **_: object) -> dict[str, Any]:
        if self.unreadable:
            raise RuntimeError("500 Server Error: cannot read the cgroup")
        return {"networks": {"eth0": {"rx_packets": 7}}}


def test_a_container_is_thawed_though_its_statistics_cannot_be_read() -> None:
    engine = Engine(unreadable=False)

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as threads:
            container = Container("b1", "192.0.2.1", engine, "id", threads)
            await container.freeze()
            assert await container.thaw() == 0
            await container.freeze()
            engine.unreadable = True
            assert await container.thaw() is None
            assert not engine.frozen
            with pytest.raises(MachineError, match="b1: 500 Server Error"):
                await container.freeze()
            assert not engine.frozen
            engine.late = True
            with pytest.raises(MachineError, match="b1: read timed out"):
                await container.freeze()
            assert not engine.frozen

    asyncio.run(scenario())


@dataclass
class SlowToTell:
    """A machine whose process has ended, of which nothing is heard: the wait for its end does not return."""

    name: str = "b1"
    address: str = "192.0.2.1"
    running: bool = False
    incarnations: int = 0

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> bytes:
        if argv[1] == "wait":
            await asyncio.Event().wait()
        started = argv[1] == "start" and not self.running
        self.incarnations += started
        self.running = self.running or started
        lacks = dict.fromkeys(("nftables", "libfaketime", "netem"), "")
        answer = {"lacks": lacks, "kernel": "6", "boot_id": "", "true_ns": 0}
        return json.dumps({**answer, "incarnation": self.incarnations, "started": started}).encode()


@dataclass
class Unkillable(SlowToTell):
    """A machine whose agent is cut off before it kills."""

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0) -> bytes:
        if argv[1] == "kill":
            raise MachineError("b1: the node agent was cut off")
        return await super().run(argv, stdin=stdin, timeout_s=timeout_s)


def test_a_process_that_ended_unnoticed_is_started_and_one_that_runs_is_not() -> None:
    machine = SlowToTell()
    layout = configured(SYSTEMS["broker"], cluster_layout(1, 0, lambda _: ("192.0.2.1", 9092)), {}, ())

    async def scenario() -> None:
        async def provide() -> dict[str, SlowToTell]:
            return {"b1": machine}

        listener = Listener(on_trace=lambda *_: None, on_log=lambda *_: None)
        deployment = MachineDeployment(layout, provide, seed=1, listener=listener, facts={})  # type: ignore[arg-type]
        await deployment.deploy()
        await deployment.start("b1")
        assert (machine.incarnations, deployment.alive("b1")) == (1, True)
        machine.running = False
        await deployment.start("b1")
        assert (machine.incarnations, deployment.alive("b1")) == (2, True)
        await deployment.close()

    asyncio.run(scenario())


def test_a_process_that_a_kill_did_not_reach_is_alive_once_it_was_to_be_started_again() -> None:
    machine = Unkillable()
    layout = configured(SYSTEMS["broker"], cluster_layout(1, 0, lambda _: ("192.0.2.1", 9092)), {}, ())

    async def scenario() -> None:
        async def provide() -> dict[str, Unkillable]:
            return {"b1": machine}

        listener = Listener(on_trace=lambda *_: None, on_log=lambda *_: None)
        deployment = MachineDeployment(layout, provide, seed=1, listener=listener, facts={})  # type: ignore[arg-type]
        await deployment.deploy()
        with pytest.raises(MachineError):
            await deployment.kill("b1")
        await deployment.start("b1")
        assert (machine.incarnations, deployment.alive("b1")) == (1, True)
        await deployment.close()

    asyncio.run(scenario())
