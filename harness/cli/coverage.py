"""`faultline coverage`: how thorough a stored suite was, also beside all situations that exist in a scope.

It ends with 0 whatever the suite has visited, and with 3 when a damaged file had to be left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.usage import Commands, Usage, add_store, failed, print_json, terminal
from harness.exit_codes import NOT_CARRIED_OUT, VALID

if TYPE_CHECKING:
    from rich.console import Console

    from harness.search.scope_situations import ScopeSituations

_SHOWN = 10
"""Situations that are shown of those that no run visited; --json has all."""


def add(commands: Commands) -> None:
    """The command."""
    parser = commands.add_parser("coverage", help="show how many situations of the protocol a suite visited")
    parser.add_argument("suite", metavar="SUITE", help="a stored suite, or the newest of those of this name")
    parser.add_argument(
        "--scope", type=Path, metavar="FILE", help="all situations of a scope, as faultline explore --situations writes"
    )
    parser.add_argument(
        "--beside", metavar="SUITE", help="another suite or hunt: how many situations each of the two visited alone"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    add_store(parser)
    parser.set_defaults(command=_coverage)


def _coverage(options: argparse.Namespace) -> int:
    from harness.search import scope_situations
    from results.errors import StoreError
    from results.run.paths import store_path
    from results.suites import newest, situations_of_suite

    store = store_path(options.store).absolute()
    try:
        scope = scope_situations.read(options.scope) if options.scope is not None else None
    except StoreError as error:
        raise Usage(f"faultline coverage: {error}") from None
    try:
        name = newest(store, options.suite)
        found = situations_of_suite(store, name)
        other_name = newest(store, options.beside) if options.beside is not None else ""
        other = situations_of_suite(store, other_name) if other_name else None
    except StoreError as error:
        return failed("coverage", error)
    damaged = (*found.damaged, *(other.damaged if other is not None else ()))
    for file in damaged:
        print(f"left out: {file.line}", file=sys.stderr)
    if found.thoroughness is None:
        if damaged:
            return NOT_CARRIED_OUT
        raise Usage(f"faultline coverage: {name}: its runs have no situations, since none of them has a trace")
    apart = None
    if other is not None:
        codes, others = {*found.codes}, {*other.codes}
        apart = {"both": len(codes & others), name: len(codes - others), other_name: len(others - codes)}
    if options.json:
        compared = scope and {
            "name": scope.scope,
            "situations": len(scope.reached),
            "visited": len(scope.visited(found.codes)),
            "not_visited": [it.to_json() for it in scope.not_visited(found.codes)],
        }
        print_json({"suite": name, **found.thoroughness.to_json(), "scope": compared, "apart": apart})
    else:
        console = terminal()
        console.print(f"{name}: {found.thoroughness.sentence()}", soft_wrap=True, highlight=False)
        if apart is not None:
            console.print(
                f"{apart['both']:,} situations in both, {apart[name]:,} in {name} alone, {apart[other_name]:,} in "
                f"{other_name} alone",
                soft_wrap=True,
                highlight=False,
            )
        if scope is not None:
            _compare(console, scope, found.codes)
    return NOT_CARRIED_OUT if damaged else VALID


def _compare(console: Console, scope: ScopeSituations, codes: Collection[str]) -> None:
    missing = scope.not_visited(codes)
    visited = len(scope.visited(codes))
    console.print(
        f"visited {visited:,} of the {len(scope.reached):,} situations that exist in the scope {scope.scope}",
        soft_wrap=True,
        highlight=False,
    )
    for reached in missing[:_SHOWN]:
        situation = reached.situation
        console.print(f"\nnot visited: {situation.id}  {situation.code}", highlight=False, soft_wrap=True)
        console.print(f"  {situation.sentence}", highlight=False, soft_wrap=True)
        for number, line in enumerate(reached.schedule, 1):
            console.print(f"  {number:3}. {line}", highlight=False, soft_wrap=True)
    if len(missing) > _SHOWN:
        console.print(f"\nand {len(missing) - _SHOWN:,} more; --json has all", highlight=False)
