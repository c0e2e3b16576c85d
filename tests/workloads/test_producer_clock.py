"""The clock of a producer: wrong within its error, and right without one."""

from __future__ import annotations

import asyncio
from random import Random

from tests.workloads.virtual_time import VirtualTimeLoop
from workloads.clients.producer_clock import ProducerClock


async def errors_ms(error_ms: int) -> list[int]:
    """How far a clock is ahead at each of a hundred seconds."""
    clock, loop, ahead_ms = ProducerClock(Random(7), error_ms, unix_ahead_ms=60_000), asyncio.get_running_loop(), []
    for _ in range(100):
        await asyncio.sleep(1)
        ahead_ms.append(clock.now_ms() - int(loop.time() * 1000) - 60_000)
    return ahead_ms


def test_a_clock_is_wrong_within_its_error_and_jumps() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        ahead_ms = runner.run(errors_ms(300))
    assert min(ahead_ms) < -100 < 100 < max(ahead_ms)
    assert max(map(abs, ahead_ms)) <= 300
    assert 10 < len(set(ahead_ms)) < 50, "it is set now and then, and steady in between"


def test_a_clock_without_an_error_is_right() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert set(runner.run(errors_ms(0))) == {0}
