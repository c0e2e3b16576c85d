"""What each box found in one run of a broker known to be wrong: judged from the same evidence.

The *white box* is the checkers that rest on the protocol trace wherever there is one: not `processes`, which asks the
network, and otherwise sees processes end. The *black box* is every checker on the same evidence with the trace taken
away, as if the system wrote none: the history of the clients and the replicas' logs.
Without a trace nobody knows when a replica lost which records, so losses excuse more there. *Together* is the verdict
of every run: what clients saw, with the trace to say what is excused; so it may find what neither box finds alone.

Of each the first finding counts: the earliest, or else the first by the order of the checkers. A box that has found
nothing says so by an empty text. Only an invalid run is judged again: what the trace excuses is no violation.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from checkers.verdict import Validity, Verdict, worst

if TYPE_CHECKING:
    from checkers.evidence import RunEvidence

TOGETHER: Final = "together"
WHITE: Final = "white"
BLACK: Final = "black"
BOXES: Final = (TOGETHER, WHITE, BLACK)
CPU_SECONDS: Final = "whole_cpu_seconds"
"""Of the run with its checks and its two judgements."""


def boxed_facts(evidence: RunEvidence, verdicts: Iterable[Verdict], began_s: float) -> dict[str, Any]:
    """The facts that are stored with a run: the first finding of each box as `checker: kind`, and the CPU seconds since
    `began_s` of this process."""
    from checkers import processes
    from checkers.evidence import EvidencePart
    from checkers.registry import RESTS_ON, check

    verdicts = list(verdicts)
    of_trace = {name for name, parts in RESTS_ON.items() if EvidencePart.TRACE in parts} - {processes.NAME}
    white = [each for each in verdicts if each.checker in of_trace]
    invalid = bool(verdicts) and worst(each.validity for each in verdicts) is Validity.INVALID
    black = check(without_trace(evidence)) if invalid else ()
    found = {TOGETHER: _first(verdicts), WHITE: _first(white), BLACK: _first(black)}
    return {**found, CPU_SECONDS: round(time.process_time() - began_s, 3)}


def without_trace(evidence: RunEvidence) -> RunEvidence:
    """The evidence as of a system that writes no trace."""
    return replace(evidence, trace=evidence.trace.slice(0, 0), settings=replace(evidence.settings, has_trace=False))


def _first(verdicts: Iterable[Verdict]) -> str:
    findings = [
        (finding.time_ns if finding.time_ns >= 0 else float("inf"), number, f"{verdict.checker}: {finding.kind}")
        for number, verdict in enumerate(verdicts)
        if verdict.validity is Validity.INVALID
        for finding in verdict.findings
    ]
    return min(findings)[2] if findings else ""
