"""A session of shrinking: from a subject to an incident file.

run it once: its faults as a script, its signature → is it valid without the flaw? → shrink, every run in the journal
→ the incident file, written at every step forward → both variants of the file are run and compared
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from checkers.verdict import Validity
from harness.incidents.expectation import Expectation
from harness.incidents.incident import read_incident
from harness.runner.run import run_in_simulation
from harness.shrinking.incident_file import shrunk_incident
from harness.shrinking.journal import TrialJournal, check_begun
from harness.shrinking.passes import Reproducer
from harness.shrinking.reproduction import Reproduction, holds, sighting_of, without_flaw
from harness.shrinking.shrinker import Predicate, Shrinker, ShrinkProgress, Shrunk
from harness.shrinking.subjects import ShrinkSubject
from harness.spec import Spec, loads
from harness.yaml_document import parse_document
from results.atomic_files import put_text
from results.run.temporary_directory import temporary_directory

INCIDENT: Final = "incident.yaml"


class NotShrinkable(Exception):
    """The subject does not fail, or cannot be run; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class ShrinkBudget:
    """What a session may take; None stands for any amount."""

    seconds: float | None = None
    runs: int | None = None


@dataclass(frozen=True, slots=True)
class Failing:
    """A subject that was seen to fail, with its faults as a script."""

    subject: ShrinkSubject
    start: Reproducer
    expect: Expectation
    """The verdict and the signature that every smaller run must have, too."""
    repaired_holds: bool
    """Whether it has a flaw, and is valid without it."""

    def incident(self, smallest: Reproducer) -> str:
        """The text of the incident that the smallest spec makes."""
        before, after = self.start.spec, smallest.spec
        story = (
            f"Shrunk from {self.subject.origin}: {_count(len(before.script), 'fault')} in {before.time_limit_s:g} s "
            f"became {_count(len(after.script), 'fault')} in {after.time_limit_s:g} s. Its run shows:\n"
        )
        return shrunk_incident(
            after,
            self.expect,
            title=f"{self.expect.cause}, shrunk from {self.subject.name}",
            story=story + "".join(f"  {line}\n" for line in smallest.sighting.lines),
            repaired_holds=self.repaired_holds,
        )


@dataclass(frozen=True, slots=True)
class ShrinkResult:
    """The result of a session."""

    failing: Failing
    shrunk: Shrunk
    path: Path
    """The incident file."""
    unmet: tuple[str, ...]
    """Where runs of the file are not as it says, a line each; empty when it can be trusted."""
    runs: int
    """Runs of candidates that this session made, and did not find in the journal."""
    seconds: float


def failing(subject: ShrinkSubject) -> Failing:
    """Run a subject, and see that it fails. Raises NotShrinkable."""
    try:
        spec = replace(subject.spec, environment="sim", hosts={})
    except ValueError as error:
        raise NotShrinkable(f"{subject.origin} cannot be run in simulation: {error}") from None
    with temporary_directory("shrink") as store:
        outcome = run_in_simulation(spec, store)
        if outcome.failure or outcome.directory is None:
            raise NotShrinkable(f"{subject.origin} could not be carried out: {outcome.failure}")
        wanted = subject.expect
        expect = wanted.narrowed(outcome.verdicts, outcome.signatures)
        if (
            expect.verdict is Validity.VALID
            or not expect.cause
            or wanted.unmet(outcome.verdicts, outcome.signatures, outcome.stories)
        ):
            instead = f", not {wanted.describe()}" if wanted != Expectation() else ""
            raise NotShrinkable(f"{subject.origin}, run again in simulation, is {expect.describe()}{instead}")
        scripted = loads((outcome.directory / "schedule.yaml").read_text(encoding="utf-8"))
    repaired = without_flaw(scripted)
    start = Reproducer(scripted, sighting_of(outcome, expect.signature))
    return Failing(subject, start, expect, repaired is not None and holds(repaired))


def shrink(
    subject: ShrinkSubject,
    directory: Path,
    *,
    sources: str,
    resume: bool = False,
    budget: ShrinkBudget | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_progress: Callable[[ShrinkProgress], None] = lambda progress: None,
) -> ShrinkResult:
    """Shrink a subject, and leave journal and incident in `directory`.

    With `resume` it goes on where one was cut short; else there is to be none, whose result would be lost.
    `sources` names the version of the program, whose runs a resumed journal must be of; `clock` gives the seconds of
    the budget. Raises NotShrinkable, StoreError, and CannotResumeShrinking; KeyboardInterrupt, with the smallest
    incident so far in its file.
    """
    began_s = clock()
    check_begun(directory, resume=resume)
    subject_failing = failing(subject)
    journal = TrialJournal(directory, _identity(subject_failing, sources), resume=resume)
    path = directory / INCIDENT
    if not (resume and path.exists()):
        put_text(path, subject_failing.incident(subject_failing.start))
    runs_made = 0

    def count_run() -> None:
        nonlocal runs_made
        runs_made += 1

    def exhausted(_: int) -> bool:
        limit = budget or ShrinkBudget()
        if resume and not runs_made:  # it is not yet where the session before it ended
            return False
        return (limit.runs is not None and runs_made >= limit.runs) or (
            limit.seconds is not None and clock() - began_s >= limit.seconds
        )

    def note(progress: ShrinkProgress) -> None:
        if progress.accepted and runs_made:  # what the journal remembers is no larger
            put_text(path, subject_failing.incident(shrinker.smallest))
        on_progress(progress)

    predicate: Predicate = Reproduction(subject_failing.expect, repaired_holds=subject_failing.repaired_holds)
    shrinker = Shrinker(
        subject_failing.start,
        journal.remembering(predicate, count_run),
        exhausted=exhausted,
        on_progress=note,
    )
    shrunk = shrinker.shrink()
    put_text(path, subject_failing.incident(shrunk.smallest))
    unmet = unlike(path, shrunk.smallest)
    return ShrinkResult(subject_failing, shrunk, path, unmet, runs_made, clock() - began_s)


def unlike(path: Path, smallest: Reproducer) -> tuple[str, ...]:
    """Where the runs of an incident file are not as it says, or not byte for byte the one that it was made of."""
    incident = read_incident(parse_document(path.read_text(encoding="utf-8"), str(path)), path.stem)
    lines: list[str] = []
    for number, variant in enumerate(incident.variants):
        outcome = run_in_simulation(variant.spec)
        unmet = (
            (outcome.failure,)
            if outcome.failure
            else variant.expect.unmet(outcome.verdicts, outcome.signatures, outcome.stories)
        )
        lines += [f"{variant.name}: {line}" for line in unmet]
        if number == 0 and outcome.digest != smallest.sighting.digest:
            lines.append(f"{variant.name}: digest {outcome.digest}, not {smallest.sighting.digest}")
    return tuple(lines)


def _identity(subject: Failing, sources: str) -> dict[str, str]:
    return {
        "spec": subject.start.spec.to_yaml(),
        "expect": subject.expect.describe(),
        "repaired_holds": str(subject.repaired_holds),
        "sources": sources,
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def description(spec: Spec) -> str:
    """A few words: how large a spec is."""
    return (
        f"{_count(len(spec.script), 'fault')}, {_count(spec.brokers, 'broker')}, "
        f"{_count(spec.partitions, 'partition')}, "
        f"{_count(spec.producers + spec.consumers + spec.end_offset_readers, 'client')}, {spec.time_limit_s:g} s"
    )
