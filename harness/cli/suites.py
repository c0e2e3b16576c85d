"""`faultline suite` and `faultline compare`: what can be said on the command line, and Spark around what is done.

Exit codes are those of `harness.suites.report` for a suite; a comparison ends with 0 whatever it found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.usage import COMPARISONS, Commands, Usage, add_store, terminal
from harness.exit_codes import INTERRUPTED, NOT_CARRIED_OUT, VALID

if TYPE_CHECKING:
    from harness.suites.job import RunResult
    from harness.suites.plan import Suite
    from harness.suites.record import SuiteRecord


def add(commands: Commands) -> None:
    """The commands that make many runs."""
    _add_compare(commands.add_parser("compare", help="settings side by side, under the same faults"))
    _add_suite(commands.add_parser("suite", help="many runs on Spark: specs × settings × seeds, resumable"))


def _add_suite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "suite", metavar="NAME|FILE.yaml", help="what to run: a file, or a shipped suite (nightly, smoke)"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="runs a cell (as the suite says)")
    parser.add_argument("--first-seed", type=int, metavar="N", help="where the seeds begin (as the suite says)")
    _add_spark(parser)
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the runs as JUnit XML here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the summary as JSON here")
    parser.set_defaults(command=_suite)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("comparison", metavar="SPEC.yaml", help="what to compare, or the name of a shipped comparison")
    parser.add_argument("--seeds", type=int, metavar="N", help="runs a setting (as the comparison says)")
    _add_spark(parser)
    parser.add_argument("--out", type=Path, default=COMPARISONS, metavar="DIR", help="where page and JSON go")
    parser.set_defaults(command=_compare)


def _add_spark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", default="local[*]", metavar="URL", help="Spark's: local[2], spark://… (local[*])")
    parser.add_argument(
        "--resume", action="store_true", help="make only what is missing of the newest one of this name cut short"
    )
    add_store(parser)


def _suite(options: argparse.Namespace) -> int:
    from harness.suites import report
    from harness.suites.job import summed_up
    from harness.suites.plan import load

    if options.resume and options.first_seed is not None:
        raise Usage("faultline suite: --first-seed is that of the suite to be resumed")
    for option, path in (("--junit", options.junit), ("--json", options.json)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise Usage(f"faultline suite: {option}: {path} is no file that can be written")
    console = terminal()

    def finish(begun: SuiteRecord, runs: Sequence[RunResult], spark: Any) -> int:
        figures = summed_up(begun, spark)
        for path in report.save(begun, runs, figures, options.json, options.junit):
            console.print(f"written: {path}", soft_wrap=True, highlight=False)
        console.print(report.table(figures.cells))
        console.print(report.covered(figures), soft_wrap=True, highlight=False)
        return report.exit_code(runs)

    def plan() -> Suite:
        return load(options.suite, seeds=options.seeds, first_seed=options.first_seed)

    return _on_spark(options, "suite", options.suite, plan, finish)


def _on_spark(
    options: argparse.Namespace,
    command: str,
    named: str,
    plan: Callable[[], Suite],
    finish: Callable[[SuiteRecord, Sequence[RunResult], Any], int],
) -> int:
    """Make all runs of a suite, new or resumed, then `finish` it while Spark is still there."""
    from harness.spec import SpecError
    from harness.suites.job import SPARK_SETTINGS, carry_out
    from harness.suites.record import CannotResume, begin, locked, resume
    from harness.suites.report import LiveSuite
    from results.errors import StoreError
    from results.run.paths import store_path
    from results.store.spark import SparkUnavailable, session

    if options.resume and options.seeds is not None:
        raise Usage(f"faultline {command}: --seeds is that of the {command} to be resumed")
    store = store_path(options.store).absolute()
    begun = None
    try:
        begun = resume(store, Path(named).stem) if options.resume else begin(store, plan())
        title, settings = f"faultline {command} {begun.name}", SPARK_SETTINGS
        with locked(begun), session(title, master=options.master, settings=settings) as spark:
            with LiveSuite(terminal(stderr=True), begun) as live:
                runs = carry_out(begun, spark, live)
            return finish(begun, runs, spark)
    except (SpecError, CannotResume) as error:
        raise Usage(f"faultline {command}: {error}") from None
    except KeyboardInterrupt:
        if begun is not None:
            print(f"interrupted; the rest of it: faultline {command} {begun.name} --resume", file=sys.stderr)
        return INTERRUPTED
    except (StoreError, SparkUnavailable, RuntimeError, OSError) as error:
        print(f"faultline: {error}", file=sys.stderr)
        if begun is not None and not isinstance(error, RuntimeError):
            print(f"what is done is kept; the rest of it: faultline {command} {begun.name} --resume", file=sys.stderr)
        return NOT_CARRIED_OUT


def _compare(options: argparse.Namespace) -> int:
    from harness.suites import report
    from harness.suites.comparison import compared, load, save, shown
    from harness.suites.job import summed_up

    console = terminal()

    def finish(begun: SuiteRecord, runs: Sequence[RunResult], spark: Any) -> int:
        comparison = compared(begun, runs)
        console.print(shown(comparison))
        for sentence in comparison.sentences():
            console.print(sentence, soft_wrap=True, highlight=False)
        for path in save(comparison, options.out):
            console.print(f"written: {path}", soft_wrap=True, highlight=False)
        for path in report.save(begun, runs, summed_up(begun, spark), None, None):
            console.print(f"written: {path}", soft_wrap=True, highlight=False)
        return VALID

    return _on_spark(options, "compare", options.comparison, lambda: load(options.comparison, options.seeds), finish)
