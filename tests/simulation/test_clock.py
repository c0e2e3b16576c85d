"""Clocks of nodes: jumps, rates, and that time never runs backwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis import given

from harness.simulation.clock import NodeClock
from harness.simulation.node import SimNode
from harness.simulation.world import World


def _ticks(act: Callable[[SimNode], None], after_s: float, until_s: float) -> list[tuple[float, float]]:
    """(true, node time) of a one-second ticker on a node whose clock is bent `after_s` seconds into the run."""
    ticks: list[tuple[float, float]] = []

    async def ticker() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append((round(world.now_ns / 1e9, 2), round(asyncio.get_running_loop().time(), 2)))

    async def scenario() -> None:
        node = world.add_node("b1")
        node.start(ticker)
        await asyncio.sleep(after_s)
        act(node)
        await asyncio.sleep(until_s - after_s)

    with World(1) as world:
        world.run(scenario())
    return ticks


def test_a_true_clock_ticks_in_true_time() -> None:
    assert _ticks(lambda node: None, 0.5, 3.5) == [(1, 1), (2, 2), (3, 3)]


def test_a_jump_forward_fires_timers_early() -> None:
    assert _ticks(lambda node: node.set_clock(jump_ms=600), 0.5, 2) == [(0.5, 1.1), (1.5, 2.1)]


def test_a_jump_back_makes_time_stand_still_until_it_has_caught_up() -> None:
    assert _ticks(lambda node: node.set_clock(jump_ms=-2000), 0.5, 5) == [(3, 1), (4, 2)]


def test_a_wall_clock_is_stepped_while_timers_go_on() -> None:
    assert _ticks(lambda node: node.set_clock(wall_jump_ms=-60_000), 0.5, 3.5) == [(1, 1), (2, 2), (3, 3)]


def test_a_wall_clock_is_stepped_back_to_what_timers_go_by() -> None:
    true_ns = 5_000_000_000
    clock = NodeClock(lambda: true_ns)
    clock.change(wall_jump_ms=2_000)
    assert (clock.now_ns(), clock.wall_now_ms()) == (true_ns, 7_000)
    clock.change(wall_jump_ms=-9_000)
    assert (clock.now_ns(), clock.wall_now_ms()) == (true_ns, 0)
    clock.reset()
    assert clock.wall_now_ms() == 5_000


def test_a_fast_clock_ticks_often_and_a_slow_one_seldom() -> None:
    assert _ticks(lambda node: node.set_clock(rate=2.0), 0.5, 2) == [(0.75, 1), (1.25, 2), (1.75, 3)]
    assert _ticks(lambda node: node.set_clock(rate=0.5), 0.5, 4) == [(1.5, 1), (3.5, 2)]


def test_a_frozen_clock_fires_no_timer_but_the_network_goes_on() -> None:
    answers: list[bytes] = []

    async def serve() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline() + str(asyncio.get_running_loop().time()).encode() + b"\n")

        await asyncio.start_server(answer, "", 1)
        await asyncio.sleep(5)
        answers.append(b"timer fired")
        await asyncio.Event().wait()

    async def scenario() -> None:
        node = world.add_node("b1")
        node.start(serve)
        await asyncio.sleep(1)
        node.set_clock(rate=0.0)
        frozen_time = node.loop.time()
        await asyncio.sleep(100)
        reader, writer = await asyncio.open_connection("b1", 1)
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        assert float(await reader.readline()) == frozen_time
        assert answers == []
        node.reset_clock()
        await asyncio.sleep(3.9)
        assert answers == []
        await asyncio.sleep(0.2)
        assert answers == [b"timer fired"]

    with World(1) as world:
        world.run(scenario())


def test_a_reset_keeps_the_offset_and_gives_the_rate_back() -> None:
    def act(node: SimNode) -> None:
        node.set_clock(jump_ms=10_000, rate=3.0)
        node.reset_clock()

    assert _ticks(act, 0.5, 2) == [(0.5, 10.5), (1.5, 11.5)]


def test_a_timer_never_fires_before_the_clock_tells_its_time() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        random = world.stream("test")
        for _ in range(300):
            when = loop.time() + random.random() / 1000
            reached: asyncio.Queue[float] = asyncio.Queue()
            loop.call_at(when, lambda queue: queue.put_nowait(loop.time()), reached)
            assert await reached.get() >= when

    with World(1) as world:
        world.run(scenario())


def test_cancelled_timers_do_not_pile_up() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(3600, lambda: None)
        for _ in range(10_000):
            loop.call_later(1000, lambda: None).cancel()
            loop.call_later(0.001, lambda: None)
            await asyncio.sleep(0.002)
        assert len(world.harness.loop._timers) < 1000
        assert len(world._events) < 1000

    with World(1) as world:
        world.run(scenario())


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10_000_000_000),
            st.sampled_from(["wait", "set", "reset"]),
            st.integers(-5000, 5000),
            st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.1, 7.0]),
        ),
        max_size=12,
    ),
    st.integers(1, 20_000_000_000),
)
def test_time_is_monotonic_and_timers_know_when_they_are_due(
    acts: list[tuple[int, str, int, float]], ahead_ns: int
) -> None:
    now_ns = 0
    clock = NodeClock(lambda: now_ns)
    told = 0
    for wait_ns, act, jump_ms, rate in acts:
        now_ns += wait_ns
        if act == "set":
            clock.change(jump_ms=jump_ms, rate=rate)
        elif act == "reset":
            clock.reset()
        assert clock.now_ns() >= told
        told = clock.now_ns()
        due_ns = clock.true_time_of(told + ahead_ns)
        if due_ns is None:
            assert clock.rate == 0.0
            continue
        assert due_ns >= now_ns
        before, now_ns = now_ns, due_ns
        assert clock.now_ns() >= told + ahead_ns
        now_ns = max(before, due_ns - 1)
        assert clock.now_ns() < told + ahead_ns or now_ns == before
        now_ns = before
