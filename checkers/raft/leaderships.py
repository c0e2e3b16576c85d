"""Promises about the end of a leadership of the controllers' quorum, for `checkers.raft`, whose table has them.

A leader that a majority has left cannot commit. From the election of the next one on, that majority sends it no fetch
any more; what was under way then arrives late at most once for each of the others. So it finds out by itself that its
quorum is gone, and resigns, although nobody can tell it: else brokers stay with it, and no change of theirs takes
effect.

A leader whose process has stalled takes in what has arrived meanwhile, and begins to wait anew: so the limit is held to
the longest time between two stalls. One whose process has started again led until that had ended, and nothing tells how
long the start took after a fault: it is held to the limit if there was no stall at all.

Blind spots: a leader that lost its majority when nobody else was elected; one that a fault of its clock may have kept
from finding out; one that found out by a look that was late on a busy machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import FaultTimes, TraceRow, trace_rows
from checkers.verdict import Finding

_ROLES: Final = (
    "quorum_recovered", "quorum_voted", "quorum_candidate", "quorum_leader", "quorum_follower", "quorum_resigned",
    "quorum_unattached",
)  # fmt: skip
_FIRST_TIMEOUTS: Final = 2.0
"""A leader waits for one and a half fetch timeouts, and looks every half of one."""
_TIMEOUTS_OF_A_LATE_FETCH: Final = 1.5
_OF_CONTROLLERS: Final = (*_ROLES, "metadata_appended", "metadata_committed")


def controllers_started(trace: pa.Table) -> int:
    """How many controllers ever started."""
    of_controllers = pc.is_in(trace.column("kind"), value_set=pa.array(_OF_CONTROLLERS))
    return len(pc.unique(trace.filter(of_controllers).column("node")))


def leadership_findings(
    trace: pa.Table, started: int, wrong_timers: FaultTimes, stalls: FaultTimes
) -> Iterator[Finding]:
    """Every leadership in the trace (schema TRACE) of `started` controllers that went on too long after the next one
    began, by timers that ran right, in a process that ran on without a stall for as long."""
    leading: dict[str, TraceRow] = {}
    deposed: dict[str, TraceRow] = {}
    for event in trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_ROLES)))):
        election, end = leading.pop(event.node, None), deposed.pop(event.node, None)
        runs_true = end is not None and not wrong_timers.between(event.node, end.time_ns, event.time_ns)
        if election is not None and end is not None and runs_true:
            timeouts = _FIRST_TIMEOUTS + _TIMEOUTS_OF_A_LATE_FETCH * (started - 1)
            limit_ns = round(timeouts * election.details()["fetch_timeout_ms"] * 1_000_000)
            started_again = event.kind == "quorum_recovered" and stalls.between(event.node, end.time_ns, event.time_ns)
            ran_ns = 0 if started_again else stalls.longest_without_ns(event.node, end.time_ns, event.time_ns)
            if "check_overdue_ms" not in event.details() and ran_ns > limit_ns:
                yield Finding(
                    "led-without-quorum",
                    (
                        f"{event.node} led in controller epoch {election.leader_epoch} until {event.time_ns / 1e9:.6f} "
                        f"s ({event.kind})",
                        f"{end.node} was elected in controller epoch {end.leader_epoch} {end.at}: a majority had left "
                        f"{event.node} for longer than {timeouts:g} fetch timeouts",
                    ),
                    time_ns=event.time_ns,
                )
        if event.kind == "quorum_leader":
            for node, earlier in leading.items():
                if earlier.leader_epoch < event.leader_epoch:
                    deposed.setdefault(node, event)
            if "fetch_timeout_ms" in event.details():
                leading[event.node] = event
