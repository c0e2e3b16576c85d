"""Faults laid out in time, or after what happens.

A schedule is a list of faults, each with the moment it is injected and how long it lasts from when it holds. It is a
value: scripted in a spec,

    faults:
      - {at: 5s, for: 3s, fault: partition, shape: isolate, nodes: [leader/0], as: old-leader, id: cut}
      - {when: {isr: {partition: 0, lacks: old-leader}}, for: 10s, fault: power-loss, nodes: [b2], keep: torn}
      - {after: cut, then_after: 200ms, until: {elected: b3}, fault: kill, nodes: [old-leader]}

drawn from a seed (`nemesis.swarm`) or made by Hypothesis (`nemesis.strategies`), and written back as the same script.
Everything is healed at the end of the workload, whatever the schedule says. The fields of a fault, beside its own:

- `at`: the time from the start of the workload, 0 when it is left out;
- `when`: the condition that it waits for from then on (`nemesis.conditions`); `after: ID` stands for
  `when: {healed: ID}`, and with both, both must hold;
- `then_after`: a time from then to the injection;
- `timeout`: how long it waits for the condition; a fault whose condition never holds is recorded as not injected;
- `for` and `until`: it heals after a time, or when a condition holds (`until: ID` stands for `until: {healed: ID}`),
  whichever comes first; one of them is needed, unless the fault ends by itself, which only `for` can cut short;
- `id`: its name in conditions of other steps;
- `as`: a name bound to the nodes that its `nodes` stand for at the injection. Steps after it use the name for a node:
  `leader/0` is looked up each time anew, a bound name sticks, `leader` as well once a step has bound it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Final

from nemesis import old_names
from nemesis.conditions import ANY_NODE, NOBODY, AllOf, Healed, NodeOccurrence, TriggerCondition, parse_condition
from nemesis.faults.clock import Clock
from nemesis.faults.fault import Fault
from nemesis.fields import FieldError, read, seconds
from nemesis.ports import EnvironmentCapability
from nemesis.registry import FAIR_FAMILIES, FAMILIES, FAULTS
from nemesis.script_steps import AlterConfig, CancelPlacement, Observe, PlaceReplicas
from nemesis.targets import OF_CONTROLLERS, SEVERAL, SYMBOLIC, TRIGGER, TargetError, check_target

STEPS: Final[Mapping[str, type[Fault]]] = {
    **FAULTS,
    **{step.name: step for step in (Observe, PlaceReplicas, CancelPlacement, AlterConfig)},
}
"""Every fault, and the steps that only a script has."""
NAME_PATTERN: Final = "[A-Za-z][A-Za-z0-9_-]*"
"""Of the id of a step and of a bound name."""


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step with its moment: its time, in seconds from the start of the workload, and what it waits for from then."""

    at_s: float
    _: KW_ONLY
    when: TriggerCondition | None = None
    timeout_s: float | None = None
    """How long it waits for the condition; None stands for the rest of the run."""
    then_after_s: float = 0.0
    id: str = ""

    def moment(self) -> dict[str, Any]:
        """As `parse_moment` reads it."""
        values: dict[str, Any] = {"id": self.id} if self.id else {}
        values["at"] = round(self.at_s, 6)
        if self.when is not None:
            values["when"] = self.when.to_mapping()
        if self.timeout_s is not None:
            values["timeout"] = round(self.timeout_s, 6)
        if self.then_after_s:
            values["then_after"] = round(self.then_after_s, 6)
        return values


@dataclass(frozen=True, slots=True)
class ScheduledFault(ScheduledStep):
    """A fault with its moment, and how long it lasts."""

    for_s: float
    """Infinite where only `until` ends it, or the run."""
    fault: Fault
    until: TriggerCondition | None = None
    binds: str = ""
    """The name that the nodes it finds are bound to."""

    def __post_init__(self) -> None:
        if self.until is not None and self.fault.ends_by_itself:
            raise FieldError(f"until: {self.fault.name} ends by itself; only `for` limits it")

    def conditions(self) -> Iterator[tuple[str, TriggerCondition]]:
        """Every condition with its field."""
        if self.when is not None:
            yield "when", self.when
        if self.until is not None:
            yield "until", self.until

    def describe(self) -> str:
        """Its moment, how long it lasts, and what it does, for people."""
        when = f", when {self.when.describe()}" if self.when is not None else ""
        lasting = f", for {self.for_s:g} s" if self.for_s < math.inf else ""
        until = f", until {self.until.describe()}" if self.until is not None else ""
        return f"{self.at_s:g} s{when}{lasting}{until}: {self.fault.describe()}"

    def to_mapping(self) -> dict[str, Any]:
        """As a line of a script."""
        values = self.moment()
        if self.for_s < math.inf:
            values["for"] = round(self.for_s, 6)
        if self.until is not None:
            values["until"] = self.until.to_mapping()
        if self.binds:
            values["as"] = self.binds
        return values | self.fault.to_mapping()


@dataclass(frozen=True, slots=True)
class Schedule:
    """Faults in the order of their times, where none waits for a condition; else, and at equal times, as given."""

    faults: tuple[ScheduledFault, ...] = ()

    def __post_init__(self) -> None:
        if not self.conditional:
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

    @property
    def bound_names(self) -> tuple[str, ...]:
        """The names that its faults bind nodes to."""
        return tuple(scheduled.binds for scheduled in self.faults if scheduled.binds)

    @property
    def steps(self) -> tuple[str, ...]:
        """The ids of its faults."""
        return tuple(scheduled.id for scheduled in self.faults if scheduled.id)

    @property
    def configured(self) -> tuple[tuple[str, str], ...]:
        """Key and value of every setting of the topic that its faults change."""
        faults = [scheduled.fault for scheduled in self.faults]
        return tuple((fault.key, fault.value) for fault in faults if isinstance(fault, AlterConfig))

    def clock_gain_ms(self, time_limit_s: float) -> float:
        """How far apart its faults bring a clock and the time that passes, at most."""
        clocks = ((each.fault, each.for_s) for each in self.faults if isinstance(each.fault, Clock))
        return sum(fault.gain_ms(min(for_s, time_limit_s)) for fault, for_s in clocks)

    @property
    def conditional(self) -> bool:
        """Whether any fault waits for a condition or is ended by one."""
        return any(True for scheduled in self.faults for _ in scheduled.conditions())

    def check(
        self,
        brokers: Sequence[str],
        controllers: Sequence[str],
        partitions: int,
        operations: Collection[str] = (),
    ) -> None:
        """Raise FieldError when a target or a condition names nothing in such a cluster, no step of this schedule and
        none of the scripted `operations`."""
        bound = self.bound_names
        steps = (*self.steps, *operations)
        for number, scheduled in enumerate(self.faults):
            where = f"faults[{number}]"
            if scheduled.id and steps.count(scheduled.id) > 1:
                raise FieldError(f"{where}.id: {scheduled.id!r} is the id of two steps")
            if scheduled.binds and not scheduled.fault.nodes_named():
                raise FieldError(f"{where}.as: {scheduled.fault.name} has no nodes that a name could be bound to")
            if scheduled.binds in (*brokers, *controllers):
                raise FieldError(f"{where}.as: {scheduled.binds!r} is the name of a node")
            if scheduled.binds in (*SYMBOLIC, NOBODY):
                raise FieldError(f"{where}.as: {scheduled.binds!r} has a meaning of its own")
            if scheduled.binds and bound.count(scheduled.binds) > 1:
                raise FieldError(f"{where}.as: {scheduled.binds!r} is bound by two steps")
            waits_for = scheduled.when.parts() if scheduled.when is not None else ()
            if TRIGGER in scheduled.fault.targets() and not any(isinstance(it, NodeOccurrence) for it in waits_for):
                raise FieldError(f"{where}: {TRIGGER!r} is the node of an occurrence, and it waits for none")
            if any(scheduled.id in part.steps() for part in waits_for):
                raise FieldError(f"{where}.when: {scheduled.id!r} would wait for itself")
            _check_fields(scheduled.fault, where, controllers, partitions)
            for target in scheduled.fault.targets():
                try:
                    check_target(target, brokers, controllers, partitions, bound)
                except TargetError as error:
                    raise FieldError(f"{where}: {error}") from None
            for field, condition in scheduled.conditions():
                check_condition(condition, f"{where}.{field}", (*brokers, *controllers, *bound), steps, partitions)

    def unmet(self, unsupported: Mapping[EnvironmentCapability, str]) -> str:
        """One line: the first fault that needs something unsupported, and the reason; empty when there is none."""
        for number, scheduled in enumerate(self.faults):
            for need in sorted(scheduled.fault.needs() & unsupported.keys()):
                return f"faults[{number}]: {scheduled.fault.name} needs {need}, and {unsupported[need]}"
            for field, condition in scheduled.conditions():
                if line := unseen(condition, f"faults[{number}].{field}", unsupported):
                    return line
        return ""

    def to_script(self) -> list[dict[str, Any]]:
        """As `parse_script` reads it."""
        return [scheduled.to_mapping() for scheduled in self.faults]


def parse_faults(value: object) -> tuple[tuple[str, ...], Schedule]:
    """Families and script that a spec's `faults` stands for; one of them is empty. Raises FieldError."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
        if value == ["none"]:
            return (), Schedule()
    if not isinstance(value, Sequence):
        raise FieldError(f"faults: {value!r} is not all, none, a list of families or a list of faults")
    if any(isinstance(part, Mapping) for part in value):
        return (), parse_script(value)
    families: list[str] = []
    for part in value:
        part = old_names.FAMILIES.get(part, part) if isinstance(part, str) else part
        if not isinstance(part, str) or (part != "all" and part not in FAMILIES):
            raise FieldError(f"faults: {part!r} is not one of {', '.join(FAMILIES)}, all, none")
        families += [family for family in (FAIR_FAMILIES if part == "all" else (part,)) if family not in families]
    return tuple(families), Schedule()


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
    kind = STEPS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise FieldError(f"{where}.fault: {name!r} is not one of {', '.join(STEPS)}")
    moment, until = parse_moment(values, where), _until(values, where)
    if "at" not in item and moment["when"] is None:
        raise FieldError(f"{where}.at: missing; a duration such as 5s, or a condition with when or after")
    if "for" not in values and until is None and not kind.ends_by_itself:
        raise FieldError(f"{where}.for: missing; a duration such as 5s, or a condition with until")
    for_s = seconds(values.pop("for"), f"{where}.for") if "for" in values else math.inf
    binds = parse_name(values, "as", where)
    fault = read(kind, values, where)
    try:
        return ScheduledFault(for_s=for_s, fault=fault, until=until, binds=binds, **moment)
    except FieldError as error:
        raise FieldError(f"{where}.{error}") from None


def parse_moment(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of a `ScheduledStep`, taken out of `values`. Raises FieldError."""
    conditions: list[TriggerCondition] = []
    if "after" in values:
        conditions.append(_healed(values.pop("after"), f"{where}.after"))
    if "when" in values:
        conditions.append(parse_condition(values.pop("when"), f"{where}.when"))
    if "timeout" in values and not conditions:
        raise FieldError(f"{where}.timeout: there is no condition to wait for")
    names = ("at", "timeout", "then_after")
    times = {f"{name}_s": seconds(values.pop(name), f"{where}.{name}") for name in names if name in values}
    when = AllOf(tuple(conditions)) if len(conditions) > 1 else next(iter(conditions), None)
    return {"at_s": 0.0, **times, "when": when, "id": parse_name(values, "id", where)}


def _until(values: dict[str, Any], where: str) -> TriggerCondition | None:
    value = values.pop("until", None)
    if value is None:
        return None
    return _healed(value, f"{where}.until") if isinstance(value, str) else parse_condition(value, f"{where}.until")


def _healed(value: object, where: str) -> Healed:
    if not isinstance(value, str):
        raise FieldError(f"{where}: {value!r} is not the id of a step")
    return Healed(value)


def parse_name(values: dict[str, Any], field: str, where: str) -> str:
    """The name that a field of a step gives, taken out of `values`; empty without one. Raises FieldError."""
    value = values.pop(field, "")
    if value != "" and (not isinstance(value, str) or not re.fullmatch(NAME_PATTERN, value)):
        raise FieldError(f"{where}.{field}: {value!r} is not a name such as old-leader")
    return value


def _check_fields(fault: Fault, where: str, controllers: Collection[str], partitions: int) -> None:
    """Raise FieldError when a field of the fault makes no sense in such a cluster."""
    partition, patience_ms = getattr(fault, "partition", None), getattr(fault, "patience_ms", None)
    if partition is not None and not 0 <= partition < partitions:
        raise FieldError(f"{where}.partition: there is no partition {partition}, only 0 to {partitions - 1}")
    if patience_ms is not None and patience_ms <= 0:
        raise FieldError(f"{where}.patience_ms: {patience_ms:g} is not more than 0")
    for item in fields(fault):
        if item.name in ("nodes", "against") and item.default != () and not getattr(fault, item.name):
            raise FieldError(f"{where}.{item.name}: {fault.name} needs at least one node")
    victim = getattr(fault, "victim", None)
    if victim in SEVERAL:
        raise FieldError(f"{where}.victim: {victim!r} stands for several nodes, and a victim is one")
    for target in fault.targets():
        if fault.of_brokers and target in (*OF_CONTROLLERS, *controllers):
            raise FieldError(f"{where}: {target!r} stands for controllers, and {fault.name} is about brokers alone")


def check_condition(
    condition: TriggerCondition, where: str, nodes: Collection[str], steps: Collection[str], partitions: int
) -> None:
    """Raise FieldError when a condition names a node, a step or a partition that there is not."""
    for part in condition.parts():
        place = f"{where}.{part.name}" if part is condition else f"{where}: {part.name}"
        for node in part.nodes():
            if node == ANY_NODE:
                raise FieldError(f"{place}: {node!r} stands for every node in an occurrence alone, such as elected")
            if node not in nodes:
                raise FieldError(f"{place}: {node!r} is neither a node nor a bound name ({', '.join(nodes)})")
        for step in part.steps():
            if step not in steps:
                raise FieldError(f"{place}: {step!r} is not the id of a step ({', '.join(steps) or 'there is none'})")
        partition = getattr(part, "partition", None)
        if partition is not None and not 0 <= partition < partitions:
            raise FieldError(f"{place}: there is no partition {partition}, only 0 to {partitions - 1}")


def unseen(condition: TriggerCondition, where: str, unsupported: Mapping[EnvironmentCapability, str]) -> str:
    """One line: the part of a condition that this environment cannot see; empty when it sees everything."""
    if EnvironmentCapability.LIVE_TRACE not in unsupported:
        return ""
    for part in condition.parts():
        if part.rests_on_trace():
            return (
                f"{where}: {part.name} is seen in the trace alone, and {unsupported[EnvironmentCapability.LIVE_TRACE]}"
            )
    return ""
