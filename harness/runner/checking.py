"""Checks the evidence of a run and saves the verdicts in its directory."""

from __future__ import annotations

from checkers.evidence import RunEvidence
from checkers.loss import NAME, lost_records
from checkers.registry import check
from checkers.tables import LOST
from checkers.verdict import Verdict
from results.run.directory import RunDirectory


def check_and_save(evidence: RunEvidence, directory: RunDirectory) -> list[Verdict]:
    """Run every checker, and save the verdicts and the lost records in the run directory. Raises StoreError."""
    verdicts = check(evidence)
    lost = any(verdict.checker == NAME and verdict.figures.get("lost") for verdict in verdicts)
    directory.write_lost(lost_records(evidence) if lost else LOST.empty_table())
    directory.write_verdict(verdicts)
    return verdicts
