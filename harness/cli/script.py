"""The program `faultline`: `main` in a process of its own.

Importing takes a moment, in which Python would answer Ctrl-C with a traceback: until `script` handles signals the
process just ends.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import logging
import os
import sys
from typing import NoReturn

from harness.environments.interrupts import first_interruption_only, ignore_from_now_on
from harness.exit_codes import INTERRUPTED, NOT_CARRIED_OUT


def script() -> NoReturn:
    """Run the command and end the process. An interruption is quiet also before the command and after it."""
    _open_streams()
    # Libraries raise their errors, too; py4j would also log the traceback of a Ctrl-C.
    logging.getLogger().addHandler(logging.NullHandler())
    with first_interruption_only() as interruption:
        try:
            from harness.cli.main import main

            code = main()
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Exception as error:  # of an import: for every other one `main` has a line
            code = INTERRUPTED if interruption.came else NOT_CARRIED_OUT
            if not interruption.came:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                print(f"faultline: cannot start: {reason}", file=sys.stderr)
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
    if sys.stderr is None:  # `print` would take standard output instead
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
