"""One seed is one run: the same digest in every process, and a digest that shows every difference."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from harness.simulation.storage.files import SimFiles
from harness.simulation.world import World
from nemesis.ports import KeepUnsynced, LinkQuality
from tests.simulation.echo import Caller, serve

ROOT = Path(__file__).parents[2]


def crowd(seed: int, spoil: str = "") -> tuple[str, list[tuple[int, int, str]]]:
    """Three nodes that talk, write and fail: (digest, trail). `spoil` adds what must show in the digest."""
    with World(seed) as world:
        return world.run(_scenario(world, spoil)), list(world.trail)


async def _scenario(world: World, spoil: str) -> str:
    def talk(name: str, incarnation: int) -> None:
        node = world.node(name)

        async def main() -> None:
            random = world.stream(f"node-{name}-{incarnation}")
            asyncio.create_task(serve())  # noqa: RUF006
            await asyncio.sleep(0.01)
            file = node.files.open(f"logs/{incarnation}")

            async def chat(peer: str) -> None:
                while True:
                    try:
                        caller = await Caller.connect(peer)
                        while True:
                            word = "".join({"a", "b", "c", "d", "e"}) if spoil == "hash order" else "word"
                            file.append((await caller.call(f"{word} {random.random()}", 0.3)).encode())
                            if random.random() < 0.1:
                                file.fsync()
                            await asyncio.sleep(random.expovariate(50))
                    except (OSError, TimeoutError):
                        await asyncio.sleep(random.random() / 10)

            async with asyncio.TaskGroup() as group:
                for peer in ("b1", "b2", "b3"):
                    group.create_task(chat(peer))

        node.start(main)

    random = world.stream("faults")
    for name in ("b1", "b2", "b3"):
        world.add_node(name)
        talk(name, 1)
    for round_ in range(2, 12):
        source, target, victim = (random.choice(["b1", "b2", "b3"]) for _ in range(3))
        world.network.cut(source, target)
        world.network.degrade(target, victim, LinkQuality(delay_ms=5, jitter_ms=5, loss=0.1))
        world.node(victim).set_clock(jump_ms=50, rate=random.choice([0.5, 2.0]))
        await asyncio.sleep(random.random())
        node = world.node(source)
        node.pause()
        await asyncio.sleep(random.random())
        node.resume()
        node.arm(random.randint(1, 5), lambda: world.node(victim).power_off(KeepUnsynced.TORN, Random(round_)))  # noqa: B023
        await asyncio.sleep(0.1)
        node.disarm()
        world.node(victim).kill()
        world.network.heal_link(source, target)
        world.network.clear_degradation(target, victim)
        world.node(victim).reset_clock()
        talk(victim, round_)
        if round_ == 6:
            await _spoil(world, spoil)
    await asyncio.sleep(2)
    return world.hexdigest()


async def _spoil(world: World, spoil: str) -> None:
    if spoil == "one more callback":
        await asyncio.sleep(0)
    elif spoil == "one byte":
        SimFiles(world.node("b1").disk).open("extra").append(b"x")
    elif spoil == "a nanosecond":
        world.at(world.now_ns + 1, lambda _: None, None)


def _in_a_process(hash_seed: str, seed: int, spoil: str = "") -> str:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"from tests.simulation.test_determinism import crowd; print(crowd({seed}, {spoil!r})[0])",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()


def test_the_same_seed_gives_the_same_digest_in_every_process() -> None:
    here, _ = crowd(7)
    assert {_in_a_process(hash_seed, 7) for hash_seed in ("0", "1", "12345", "random")} == {here}


def test_neither_memory_layout_nor_garbage_changes_the_run() -> None:
    first, trail = crowd(3)
    garbage: list[object] = []
    for _ in range(1000):
        garbage.append([garbage])
    gc.collect()
    second, other_trail = crowd(3)
    assert second == first
    assert other_trail == trail
    assert len(trail) > 5
    assert [step for step, _, _ in trail] == [1024 * (number + 1) for number in range(len(trail))]


def test_seeds_differ() -> None:
    assert len({crowd(seed)[0] for seed in range(4)}) == 4


@pytest.mark.parametrize("spoil", ["one more callback", "one byte", "a nanosecond"])
def test_the_smallest_difference_shows_in_the_digest(spoil: str) -> None:
    plain, trail = crowd(5)
    spoiled, spoiled_trail = crowd(5, spoil)
    assert spoiled != plain
    same = [point for point, other in zip(trail, spoiled_trail, strict=False) if point == other]
    assert 0 < len(same) < len(trail)
    assert same == trail[: len(same)]


def test_iterating_over_a_set_of_strings_shows_as_differing_digests() -> None:
    assert _in_a_process("1", 7, "hash order") != _in_a_process("2", 7, "hash order")
