"""What a power loss leaves of changes that were not synced: how much is kept, and the draw of how many changes that is.

The simulated disk draws from here, too, so that a simulated power loss and one on a real machine are of one kind.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random


class Survival(StrEnum):
    """What a power loss leaves of what was not synced (the package's page says it in full)."""

    NOTHING = "nothing"
    PREFIX = "prefix"
    TORN = "torn"
    EVERYTHING = "everything"


def draw_surviving_prefix(length: int, keep: str, random: Random) -> int:
    """How many of `length` changes stay: often all, none, or all but the last few, else any number."""
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
