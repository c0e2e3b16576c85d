"""Makes an incident out of a recorded run: its spec with the faults that were drawn, and what the run showed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from checkers.verdict import Validity
from harness.client_spec import NATIVE
from harness.incidents.expectation import ACKNOWLEDGED_LOST, PASSED_UNREAD, Expectation, figure_of
from harness.spec import Spec, loads
from harness.yaml_document import SpecError
from images.system import Capability
from results.errors import StoreError
from results.explanation.signature import Signature, shown_signatures
from results.run import stored_yaml
from results.run.directory import RunDirectory


def incident_of(directory: RunDirectory) -> str:
    """The text of an incident file. Raises SpecError when the run has no schedule, StoreError when it has no spec."""
    schedule = directory.path / "schedule.yaml"
    if not schedule.exists():
        raise SpecError(f"{directory.path}: ended before its faults were drawn")
    spec = loads(schedule.read_text(encoding="utf-8"), str(schedule))
    expect = _with_permitted_losses(recorded_expectation(directory), directory)
    return incident_text(spec, expect, title=f"Found by {spec.name}, seed {spec.seed}")


def recorded_expectation(directory: RunDirectory) -> Expectation:
    """The verdict of a recorded run, and the signature of its failure. Raises StoreError, also for a run that was never
    checked: nothing has said what it shows."""
    verdicts = directory.verdicts()
    if not verdicts:
        raise StoreError(f"{directory.path}: was never checked; faultline check says what its recorded part shows")
    return Expectation().narrowed(verdicts, shown_signatures(verdicts, _of_stories(directory)))


def _with_permitted_losses(expect: Expectation, directory: RunDirectory) -> Expectation:
    """What a valid run lost with permission is what it shows."""
    if expect.verdict is not Validity.VALID:
        return expect
    verdicts = directory.verdicts()
    figures = {name: ">= 1" for name in (ACKNOWLEDGED_LOST, PASSED_UNREAD) if figure_of(name, verdicts)}
    return replace(expect, figures=figures)


def _of_stories(directory: RunDirectory) -> Iterator[Signature]:
    for story in directory.stories():
        yield from map(Signature.parse, story["signatures"])


def incident_text(spec: Spec, expect: Expectation, *, title: str, story: str = "", source: str = "") -> str:
    """An incident with one variant, as YAML: in simulation, where its system and its clients run there."""
    if Capability.SIMULATION in spec.deployed_system.capabilities and spec.clients.library == NATIVE:
        spec = replace(spec, environment="sim")
    fields = stored_yaml.parse(spec.to_yaml())
    values = {"title": title, "source": source, "story": story, **fields, "expect": expect.to_mapping()}
    del values["name"]
    return stored_yaml.dump(values)
