"""One anomaly: the edit of a recorded run, and the finding that must name it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from checkers.evidence import RunEvidence
from checkers.registry import CHECKERS, run_checker
from checkers.verdict import Validity, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class Injection:
    """A recorded run with one anomaly in it."""

    evidence: RunEvidence
    line: str
    """The edit, in words."""
    topic: str = ""
    partition: int = -1
    offset: int = -1
    """The offset that the finding must name; -1 for any."""
    operation: int = -1
    """The operation that the finding must name; -1 for any."""


Inject = Callable[[RunEvidence, Random], Injection | None]
"""Edits the evidence at a random place; None when the run has no fitting place."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A broken promise, and the finding of the checker that must report it."""

    name: str
    checker: str
    finding: str
    inject: Inject

    def injected(self, evidence: RunEvidence, seed: int) -> Injection | None:
        """The run with this anomaly at the place that `seed` draws; the same for the same seed."""
        return self.inject(evidence, Random(f"{self.name}/{seed}"))

    def verdict(self, injection: Injection) -> Verdict:
        """The verdict of the anomaly's checker alone."""
        return run_checker(self.checker, CHECKERS[self.checker], injection.evidence)

    def is_found(self, injection: Injection, verdict: Verdict) -> bool:
        """Whether the verdict is `invalid` with the anomaly's finding, which names the place of the injection."""
        return verdict.validity is Validity.INVALID and any(
            finding.kind == self.finding
            and injection.partition in (-1, finding.partition)
            and (injection.offset == -1 or injection.offset in finding.offsets)
            and (injection.operation == -1 or injection.operation in finding.operations)
            for finding in verdict.findings
        )
