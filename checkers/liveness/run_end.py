"""The last seconds of a run's trace, in which every node has to have heard what others did before.

They end when the run begins to end the nodes' processes, which on a machine takes its time, one after the other. And
they begin anew with each time for which a process did not run, as nodes on machines trace it.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow.compute as pc

from checkers.evidence import RunEvidence
from checkers.tables import traced_stalls


class RunEnd(NamedTuple):
    """The end of a trace."""

    last_ns: int
    """Time of the last event that counts."""
    ran_since_ns: int
    """Since when every process has run."""

    def is_long_after(self, time_ns: int, patience_ns: int) -> bool:
        """Whether every process has run for longer than `patience_ns` since this time."""
        return max(time_ns, self.ran_since_ns) < self.last_ns - patience_ns


def run_end(evidence: RunEvidence, *, before_final_appends: bool = False) -> RunEnd:
    """The end of a run's trace, or what of it is before the final appends: these have leaders answer fetches of every
    partition, so that followers also hear what they were not told when it happened."""
    last_ns = pc.max(evidence.trace.column("time_ns")).as_py() or 0
    for name in ("collecting_seconds", *(["final_appends_seconds"] if before_final_appends else [])):
        if name in evidence.recovery:
            last_ns = min(last_ns, round(evidence.recovery[name] * 1e9))
    stalls = (stall for of_node in traced_stalls(evidence.trace).times.values() for stall in of_node)
    return RunEnd(last_ns, max((ended_ns for began_ns, ended_ns in stalls if began_ns <= last_ns), default=0))
