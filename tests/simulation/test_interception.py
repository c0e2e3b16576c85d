"""Messages over the simulated network that are delayed, held or dropped while all others pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from harness.simulation.node import SimNode
from harness.simulation.world import HARNESS, World
from nemesis.ports import KeepUnsynced, Link, MessageEffect, MessagePart, MessageRule
from tests.simulation.framed import FramedCaller, serve

FETCH, VOTE = 1, 52
TO_SERVER = [Link(HARNESS, "b1")]
REQUEST, RESPONSE = MessagePart.REQUEST, MessagePart.RESPONSE
DELAY, HOLD, DROP = MessageEffect.DELAY, MessageEffect.HOLD, MessageEffect.DROP


class Scene:
    """A world with one server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.requests: list[tuple[int, int]] = []
        """Those that the server has read."""
        world.add_node("b1").start(partial(serve, self.requests))

    def intercept(self, part: MessagePart, effect: MessageEffect, *, delay_ms: float = 0.0, count: int = 1) -> None:
        rule = MessageRule(FETCH, part, effect, delay_ms, count)
        self.world.network.intercept(1, TO_SERVER, rule)

    def stop(self) -> int:
        return self.world.network.stop_intercepting(1)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with World(1) as world:
        yield Scene(world)


def intercepted_sender(scene: Scene, send: Callable[[], Coroutine[Any, Any, None]], rule: MessageRule) -> SimNode:
    """Another node, which sends to the server; the rule is for its messages."""
    sender = scene.world.add_node("b2")
    scene.world.network.intercept(1, [Link("b2", "b1")], rule)
    sender.start(send)
    return sender


def now_s() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("part", [REQUEST, RESPONSE])
def test_one_message_is_late_and_all_that_follows_it_on_its_connection(scene: Scene, part: MessagePart) -> None:
    async def scenario() -> None:
        caller, other = await FramedCaller.connect("b1"), await FramedCaller.connect("b1")
        scene.intercept(part, DELAY, delay_ms=2000)
        began_s = now_s()
        caller.send(VOTE, 1)
        assert await caller.response() == 1
        assert now_s() - began_s < 0.1
        caller.send(FETCH, 2)
        caller.send(FETCH, 3)
        other.send(FETCH, 4)
        assert await other.response() == 4
        assert now_s() - began_s < 0.1, "one message was asked for, and another connection waits for none"
        assert [await caller.response(), await caller.response()] == [2, 3]
        assert 2.0 <= now_s() - began_s < 2.2
        assert scene.stop() == 1

    scene.world.run(scenario())


@pytest.mark.parametrize("part", [REQUEST, RESPONSE])
def test_a_held_message_arrives_when_the_interception_ends(scene: Scene, part: MessagePart) -> None:
    async def scenario() -> None:
        caller = await FramedCaller.connect("b1")
        scene.intercept(part, HOLD)
        caller.send(FETCH, 1)
        caller.send(VOTE, 2)
        with pytest.raises(TimeoutError):
            await caller.response(timeout_s=10)
        assert scene.requests == ([] if part is REQUEST else [(FETCH, 1), (VOTE, 2)])
        assert scene.stop() == 1
        assert [await caller.response(1), await caller.response(1)] == [1, 2]

    scene.world.run(scenario())


@pytest.mark.parametrize("part", [REQUEST, RESPONSE])
def test_a_dropped_message_breaks_its_connection_and_no_other(scene: Scene, part: MessagePart) -> None:
    async def scenario() -> None:
        caller, other = await FramedCaller.connect("b1"), await FramedCaller.connect("b1")
        scene.intercept(part, DROP)
        caller.send(FETCH, 1)
        with pytest.raises(ConnectionResetError):
            await caller.response()
        other.send(FETCH, 2)
        assert await other.response() == 2
        assert scene.requests == [(FETCH, 2)] if part is REQUEST else [(FETCH, 1), (FETCH, 2)]
        assert scene.stop() == 1

    scene.world.run(scenario())


@pytest.mark.parametrize(("count", "intercepted"), [(1, 1), (3, 3), (0, 5)])
def test_so_many_messages_are_intercepted_as_the_rule_says(scene: Scene, count: int, intercepted: int) -> None:
    async def scenario() -> None:
        scene.intercept(REQUEST, DELAY, delay_ms=100, count=count)
        for number in range(5):
            caller = await FramedCaller.connect("b1")
            began_s = now_s()
            caller.send(FETCH, number)
            assert await caller.response() == number
            assert (now_s() - began_s >= 0.1) is (number < intercepted)
        assert scene.stop() == intercepted

    scene.world.run(scenario())


def test_requests_written_together_are_each_seen(scene: Scene) -> None:
    async def scenario() -> None:
        caller = await FramedCaller.connect("b1")
        scene.intercept(RESPONSE, HOLD)
        caller.send(FETCH, 1, 2, 3)
        await asyncio.sleep(1)
        assert scene.requests == [(FETCH, 1), (FETCH, 2), (FETCH, 3)]
        assert scene.stop() == 1
        assert [await caller.response() for _ in range(3)] == [1, 2, 3]

    scene.world.run(scenario())


def test_bytes_that_are_no_frames_pass(scene: Scene) -> None:
    async def scenario() -> None:
        caller = await FramedCaller.connect("b1")
        scene.intercept(REQUEST, DROP, count=0)
        for data in (b"\xff" * 40, b"\0", bytes(12), b"\0\0\x7f\0" + bytes(20)):
            caller.writer.write(data)
        await asyncio.sleep(1)
        assert scene.stop() == 0

    scene.world.run(scenario())


@pytest.mark.parametrize("effect", [DELAY, HOLD])
def test_a_request_on_its_way_outlives_the_machine_that_sent_it_and_nothing_comes_after_it(
    scene: Scene, effect: MessageEffect
) -> None:
    async def send() -> None:
        caller = await FramedCaller.connect("b1")
        caller.send(FETCH, 1)
        await asyncio.sleep(0.5)
        caller.send(VOTE, 2)
        await asyncio.Event().wait()

    async def scenario() -> None:
        sender = intercepted_sender(scene, send, MessageRule(FETCH, REQUEST, effect, 2000 if effect is DELAY else 0))
        await asyncio.sleep(0.4 if effect is DELAY else 1)
        assert scene.world.network.intercepted(1) == 1
        sender.power_off(KeepUnsynced.NOTHING, Random(1))
        await asyncio.sleep(2)
        assert scene.requests == ([(FETCH, 1)] if effect is DELAY else [])
        assert scene.stop() == 1
        await asyncio.sleep(1)
        assert scene.requests == [(FETCH, 1)], "what waited behind it, the sender would have had to send again"

    scene.world.run(scenario())


def test_a_held_request_arrives_before_the_reset_of_a_sender_that_died_with_something_unread(scene: Scene) -> None:
    async def send() -> None:
        caller = await FramedCaller.connect("b1")
        caller.writer.transport.pause_reading()
        caller.send(VOTE, 1)
        await asyncio.sleep(0.1)
        caller.send(FETCH, 2)
        await asyncio.Event().wait()

    async def scenario() -> None:
        sender = intercepted_sender(scene, send, MessageRule(FETCH, REQUEST, HOLD))
        await asyncio.sleep(1)
        sender.kill()
        await asyncio.sleep(1)
        assert scene.requests == [(VOTE, 1)]
        assert scene.stop() == 1
        await asyncio.sleep(1)
        assert scene.requests == [(VOTE, 1), (FETCH, 2)]
        assert not scene.world.network.connections, "the reset came after it"

    scene.world.run(scenario())


def test_a_held_request_is_forgotten_with_what_a_cut_link_holds_before_it(scene: Scene) -> None:
    """It would follow upon missing bytes."""

    async def send() -> None:
        caller = await FramedCaller.connect("b1")
        await asyncio.sleep(0.1)
        caller.send(VOTE, 1)
        await asyncio.sleep(0.1)
        caller.send(FETCH, 2)
        await asyncio.Event().wait()

    async def scenario() -> None:
        network, sender = scene.world.network, intercepted_sender(scene, send, MessageRule(FETCH, REQUEST, HOLD))
        await asyncio.sleep(0.05)
        network.cut("b2", "b1")
        await asyncio.sleep(1)
        sender.power_off(KeepUnsynced.NOTHING, Random(1))
        network.heal_link("b2", "b1")
        assert scene.stop() == 1
        await asyncio.sleep(1)
        assert scene.requests == []

    scene.world.run(scenario())


def test_messages_of_two_interceptions_on_one_connection_wait_for_both(scene: Scene) -> None:
    async def scenario() -> None:
        caller = await FramedCaller.connect("b1")
        scene.intercept(REQUEST, HOLD)
        scene.world.network.intercept(2, TO_SERVER, MessageRule(VOTE, REQUEST, HOLD))
        caller.send(FETCH, 1)
        caller.send(VOTE, 2)
        await asyncio.sleep(1)
        assert scene.stop() == 1
        assert await caller.response() == 1
        with pytest.raises(TimeoutError):
            await caller.response(timeout_s=5)
        assert scene.world.network.stop_intercepting(2) == 1
        assert await caller.response() == 2

    scene.world.run(scenario())
