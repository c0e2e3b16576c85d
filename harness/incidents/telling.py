"""Tells an incident: runs a variant and compares what it shows with what is expected.

In simulation a seed is one run, and one try is all there is. In Docker the machine has its say, too: a variant may take
some tries, each with the next seed, until a run is as expected. A run that breaks a promise where none is to be broken
ends them: no later run takes that back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from checkers.verdict import Validity
from harness.incidents.incident import Incident, Variant
from harness.runner.outcome import Outcome, ProgressListener
from harness.runner.run import run
from results.run.directory import RunDirectory


@dataclass(frozen=True, slots=True)
class Telling:
    """A variant, told."""

    incident: Incident
    variant: Variant
    outcome: Outcome
    unmet: tuple[str, ...]
    """What its last run does not show, a line each."""
    tries: int
    seconds: float
    cpu_seconds: float
    """Of this process: all of it in simulation."""

    @property
    def met(self) -> bool:
        """Whether the run could be carried out and shows what is expected."""
        return not self.unmet


def tell(
    incident: Incident,
    variant: Variant,
    store: Path,
    *,
    environment: str = "sim",
    on_progress: ProgressListener | None = None,
    report: bool = True,
) -> Telling:
    """Run a variant until a run is as expected, or the tries are used up. Raises StoreError."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    tries = 1 if environment == "sim" else max(1, incident.docker_tries)
    name = f"{incident.name}-{variant.spec.name}"
    for number in range(tries):
        spec = replace(variant.spec, name=name, environment=environment, seed=variant.spec.seed + number)
        directory = RunDirectory.create(store, spec.name, spec.seed)
        outcome = run(spec, directory, on_progress=on_progress, report=report)
        unmet = (
            (f"not carried out: {outcome.failure}",)
            if outcome.failure
            else variant.expect.unmet(outcome.verdicts, outcome.signatures)
        )
        if not unmet or (outcome.validity is Validity.INVALID and variant.expect.verdict is not Validity.INVALID):
            break
    seconds, cpu_seconds = time.monotonic() - began_s, time.process_time() - began_cpu_s
    return Telling(incident, variant, outcome, unmet, number + 1, seconds, cpu_seconds)
