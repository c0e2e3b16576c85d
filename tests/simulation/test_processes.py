"""Processes that are killed, paused, struck in the middle, or end by themselves; and what the world makes of it."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from random import Random

import pytest

from harness.simulation.errors import Deadlock, OutOfTime, SimulationError
from harness.simulation.node import Exit, SimNode
from harness.simulation.world import World
from nemesis.ports import KeepUnsynced


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


def test_a_killed_process_runs_no_finally_while_the_world_goes_on(world: World) -> None:
    ran: list[str] = []

    async def main() -> None:
        async def child() -> None:
            try:
                await asyncio.sleep(1)
            except BaseException as error:
                ran.append(type(error).__name__)
                raise
            finally:
                ran.append("finally")

        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(child())

    async def scenario() -> None:
        node = world.add_node("b1")
        node.start(main)
        await asyncio.sleep(0.5)
        assert node.kill()
        assert not node.kill()
        world.collect_garbage()
        await asyncio.sleep(10)
        assert ran == []

    world.run(scenario())


def test_what_a_dead_process_leaves_has_no_effect_and_makes_no_noise(capfd: pytest.CaptureFixture[str]) -> None:
    """The `finally` blocks of suspended coroutines run when the world is closed, without effect."""
    world = World(1)
    reached: list[str] = []
    exits: list[Exit] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(1)
        finally:
            reached.append("generator")

    async def main() -> None:
        files = world.node("b1").files
        file = files.open("log")
        transports: list[asyncio.Transport] = []

        async def stubborn() -> None:
            while True:
                try:
                    await asyncio.sleep(1)
                finally:
                    reached.append("stubborn")
                    file.append(b"too late")
                    files.open("new")
                    transports[0].write(b"too late")
                    asyncio.create_task(numbers().__anext__())  # type: ignore[arg-type]  # noqa: RUF006
                    await asyncio.sleep(1)
                    continue  # noqa: B012  # refuses to end

        async def fails() -> None:
            raise ValueError("nobody awaits this")

        async def never_started() -> None:
            reached.append("never started")

        await asyncio.get_running_loop().create_server(asyncio.Protocol, "", 1)
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "localhost", 1)
        transports.append(transport)
        tasks = [asyncio.create_task(coroutine) for coroutine in (stubborn(), fails())]
        async for _ in numbers():
            if asyncio.get_running_loop().time() > 0.5:
                tasks.append(asyncio.create_task(never_started()))
                world.node("b1").kill()

    async def scenario() -> None:
        node = world.add_node("b1")
        node.on_exit = exits.append
        node.start(main)
        await asyncio.sleep(10)
        assert not node.alive

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what other tests have left is no noise of this one
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with world:
            world.run(scenario())
            assert reached == []
            before = world.hexdigest()
        assert "stubborn" in reached
        assert "never started" not in reached
        assert dict(world.node("b1").disk.files()) == {"log": b""}
        assert world.hexdigest() == before
        assert exits == []
        gc.collect()
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_a_paused_process_runs_nothing_and_then_first_what_arrived_and_next_its_timers(world: World) -> None:
    ran: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2, ran.append, "second timer")
        loop.call_later(1, ran.append, "first timer")
        await asyncio.Event().wait()

    async def scenario() -> None:
        node = world.add_node("b1")
        node.start(main)
        await asyncio.sleep(0.5)
        node.pause()
        node.pause()
        node.loop.call_soon(ran.append, "arrived")
        await asyncio.sleep(5)
        assert ran == []
        frozen_ns, missed = node.resume()
        assert 5_000_000_000 <= frozen_ns < 5_001_000_000
        assert missed == 3
        assert node.resume() == (0, 0)
        await asyncio.sleep(0.001)
        assert ran == ["arrived", "first timer", "second timer"]

    world.run(scenario())


def test_a_paused_process_can_be_killed_and_started_again(world: World) -> None:
    async def main() -> None:
        lives.append(asyncio.get_running_loop().time())
        await asyncio.Event().wait()

    lives: list[float] = []

    async def scenario() -> None:
        node = world.add_node("b1")
        node.start(main)
        await asyncio.sleep(1)
        node.pause()
        node.kill()
        assert node.resume() == (0, 0)
        node.start(main)
        with pytest.raises(RuntimeError, match="b1 is running"):
            node.start(main)
        await asyncio.sleep(1)
        assert len(lives) == 2
        assert lives[1] >= 1  # the machine's clock went on

    world.run(scenario())


@pytest.mark.parametrize("effects", [1, 2, 3, 4, 5, 6])
def test_a_process_struck_at_an_effect_has_none_from_that_one_on(world: World, effects: int) -> None:
    """All six writes happen in one callback: the process dies in the middle of it."""

    async def main() -> None:
        files = world.node("b1").files
        await asyncio.sleep(1)
        files.open("a").append(b"1")
        files.open("b").append(b"2")
        files.rename("b", "c")
        files.delete("a")
        assert files.list("") is not None
        ended.append(True)

    ended: list[bool] = []
    expected = [{}, {"a": b""}, {"a": b"1"}, {"a": b"1", "b": b""}, {"a": b"1", "b": b"2"}, {"a": b"1", "c": b"2"}]

    async def scenario() -> None:
        node = world.add_node("b1")
        exits: list[Exit] = []
        node.on_exit = exits.append
        node.start(main)
        node.arm(effects, lambda: node.kill())
        await asyncio.sleep(2)
        assert not node.alive
        assert dict(node.disk.files()) == expected[effects - 1]
        assert exits == []  # it was killed, it did not end by itself

    world.run(scenario())
    assert ended == [True]  # the callback ran on, without effect


def test_a_process_that_exits_after_it_was_killed_did_not_end_by_itself(world: World) -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        world.node("b1").files.open("a")
        sys.exit(3)

    async def scenario() -> None:
        node = world.add_node("b1")
        node.on_exit = exits.append
        node.start(main)
        node.arm(1, node.kill)
        await asyncio.sleep(2)
        assert not node.alive

    exits: list[Exit] = []
    world.run(scenario())
    assert exits == []


async def _sender_of_letters(world: World, received: list[bytes]) -> SimNode:
    """A process on b1 that connects, writes a, b and c after a second, and closes."""

    class Receive(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)

    async def main() -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "harness", 1)
        await asyncio.sleep(1)
        for letter in (b"a", b"b", b"c"):
            transport.write(letter)
        transport.close()

    await asyncio.get_running_loop().create_server(Receive, "", 1)
    node = world.add_node("b1")
    node.start(main)
    return node


def test_a_process_struck_while_sending_sends_nothing_more(world: World) -> None:
    received: list[bytes] = []

    async def scenario() -> None:
        node = await _sender_of_letters(world, received)
        node.arm(3, lambda: node.power_off(KeepUnsynced.NOTHING, Random(1)))
        await asyncio.sleep(2)
        assert b"".join(received) == b"ab"

    world.run(scenario())


def test_a_process_paused_while_sending_sends_the_rest_when_it_goes_on(world: World) -> None:
    received: list[bytes] = []

    async def scenario() -> None:
        node = await _sender_of_letters(world, received)
        node.arm(2, node.pause)
        await asyncio.sleep(60)
        assert b"".join(received) == b"a"
        node.resume()
        await asyncio.sleep(1)
        assert b"".join(received) == b"abc"

    world.run(scenario())


def test_a_process_whose_main_task_raises_is_a_crash_with_its_traceback(world: World) -> None:
    exits: list[Exit] = []

    async def other() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise AssertionError("no finally runs")

    async def main() -> None:
        asyncio.create_task(other())  # noqa: RUF006
        await asyncio.sleep(1)
        raise LookupError("lost the log")

    async def scenario() -> None:
        node = world.add_node("b1")
        node.on_exit = exits.append
        node.start(main)
        await asyncio.sleep(5)
        assert not node.alive
        assert node.errors == []

    world.run(scenario())
    (crash,) = exits
    assert crash.node == "b1"
    assert isinstance(crash.error, LookupError)
    assert 1_000_000_000 <= crash.time_ns < 1_001_000_000
    assert "lost the log" in crash.text
    assert "Traceback" in crash.text


@pytest.mark.parametrize("how", ["return", "sys.exit", "cancelled"])
def test_a_process_that_ends_by_itself_is_reported(world: World, how: str) -> None:
    exits: list[Exit] = []

    async def main() -> None:
        if how == "sys.exit":
            asyncio.get_running_loop().call_soon(exec, "raise SystemExit(3)")
            await asyncio.sleep(1)
        if how == "cancelled":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)

    async def scenario() -> None:
        node = world.add_node("b1")
        node.on_exit = exits.append
        node.start(main)
        await asyncio.sleep(2)
        assert not node.alive

    world.run(scenario())
    assert len(exits) == 1
    expected = {"return": "without being stopped", "sys.exit": "SystemExit: 3", "cancelled": "was cancelled"}
    assert expected[how] in exits[0].text


def test_an_exception_in_a_callback_is_recorded_against_its_node_and_the_process_goes_on(world: World) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)

        async def fails() -> None:
            raise ValueError("nobody awaits this")

        asyncio.create_task(fails())  # noqa: RUF006
        await asyncio.Event().wait()

    async def scenario() -> None:
        node = world.add_node("b1")
        node.start(main)
        await asyncio.sleep(1)
        world.collect_garbage()
        assert node.alive
        assert "ZeroDivisionError" in node.errors[0]

    world.run(scenario())
    assert world.harness.errors == []


def test_a_deadlock_says_who_waits_and_where(world: World) -> None:
    async def main() -> None:
        async def inner() -> None:
            await asyncio.Event().wait()

        await inner()

    async def scenario() -> None:
        world.add_node("b1").start(main)
        world.add_node("b2").start(main)
        world.add_node("b3")
        await asyncio.sleep(1)
        world.node("b2").pause()
        await asyncio.Lock().acquire()
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock) as caught:
        world.run(scenario())
    message = str(caught.value)
    assert "scenario waits at test_processes.py" in message
    assert "b1: b1-main waits at locks.py" in message
    assert "b2 is paused" in message
    assert "b3 is down" in message


@pytest.mark.parametrize("spins", [False, True])
def test_a_run_that_takes_too_long_is_ended(world: World, spins: bool) -> None:
    async def scenario() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0 if spins else 1)

    with pytest.raises(OutOfTime, match=r"(?s)5.000 s of virtual time.*scenario waits"):
        world.run(scenario(), time_limit_s=5)
    assert world.now_ns < 5_100_000_000


def test_a_world_runs_again_where_it_stopped_until_it_is_closed(world: World) -> None:
    async def scenario() -> float:
        await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    assert 1 <= world.run(scenario()) < 1.001
    assert 2 <= world.run(scenario()) < 2.001
    world.close()
    world.close()
    with pytest.raises(SimulationError, match="closed"):
        world.run(scenario())


def test_an_interrupt_ends_the_run_and_leaves_asyncio_usable() -> None:
    async def scenario() -> None:
        raise KeyboardInterrupt

    with World(1) as world, pytest.raises(KeyboardInterrupt):
        world.run(scenario())
    assert asyncio.run(asyncio.sleep(0, "fine")) == "fine"
    assert gc.isenabled()
