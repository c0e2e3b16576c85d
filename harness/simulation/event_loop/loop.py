"""The event loop one process of a simulated node runs on.

Plain asyncio code runs on it unchanged: tasks, futures, events, timeouts, streams, servers and connections. Inside
one process callbacks run in the order they were scheduled, as asyncio promises; which process runs next is the
world's choice. `time()` is the node's clock, timers live in node time. Sockets are the simulated network's.

How it differs from a real loop, on purpose:

- Nothing real: threads, executors, signals, subprocesses, file descriptors, TLS raise `RealWorldError`.
- Tasks and futures hash by a serial number instead of their address, so that a set of them (asyncio's own
  `TaskGroup` and `wait` iterate over such sets) has the same order in every process.
- Tasks are held strongly until they are done: what is collected when never depends on the garbage collector.
- Once the process is dead, nothing more is accepted: whatever is scheduled on it vanishes. Its tasks stay suspended
  where they were, no `finally` runs, until the world is over and `dispose` closes their coroutines.
"""

from __future__ import annotations

import asyncio
import ctypes
import traceback
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack

from harness.simulation.crash_points import CrashPoint
from harness.simulation.errors import RealWorldError
from harness.simulation.event_loop.handles import Ready, SimFuture, SimTask, Timer
from harness.simulation.event_loop.refusals import RefusingLoop
from harness.simulation.views import NodeView, WorldView

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)

_NEW_HANDLE = object.__new__
_SWEEP_TASKS_AT = 256
_SWEEP_TIMERS_AT = 128


class SocketLayer(Protocol):
    """The network as an event loop uses it."""

    async def connect(
        self, loop: NodeLoop, factory: Callable[[], _Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, _Protocol]:
        """Open a connection from the process on `loop`. Raises OSError as the kernel would."""

    def listen(
        self, loop: NodeLoop, factory: Callable[[], asyncio.BaseProtocol], host: object, port: int, serve: bool
    ) -> asyncio.AbstractServer:
        """Open a listening port. Raises OSError as the kernel would."""

    def resolve(self, node: NodeView, host: str) -> NodeView:
        """The node that `host` names, seen from `node`. Raises socket.gaierror when there is none."""


class NodeLoop(RefusingLoop):
    """The loop of one process (one incarnation of a node)."""

    def __init__(
        self, world: WorldView, network: SocketLayer, node: NodeView, incarnation: int, crash_point: CrashPoint
    ) -> None:
        self.world = world
        self.network = network
        self.node = node
        self.incarnation = incarnation
        self.crash_point = crash_point
        self.alive = True
        self.queued = False
        """The world knows of this loop's callbacks, or need not (it is frozen or dead)."""
        self._clock = node.clock
        self.ready: deque[Ready | Timer] = deque()
        """Callbacks whose time has come, first in, first out."""
        self._rest_of_callback: list[Ready] = []
        """What the process, frozen in the middle of a callback, has to do before anything else once it goes on."""
        self._timers: list[tuple[int, int, Timer]] = []
        self.cancelled_timers = 0
        """How many of the timers that wait were cancelled."""
        self._wakes_ns: list[int] = []  # times the world will wake this loop, latest first
        self._remains: list[object] = []
        self._serial = 0
        self._tasks: dict[SimTask[Any], None] = {}
        self._sweep_tasks_at = _SWEEP_TASKS_AT
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None

    def __repr__(self) -> str:
        return f"<NodeLoop {self.node.name} incarnation {self.incarnation}>"

    # Time

    def time(self) -> float:
        """The node's clock, in seconds; starts near 0 when the run begins."""
        clock = self._clock
        if clock.steady:
            return (self.world.now_ns + clock.offset_ns) / 1e9
        return clock.now_ns() / 1e9

    # Callbacks

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run `callback(*args)` after all that is scheduled already."""
        handle = _NEW_HANDLE(Ready)  # without a call of `__init__`: this is the most frequent call of a run
        handle._callback = callback
        handle._args = args
        handle._context = context if context is not None else copy_context()
        handle._cancelled = False
        if not self.queued:
            self.queued = True
            self.world.runnable.append(self)
        self.ready.append(handle)
        return handle

    def call_first(self, callback: Callable[[], object], context: Context) -> None:
        """Run `callback()` before all that waits, as soon as this frozen process goes on."""
        self._rest_of_callback.append(Ready(callback, (), self, context))

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run `callback(*args)` once `delay` seconds of node time have passed."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run `callback(*args)` once the node's clock reads `when` or later."""
        timer = Timer(when, callback, args, context, self)
        if not self.alive:
            return timer
        when_ns = int(when * 1e9)
        while when_ns / 1e9 < when:  # rounding must not let a timer fire before loop.time() reaches its time
            when_ns += 1
        timers = self._timers
        if self.cancelled_timers > _SWEEP_TIMERS_AT and self.cancelled_timers * 2 > len(timers):
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapify(timers)
            self.cancelled_timers = 0
        self._serial += 1
        entry = (when_ns, self._serial, timer)
        heappush(timers, entry)
        if timers[0] is entry:
            self.arm()
        return timer

    def arm(self) -> None:
        """See to it that the world wakes this loop for its first timer; needed whenever that or the clock changes."""
        if not self._timers:
            return
        due_ns = self._clock.true_time_of(self._timers[0][0])
        wakes_ns = self._wakes_ns
        if due_ns is not None and (not wakes_ns or due_ns < wakes_ns[-1]):
            wakes_ns.append(due_ns)
            self.world.at(due_ns, self._wake, None)

    def _wake(self, _: None) -> None:
        self._wakes_ns.pop()
        if self.alive and not self.node.frozen:
            self.fire_due_timers()

    def fire_due_timers(self) -> None:
        """Make every timer whose time has come ready, in order of time."""
        clock = self._clock
        now_ns = self.world.now_ns + clock.offset_ns if clock.steady else clock.now_ns()
        timers = self._timers
        ready = self.ready
        while timers and (timers[0][0] <= now_ns or timers[0][2]._cancelled):
            timer = heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self.cancelled_timers -= 1
            else:
                ready.append(timer)
        if ready and not self.queued:
            self.queued = True
            self.world.runnable.append(self)
        self.arm()

    def clock_changed(self) -> None:
        """The node's clock was set, or runs at another rate."""
        if self.alive and not self.node.frozen:
            self.fire_due_timers()

    def freeze(self) -> None:
        """Run nothing until `thaw`; what becomes ready waits."""
        if self in self.world.runnable:
            self.world.runnable.remove(self)
        self.queued = True

    def thaw(self) -> int:
        """Go on: first what arrived meanwhile, then the timers that are due. Returns how many callbacks had waited."""
        self.queued = False
        self.ready.extendleft(reversed(self._rest_of_callback))
        self._rest_of_callback.clear()
        self.fire_due_timers()
        return len(self.ready)

    @contextmanager
    def discarding(self) -> Iterator[None]:
        """Inside, whatever is scheduled is discarded."""
        kept, self.ready = self.ready, deque(maxlen=0)
        queued, self.queued = self.queued, True
        alive, self.alive = self.alive, False
        try:
            yield
        finally:
            self.ready, self.queued, self.alive = kept, queued, alive

    # Tasks and futures

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        future: SimFuture[Any] = SimFuture(loop=self)
        self._serial += 1
        future.serial = self._serial
        return future

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Run a coroutine as a task, held until it is done."""
        self._serial += 1
        task: SimTask[T] = SimTask(
            coro,  # type: ignore[arg-type]  # generators are what typeshed allows, not what asyncio accepts
            loop=self,
            serial=self._serial,
            name=name or f"{self.node.name}-task-{self._serial}",
            context=context,
        )
        self._tasks[task] = None
        if not self.alive:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        elif len(self._tasks) > self._sweep_tasks_at:
            self.sweep_tasks()
        return task

    def sweep_tasks(self) -> None:
        """Let go of tasks that are done; asyncio then reports errors that no code retrieved."""
        self._tasks = {task: None for task in self._tasks if not task.done()}
        self._sweep_tasks_at = max(_SWEEP_TASKS_AT, 2 * len(self._tasks))

    def pending_tasks(self) -> list[SimTask[Any]]:
        """Tasks that are not done, in the order of their creation."""
        return [task for task in self._tasks if not task.done()]

    def get_task_factory(self) -> None:
        """None: tasks are always this loop's own."""

    # Connections

    async def create_connection(  # sockets, TLS and Happy Eyeballs are not simulated
        self,
        protocol_factory: Callable[[], _Protocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, _Protocol]:
        """Connect to a port of a node, given by name. Raises OSError as the kernel would."""
        if ssl is not None or sock is not None:
            raise self.refuse("create_connection with ssl or sock", "host and port")
        if host is None or port is None:
            raise ValueError("host and port was not specified and no sock specified")
        return await self.network.connect(self, protocol_factory, host, int(port))

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: object = None,
        port: int | None = None,
        *,
        ssl: object = None,
        sock: object = None,
        start_serving: bool = True,
        **options: Any,
    ) -> asyncio.AbstractServer:
        """Listen on a port of this node; 0 or None takes a free one. Raises OSError as the kernel would."""
        if ssl is not None or sock is not None:
            raise self.refuse("create_server with ssl or sock", "host and port")
        return self.network.listen(self, protocol_factory, host, port or 0, start_serving)

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        """A node's name is its address. Raises socket.gaierror for any other."""
        return [(2, 1, 6, "", (self.network.resolve(self.node, host).name, int(port or 0)))]

    # Errors

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        """Hand what goes wrong in callbacks to `handler` instead of the node's log."""
        self._exception_handler = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        """The handler set, if any."""
        return self._exception_handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Record what went wrong against the node. Nothing is printed."""
        if self.alive:
            self.node.record_error(describe_context(context))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Called by asyncio for exceptions that no task awaits."""
        if not self.alive:
            return
        if self._exception_handler is None:
            self.default_exception_handler(context)
        else:
            try:
                self._exception_handler(self, context)
            except Exception as error:
                self.default_exception_handler({"message": "Exception in exception handler", "exception": error})

    def refuse(self, call: str, instead: str = "") -> RealWorldError:
        """The error for a call to something real, recorded against the node even if it is swallowed."""
        error = RealWorldError(call, instead)
        self.world.record_real_call(self.node, call)
        return error

    # Being a loop

    get_debug = bool
    """Never in debug mode: `bool()` is False. Every task and future asks, so a built-in answers."""

    def set_debug(self, enabled: bool) -> None:
        """Ignored: debug mode measures real time."""

    def is_running(self) -> bool:
        """Whether the process is alive."""
        return self.alive

    def is_closed(self) -> bool:
        """Whether the process is dead."""
        return not self.alive

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: generators end when they are dropped."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing to do: there is none."""

    # Death

    def die(self) -> None:
        """From now on nothing that is scheduled on this loop ever runs. Tasks stay suspended as they are."""
        if not self.alive:
            return
        self.alive = False
        if self in self.world.runnable:
            self.world.runnable.remove(self)
        self.queued = True
        self._remains = [self.ready, self._timers, self._rest_of_callback]  # dropping them could run a finalizer
        self.ready = deque(maxlen=0)  # accepts and forgets, so that the hot path needs no check
        self._timers = []
        self._rest_of_callback = []
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def dispose(self) -> None:
        """Close the coroutines of suspended tasks. Their `finally` blocks run, without effect by now."""
        self.die()
        self._remains.clear()
        for _ in range(_CLOSE_ATTEMPTS_MAX):  # a finally block may create tasks, which are pending from the start
            tasks, self._tasks = self._tasks, {}
            if not tasks:
                return
            for task in tasks:
                if not task.done() and not _close(self, task.get_coro()):
                    _keep_for_good(task)
        for task in self._tasks:
            _keep_for_good(task)


_CLOSE_ATTEMPTS_MAX = 4


def _keep_for_good(task: SimTask[Any]) -> None:
    """Never free a task that cannot be closed: that would run its coroutine once more. The interpreter frees at its end
    what modules hold, and one that catches whatever it is closed with would run then for ever."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


def _close(loop: NodeLoop, coroutine: Any) -> bool:
    for _ in range(_CLOSE_ATTEMPTS_MAX):
        _set_running_loop(loop)
        try:
            coroutine.close()
        except BaseException:
            continue  # it awaits or raises in a finally block
        finally:
            _set_running_loop(None)
        return True
    return False


def describe_context(context: dict[str, Any]) -> str:
    """An asyncio error context as text, without object addresses."""
    message = str(context.get("message", "unhandled error"))
    error = context.get("exception")
    if isinstance(error, BaseException):
        return message + "\n" + describe_error(error)
    return message


def describe_error(error: BaseException) -> str:
    """The traceback of an exception."""
    return "".join(traceback.format_exception(error)).rstrip()
