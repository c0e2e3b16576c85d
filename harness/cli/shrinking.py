"""`faultline shrink`: make a failing run smaller, and write it as an incident file.

It ends with 0 when the incident file is as it says: its failing variant fails the same way, byte for byte the run that
it was made of, and the one without the flaw is valid; else with 3. A budget that is used up is no failure: the file
holds the smallest spec so far, and `--resume` goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli.usage import Commands, Usage, add_store, check_output, command_line, duration, terminal
from harness.exit_codes import INTERRUPTED, NOT_CARRIED_OUT, VALID
from results.number_format import counted

if TYPE_CHECKING:
    from rich.console import Console

    from harness.shrinking.session import ShrinkBudget, ShrinkResult
    from harness.shrinking.shrinker import ShrinkProgress
    from harness.shrinking.subjects import ShrinkSubject
    from harness.suites.job import RunResult
    from harness.suites.record import SuiteRecord


def add(commands: Commands) -> None:
    """The command."""
    parser = commands.add_parser("shrink", help="make a failing run smaller, and write it as an incident file")
    parser.add_argument(
        "target",
        metavar="RUN_DIR|SUITE/RUN|INCIDENT",
        help="a run directory, a run of a suite, or an incident that fails",
    )
    parser.add_argument("--variant", metavar="NAME", help="variant of an incident (default: the first that fails)")
    parser.add_argument(
        "--budget", metavar="120s", help="stop after so long (default: when nothing can be made smaller)"
    )
    parser.add_argument("--runs", type=int, metavar="N", help="stop after so many runs")
    parser.add_argument("--resume", action="store_true", help="go on where shrinking this subject was cut short")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.yaml", help="write the incident there, too (default: below the store)"
    )
    add_store(parser)
    parser.set_defaults(command=_shrink)


def _shrink(options: argparse.Namespace) -> int:
    from harness.shrinking.journal import CannotResumeShrinking, is_begun
    from harness.shrinking.session import NotShrinkable
    from harness.shrinking.subjects import subject_of
    from harness.yaml_document import SpecError
    from results.atomic_files import put_text
    from results.errors import StoreError
    from results.run.paths import store_path
    from results.store.spark import fingerprint

    budget, store = _budget(options), store_path(options.store)
    check_output("shrink", "--out", options.out)
    try:
        subject = subject_of(options.target, store, options.variant)
    except (SpecError, StoreError) as error:
        raise Usage(f"faultline shrink: {error}") from None
    directory = store / "shrinking" / subject.name
    try:
        result = _shrink_on(terminal(), subject, directory, fingerprint(), budget, resume=options.resume)
        if options.out is not None:
            put_text(options.out, result.path.read_text(encoding="utf-8"))
    except CannotResumeShrinking as error:
        raise Usage(f"faultline shrink: {'--resume: ' if options.resume else ''}{error}") from None
    except (NotShrinkable, StoreError, OSError) as error:
        print(f"faultline: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    except KeyboardInterrupt:
        print(f"interrupted; go on with: {_again(options, resume=is_begun(directory))}", file=sys.stderr)
        return INTERRUPTED
    return NOT_CARRIED_OUT if result.unmet else VALID


def _again(options: argparse.Namespace, *, resume: bool) -> str:
    """The command with which interrupted shrinking goes on; its budget is one of a session, as before."""
    names = ("variant", "budget", "runs", "out")
    values = {f"--{name}": value for name in names if (value := getattr(options, name)) is not None}
    words = [word for option, value in values.items() for word in (option, str(value))]
    return command_line("shrink", options.target, *words, *(["--resume"] if resume else []), store=options.store)


def shrink_failures(record: SuiteRecord, runs: Sequence[RunResult]) -> None:
    """Shrink the first failing run of every signature in a suite, each within the budget of a suite's failure."""
    from harness.shrinking.journal import CannotResumeShrinking, is_begun
    from harness.shrinking.session import NotShrinkable
    from harness.shrinking.suite_failures import BUDGET, first_failures

    console, sources = terminal(), record.facts["sources"]
    for subject in first_failures(record, runs):
        console.print(f"shrinking {subject.origin}", highlight=False, soft_wrap=True)
        directory = record.path / "shrunk" / subject.name
        try:
            _shrink_on(console, subject, directory, sources, BUDGET, resume=is_begun(directory))
        except (NotShrinkable, CannotResumeShrinking) as error:
            console.print(f"not shrunk: {error}", style="yellow", highlight=False, soft_wrap=True)


def _budget(options: argparse.Namespace) -> ShrinkBudget:
    from harness.shrinking.session import ShrinkBudget
    from nemesis.fields import FieldError, seconds

    if options.runs is not None and options.runs < 1:
        raise Usage(f"faultline shrink: --runs: {options.runs} is less than 1")
    value = duration(options.budget)
    try:
        limit_s = None if value is None else seconds(value, "--budget")
    except FieldError as error:
        raise Usage(f"faultline shrink: {error}") from None
    return ShrinkBudget(limit_s, options.runs)


def _shrink_on(
    console: Console,
    subject: ShrinkSubject,
    directory: Path,
    sources: str,
    budget: ShrinkBudget,
    *,
    resume: bool = False,
) -> ShrinkResult:
    """Shrink a subject and show the result. Standard error has the progress: one line redrawn in place on a terminal,
    elsewhere a line for each step forward."""
    from rich.live import Live

    from harness.shrinking.session import description, shrink

    progress_console = terminal(stderr=True)

    def show_progress(progress: ShrinkProgress) -> None:
        line = f"run {progress.runs}  {progress.pass_name.replace('_', ' ')}: {description(progress.smallest)}"
        if progress_console.is_terminal:
            live.update(line, refresh=True)
        elif progress.accepted:
            progress_console.print(line, highlight=False)

    with Live(console=progress_console, auto_refresh=False, transient=True) as live:
        result = shrink(subject, directory, sources=sources, resume=resume, budget=budget, on_progress=show_progress)
    _show(console, result)
    return result


def _show(console: Console, result: ShrinkResult) -> None:
    from harness.shrinking.session import description

    failing, smallest = result.failing, result.shrunk.smallest
    console.print(failing.expect.describe(), style="bold", highlight=False, soft_wrap=True)
    for line in smallest.sighting.lines:
        console.print(f"    {line}", highlight=False, soft_wrap=True)
    console.print(f"before: {description(failing.start.spec)}", highlight=False)
    console.print(f"after:  {description(smallest.spec)}", highlight=False)
    for scheduled in smallest.spec.script:
        console.print(f"    {scheduled.describe()}", highlight=False, soft_wrap=True)
    console.print(f"{counted(result.runs, 'run')} in {result.seconds:.0f} s", highlight=False)
    if not result.shrunk.complete:
        console.print("the budget is used up: it may become smaller with --resume", style="yellow")
    if failing.repaired_holds:
        console.print("without its flaw the run is valid", highlight=False)
    for line in result.unmet:
        console.print(f"✗ {line}", style="red", highlight=False, soft_wrap=True)
    console.print(f"incident: {result.path}", highlight=False, soft_wrap=True)
