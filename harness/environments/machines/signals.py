"""Ignores Ctrl-C and SIGTERM during a cleanup."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Ctrl-C and SIGTERM do nothing meanwhile: a second one does not leave half of a run behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
