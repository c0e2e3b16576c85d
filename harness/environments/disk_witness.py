"""What a simulated disk holds of that which its node says is on it.

A node that takes for synced what it has not synced does harm only if its power goes at the right moment. The disk knows
better at once: events by which a node says that something is on its disk (`images.trace`) get `at_risk`, the files for
which that is not so. A disk that has lied about a sync is no witness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from harness.simulation.storage.disk import SimDisk
from images.trace import TraceEvent

_METADATA: Final = "__cluster_metadata-0"
"""Kafka's name of the directory with the log of the controllers, their votes and their snapshots."""
_BATCHES: Final = ".log"


def _synced(detail: Mapping[str, Any]) -> bool:
    return bool(detail.get("synced"))


def _always(_: Mapping[str, Any]) -> bool:
    return True


_FILES: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], bool]]]] = {
    "appended": (_BATCHES, _synced),
    "log_closed": (_BATCHES, _synced),
    "log_start_written": ("log-start-checkpoint", _always),
    "metadata_appended": (_BATCHES, _always),
    "metadata_snapshot": (".checkpoint", _always),
    "quorum_voted": ("quorum-state", _always),
    "quorum_follower": ("quorum-state", _always),
}
"""Kind of event → how the names of the files end of which it says that they are on the disk, and whether one with this
detail says so."""


def witnessed(event: TraceEvent, disk: SimDisk) -> TraceEvent:
    """The event, with what a loss of power would take, or bring back, in spite of what it says."""
    directory = f"{event.topic}-{event.partition}" if event.topic else _METADATA
    at_risk: list[str] = []
    if disk.counters.lies:
        return event
    if event.kind == "replica_deleted":
        at_risk = [directory] if disk.may_come_back(directory) else []
    elif event.kind in _FILES:
        suffix, says_so = _FILES[event.kind]
        if says_so(event.detail):
            at_risk = [f"{directory}/{name}" for name in disk.at_risk(directory) if name.endswith(suffix)]
    return event._replace(detail={**event.detail, "at_risk": at_risk}) if at_risk else event
