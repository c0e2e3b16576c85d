"""Nothing in a simulation reaches the real world: the attempt raises an error that names the call."""

from __future__ import annotations

import _thread
import asyncio
import glob
import logging
import logging.handlers
import os
import random
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from harness.simulation.errors import RealWorldError
from harness.simulation.world import World

CALLS: dict[str, Callable[[], object]] = {
    "time.time": lambda: time.time(),
    "time.time_ns": lambda: time.time_ns(),
    "time.monotonic": lambda: time.monotonic(),
    "time.perf_counter": lambda: time.perf_counter(),
    "time.sleep": lambda: time.sleep(0),
    "time.clock_gettime": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "time.thread_time": lambda: time.thread_time(),
    "time.localtime": lambda: time.localtime(),
    "time.strftime": lambda: time.strftime("%Y"),
    "random.random": lambda: random.random(),
    "random.shuffle": lambda: random.shuffle([1, 2]),
    "random.randint": lambda: random.randint(1, 2),
    "random.Random() without a seed": lambda: random.Random(),
    "random.SystemRandom": lambda: secrets.token_bytes(4),
    "os.urandom": lambda: uuid.uuid4(),
    "uuid.uuid1": lambda: uuid.uuid1(),
    "open": lambda: open(os.devnull).close(),
    "io.open": lambda: Path(os.devnull).read_text(),
    "os.open": lambda: os.open(os.devnull, os.O_RDONLY),
    "os.stat": lambda: Path(os.devnull).exists(),
    "os.statvfs": lambda: shutil.disk_usage("/"),
    "os.scandir": lambda: glob.glob("/*"),
    "os.unlink": lambda: Path("/nowhere/at/all").unlink(missing_ok=True),
    "os.mkdir": lambda: os.mkdir("/nowhere"),
    "os.getpid": lambda: os.getpid(),
    "os.system": lambda: os.system("true"),
    "os.fork": lambda: os.fork() or os._exit(0),
    "os.posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "select.select": lambda: select.select([], [], [], 0),
    "socket.gethostname": lambda: socket.gethostname(),
    "_thread.start_new_thread": lambda: _thread.start_new_thread(int, ()),
    "threading.Thread.start": lambda: threading.Thread(target=int).start(),
    "socket.socket": lambda: socket.socket(),
    "socket.create_connection": lambda: socket.create_connection(("localhost", 1)),
    "socket.getaddrinfo": lambda: socket.getaddrinfo("localhost", 1),
    "subprocess.Popen": lambda: subprocess.run(["true"], check=False),
    "asyncio.all_tasks": lambda: asyncio.all_tasks(),
}

LOOP_CALLS: dict[str, Callable[[asyncio.AbstractEventLoop], Any]] = {
    "loop.run_in_executor": lambda loop: loop.run_in_executor(None, int),
    "loop.call_soon_threadsafe": lambda loop: loop.call_soon_threadsafe(int),
    "loop.add_reader": lambda loop: loop.add_reader(0, int),
    "loop.add_signal_handler": lambda loop: loop.add_signal_handler(2, int),
    "loop.sock_recv": lambda loop: loop.sock_recv(None, 1),  # type: ignore[arg-type]
    "loop.subprocess_exec": lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
    "loop.create_datagram_endpoint": lambda loop: loop.create_datagram_endpoint(asyncio.DatagramProtocol),
    "loop.create_unix_server": lambda loop: loop.create_unix_server(asyncio.Protocol, "/nowhere"),
    "loop.start_tls": lambda loop: loop.start_tls(None, None, None),  # type: ignore[arg-type]
    "loop.run_forever": lambda loop: loop.run_forever(),
    "create_connection with ssl or sock": lambda loop: loop.create_connection(
        asyncio.Protocol, "localhost", 1, ssl=True
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_real_call_is_refused_by_name_and_noted_even_if_swallowed(call: str) -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        try:
            CALLS[call]()
        except Exception as error:
            caught.append(error)

    async def scenario() -> None:
        world.add_node("b1").start(main)
        await asyncio.sleep(2)

    caught: list[Exception] = []
    with World(1) as world:
        world.run(scenario())
        (error,) = caught
        assert isinstance(error, RealWorldError)
        assert error.call == call
        assert call in str(error)
        (noted,) = world.real_calls
        assert (noted.node, noted.call) == ("b1", call)
        assert 1_000_000_000 <= noted.time_ns < 1_001_000_000
    if call != "asyncio.all_tasks":
        CALLS["time.time"]()


@pytest.mark.parametrize("call", LOOP_CALLS)
def test_the_loop_refuses_what_is_not_simulated(call: str) -> None:
    async def scenario() -> None:
        with pytest.raises(RealWorldError) as caught:  # noqa: PT012  # some refuse when called, some when awaited
            result = LOOP_CALLS[call](asyncio.get_running_loop())
            if asyncio.iscoroutine(result):
                await result
        assert caught.value.call == call

    with World(1) as world:
        world.run(scenario())
        assert [noted.call for noted in world.real_calls] == [call]


def test_asyncio_to_thread_is_refused() -> None:
    async def scenario() -> None:
        with pytest.raises(RealWorldError, match="run_in_executor"):
            await asyncio.to_thread(int)

    with World(1) as world:
        world.run(scenario())


def test_what_is_not_part_of_the_simulation_may_be_real(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        logging.getLogger("faultline.test").warning("a timestamp decides nothing")
        assert random.Random(5).random() == random.Random(5).random()
        assert str(uuid.UUID(int=1))
        with world.guard.outside():
            assert time.time() > 0
            assert os.urandom(1)
        with pytest.raises(RealWorldError):
            time.time()

    with World(1) as world:
        world.run(scenario())
    assert "decides nothing" in caplog.text
    assert not hasattr(time.time, "__wrapped__")
    assert time.time.__module__ == "time"


def test_a_node_formats_times_and_logs_to_files(tmp_path: Path) -> None:
    log = logging.getLogger("faultline.test.rotating")
    log.addHandler(logging.handlers.RotatingFileHandler(tmp_path / "log", maxBytes=10, backupCount=1))

    async def main() -> None:
        assert f"{datetime(2020, 1, 2):%d}" == "02"
        assert time.gmtime(0).tm_year == 1970
        log.warning("more than ten bytes")
        log.warning("so that the file is rotated")

    async def scenario() -> None:
        world.add_node("b1").start(main)
        await asyncio.sleep(1)

    with World(1) as world:
        world.run(scenario())
        assert world.real_calls == []
    assert (tmp_path / "log.1").exists()
    log.handlers.pop().close()


def test_what_is_collected_is_of_no_node() -> None:
    async def main() -> None:
        await asyncio.sleep(1)

    async def scenario() -> None:
        with world.guard.outside():
            directory = tempfile.TemporaryDirectory()
        kept.append(Path(directory.name))
        cycle: list[object] = [directory]
        cycle.append(cycle)
        del cycle, directory
        world.add_node("b1").start(main)
        await asyncio.sleep(2)
        with pytest.warns(ResourceWarning, match="Implicitly cleaning up"):
            world.collect_garbage()

    kept: list[Path] = []
    with World(1) as world:
        world.run(scenario())
        assert world.real_calls == []
    assert not kept[0].exists()


def test_the_harness_keeps_the_files_of_a_run(tmp_path: Path) -> None:
    async def fails() -> None:
        await asyncio.sleep(0.5)
        raise ValueError("its traceback shows lines of this file")

    async def scenario() -> None:
        world.add_node("b1").start(fails)
        await asyncio.sleep(1)
        (tmp_path / "figures").write_text(str(os.getpid()))

    with World(1) as world:
        world.run(scenario())
        assert world.real_calls == []
    assert (tmp_path / "figures").exists()


def test_other_threads_keep_their_clocks() -> None:
    seen: list[float] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.001):
            seen.append(time.time())
            time.sleep(0)

    async def scenario() -> None:
        while len(seen) < 5:  # noqa: ASYNC110
            await asyncio.sleep(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with World(1) as world:
            world.run(scenario(), time_limit_s=10_000_000)
    finally:
        stop.set()
        watcher.join()
    assert seen == sorted(seen)


def test_worlds_do_not_nest() -> None:
    async def inner() -> None: ...

    async def scenario() -> None:
        with World(2) as other, pytest.raises(RuntimeError, match="inside a running event loop"):
            other.run(inner())

    with World(1) as world:
        world.run(scenario())


_NEVER_ENDS = """
import asyncio
from harness.simulation.world import World
async def main():
    while True:
        try:
            await asyncio.sleep(1)
        except BaseException:
            pass
async def scenario():
    world.add_node("b1").start(main)
    await asyncio.sleep(3)
with World(1) as world:
    world.run(scenario())
"""


def test_a_task_that_catches_everything_does_not_outlive_the_interpreter() -> None:
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", _NEVER_ENDS], cwd=root, timeout=60, check=True)
