"""The embedded environment does to a cluster what `nemesis.ports` says, and leaves the evidence it names.

Most tests deploy a small stand-in for the broker, so that they see exactly what their node did; the last ones deploy
the broker itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

import harness.environments.sim as sim
from harness.cluster.layout import Layout
from harness.environments.base import Deployment, Listener
from harness.environments.sim import Simulation
from images.broker.config import NodeConfig
from images.broker.ports import NodePorts
from images.broker.system import SYSTEM
from images.trace import TraceEvent
from nemesis.ports import ClockChange, KeepUnsynced, Link, LinkQuality
from tests.simulation.echo import Caller, serve

ROOT = Path(__file__).parents[2]
T = TypeVar("T")
Events = list[tuple[int, str, TraceEvent]]


def _layout(simulation: Simulation, brokers: int = 2) -> Layout:
    layout = simulation.layout(brokers)
    voters = [(node.node_id, node.host, node.port) for node in layout.controllers]
    return layout.with_properties(
        {
            node.name: SYSTEM.properties(
                node_id=node.node_id,
                role=node.role.value,
                host=node.host,
                port=node.port,
                voters=voters,
                settings={},
            )
            for node in layout.nodes
        }
    )


async def _over(caller: Caller) -> bool:
    """Wait until the connection has ended in one way or another."""
    try:
        return not await caller.answer()
    except ConnectionError:
        return True


def _execute(
    scenario: Callable[[Deployment], Awaitable[T]], *, seed: int = 1, events: Events | None = None, brokers: int = 2
) -> T:
    simulation = Simulation()
    trace: Events = [] if events is None else events
    listener = Listener(lambda time_ns, node, event: trace.append((time_ns, node, event)), lambda node, line: None)
    return simulation.execute(_layout(simulation, brokers), scenario, seed=seed, listener=listener)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A node that counts its lives, echoes lines, and writes a byte a millisecond without syncing it."""
    lives: list[str] = []

    async def run_node(config: NodeConfig, node_ports: NodePorts, stopping: asyncio.Event) -> None:
        lives.append(f"{config.node_id} {node_ports.random.random()}")
        node_ports.log(f"node {config.node_id} starts")
        file = node_ports.files.open("journal")
        file.append(b"S")
        file.fsync()
        node_ports.files.sync_directory("")
        asyncio.create_task(serve())  # noqa: RUF006
        leader = TraceEvent("partition_changed", topic="t", partition=0, leader=config.node_id, leader_epoch=len(lives))
        node_ports.trace(leader)
        while not stopping.is_set():
            file.append(b".")
            await asyncio.sleep(0.001)

    monkeypatch.setattr(sim, "run_node", run_node)
    return lives


def test_a_deployment_starts_every_node_controllers_first(stand_in: list[str]) -> None:
    async def scenario(deployment: Deployment) -> None:
        assert deployment.brokers == ("b1", "b2")
        assert deployment.controllers == ("c1",)
        assert deployment.bootstrap() == [("b1", 9092), ("b2", 9092)]
        assert not deployment.alive("b1")
        await deployment.deploy()
        await asyncio.sleep(1)
        assert all(deployment.alive(node) for node in ("c1", "b1", "b2"))
        assert sorted(life.partition(" ")[0] for life in stand_in) == ["1", "101", "2"]
        assert deployment.crashes == []
        with pytest.raises(KeyError, match="no node 'b7'; there are: c1, b1, b2"):
            await deployment.kill("b7")

    _execute(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_kill_and_start(stand_in: list[str], seed: int) -> None:
    """Seeds differ in whether the blow comes at once or in the middle of things."""

    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        caller = await Caller.connect("b1")
        await caller.call("x")
        assert await deployment.kill("b1") == {"killed": 1}
        assert not deployment.alive("b1")
        assert await asyncio.wait_for(_over(caller), 1)
        assert await deployment.kill("b1") == {"killed": 0}
        await deployment.start("b1")
        await deployment.start("b1")
        assert await (await Caller.connect("b1")).call("y") == "y"
        of_b1 = [life for life in stand_in if life.startswith("1 ")]
        assert len(of_b1) == len(set(of_b1)) == 2  # each life has a randomness of its own
        assert deployment.crashes == []

    _execute(scenario, seed=seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_fault_cancelled_in_the_middle_of_a_blow_has_still_struck(stand_in: list[str], seed: int) -> None:
    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        await asyncio.sleep(0.01)
        blow = asyncio.create_task(deployment.kill("b1"))
        await asyncio.sleep(0)
        blow.cancel()
        await asyncio.wait([blow])
        assert not deployment.alive("b1")
        await deployment.start("b1")
        await asyncio.sleep(1)
        assert deployment.alive("b1")

    _execute(scenario, seed=seed)


@pytest.mark.parametrize("keep", list(KeepUnsynced))
def test_power_off_tells_what_was_lost(stand_in: list[str], keep: KeepUnsynced, tmp_path: Path) -> None:
    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        await asyncio.sleep(1)
        evidence = await deployment.power_off("b1", keep)
        assert evidence["killed"] == 1
        assert evidence["unsynced_bytes"] > 900
        await deployment.collect(tmp_path)
        kept = (tmp_path / "b1" / "data" / "journal").read_bytes()
        assert kept[:1] == b"S"
        assert evidence["lost_bytes"] == 1 + evidence["unsynced_bytes"] - len(kept)
        if keep is KeepUnsynced.NOTHING:
            assert kept == b"S"
        if keep is KeepUnsynced.EVERYTHING:
            assert evidence["lost_bytes"] == 0
        again = await deployment.power_off("b1", keep)
        assert (again["killed"], again["lost_bytes"]) == (0, 0)

    _execute(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_a_wiped_disk_is_empty_whatever_was_synced(stand_in: list[str], tmp_path: Path, seed: int) -> None:
    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        await asyncio.sleep(1)
        evidence = await deployment.wipe("b1")
        assert evidence["killed"] == 1
        assert evidence["lost_bytes"] > 900
        assert not deployment.alive("b1")
        assert await deployment.power_off("b1", KeepUnsynced.EVERYTHING) == {
            "killed": 0,
            "unsynced_bytes": 0,
            "lost_bytes": 0,
            "lost_names": 0,
        }
        await deployment.collect(tmp_path)
        assert not (tmp_path / "b1" / "data" / "journal").exists()
        await deployment.start("b1")
        await asyncio.sleep(0.1)
        assert (await deployment.wipe("b1"))["lost_bytes"] < 300

    _execute(scenario, seed=seed)


def test_fsync_lies_are_counted_and_lose_what_was_promised(stand_in: list[str], tmp_path: Path) -> None:
    async def scenario(deployment: Deployment) -> None:
        assert await deployment.lie_about_fsync("b1", True) == {}
        await deployment.deploy()
        await asyncio.sleep(0.1)
        assert await deployment.lie_about_fsync("b1", False) == {"lies": 2}
        assert await deployment.lie_about_fsync("b1", False) == {}
        await deployment.power_off("b1", KeepUnsynced.NOTHING)
        await deployment.collect(tmp_path)
        assert not (tmp_path / "b1" / "data" / "journal").exists()

    _execute(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_pause_and_resume(stand_in: list[str], seed: int) -> None:
    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        caller = await Caller.connect("b1")
        await caller.call("x")
        await deployment.pause("b1")
        await deployment.pause("b1")
        assert deployment.alive("b1")
        with pytest.raises(TimeoutError):
            await caller.call("y", 3)
        evidence = await deployment.resume("b1")
        assert 2.9 < evidence["frozen_seconds"] < 3.1
        assert evidence["missed"] >= 1
        assert await caller.answer() == "y"
        assert await deployment.resume("b1") == {"frozen_seconds": 0, "missed": 0}

    _execute(scenario, seed=seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_pause_that_a_kill_ends_is_as_long_as_it_was_until_then(stand_in: list[str], seed: int) -> None:
    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        caller = await Caller.connect("b1")
        await caller.call("x")
        await deployment.pause("b1")
        with pytest.raises(TimeoutError):
            await caller.call("y", 3)
        await deployment.kill("b1")
        await deployment.start("b1")
        await asyncio.sleep(5)
        evidence = await deployment.resume("b1")
        assert 2.9 < evidence["frozen_seconds"] < 3.1
        assert evidence["missed"] >= 1
        assert await deployment.resume("b1") == {"frozen_seconds": 0, "missed": 0}

    _execute(scenario, seed=seed)


def test_cut_mend_degrade_and_restore(stand_in: list[str]) -> None:
    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        caller = await Caller.connect("b1")
        links = [Link("harness", "b1"), Link("b1", "harness")]
        await deployment.cut(links)
        with pytest.raises(TimeoutError):
            await caller.call("x", 2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Caller.connect("b1"), 2)
        evidence = await deployment.heal_links(links)
        assert evidence["held"] > 0
        assert evidence["refused"] > 0
        assert await caller.answer() == "x"
        assert set((await deployment.heal_links(links)).values()) == {0}
        await deployment.degrade(links, LinkQuality(delay_ms=20, loss=0.2))
        for _ in range(10):
            await caller.call("y", 5)
        evidence = await deployment.clear_degradation(links)
        assert evidence["delayed"] >= 20
        assert evidence["delay_seconds"] > 0.4
        assert evidence["lost"] > 0
        await deployment.cut(links, reset=True)
        assert (await deployment.heal_links(links))["reset"] > 0
        with pytest.raises(ConnectionError):
            await caller.call("z")

    _execute(scenario)


def test_clocks(stand_in: list[str]) -> None:
    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        assert await deployment.set_clock("b1", ClockChange(jump_ms=500, rate=2.0)) == {"offset_ms": 500}
        await asyncio.sleep(1)
        assert (await deployment.reset_clock("b1"))["offset_ms"] == pytest.approx(1500, abs=1)
        assert (await deployment.reset_clock("b1"))["offset_ms"] == 0
        assert await deployment.set_clock("b1", ClockChange(rate=0)) == {"offset_ms": 0}
        await asyncio.sleep(2)
        assert (await deployment.reset_clock("b1"))["offset_ms"] == pytest.approx(-2000, abs=1)
        stepped = ClockChange(jump_ms=100, wall_jump_ms=-700)
        assert await deployment.set_clock("b1", stepped) == {"offset_ms": -600}
        assert await deployment.reset_clock("b1") == {"offset_ms": -600}

    _execute(scenario)


def test_leaders_are_what_the_controller_last_said(stand_in: list[str]) -> None:
    async def scenario(deployment: Deployment) -> None:
        assert await deployment.leaders() == {}
        for node in ("b2", "b1"):
            await deployment.start(node)
            await asyncio.sleep(0.01)
            assert await deployment.leaders() == {("t", 0): node}

    events: Events = []
    _execute(scenario, events=events)
    assert [(node, event.leader) for _, node, event in events] == [("b2", 2), ("b1", 1)]


def test_crashes_and_real_calls_are_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def run_node(config: NodeConfig, node_ports: NodePorts, stopping: asyncio.Event) -> None:
        await asyncio.sleep(config.node_id)
        if config.node_id == 1:
            raise LookupError("lost the log")
        if config.node_id == 2:
            try:
                time.sleep(1)  # noqa: ASYNC251
            except Exception:
                await asyncio.sleep(1)

    monkeypatch.setattr(sim, "run_node", run_node)

    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        await asyncio.sleep(10)
        crashes = [
            (crash.node, round(crash.time_ns / 1e9), crash.error.splitlines()[-1]) for crash in deployment.crashes
        ]
        assert crashes == [
            ("b1", 1, "LookupError: lost the log"),
            ("b2", 2, "time.sleep was called in simulation"),
            ("b2", 3, "b2: the process ended without being stopped"),
        ]
        await deployment.collect(tmp_path)
        assert "LookupError: lost the log" in (tmp_path / "b1" / "node.log").read_text()

    _execute(scenario)


def test_what_goes_wrong_in_a_task_nobody_awaits_is_in_the_log_of_its_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def run_node(config: NodeConfig, node_ports: NodePorts, stopping: asyncio.Event) -> None:
        async def fails() -> None:
            raise LookupError("nobody awaits this")

        asyncio.create_task(fails())  # noqa: RUF006
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    monkeypatch.setattr(sim, "run_node", run_node)

    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        await asyncio.sleep(2)
        await deployment.collect(tmp_path)
        assert deployment.crashes == []

    _execute(scenario)
    assert "LookupError: nobody awaits this" in (tmp_path / "b1" / "node.log").read_text()


def test_an_error_of_the_listener_ends_the_run_and_is_not_the_nodes_to_swallow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run_node(config: NodeConfig, node_ports: NodePorts, stopping: asyncio.Event) -> None:
        with contextlib.suppress(Exception):
            node_ports.trace(TraceEvent("appended"))
        await asyncio.Event().wait()

    monkeypatch.setattr(sim, "run_node", run_node)

    async def scenario(deployment: Deployment) -> None:
        await deployment.deploy()
        await asyncio.sleep(1000)

    def on_trace(time_ns: int, node: str, event: TraceEvent) -> None:
        raise OSError("the store is full")

    simulation = Simulation()
    with pytest.raises(OSError, match="the store is full"):
        simulation.execute(_layout(simulation), scenario, seed=1, listener=Listener(on_trace, lambda node, line: None))


def test_a_layout_needs_properties_for_every_node() -> None:
    layout = Simulation().layout(3, 1)
    assert [node.name for node in layout.nodes] == ["c1", "b1", "b2", "b3"]
    with pytest.raises(ValueError, match="properties are needed for exactly c1, b1, b2, b3"):
        layout.with_properties({"b1": ""})


def broken_cluster(seed: int) -> str | None:
    """Ten seconds of the broker itself, broken a little: the digest."""

    async def scenario(deployment: Deployment) -> str | None:
        await deployment.deploy()
        await asyncio.sleep(3)
        await deployment.power_off("b1", KeepUnsynced.TORN)
        await deployment.cut([Link("b2", "c1")])
        await asyncio.sleep(3)
        await deployment.start("b1")
        await deployment.heal_links([Link("b2", "c1")])
        await deployment.kill("c1")
        await deployment.start("c1")
        await asyncio.sleep(4)
        assert deployment.crashes == []
        assert all(deployment.alive(node.name) for node in deployment.layout.nodes)
        return deployment.digest()

    return _execute(scenario, seed=seed, brokers=3)


def test_a_cluster_of_brokers_gives_the_same_digest_in_every_process() -> None:
    digests = {
        subprocess.run(
            [
                sys.executable,
                "-c",
                "from tests.simulation.test_sim_environment import broken_cluster; print(broken_cluster(11))",
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert digests == {broken_cluster(11)}
    assert broken_cluster(12) not in digests
