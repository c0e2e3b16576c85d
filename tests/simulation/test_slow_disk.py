"""A process waits as long as its slow disk takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from harness.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


def _writer(world: World, done: list[float]) -> None:
    """A process on b1 that makes two writes at once and then sleeps for an instant, again and again."""
    node = world.add_node("b1")

    async def main() -> None:
        file = node.files.open("log")
        while True:
            file.append(b"x")
            file.fsync()
            await asyncio.sleep(0.001)
            done.append(world.now_ns / 1e9)

    node.disk.delay_ns = 100_000_000
    node.start(main)


def test_a_process_waits_as_long_as_its_slow_disk_takes(world: World) -> None:
    done: list[float] = []

    async def scenario() -> None:
        _writer(world, done)
        await asyncio.sleep(1.01)

    world.run(scenario())
    assert done == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0], abs=0.002)
    assert world.node("b1").disk.counters.delayed_ns == 12 * 100_000_000


def test_a_process_answers_once_its_slow_disk_is_done(world: World) -> None:
    async def main() -> None:
        file = world.node("b1").files.open("log")
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "harness", 1)
        asyncio.get_running_loop().call_soon(file.append, b"y")
        file.append(b"x")
        transport.write(b"done")
        await asyncio.Event().wait()

    received_s: list[float] = []

    class Receive(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received_s.append(world.now_ns / 1e9)

    async def scenario() -> None:
        await asyncio.get_running_loop().create_server(Receive, "", 1)
        node = world.add_node("b1")
        node.disk.delay_ns = 500_000_000
        node.start(main)
        await asyncio.sleep(5)

    world.run(scenario())
    assert len(received_s) == 1
    assert 0.5 < received_s[0] < 0.6, "and before whatever else waits"


def test_a_disk_that_is_fast_again_ends_the_wait_after_one_slow_write(world: World) -> None:
    done: list[float] = []

    async def scenario() -> None:
        _writer(world, done)
        await asyncio.sleep(0.05)
        world.node("b1").shorten_stall()
        await asyncio.sleep(0.2)

    world.run(scenario())
    assert done[0] == pytest.approx(0.15, abs=0.002)
    assert len(done) > 50
    assert world.node("b1").disk.counters.delayed_ns == pytest.approx(150_000_000, abs=2_000_000)


def test_a_process_paused_while_it_waits_for_its_disk_goes_on_when_both_are_over(world: World) -> None:
    done: list[float] = []

    async def scenario() -> None:
        _writer(world, done)
        node = world.node("b1")
        await asyncio.sleep(0.05)
        node.pause()
        await asyncio.sleep(0.3)
        assert done == []
        node.resume()
        await asyncio.sleep(0.01)
        assert done == pytest.approx([0.35], abs=0.002)
        node.pause()
        node.resume()
        await asyncio.sleep(0.1)
        assert len(done) == 1, "its disk is still busy"
        await asyncio.sleep(0.1)
        assert len(done) == 2

    world.run(scenario())


def test_a_process_killed_while_it_waits_for_its_disk_leaves_the_next_one_alone(world: World) -> None:
    done: list[float] = []

    async def scenario() -> None:
        _writer(world, done)
        node = world.node("b1")
        await asyncio.sleep(0.05)
        node.kill()
        node.disk.delay_ns = 0

        async def main() -> None:
            while True:
                done.append(world.now_ns / 1e9)
                await asyncio.sleep(0.05)

        node.start(main)
        await asyncio.sleep(0.22)

    world.run(scenario())
    assert done == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25], abs=0.002)
