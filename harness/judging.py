"""From what a run left to its verdicts, kept in its directory."""

from __future__ import annotations

from checkers.evidence import RunEvidence
from checkers.verdict import Verdict
from results.rundir import RunDirectory


def judge(evidence: RunEvidence) -> list[Verdict]:
    """The verdict of every checker on one run."""
    # Imported here: checkers bring numpy and Arrow, which `faultline --help` need not wait for.
    from checkers.suite import check

    return check(evidence)


def judge_and_keep(evidence: RunEvidence, directory: RunDirectory) -> list[Verdict]:
    """`judge`, and leave the verdicts and the records lost in the run's directory. Raises StoreError."""
    from checkers.loss import NAME, lost_records
    from checkers.tables import LOST

    verdicts = judge(evidence)
    lost = any(verdict.checker == NAME and verdict.figures.get("lost") for verdict in verdicts)
    directory.write_lost(lost_records(evidence) if lost else LOST.empty_table())
    directory.write_verdict(verdicts)
    return verdicts
