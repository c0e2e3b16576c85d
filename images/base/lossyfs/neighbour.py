"""Keeping the daemon on the processor of the program it serves.

While a program waits for its file system its processor is free, and what it wants written is in that processor's cache.
The scheduler does not see this: it wakes the daemon where it last ran, and where that is another processor every
operation pays for two interrupts between them and for fetching the bytes. On a virtual machine with two processors
64 KiB appends took 12 µs side by side and 35 to 45 µs apart, and apart they stayed.

So, up to fifty times a second, the daemon's thread moves to where its caller is. When others keep that processor busy,
the scheduler moves the caller, and the daemon follows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

LOOK_EVERY_NS: Final = 20_000_000
_PROCESSOR_FIELD: Final = 36
"""Of /proc/<thread>/stat, counted from after the name in parentheses."""


class Neighbour:
    """Moves the thread that calls it."""

    __slots__ = ("_allowed", "_look_next_ns", "_processor")

    def __init__(self) -> None:
        self._allowed = os.sched_getaffinity(0)
        self._processor = -1
        self._look_next_ns = 0

    def follow(self, thread_id: Callable[[], int]) -> None:
        """Be on the processor where that thread is or was last; does nothing when it has looked a moment ago."""
        now_ns = time.monotonic_ns()
        if now_ns < self._look_next_ns:
            return
        self._look_next_ns = now_ns + LOOK_EVERY_NS
        processor = _processor_of(thread_id())
        if processor != self._processor and processor in self._allowed:
            self._processor = processor
            try:
                os.sched_setaffinity(0, {processor})
            except OSError:  # not ours to choose any more
                self._allowed = set()


def _processor_of(thread_id: int) -> int:
    """-1 when there is no such thread, or it is in another PID namespace."""
    try:
        with open(f"/proc/{thread_id}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[_PROCESSOR_FIELD])
    except (OSError, IndexError):
        return -1
