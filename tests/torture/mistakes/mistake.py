"""A mistake in the broker, with a small run in which a check finds it and in which the sound broker is valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from checkers.verdict import Finding, Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse

Patch = pytest.MonkeyPatch
Fault = dict[str, Any]

SMALL: Mapping[str, Any] = {"seed": 1, "time_limit": "10s", "recovery_limit": "5s", "partitions": 1}


@dataclass(frozen=True, slots=True)
class PlayedMistake:
    """The kind of finding, what is made of the broker, and the run that plays it."""

    kind: str
    make: Callable[[Patch], None]
    faults: Sequence[Fault] = ()
    """They break nothing by themselves."""
    world: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the spec, beside those of a `SMALL` run."""
    said: str = ""
    """Part of the finding, where checks of several rules have one kind."""

    @property
    def name(self) -> str:
        """For the id of a test."""
        return f"{self.kind}: {self.make.__name__.strip('_')}"

    def check_found(self, patch: Patch) -> None:
        """Fails unless the run with the mistake has a finding of the kind, and the run without it is valid."""
        sound = self._run()
        assert sound.validity is Validity.VALID, sound.verdicts
        self.make(patch)
        told = [" ".join(each.lines) for each in _findings(self._run()) if each.kind == self.kind]
        assert any(self.said in line for line in told), told

    def _run(self) -> Outcome:
        return run_in_simulation(parse({**SMALL, "faults": list(self.faults) or "none", **self.world}))


def _findings(outcome: Outcome) -> list[Finding]:
    return [finding for verdict in outcome.verdicts for finding in verdict.findings]
