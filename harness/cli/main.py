"""The command `faultline`.

Exit codes: 0 valid (or identical, for replay) · 1 invalid (or different) · 2 unknown · 3 the run could not be carried
out · 64 bad usage · 130 interrupted. An error of the user or of the machine is one line on standard error, and so is an
error of Faultline itself, with its traceback in a file (`harness.cli.failure`): no exception is a verdict.

A reader of the output that leaves (`| head`) costs the output alone; any other failure to write it is an error.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

from harness.cli import (
    coverage,
    exploring,
    hunting,
    incidents,
    machine,
    measuring,
    mutants,
    runs,
    shrinking,
    store,
    suites,
)
from harness.cli.failure import line_of
from harness.cli.usage import Usage, discard_output
from harness.environments.interrupts import first_interruption_only
from harness.exit_codes import BAD_USAGE, INTERRUPTED, NOT_CARRIED_OUT
from results.version import version


class _Parser(argparse.ArgumentParser):
    """Every error is a Usage of one line, and one that no value mends says where the help is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("type", int, _whole_number)
        self.register("type", float, _number)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse has it, but an unknown option is an error of the command to which it was given."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        if message.startswith(("unrecognized arguments", "the following arguments are required")):
            message += f"; see {self.prog} --help"
        raise Usage(" ".join(f"{self.prog}: {message}".split()))


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    _take_any_character()
    with first_interruption_only() as interruption:
        try:
            options = _parser().parse_args(arguments)
            command: Callable[[argparse.Namespace], int] = options.command
            code = command(options)
            _flush()
            return code
        except Usage as error:
            _say(error)
            return BAD_USAGE
        except KeyboardInterrupt:
            _say("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            discard_output()
            return NOT_CARRIED_OUT
        except Exception as error:
            if interruption.came:  # whatever it broke off may answer with an error of its own
                _say("interrupted")
                return INTERRUPTED
            _say(line_of(error, sys.argv[1:] if arguments is None else arguments))
            with suppress(OSError):
                _flush()
            return NOT_CARRIED_OUT


def _take_any_character() -> None:
    """Names of files may hold any bytes, and a terminal may know few characters: escape the rest instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say(line: object) -> None:
    """Print the one line of an error; where standard error cannot be written either, the exit code says it alone."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard_output(stderr=True)


def _flush() -> None:
    """Write all output now, so that a failure is seen. Raises OSError, after which the rest is discarded."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        discard_output()
        raise OSError(error.errno, error.strerror, "standard output") from None


@cache
def _parser() -> _Parser:
    parser = _Parser(
        prog="faultline",
        description="Tests a replicated log under faults, and checks that it keeps its promises.",
        epilog="exit codes: 0 valid, 1 invalid, 2 unknown, 3 not carried out, 64 bad usage",
    )
    parser.add_argument("--version", action="version", version=f"faultline {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for group in (runs, incidents, shrinking, exploring, hunting, mutants, coverage, machine, suites, store, measuring):
        group.add(commands)
    return parser
