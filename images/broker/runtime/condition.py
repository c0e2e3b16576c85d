"""Waiting for a change, at most until a time: how a produce waits for the high watermark and a fetch for data.

Whoever waits is told that something changed, not what, and looks again. However a wait ends, also by being cancelled,
it leaves neither a future nor a timer behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class Condition:
    """What can be waited for: something that changes now and then."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}

    @property
    def waiters(self) -> int:
        """How many wait for the next change."""
        return len(self._waiters)

    def notify_all(self) -> None:
        """There has been a change: wake everybody who waits for one."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            resolve(waiter)


async def wait_for_any(conditions: Sequence[Condition], until: float) -> bool:
    """Wait for the next change of any of `conditions`; False at once when `until`, a time of the loop, has passed.

    True says that it is worth looking again, be it for the last time: the wait may also have ended at `until`.
    """
    loop = asyncio.get_running_loop()
    if loop.time() >= until:
        return False
    waiter = loop.create_future()
    timer = loop.call_at(until, resolve, waiter)
    for condition in conditions:
        condition._waiters[waiter] = None
    try:
        await waiter
    finally:
        timer.cancel()
        for condition in conditions:
            condition._waiters.pop(waiter, None)
    return True


def resolve(future: asyncio.Future[None]) -> None:
    """Resolve a future that may have been resolved already: the callback of a timer that ends a wait."""
    if not future.done():
        future.set_result(None)
