"""State of one node of a simulated cluster."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from harness.simulation.node import SimNode


@dataclass(slots=True)
class SimMachine:
    """One node of a simulated cluster: the world's machine, and what the environment knows of it."""

    node: SimNode
    properties: str
    disk_random: Random
    log: list[str] = field(default_factory=list)
    lies_before: int = 0
    refused_before: int = 0
    delayed_before: tuple[int, int] = (0, 0)
    """Operations delayed, and nanoseconds, before the disk became slow."""
    offset_before_ns: int | None = None
    """Offset of the clock before the fault; None without one."""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to stop the running process."""
    leaving: int = 0
    """The incarnation that was asked to stop."""
    left: int = 0
    """The last incarnation that stopped cleanly."""
