"""Every checker on one run.

Each is called by itself: one that crashes says `unknown` with the error, and the others are not disturbed. The verdict
on the run is the worst of all (`checkers.verdict.worst`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping

from checkers import availability, faults, groups, linearizability, liveness, logs, loss, protocol, reads
from checkers.evidence import RunEvidence
from checkers.judging import undecided
from checkers.verdict import Verdict

Checker = Callable[[RunEvidence], Verdict]

CHECKERS: Mapping[str, Checker] = {
    linearizability.NAME: linearizability.check,
    loss.NAME: loss.check,
    reads.NAME: reads.check,
    logs.NAME: logs.check,
    protocol.NAME: protocol.check,
    groups.NAME: groups.check,
    liveness.NAME: liveness.check,
    faults.NAME: faults.check,
    availability.NAME: availability.check,
}
"""In the order in which their verdicts are shown."""


def check(evidence: RunEvidence, checkers: Mapping[str, Checker] = CHECKERS) -> list[Verdict]:
    """One verdict a checker, in order. `protocol` is left out where the system offers no trace with one clock, and
    `groups` where no consumers form one: what is not offered is not looked at, and should not keep every run of that
    system or workload from being valid."""
    looked_at = {
        protocol.NAME: evidence.settings.trace_has_one_clock,
        groups.NAME: evidence.settings.groups,
    }
    offered = {name: checker for name, checker in checkers.items() if looked_at.get(name, True)}
    return [guarded(name, checker, evidence) for name, checker in offered.items()]


def guarded(name: str, checker: Checker, evidence: RunEvidence) -> Verdict:
    """What `checker` says, or `unknown` and why it could not."""
    try:
        return checker(evidence)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
        return undecided(
            name, f"the checker crashed: {type(error).__name__}: {error}", f"at {where} in {place.name}", kind="crashed"
        )
