"""A cluster on machines: `harness.environments.base.Deployment` by way of the node agent on each of them.

What this adds to `nemesis.ports`:

- The process of a node is killed and started, its machine lives on, with its data, its rules and its clock.
- Every directory of data lies on the lossy file system of its machine.
- A pause is SIGSTOP or, every other time where the machine can be frozen from outside, that. `missed` counts
  connections with something unread in the first case, packets that reached the machine in the second.
- A clock that was bent keeps its offset when it is reset: monotonic clocks are never stepped.
- Times are CLOCK_BOOTTIME since the deployment was made, which no fault bends. Traces are read when they are collected.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tarfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from harness.cluster.administration import Administration
from harness.cluster.layout import Layout
from harness.cluster.leadership import Leadership
from harness.cluster.systems import SYSTEMS
from harness.environments.base import Crash, Listener, TrailPoint
from harness.environments.machines.links import Ledger, Links, both_ends, receivers
from harness.environments.machines.machine import Machine, MachineError
from harness.environments.machines.node_handle import AGENT, COMMAND_LIMIT_S, Station, on_all
from harness.environments.machines.traces import merged
from nemesis.ports import ClockChange, EnvironmentCapability, Evidence, KeepUnsynced, Link, LinkQuality

HOME: Final = "/var/lib/faultline"
"""On every machine, below which everything of a node lies."""

_CUT = ("held", "refused", "reset")
_DEGRADED = ("delayed", "lost")
_COLLECT_LIMIT_S = 120.0
_CLOCK_READINGS = 5
_STOP_MARGIN_S = 30.0
"""Time for the agent to answer, beyond the limit that the system sets for its own stop."""


class MachineDeployment:
    """One cluster on machines, for one run."""

    def __init__(
        self,
        layout: Layout,
        provide: Callable[[], Awaitable[Mapping[str, Machine]]],
        *,
        seed: int,
        listener: Listener,
        facts: Mapping[str, str],
    ) -> None:
        """`provide` makes the machines, one for each node; called once, by `deploy`."""
        self._layout = layout
        self._provide = provide
        self._seed = seed
        self._listener = listener
        self._facts = dict(facts)
        self._began_ns = _true_ns()
        self._stations: dict[str, Station] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._crashes: list[Crash] = []
        self._unsupported: dict[EnvironmentCapability, str] = {}
        self._links, self._ledger = Links({}), Ledger({})
        self._collected = False
        self._pauses, self._losses = self.stream("pauses"), self.stream("losses")
        self._names = {node.node_id: node.name for node in layout.nodes}
        self._admin = Administration(layout)
        self._leadership = Leadership({node.node_id: (node.host, node.port) for node in layout.brokers})

    # ---- Deployment -------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """What was deployed."""
        return self._layout

    @property
    def facts(self) -> Mapping[str, str]:
        """As the environment tells them."""
        return self._facts

    @property
    def crashes(self) -> Sequence[Crash]:
        """Processes that ended by themselves, in order of time."""
        return sorted(self._crashes, key=lambda crash: crash.time_ns)

    @property
    def trail(self) -> Sequence[TrailPoint]:
        """None: runs on machines do not come back the same."""
        return ()

    async def deploy(self) -> None:
        """Make the machines, prepare them side by side, then start every node, controllers first."""
        machines = await self._provide()
        system = SYSTEMS[self._layout.system]
        for node in self._layout.nodes:
            service = system.service(self._layout.properties[node.name], HOME)
            self._stations[node.name] = Station(node, machines[node.name], service)
        addresses = {name: station.machine.address for name, station in self._stations.items()}
        self._links, self._ledger = Links(addresses), Ledger(addresses)
        await on_all(self._all, self._prepare)
        for nodes in (self._layout.controllers, self._layout.brokers):
            await on_all([self._stations[node.name] for node in nodes], self._start)

    def bootstrap(self) -> list[tuple[str, int]]:
        """Addresses of all brokers."""
        return [(node.host, node.port) for node in self._layout.brokers]

    def alive(self, node: str) -> bool:
        """Whether the node's process runs, as far as is known here."""
        return self._station(node).alive

    def stream(self, name: str) -> Random:
        """A stream of randomness of its own."""
        return Random(hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest())

    async def collect(self, directory: Path) -> None:
        """Write every node's files and its log below `directory`, and hand the traces over. The second time, nothing.

        What can be had is written before the first failure is raised.
        """
        if self._collected:
            return
        self._collected = True
        traces: dict[str, bytes] = {}

        async def fetch(station: Station) -> None:
            service = station.service
            places = [f"data={service.data}", f"node.log={service.log}"]
            places += [f"trace.jsonl={service.trace}"] if service.trace else []
            await station.thaw()
            packed = await station.machine.run([AGENT, "collect", *places], timeout_s=_COLLECT_LIMIT_S)
            await asyncio.to_thread(_unpack, packed, directory / station.name)
            trace = directory / station.name / "trace.jsonl"
            if trace.exists():
                traces[station.name] = trace.read_bytes()
                trace.unlink()

        try:
            await on_all(self._all, fetch)
        finally:
            for time_ns, node, event in merged(traces, {name: self._stations[name].began_ns for name in traces}):
                self._listener.on_trace(time_ns, node, event)

    async def close(self) -> None:
        """Kill every process, as far as machines still answer."""
        self._leadership.close()

        async def end(station: Station) -> None:
            try:
                await station.thaw()
                await station.ask("kill")
                station.alive = False
            except MachineError as error:
                self._listener.on_log(station.name, str(error))

        try:
            await on_all(self._all, end)
        finally:
            for task in self._watching:
                task.cancel()

    def digest(self) -> None:
        """None: runs on machines do not come back the same."""

    # ---- nemesis.ports.ClusterUnderTest ------------------------------------------------------------------------------

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
        """What one of the machines cannot do; known once deployed."""
        return self._unsupported

    def now_ns(self) -> int:
        """True time since the deployment was made."""
        return _true_ns() - self._began_ns

    @property
    def admin(self) -> Administration:
        """As any administrator reaches the brokers."""
        return self._admin

    async def leaders(self) -> Mapping[tuple[str, int], str]:
        """As the brokers' own Metadata tells."""
        leaders = await self._leadership.leaders()
        return {place: self._names[leader] for place, leader in leaders.items() if leader in self._names}

    async def controller(self) -> str | None:
        """As DescribeQuorum tells."""
        return await self._admin.controller()

    async def cut(self, links: Sequence[Link], *, reset: bool = False) -> None:
        """Drop what arrives over the links; with `reset`, refuse it, so that connections break once they are used."""
        for link in links:
            self._links.cut[link] = reset
        counters = await self._tell(receivers(links))
        self._ledger.open(links, _CUT, counters)

    async def heal_links(self, links: Sequence[Link]) -> Evidence:
        """Deliver again. Evidence in packets: `held`, `refused` (attempts to connect), `reset` (answered so)."""
        for link in links:
            self._links.cut.pop(link, None)
        return self._ledger.close(links, _CUT, await self._tell(receivers(links)))

    async def degrade(self, links: Sequence[Link], quality: LinkQuality) -> None:
        """Make links lossy and, where there is netem, slow. Raises MachineError where there is none."""
        if (quality.delay_ms or quality.jitter_ms) and EnvironmentCapability.DELAY in self._unsupported:
            raise MachineError(f"links cannot be slowed: {self._unsupported[EnvironmentCapability.DELAY]}")
        for link in links:
            self._links.degraded[link] = quality
        counters = await self._tell(both_ends(links) if quality.delay_ms or quality.jitter_ms else receivers(links))
        self._ledger.open(links, _DEGRADED, counters)

    async def clear_degradation(self, links: Sequence[Link]) -> Evidence:
        """Undo `degrade`. Evidence in packets: `delayed`, `lost`."""
        slow = False
        for link in links:
            quality = self._links.degraded.pop(link, None)
            slow = slow or (quality is not None and bool(quality.delay_ms or quality.jitter_ms))
        return self._ledger.close(links, _DEGRADED, await self._tell(both_ends(links) if slow else receivers(links)))

    async def pause(self, node: str) -> None:
        """Freeze the process."""
        station = self._station(node)
        from_outside = self._pauses.random() < 0.5
        await station.alone(lambda it: it.pause(from_outside=from_outside))

    async def resume(self, node: str) -> Evidence:
        """Thaw it; zeros when it was not paused, or was killed meanwhile."""
        return await self._station(node).alone(Station.resume)

    async def kill(self, node: str) -> Evidence:
        """SIGKILL."""
        return await self._end(node, "kill")

    async def stop(self, node: str) -> Evidence:
        """SIGTERM, and wait."""
        limit_s = self._station(node).service.stop_limit_s
        return await self._end(node, "stop", "--limit", str(limit_s), timeout_s=limit_s + _STOP_MARGIN_S)

    async def start(self, node: str) -> None:
        """Start a node that is down, on the disk it left."""
        await self._station(node).alone(self._start)

    async def power_off(self, node: str, keep: KeepUnsynced) -> Evidence:
        """SIGKILL, and the file system drops what was not synced."""
        return await self._end(node, "power-off", "--keep", str(keep), "--seed", str(self._losses.getrandbits(32)))

    async def wipe(self, node: str) -> Evidence:
        """SIGKILL, and all below the data directory is deleted."""
        return await self._end(node, "wipe", self._station(node).service.data)

    async def lie_about_fsync(self, node: str, lying: bool) -> Evidence:
        """Have the file system acknowledge syncs without keeping anything. Evidence when it ends: `lies`."""

        async def lie(station: Station) -> Evidence:
            told = await self._disk(station, command="lie", on=lying)
            before, lies = station.lies_before, int(told["lies"])
            station.lies_before = (lies if before is None else before) if lying else None
            return {} if lying or before is None else {"lies": lies - before}

        return await self._station(node).alone(lie)

    async def set_clock(self, node: str, change: ClockChange) -> Evidence:
        """Bend a clock, as the process sees it. Evidence: `offset_ms`, read back under the same library."""
        return await self._clock(node, "set", f"--jump-ms={change.jump_ms}", f"--rate={change.rate}")

    async def reset_clock(self, node: str) -> Evidence:
        """Let a clock run at its true rate again; its offset stays."""
        return await self._clock(node, "reset")

    # ---- inside -----------------------------------------------------------------------------------------------------

    @property
    def _all(self) -> list[Station]:
        return list(self._stations.values())

    def _station(self, name: str) -> Station:
        try:
            return self._stations[name]
        except KeyError:
            raise KeyError(f"no node {name!r}; there are: {', '.join(self._stations)}") from None

    async def _prepare(self, station: Station) -> None:
        service = station.service
        request = {"files": service.files, "directories": [HOME], "disk": [f"{HOME}/disk", service.data]}
        try:
            told = await station.ask("prepare", request=request)
        except MachineError as error:
            raise MachineError(f"{station.name} cannot be prepared: {error}") from None
        for feature in ("nftables", "libfaketime"):
            if told["lacks"][feature]:
                raise MachineError(f"{station.name} lacks {feature}: {told['lacks'][feature]}")
        if told["lacks"]["netem"]:
            self._unsupported.setdefault(
                EnvironmentCapability.DELAY, f"the kernel {told['kernel']} has no netem ({told['lacks']['netem']})"
            )
        ahead_ns = 0 if told["boot_id"] == _boot_id() else await self._ahead_ns(station)
        station.began_ns = self._began_ns + ahead_ns

    async def _ahead_ns(self, station: Station) -> int:
        """How far the machine's true clock is ahead of ours: the reading that took least time, taken at its middle."""
        readings = []
        for _ in range(_CLOCK_READINGS):
            before_ns = _true_ns()
            told = await station.ask("status")
            after_ns = _true_ns()
            readings.append((after_ns - before_ns, told["true_ns"] - (before_ns + after_ns) // 2))
        return min(readings)[1]

    async def _start(self, station: Station) -> None:
        if station.alive:
            return
        service = station.service
        request = {"argv": service.argv, "directory": HOME, "log": service.log, "bend_clock": True}
        told = await station.ask("start", request=request)
        station.alive, station.incarnation = True, told["incarnation"]
        task = asyncio.get_running_loop().create_task(self._watch(station, station.incarnation))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _watch(self, station: Station, incarnation: int) -> None:
        """Note a process that ends by itself."""
        ended = await station.until_ended(incarnation)
        if station.incarnation == incarnation:
            station.alive = False
        if not ended["expected"]:
            error = ended["error"] or f"ended with status {ended['status']}"
            self._crashes.append(Crash(station.name, ended["time_ns"] - station.began_ns, error))

    async def _end(self, node: str, *command: str, timeout_s: float = COMMAND_LIMIT_S) -> Evidence:
        async def end(station: Station) -> dict[str, Any]:
            station.alive = station.paused = False
            await station.thaw()
            return await station.ask(*command, timeout_s=timeout_s)

        told = await self._station(node).alone(end)
        names = ("stopped", "killed", "unsynced_bytes", "lost_bytes", "lost_files", "lost_names")
        return {name: told[name] for name in names if name in told}

    async def _tell(self, nodes: Sequence[str]) -> dict[str, Mapping[str, Mapping[str, int]]]:
        """Have each of these machines break exactly the links it should; their counters up to then."""
        stations = [self._station(node) for node in nodes]
        told = await on_all(stations, lambda station: station.ask("network", request=self._links.told(station.name)))
        return {name: answer["counters"] for name, answer in told.items()}

    async def _disk(self, station: Station, **request: Any) -> dict[str, Any]:
        return await station.ask("disk", "control", json.dumps(request))

    async def _clock(self, node: str, *command: str) -> Evidence:
        told = await self._station(node).alone(lambda station: station.ask("clock", *command))
        return {"offset_ms": told["offset_ms"]}


def _true_ns() -> int:
    """CLOCK_BOOTTIME where there is one, as nodes have it."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _boot_id() -> str:
    """Names this kernel since it was started; containers have that of the machine they are on."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _unpack(packed: bytes, directory: Path) -> None:
    (directory / "data").mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(directory, filter="data")
