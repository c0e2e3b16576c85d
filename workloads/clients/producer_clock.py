"""The clock of a producer, by which it stamps its records: a machine of its own, whose time may be wrong.

It is ahead or behind by no more than its error, and jumps now and then to another time within that, as clocks do that
are set. So the timestamps of a log fall as well as rise.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

_STEADY_S: Final = 4.0
"""Mean time between two jumps."""


class ProducerClock:
    """A clock that is wrong by `error_ms` at most; Unix time is `unix_ahead_ms` ahead of the running loop's."""

    def __init__(self, random: Random, error_ms: int, unix_ahead_ms: int = 0) -> None:
        self._random = random
        self._error_ms = error_ms
        self._unix_ahead_ms = unix_ahead_ms
        self._ahead_ms = 0
        self._jumps_s = 0.0

    def now_ms(self) -> int:
        """The Unix time that it shows."""
        now_s = asyncio.get_running_loop().time()
        if self._error_ms and now_s >= self._jumps_s:
            self._ahead_ms = self._random.randint(-self._error_ms, self._error_ms)
            self._jumps_s = now_s + self._random.expovariate(1 / _STEADY_S)
        return max(0, int(now_s * 1000) + self._unix_ahead_ms + self._ahead_ms)
