"""From what a run left to its verdicts, kept in its directory."""

from __future__ import annotations

from checkers.evidence import RunEvidence
from checkers.loss import NAME, lost_records
from checkers.suite import check
from checkers.tables import LOST
from checkers.verdict import Verdict
from results.run.directory import RunDirectory


def judge(evidence: RunEvidence) -> list[Verdict]:
    """The verdict of every checker on one run."""
    return check(evidence)


def judge_and_keep(evidence: RunEvidence, directory: RunDirectory) -> list[Verdict]:
    """`judge`, and leave the verdicts and the records lost in the run's directory. Raises StoreError."""
    verdicts = judge(evidence)
    lost = any(verdict.checker == NAME and verdict.figures.get("lost") for verdict in verdicts)
    directory.write_lost(lost_records(evidence) if lost else LOST.empty_table())
    directory.write_verdict(verdicts)
    return verdicts
