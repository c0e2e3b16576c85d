"""One machine of the world and the process on it.

The machine has a name, a clock, a disk and a place in the network, and may be without power. The process, when
there is one, is a `NodeLoop` with a main task. It ends by being killed, by losing its machine's power, or by
itself, when its main task ends: then the rest of it ends too, at once, and its kernel closes what it had open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from harness.simulation.clock import NodeClock
from harness.simulation.crash_points import CrashPoint
from harness.simulation.event_loop.loop import NodeLoop, describe_error
from harness.simulation.network.network import Network
from harness.simulation.storage.disk import PowerLossReport, SimDisk
from harness.simulation.storage.files import SimFiles
from harness.simulation.views import WorldView
from nemesis.ports import KeepUnsynced


@dataclass(frozen=True, slots=True)
class Exit:
    """A process that ended by itself."""

    node: str
    time_ns: int
    error: BaseException | None
    """The exception of its main task; None when it returned."""
    text: str
    """The traceback, or a line saying that it returned."""


class SimNode:
    """A machine and its process."""

    def __init__(self, world: WorldView, network: Network, name: str, index: int) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.index = index
        self.clock = NodeClock(lambda: world.now_ns)
        self.disk = SimDisk(index=index, digest_buffer=world.digest.buffer)
        self.powered = True
        self.paused = False
        self.frozen = False
        """Whether the process runs nothing, being paused or waiting for a slow disk."""
        self.incarnation = 0
        self.errors: list[str] = []
        """Errors of callbacks and of tasks that no code awaits, as text."""
        self.on_error: Callable[[str], None] | None = None
        self.on_exit: Callable[[Exit], None] | None = None
        self.on_unheard: Callable[[str], None] | None = None
        self._crash_point = CrashPoint()
        self._files: SimFiles | None = None
        self._loop: NodeLoop | None = None
        self._dead: list[NodeLoop] = []
        self._paused_at_ns = 0
        self._ended_pause = (0, 0)
        """As `resume` tells it: a pause that the end of the process ended."""
        self._stalled = False
        self._stalled_until_ns = 0
        self.disk.on_delay = self._stall

    def __repr__(self) -> str:
        return f"<SimNode {self.name}{' paused' if self.paused else '' if self.alive else ' down'}>"

    @property
    def alive(self) -> bool:
        """Whether a process runs (a paused one does)."""
        return self._loop is not None

    @property
    def loop(self) -> NodeLoop:
        """The loop of the running process. Raises RuntimeError when there is none."""
        if self._loop is None:
            raise RuntimeError(f"{self.name} is down")
        return self._loop

    @property
    def files(self) -> SimFiles:
        """The disk as the running process sees it. Raises RuntimeError when there is none."""
        if self._files is None:
            raise RuntimeError(f"{self.name} is down")
        return self._files

    def boot(self) -> NodeLoop:
        """Power the machine if need be and start a process with nothing to run yet. Raises RuntimeError if one runs."""
        if self._loop is not None:
            raise RuntimeError(f"{self.name} is running")
        if not self.powered:
            self.powered = True
            self.network.machine_came_up(self)
        self.incarnation += 1
        self._crash_point = CrashPoint()
        self._files = SimFiles(self.disk, self._crash_point)
        self._loop = NodeLoop(self.world, self.network, self, self.incarnation, self._crash_point)
        return self._loop

    def start(self, main: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start a process running `main()`."""
        loop = self.boot()
        task = loop.create_task(main(), name=f"{self.name}-main")
        task.add_done_callback(self._main_ended)

    def kill(self) -> bool:
        """End the process now, as SIGKILL does; what it wrote stays. False when there was none."""
        loop = self._end()
        if loop is None:
            return False
        self.network.process_died(loop)
        return True

    def power_off(self, keep: KeepUnsynced, random: Random) -> PowerLossReport:
        """End the process, if any, and drop unsynced writes; the machine stays off until `start`."""
        self._end()
        if self.powered:
            self.powered = False
            self.network.machine_went_off(self)
        return self.disk.lose_power(keep, random)

    def pause(self) -> None:
        """Freeze the process, as SIGSTOP does. Its kernel and its clock go on."""
        loop = self._loop
        if loop is None or self.paused:
            return
        self.paused = self.frozen = True
        self._paused_at_ns = self.world.now_ns
        loop.freeze()

    def resume(self) -> tuple[int, int]:
        """Thaw it. Returns (nanoseconds frozen, callbacks that waited): until it ended, if it ended meanwhile."""
        (frozen_ns, missed), self._ended_pause = self._ended_pause, (0, 0)
        loop = self._loop
        if loop is None or not self.paused:
            return frozen_ns, missed
        self.paused = False
        waiting = len(loop.ready)
        if not self._stalled:
            self.frozen = False
            waiting = loop.thaw()
        return frozen_ns + self.world.now_ns - self._paused_at_ns, missed + waiting

    def _stall(self, duration_ns: int) -> None:
        """The process waits for its disk; several waits add up."""
        if self._loop is None:
            return
        self._stalled_until_ns = max(self._stalled_until_ns, self.world.now_ns) + duration_ns
        if not self._stalled:
            self._stalled = self.frozen = True
            self._loop.freeze()
            self.world.at(self._stalled_until_ns, self._go_on, self._loop)

    def shorten_stall(self) -> None:
        """The disk is fast from now on: of several writes that the process still waits for, only the first is slow."""
        slow_ns, self.disk.delay_ns = self.disk.delay_ns, 0
        until_ns = self.world.now_ns + slow_ns
        if self._stalled and self._stalled_until_ns > until_ns:
            self.disk.counters.delayed_ns -= self._stalled_until_ns - until_ns
            self._stalled_until_ns = until_ns
            self.world.at(until_ns, self._go_on, self._loop)

    def _go_on(self, loop: NodeLoop) -> None:
        if loop is not self._loop or not self._stalled:
            return
        if self.world.now_ns < self._stalled_until_ns:  # one callback asked the disk for more than one operation
            self.world.at(self._stalled_until_ns, self._go_on, loop)
            return
        self._stalled = False
        if not self.paused:
            self.frozen = False
            loop.thaw()

    def arm(self, effects: int, action: Callable[[], object]) -> None:
        """Call `action` just before the process's effect number `effects` from now, unless it ends before.

        An effect is a change on disk or a write to a connection. A process that `action` kills runs on to its next
        await, but nothing it does there has an effect.
        """
        self._crash_point.arm(effects, action)

    def disarm(self) -> None:
        """Forget what was armed."""
        self._crash_point.disarm()

    def set_clock(self, *, jump_ms: float = 0.0, rate: float = 1.0, wall_jump_ms: float = 0.0) -> None:
        """Change the clocks; timers that are due fire at once."""
        self.clock.change(jump_ms=jump_ms, rate=rate, wall_jump_ms=wall_jump_ms)
        if self._loop is not None:
            self._loop.clock_changed()

    def reset_clock(self) -> None:
        """Let the clock run at its true rate again."""
        self.clock.reset()
        if self._loop is not None:
            self._loop.clock_changed()

    def record_error(self, text: str) -> None:
        """Record an error that the process did not handle."""
        self.errors.append(text)
        if self.on_error is not None:
            self.on_error(text)

    def left_unheard(self, peer: str) -> None:
        """The process gives up a connection to `peer` on which it has read the answer to each request."""
        if self.on_unheard is not None:
            self.on_unheard(peer)

    def dispose(self) -> None:
        """The world is over: close what is left of every process."""
        self._end()
        for loop in self._dead:
            loop.dispose()
        self._dead.clear()

    def waiting(self) -> list[str]:
        """One line a task that has not ended: its name and where it waits."""
        if self._loop is None:
            return []
        return [f"{self.name}: {_describe(task)}" for task in self._loop.pending_tasks()]

    def _end(self) -> NodeLoop | None:
        loop = self._loop
        if loop is None:
            return None
        self._loop = None
        if self.paused:
            self._ended_pause = self.world.now_ns - self._paused_at_ns, len(loop.ready)
        self.paused = self.frozen = self._stalled = False
        self._stalled_until_ns = 0
        self._crash_point.disarm()
        if self._files is not None:
            self._files.unmount()
            self._files = None
        loop.die()
        self._dead.append(loop)
        return loop

    def exited(self, error: SystemExit) -> None:
        """The process called sys.exit()."""
        self.kill()
        if self.on_exit is not None:
            self.on_exit(Exit(self.name, self.world.now_ns, error, describe_error(error)))

    def _main_ended(self, task: asyncio.Task[object]) -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            text = f"{self.name}: the main task was cancelled"
        elif error is None:
            text = f"{self.name}: the process ended without being stopped"
        else:
            text = describe_error(error)
        self.kill()
        if self.on_exit is not None:
            self.on_exit(Exit(self.name, self.world.now_ns, error, text))


def _describe(task: asyncio.Task[Any]) -> str:
    coroutine: Any = task.get_coro()
    where = ""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            where = f" at {frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return f"{task.get_name()} waits{where}"
