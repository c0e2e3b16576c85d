"""Capabilities on machines: faults that they, or the system under test on them, cannot carry; events that the system's
files can tell of."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Final

from harness.cluster.layout import Layout
from images.system import Capability
from images.trace import TraceEvent
from nemesis.ports import EnvironmentCapability

MACHINES_LACK: Final[Mapping[EnvironmentCapability, str]] = {
    EnvironmentCapability.LIVE_TRACE: "the nodes' traces are collected when the run ends",
    EnvironmentCapability.MESSAGES: "packet filters there cannot tell one message from another",
    EnvironmentCapability.CHANNELS: "all connections to a node lead to one port there",
    EnvironmentCapability.FAILING_SYNCS: "the file system there fails writes, and no syncs",
    EnvironmentCapability.WALL_CLOCKS: "libfaketime changes the clock of timers with it there",
}


def unsupported_anywhere(layout: Layout) -> frozenset[EnvironmentCapability]:
    """Capabilities that a schedule must not need which is to suit machines with any kernel: some have no netem."""
    return frozenset({EnvironmentCapability.DELAY, *MACHINES_LACK, *lacks_of(layout)})


def lacks_of(layout: Layout) -> dict[EnvironmentCapability, str]:
    """Capabilities that the system lacks, or lacks in this layout, with the reason."""
    system = layout.deployed_system
    lacks = {}
    if Capability.CLOCKS not in system.capabilities:
        lacks[EnvironmentCapability.CLOCKS] = f"system {system.name} does not run under libfaketime"
    if Capability.FROZEN_CLOCKS not in system.capabilities:
        lacks[EnvironmentCapability.FROZEN_CLOCKS] = f"waits of system {system.name} do not end when a clock runs again"
    if Capability.RESIGNATION not in system.capabilities:
        lacks[EnvironmentCapability.RESIGNATION] = f"no controller of system {system.name} resigns upon a request"
    if Capability.REPLACED_REASSIGNMENTS not in system.capabilities:
        lacks[EnvironmentCapability.REPLACED_REASSIGNMENTS] = f"system {system.name} goes on with what it was replacing"
    if not layout.controllers:
        lacks[EnvironmentCapability.EMPTY_DISKS] = "each broker is a controller, too, which must not forget its vote"
    return lacks


def recorded_events(layout: Layout, collected: Path, began_unix_ns: int) -> list[tuple[int, str, TraceEvent]]:
    """(time in ns since the run began, node, event) of what the nodes' files below `collected` tell, in order: the
    decisions of the controllers, all of them, or nothing where they cannot be read, which is a gap in the evidence; and
    when brokers opened and cut logs."""
    system = layout.deployed_system
    if Capability.DECISIONS not in system.capabilities:
        return []
    names = {node.node_id: node.name for node in layout.nodes}
    voters = layout.controllers or layout.brokers
    try:
        recorded = list(system.decisions({node.node_id: collected / node.name for node in voters}))
    except ValueError as error:
        (collected / "decisions-not-read.txt").write_text(f"{error}\n", encoding="utf-8")
        return []
    recorded += system.log_changes({node.node_id: collected / node.name for node in layout.brokers})
    return [
        (max(0, time_ms * 1_000_000 - began_unix_ns), names.get(node_id, ""), event)
        for time_ms, node_id, event in sorted(recorded, key=itemgetter(0))
    ]
