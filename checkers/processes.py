"""Processes: each ended only when it was stopped.

process-crashed  a node's process ended by itself: a finding even where it broke no promise about the log

The verdict is `unknown` when the run ended before that was recorded.

Blind spots: a process that hangs.
"""

from __future__ import annotations

from checkers.evidence import RunEvidence
from checkers.verdict import Finding, Validity, Verdict

NAME = "processes"


def check(evidence: RunEvidence) -> Verdict:
    """The whole run."""
    recovery = evidence.recovery
    if "crashes" not in recovery:
        note = Finding("unfinished", ("the run ended before its processes were accounted for",))
        return Verdict(NAME, Validity.UNKNOWN, (note,))
    crashes = recovery["crashes"]
    findings = tuple(
        Finding(
            kind="process-crashed",
            lines=(f"{crash['node']} ended by itself at {crash['time_ns'] / 1e9:.3f} s", *_last_line(crash["error"])),
            time_ns=crash["time_ns"],
        )
        for crash in crashes[:12]
    )
    return Verdict(NAME, Validity.INVALID if crashes else Validity.VALID, findings, {"crashes": float(len(crashes))})


def _last_line(error: str) -> tuple[str, ...]:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    where = [line for line in lines if line.startswith("File ")]
    return tuple(line for line in (lines[-1:] + where[-1:]) if line)
