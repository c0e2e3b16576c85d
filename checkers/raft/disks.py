"""Promises about what controllers have on their disks, for `checkers.raft`, whose table has them.

A vote that is forgotten, and a record that counts for a majority and is lost, break the quorum only if the power goes
at the right moment, so the disk is asked at once.

Blind spots: all but simulated disks, and those that have lied about a sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import trace_rows
from checkers.verdict import Finding

_SAYING: Final = {
    "metadata_appended": "appended to its metadata log",
    "metadata_snapshot": "wrote a snapshot",
    "quorum_voted": "voted",
    "quorum_follower": "followed a leader",
}


def disk_findings(trace: pa.Table) -> Iterator[Finding]:
    """Every event in a trace (schema TRACE) that says of something that it is on the disk, and it is not."""
    told = pc.is_in(trace.column("kind"), value_set=pa.array(list(_SAYING)))
    at_risk = pc.match_substring(trace.column("detail"), '"at_risk"')
    for event in trace_rows(trace.filter(pc.and_(told, at_risk))):
        did = f"{event.node} {_SAYING[event.kind]} in controller epoch {event.leader_epoch} {event.at}"
        yield Finding("metadata-not-on-disk", (did, event.power_loss), time_ns=event.time_ns)
