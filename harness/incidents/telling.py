"""Tells an incident: runs a variant and compares what it shows with what is expected.

In simulation a seed is one run, and one try is all there is. In Docker the machine has its say, too: a variant may take
some tries, each with the next seed, until a run is as expected. A run that breaks a promise where none is to be broken
ends them: no later run takes that back. Where a number of tries is asked for, all of them are made, and counted.

One run decides what a variant shows: the first that breaks such a promise, else the first that is as expected, else the
last.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from checkers.verdict import Validity
from harness.incidents.expectation import ACKNOWLEDGED_LOST, figure_of
from harness.incidents.incident import Incident, Variant
from harness.runner.outcome import Outcome, ProgressListener
from harness.runner.run import run
from results.run.directory import RunDirectory


class _Weight(IntEnum):
    """How much a run counts beside the others of its variant."""

    SOMETHING_ELSE = 0
    AS_EXPECTED = 1
    BROKEN = 2


@dataclass(frozen=True, slots=True)
class TryResult:
    """One run of a variant."""

    validity: str
    """Its verdict, or `failed` when it could not be carried out."""
    acknowledged_lost: int
    """Acknowledged records that it lost."""
    met: bool
    """Whether it shows what is expected."""


@dataclass(frozen=True, slots=True)
class Telling:
    """A variant, told."""

    incident: Incident
    variant: Variant
    outcome: Outcome
    """Of the run that decides."""
    unmet: tuple[str, ...]
    """What that run does not show, a line each."""
    results: tuple[TryResult, ...]
    seconds: float
    cpu_seconds: float
    """Of this process: all of it in simulation."""

    @property
    def tries(self) -> int:
        """The number of its runs."""
        return len(self.results)

    @property
    def met(self) -> bool:
        """Whether the run that decides could be carried out and shows what is expected."""
        return not self.unmet


def tell(
    incident: Incident,
    variant: Variant,
    store: Path,
    *,
    tries: int | None = None,
    on_progress: ProgressListener | None = None,
    report: bool = True,
) -> Telling:
    """Run a variant until a run is as expected, or as often as the incident allows; or so many `tries`. Raises
    StoreError."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    in_simulation = variant.spec.environment == "sim"
    tries_max = tries or (1 if in_simulation else max(1, incident.docker_tries))
    name = f"{incident.name}-{variant.spec.name}"
    results: list[TryResult] = []
    deciding: tuple[_Weight, Outcome, tuple[str, ...]] | None = None
    for number in range(tries_max):
        spec = replace(variant.spec, name=name, seed=variant.spec.seed + number)
        directory = RunDirectory.create(store, spec.name, spec.seed)
        outcome = run(spec, directory, on_progress=on_progress, report=report)
        unmet = (
            (f"not carried out: {outcome.failure}",)
            if outcome.failure
            else variant.expect.unmet(outcome.verdicts, outcome.signatures, outcome.stories)
        )
        lost = figure_of(ACKNOWLEDGED_LOST, outcome.verdicts)
        validity = "failed" if outcome.failure else str(outcome.validity)
        results.append(TryResult(validity, round(lost or 0), not unmet))
        broken = outcome.validity is Validity.INVALID and variant.expect.verdict is not Validity.INVALID
        weight = _Weight.AS_EXPECTED if not unmet else _Weight.BROKEN if broken else _Weight.SOMETHING_ELSE
        if deciding is None or weight > deciding[0] or weight is _Weight.SOMETHING_ELSE is deciding[0]:
            deciding = (weight, outcome, unmet)
        if tries is None and weight is not _Weight.SOMETHING_ELSE:
            break
    assert deciding is not None
    _, outcome, unmet = deciding
    seconds, cpu_seconds = time.monotonic() - began_s, time.process_time() - began_cpu_s
    return Telling(incident, variant, outcome, unmet, tuple(results), seconds, cpu_seconds)
