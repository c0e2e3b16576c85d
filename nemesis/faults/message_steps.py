"""Faults of the family `message` that are a sequence of steps, around one message or more that are held or lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nemesis.cluster_shape import ClusterShape
from nemesis.faults.fault import Family, Fault
from nemesis.faults.message import MessageFault
from nemesis.ports import EnvironmentCapability


@dataclass(frozen=True, slots=True)
class MessageSteps(Fault):
    """A sequence of steps, run once; what is held at its end comes back then."""

    family: ClassVar[Family] = MessageFault.family
    proof: ClassVar[tuple[str, ...]] = ("intercepted",)
    ends_by_itself: ClassVar[bool] = True
    in_steps: ClassVar[bool] = True

    def effective_alone(self, cluster: ClusterShape) -> bool:
        """A step may find nothing to act on: no request, no follower in the ISR."""
        return False

    def needs(self) -> frozenset[EnvironmentCapability]:
        """Messages that can be told apart."""
        return frozenset({EnvironmentCapability.MESSAGES})
