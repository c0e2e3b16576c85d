"""`faultline rules` and `faultline bench`: the protocol's safety rules, and the rates of Faultline itself."""

from __future__ import annotations

import argparse

from harness.bench.tables import PARTS
from harness.cli.usage import Commands, Usage, terminal
from harness.exit_codes import VALID


def add(commands: Commands) -> None:
    """The commands about rules and rates."""
    rules = commands.add_parser("rules", help="list the safety rules that --without switches off")
    rules.set_defaults(command=_rules)
    _add_bench(commands.add_parser("bench", help="measure simulation, checkers, clients, broker and lossy disk"))


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="measure only this part; may be repeated (default: all)"
    )
    parser.add_argument(
        "--largest",
        type=int,
        default=100_000_000,
        metavar="N",
        help="operations in the largest history, and in all stored runs together (default: 100000000)",
    )
    parser.set_defaults(command=_bench)


def _rules(options: argparse.Namespace) -> int:
    from rich.table import Table

    from harness.cluster.systems import SYSTEMS
    from workloads.clients import consumer_rules

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("rule", "what it protects", "source"):
        table.add_column(heading, no_wrap=heading == "rule")
    rows = [(rule.name, rule.protects, rule.source) for rule in SYSTEMS["broker"].rules]
    for row in (*rows, *consumer_rules.DESCRIPTIONS):
        table.add_row(*row)
    terminal().print(table)
    return VALID


def _bench(options: argparse.Namespace) -> int:
    from harness.bench.tables import bench

    if options.largest < 1:
        raise Usage(f"faultline bench: --largest: {options.largest} is less than 1")
    return bench(terminal(), parts=tuple(options.part or PARTS), largest=options.largest)
