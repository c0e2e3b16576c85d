"""The headline of a run: its verdict, and what a reader must know with it.

A verdict alone says too little where it rests on little, where records were lost with permission, or where most faults
did nothing:

    valid; 751 acknowledged records lost, permitted by acks=1 and unclean election
    valid; 32 of 1,200 planned appends were acknowledged
    valid; 8 of 290 acknowledged records were read before the final reads
    valid; 43 of 45 faults missed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checkers.evidence import CheckSettings
from checkers.verdict import Verdict, worst

_LITTLE_SHARE = 0.25
"""A verdict that rests on less than this share of the planned appends, or on reads of less than this share of what was
acknowledged, says so."""


def headline(verdicts: Sequence[Verdict], settings: CheckSettings) -> str:
    """The verdict on a run, and each remark after a semicolon."""
    return "; ".join([str(worst(verdict.validity for verdict in verdicts)), *remarks(verdicts, settings)])


def remarks(verdicts: Sequence[Verdict], settings: CheckSettings) -> Iterator[str]:
    """What belongs beside the verdict, without it; nothing in most runs."""
    figures = {verdict.checker: verdict.figures for verdict in verdicts}
    loss, faults = figures.get("loss", {}), figures.get("faults", {})
    lost = loss.get("acknowledged_lost_allowed", 0) + loss.get("allowed", 0)
    if lost:
        reasons = [f"acks={settings.acks}"] if settings.acks != -1 else []
        # Without such a setting an administrator may have asked for one.
        reasons += ["unclean election"] if settings.unclean_election or not reasons else []
        yield f"{lost:,.0f} acknowledged {_records(lost)} lost, permitted by {' and '.join(reasons)}"
    availability, planned = figures.get("availability", {}), settings.planned_appends
    acknowledged, read = availability.get("ok"), availability.get("read")
    if acknowledged is not None and acknowledged < _LITTLE_SHARE * planned:
        yield f"{acknowledged:,.0f} of {planned:,} planned appends were acknowledged"
    if settings.consumers and acknowledged is not None and read is not None and read < _LITTLE_SHARE * acknowledged:
        records = f"acknowledged {_records(acknowledged)}"
        yield f"{read:,.0f} of {acknowledged:,.0f} {records} were read before the final reads"
    injected, missed = faults.get("injected", 0), faults.get("missed", 0)
    if 2 * missed > injected:
        yield f"{missed:,.0f} of {injected:,.0f} faults missed"


def _records(count: float) -> str:
    return "record" if count == 1 else "records"
