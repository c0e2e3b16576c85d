"""The signature of a failure: two runs with the same one fail the same way.

It is the verdict, and the first finding that the verdict rests on: its check and its kind. Times, offsets and nodes are
no part of it, since a smaller run has others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from checkers.verdict import Finding, Validity, Verdict, worst


@dataclass(frozen=True, slots=True)
class FailureSignature:
    """See the module's docstring. An empty check or finding stands for any."""

    verdict: Validity
    check: str = ""
    finding: str = ""

    def shown_by(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether a run with these verdicts fails this way. It may have other findings, too."""
        return worst(verdict.validity for verdict in verdicts) is self.verdict and any(self.findings(verdicts))

    def findings(self, verdicts: Sequence[Verdict]) -> Iterator[tuple[str, Finding]]:
        """The findings among these verdicts that have the signature, each with its check."""
        for verdict in verdicts:
            if verdict.validity is self.verdict and self.check in ("", verdict.checker):
                for finding in verdict.findings:
                    if self.finding in ("", finding.kind):
                        yield verdict.checker, finding

    def narrowed(self, verdicts: Sequence[Verdict]) -> FailureSignature:
        """This signature with the check and the kind of the first finding that has it."""
        check, finding = next(self.findings(verdicts))
        return FailureSignature(self.verdict, check, finding.kind)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.finding or 'any finding'} of {self.check or 'any check'}"


def failure_signature(verdicts: Sequence[Verdict]) -> FailureSignature | None:
    """The signature of a run with these verdicts; None for one that is valid, or that was never checked."""
    signature = FailureSignature(worst(verdict.validity for verdict in verdicts))
    if signature.verdict is Validity.VALID or not signature.shown_by(verdicts):
        return None
    return signature.narrowed(verdicts)
