"""The signature of a failure: check, finding and cause. Two runs with the same one fail the same way.

Times, offsets and nodes are no part of it: another run of the same failure has others. It is one notion everywhere:
suites group failures by it, shrinking keeps it, and the `expect` of an incident asks for it.

A run shows a signature for every finding of a story, with the broken step that is the cause of the story, and the
story's own one first. A finding whose story has no step, or that no story tells (a reason for not deciding, mostly), is
its own cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from checkers.verdict import Validity, Verdict, worst


@dataclass(frozen=True, slots=True)
class Signature:
    """See the module's docstring. An empty part stands for any."""

    check: str = ""
    """Of a story: the check nearest to the cause that found something."""
    finding: str = ""
    """The kind of the finding; of a story: that of the first one of its check."""
    cause: str = ""
    """The kind of the broken step; the finding's own kind where no step in the trace is at fault."""

    def __str__(self) -> str:
        return f"{self.check}/{self.finding}/{self.cause}"

    @classmethod
    def parse(cls, text: str) -> Signature:
        """The inverse of `str`. Raises ValueError."""
        check, finding, cause = text.split("/")
        return cls(check, finding, cause)

    def covers(self, other: Signature) -> bool:
        """Whether every part that is given here is the same there."""
        return (
            self.check in ("", other.check) and self.finding in ("", other.finding) and self.cause in ("", other.cause)
        )


def shown_signatures(verdicts: Sequence[Verdict], of_stories: Iterable[Signature]) -> tuple[Signature, ...]:
    """All signatures that a run shows: those of its stories, then its other findings, each its own cause."""
    signatures = tuple(of_stories)
    told = {(signature.check, signature.finding) for signature in signatures}
    untold = dict.fromkeys(
        Signature(verdict.checker, finding.kind, finding.kind)
        for verdict in verdicts
        for finding in verdict.findings
        if (verdict.checker, finding.kind) not in told
    )
    return (*signatures, *untold)


def failure_signature(verdicts: Sequence[Verdict], signatures: Iterable[Signature]) -> Signature | None:
    """The first of these signatures whose check has the worst of the verdicts; None when that is valid."""
    answer = worst(verdict.validity for verdict in verdicts)
    decisive = {verdict.checker for verdict in verdicts if verdict.validity is answer}
    if answer is Validity.VALID:
        return None
    return next((signature for signature in signatures if signature.check in decisive), None)
