"""The command `faultline`.

Exit codes: 0 valid (or identical, for replay) · 1 invalid (or different) · 2 unknown · 3 the run could not be carried
out · 64 bad usage · 130 interrupted. What goes wrong by the user's doing is one line on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from harness import suite_commands
from harness.usage import (
    BAD_USAGE,
    COMPARISONS,
    INTERRUPTED,
    INVALID,
    NOT_CARRIED_OUT,
    UNKNOWN,
    VALID,
    Usage,
    add_store,
    terminal,
)

if TYPE_CHECKING:
    from checkers.verdict import Verdict
    from harness.spec import Spec


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
    """SIGTERM is Ctrl-C, whatever that means just now: asyncio cancels what it runs, and what it runs cleans up.

    What a shell started in the background ignores SIGINT, and is to end at SIGTERM all the same.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("faultline")
    except metadata.PackageNotFoundError:
        return "from source"


# ---- what can be said on the command line ----------------------------------------------------------------------------


def _parser() -> _Parser:
    parser = _Parser(
        prog="faultline",
        description="Breaks a replicated log on purpose and says whether it kept its promises.",
        epilog="exit codes: 0 valid, 1 invalid, 2 unknown, 3 not carried out, 64 bad usage",
    )
    parser.add_argument("--version", action="version", version=f"faultline {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _add_run(commands.add_parser("run", help="deploy a cluster, break it, and judge what it did"))
    _add_directory(commands.add_parser("check", help="judge a run again, also one that was cut short"), _check, "judge")
    _add_directory(commands.add_parser("replay", help="run it again and compare the digests"), _replay, "bring back")
    _add_doctor(commands.add_parser("doctor", help="what this machine and its hosts have of what runs need"))
    _add_clean(commands.add_parser("clean", help="remove what killed runs left behind"))
    _add_images(commands.add_parser("images", help="build what nodes in Docker are made from"))
    suite_commands.add_compare(commands.add_parser("compare", help="settings side by side, under the same faults"))
    suite_commands.add_suite(
        commands.add_parser("suite", help="many runs on Spark: specs × settings × seeds, resumable")
    )
    _add_store_commands(commands.add_parser("store", help="the tables of many runs, as Parquet: add, ls, show …"))
    _add_report(commands.add_parser("report", help="a stored suite as one page: failures first, every number traced"))
    _add_trend(
        commands.add_parser("trend", help="a suite over many nights, with the nights since which it is different")
    )
    _add_serve(commands.add_parser("serve", help="browse runs, suites and comparisons with a browser, on this machine"))
    rules = commands.add_parser("rules", help="the safety rules that --without switches off")
    rules.set_defaults(command=_rules)
    torture = commands.add_parser("torture", help="many seeds, and every mutant, on every core")
    bench = commands.add_parser("bench", help="rates of the simulation, the checkers, the broker and the lossy disk")
    _add_torture(torture)
    _add_bench(bench)
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", nargs="?", type=Path, metavar="SPEC.yaml", help="what to run; options go on top of it")
    parser.add_argument("--environment", metavar="NAME", help="where the cluster lives: sim, docker, ssh (sim)")
    parser.add_argument("--workload", metavar="NAME", help="what the clients do (append)")
    parser.add_argument("--faults", metavar="LIST|all|none", help="fault families, separated by commas (all)")
    parser.add_argument("--time-limit", metavar="60", help="how long clients and faults run: seconds, or 90s, 5m (60)")
    parser.add_argument("--seed", type=int, metavar="N", help="what everything is drawn from (drawn)")
    parser.add_argument("--brokers", type=int, metavar="N", help="(3)")
    parser.add_argument("--partitions", type=int, metavar="N", help="(2)")
    parser.add_argument("--rate", type=float, metavar="N", help="appends per second, in all (20)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a Kafka setting: min.insync.replicas=2"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="RULE", help="switch a safety rule off (see: faultline rules)"
    )
    parser.add_argument(
        "--protocol",
        metavar="NAME",
        help="how followers truncate: high_watermark, kip101, kip279, kip320 (truncate_on_fetch)",
    )
    add_store(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON summary and nothing else")
    parser.set_defaults(command=_run)


def _add_directory(parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int], verb: str) -> None:
    parser.add_argument("directory", type=Path, metavar="RUN_DIR", help=f"the run to {verb}")
    parser.add_argument("--json", action="store_true", help="print one JSON summary and nothing else")
    parser.set_defaults(command=command)


def _add_images(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    build = commands.add_parser("build", help="build the images that are missing or not of this source tree")
    build.add_argument(
        "--base",
        choices=("debootstrap", "registry"),
        help="where Debian comes from (the registry if the engine reaches one, else debootstrap)",
    )
    build.add_argument("--mirror", default="", metavar="ADDRESS", help="for debootstrap (that of this machine's apt)")
    build.set_defaults(command=_images, prune=False)
    prune = commands.add_parser("prune", help="remove the images of ours that are not of this source tree")
    prune.set_defaults(command=_images, prune=True)


def _add_store_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    add = commands.add_parser("add", help="add ended runs to the tables")
    add.add_argument("directories", nargs="+", type=Path, metavar="RUN_DIR", help="a run to add")
    add.add_argument("--suite", default="added", metavar="NAME", help="the suite they belong to (added)")
    ls = commands.add_parser("ls", help="list the runs in the tables")
    show = commands.add_parser("show", help="what a suite or a run holds")
    show.add_argument("name", metavar="SUITE|RUN", help="its exact name, or SUITE/RUN")
    export = commands.add_parser("export", help="write a stored run as a run directory")
    export.add_argument("name", metavar="RUN", help="its exact name, or SUITE/RUN")
    export.add_argument("target", type=Path, metavar="DIR", help="where to; must not be there yet")
    rm = commands.add_parser("rm", help="remove suites or runs from the tables; run directories stay")
    rm.add_argument("names", nargs="+", metavar="SUITE|RUN", help="an exact name, or SUITE/RUN")
    rm.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    check = commands.add_parser("check", help="judge every stored run again, on Spark")
    check.add_argument("suite", nargs="?", default="", metavar="SUITE", help="only the runs of this one (all)")
    check.add_argument("--master", default="local[*]", metavar="URL", help="Spark's: local[2], spark://… (local[*])")
    verify = commands.add_parser("verify", help="read every file, and name those that are not as they should be")
    named = {"add": add, "ls": ls, "show": show, "export": export, "rm": rm, "check": check, "verify": verify}
    for name, command in named.items():
        add_store(command)
        command.set_defaults(command=_store, action=name)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", metavar="SUITE", help="its exact name, or nightly for the newest of that name")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (STORE/suites/SUITE/report.html)")
    add_store(parser)
    parser.set_defaults(command=_report)


def _add_trend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", metavar="SUITE", help="the name that the nights share: nightly")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (STORE/trends/SUITE.html)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the drawing behind the p-values (0)")
    add_store(parser)
    parser.set_defaults(command=_trend)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=_port, default=8321, metavar="N", help="on 127.0.0.1; 0 takes a free one (8321)")
    parser.add_argument(
        "--comparisons", type=Path, default=COMPARISONS, metavar="DIR", help=f"where comparisons are ({COMPARISONS})"
    )
    add_store(parser)
    parser.set_defaults(command=_serve)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", nargs="?", type=Path, metavar="SPEC.yaml", help="what is to run, and on which hosts")
    add_store(parser)
    parser.set_defaults(command=_doctor)


def _add_clean(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", nargs="?", type=Path, metavar="SPEC.yaml", help="whose hosts to clean, too")
    parser.add_argument("--run", default="", metavar="NAME", help="only what this run left behind")
    parser.add_argument("--all", action="store_true", help="also what belongs to runs that are still going")
    parser.set_defaults(command=_clean)


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
    parts = ("simulation", "bugs", "checking", "pipeline", "broker", "disk")
    parser.add_argument("--part", action="append", choices=parts, help="only this part")
    parser.add_argument(
        "--largest",
        type=int,
        default=100_000_000,
        metavar="N",
        help="operations in the longest history, and in all stored ones",
    )
    parser.set_defaults(command=_bench)


# ---- commands --------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from harness.display import LiveProgress, summary
    from harness.run import run
    from results.lines import StoreError
    from results.rundir import RunDirectory
    from results.store import store_path

    spec = _spec(options)
    try:
        directory = RunDirectory.create(store_path(options.store), spec.name, spec.seed)
        if options.json:
            outcome = run(spec, directory)
            print(json.dumps(outcome.to_json()))
            return outcome.exit_code
        console, progress = terminal(), terminal(stderr=True)
        try:
            with LiveProgress(progress, spec) as watcher:
                outcome = run(spec, directory, watcher=watcher)
        except KeyboardInterrupt:
            print(f"interrupted; judge it as far as it goes: faultline check {directory.path}", file=sys.stderr)
            return INTERRUPTED
    except StoreError as error:
        print(f"faultline: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    if outcome.failure:
        print(f"faultline: {outcome.failure}\nwhat there is of it: {directory.path}", file=sys.stderr)
        return outcome.exit_code
    summary(console, outcome.verdicts, outcome=outcome)
    console.print(f"report: {outcome.report}", soft_wrap=True, highlight=False)
    console.print(f"again:  {outcome.again}   (seed {spec.seed})", soft_wrap=True, highlight=False)
    return outcome.exit_code


def _spec(options: argparse.Namespace) -> Spec:
    from harness.spec import SEEDS, SpecError, load, parse

    settings = {}
    for item in options.set:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise Usage(f"faultline run: --set: {item!r} is not KEY=VALUE, such as min.insync.replicas=2")
        settings[name.strip()] = value.strip()
    if options.protocol:
        settings["faultline.protocol"] = options.protocol
    limit: str | None = options.time_limit
    time_limit = float(limit) if limit and limit.replace(".", "", 1).isdigit() else limit
    overrides: dict[str, Any] = {
        "environment": options.environment,
        "workload": options.workload,
        "faults": options.faults,
        "time_limit": time_limit,
        "seed": options.seed,
        "brokers": options.brokers,
        "partitions": options.partitions,
        "rate": options.rate,
        "settings": settings,
        "without": tuple(rule for item in options.without for rule in item.split(",")) or None,
    }
    drawn_seed = secrets.randbelow(SEEDS)
    try:
        if options.spec is None:
            return parse({}, drawn_seed=drawn_seed, **overrides)
        return load(options.spec, drawn_seed=drawn_seed, **overrides)
    except SpecError as error:
        raise Usage(f"faultline run: {error}") from None


def _check(options: argparse.Namespace) -> int:
    from harness.display import summary
    from harness.judging import judge_and_keep
    from results.lines import StoreError
    from results.report import write_report

    directory = _open(options.directory)
    try:
        evidence, gaps = directory.load(), directory.gaps()
        verdicts = judge_and_keep(evidence, directory)
        report = write_report(directory, evidence)
    except StoreError as error:
        print(f"faultline: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    if options.json:
        print(json.dumps({"run": str(directory.path), "gaps": list(gaps), **_verdicts_json(verdicts)}))
    else:
        console = terminal()
        for gap in gaps:
            console.print(f"note: {gap}", style="yellow", soft_wrap=True)
        summary(console, verdicts)
        console.print(f"report: {report}", soft_wrap=True, highlight=False)
    return _exit_code(verdicts)


def _replay(options: argparse.Namespace) -> int:
    from harness.display import LiveProgress
    from harness.replay import replay
    from harness.spec import SpecError, loads
    from results.lines import StoreError

    directory = _open(options.directory)
    try:
        if options.json:
            comparison = replay(directory.path)
            print(json.dumps({"identical": comparison.identical, "lines": list(comparison.lines)}))
        else:
            with LiveProgress(terminal(stderr=True), loads(directory.read_spec_text())) as watcher:
                comparison = replay(directory.path, watcher)
            for line in comparison.lines:
                terminal().print(line, soft_wrap=True, highlight=False)
    except (SpecError, StoreError) as error:
        print(f"faultline: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    if comparison.outcome.failure:
        return NOT_CARRIED_OUT
    return VALID if comparison.identical else INVALID


def _images(options: argparse.Namespace) -> int:
    from harness.engine import connect
    from harness.environments.base import EnvironmentUnavailable
    from harness.images import Origin, build, prune
    from harness.systems import SYSTEMS

    console = terminal()

    def tell(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    try:
        client = connect(timeout_s=1800)
        if options.prune:
            prune(client, tuple(SYSTEMS), tell)
            return VALID
        build(
            client,
            tuple(SYSTEMS),
            origin=Origin(options.base) if options.base else None,
            mirror=options.mirror,
            tell=tell,
        )
    except EnvironmentUnavailable as error:
        print(f"faultline: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    return VALID


def _store(options: argparse.Namespace) -> int:
    from harness import storing
    from results.lines import StoreError
    from results.spark import SparkUnavailable, session
    from results.store import store_path

    store = store_path(options.store)
    try:
        if options.action == "check":
            from harness import rechecking

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
        print(error, file=sys.stderr)
        return NOT_CARRIED_OUT


def _report(options: argparse.Namespace) -> int:
    from harness.reporting import suite_report
    from results.lines import StoreError
    from results.store import store_path

    try:
        print(f"report: {suite_report(store_path(options.store), options.suite, options.out)}")
    except StoreError as error:
        print(f"faultline report: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    return VALID


def _trend(options: argparse.Namespace) -> int:
    from harness.reporting import shown_trend, trend_report
    from results.lines import StoreError
    from results.store import store_path
    from results.trend import read_trend

    if options.seed < 0:
        raise Usage(f"faultline trend: --seed: {options.seed} is below 0")
    console, store = terminal(), store_path(options.store)
    try:
        trend = read_trend(store, options.suite, seed=options.seed)
        for part in shown_trend(trend):
            console.print(part, soft_wrap=True, highlight=False, markup=False)
        console.print(f"report: {trend_report(store, trend, options.out)}", soft_wrap=True, highlight=False)
    except StoreError as error:
        print(f"faultline trend: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    return VALID


def _serve(options: argparse.Namespace) -> int:
    from harness.serve import serve
    from results.store import store_path

    return serve(store_path(options.store), options.comparisons, options.port)


def _rules(options: argparse.Namespace) -> int:
    from rich.table import Table

    from images.broker.rules import DESCRIPTIONS

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("rule", "what it protects", "seed section"):
        table.add_column(heading, no_wrap=heading == "rule")
    for description in DESCRIPTIONS:
        table.add_row(description.name, description.protects, description.seed)
    terminal().print(table)
    return VALID


def _doctor(options: argparse.Namespace) -> int:
    from harness.checkup import patient
    from harness.doctor import examine, is_well, show
    from harness.probes import ThisMachine
    from results.store import store_path

    spec = None if options.spec is None else _load(options.spec, "doctor")
    hosts = spec.hosts if spec is not None else {}
    findings = examine(patient(ThisMachine(), store_path(options.store), hosts), spec)
    show(terminal(), findings)
    return VALID if is_well(findings) else NOT_CARRIED_OUT


def _clean(options: argparse.Namespace) -> int:
    from harness.leftovers import sweep

    spec = None if options.spec is None else _load(options.spec, "clean")
    hosts = spec.hosts if spec is not None else {}
    all_gone = sweep(hosts, run=options.run, everything=options.all, tell=lambda line: print(line, flush=True))
    return VALID if all_gone else NOT_CARRIED_OUT


def _torture(options: argparse.Namespace) -> int:
    from harness.torture import MUTANTS, torture

    mutants = MUTANTS if options.mutant is None else tuple(name for name in options.mutant if name != "none")
    from images.broker.rules import NAMES
    from workloads.workload import registry

    if options.workload not in registry():
        raise Usage(f"faultline torture: --workload: {options.workload!r} is not one of {', '.join(registry())}")
    for name in mutants:
        if name not in NAMES:
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
    from harness.bench import PARTS, bench

    return bench(terminal(), parts=tuple(options.part or PARTS), largest=options.largest)


# ---- odds and ends ---------------------------------------------------------------------------------------------------


def _load(path: Path, command: str) -> Spec:
    from harness.spec import SpecError, load

    try:
        return load(path)
    except SpecError as error:
        raise Usage(f"faultline {command}: {error}") from None


def _open(path: Path) -> Any:
    from results.lines import StoreError
    from results.rundir import RunDirectory

    try:
        return RunDirectory.open(path)
    except StoreError as error:
        raise Usage(f"faultline: {error}") from None


def _exit_code(verdicts: Sequence[Verdict]) -> int:
    from checkers.verdict import Validity, worst

    answer = worst(verdict.validity for verdict in verdicts)
    return {Validity.VALID: VALID, Validity.INVALID: INVALID, Validity.UNKNOWN: UNKNOWN}[answer]


def _verdicts_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    from results.encoding import verdicts_to_json

    return verdicts_to_json(verdicts)
