"""Makes an incident out of a recorded run: its spec with the faults that were drawn, and what the run showed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import yaml

from checkers.verdict import Validity, Verdict, worst
from harness.incidents.expectation import Expectation
from harness.spec import Spec, loads
from harness.yaml_document import SpecError
from results.run.directory import RunDirectory


def incident_of(directory: RunDirectory) -> str:
    """The text of an incident file. Raises SpecError when the run has no schedule, StoreError when it has no spec."""
    schedule = directory.path / "schedule.yaml"
    if not schedule.exists():
        raise SpecError(f"{directory.path}: ended before its faults were drawn")
    spec = loads(schedule.read_text(encoding="utf-8"))
    return incident_text(spec, expectation_of(directory.verdicts()), title=f"Found by {spec.name}, seed {spec.seed}")


def expectation_of(verdicts: Sequence[Verdict]) -> Expectation:
    """The verdict, and the first finding that it rests on."""
    answer = worst(verdict.validity for verdict in verdicts)
    for verdict in verdicts:
        if answer is not Validity.VALID and verdict.validity is answer and verdict.findings:
            return Expectation(verdict=answer, check=verdict.checker, finding=verdict.findings[0].kind)
    return Expectation(verdict=answer)


def incident_text(spec: Spec, expect: Expectation, *, title: str, story: str = "", source: str = "") -> str:
    """An incident with one variant, as YAML."""
    fields = yaml.safe_load(replace(spec, environment="sim").to_yaml())
    values = {"title": title, "source": source, "story": story, **fields, "expect": expect.to_mapping()}
    del values["name"]
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
