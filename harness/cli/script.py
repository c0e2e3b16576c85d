"""The program `faultline`: `main` in a process of its own."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

from harness.exit_codes import INTERRUPTED
from harness.interrupts import first_interruption_only, ignore_from_now_on


def script() -> NoReturn:
    """Run the command and end the process. An interruption is quiet also before the command and after it."""
    _open_streams()
    # Libraries raise their errors, too; py4j would also log the traceback of a Ctrl-C.
    logging.getLogger().addHandler(logging.NullHandler())
    with first_interruption_only():
        try:
            from harness.cli.main import main

            code = main()
        except KeyboardInterrupt:
            code = INTERRUPTED
        ignore_from_now_on()
    ignore_from_now_on()
    sys.exit(code)


def _open_streams() -> None:
    """Let no file that is opened later become standard output or standard error, where those are closed."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
