"""`faultline suite`, `faultline torture` and `faultline compare`: many runs on Spark.

Exit codes are those of `harness.suites.report` for a suite; `torture` ends with 0 when all expectations are met
(`harness.suites.expectations`) and else with 1; a comparison ends with 0 whatever its figures are.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.shrinking import shrink_failures
from harness.cli.usage import (
    COMPARISONS,
    Commands,
    Usage,
    add_store,
    check_output,
    check_output_directory,
    command_line,
    spark_master,
    terminal,
)
from harness.exit_codes import INTERRUPTED, INVALID, NOT_CARRIED_OUT, VALID

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession
    from rich.console import Console

    from harness.suites.job import RunResult
    from harness.suites.plan import Suite
    from harness.suites.record import SuiteRecord
    from results.store.summary import Summary

    Display = AbstractContextManager[Callable[[RunResult], None]]


def add(commands: Commands) -> None:
    """The commands that make many runs."""
    _add_compare(commands.add_parser("compare", help="compare settings under the same faults"))
    _add_suite(commands.add_parser("suite", help="make many runs on Spark: specs × settings × seeds, resumable"))
    _add_torture(commands.add_parser("torture", help="test the full protocol on many seeds, and find every mutant"))


def _add_suite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suite",
        metavar="NAME|FILE.yaml",
        help="a file, or the name of a shipped suite: kafka, nightly, smoke, soak, torture, varied",
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="runs of each cell, a spec with settings (default: the suite's)"
    )
    parser.add_argument("--first-seed", type=int, metavar="N", help="the first seed (default: the suite's)")
    _add_spark(parser)
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the runs as JUnit XML to this file, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary as JSON to this file, too")
    parser.add_argument(
        "--shrink", action="store_true", help="shrink the first failing run of every new signature, 2 minutes each"
    )
    parser.set_defaults(command=_suite)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "comparison",
        metavar="NAME|FILE.yaml",
        help="a file, or the name of a shipped comparison: acks-and-isr, prototype-and-kafka, unclean-recovery",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="runs of each setting (default: the comparison's)")
    _add_spark(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=COMPARISONS,
        metavar="DIR",
        help="directory for the page and the JSON (default: %(default)s)",
    )
    parser.set_defaults(command=_compare)


def _add_torture(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds of the full protocol (default: 500)")
    parser.add_argument("--mutant-seeds", type=int, metavar="N", help="seeds of each mutant, at most (default: 300)")
    parser.add_argument(
        "--mutant",
        action="append",
        metavar="NAME",
        help="search only for this mutant; none: for no mutant; may be repeated (default: all)",
    )
    parser.add_argument("--workload", metavar="NAME", help="workload of the full protocol (default: append)")
    parser.add_argument("--repeats", type=int, metavar="N", help="seeds that are run twice and compared (default: 50)")
    parser.add_argument("--first-seed", type=int, metavar="N", help="the first seed (default: 0)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: one for each core)"
    )
    parser.add_argument("--out", type=Path, metavar="JSON", help="write the results to this file, too")
    _add_resume(parser)
    add_store(parser)
    parser.set_defaults(command=_torture)


def _add_spark(parser: argparse.ArgumentParser) -> None:
    add_master(parser)
    _add_resume(parser)
    add_store(parser)


def add_master(parser: argparse.ArgumentParser) -> None:
    """The option that names the Spark master."""
    parser.add_argument(
        "--master",
        type=spark_master,
        default="local[*]",
        metavar="URL",
        help="Spark master: local[2], spark://… (default: %(default)s)",
    )


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--resume", action="store_true", help="resume the latest interrupted suite of this name")


def _suite(options: argparse.Namespace) -> int:
    from harness.suites import report
    from harness.suites.job import summed_up
    from harness.suites.plan import load

    if options.resume and options.first_seed is not None:
        raise Usage("faultline suite: --resume takes the seeds from the suite to be resumed")
    for option, path in (("--junit", options.junit), ("--json", options.json)):
        check_output("suite", option, path)
    console = terminal()
    ended: list[tuple[SuiteRecord, Sequence[RunResult]]] = []

    def finish(record: SuiteRecord, runs: Sequence[RunResult], spark: Any) -> int:
        ended.append((record, runs))
        show_result(console, record, runs, summed_up(record, spark), options.json, options.junit)
        _show_expectations(record.plan, runs, console)
        return report.exit_code(record.plan, runs)

    def plan() -> Suite:
        return load(options.suite, seeds=options.seeds, first_seed=options.first_seed)

    code = _on_spark(options, "suite", options.suite, plan, finish)
    # After Spark has stopped: the simulation wants its process for itself.
    for record, runs in ended if options.shrink else ():
        shrink_failures(record, runs)
    return code


def show_result(
    console: Console,
    record: SuiteRecord,
    runs: Sequence[RunResult],
    figures: Summary,
    json_too: Path | None = None,
    junit_too: Path | None = None,
) -> None:
    """Write the files of a suite that has ended, and show its figures, its failures and what it covered."""
    from harness.suites import report

    for path in report.save(record, runs, figures, json_too, junit_too):
        console.print(f"written: {path}", soft_wrap=True, highlight=False)
    console.print(report.table(figures.cells))
    if (failures := report.failures(record.plan, runs)) is not None:
        console.print(failures)
    console.print(report.covered(record.plan, figures), soft_wrap=True, highlight=False)


def _torture(options: argparse.Namespace) -> int:
    from harness.suites import report
    from harness.suites.expectations import expectations
    from harness.suites.job import summed_up
    from results.atomic_files import put_json

    console = terminal()
    if options.resume and not all(
        value is None
        for value in (options.workload, options.mutant_seeds, options.mutant, options.repeats, options.first_seed)
    ):
        raise Usage("faultline torture: --resume takes seeds, mutants and the workload from the suite to be resumed")
    if options.jobs < 1:
        raise Usage(f"faultline torture: --jobs: {options.jobs} is less than 1")
    check_output("torture", "--out", options.out)
    options.master = f"local[{options.jobs}]"

    def finish(record: SuiteRecord, runs: Sequence[RunResult], spark: Any) -> int:
        outcome = expectations(record.plan, runs)
        if options.out is not None:  # before the suite has ended: what cannot be written can be resumed
            put_json(options.out, outcome.to_json())
        for path in report.save(record, runs, summed_up(record, spark), None, None):
            console.print(f"written: {path}", soft_wrap=True, highlight=False)
        _show_expectations(record.plan, runs, console)
        return VALID if outcome.met else INVALID

    return _on_spark(options, "torture", "torture", lambda: _torture_plan(options), finish)


def _torture_plan(options: argparse.Namespace) -> Suite:
    """The shipped suite, as the options change it. Raises Usage."""
    from harness.cluster.systems import SYSTEMS
    from harness.suites.plan import load, mutant_of, without
    from workloads.clients import consumer_rules
    from workloads.registry import WORKLOADS

    shipped = load("torture")
    workload = options.workload or "append"
    if workload not in WORKLOADS:
        raise Usage(f"faultline torture: --workload: {workload!r} is not one of {', '.join(WORKLOADS)}")
    mutants = dict(shipped.mutants)
    if options.mutant is not None:
        names = [name for name in options.mutant if name != "none"]
        rules = {*(rule.name for rule in SYSTEMS["broker"].rules), *consumer_rules.NAMES}
        for name in names:
            if name not in rules:
                raise Usage(f"faultline torture: --mutant: {name!r} is not a rule; `faultline rules` lists them")
        mutants = {without(name): shipped.mutants.get(without(name)) or mutant_of(name) for name in names}
    counts = {
        name: getattr(shipped, name) if getattr(options, name) is None else getattr(options, name)
        for name in ("seeds", "mutant_seeds", "repeats", "first_seed")
    }
    least = {"mutant_seeds": 1, "seeds": 0 if mutants else 1}
    for name, count in counts.items():
        if count < least.get(name, 0):
            option = f"--{name.replace('_', '-')}"
            raise Usage(f"faultline torture: {option}: {count} is less than {least.get(name, 0)}")
    cells = {cell: replace(spec, workload=workload) for cell, spec in shipped.cells.items()}
    return replace(shipped, cells=cells, mutants=mutants, **counts)


def _show_expectations(plan: Suite, runs: Sequence[RunResult], console: Console) -> None:
    from harness.suites.expectations import expectations, has_expectations, table

    if has_expectations(plan):
        outcome = expectations(plan, runs)
        console.print(table(outcome.tallies))
        if outcome.repeats:
            console.print(outcome.sentence(), soft_wrap=True, highlight=False)


def _on_spark(
    options: argparse.Namespace,
    command: str,
    named: str,
    plan: Callable[[], Suite],
    finish: Callable[[SuiteRecord, Sequence[RunResult], Any], int],
) -> int:
    """Make all runs of a suite, new or resumed, then `finish` it while Spark is still there."""
    from harness.suites.reading import plain
    from harness.suites.record import begin, resume

    if options.resume and options.seeds is not None:
        raise Usage(f"faultline {command}: --resume takes the seeds from the suite to be resumed")

    def opened(store: Path) -> SuiteRecord:
        if not options.resume:
            return begin(store, plan())
        is_file = Path(named).suffix in (".yaml", ".yml")
        return resume(store, plain(Path(named).stem if is_file else named))

    def again(record: SuiteRecord) -> str:
        name = () if command == "torture" else (record.name,)
        return f"resume it with: {command_line(command, *name, '--resume', store=options.store)}"

    return on_spark(options, command, opened, again, finish)


def on_spark(
    options: argparse.Namespace,
    command: str,
    opened: Callable[[Path], SuiteRecord],
    again: Callable[[SuiteRecord], str],
    finish: Callable[[SuiteRecord, Sequence[RunResult], Any], int],
    display: Callable[[Console, SuiteRecord], Display] | None = None,
    prepare: Callable[[SparkSession], None] = lambda spark: None,
) -> int:
    """Make the runs of the suite `opened` in the store, then `finish` it while Spark is still there.

    `again` says how an interrupted one goes on, `display` shows its runs as they end, instead of `LiveSuite`, and
    `prepare` works on Spark before the first run.
    """
    from harness.environments.interrupts import interruption_raised
    from harness.suites.job import carry_out, spark_settings
    from harness.suites.record import CannotResume, locked
    from harness.suites.report import LiveSuite
    from harness.yaml_document import SpecError
    from results.errors import StoreError
    from results.run.paths import store_path
    from results.store.spark import SparkUnavailable, check_reachable, session

    store = store_path(options.store).absolute()
    record = None
    try:
        check_reachable(options.master)  # else it would leave an empty suite behind, the latest to be resumed
        record = opened(store)
        title, settings = f"faultline {command} {record.name}", spark_settings(options.master)
        with (
            interruption_raised(),
            locked(record),
            session(title, master=options.master, settings=settings) as spark,
        ):
            with (display or LiveSuite)(terminal(stderr=True), record) as live:
                prepare(spark)
                runs = carry_out(record, spark, live)
            return finish(record, runs, spark)
    except (SpecError, CannotResume) as error:
        raise Usage(f"faultline {command}: {error}") from None
    except KeyboardInterrupt:
        if record is not None:
            print(f"interrupted; {again(record)}", file=sys.stderr)
        return INTERRUPTED
    except (StoreError, SparkUnavailable, RuntimeError, OSError) as error:
        print(f"faultline: {error}", file=sys.stderr)
        if record is not None and not isinstance(error, RuntimeError):
            print(f"the runs that ended are kept; {again(record)}", file=sys.stderr)
        return NOT_CARRIED_OUT


def _compare(options: argparse.Namespace) -> int:
    from harness.suites import report
    from harness.suites.comparison import compared, load, save, shown
    from harness.suites.job import summed_up

    check_output_directory("compare", "--out", options.out)
    console = terminal()

    def finish(record: SuiteRecord, runs: Sequence[RunResult], spark: Any) -> int:
        comparison = compared(record, runs)
        console.print(shown(comparison))
        for sentence in comparison.sentences():
            console.print(sentence, soft_wrap=True, highlight=False)
        for path in save(comparison, options.out):
            console.print(f"written: {path}", soft_wrap=True, highlight=False)
        for path in report.save(record, runs, summed_up(record, spark), None, None):
            console.print(f"written: {path}", soft_wrap=True, highlight=False)
        return VALID

    return _on_spark(options, "compare", options.comparison, lambda: load(options.comparison, options.seeds), finish)
