"""Ctrl-C and SIGTERM: the first one interrupts the command, and later ones do not disturb its cleanup.

A second Ctrl-C would otherwise end the cleanup half-way, leave containers behind and print a traceback. `kill -9` and
Ctrl-\\ still end the command at once; `faultline clean` removes the rest.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeVar

T = TypeVar("T")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A signal handler that acts once: it raises KeyboardInterrupt, or does what `run_cancellable` asks instead."""

    def __init__(self) -> None:
        self.came = False
        """Whether a signal has come."""
        self.act: Callable[[], object] = _raise

    def __call__(self, number: int, frame: object) -> None:
        if not self.came:
            self.came = True
            self.act()


def _raise() -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def first_interruption_only() -> Iterator[Interruption]:
    """The first SIGINT or SIGTERM within raises KeyboardInterrupt in the main thread, and no other one does anything.

    A command that a shell started in the background ignores SIGINT, and ends at SIGTERM all the same. Within another
    one it is that one.
    """
    outer = signal.getsignal(signal.SIGTERM)
    if isinstance(outer, Interruption) or threading.current_thread() is not threading.main_thread():
        yield outer if isinstance(outer, Interruption) else Interruption()
        return
    interruption = Interruption()
    heard = [number for number in _SIGNALS if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interruption) for number in heard}
    try:
        yield interruption
    finally:
        _restore(before)


@contextmanager
def interruption_raised() -> Iterator[None]:
    """What an interruption broke off may answer with an error of its own: KeyboardInterrupt then takes its place."""
    with first_interruption_only() as interruption:
        try:
            yield
        except Exception as error:
            if interruption.came:
                raise KeyboardInterrupt from error
            raise


def run_cancellable(coroutine: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`. The first interruption cancels the coroutine, which then cleans up undisturbed; raises
    KeyboardInterrupt when that has ended it."""
    handler = signal.getsignal(signal.SIGTERM)
    if not isinstance(handler, Interruption) or threading.current_thread() is not threading.main_thread():
        return asyncio.run(coroutine)
    interruption = handler

    async def to_be_cancelled() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        interruption.act = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            return await coroutine
        finally:
            interruption.act = _raise

    try:
        return asyncio.run(to_be_cancelled())
    except asyncio.CancelledError:
        if interruption.came:
            raise KeyboardInterrupt from None
        raise


@contextmanager
def interruptions_ignored() -> Iterator[None]:
    """Ctrl-C and SIGTERM do nothing meanwhile, also where nothing else handles them: a cleanup ends whole."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        _restore(before)


def ignore_from_now_on() -> None:
    """Nothing is left but the end of the process, which prints a traceback when it is interrupted."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _restore(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
