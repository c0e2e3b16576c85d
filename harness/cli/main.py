"""The command `faultline`.

Exit codes: 0 valid (or identical, for replay) · 1 invalid (or different) · 2 unknown · 3 the run could not be carried
out · 64 bad usage · 130 interrupted. An error of the user is one line on standard error.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from harness.cli import incidents, machine, measuring, runs, store, suites
from harness.cli.usage import Usage
from harness.exit_codes import BAD_USAGE, INTERRUPTED, NOT_CARRIED_OUT
from results.version import version


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(f"{self.prog}: {message}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    try:
        options = _parser().parse_args(arguments)
        command: Callable[[argparse.Namespace], int] = options.command
        signal.signal(signal.SIGTERM, _interrupt)
        return command(options)
    except Usage as error:
        print(error, file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_CARRIED_OUT


def _interrupt(signal_number: int, frame: object) -> None:
    """Treat SIGTERM as Ctrl-C: asyncio cancels its tasks, and they clean up.

    A command that a shell started in the background ignores SIGINT, and must end at SIGTERM all the same.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _parser() -> _Parser:
    parser = _Parser(
        prog="faultline",
        description="Tests a replicated log under faults, and checks that it keeps its promises.",
        epilog="exit codes: 0 valid, 1 invalid, 2 unknown, 3 not carried out, 64 bad usage",
    )
    parser.add_argument("--version", action="version", version=f"faultline {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for group in (runs, incidents, machine, suites, store, measuring):
        group.add(commands)
    return parser
