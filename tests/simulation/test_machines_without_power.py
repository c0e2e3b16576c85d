"""Connections to a machine without power."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest

from harness.simulation.world import HARNESS, World
from nemesis.ports import KeepUnsynced
from tests.simulation.echo import PORT, Caller, serve


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        world.add_node("b1").start(serve)
        yield world


def test_connecting_to_a_machine_that_is_off_times_out_as_in_linux(world: World) -> None:
    async def scenario() -> None:
        world.node("b1").power_off(KeepUnsynced.EVERYTHING, Random(1))
        with pytest.raises(TimeoutError):
            await asyncio.open_connection("b1", PORT)
        assert 127 <= asyncio.get_running_loop().time() < 128

    world.run(scenario())


@pytest.mark.parametrize("sends", ["while off", "once back"])
def test_peers_of_a_machine_without_power_learn_only_by_sending_once_it_is_back(world: World, sends: str) -> None:
    async def scenario() -> None:
        caller = await Caller.connect("b1")
        await caller.call("x")
        world.node("b1").power_off(KeepUnsynced.NOTHING, Random(1))
        if sends == "while off":
            caller.send("y")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(caller.answer(), 30)
        world.node("b1").start(serve)
        if sends == "once back":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(caller.answer(), 30)
            caller.send("y")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(caller.answer(), 30 if sends == "while off" else 1)

    world.run(scenario())


@pytest.mark.parametrize("meanwhile", ["off again", "cut off"])
def test_a_machine_answers_what_is_sent_again_only_if_it_gets_it(world: World, meanwhile: str) -> None:
    async def scenario() -> None:
        caller, b1 = await Caller.connect("b1"), world.node("b1")
        b1.power_off(KeepUnsynced.NOTHING, Random(1))
        caller.send("x")  # and again after 6.2 and 12.6 s
        await asyncio.sleep(7)
        b1.start(serve)
        if meanwhile == "off again":
            b1.power_off(KeepUnsynced.NOTHING, Random(1))
        else:
            world.network.cut(HARNESS, "b1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(caller.answer(), 13)
        if meanwhile == "off again":
            b1.start(serve)
        else:
            world.network.heal_link(HARNESS, "b1")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(caller.answer(), 13)

    world.run(scenario())
