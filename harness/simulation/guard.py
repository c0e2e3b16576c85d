"""The guard against real time, randomness and I/O: while a world runs in this thread they raise `RealWorldError`.

Guarded are the functions of `time`, `random` (the module's shared generator, and generators without a seed),
`os.urandom` (hence `uuid4` and `secrets`), `uuid1`, threads, sockets, files, processes, and `asyncio.all_tasks`, whose
order depends on addresses. Other threads are not concerned, nor is code the world calls outside any node (`outside`),
logging and what it calls (its timestamps decide nothing), the import system, the source lines of tracebacks, or test
and display tools that time themselves. A time that is given may be formatted. Files and the process id are refused to
nodes that are part of the system under test: the runner, which keeps the files of a run, is on the harness node.

It cannot see a function imported by name (`from time import time`) before the first run, `datetime.now`, `os.environ`,
iteration over a set of strings: where these decide something they show as differing digests. Nor can it see a write to
a file that was open before.
"""

from __future__ import annotations

import _thread as raw_threads
import asyncio
import builtins
import io
import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from harness.simulation.errors import RealWorldError

_TIME = (
    *("time", "monotonic", "perf_counter", "process_time", "sleep"),
    *("time_ns", "monotonic_ns", "perf_counter_ns", "process_time_ns"),
    *("clock_gettime", "clock_gettime_ns", "thread_time", "thread_time_ns"),
)
_TIME_FORMATS = {"localtime": 0, "gmtime": 0, "ctime": 0, "asctime": 0, "strftime": 1}
"""Function of `time` → the place of its argument that is the time, by default that of now."""
_FILES = (
    *("open", "stat", "statvfs", "access", "listdir", "scandir"),
    *("mkdir", "rename", "replace", "remove", "unlink", "rmdir", "link", "symlink", "truncate"),
)
_PROCESSES = ("fork", "system", "posix_spawn", "posix_spawnp", "kill")
_RANDOM = tuple(name for name in random.__all__ if name not in ("Random", "SystemRandom", "getstate", "setstate"))
_TIME_INSTEAD = "the running loop's time() or asyncio.sleep()"
_RANDOM_INSTEAD = "a Random that was handed in"
_FILES_INSTEAD = "the Files that were handed in"

_GUARDED: list[tuple[Any, str, str, str]] = [
    *((time, name, f"time.{name}", _TIME_INSTEAD) for name in _TIME),
    *((random, name, f"random.{name}", _RANDOM_INSTEAD) for name in _RANDOM),
    (random, "_urandom", "random.SystemRandom", _RANDOM_INSTEAD),
    (os, "urandom", "os.urandom", _RANDOM_INSTEAD),
    (os, "getrandom", "os.getrandom", _RANDOM_INSTEAD),
    (uuid, "uuid1", "uuid.uuid1", _RANDOM_INSTEAD),
    *((os, name, f"os.{name}", "") for name in _PROCESSES),
    (select, "select", "select.select", "a protocol"),
    (raw_threads, "start_new_thread", "_thread.start_new_thread", "a task"),
    (threading.Thread, "start", "threading.Thread.start", "a task"),
    (socket, "create_connection", "socket.create_connection", "the running loop's create_connection()"),
    (socket, "getaddrinfo", "socket.getaddrinfo", "the running loop's getaddrinfo()"),
    (socket, "gethostname", "socket.gethostname", ""),
    (socket, "socketpair", "socket.socketpair", ""),
    (socket.socket, "__init__", "socket.socket", "the running loop's create_connection() or create_server()"),
    (subprocess.Popen, "__init__", "subprocess.Popen", ""),
    (asyncio, "all_tasks", "asyncio.all_tasks", "a task group, or tasks kept in order"),
    (asyncio.tasks, "all_tasks", "asyncio.all_tasks", "a task group, or tasks kept in order"),
]

_GUARDED_ON_NODES: list[tuple[Any, str, str, str]] = [
    (builtins, "open", "open", _FILES_INSTEAD),
    (io, "open", "io.open", _FILES_INSTEAD),
    *((os, name, f"os.{name}", _FILES_INSTEAD) for name in _FILES),
    (os, "getpid", "os.getpid", ""),
]

_EXEMPT_CALLERS = frozenset(
    {"logging", "hypothesis", "_pytest", "pytest", "rich", "importlib", "linecache", "tokenize"}
)
_EXEMPT_WITH_ALL_THEY_CALL = frozenset({"importlib._bootstrap", "logging", "inspect"})


class Guard:
    """Refuses real calls while one world runs."""

    __slots__ = ("active", "on_harness", "report")

    def __init__(self, report: Callable[[str], None], on_harness: Callable[[], bool]) -> None:
        self.active = False
        """Whether node code is running now."""
        self.on_harness = on_harness
        """Whether it is that of the harness node."""
        self.report = report
        """Called with the name of every refused call, since the error itself may be swallowed."""

    def outside(self) -> _Outside:
        """Let real calls through: the code inside the `with` is not part of the simulation."""
        return _Outside(self)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Guard this thread. Raises RuntimeError when another world runs in it already."""
        if getattr(_thread, "guard", None) is not None:
            raise RuntimeError("a world is already running in this thread")
        _install()
        _thread.guard = self
        self.active = True
        try:
            yield
        finally:
            self.active = False
            _thread.guard = None
            _uninstall()


class _Outside:
    """A class of its own, since it is entered for every event of the trace."""

    __slots__ = ("_before", "_guard")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        self._before = self._guard.active
        self._guard.active = False

    def __exit__(self, *_: object) -> None:
        self._guard.active = self._before


@contextmanager
def outside_of_any_world() -> Iterator[None]:
    """As `Guard.outside`, for code that need not know whether a world runs in this thread."""
    guard: Guard | None = getattr(_thread, "guard", None)
    with guard.outside() if guard is not None else nullcontext():
        yield


_thread = threading.local()
_lock = threading.Lock()
_watchers = 0
_originals: list[tuple[Any, str, Any]] = []


def _install() -> None:
    global _watchers
    with _lock:
        _watchers += 1
        if _watchers > 1:
            return
        for guarded, everywhere in ((_GUARDED, True), (_GUARDED_ON_NODES, False)):
            for owner, attribute, call, instead in guarded:
                original = getattr(owner, attribute, None)
                if original is not None:
                    _originals.append((owner, attribute, original))
                    setattr(owner, attribute, _refusing(original, call, instead, everywhere))
        for name, place in _TIME_FORMATS.items():
            original = getattr(time, name)
            _originals.append((time, name, original))
            setattr(time, name, _refusing_now(original, f"time.{name}", place))
        seed = random.Random.seed
        _originals.append((random.Random, "seed", seed))
        setattr(random.Random, "seed", _refusing_without_seed(seed))  # noqa: B010  # mypy knows it as a method


def _uninstall() -> None:
    global _watchers
    with _lock:
        _watchers -= 1
        if _watchers == 0:
            while _originals:
                owner, attribute, original = _originals.pop()
                setattr(owner, attribute, original)


def _refusing(original: Callable[..., Any], call: str, instead: str, everywhere: bool) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        _check(call, instead, everywhere)
        return original(*args, **kwargs)

    guarded.__name__ = getattr(original, "__name__", call)
    guarded.__doc__ = original.__doc__
    return guarded


def _refusing_now(original: Callable[..., Any], call: str, place: int) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        if len(args) <= place or args[place] is None:
            _check(call, _TIME_INSTEAD)
        return original(*args)

    return guarded


def _refusing_without_seed(original: Callable[..., None]) -> Callable[..., None]:
    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None:
            _check("random.Random() without a seed", _RANDOM_INSTEAD)
        original(self, a, version)

    return seed


def _check(call: str, instead: str, everywhere: bool = True) -> None:
    guard: Guard | None = getattr(_thread, "guard", None)
    if guard is None or not guard.active or (guard.on_harness() and not everywhere):
        return
    caller = sys._getframe(2)
    if str(caller.f_globals.get("__name__", "")).partition(".")[0] in _EXEMPT_CALLERS or _in_exempt_call(caller):
        return
    guard.report(call)
    raise RealWorldError(call, instead)


def _in_exempt_call(frame: Any) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") in _EXEMPT_WITH_ALL_THEY_CALL:
            return True
        frame = frame.f_back
    return False
