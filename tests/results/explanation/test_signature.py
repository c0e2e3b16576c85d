"""Signatures of failures: what a run shows, and which of it the failure is."""

from __future__ import annotations

from checkers.verdict import Finding, Validity, Verdict
from results.explanation.signature import Signature, failure_signature, shown_signatures


def _verdict(checker: str, validity: Validity, *kinds: str) -> Verdict:
    return Verdict(checker, validity, tuple(Finding(kind, ()) for kind in kinds))


STUCK = _verdict("liveness", Validity.UNKNOWN, "no-progress")
LOST = _verdict("loss", Validity.INVALID, "lost-append", "cut")
ELECTED = Signature("loss", "lost-append", "elected-outside-isr")


def test_a_finding_that_no_story_tells_is_its_own_cause() -> None:
    assert shown_signatures([STUCK, LOST], [ELECTED]) == (
        ELECTED,
        Signature("liveness", "no-progress", "no-progress"),
        Signature("loss", "cut", "cut"),
    )


def test_the_signature_of_a_failure_is_the_first_that_the_worst_verdict_rests_on() -> None:
    undecided = Signature("liveness", "no-progress", "no-progress")
    assert failure_signature([STUCK, LOST], [undecided, ELECTED]) == ELECTED
    assert failure_signature([STUCK], [undecided]) == undecided
    assert failure_signature([_verdict("loss", Validity.VALID, "note")], [ELECTED]) is None
    assert failure_signature([LOST], []) is None


def test_an_empty_part_of_a_signature_stands_for_any() -> None:
    assert Signature().covers(ELECTED)
    assert Signature(cause="elected-outside-isr").covers(ELECTED)
    assert not Signature("loss", cause="unclean-election").covers(ELECTED)
    assert Signature.parse(str(ELECTED)) == ELECTED
