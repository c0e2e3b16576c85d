"""Conditions: a produce waits for the high watermark, a fetch for data, at most until a deadline (Kafka: purgatory).

A waiter learns that something changed, not what, and checks again. A wait that ends, also by cancellation, leaves
neither a future nor a timer behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class Condition:
    """A condition that tasks can wait for."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}

    @property
    def waiters(self) -> int:
        """Number of waiting tasks."""
        return len(self._waiters)

    def notify_all(self) -> None:
        """Wake all waiting tasks."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            resolve(waiter)


async def wait_for_any(conditions: Sequence[Condition], until: float) -> bool:
    """Wait until one of `conditions` is notified; False at once if `until`, a time of the loop, has passed.

    True: check again, perhaps for the last time, since the wait may have ended at `until`.
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
    """Resolve a future unless it is done: the callback of a timer that ends a wait."""
    if not future.done():
        future.set_result(None)
