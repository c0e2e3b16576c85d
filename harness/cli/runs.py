"""`faultline run`, `check` and `replay`: make one run, check it again, and repeat it."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.failure import line_of
from harness.cli.usage import Commands, Usage, add_store, command_line, duration, print_json, terminal
from harness.exit_codes import EXIT_CODES, INTERRUPTED, INVALID, NOT_CARRIED_OUT, VALID

if TYPE_CHECKING:
    from harness.spec import Spec
    from harness.suites.stored_spec import StoredSpec
    from results.explanation.story import Story
    from results.run.directory import RunDirectory


def add(commands: Commands) -> None:
    """The commands of one run."""
    _add_run(commands.add_parser("run", help="run a cluster under faults, and check it"))
    _add_directory(commands.add_parser("check", help="check a run again, also an interrupted one"), _check, "check")
    _add_directory(commands.add_parser("replay", help="repeat a run, and compare the digests"), _replay, "repeat")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spec",
        nargs="?",
        metavar="SPEC.yaml|SUITE/RUN",
        help="the spec to run, or a run of a suite to run again; options override its fields",
    )
    parser.add_argument("--environment", metavar="NAME", help="sim, docker or ssh (default: sim)")
    parser.add_argument("--system", metavar="NAME", help="the system under test: broker or kafka (default: broker)")
    parser.add_argument("--version", metavar="RELEASE", help="its release, where it has several, such as 4.1.1")
    parser.add_argument("--workload", metavar="NAME", help="append or groups (default: append)")
    parser.add_argument(
        "--faults",
        metavar="LIST|all|none",
        help="fault families, separated by commas: partition, kill, power-loss, pause, clock, packets, scripted, "
        "admin, wipe, disk-full, slow-disk, message; not among all: power-loss-all, fsync-lies (default: all)",
    )
    parser.add_argument(
        "--time-limit", metavar="60", help="duration of clients and faults: seconds, or 90s, 5m (default: 60)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="random seed (default: random)")
    parser.add_argument("--brokers", type=int, metavar="N", help="number of brokers (default: 3)")
    parser.add_argument("--partitions", type=int, metavar="N", help="number of partitions (default: 2)")
    parser.add_argument(
        "--rate", type=float, metavar="N", help="appends per second, all producers together (default: 20)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Kafka setting: min.insync.replicas=2; may be repeated",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="RULE",
        help="switch off a safety rule (see: faultline rules); may be repeated",
    )
    parser.add_argument(
        "--protocol",
        metavar="NAME",
        help="how followers truncate: high_watermark, kip101, kip279, kip320_first_try, kip320 "
        "(default: truncate_on_fetch)",
    )
    parser.add_argument(
        "--vary",
        action="store_true",
        default=None,
        help="draw from the seed what the spec and the options leave open: sizes, timeouts, settings, clients",
    )
    add_store(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON summary and nothing else")
    parser.set_defaults(command=_run)


def _add_directory(parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int], verb: str) -> None:
    parser.add_argument("directory", type=Path, metavar="RUN_DIR", help=f"the run to {verb}")
    parser.add_argument("--json", action="store_true", help="print one JSON summary and nothing else")
    parser.set_defaults(command=command)


def _run(options: argparse.Namespace) -> int:
    from harness.cli.display import LiveProgress, summary
    from harness.drawn_spec import with_drawn_world
    from harness.runner.run import run
    from harness.worlds import departures
    from results.errors import StoreError
    from results.run.directory import RunDirectory
    from results.run.paths import store_path

    stored = _stored(options)
    spec = with_drawn_world(stored.spec if stored is not None else _spec(options))
    try:
        directory = RunDirectory.create(store_path(options.store), spec.name, spec.seed)
        if options.json:
            outcome = run(spec, directory)
            if outcome.refused:
                directory.discard()
            print_json(outcome.to_json())
            return outcome.exit_code
        console, progress = terminal(), terminal(stderr=True)
        try:
            with LiveProgress(progress, spec) as on_progress:
                outcome = run(spec, directory, on_progress=on_progress)
        except KeyboardInterrupt:
            check = command_line("check", str(directory.path))
            print(f"interrupted; check the recorded part with: {check}", file=sys.stderr)
            return INTERRUPTED
    except StoreError as error:
        print(f"faultline: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    if outcome.refused:
        directory.discard()
        print(f"faultline: {outcome.failure}", file=sys.stderr)
        return outcome.exit_code
    if outcome.failure:
        print(f"faultline: {outcome.failure} (its directory: {directory.path})", file=sys.stderr)
        return outcome.exit_code
    summary(
        console,
        outcome.verdicts,
        spec.check_settings(),
        outcome.stories,
        deviations=outcome.deviations,
        outcome=outcome,
    )
    if spec.drawn:
        console.print(f"world:  {', '.join(departures(spec.drawn)) or 'all defaults'}", soft_wrap=True, highlight=False)
    if outcome.unreported:
        print(f"faultline: there is no report: {outcome.unreported}", file=sys.stderr)
    else:
        console.print(f"report: {outcome.report}", soft_wrap=True, highlight=False)
    console.print(f"again:  {outcome.again}   (seed {spec.seed})", soft_wrap=True, highlight=False)
    if stored is not None and stored.digest:
        same = "the same, byte for byte, as" if outcome.digest == stored.digest else "not the same as"
        console.print(f"this run is {same} {stored.name}", soft_wrap=True, highlight=False)
    return outcome.exit_code


def _stored(options: argparse.Namespace) -> StoredSpec | None:
    """The stored run that is to be run again; None where the command names none. Raises Usage."""
    from harness.suites.stored_spec import stored_spec
    from harness.yaml_document import SpecError
    from results.errors import StoreError
    from results.run.paths import store_path

    name: str | None = options.spec
    if name is None or name.count("/") != 1 or Path(name).exists() or Path(name).suffix in (".yaml", ".yml"):
        return None
    try:
        return stored_spec(store_path(options.store), name, **_overrides(options))
    except (SpecError, StoreError) as error:
        raise Usage(f"faultline run: {error}") from None


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a spec that options give; None where an option is left out. Raises Usage."""
    settings = {}
    for item in options.set:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise Usage(f"faultline run: --set: {item!r} is not KEY=VALUE, such as min.insync.replicas=2")
        settings[name.strip()] = value.strip()
    if options.protocol:
        settings["faultline.protocol"] = options.protocol
    return {
        "environment": options.environment,
        "system": options.system,
        "version": options.version,
        "workload": options.workload,
        "faults": options.faults,
        "time_limit": duration(options.time_limit),
        "seed": options.seed,
        "brokers": options.brokers,
        "partitions": options.partitions,
        "rate": options.rate,
        "vary": options.vary,
        "settings": settings,
        "without": tuple(rule for item in options.without for rule in item.split(",")) or None,
    }


def _spec(options: argparse.Namespace) -> Spec:
    from harness.spec import SEEDS, load, parse
    from harness.yaml_document import SpecError

    overrides, drawn_seed = _overrides(options), secrets.randbelow(SEEDS)
    try:
        if options.spec is None:
            return parse({}, drawn_seed=drawn_seed, **overrides)
        return load(Path(options.spec), drawn_seed=drawn_seed, **overrides)
    except SpecError as error:
        raise Usage(f"faultline run: {error}") from None


def _check(options: argparse.Namespace) -> int:
    from checkers.evidence import gap_lines
    from checkers.registry import check
    from checkers.verdict import worst
    from harness.cli.display import summary
    from harness.runner.checking import explain_and_save, save
    from results.explanation.story import stories_to_json
    from results.pages.report import write_report
    from results.run.deviations import deviations
    from results.run.json_encoding import verdicts_to_json

    directory = _open(options.directory)
    evidence = directory.load()
    told = {gap.reason for gap in evidence.gaps}
    gaps = (*(line for line in directory.gaps() if line not in told), *gap_lines(evidence.gaps))
    verdicts = check(evidence)
    stories: tuple[Story, ...] = ()
    report, unsaved = None, ""
    try:
        save(verdicts, evidence, directory)
        stories = explain_and_save(verdicts, evidence, directory)
        report = write_report(directory, evidence)
    except Exception as error:  # the verdict stands, whatever keeps it from being saved or drawn
        unsaved = line_of(error, ("check", str(options.directory)))
    if options.json:
        found = {**verdicts_to_json(verdicts), **stories_to_json(stories)}
        print_json({"run": str(directory.path), "gaps": list(gaps), **found})
    else:
        console = terminal()
        for gap in gaps:
            console.print(f"note: {gap}", style="yellow", soft_wrap=True)
        summary(
            console, verdicts, evidence.settings, stories, deviations=deviations(evidence.faults, directory.script())
        )
        if report is not None:
            console.print(f"report: {report}", soft_wrap=True, highlight=False)
    if unsaved:
        print(f"{unsaved}; the verdict stands", file=sys.stderr)
    return EXIT_CODES[worst(verdict.validity for verdict in verdicts)]


def _replay(options: argparse.Namespace) -> int:
    from harness.cli.display import LiveProgress
    from harness.runner.replay import replay
    from harness.spec import loads
    from harness.yaml_document import SpecError
    from results.errors import StoreError

    directory = _open(options.directory)
    try:
        if options.json:
            comparison = replay(directory.path)
            print_json({"identical": comparison.identical, "lines": list(comparison.lines)})
        else:
            spec = loads(directory.read_spec_text(), str(directory.spec_path))
            with LiveProgress(terminal(stderr=True), spec) as on_progress:
                comparison = replay(directory.path, on_progress)
            for line in comparison.lines:
                terminal().print(line, soft_wrap=True, highlight=False)
    except (SpecError, StoreError) as error:
        print(f"faultline: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    if comparison.outcome.failure:
        return NOT_CARRIED_OUT
    return VALID if comparison.identical else INVALID


def _open(path: Path) -> RunDirectory:
    from results.errors import StoreError
    from results.run.directory import RunDirectory

    try:
        return RunDirectory.open(path)
    except StoreError as error:
        raise Usage(f"faultline: {error}") from None
