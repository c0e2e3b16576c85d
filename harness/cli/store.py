"""`faultline store`, `report`, `trend` and `serve`: stored runs and suites, and pages about them."""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli.suites import add_master
from harness.cli.usage import COMPARISONS, Commands, Usage, add_store, check_output, failed, terminal


def add(commands: Commands) -> None:
    """The commands of a store."""
    _add_store_commands(commands.add_parser("store", help="manage the Parquet tables of many runs: add, ls, show …"))
    _add_report(commands.add_parser("report", help="write a stored suite as one page, failures first"))
    _add_trend(commands.add_parser("trend", help="show metrics per night and flag changes"))
    _add_serve(
        commands.add_parser("serve", help="browse runs, suites and comparisons in a web browser on this machine")
    )


def _add_store_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add = commands.add_parser("add", help="add ended runs to the tables")
    add.add_argument("directories", nargs="+", type=Path, metavar="RUN_DIR", help="a run to add")
    add.add_argument("--suite", default="added", metavar="NAME", help="the suite to add them to (default: added)")
    ls = commands.add_parser("ls", help="list the runs in the tables")
    show = commands.add_parser("show", help="show the contents of a suite or a run")
    show.add_argument(
        "name", metavar="SUITE|RUN", help="name of a suite or a run, or SUITE/RUN where several suites have such a run"
    )
    export = commands.add_parser("export", help="write a stored run as a run directory")
    export.add_argument(
        "name", metavar="RUN", help="name of the run, or SUITE/RUN where several suites have such a run"
    )
    export.add_argument("target", type=Path, metavar="DIR", help="the new directory; must not exist")
    rm = commands.add_parser("rm", help="remove suites or runs from the tables; run directories stay")
    rm.add_argument("names", nargs="+", metavar="SUITE|RUN", help="an exact name, or SUITE/RUN")
    rm.add_argument("--dry-run", action="store_true", help="list what would be removed, and remove nothing")
    check = commands.add_parser("check", help="check every stored run again, on Spark")
    check.add_argument(
        "suite", nargs="?", default="", metavar="SUITE", help="check only the runs of this suite (default: all)"
    )
    add_master(check)
    verify = commands.add_parser("verify", help="read every file, and list those that are damaged")
    named = {"add": add, "ls": ls, "show": show, "export": export, "rm": rm, "check": check, "verify": verify}
    for name, command in named.items():
        add_store(command)
        command.set_defaults(command=_store, action=name)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suite", metavar="SUITE", help="a stored suite; nightly or nightly-202611 for the latest of that name"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file of the page (default: STORE/suites/SUITE/report.html)"
    )
    add_store(parser)
    parser.set_defaults(command=_report)


def _add_trend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", metavar="SUITE", help="the name that the nights share: nightly")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of the page (default: STORE/trends/SUITE.html)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of the p-values (default: 0)")
    add_store(parser)
    parser.set_defaults(command=_trend)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=_port, default=8321, metavar="N", help="port on 127.0.0.1; 0 takes a free one (default: 8321)"
    )
    parser.add_argument(
        "--comparisons",
        type=Path,
        default=COMPARISONS,
        metavar="DIR",
        help=f"directory of comparisons (default: {COMPARISONS})",
    )
    add_store(parser)
    parser.set_defaults(command=_serve)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _store(options: argparse.Namespace) -> int:
    from harness.cli import storing
    from results.errors import StoreError
    from results.run.paths import store_path
    from results.store.spark import SparkUnavailable, session

    store = store_path(options.store)
    try:
        if options.action == "check":
            from harness.suites import rechecking

            storing.check_suite(store, options.suite)
            with session("faultline store check", master=options.master) as spark:
                return rechecking.check(terminal(), spark, store.absolute(), options.suite)
        if options.action == "add":
            return storing.add(store, options.suite, options.directories)
        if options.action == "show":
            return storing.show(store, options.name)
        if options.action == "export":
            return storing.export(store, options.name, options.target)
        if options.action == "rm":
            return storing.rm(store, options.names, dry_run=options.dry_run)
        return storing.ls(store) if options.action == "ls" else storing.verify(store)
    except (StoreError, SparkUnavailable) as error:
        return failed("store", error)


def _report(options: argparse.Namespace) -> int:
    from harness.cli.reporting import suite_report
    from harness.cli.storing import name_damaged
    from results.errors import StoreError
    from results.run.paths import store_path

    check_output("report", "--out", options.out)
    try:
        path, damaged = suite_report(store_path(options.store), options.suite, options.out)
    except StoreError as error:
        return failed("report", error)
    print(f"report: {path}")
    return name_damaged(damaged)


def _trend(options: argparse.Namespace) -> int:
    from harness.cli.reporting import shown_trend, trend_report
    from harness.cli.storing import name_damaged
    from results.errors import StoreError
    from results.run.paths import store_path
    from results.trend import read_trend

    if options.seed < 0:
        raise Usage(f"faultline trend: --seed: {options.seed} is below 0")
    check_output("trend", "--out", options.out)
    console, store = terminal(), store_path(options.store)
    try:
        trend = read_trend(store, options.suite, seed=options.seed)
        for part in shown_trend(trend):
            console.print(part, soft_wrap=True, highlight=False)
        console.print(f"report: {trend_report(store, trend, options.out)}", soft_wrap=True, highlight=False)
    except StoreError as error:
        return failed("trend", error)
    return name_damaged(trend.damaged)


def _serve(options: argparse.Namespace) -> int:
    from harness.cli.serve import serve
    from results.run.paths import store_path

    return serve(store_path(options.store), options.comparisons, options.port)
