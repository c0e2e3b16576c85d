"""What a simulated disk holds of that which its node says is on it.

A node that takes for synced what it has not synced does harm only if its power goes at the right moment. The disk knows
better at once: events by which a node says that something is on its disk (`images.trace`) get `at_risk`, the files for
which that is not so. A disk that has lied about a sync is no witness.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from harness.simulation.storage.disk import SimDisk
from images.trace import TraceEvent

_METADATA: Final = "__cluster_metadata-0"
"""Kafka's name of the directory with the log of the controllers, their votes and their snapshots."""
_DELETION: Final = "replica_deleted"
_FILES: Final[Mapping[str, str]] = {
    "appended": ".log",
    "log_closed": ".log",
    "log_recovered": ".log",
    "log_start_written": "log-start-checkpoint",
    "metadata_appended": ".log",
    "metadata_snapshot": ".checkpoint",
    "quorum_voted": "quorum-state",
    "quorum_follower": "quorum-state",
}
"""Kind of event → how the names of the files end of which it says that they are on the disk."""
_IF_SYNCED: Final = frozenset({"appended", "log_closed"})
"""Those that say so with `synced` alone."""
_NAMED: Final = "synced_segments"
"""Names of the files of which an event says so, where it does not of all."""


def witnessed(event: TraceEvent, disk: SimDisk) -> TraceEvent:
    """The event, with what a loss of power would take, or bring back, in spite of what it says."""
    if event.kind not in _FILES and event.kind != _DELETION:
        return event
    if disk.counters.lies or (event.kind in _IF_SYNCED and not event.detail.get("synced")):
        return event
    directory = f"{event.topic}-{event.partition}" if event.topic else _METADATA
    if event.kind == _DELETION:
        at_risk = [directory] if disk.may_come_back(directory) else []
    else:
        said = event.detail.get(_NAMED)
        at_risk = [
            f"{directory}/{name}"
            for name in disk.at_risk(directory)
            if (name in said if isinstance(said, list) else name.endswith(_FILES[event.kind]))
        ]
    return event._replace(detail={**event.detail, "at_risk": at_risk}) if at_risk else event
