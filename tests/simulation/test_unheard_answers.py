"""The network counts the messages of its connections, and tells of one that is given up with every answer read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.simulation.network.frame_count import FrameCount
from harness.simulation.world import World
from tests.simulation.framed import FramedCaller, serve


@given(sizes=st.lists(st.integers(1, 40), max_size=8), left=st.integers(0, 43), cuts=st.lists(st.integers(0, 400)))
def test_frames_are_counted_however_the_stream_is_cut(sizes: list[int], left: int, cuts: list[int]) -> None:
    frames = [size.to_bytes(4) + bytes(size) for size in sizes]
    stream = b"".join(frames) + ((40).to_bytes(4) + bytes(40))[:left]
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    count = FrameCount()
    for start, end in pairwise(places):
        count.add(stream[start:end])
    assert (count.whole, count.ends_whole) == (len(frames), left == 0)


def given_up(scenario: Coroutine[Any, Any, None]) -> list[str]:
    """The peers of the connections that the harness gives up with every answer read; b1 serves it."""
    unheard: list[str] = []
    with World(1) as world:
        world.harness.on_unheard = unheard.append
        world.add_node("b1").start(lambda: serve([]))
        world.run(scenario)
    return unheard


@pytest.mark.parametrize(
    ("asked", "heard", "closed", "told"),
    [(1, 1, False, ["b1"]), (5, 5, False, ["b1"]), (5, 3, False, []), (0, 0, False, []), (3, 3, True, [])],
)
def test_a_connection_that_is_given_up_with_every_answer_read_is_told(
    asked: int, heard: int, closed: bool, told: list[str]
) -> None:
    async def scenario() -> None:
        caller = await FramedCaller.connect("b1")
        caller.send(1, *range(heard))
        for _ in range(heard):
            await caller.response()
        caller.send(1, *range(heard, asked))
        if closed:
            caller.writer.close()
        caller.writer.transport.abort()
        await asyncio.sleep(1)

    assert given_up(scenario()) == told


def test_what_the_end_of_the_world_makes_of_a_process_is_not_told() -> None:
    unheard: list[str] = []

    async def client() -> None:
        caller = await FramedCaller.connect("b1")
        caller.send(1, 1)
        await caller.response()
        try:
            await asyncio.Event().wait()
        finally:
            caller.writer.transport.abort()

    with World(1) as world:
        node = world.add_node("b2")
        node.on_unheard = unheard.append
        world.add_node("b1").start(lambda: serve([]))
        node.start(client)
        world.run(asyncio.sleep(1))
    assert unheard == []


def test_the_answers_that_a_process_has_not_read_are_still_to_come() -> None:
    async def scenario() -> None:
        caller = await FramedCaller.connect("b1")
        caller.writer.transport.pause_reading()
        caller.send(1, 1, 2)
        await asyncio.sleep(1)
        caller.writer.transport.abort()
        await asyncio.sleep(1)

    assert given_up(scenario()) == []
