"""Base class of faults: a frozen value that says what goes wrong and on which targets (`nemesis.targets`).

A fault acts on a cluster only through a `nemesis.handle.FaultHandle`, which undoes everything the fault did.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar

from nemesis.handle import FaultHandle
from nemesis.ports import EnvironmentCapability, Evidence


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. Subclasses add what and to whom."""

    name: ClassVar[str]
    """As a schedule names it."""
    family: ClassVar[str]
    """As `--faults` names it."""
    proof: ClassVar[tuple[str, ...]]
    """Names of evidence; the fault has bitten when any of them is not zero."""
    ends_by_itself: ClassVar[bool] = False
    """Whether the fault heals as soon as it is injected, being a sequence of steps that has then come to its end."""
    effective_alone: ClassVar[bool] = True
    """Whether it does anything where nothing else goes wrong."""

    async def inject(self, handle: FaultHandle) -> None:
        """Do it. May take its time when the fault is a sequence of steps; it is cancelled when its time is over."""
        raise NotImplementedError

    def took_effect(self, evidence: Evidence) -> bool:
        """Whether the evidence shows that the fault did something."""
        return any(evidence.get(name, 0) != 0 for name in self.proof)

    def needs(self) -> frozenset[EnvironmentCapability]:
        """What the environment must be able to do for it."""
        return frozenset()

    def targets(self) -> tuple[str, ...]:
        """Every target the fault names, symbolic or not."""
        return tuple(getattr(self, "nodes", ())) + tuple(getattr(self, "against", ()))

    def describe(self) -> str:
        """The fault in a few words, for people."""
        return " ".join((self.name, *self.targets()))

    def to_mapping(self) -> dict[str, Any]:
        """The fault as YAML or JSON values, read back by `nemesis.schedule`."""
        return {"fault": self.name} | {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, StrEnum) else value
