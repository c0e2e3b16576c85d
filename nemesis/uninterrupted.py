"""Actions that run to their end: a fault cancelled in the middle of one would not know what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def uninterrupted(action: Coroutine[Any, Any, T]) -> T:
    """Run `action` to its end; a caller cancelled meanwhile is cancelled after it."""
    task = asyncio.ensure_future(action)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieved: the caller gets the cancellation
        raise
