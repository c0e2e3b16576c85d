"""The embedded environment: a cluster inside one process, in the deterministic world.

Every node runs the real broker code on its own simulated machine; the scenario and its clients run on the world's
`harness` node, whose clock is true and which is never broken (its links may be cut like any other's). One seed is one
run: the same layout and seed give the same digest, in any process, as long as the code is the same.

In the simulation, `nemesis.ports` means:

- `leaders` is the controllers' latest decision, and `controller` the one elected last, read off the protocol trace.
- A kill, a power loss or a pause comes, every other time, not at once but just before one of the node's next few
  effects (a change on disk, bytes handed to the network), within 20 ms: so it also falls between writes that belong
  together. A power loss in the middle of a clean stop comes before one of the next 150 at most, so that it also falls
  into the closing of the logs, which takes next to no time.
- A clock keeps its offset when it is reset: monotonic clocks are never stepped. Evidence counts from its offset before
  the fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TypeVar, TypeVarTuple, Unpack

from harness.cluster.administration import Administration
from harness.cluster.layout import Layout, cluster_layout
from harness.cluster.random_streams import run_stream
from harness.environments.base import Crash, Deployment, Listener, TrailPoint, VanishedNode
from harness.environments.disk_witness import witnessed
from harness.environments.machines.trace_deduplicator import TraceDeduplicator
from harness.environments.sim_machine import CRASH_POINT_WITHIN_S, SimMachine
from harness.simulation.network.network import LinkLatency
from harness.simulation.node import Exit
from harness.simulation.world import HARNESS, World
from images.broker.config import NodeConfig
from images.broker.node import run_node
from images.broker.ports import NodePorts
from images.trace import TraceEvent
from nemesis.ports import (
    CLIENTS,
    ClockChange,
    EnvironmentCapability,
    Evidence,
    KeepUnsynced,
    Link,
    LinkQuality,
    MessageRule,
)
from results.run.node_files import write_files

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

VIRTUAL_LIMIT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Simulation:
    """The environment called `sim`."""

    latency: LinkLatency = field(default_factory=LinkLatency)
    virtual_limit_s: float = VIRTUAL_LIMIT_S
    """A scenario that takes longer is stuck: OutOfTime says where."""

    @property
    def name(self) -> str:
        """`sim`."""
        return "sim"

    @property
    def injection_s(self) -> float:
        """The longest wait for a crash point; everything else happens at once."""
        return CRASH_POINT_WITHIN_S

    @property
    def step_s(self) -> float:
        """None: steps are as tight as they are drawn."""
        return 0.0

    def layout(self, brokers: int, controllers: int = 1) -> Layout:
        """Every node is its own host, called by its name."""
        return cluster_layout(brokers, controllers)

    def execute(
        self,
        layout: Layout,
        scenario: Callable[[Deployment], Awaitable[T]],
        *,
        seed: int,
        listener: Listener,
    ) -> T:
        """Run `scenario` in a world of this seed. The deployment can still be read afterwards."""

        async def carried_out() -> T:
            return await scenario(deployment)

        with World(seed, latency=self.latency) as world:
            deployment = SimDeployment(world, layout, listener)
            return world.run(carried_out(), time_limit_s=self.virtual_limit_s)


class SimDeployment:
    """A cluster in a world; `harness.environments.base.Deployment`."""

    def __init__(self, world: World, layout: Layout, listener: Listener) -> None:
        self._world = world
        self._layout = layout
        self._listener = listener
        self._leaders: dict[tuple[str, int], int] = {}
        self._names = {node.node_id: node.name for node in layout.nodes}
        self._admin = Administration(layout, self.now_ns)
        self._exits: list[Crash] = []
        self._deduplicator = TraceDeduplicator()
        self._controller: str | None = None
        world.harness.on_error = lambda text: self._notify(listener.on_log, HARNESS, text)
        self._crash_points = world.stream("world/strikes")
        self._machines = {
            node.name: SimMachine(
                world.add_node(node.name), layout.properties.get(node.name, ""), world.stream(f"world/disk-{node.name}")
            )
            for node in layout.nodes
        }

    # Deployment

    @property
    def layout(self) -> Layout:
        """The layout that was deployed."""
        return self._layout

    @property
    def crashes(self) -> Sequence[Crash]:
        """Processes that ended by themselves, and attempts to reach the real world, in order of time."""
        refused = [
            Crash(call.node, call.time_ns, f"{call.call} was called in simulation") for call in self._world.real_calls
        ]
        return sorted(self._exits + refused, key=lambda crash: crash.time_ns)

    @property
    def vanished(self) -> Sequence[VanishedNode]:
        """None: nothing outside reaches a simulated machine."""
        return ()

    @property
    def trail(self) -> Sequence[TrailPoint]:
        """Every 1024 scheduling decisions."""
        return [TrailPoint(*point) for point in self._world.trail]

    async def deploy(self) -> None:
        """Start every node, controllers first."""
        for node in self._layout.nodes:
            await self.start(node.name)

    def bootstrap(self) -> list[tuple[str, int]]:
        """Addresses of all brokers."""
        return [(node.host, node.port) for node in self._layout.brokers]

    def alive(self, node: str) -> bool:
        """Whether the node's process runs."""
        return self._machine(node).node.alive

    def stream(self, name: str) -> Random:
        """A stream of randomness of the run's own, apart from those of the world and of the nodes."""
        return run_stream(self._world.seed, name)

    async def collect(self, directory: Path) -> None:
        """Write every node's files, as its processes see them, and its log below `directory`."""
        with self._world.guard.outside():
            write_files(directory, self.held_files())

    def held_files(self) -> Mapping[str, bytes]:
        """Every node's files, as its processes see them, and its log."""
        files: dict[str, bytes] = {}
        for name, machine in self._machines.items():
            files |= {f"{name}/data/{path}": contents for path, contents in machine.node.disk.files()}
            files[f"{name}/node.log"] = "".join(f"{line}\n" for line in machine.log).encode()
        return files

    async def close(self) -> None:
        """Kill every process."""
        for machine in self._machines.values():
            machine.node.kill()

    def digest(self) -> str:
        """Every scheduling decision and every byte that left a node, in one hash."""
        return self._world.hexdigest()

    # nemesis.ports.ClusterUnderTest

    @property
    def brokers(self) -> tuple[str, ...]:
        """Names of the brokers."""
        return tuple(node.name for node in self._layout.brokers)

    @property
    def controllers(self) -> tuple[str, ...]:
        """Names of the controllers."""
        return tuple(node.name for node in self._layout.controllers)

    @property
    def unsupported(self) -> Mapping[EnvironmentCapability, str]:
        """Nothing."""
        return {}

    @property
    def facts(self) -> Mapping[str, str]:
        """None: a run is its spec, its seed and the code."""
        return {}

    def now_ns(self) -> int:
        """True time since the run began."""
        return self._world.now_ns

    @property
    def admin(self) -> Administration:
        """Over the simulated network, from outside the nodes."""
        return self._admin

    async def leaders(self) -> Mapping[tuple[str, int], str]:
        """The controllers' latest decision."""
        return {place: self._names[leader] for place, leader in self._leaders.items() if leader in self._names}

    async def controller(self) -> str | None:
        """The one elected last."""
        return self._controller

    async def cut(self, links: Sequence[Link], *, reset: bool = False, kept: bool = False) -> None:
        """Stop delivery; with `reset`, connections over the links break at both ends."""
        for link in links:
            self._world.network.cut(*_ends(link), channel=link.channel, reset=reset, kept=kept)

    async def heal_links(self, links: Sequence[Link]) -> Evidence:
        """Deliver again. Evidence: `held`, `refused` (connection attempts stopped), `reset` (ends broken)."""
        held = refused = reset = 0
        for link in links:
            counters = self._world.network.heal_link(*_ends(link), channel=link.channel)
            held += counters.held
            refused += counters.refused
            reset += counters.reset
        return {"held": held, "refused": refused, "reset": reset}

    async def degrade(self, links: Sequence[Link], quality: LinkQuality) -> None:
        """Make links slow or lossy."""
        for link in links:
            self._world.network.degrade(*_ends(link), quality, channel=link.channel)

    async def clear_degradation(self, links: Sequence[Link]) -> Evidence:
        """Undo `degrade`."""
        delayed = lost = delay_ns = 0
        for link in links:
            counters = self._world.network.clear_degradation(*_ends(link), channel=link.channel)
            delayed += counters.delayed
            delay_ns += counters.delay_ns
            lost += counters.lost
        return {"delayed": delayed, "delay_seconds": delay_ns / 1e9, "lost": lost}

    async def intercept(self, number: int, links: Sequence[Link], rule: MessageRule) -> None:
        """Look at the messages of the links, and do what the rule says to some."""
        self._world.network.intercept(number, [Link(*_ends(link)) for link in links], rule)

    async def intercepted(self, number: int) -> int:
        """Messages taken so far."""
        return self._world.network.intercepted(number)

    async def stop_intercepting(self, number: int) -> Evidence:
        """Let them pass. Evidence: `intercepted`."""
        return {"intercepted": self._world.network.stop_intercepting(number)}

    async def pause(self, node: str) -> None:
        """Freeze the process."""
        machine = self._machine(node)
        await machine.at_crash_point(self._crash_points, machine.node.pause)

    async def resume(self, node: str) -> Evidence:
        """Thaw it; zeros when it was not paused. Of one that was ended meanwhile, how long it was paused until then."""
        frozen_ns, missed = self._machine(node).node.resume()
        return {"frozen_seconds": frozen_ns / 1e9, "missed": missed}

    async def kill(self, node: str) -> Evidence:
        """End the process."""
        machine = self._machine(node)
        killed = machine.node.alive
        await machine.at_crash_point(self._crash_points, lambda: machine.node.kill())
        return {"killed": float(killed)}

    async def start(self, node: str) -> None:
        """Start a node that is down, on the disk it left. Raises ConfigError for properties it cannot read."""
        machine = self._machine(node)
        await machine.until_left()
        if machine.node.alive:
            return
        config = NodeConfig.parse(machine.properties)
        machine.node.on_exit = lambda exit: self._take_exit(machine, exit)
        machine.node.on_error = lambda text: self._take_log(machine, text)
        machine.node.on_unheard = lambda peer: self._take_trace(
            node, TraceEvent("answer_unheard", detail={"peer": peer})
        )
        incarnation = machine.node.incarnation + 1
        stopping = machine.stopping = asyncio.Event()

        async def main() -> None:
            process = machine.node.loop
            node_ports = NodePorts(
                files=machine.node.files,
                random=self._world.stream(f"node-{node}-{incarnation}"),
                trace=lambda event: self._take_trace(node, event) if process.alive else None,
                log=lambda line: self._take_log(machine, line) if process.alive else None,
                now_ms=machine.node.clock.wall_now_ms,
            )
            await run_node(config, node_ports, stopping)

        machine.node.start(main)

    def configure(self, node: str, properties: str) -> None:
        """Give a node other properties, which it reads at its next start."""
        self._machine(node).properties = properties

    async def stop(self, node: str) -> Evidence:
        """As SIGTERM does; a process that is frozen stops when it thaws."""
        machine = self._machine(node)
        incarnation = machine.node.incarnation
        if not machine.node.alive:
            return {"stopped": 0.0}
        machine.ask_to_stop()
        await machine.until_left()
        return {"stopped": float(machine.left == incarnation)}

    async def power_off(self, node: str, keep: KeepUnsynced, stopping_s: float | None = None) -> Evidence:
        """End the process and drop unsynced writes; the machine is off until `start`. One that is stopping ends just
        before one of the effects of its stop, or after `stopping_s`."""
        machine = self._machine(node)
        evidence: dict[str, float] = {"killed": float(machine.node.alive)}

        def lose() -> None:
            if stopping_s is not None:
                evidence["killed"] = float(machine.node.alive)
                evidence["interrupted"] = float(machine.node.alive and not machine.node.paused)
            report = machine.node.power_off(keep, machine.disk_random)
            evidence["unsynced_bytes"] = report.unsynced_bytes
            evidence["lost_bytes"] = report.lost_bytes
            evidence["lost_names"] = report.lost_names

        if stopping_s is None:
            await machine.at_crash_point(self._crash_points, lose)
        else:
            await machine.while_stopping(self._crash_points, stopping_s, lose)
        return evidence

    async def stop_unsynced(self, node: str, failing_syncs: int, keep: KeepUnsynced) -> Evidence:
        """Stop the process while so many syncs fail, the first ones; then drop what is not synced."""
        disk = self._machine(node).node.disk
        failed_before, disk.failing_syncs = disk.counters.failed_syncs, failing_syncs
        try:
            await self.stop(node)
        finally:
            disk.failing_syncs = 0
        failed = disk.counters.failed_syncs - failed_before
        return {**await self.power_off(node, keep), "failed_syncs": failed}

    async def wipe(self, node: str) -> Evidence:
        """End the process and empty its disk."""
        machine = self._machine(node)
        evidence: dict[str, float] = {"killed": float(machine.node.alive)}

        def lose() -> None:
            machine.node.kill()
            evidence["lost_bytes"] = machine.node.disk.wipe()

        await machine.at_crash_point(self._crash_points, lose)
        return evidence

    async def lie_about_fsync(self, node: str, lying: bool) -> Evidence:
        """Have the disk acknowledge syncs without keeping anything. Evidence when it ends: `lies`."""
        machine = self._machine(node)
        disk = machine.node.disk
        if lying and not disk.lying:
            machine.lies_before = disk.counters.lies
        ends = disk.lying and not lying
        disk.lying = lying
        return {"lies": disk.counters.lies - machine.lies_before} if ends else {}

    async def fill_disk(self, node: str, room_bytes: int) -> None:
        """Leave the disk so much room."""
        self._machine(node).disk_without_room().fill(room_bytes)

    async def fail_syncs(self, node: str, failing_syncs: int) -> None:
        """Have so many of the next syncs fail."""
        self._machine(node).disk_without_room().failing_syncs = failing_syncs

    async def free_disk(self, node: str) -> Evidence:
        """Give the disk all the room it wants. Evidence: `refused_writes`."""
        machine = self._machine(node)
        disk, before = machine.node.disk, machine.refused_before
        disk.capacity_bytes, disk.failing_syncs, machine.refused_before = None, 0, None
        return {"refused_writes": 0 if before is None else disk.counters.refused - before}

    async def slow_disk(self, node: str, delay_ms: float) -> None:
        """Have the process wait so long for each write and each sync."""
        machine = self._machine(node)
        disk = machine.node.disk
        if not disk.delay_ns:
            machine.delayed_before = disk.counters.delayed_operations, disk.counters.delayed_ns
        disk.delay_ns = round(delay_ms * 1e6)

    async def restore_disk_speed(self, node: str) -> Evidence:
        """Let disk operations take no time again. Evidence: `delayed_operations`, `delayed_ms`."""
        machine = self._machine(node)
        disk = machine.node.disk
        if not disk.delay_ns:
            return {"delayed_operations": 0, "delayed_ms": 0.0}
        machine.node.shorten_stall()
        operations, duration_ns = machine.delayed_before
        return {
            "delayed_operations": disk.counters.delayed_operations - operations,
            "delayed_ms": (disk.counters.delayed_ns - duration_ns) / 1e6,
        }

    async def set_clock(self, node: str, change: ClockChange) -> Evidence:
        """Change a clock."""
        machine = self._machine(node)
        if machine.offset_before_ns is None:
            machine.offset_before_ns = machine.node.clock.offset_now_ns()
        machine.node.set_clock(jump_ms=change.jump_ms, rate=change.rate, wall_jump_ms=change.wall_jump_ms)
        return {"offset_ms": machine.wall_offset_ns / 1e6}

    async def reset_clock(self, node: str) -> Evidence:
        """Let a clock run at its true rate again; its offset stays, but for that of the wall clock."""
        machine = self._machine(node)
        if machine.offset_before_ns is None:
            return {"offset_ms": 0.0}
        offset_ns = machine.wall_offset_ns
        machine.offset_before_ns = None
        machine.node.reset_clock()
        return {"offset_ms": offset_ns / 1e6}

    # Inside

    def _machine(self, name: str) -> SimMachine:
        try:
            return self._machines[name]
        except KeyError:
            raise KeyError(f"no node {name!r}; there are: {', '.join(self._machines)}") from None

    def _take_trace(self, node: str, event: TraceEvent) -> None:
        if not self._deduplicator.is_new(event):
            return
        if event.kind == "quorum_leader":
            self._controller = node
        elif event.kind == "partition_changed":
            self._leaders[event.topic, event.partition] = event.leader
        event = witnessed(event, self._machine(node).node.disk)
        self._notify(self._listener.on_trace, self._world.now_ns, node, event)

    def _take_exit(self, machine: SimMachine, exit: Exit) -> None:
        if exit.error is None and machine.leaving == machine.node.incarnation:
            machine.left = machine.leaving
            return
        text = _failure(exit)
        self._exits.append(Crash(exit.node, exit.time_ns, text))
        self._take_log(machine, text)

    def _take_log(self, machine: SimMachine, line: str) -> None:
        machine.log.append(f"{self._world.now_ns / 1e9:.6f} {line}")
        self._notify(self._listener.on_log, machine.node.name, line)

    def _notify(self, listen: Callable[[Unpack[Ts]], None], *what: *Ts) -> None:
        """Call the listener outside the simulation; what it raises ends the run and is not the node's to handle."""
        guard = self._world.guard
        before, guard.active = guard.active, False  # as `guard.outside` does, for every event of the trace
        try:
            listen(*what)
        except Exception as error:
            self._world.fail(error)
        finally:
            guard.active = before


def _ends(link: Link) -> tuple[str, str]:
    """The nodes of a link: all clients run on one of the harness."""
    return (
        HARNESS if link.source == CLIENTS else link.source,
        HARNESS if link.target == CLIENTS else link.target,
    )


def _failure(exit: Exit) -> str:
    """Last words of a process, as `images.broker.__main__` prints them: one line for an OSError, else the traceback."""
    error = exit.error
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{exit.node} failed: {error}" if isinstance(error, OSError) else exit.text
