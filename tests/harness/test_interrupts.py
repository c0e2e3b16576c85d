"""Ctrl-C pressed three times: one interruption, and a cleanup that ends whole."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from harness.environments.interrupts import first_interruption_only, interruption_raised, run_cancellable


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


def test_an_error_of_what_was_broken_off_is_an_interruption_and_any_other_error_is_none() -> None:
    @interruption_raised()
    def talk(*, interrupted: bool) -> None:
        try:
            if interrupted:
                _press()
        finally:
            raise ConnectionError("nobody answers")

    for interrupted, expected in ((True, KeyboardInterrupt), (False, ConnectionError)):
        with pytest.raises(expected):
            talk(interrupted=interrupted)


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with first_interruption_only() as outer, first_interruption_only() as inner:
        assert inner is outer
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_ctrl_c_before_the_command_has_begun_ends_the_process_without_a_traceback() -> None:
    program = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import harness.cli.script\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


def test_a_command_that_cannot_be_imported_is_one_line_and_3() -> None:
    program = "import sys\nsys.modules['harness.cli.main'] = None\nfrom harness.cli.script import script\nscript()\n"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    assert ended.stderr.startswith("faultline: cannot start: ModuleNotFoundError: ")
    assert ended.stderr.count("\n") == 1
