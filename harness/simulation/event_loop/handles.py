"""Handles, timers, futures and tasks of the simulated event loop.

Futures and tasks hash by a serial number instead of their address, so that a set of them (asyncio's own `TaskGroup` and
`wait` iterate over such sets) has the same order in every process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Ready(asyncio.Handle):
    """A callback waiting for its turn. Made by `NodeLoop.call_soon`, which fills it."""

    __slots__ = ()
    _callback: Callable[..., object]
    _context: Context

    def cancel(self) -> None:
        """Never run it; again does nothing."""
        self._cancelled = True
        self._callback, self._args = _nothing, ()

    def __repr__(self) -> str:
        return f"<Ready {getattr(self._callback, '__qualname__', self._callback)}>"


class CountsTimers(Protocol):
    """The loop of a timer, which counts the cancelled ones among those that wait."""

    cancelled_timers: int


class Timer(asyncio.TimerHandle):
    """A callback waiting for its time, in node time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        loop: CountsTimers,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context if context is not None else copy_context()
        self._cancelled = False
        self._scheduled = True
        self._loop = loop

    def cancel(self) -> None:
        """Never run it; again does nothing."""
        if not self._cancelled:
            self._cancelled = True
            self._callback, self._args = _nothing, ()
            if self._scheduled:
                self._loop.cancelled_timers += 1

    def __repr__(self) -> str:
        return f"<Timer {getattr(self._callback, '__qualname__', self._callback)} at {self._when}>"


def _nothing() -> None:
    """Stands in for the callback of a cancelled handle, so that it keeps nothing alive."""


class SimFuture(asyncio.Future[T]):
    """A future whose hash is its serial number."""

    __slots__ = ("serial",)
    serial: int

    def __hash__(self) -> int:
        return self.serial


class SimTask(asyncio.Task[T]):
    """A task whose hash is its serial number."""

    __slots__ = ("serial",)

    def __init__(
        self,
        coro: Coroutine[Any, Any, T],
        *,
        loop: asyncio.AbstractEventLoop,
        serial: int,
        name: str,
        context: Context | None,
    ) -> None:
        self.serial = serial
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.serial
