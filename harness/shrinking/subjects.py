"""The subject of shrinking: a run directory, a run of a suite, or a variant of an incident."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from checkers.verdict import Validity
from harness.incidents.expectation import Expectation
from harness.incidents.incident import Incident, library, load_incident, plain
from harness.incidents.recording import recorded_expectation
from harness.spec import Spec, loads
from harness.suites.stored_spec import stored_spec
from harness.yaml_document import SpecError
from results.errors import StoreError
from results.run.directory import RunDirectory


@dataclass(frozen=True, slots=True)
class ShrinkSubject:
    """A run that failed, or an incident that fails."""

    name: str
    """As it can stand in a path."""
    origin: str
    """For people: the run or the incident it comes from."""
    spec: Spec
    expect: Expectation = field(default_factory=Expectation)
    """How it is to fail; what is left open is as in its run."""


def subject_of(target: str, store: Path, variant: str | None = None) -> ShrinkSubject:
    """The subject that a RUN_DIR, a SUITE/RUN or an INCIDENT (a file or a shipped name) stands for.

    Raises StoreError or SpecError, one line each, when there is no such subject, or none that fails.
    """
    path = Path(target)
    if path.is_dir():
        return _of_run(RunDirectory.open(path))
    if path.exists() or target in library():
        return _of_incident(load_incident(target), variant)
    if "/" in target and path.suffix not in (".yaml", ".yml"):
        stored = stored_spec(store, target)
        return ShrinkSubject(plain(target), f"the run {target}", stored.spec)
    raise SpecError(f"{target}: is no run directory, no SUITE/RUN, no file, and no shipped incident")


def _of_run(directory: RunDirectory) -> ShrinkSubject:
    expect = recorded_expectation(directory)
    if not expect.finding:
        raise StoreError(f"{directory.path}: no check of this run has failed with a finding, so nothing can be shrunk")
    spec = loads(directory.read_spec_text(), str(directory.spec_path))
    return ShrinkSubject(directory.name, f"the run {directory.name}", spec, expect)


def _of_incident(incident: Incident, wanted: str | None) -> ShrinkSubject:
    failing = [each for each in incident.variants if each.expect.verdict not in (None, Validity.VALID)]
    chosen = [each for each in failing if wanted in (None, each.name)]
    if not failing:
        raise SpecError(f"{incident.name}: no variant expects the verdict invalid or unknown, so nothing can be shrunk")
    if not chosen:
        names = ", ".join(each.name for each in failing)
        blamed = f"{incident.name}, {wanted}" if wanted else incident.name
        raise SpecError(f"{blamed}: is none of the variants that are expected to fail: {names}")
    variant = chosen[0]
    name = f"{incident.name}-{plain(variant.name)}"
    return ShrinkSubject(name, f"the incident {incident.name}, {variant.name}", variant.spec, variant.expect)
