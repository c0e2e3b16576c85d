"""Faults laid out in time.

A schedule is a list of faults, each with the moment it is injected, counted from the start of the workload, and how
long it lasts from when it holds. It is a value: scripted in a spec,

    faults:
      - {at: 5s, for: 3s, fault: partition, shape: isolate, nodes: [leader/0]}
      - {at: 6s, for: 10s, fault: power-loss, nodes: [b2], keep: torn}

drawn from a seed (`nemesis.swarm`) or made by Hypothesis (`nemesis.strategies`), and written back as the same script.
Everything is healed at the end of the workload, whatever the schedule says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemesis import old_names
from nemesis.faults.fault import Fault
from nemesis.fields import FieldError, read, seconds
from nemesis.ports import EnvironmentCapability
from nemesis.registry import FAMILIES, FAULTS
from nemesis.targets import TargetError, check_target


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """A fault with its time, in seconds from the start of the workload."""

    at_s: float
    for_s: float
    fault: Fault

    def to_mapping(self) -> dict[str, Any]:
        """As a line of a script."""
        return {"at": round(self.at_s, 6), "for": round(self.for_s, 6)} | self.fault.to_mapping()


@dataclass(frozen=True, slots=True)
class Schedule:
    """Faults in the order of their injection; equal times keep the order given."""

    faults: tuple[ScheduledFault, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "faults", tuple(sorted(self.faults, key=lambda scheduled: scheduled.at_s)))

    def __iter__(self) -> Iterator[ScheduledFault]:
        return iter(self.faults)

    def __len__(self) -> int:
        return len(self.faults)

    @property
    def families(self) -> tuple[str, ...]:
        """The families that occur, in the order of FAMILIES."""
        present = [scheduled.fault.family.name for scheduled in self.faults]
        return tuple(family for family in FAMILIES if family in present)

    def check(self, brokers: Sequence[str], controllers: Sequence[str], partitions: int) -> None:
        """Raise FieldError when a target names nothing in such a cluster."""
        for number, scheduled in enumerate(self.faults):
            for target in scheduled.fault.targets():
                try:
                    check_target(target, brokers, controllers, partitions)
                except TargetError as error:
                    raise FieldError(f"faults[{number}]: {error}") from None

    def unmet(self, unsupported: Mapping[EnvironmentCapability, str]) -> str:
        """One line: the first fault that needs something unsupported, and the reason; empty when there is none."""
        for number, scheduled in enumerate(self.faults):
            for need in sorted(scheduled.fault.needs() & unsupported.keys()):
                return f"faults[{number}]: {scheduled.fault.name} needs {need}, and {unsupported[need]}"
        return ""

    def to_script(self) -> list[dict[str, Any]]:
        """As `parse_script` reads it."""
        return [scheduled.to_mapping() for scheduled in self.faults]


def parse_script(script: object) -> Schedule:
    """The schedule that a spec's list of faults stands for. Raises FieldError naming what is wrong."""
    if not isinstance(script, Sequence) or isinstance(script, str):
        raise FieldError(f"faults: {script!r} is not a list of faults")
    return Schedule(tuple(_parse(item, f"faults[{number}]") for number, item in enumerate(script)))


def _parse(item: object, where: str) -> ScheduledFault:
    if not isinstance(item, Mapping):
        raise FieldError(f"{where}: {item!r} is not a fault such as {{at: 5s, for: 3s, fault: kill, nodes: [b2]}}")
    values = dict(item)
    name = values.pop("fault", None)
    name = old_names.FAULTS.get(name, name) if isinstance(name, str) else name
    if name not in FAULTS:
        raise FieldError(f"{where}.fault: {name!r} is not one of {', '.join(FAULTS)}")
    for needed in ("at", "for"):
        if needed not in values:
            raise FieldError(f"{where}.{needed}: missing; a duration such as 5s")
    at_s, for_s = seconds(values.pop("at"), f"{where}.at"), seconds(values.pop("for"), f"{where}.for")
    return ScheduledFault(at_s, for_s, read(FAULTS[name], values, where))
