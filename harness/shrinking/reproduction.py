"""Runs candidates in the simulation, and tells whether they fail the same way.

A candidate counts when its run is as expected and, where the spec has a flaw that can be taken away
(`without_flaw`), when the run without the flaw is valid: an incident that fails either way says nothing about the flaw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from checkers.verdict import Validity
from harness.incidents.expectation import Expectation
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.shrinking.passes import Sighting
from harness.shrinking.spec_size import GENERATION
from harness.spec import Spec
from results.explanation.signature import Signature


def without_flaw(spec: Spec) -> Spec | None:
    """The spec with all rules on and today's generation of the protocol everywhere; None when it has no such flaw."""
    repaired = replace(
        spec,
        without=(),
        mistakes=(),
        settings=_without_generation(spec.settings),
        node_settings={
            node: kept for node, settings in spec.node_settings.items() if (kept := _without_generation(settings))
        },
    )
    return None if repaired == spec else repaired


def _without_generation(settings: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name != GENERATION}


class Reproduction:
    """The predicate of the shrinker."""

    def __init__(self, expect: Expectation, *, repaired_holds: bool) -> None:
        """With `repaired_holds` a candidate without its flaw must be valid."""
        self._expect = expect
        self._same_cause = replace(expect, check="", finding="") if expect.cause != expect.finding else expect
        self._repaired_holds = repaired_holds

    def __call__(self, spec: Spec) -> Sighting | None:
        """What the run of a candidate shows, if it fails the same way, or of the same cause with another finding."""
        outcome = run_in_simulation(spec)
        if outcome.failure or self._same_cause.unmet(outcome.verdicts, outcome.signatures, outcome.stories):
            return None
        same_finding = not self._expect.unmet(outcome.verdicts, outcome.signatures, outcome.stories)
        seen = self._expect if same_finding else self._same_cause
        repaired = without_flaw(spec) if self._repaired_holds else None
        if repaired is not None and not holds(repaired):
            return None
        return replace(sighting_of(outcome, seen.signature), same_finding=same_finding)


def holds(spec: Spec) -> bool:
    """Whether a run of the spec is valid."""
    outcome = run_in_simulation(spec)
    return not outcome.failure and outcome.validity is Validity.VALID


def sighting_of(outcome: Outcome, signature: Signature) -> Sighting:
    """What a run that shows this signature shows of it."""
    time_ns, lines = next(_passages(outcome, signature))
    return Sighting(
        effective=frozenset(injection.number for injection in outcome.injections if injection.took_effect),
        resolved={injection.number: injection.detail["resolved"] for injection in outcome.injections},
        struck_s={
            injection.number: injection.detail["struck_s"]
            for injection in outcome.injections
            if injection.injected and "struck_s" in injection.detail
        },
        finding_s=time_ns / 1e9 if time_ns >= 0 else None,
        digest=outcome.digest or "",
        lines=lines,
    )


def _passages(outcome: Outcome, signature: Signature) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(time in ns or -1, lines) of the stories that tell the signature, then of findings that are their own cause."""
    for story in outcome.stories:
        for item in story.consequences:
            if signature.covers(story.signature_of(item)):
                yield item.time_ns, story.lines()
    for verdict in outcome.verdicts:
        for finding in verdict.findings:
            if signature.covers(Signature(verdict.checker, finding.kind, finding.kind)):
                yield finding.time_ns, finding.lines
