"""A step that breaks nothing: it finds nodes and binds a name to them, or marks a moment for other steps.

    - {when: {isr: {partition: 0, below: 2}}, fault: observe, nodes: [leader/0], as: last-leader, id: alone}

No random schedule draws it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nemesis.faults.fault import Family, Fault
from nemesis.handle import FaultHandle


@dataclass(frozen=True, slots=True)
class Observe(Fault):
    """Find nodes and leave them alone."""

    name: ClassVar[str] = "observe"
    number: ClassVar[int] = 0
    family: ClassVar[Family] = Family(number=0, name="observe", colour="#777777", fair=False)
    proof: ClassVar[tuple[str, ...]] = ("observed",)
    ends_by_itself: ClassVar[bool] = True
    nodes: tuple[str, ...] = ()

    async def inject(self, handle: FaultHandle) -> None:
        """Resolve the targets."""
        await handle.resolve(self.nodes)
        handle.count_evidence("observed")
