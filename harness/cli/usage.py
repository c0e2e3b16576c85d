"""Parts that every command shares: errors of usage, the terminal, the choice of the store."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rich.console import Console

COMPARISONS: Final = Path("results/comparisons")
"""The directory of comparisons."""

_PLAIN_WIDTH: Final = 140


class Commands(Protocol):
    """The parsers of all commands, as returned by `argparse.ArgumentParser.add_subparsers`."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:
        """A parser for one more command."""


class Usage(Exception):
    """The command was used wrongly; the message is one line."""


def add_store(parser: argparse.ArgumentParser) -> None:
    """The option that names the store."""
    parser.add_argument(
        "--store", metavar="DIR", help="directory of runs (default: FAULTLINE_STORE, else results/runs)"
    )


def terminal(*, stderr: bool = False) -> Console:
    """As wide as the terminal, or wide enough for tables where there is none."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_PLAIN_WIDTH)
