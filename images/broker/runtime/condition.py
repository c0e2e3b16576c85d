"""Waiting for a change, at most until a time: how a produce waits for the high watermark and a fetch for data.

Whoever waits is told that something changed, not what, and looks again. However a wait ends, also by being cancelled,
it leaves neither a future nor a timer behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class Changes:
    """What can be waited for: something that changes now and then."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def waiting(self) -> int:
        """How many wait for the next change."""
        return len(self._waiting)

    def tell(self) -> None:
        """There has been a change: wake everybody who waits for one."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for woken in waiting:
            resolve(woken)


async def next_change(watched: Sequence[Changes], until: float) -> bool:
    """Wait for the next change of any of `watched`; False at once when `until`, a time of the loop, has passed.

    True says that it is worth looking again, be it for the last time: the wait may also have ended at `until`.
    """
    loop = asyncio.get_running_loop()
    if loop.time() >= until:
        return False
    woken = loop.create_future()
    timer = loop.call_at(until, resolve, woken)
    for changes in watched:
        changes._waiting[woken] = None
    try:
        await woken
    finally:
        timer.cancel()
        for changes in watched:
            changes._waiting.pop(woken, None)
    return True


def resolve(future: asyncio.Future[None]) -> None:
    """Resolve a future that may have been resolved already: the callback of a timer that ends a wait."""
    if not future.done():
        future.set_result(None)
