"""The deterministic world: virtual time, and the schedule of everything that happens.

    with World(seed=7) as world:
        node = world.add_node("b1")
        node.start(main)
        result = world.run(scenario())

Everything runs in one thread. Each process has its own event loop, first in, first out, as asyncio promises; where
several processes have something to do, a seeded draw picks whose next callback runs. A callback costs a few
microseconds of virtual time, as if all processes shared one processor, so that even a process that spins lets time
pass. When no process has anything to do, time leaps to the next event: an arrival, a timer, by the clock of the node it
belongs to.

`world.harness` is a node like the others that the scenario and its clients run on; it is never broken.

One seed is one schedule: every draw comes from a named stream of the seed (`stream`), real time and real randomness
are refused (`guard`), tasks have an order of their own (`loop`), the garbage collector runs at fixed steps only,
and what it finalises cannot schedule anything. `digest()` is the proof: equal digests, equal runs.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from asyncio.events import _set_running_loop
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from struct import Struct
from types import TracebackType
from typing import Any, Self, TypeVar

from harness.cluster.random_streams import named_stream
from harness.simulation.digest import EVENT, NODES_MAX, Digest
from harness.simulation.errors import Deadlock, OutOfTime, SimulationError
from harness.simulation.event_loop.loop import NodeLoop
from harness.simulation.guard import Guard
from harness.simulation.network.network import LinkLatency, Network
from harness.simulation.node import SimNode
from harness.simulation.views import NodeView

T = TypeVar("T")

STEP_COST_NS = 5_000
TRAIL_EVERY_STEPS = 1024
COLLECT_EVERY_TRAIL_POINTS = 64
CANCEL_WITHIN_NS = 60_000_000_000
HARNESS = "harness"
_NEVER = 1 << 62
_FELL_DUE = Struct("<BQ").pack


@dataclass(frozen=True, slots=True)
class RealCall:
    """An attempt of a node to reach the real world. It was refused, but the refusal may have been swallowed."""

    node: str
    time_ns: int
    call: str


class World:
    """Nodes, a network, and time. Close it, or use it as a context manager."""

    def __init__(self, seed: int, *, latency: LinkLatency | None = None, step_cost_ns: int = STEP_COST_NS) -> None:
        self.seed = seed
        self.now_ns = 0
        """True time since the world began."""
        self.digest = Digest()
        self.steps = 0
        """Callbacks run so far."""
        self.trail: list[tuple[int, int, str]] = []
        """(step, true time in ns, digest) every `TRAIL_EVERY_STEPS` steps."""
        self.real_calls: list[RealCall] = []
        self.nodes: dict[str, SimNode] = {}
        self.runnable: list[NodeLoop] = []
        """Loops with something to do, in the order they got it."""
        self.network = Network(self, latency or LinkLatency())
        self.guard = Guard(
            lambda call: self.record_real_call(self._running, call), lambda: self._running in (None, self.harness)
        )
        self._events: list[tuple[int, int, Callable[[Any], object], Any]] = []
        self._event_serial = 0
        self._step_cost_ns = step_cost_ns
        self._schedule = self.stream("world/schedule")
        self._running: NodeView | None = None
        self._finished = False
        self._failure: BaseException | None = None
        self._limit_ns = _NEVER
        self._closed = False
        self.harness = self.add_node(HARNESS)
        self.harness.boot()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Parts

    def add_node(self, name: str) -> SimNode:
        """A new machine, powered, without a process."""
        if name in self.nodes:
            raise ValueError(f"there is a node {name!r} already")
        if len(self.nodes) == NODES_MAX:
            raise ValueError(f"a world has at most {NODES_MAX} nodes")
        node = SimNode(self, self.network, name, len(self.nodes))
        self.nodes[name] = node
        return node

    def node(self, name: str) -> SimNode:
        """The node called `name`. Raises KeyError naming it."""
        try:
            return self.nodes[name]
        except KeyError:
            raise KeyError(f"no node {name!r}; there are: {', '.join(self.nodes)}") from None

    def stream(self, name: str) -> Random:
        """A fresh generator, the same for the same seed and name, independent of all others."""
        return named_stream(self.seed, name)

    def at(self, time_ns: int, action: Callable[[Any], object], argument: Any) -> None:
        """Call `action(argument)` at a true time, outside any process."""
        self._event_serial += 1
        heappush(self._events, (time_ns, self._event_serial, action, argument))

    def hexdigest(self) -> str:
        """Everything that happened so far in one hash."""
        return self.digest.hexdigest()

    def record_real_call(self, node: NodeView | None, call: str) -> None:
        """Note that a node reached for something real."""
        self.real_calls.append(RealCall(node.name if node else HARNESS, self.now_ns, call))

    def fail(self, error: BaseException) -> None:
        """End the run now: `run` raises `error`. For errors outside the simulation, in a listener."""
        if self._failure is None:
            self._failure = error
        self._finished = True

    # Running

    def run(self, scenario: Coroutine[Any, Any, T], *, time_limit_s: float | None = None) -> T:
        """Run `scenario` on the harness node until it ends, and the world with it; may be called again.

        As `asyncio.run` does, cancels what the scenario left running on the harness. Raises what the scenario raises,
        Deadlock when nothing can happen any more, and OutOfTime after `time_limit_s` of virtual time.
        """
        if self._closed:
            scenario.close()
            raise SimulationError("the world is closed")
        if asyncio._get_running_loop() is not None:
            scenario.close()
            raise RuntimeError("a world cannot run inside a running event loop")
        limit_ns = _NEVER if time_limit_s is None else self.now_ns + int(time_limit_s * 1e9)
        loop = self.harness.loop
        with self.guard.watching(), _OrderlyCollection():
            main = loop.create_task(scenario, name="scenario")
            self._run_until(main, limit_ns)
            left = loop.pending_tasks()
            for task in left:
                task.cancel()
            with suppress(Deadlock, OutOfTime):  # a task that cannot be cancelled ends with the world
                for task in left:
                    self._run_until(task, self.now_ns + CANCEL_WITHIN_NS)
        return main.result()

    def _run_until(self, task: asyncio.Task[Any], limit_ns: int) -> None:
        if not task.done():
            self._finished = False
            self._failure = None
            self._limit_ns = limit_ns
            task.add_done_callback(self._finish)
            self._turn()
            if self._failure is not None:
                raise self._failure

    def _finish(self, _: asyncio.Task[Any]) -> None:
        self._finished = True

    def _turn(self) -> None:
        """Let things happen until `_finish` is called. The hottest loop there is."""
        events = self._events
        runnable = self.runnable
        log = self.digest.buffer
        draw = self._schedule.random
        cost_ns = self._step_cost_ns
        limit_ns = self._limit_ns
        next_mark = (self.steps // TRAIL_EVERY_STEPS + 1) * TRAIL_EVERY_STEPS
        current: NodeLoop | None = None
        try:
            while not self._finished:
                if events and (not runnable or events[0][0] <= self.now_ns):
                    due_ns, serial, action, argument = heappop(events)
                    if due_ns > self.now_ns:
                        if due_ns > limit_ns:
                            heappush(events, (due_ns, serial, action, argument))
                            raise OutOfTime(self._out_of_time())
                        self.now_ns = due_ns
                    log += _FELL_DUE(EVENT, due_ns)
                    action(argument)
                    continue
                if not runnable:
                    raise Deadlock(f"nothing is left to happen at {self.now_ns / 1e9:.6f} s\n{self._waiting()}")
                loop = runnable[0] if len(runnable) == 1 else runnable[int(draw() * len(runnable))]
                handle = loop.ready.popleft()
                if not handle._cancelled:
                    log.append(loop.node.index)
                    if loop is not current:
                        _set_running_loop(loop)
                        self._running = loop.node
                        current = loop
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except KeyboardInterrupt:
                        raise
                    except BaseException as error:
                        self._callback_failed(loop, error)
                    self.now_ns += cost_ns
                    self.steps += 1
                    if self.steps == next_mark:
                        next_mark += TRAIL_EVERY_STEPS
                        self._mark()
                        if self.now_ns > limit_ns:
                            raise OutOfTime(self._out_of_time())
                if not loop.ready and loop.alive and not loop.node.frozen:  # the dead and the frozen were taken out
                    loop.queued = False
                    runnable.remove(loop)
        finally:
            _set_running_loop(None)
            self._running = None

    def _callback_failed(self, loop: NodeLoop, error: BaseException) -> None:
        if isinstance(error, SystemExit) and loop.node is self.harness:
            raise error
        loop.call_exception_handler({"message": "Exception in callback", "exception": error})
        if isinstance(error, SystemExit) and loop.alive:
            loop.node.exited(error)

    def _mark(self) -> None:
        self.trail.append((self.steps, self.now_ns, self.digest.hexdigest()))
        for node in self.nodes.values():
            if node.alive:
                node.loop.sweep_tasks()
        if len(self.trail) % COLLECT_EVERY_TRAIL_POINTS == 0:
            self.collect_garbage()

    def collect_garbage(self) -> None:
        """Free reference cycles. Finalizers schedule nothing meanwhile, and are of no node."""
        with ExitStack() as stack:
            for node in self.nodes.values():
                if node.alive:
                    stack.enter_context(node.loop.discarding())
            stack.enter_context(self.guard.outside())
            gc.collect()

    def _out_of_time(self) -> str:
        return f"{self._limit_ns / 1e9:.3f} s of virtual time have passed\n{self._waiting()}"

    def _waiting(self) -> str:
        lines = [line for node in self.nodes.values() for line in node.waiting()]
        states = [
            f"{node.name} is {'paused' if node.paused else 'down' if node.powered else 'without power'}"
            for node in self.nodes.values()
            if node.paused or not node.alive
        ]
        return "\n".join(lines + states)

    # The end

    def close(self) -> None:
        """End every process for good. Their coroutines are closed in silence and cannot affect anything."""
        if self._closed:
            return
        self._closed = True
        hook = sys.unraisablehook
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sys.unraisablehook = lambda _: None
            try:
                for node in self.nodes.values():
                    node.dispose()
                self._events.clear()
                self.runnable.clear()
            finally:
                sys.unraisablehook = hook


class _OrderlyCollection:
    """No automatic garbage collection while a world runs: it would run finalizers at any time."""

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        self._hooks = sys.get_asyncgen_hooks()
        gc.disable()
        gc.freeze()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=_finish_generator)

    def __exit__(self, *_: object) -> None:
        sys.set_asyncgen_hooks(*self._hooks)
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()


def _finish_generator(generator: AsyncGenerator[Any, Any]) -> None:
    """An asynchronous generator was dropped before its end: its process closes it, as asyncio does.

    With no process running, or one that is dead or collecting garbage, it is freed and its `finally` never runs.
    """
    loop = asyncio._get_running_loop()
    if isinstance(loop, NodeLoop) and loop.alive:
        loop.create_task(generator.aclose())
