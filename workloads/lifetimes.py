"""Lifetimes: when clients come and go, and when partitions are written to.

A client that lives for the whole run has one life without end. Else it is one client after another, each with a life
drawn around a mean, so that clients begin and end in the middle of a run.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

REST_S_MIN = 0.2
"""Least time between the end of a consumer and the next one."""
_ALWAYS = (-math.inf, math.inf)


def end_of_life_s(random: Random, mean_s: float) -> float:
    """When a life that begins now is over, by the loop's clock; never with a mean of 0."""
    return asyncio.get_running_loop().time() + random.expovariate(1 / mean_s) if mean_s else math.inf


async def sleep_until(when_s: float) -> None:
    """Sleep until the loop's clock reads `when_s`."""
    await asyncio.sleep(max(0.0, when_s - asyncio.get_running_loop().time()))


@dataclass(frozen=True, slots=True)
class WrittenPartitions:
    """The partitions that producers write to, over time."""

    stretches: tuple[tuple[float, float], ...]
    """From when to when each partition is written to, by the loop's clock; the first one always is."""

    @classmethod
    def of_all(cls, partitions: int) -> WrittenPartitions:
        """Every partition, always."""
        return cls((_ALWAYS,) * partitions)

    @classmethod
    def drawn(
        cls, random: Random, partitions: int, idle: int, share: float, from_s: float, until_s: float
    ) -> WrittenPartitions:
        """The last `idle` partitions are never written to, the first one always, and all others in one stretch that is
        `share` of the time."""
        if share >= 1:
            return cls.of_all(partitions - idle)
        length_s = until_s - from_s
        starts_s = [from_s + random.uniform(0, 1 - share) * length_s for _ in range(1, partitions - idle)]
        return cls((_ALWAYS, *((start_s, start_s + share * length_s) for start_s in starts_s)))

    def at(self, time_s: float) -> Sequence[int]:
        """The partitions that are written to at a time."""
        return [number for number, (from_s, until_s) in enumerate(self.stretches) if from_s <= time_s < until_s]
