"""`faultline explore`: every state of a small cluster, or of its controllers, until a promise is broken or no state is
left.

With `--situations`, all situations of the protocol in the scope are written to a file, unless a promise is broken: then
the exploration ends before it has seen them all. With `--script`, the schedule to a broken promise is written as an
incident, which the simulation plays. With `--checkpoint`, every level that is whole is kept, and a killed exploration
goes on from the last one; one that is interrupted names the command.

It ends with 0 when every state keeps every promise, with 1 when one does not, and with 3 when its schedule has a step
that a script cannot have. Of controllers there are neither situations nor scripts.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.usage import Commands, Usage, check_output, command_line, print_json, spark_master, terminal
from harness.exit_codes import INTERRUPTED, INVALID, NOT_CARRIED_OUT, VALID

if TYPE_CHECKING:
    from rich.console import Console

    from harness.search.exploration.scope import Scope
    from harness.search.quorum_exploration.scope import QuorumScope
    from harness.search.state_space.breadth_first import ExplorationProgress, ExplorationResult, ShardsOf, Violation

_PROCESSES_MAX = 256


def add(commands: Commands) -> None:
    """The command."""
    parser = commands.add_parser("explore", help="explore every state of a small cluster")
    parser.add_argument(
        "scope",
        metavar="NAME|SCOPE.yaml",
        help="a file, or the name of a shipped scope: answers-of-earlier-leaders, elected-again, fetches-in-flight, "
        "isr-answers, isr-changes, quorum, quorum-four-epochs, quorum-messages, quorum-restarts, reassignment, "
        "reassignment-of-four, reassignment-of-three, reassignment-with-losses, reassignment-with-restarts, restarts, "
        "restarts-of-three, three-replicas, truncation, two-replicas, unclean-recovery",
    )
    parser.add_argument("--protocol", metavar="NAME", help="truncation protocol (default: the scope's)")
    parser.add_argument(
        "--without", action="append", default=[], metavar="RULE", help="switch off a safety rule; may be repeated"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="processes, or tasks of Spark (default: one for each core, or for each slot of Spark)",
    )
    parser.add_argument(
        "--master",
        type=spark_master,
        metavar="URL",
        help="share the states out over the tasks of a Spark master: local[2], spark://…",
    )
    parser.add_argument(
        "--situations",
        type=Path,
        metavar="FILE",
        help="write all situations of the scope to this file, each with the shortest schedule to it",
    )
    parser.add_argument(
        "--script",
        type=Path,
        metavar="FILE.yaml",
        help="write the shortest schedule to a broken promise that the checks of a run see as an incident, for "
        "`faultline incident run`",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="keep every level that is whole in this folder, and go on from the last one that is there",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.set_defaults(command=_explore)


def _explore(options: argparse.Namespace) -> int:
    from harness.environments.interrupts import interruption_raised
    from harness.search.quorum_exploration import scope as quorum_scope
    from harness.search.scope_situations import ScopeSituations
    from harness.search.state_space.breadth_first import LostShard
    from harness.yaml_document import SpecError
    from results.store.spark import SparkUnavailable

    if options.jobs is not None and not 1 <= options.jobs <= _PROCESSES_MAX:
        raise Usage(f"faultline explore: --jobs: {options.jobs} is not a number from 1 to {_PROCESSES_MAX}")
    try:
        name, scope = _load(options)
    except SpecError as error:
        raise Usage(f"faultline explore: {error}") from None
    path: Path | None = options.situations
    script: Path | None = options.script
    if path is not None and script is not None:
        raise Usage("faultline explore: --situations and --script: one of them; a script ends the exploration early")
    for option, file in (("--situations", path), ("--script", script)):
        check_output("explore", option, file)
    console = terminal(stderr=options.json)
    if isinstance(scope, quorum_scope.QuorumScope):
        _refuse(path, script)
    elif script is not None:
        scope = replace(scope, as_in_a_run=True)
    try:
        with interruption_raised(), _LevelProgress(console) as progress:
            result = _explored(options, scope, progress)
    except KeyboardInterrupt:
        go_on = "" if options.checkpoint is None else f"; go on with: {_again(options)}"
        print(f"interrupted{go_on}", file=sys.stderr)
        return INTERRUPTED
    except (LostShard, SparkUnavailable) as error:
        print(f"faultline: {error}", file=sys.stderr)
        return NOT_CARRIED_OUT
    if isinstance(scope, quorum_scope.QuorumScope):
        return _reported(options, console, name, result)
    code = _reported(options, console, name, result)
    if path is not None and result.violation is None:
        ScopeSituations(name, asdict(scope), result.states, result.reached).write(path)
    elif path is not None:
        print(f"{path} is not written: the exploration ended early", file=sys.stderr)
    if script is not None and result.violation is not None:
        untranslated = _write_script(script, name, scope, result.violation)
        again = command_line("incident", "run", str(script))
        line = f"not translated: {untranslated}" if untranslated else again
        console.print(line, highlight=False, soft_wrap=True)
        if untranslated:
            return NOT_CARRIED_OUT
    return code


def _again(options: argparse.Namespace) -> str:
    """The command with which an interrupted exploration goes on."""
    names = ("protocol", "jobs", "master", "situations", "script", "checkpoint")
    values = {f"--{name}": value for name in names if (value := getattr(options, name)) is not None}
    words = [word for option, value in values.items() for word in (option, str(value))]
    words += [word for rule in options.without for word in ("--without", rule)]
    return command_line("explore", options.scope, *words, *(["--json"] if options.json else []))


def _load(options: argparse.Namespace) -> tuple[str, Scope | QuorumScope]:
    """The name of the scope and the scope. Raises SpecError."""
    from harness.search.exploration import scope_file
    from harness.search.quorum_exploration import scope_file as quorum_scope_file
    from harness.yaml_document import SpecError

    without = tuple(options.without)
    quorum = quorum_scope_file.load(options.scope, without)
    if quorum is None:
        return scope_file.load(options.scope, options.protocol, without)
    if options.protocol is not None:
        raise SpecError(f"protocol: {options.protocol!r}: controllers have no truncation protocol to choose")
    return quorum


def _refuse(situations: Path | None, script: Path | None) -> None:
    """Raise Usage for a file of what there is not of controllers."""
    for option, file, what in (
        ("--situations", situations, "situations are those of partitions"),
        ("--script", script, "scripts have no steps of elections"),
    ):
        if file is not None:
            raise Usage(f"faultline explore: {option}: {what}, and this scope is of controllers")


def _reported(options: argparse.Namespace, console: Console, name: str, result: ExplorationResult) -> int:
    """Print the result. Returns the exit code."""
    if options.json:
        figures = {key: value for key, value in result._asdict().items() if key != "reached"}
        print_json({"scope": name, **figures, "violation": result.violation and _in_words(result.violation)})
    else:
        _show(console, name, result)
    return VALID if result.violation is None else INVALID


def _explored(
    options: argparse.Namespace, scope: Scope | QuorumScope, progress: Callable[[ExplorationProgress], None]
) -> ExplorationResult:
    from harness.search.exploration.breadth_first import explore
    from harness.search.quorum_exploration import scope as quorum_scope
    from harness.search.quorum_exploration.breadth_first import explore as explore_quorum
    from harness.search.state_space.checkpoint import SearchCheckpoint
    from results.store.spark import fingerprint

    search: Callable[[int | ShardsOf], ExplorationResult]
    checkpoint = None
    if options.checkpoint is not None:
        checkpoint = SearchCheckpoint(options.checkpoint.absolute(), f"{scope!r} {fingerprint()}")
    if isinstance(scope, quorum_scope.QuorumScope):
        search = partial(explore_quorum, scope, progress=progress, checkpoint=checkpoint)
    else:
        schedules = options.situations is not None
        search = partial(explore, scope, progress=progress, schedules=schedules, checkpoint=checkpoint)
    with checkpoint.locked() if checkpoint is not None else nullcontext():
        return _searched(options, search)


def _searched(options: argparse.Namespace, search: Callable[[int | ShardsOf], ExplorationResult]) -> ExplorationResult:
    """Search in processes here or in tasks of Spark, as the options have it."""
    if options.master is None:
        return search(options.jobs or os.cpu_count() or 1)
    from harness.search.spark_shards import SETTINGS, spark_shards
    from results.store.spark import session

    with session("faultline explore", master=options.master, settings=SETTINGS) as spark:
        return search(spark_shards(spark.sparkContext, options.jobs or 0))


def _write_script(path: Path, name: str, scope: Scope, violation: Violation) -> str:
    """Write the incident of a violation. Returns the step that a script has no words for; empty if it is written."""
    from harness.search.scripted_schedules.incident_text import incident_text
    from harness.search.scripted_schedules.translation import Untranslatable
    from results.atomic_files import put_text

    try:
        text = incident_text(name, scope, violation)
    except Untranslatable as step:
        return str(step)
    put_text(path, text)
    return ""


def _in_words(violation: Violation) -> dict[str, Any]:
    return {"promise": violation.promise, "schedule": violation.schedule}


class _LevelProgress:
    """The depth of the search and its figures, redrawn on a terminal and else printed once for each level."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("0 steps deep") if console.is_terminal else None
        self._depth = -1

    def __enter__(self) -> _LevelProgress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, progress: ExplorationProgress) -> None:
        """Show the progress."""
        line = (
            f"{progress.seconds:8.1f} s  {progress.depth:3} steps deep  {progress.states:,} states  "
            f"{progress.steps:,} steps  {progress.left:,} states to expand"
        )
        if self._status is not None:
            self._status.update(line)
        elif progress.depth != self._depth:
            self._console.print(line, highlight=False)
        self._depth = progress.depth


def _show(console: Console, name: str, result: ExplorationResult) -> None:
    rate = result.states / result.seconds
    situations = "" if result.situations is None else f" in {result.situations:,} situations"
    console.print(
        f"{name}: {result.states:,} states{situations}, {result.steps:,} steps, "
        f"{result.depth} steps deep; {result.seconds:.1f} s, {rate:,.0f} states a second, {result.memory_mb:,} MB",
        highlight=False,
        soft_wrap=True,
    )
    violation = result.violation
    if violation is None:
        console.print("every state and every step keeps every promise", style="green")
        return
    console.print(f"broken: {violation.promise}", style="bold red", highlight=False, soft_wrap=True)
    for number, line in enumerate(violation.schedule, 1):
        console.print(f"{number:3}. {line}", highlight=False, soft_wrap=True)
