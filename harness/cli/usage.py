"""Parts that every command shares: errors of usage, the terminal, the choice of the store."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rich.console import Console

COMPARISONS: Final = Path("results/comparisons")
"""The directory of comparisons."""

_PLAIN_WIDTH: Final = 140
_MASTERS: Final = (
    r"local",
    r"local\[([1-9]\d*|\*)(, *\d+)?\]",
    r"local-cluster\[\d+, *\d+, *\d+\]",
    r"(spark|k8s)://.+",
    r"yarn",
)


class Commands(Protocol):
    """The parsers of all commands, as returned by `argparse.ArgumentParser.add_subparsers`."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:
        """A parser for one more command."""


class Usage(Exception):
    """The command was used wrongly; the message is one line."""


def failed(command: str, error: Exception) -> int:
    """Print the line of an error of the store; the exit code. Raises Usage where it is of a name."""
    from harness.exit_codes import NOT_CARRIED_OUT
    from results.errors import BadName

    if isinstance(error, BadName):
        raise Usage(f"faultline {command}: {error}") from None
    print(f"faultline {command}: {error}", file=sys.stderr)
    return NOT_CARRIED_OUT


def check_output(command: str, option: str, path: Path | None) -> None:
    """Raise Usage where the file that an option names cannot be written, before anything is done for it."""
    from results.atomic_files import is_stream

    if path is None:
        return
    to_stream = is_stream(path)
    directory = path.absolute().parent if to_stream else Path(os.path.realpath(path)).parent
    if path.is_dir() or not directory.is_dir():
        raise Usage(f"faultline {command}: {option}: {path} cannot be written: not a file in an existing directory")
    if not (os.access(path, os.W_OK) if to_stream else os.access(directory, os.W_OK | os.X_OK)):
        reason = "it is read-only" if to_stream else f"{directory} is not a writable directory"
        raise Usage(f"faultline {command}: {option}: {path} cannot be written: {reason}")


def check_output_directory(command: str, option: str, path: Path) -> None:
    """As `check_output`, for a directory, which is made when it is missing."""
    existing = next(each for each in (path.absolute(), *path.absolute().parents) if os.path.lexists(each))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise Usage(f"faultline {command}: {option}: {path} cannot be written: {existing} is not a writable directory")


def duration(text: str | None) -> float | str | None:
    """The duration that an option gives, as YAML would have it: a number alone is one of seconds."""
    return float(text) if text and text.isascii() and text.replace(".", "", 1).isdigit() else text


def add_store(parser: argparse.ArgumentParser) -> None:
    """The option that names the store."""
    parser.add_argument(
        "--store", metavar="DIR", help="directory of runs (default: FAULTLINE_STORE, else results/runs)"
    )


def command_line(*words: str, store: str | None = None) -> str:
    """A command as one gives it to a shell, for the store that its options name."""
    return shlex.join(("faultline", *words, *(() if store is None else ("--store", store))))


def spark_master(text: str) -> str:
    """The URL of a Spark master. Raises ArgumentTypeError for what Spark would take for none once it is started."""
    if not any(re.fullmatch(pattern, text) for pattern in _MASTERS):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no Spark master: local[N], local[*], local-cluster[…], spark://HOST:PORT, k8s://… or yarn"
        )
    return text


def terminal(*, stderr: bool = False) -> Console:
    """As wide as the terminal, or wide enough for tables where there is none; text is printed as it is, brackets too.

    A reader that leaves costs its output alone; Rich's own consoles end the process with 1, the code of `invalid`.
    """
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            discard_output(stderr=stderr)

    def of_width(width: int | None) -> Console:
        return _Console(stderr=stderr, width=width, markup=False, emoji=False)

    console = of_width(None)
    return console if console.is_terminal else of_width(_PLAIN_WIDTH)


def print_json(value: object) -> None:
    """Print one line of JSON; a reader that has left costs it alone."""
    try:
        print(json.dumps(value), flush=True)
    except BrokenPipeError:
        discard_output()


def discard_output(*, stderr: bool = False) -> None:
    """Nobody reads it any more: write the rest of standard output, or standard error, to nowhere."""
    stream = sys.stderr if stderr else sys.stdout
    if stream is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
