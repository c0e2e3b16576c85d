"""From what a run left to its verdicts: every checker, and what only the runner saw.

The one judgement that is the runner's own is `processes`: a node whose process ended by itself crashed, and a crash is
a finding even where no promise about the log was broken by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkers.evidence import RunEvidence
from checkers.verdict import Finding, Validity, Verdict
from results.rundir import RunDirectory


def judge(evidence: RunEvidence) -> list[Verdict]:
    """The verdict of every checker on one run."""
    # Imported here: checkers bring numpy and Arrow, which `faultline --help` need not wait for.
    from checkers.suite import check

    return [*check(evidence), processes(evidence.recovery)]


def judge_and_keep(evidence: RunEvidence, directory: RunDirectory) -> list[Verdict]:
    """`judge`, and leave the verdicts and the records lost in the run's directory. Raises StoreError."""
    from checkers.loss import NAME, lost_records
    from checkers.tables import LOST

    verdicts = judge(evidence)
    lost = any(verdict.checker == NAME and verdict.figures.get("lost") for verdict in verdicts)
    directory.write_lost(lost_records(evidence) if lost else LOST.empty_table())
    directory.write_verdict(verdicts)
    return verdicts


def processes(recovery: Mapping[str, Any]) -> Verdict:
    """Whether every process ended only when it was told to; `unknown` when the run ended before that was noted."""
    if "crashes" not in recovery:
        note = Finding("unfinished", ("the run ended before its processes were accounted for",))
        return Verdict("processes", Validity.UNKNOWN, (note,))
    crashes = recovery["crashes"]
    findings = tuple(
        Finding(
            kind="process-crashed",
            lines=(f"{crash['node']} ended by itself at {crash['time_ns'] / 1e9:.3f} s", *_last_line(crash["error"])),
            time_ns=crash["time_ns"],
        )
        for crash in crashes[:12]
    )
    return Verdict(
        "processes", Validity.INVALID if crashes else Validity.VALID, findings, {"crashes": float(len(crashes))}
    )


def _last_line(error: str) -> tuple[str, ...]:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    where = [line for line in lines if line.startswith("File ")]
    return tuple(line for line in (lines[-1:] + where[-1:]) if line)
