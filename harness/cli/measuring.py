"""`faultline rules`, `torture` and `bench`: what the protocol rests on, whether it holds, and how fast it is."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from harness.bench.tables import PARTS
from harness.cli.usage import Commands, Usage, terminal
from harness.exit_codes import VALID


def add(commands: Commands) -> None:
    """The commands that measure Faultline itself."""
    rules = commands.add_parser("rules", help="the safety rules that --without switches off")
    rules.set_defaults(command=_rules)
    _add_torture(commands.add_parser("torture", help="many seeds, and every mutant, on every core"))
    _add_bench(
        commands.add_parser("bench", help="rates of the simulation, the checkers, the broker and the lossy disk")
    )


def _add_torture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=500, metavar="N", help="seeds of the full protocol (500)")
    parser.add_argument("--mutant-seeds", type=int, default=300, metavar="N", help="seeds a mutant has at most (300)")
    parser.add_argument(
        "--mutant", action="append", metavar="NAME", help="only this mutant, or none; may be repeated (all)"
    )
    parser.add_argument("--workload", default="append", metavar="NAME", help="of the full protocol's seeds (append)")
    parser.add_argument("--repeats", type=int, default=50, metavar="N", help="seeds run twice and compared (50)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="where the seeds begin (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (one a core)")
    parser.add_argument("--out", type=Path, metavar="JSON", help="also write the results here")
    parser.set_defaults(command=_torture)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part")
    parser.add_argument(
        "--largest",
        type=int,
        default=100_000_000,
        metavar="N",
        help="operations in the longest history, and in all stored ones",
    )
    parser.set_defaults(command=_bench)


def _rules(options: argparse.Namespace) -> int:
    from rich.table import Table

    from harness.cluster.systems import SYSTEMS

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("rule", "what it protects", "seed section"):
        table.add_column(heading, no_wrap=heading == "rule")
    for description in SYSTEMS["broker"].rules:
        table.add_row(description.name, description.protects, description.source)
    terminal().print(table)
    return VALID


def _torture(options: argparse.Namespace) -> int:
    from harness.cluster.systems import SYSTEMS
    from harness.suites.torture import MUTANTS, torture
    from workloads.registry import WORKLOADS

    mutants = MUTANTS if options.mutant is None else tuple(name for name in options.mutant if name != "none")
    if options.workload not in WORKLOADS:
        raise Usage(f"faultline torture: --workload: {options.workload!r} is not one of {', '.join(WORKLOADS)}")
    rules = {rule.name for rule in SYSTEMS["broker"].rules}
    for name in mutants:
        if name not in rules:
            raise Usage(f"faultline torture: --mutant: {name!r} is not a rule; `faultline rules` lists them")
    return torture(
        terminal(),
        seeds=range(options.first_seed, options.first_seed + options.seeds),
        mutants=mutants,
        mutant_seeds=range(options.first_seed, options.first_seed + options.mutant_seeds),
        jobs=options.jobs,
        repeats=options.repeats,
        out=options.out,
        workload=options.workload,
    )


def _bench(options: argparse.Namespace) -> int:
    from harness.bench.tables import bench

    return bench(terminal(), parts=tuple(options.part or PARTS), largest=options.largest)
