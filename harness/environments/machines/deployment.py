"""A cluster on machines: `harness.environments.base.Deployment` by way of the node agent on each of them.

On machines, `nemesis.ports` means:

- The process of a node is killed and started, its machine lives on, with its data, its rules and its clock.
- Every directory of data lies on the lossy file system of its machine.
- A pause is SIGSTOP or, every other time where the machine can be frozen from outside, that. `missed` counts
  connections with something unread in the first case, packets that reached the machine in the second.
- A clock keeps its offset when it is reset: monotonic clocks are never stepped.
- Times are CLOCK_BOOTTIME since the deployment began, which no fault changes. Traces are read when they are collected.
"""

from __future__ import annotations

import asyncio
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
from harness.cluster.leader_lookup import LeaderLookup
from harness.cluster.random_streams import run_stream
from harness.environments.base import Crash, Listener, TrailPoint, VanishedNode
from harness.environments.machines.agent_session import AGENT
from harness.environments.machines.links import CounterBaseline, LinkFaults, receivers
from harness.environments.machines.machine import Machine, MachineError, MachineVanished
from harness.environments.machines.node_handle import COMMAND_LIMIT_S, NodeHandle, on_all
from harness.environments.machines.system_capabilities import MACHINES_LACK, lacks_of, recorded_events
from harness.environments.machines.traces import merged
from nemesis.ports import ClockChange, EnvironmentCapability, Evidence, KeepUnsynced, Link, LinkQuality, MessageRule

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
        self._handles: dict[str, NodeHandle] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._crashes: list[Crash] = []
        self._vanished: dict[str, VanishedNode] = {}
        self._unsupported: dict[EnvironmentCapability, str] = {
            **MACHINES_LACK,
            **lacks_of(layout),
        }
        self._link_faults, self._baseline = LinkFaults({}), CounterBaseline({})
        self._collected = False
        self._pauses, self._losses = self.stream("pauses"), self.stream("losses")
        self._names = {node.node_id: node.name for node in layout.nodes}
        self._admin = Administration(
            layout, self.now_ns, negotiate_versions=True, unix_ms=lambda: time.time_ns() // 1_000_000
        )
        self._leader_lookup = LeaderLookup({node.node_id: (node.host, node.port) for node in layout.brokers})

    # ---- Deployment -------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """The layout that was deployed."""
        return self._layout

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts from the environment."""
        return self._facts

    @property
    def crashes(self) -> Sequence[Crash]:
        """Processes that ended by themselves, in order of time."""
        return sorted(self._crashes, key=lambda crash: crash.time_ns)

    @property
    def vanished(self) -> Sequence[VanishedNode]:
        """Nodes whose machine is no longer there, in the order in which that was noticed."""
        return tuple(self._vanished.values())

    @property
    def trail(self) -> Sequence[TrailPoint]:
        """None: runs on machines do not come back the same."""
        return ()

    async def deploy(self) -> None:
        """Make the machines, prepare them side by side, then start every node, controllers first."""
        machines = await self._provide()
        system = self._layout.deployed_system
        for node in self._layout.nodes:
            service = system.service(self._layout.properties[node.name], HOME)
            self._handles[node.name] = NodeHandle(node, machines[node.name], service)
        addresses = {name: handle.machine.address for name, handle in self._handles.items()}
        self._link_faults, self._baseline = LinkFaults(addresses), CounterBaseline(addresses)
        await on_all(self._all, self._prepare)
        for nodes in (self._layout.controllers, self._layout.brokers):
            await on_all([self._handles[node.name] for node in nodes], self._start)

    def bootstrap(self) -> list[tuple[str, int]]:
        """Addresses of all brokers."""
        return [(node.host, node.port) for node in self._layout.brokers]

    def alive(self, node: str) -> bool:
        """Whether the node's process runs, as far as is known here."""
        return self._handle(node).alive

    def stream(self, name: str) -> Random:
        """A stream of randomness of the run's own."""
        return run_stream(self._seed, name)

    def held_files(self) -> None:
        """None: they are on the machines."""

    async def collect(self, directory: Path) -> None:
        """Kill every process, write every node's files and its log below `directory`, and hand the traces over. The
        second time, nothing.

        No file is read before the last process has ended: a trace read earlier would lack events, such as the write of
        a follower, on which later events in the trace of another node rest. Everything that machines still give is
        written before the first failure is raised. A machine that has vanished gives nothing, and is no failure.
        """
        if self._collected:
            return
        self._collected = True
        await on_all(self._all, self._end_process)
        traces: dict[str, bytes] = {}

        async def fetch(handle: NodeHandle) -> None:
            service = handle.service
            places = [f"data={service.data}", f"node.log={service.log}"]
            places += [f"trace.jsonl={service.trace}"] if service.trace else []
            places += [f"{name}={path}" for name, path in service.records.items()]
            try:
                packed = await handle.machine.run([AGENT, "collect", *places], timeout_s=_COLLECT_LIMIT_S)
            except MachineVanished:
                self._note_vanished(handle)
                return
            await asyncio.to_thread(_unpack, packed, directory / handle.name)
            trace = directory / handle.name / "trace.jsonl"
            if trace.exists():
                traces[handle.name] = trace.read_bytes()
                trace.unlink()

        try:
            await on_all(self._all, fetch)
        finally:
            for time_ns, node, event in merged(traces, {name: self._handles[name].began_ns for name in traces}):
                self._listener.on_trace(time_ns, node, event)
            began_unix_ns = time.time_ns() - self.now_ns()
            for time_ns, node, event in await asyncio.to_thread(
                recorded_events, self._layout, directory, began_unix_ns
            ):
                self._listener.on_trace(time_ns, node, event)

    async def close(self) -> None:
        """Kill every process that `collect` has not, as far as machines still answer."""
        self._leader_lookup.close()
        try:
            await on_all([handle for handle in self._all if handle.alive or not self._collected], self._end_process)
        finally:
            for task in self._watching:
                task.cancel()
            for handle in self._all:
                handle.agent.close()

    async def _end_process(self, handle: NodeHandle) -> None:
        try:
            await handle.thaw()
            await handle.ask("kill")
            handle.alive = False
        except MachineError as error:
            self._listener.on_log(handle.name, str(error))

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
        """Capabilities that one of the machines lacks; known once deployed."""
        return self._unsupported

    def now_ns(self) -> int:
        """True time since the deployment began."""
        return _true_ns() - self._began_ns

    @property
    def admin(self) -> Administration:
        """As any administrator reaches the brokers."""
        return self._admin

    async def leaders(self) -> Mapping[tuple[str, int], str]:
        """From the brokers' own Metadata."""
        leaders = await self._leader_lookup.leaders()
        return {place: self._names[leader] for place, leader in leaders.items() if leader in self._names}

    async def controller(self) -> str | None:
        """From DescribeQuorum."""
        return await self._admin.controller()

    async def cut(self, links: Sequence[Link], *, reset: bool = False, kept: bool = False) -> None:
        """Drop what arrives over the links; with `reset`, refuse it, so that connections break once they are used.
        Nothing can be kept: kernels send it again."""
        for link in links:
            self._link_faults.cut[link] = reset
        counters = await self._apply_links(receivers(links))
        self._baseline.open(links, _CUT, counters)

    async def heal_links(self, links: Sequence[Link]) -> Evidence:
        """Deliver again. Evidence in packets: `held`, `refused` (attempts to connect), `reset` (answered so)."""
        for link in links:
            self._link_faults.cut.pop(link, None)
        return self._baseline.close(links, _CUT, await self._apply_links(receivers(links)))

    async def degrade(self, links: Sequence[Link], quality: LinkQuality) -> None:
        """Make links lossy and, where there is netem, slow. Raises MachineError where there is none."""
        if (quality.delay_ms or quality.jitter_ms) and EnvironmentCapability.DELAY in self._unsupported:
            raise MachineError(f"links cannot be slowed: {self._unsupported[EnvironmentCapability.DELAY]}")
        counters = await self._apply_links(self._link_faults.degrade(links, quality))
        self._baseline.open(links, _DEGRADED, counters)

    async def clear_degradation(self, links: Sequence[Link]) -> Evidence:
        """Undo `degrade`. Evidence in packets: `delayed`, `lost`."""
        counters = await self._apply_links(self._link_faults.clear(links))
        self._link_faults.cleared(links)
        return self._baseline.close(links, _DEGRADED, counters)

    async def intercept(self, number: int, links: Sequence[Link], rule: MessageRule) -> None:
        """Raises MachineError: see `unsupported`."""
        raise MachineError(self._unsupported[EnvironmentCapability.MESSAGES])

    async def intercepted(self, number: int) -> int:
        """None: nothing is intercepted."""
        return 0

    async def stop_intercepting(self, number: int) -> Evidence:
        """There is nothing to stop."""
        return {}

    async def pause(self, node: str) -> None:
        """Freeze the process."""
        handle = self._handle(node)
        from_outside = self._pauses.random() < 0.5
        await handle.exclusively(lambda it: it.pause(from_outside=from_outside))

    async def resume(self, node: str) -> Evidence:
        """Thaw it; zeros when it was not paused. Of one that was ended meanwhile, how long it was paused until then."""
        return await self._handle(node).exclusively(NodeHandle.resume)

    async def kill(self, node: str) -> Evidence:
        """SIGKILL."""
        return await self._end(node, "kill")

    async def stop(self, node: str) -> Evidence:
        """SIGTERM, and wait."""
        limit_s = self._handle(node).service.stop_limit_s
        return await self._end(node, "stop", "--limit", str(limit_s), timeout_s=limit_s + _STOP_MARGIN_S)

    async def start(self, node: str) -> None:
        """Start a node that is down, on the disk it left."""
        await self._handle(node).exclusively(self._start)

    async def power_off(self, node: str, keep: KeepUnsynced, stopping_s: float | None = None) -> Evidence:
        """SIGKILL, with `stopping_s` so long after SIGTERM, and the file system drops what was not synced."""
        stop: Evidence = {}
        if stopping_s is not None:
            stop = await self._end(node, "stop", "--limit", str(stopping_s), timeout_s=stopping_s + _STOP_MARGIN_S)
            stop = {"killed": stop["killed"], "interrupted": stop["killed"]}
        seed = self._losses.getrandbits(32)
        return {**await self._end(node, "power-off", "--keep", str(keep), "--seed", str(seed)), **stop}

    async def stop_unsynced(self, node: str, failing_syncs: int, keep: KeepUnsynced) -> Evidence:
        """Raises MachineError: see `unsupported`."""
        raise MachineError(self._unsupported[EnvironmentCapability.FAILING_SYNCS])

    async def wipe(self, node: str) -> Evidence:
        """SIGKILL, and all below the data directory is deleted."""
        return await self._end(node, "wipe", self._handle(node).service.data)

    async def lie_about_fsync(self, node: str, lying: bool) -> Evidence:
        """Have the file system acknowledge syncs without keeping anything. Evidence when it ends: `lies`."""

        async def lie(handle: NodeHandle) -> Evidence:
            answer = await self._disk(handle, command="lie", on=lying)
            before, lies = handle.lies_before, int(answer["lies"])
            handle.lies_before = (lies if before is None else before) if lying else None
            return {} if lying or before is None else {"lies": lies - before}

        return await self._handle(node).exclusively(lie)

    async def fill_disk(self, node: str, room_bytes: int) -> None:
        """Have the file system refuse what takes room, after so many bytes."""

        async def fill(handle: NodeHandle) -> None:
            counters = await self._disk(handle, command="fail", error="ENOSPC", after=room_bytes)
            if handle.refused_before is None:
                handle.refused_before = int(counters["failed_enospc"])

        await self._handle(node).exclusively(fill)

    async def fail_syncs(self, node: str, failing_syncs: int) -> None:
        """Raises MachineError: see `unsupported`."""
        raise MachineError(self._unsupported[EnvironmentCapability.FAILING_SYNCS])

    async def free_disk(self, node: str) -> Evidence:
        """Have the file system take everything again. Evidence: `refused_writes`."""

        async def free(handle: NodeHandle) -> Evidence:
            counters = await self._disk(handle, command="fail", error=None)
            before, handle.refused_before = handle.refused_before, None
            return {"refused_writes": 0 if before is None else int(counters["failed_enospc"]) - before}

        return await self._handle(node).exclusively(free)

    async def slow_disk(self, node: str, delay_ms: float) -> None:
        """Have the file system wait before each write and each sync."""

        async def slow(handle: NodeHandle) -> None:
            counters = await self._disk(handle, command="slow", ms=delay_ms, on=["write", "sync"])
            if handle.slowed_before is None:
                handle.slowed_before = counters["slowed"], counters["slowed_seconds"]

        await self._handle(node).exclusively(slow)

    async def restore_disk_speed(self, node: str) -> Evidence:
        """Have the file system wait no more. Evidence: `delayed_operations`, `delayed_ms`."""

        async def restore(handle: NodeHandle) -> Evidence:
            counters = await self._disk(handle, command="slow", ms=0)
            before, handle.slowed_before = handle.slowed_before, None
            if before is None:
                return {"delayed_operations": 0, "delayed_ms": 0.0}
            return {
                "delayed_operations": counters["slowed"] - before[0],
                "delayed_ms": (counters["slowed_seconds"] - before[1]) * 1000,
            }

        return await self._handle(node).exclusively(restore)

    async def set_clock(self, node: str, change: ClockChange) -> Evidence:
        """Change the clock that the process sees. Evidence: `offset_ms`, read back under the same library."""
        return await self._clock(node, "set", f"--jump-ms={change.jump_ms}", f"--rate={change.rate}")

    async def reset_clock(self, node: str) -> Evidence:
        """Let a clock run at its true rate again; its offset stays."""
        return await self._clock(node, "reset")

    # ---- inside -----------------------------------------------------------------------------------------------------

    @property
    def _all(self) -> list[NodeHandle]:
        return list(self._handles.values())

    def _handle(self, name: str) -> NodeHandle:
        try:
            return self._handles[name]
        except KeyError:
            raise KeyError(f"no node {name!r}; there are: {', '.join(self._handles)}") from None

    async def _prepare(self, handle: NodeHandle) -> None:
        service = handle.service
        request = {"files": service.files, "directories": [HOME], "disk": [f"{HOME}/disk", service.data]}
        try:
            answer = await handle.ask("prepare", request=request)
        except MachineError as error:
            raise MachineError(f"{handle.name} cannot be prepared: {error}") from None
        for feature in ("nftables", "libfaketime"):
            if answer["lacks"][feature]:
                raise MachineError(f"{handle.name} lacks {feature}: {answer['lacks'][feature]}")
        if answer["lacks"]["netem"]:
            self._unsupported.setdefault(
                EnvironmentCapability.DELAY, f"the kernel {answer['kernel']} has no netem ({answer['lacks']['netem']})"
            )
        ahead_ns = 0 if answer["boot_id"] == _boot_id() else await self._ahead_ns(handle)
        handle.began_ns = self._began_ns + ahead_ns

    async def _ahead_ns(self, handle: NodeHandle) -> int:
        """Offset of the machine's true clock from ours: the reading that took least time, taken at its middle."""
        readings = []
        for _ in range(_CLOCK_READINGS):
            before_ns = _true_ns()
            answer = await handle.ask("status")
            after_ns = _true_ns()
            readings.append((after_ns - before_ns, answer["true_ns"] - (before_ns + after_ns) // 2))
        return min(readings)[1]

    async def _start(self, handle: NodeHandle) -> None:
        """Start a node unless it runs. The machine knows: on a busy one its process may have ended long before that is
        heard of here."""
        service = handle.service
        bend_clock = EnvironmentCapability.CLOCKS not in self._unsupported
        request = {"argv": service.argv, "directory": HOME, "log": service.log, "bend_clock": bend_clock}
        answer = await handle.ask("start", request=request)
        if not answer["started"]:  # it runs: the command that was to end it has failed
            handle.alive = handle.ended < answer["incarnation"]
            return
        handle.alive, handle.incarnation = True, answer["incarnation"]
        task = asyncio.get_running_loop().create_task(self._watch(handle, handle.incarnation))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _watch(self, handle: NodeHandle, incarnation: int) -> None:
        """Note a process that ends by itself."""
        try:
            ended = await handle.until_ended(incarnation)
        except MachineVanished:
            self._note_vanished(handle)
            return
        handle.ended = incarnation
        if handle.incarnation == incarnation:
            handle.alive = False
        if not ended["expected"]:
            error = ended["error"] or f"ended with status {ended['status']}"
            self._crashes.append(Crash(handle.name, ended["time_ns"] - handle.began_ns, error))

    def _note_vanished(self, handle: NodeHandle) -> None:
        handle.alive = False
        self._vanished.setdefault(handle.name, VanishedNode(handle.name, self.now_ns()))

    async def _end(self, node: str, *command: str, timeout_s: float = COMMAND_LIMIT_S) -> Evidence:
        answer = await self._handle(node).exclusively(lambda it: it.end(*command, timeout_s=timeout_s))
        names = ("stopped", "killed", "unsynced_bytes", "lost_bytes", "lost_files", "lost_names")
        return {name: answer[name] for name in names if name in answer}

    async def _apply_links(self, nodes: Sequence[str]) -> dict[str, Mapping[str, Mapping[str, int]]]:
        """Send each of these machines all its faulty links; their counters up to then."""
        handles = [self._handle(node) for node in nodes]
        answer = await on_all(
            handles, lambda handle: handle.ask("network", request=self._link_faults.request_for(handle.name))
        )
        return {name: answer["counters"] for name, answer in answer.items()}

    async def _disk(self, handle: NodeHandle, **request: Any) -> dict[str, Any]:
        return await handle.ask("disk", "control", json.dumps(request))

    async def _clock(self, node: str, *command: str) -> Evidence:
        answer = await self._handle(node).exclusively(lambda handle: handle.ask("clock", *command))
        return {"offset_ms": answer["offset_ms"]}


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
