"""Connections over the simulated network when links and machines fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import pytest

from harness.simulation.network.network import LinkLatency
from harness.simulation.world import HARNESS, World
from nemesis.ports import LinkQuality
from tests.simulation.echo import PORT, Caller, serve


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        world.add_node("b1").start(serve)
        yield world


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_round_trip_takes_two_latencies_and_a_connection_a_round_trip() -> None:
    async def scenario() -> None:
        await asyncio.sleep(1)
        began = _now_s()
        reader, writer = await asyncio.open_connection("b1", PORT)
        assert 0.010 <= _now_s() - began < 0.0101
        began = _now_s()
        assert await Caller(reader, writer).call("hello") == "hello"
        assert 0.010 <= _now_s() - began < 0.0101

    with World(1, latency=LinkLatency(low_ms=5, high_ms=5.001)) as world:
        world.add_node("b1").start(serve)
        world.run(scenario())


def test_data_of_one_connection_arrives_in_order(world: World) -> None:
    async def scenario() -> list[str]:
        caller = await Caller.connect("b1")
        for number in range(200):
            caller.send(str(number))
        return [await caller.answer() for _ in range(200)]

    assert world.run(scenario()) == [str(number) for number in range(200)]


def test_connections_race_each_other(world: World) -> None:
    order: set[tuple[int, ...]] = set()

    async def scenario() -> None:
        callers = [await Caller.connect("b1") for _ in range(3)]

        async def call(number: int) -> None:
            await callers[number].call("x")
            finished.append(number)

        for _ in range(20):
            finished: list[int] = []
            await asyncio.gather(*(call(number) for number in range(3)))
            order.add(tuple(finished))

    world.run(scenario())
    assert len(order) > 3


def test_a_cut_link_holds_data_and_the_mend_delivers_it_in_order(world: World) -> None:
    async def scenario() -> None:
        caller = await Caller.connect("b1")
        await caller.call("before")
        world.network.cut(HARNESS, "b1")
        with pytest.raises(TimeoutError):
            await caller.call("first", timeout_s=5)
        caller.send("second")
        await asyncio.sleep(1)
        held = world.network.heal_link(HARNESS, "b1").held
        assert held == 2
        mended_s = _now_s()
        assert [await caller.answer(), await caller.answer()] == ["first", "second"]
        assert _now_s() - mended_s < 0.3

    world.run(scenario())


@pytest.mark.parametrize(("stopped_s", "sent_again_s"), [(0.1, 0.2), (0.3, 0.6), (2, 3), (7, 12.6), (700, 804.6)])
def test_what_a_cut_stopped_comes_when_its_kernel_sends_it_again(
    world: World, stopped_s: float, sent_again_s: float
) -> None:
    async def scenario() -> None:
        caller = await Caller.connect("b1")
        world.network.cut(HARNESS, "b1")
        caller.send("x")
        began_s = _now_s()
        await asyncio.sleep(stopped_s)
        world.network.heal_link(HARNESS, "b1")
        assert await caller.answer() == "x"
        assert _now_s() - began_s == pytest.approx(sent_again_s, abs=0.005)

    world.run(scenario())


def test_what_a_cut_keeps_comes_soon_after_the_mend_and_what_another_one_drops_does_not(world: World) -> None:
    async def after_the_mend_s(*kept: bool, channels: Sequence[str] = ("", "")) -> float:
        caller = await Caller.connect("b1")
        for each, channel in zip(kept, channels, strict=False):
            world.network.cut(HARNESS, "b1", kept=each, channel=channel)
        caller.send("x")
        await asyncio.sleep(7)
        for channel in dict.fromkeys(channels):
            world.network.heal_link(HARNESS, "b1", channel=channel)
        healed_s = _now_s()
        await caller.answer()
        return _now_s() - healed_s

    async def scenario() -> None:
        assert await after_the_mend_s(True) < 0.21
        assert await after_the_mend_s(True, False) > 5
        assert await after_the_mend_s(False, True) > 5
        assert await after_the_mend_s(True, True, channels=("", "client")) < 0.21
        assert await after_the_mend_s(True, False, channels=("", "client")) > 5

    world.run(scenario())


def test_a_one_way_cut_lets_the_other_direction_through(world: World) -> None:
    log: list[str] = []

    async def scenario() -> None:
        world.add_node("b2").start(lambda: serve(log))
        caller = await Caller.connect("b2")
        await caller.call("before")
        world.network.cut("b2", HARNESS)
        with pytest.raises(TimeoutError):
            await caller.call("heard")
        assert log == ["before", "heard"]
        world.network.heal_link("b2", HARNESS)
        assert await caller.answer() == "heard"

    world.run(scenario())


def test_a_cut_with_reset_breaks_open_connections_at_both_ends(world: World) -> None:
    log: list[str] = []

    async def scenario() -> None:
        world.add_node("b2").start(lambda: serve(log))
        caller = await Caller.connect("b2")
        await caller.call("x")
        world.network.cut(HARNESS, "b2", reset=True)
        with pytest.raises(ConnectionResetError):
            await caller.call("y")
        assert log == ["x", "ConnectionResetError"]
        assert world.network.heal_link(HARNESS, "b2").reset > 0

    world.run(scenario())


@pytest.mark.parametrize("back", ["whole", "refusing", "dropping"])
def test_connecting_across_a_cut_with_reset_is_refused_unless_no_answer_comes_back(world: World, back: str) -> None:
    async def scenario() -> None:
        world.network.cut(HARNESS, "b1", reset=True)
        if back != "whole":
            world.network.cut("b1", HARNESS, reset=back == "refusing")
        with pytest.raises(TimeoutError if back == "dropping" else ConnectionRefusedError):
            await asyncio.wait_for(asyncio.open_connection("b1", PORT), 1)
        assert world.network.heal_link(HARNESS, "b1").refused == 1
        world.network.heal_link("b1", HARNESS)
        await asyncio.wait_for(asyncio.open_connection("b1", PORT), 1)

    world.run(scenario())


def test_connecting_across_a_cut_link_hangs_until_the_mend(world: World) -> None:
    async def scenario() -> None:
        world.network.cut("b1", HARNESS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.open_connection("b1", PORT), 5)
        connecting = asyncio.create_task(asyncio.open_connection("b1", PORT))
        await asyncio.sleep(2)
        assert not connecting.done()
        assert world.network.heal_link("b1", HARNESS).refused >= 2
        await asyncio.wait_for(connecting, 2)

    world.run(scenario())


def test_loss_delays_what_comes_after_it_too(world: World) -> None:
    async def scenario() -> None:
        caller = await Caller.connect("b1")
        world.network.degrade(HARNESS, "b1", LinkQuality(loss=0.5))
        began = _now_s()
        for number in range(40):
            caller.send(str(number))
        assert [await caller.answer() for _ in range(40)] == [str(number) for number in range(40)]
        assert _now_s() - began >= 0.2
        counters = world.network.clear_degradation(HARNESS, "b1")
        assert counters.lost > 0
        assert counters.delay_ns >= counters.lost * 200_000_000
        began = _now_s()
        await caller.call("x")
        assert _now_s() - began < 0.005

    world.run(scenario())


def test_a_slow_link_adds_its_delay_to_every_packet(world: World) -> None:
    async def scenario() -> None:
        caller = await Caller.connect("b1")
        world.network.degrade("b1", HARNESS, LinkQuality(delay_ms=50, jitter_ms=10))
        for _ in range(5):
            began = _now_s()
            await caller.call("x")
            assert 0.05 <= _now_s() - began < 0.07
        assert world.network.clear_degradation("b1", HARNESS).delayed == 5

    world.run(scenario())


def test_a_killed_process_delivers_what_its_kernel_took_and_then_refuses(world: World) -> None:
    async def scenario() -> None:
        caller = await Caller.connect("b1")
        caller.send("x")
        await asyncio.sleep(0.0012)
        for _ in range(100):  # until the answer is written, but has not arrived
            if world.network.writes > 1:
                break
            await asyncio.sleep(0.00005)
        world.node("b1").kill()
        assert await caller.answer() == "x"
        assert await caller.answer() == ""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("b1", PORT)
        caller.send("nobody is there to answer but its kernel, with a reset")
        await asyncio.sleep(0.01)
        caller.send("y")
        with pytest.raises(ConnectionError):
            await caller.writer.drain()

    world.run(scenario())


def test_unread_data_of_a_killed_process_resets_the_peer(world: World) -> None:
    async def scenario() -> None:
        caller = await Caller.connect("b1")
        await caller.call("x")
        world.node("b1").pause()
        caller.send("y")
        await asyncio.sleep(0.1)
        world.node("b1").kill()
        with pytest.raises(ConnectionResetError):
            await caller.answer()

    world.run(scenario())


def test_the_peer_of_a_killed_process_behind_a_cut_link_learns_after_the_mend(world: World) -> None:
    async def scenario() -> None:
        caller = await Caller.connect("b1")
        await caller.call("x")
        world.network.cut("b1", HARNESS)
        world.node("b1").kill()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(caller.answer(), 10)
        world.network.heal_link("b1", HARNESS)
        assert await asyncio.wait_for(caller.answer(), 10) == ""

    world.run(scenario())


def test_a_reset_that_a_cut_stopped_is_lost(world: World) -> None:
    async def scenario() -> None:
        caller = await Caller.connect("b1")
        await caller.call("x")
        world.node("b1").pause()
        caller.send("y")
        await asyncio.sleep(0.1)
        world.network.cut("b1", HARNESS)
        world.node("b1").kill()
        await asyncio.sleep(1)
        world.network.heal_link("b1", HARNESS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(caller.answer(), 1000)
        with pytest.raises(ConnectionResetError):
            await caller.call("z")

    world.run(scenario())


def test_a_paused_process_still_has_connections_accepted_and_reads_all_at_once_when_it_resumes(world: World) -> None:
    log: list[str] = []

    async def scenario() -> None:
        node = world.add_node("b2")
        node.start(lambda: serve(log))
        old = await Caller.connect("b2")
        await old.call("old")
        node.pause()
        new = await Caller.connect("b2")
        old.send("waits")
        new.send("waits too")
        await asyncio.sleep(5)
        assert log == ["old"]
        frozen_ns, missed = node.resume()
        assert frozen_ns >= 5_000_000_000
        assert missed >= 2
        assert [await old.answer(), await new.answer()] == ["waits", "waits too"]

    world.run(scenario())


def test_writes_are_sometimes_split_and_waiting_data_is_read_together(world: World) -> None:
    sizes: list[int] = []

    class Sizes(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            sizes.append(len(data))

    async def listen() -> None:
        await asyncio.get_running_loop().create_server(Sizes, "", 1)
        await asyncio.Event().wait()

    async def scenario() -> None:
        node = world.add_node("b2")
        node.start(listen)
        await asyncio.sleep(0.001)
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "b2", 1)
        for _ in range(64):
            transport.write(b"x" * 100)
            await asyncio.sleep(0.005)
        assert sum(sizes) == 6400
        assert any(size < 100 for size in sizes)
        sizes.clear()
        node.pause()
        for _ in range(10):
            transport.write(b"x" * 100)
        await asyncio.sleep(1)
        node.resume()
        await asyncio.sleep(0.01)
        assert sizes == [1000]

    world.run(scenario())


def test_a_process_that_dies_takes_what_its_kernel_had_no_room_for_with_it(world: World) -> None:
    received = 0

    class Count(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            nonlocal received
            received += len(data)

    async def listen() -> None:
        await asyncio.get_running_loop().create_server(Count, "", 1)
        await asyncio.Event().wait()

    async def flood() -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, "b2", 1)
        transport.write(b"x" * 2_000_000)
        await asyncio.Event().wait()

    async def scenario() -> None:
        reader, writer = world.add_node("b2"), world.add_node("b3")
        reader.start(listen)
        await asyncio.sleep(0.001)
        writer.start(flood)
        await asyncio.sleep(0.0005)
        reader.pause()
        await asyncio.sleep(1)
        writer.kill()
        reader.resume()
        await asyncio.sleep(1)
        assert 0 < received <= 512 * 1024

    world.run(scenario())


def test_a_node_cannot_be_cut_from_itself(world: World) -> None:
    log: list[str] = []

    async def both() -> None:
        asyncio.create_task(serve(log))  # noqa: RUF006
        assert await (await Caller.connect("localhost")).call("x") == "x"

    async def scenario() -> None:
        world.network.cut("b2", "b2")
        world.node("b2").start(both)
        await asyncio.sleep(1)
        assert log == ["x"]

    world.add_node("b2")
    world.run(scenario())


def test_faults_on_a_link_that_is_not_faulty_do_nothing(world: World) -> None:
    async def scenario() -> None:
        assert world.network.heal_link("b1", HARNESS).held == 0
        assert world.network.clear_degradation("b1", HARNESS).delayed == 0
        world.network.cut("b1", HARNESS)
        world.network.cut("b1", HARNESS)
        world.network.heal_link("b1", HARNESS)
        assert await (await Caller.connect("b1")).call("x") == "x"
        with pytest.raises(KeyError, match="no node 'b9'; there are: harness, b1"):
            world.network.cut("b9", "b1")

    world.run(scenario())


def test_no_connection_is_forgotten_and_none_is_remembered_for_ever(world: World) -> None:
    async def scenario() -> None:
        for _ in range(50):
            caller = await Caller.connect("b1")
            await caller.call("x")
            caller.writer.close()
        world.node("b1").kill()
        await asyncio.sleep(1)
        assert not world.network.connections

    world.run(scenario())


def test_a_round_trip_costs_microseconds_of_real_time() -> None:
    """A generous bound for a busy machine: the loop itself takes about 9 µs."""

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            assert isinstance(self.transport, asyncio.Transport)
            self.transport.write(data)

    class Calling(asyncio.Protocol):
        waiter: asyncio.Future[bytes]

        def data_received(self, data: bytes) -> None:
            self.waiter.set_result(data)

    async def listen() -> None:
        await asyncio.get_running_loop().create_server(Echo, "", 1)
        await asyncio.Event().wait()

    async def scenario(rounds: int) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.001)
        transport, calling = await loop.create_connection(Calling, "b1", 1)
        for _ in range(rounds):
            calling.waiter = loop.create_future()
            transport.write(b"x")
            await calling.waiter

    def seconds(rounds: int) -> float:
        with World(1) as world:
            world.add_node("b1").start(listen)
            began = time.process_time()
            world.run(scenario(rounds))
            return time.process_time() - began

    assert min(seconds(2000) for _ in range(3)) / 2000 < 100e-6
