"""Runs candidates in the simulation, and tells whether they fail the same way.

A candidate counts when its run has the signature and, where the spec has a flaw that can be taken away
(`without_flaw`), when the run without the flaw is valid: an incident that fails either way says nothing about the flaw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.runner.signature import FailureSignature
from harness.shrinking.passes import Sighting
from harness.spec import Spec

_GENERATION: Final = "faultline.protocol"


def without_flaw(spec: Spec) -> Spec | None:
    """The spec with all rules on and today's generation of the protocol everywhere; None when it has no such flaw."""
    repaired = replace(
        spec,
        without=(),
        settings=_without_generation(spec.settings),
        node_settings={
            node: kept for node, settings in spec.node_settings.items() if (kept := _without_generation(settings))
        },
        clients=replace(spec.clients, validate_positions=True),
    )
    return None if repaired == spec else repaired


def _without_generation(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name != _GENERATION}


class Reproduction:
    """The predicate of the shrinker."""

    def __init__(self, signature: FailureSignature, *, repaired_holds: bool) -> None:
        """With `repaired_holds` a candidate without its flaw must be valid."""
        self._signature = signature
        self._repaired_holds = repaired_holds

    def __call__(self, spec: Spec) -> Sighting | None:
        """What the run of a candidate shows, if it fails the same way."""
        outcome = run_in_simulation(spec)
        if outcome.failure or not self._signature.shown_by(outcome.verdicts):
            return None
        repaired = without_flaw(spec) if self._repaired_holds else None
        if repaired is not None and not holds(repaired):
            return None
        return sighting_of(outcome, self._signature)


def holds(spec: Spec) -> bool:
    """Whether a run of the spec is valid."""
    outcome = run_in_simulation(spec)
    return not outcome.failure and outcome.validity is Validity.VALID


def sighting_of(outcome: Outcome, signature: FailureSignature) -> Sighting:
    """What a run with this signature shows."""
    _, finding = next(signature.findings(outcome.verdicts))
    return Sighting(
        effective=frozenset(injection.number for injection in outcome.injections if injection.took_effect),
        resolved={injection.number: injection.detail["resolved"] for injection in outcome.injections},
        finding_s=finding.time_ns / 1e9 if finding.time_ns >= 0 else None,
        digest=outcome.digest or "",
        lines=finding.lines,
    )
