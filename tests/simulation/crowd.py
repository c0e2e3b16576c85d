"""A small run of the simulation alone, which any Python can make without a library."""

from __future__ import annotations

import asyncio
from random import Random

from harness.simulation.storage.files import SimFiles
from harness.simulation.world import World
from nemesis.ports import KeepUnsynced, LinkQuality
from tests.simulation.echo import Caller, serve


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
