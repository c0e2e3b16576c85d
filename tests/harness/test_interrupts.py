"""Ctrl-C pressed three times: one interruption, and a cleanup that ends whole."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from harness.interrupts import first_interruption_only, run_cancellable


@pytest.fixture(autouse=True)
def _in_the_foreground() -> Iterator[None]:
    """The tests may run in the background, where a shell has SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_interrupts_and_the_others_do_nothing() -> None:
    cleaned = []
    with first_interruption_only() as interruption:
        try:
            _press()
        except KeyboardInterrupt:
            _press()
            os.kill(os.getpid(), signal.SIGTERM)
            cleaned.append(True)
    assert (cleaned, interruption.came) == ([True], True)


def test_a_coroutine_is_cancelled_once_and_cleans_up_undisturbed() -> None:
    steps = []

    async def work() -> None:
        try:
            _press()
            await asyncio.sleep(60)
        finally:
            for number in range(3):
                _press()
                await asyncio.sleep(0)
                steps.append(number)

    with first_interruption_only():
        with pytest.raises(KeyboardInterrupt):
            run_cancellable(work())
    assert steps == [0, 1, 2]


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with first_interruption_only() as outer, first_interruption_only() as inner:
        assert inner is outer
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
