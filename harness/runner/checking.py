"""Checks the evidence of a run, explains what was violated, and saves both in its directory."""

from __future__ import annotations

from collections.abc import Sequence

from checkers.evidence import RunEvidence
from checkers.loss import LOST_FIGURES, NAME, lost_records
from checkers.registry import check
from checkers.tables import LOST
from checkers.verdict import Verdict
from results.explanation.stories import explain
from results.explanation.story import Story, stories_to_json
from results.run.directory import RunDirectory


def check_and_save(evidence: RunEvidence, directory: RunDirectory) -> list[Verdict]:
    """Run every checker, and save the verdicts and the lost records in the run directory. Raises StoreError."""
    verdicts = check(evidence)
    save(verdicts, evidence, directory)
    return verdicts


def save(verdicts: Sequence[Verdict], evidence: RunEvidence, directory: RunDirectory) -> None:
    """Save the verdicts, and the records that they find lost in the evidence. Raises StoreError."""
    directory.write_verdict(verdicts)
    lost = any(
        verdict.figures.get(figure) for verdict in verdicts if verdict.checker == NAME for figure in LOST_FIGURES
    )
    directory.write_lost(lost_records(evidence) if lost else LOST.empty_table())


def explain_and_save(verdicts: Sequence[Verdict], evidence: RunEvidence, directory: RunDirectory) -> tuple[Story, ...]:
    """Tell what was violated as stories, cause first, and save them in the run directory. Raises StoreError."""
    stories = explain(verdicts, evidence)
    directory.write_stories(stories_to_json(stories))
    return stories
