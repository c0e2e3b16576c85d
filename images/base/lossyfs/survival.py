"""Which unsynced changes survive a power loss: the choices, and the random draw.

The simulated disk uses the same draw, so that a simulated power loss and a real one are alike.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import NamedTuple


class Survival(StrEnum):
    """Unsynced changes that survive a power loss (the package's docstring has the details)."""

    NOTHING = "nothing"
    PREFIX = "prefix"
    TORN = "torn"
    EVERYTHING = "everything"


class Tear(NamedTuple):
    """What is left of the last write that survives, if it is torn."""

    kept_bytes: int
    """At least one, and not all."""
    zeros: bool
    """Whether the file is as long as with the whole write: the bytes that were not kept read as zeros where it had
    none before. File systems write down the length of a file apart from its contents."""


def draw_tear(length: int, random: Random) -> Tear:
    """How a write of `length` bytes, two or more, is torn."""
    return Tear(random.randint(1, length - 1), random.random() < 0.5)


def draw_surviving_prefix(length: int, keep: str, random: Random) -> int:
    """How many of `length` changes survive: often all, none, or all but the last few, else any number."""
    if keep == Survival.NOTHING or length == 0:
        return 0
    if keep == Survival.EVERYTHING:
        return length
    kind = random.random()
    if kind < 0.2:
        return 0
    if kind < 0.4:
        return length
    if kind < 0.7:
        return max(0, length - random.randint(1, 8))
    return random.randint(0, length)
