"""Conditions: what a step of a schedule waits for, and how long a fault lasts.

    when: {elected: b2}                                  an occurrence, since the step began to wait
    when: {isr: {partition: 0, below: 2}}                a state; at once when it holds already
    when: {all: [{leader: {partition: 0, node: b2}}, {high_watermark: {partition: 0, at_least: 10}}]}
    until: {healed: cut}                                 a step of the schedule, by its id

A mapping with one key. An occurrence may be written with its node or id alone; `any` stands for every node. Nodes are
named, or by a name that an earlier step has bound (`as: old-leader`). Each condition is a frozen value that holds or
not in a `nemesis.situation.Situation`; those that rest on the trace alone say so, and are refused where there is none
while the run goes on.

| occurrence | it happens |
|---|---|
| `elected` | a node is elected leader (of a partition) |
| `restarted` | the process of a node starts again |
| `registered` | the controller registers a broker |
| `fenced`, `unfenced` | the controller fences a broker, or lets it take part again |
| `left_isr`, `joined_isr` | a replica leaves the ISR (of a partition), or joins it |
| `truncated` | a replica cuts its log (trace) |
| `resigned` | a replica neither leads nor follows any more: no leader, or taken off the broker (trace) |
| `replica_deleted` | a broker has deleted a replica that was taken off it (trace) |
| `log_start_moved` | a replica has deleted the records at the start of its log, as the checkpoint says (trace) |
| `controller_elected` | a node becomes the active controller |
| `traced` | a node writes an event of one of the kinds `events` to its trace, at that moment (trace) |
| `injected`, `healed` | a fault of the schedule takes hold, has healed; an operation has ended (`healed`) |

| state | it holds |
|---|---|
| `leader` | a partition is led by `node`, or by none with `node: none` |
| `isr`, `elr` | it has fewer than `below` or `at_least` members, `has` a node, `lacks` a node |
| `proposed_isr` | the same of the ISR that a leader has proposed and knows no answer about (trace) |
| `high_watermark` | it is, or was, `at_least` an offset; with `node`, that replica's is now (trace) |
| `log_end` | a replica's log reaches an offset now: not once it is wiped, or deleted (trace) |
| `acknowledged` | at least `at_least` appends (to a partition) were acknowledged |

`all: […]` and `any: […]` combine conditions. A step that waits for an occurrence may strike the node to which it
happened, by the target `trigger`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final

from images.trace import KINDS
from nemesis.fields import FieldError, read
from nemesis.situation import Event, Occurrence, PartitionSituation, Situation

ANY_NODE: Final = "any"
"""The node of an occurrence that may be at any."""
NOBODY: Final = "none"
"""The node of a `leader` condition that waits for a partition without a leader."""


@dataclass(frozen=True, slots=True)
class TriggerCondition:
    """Something that holds in a situation, or not."""

    name: ClassVar[str]
    in_trace_alone: ClassVar[bool] = False
    """Whether no metadata that a broker answers shows it."""

    @abstractmethod
    def holds(self, situation: Situation, since: int) -> bool:
        """Whether it holds now; of occurrences only those from number `since` on count."""

    def lacking(self, situation: Situation, since: int) -> TriggerCondition:
        """Of a condition that does not hold, the part for which it waits."""
        return self

    def parts(self) -> Iterator[TriggerCondition]:
        """The single conditions that it is made of: itself, unless it combines others."""
        yield self

    def rests_on_trace(self) -> bool:
        """Whether it is in the trace alone."""
        return self.in_trace_alone

    def happened_to(self, situation: Situation, since: int) -> tuple[str, ...]:
        """The node of the first occurrence that meets it; none for a state."""
        return ()

    def nodes(self) -> tuple[str, ...]:
        """The nodes, or bound names, that it speaks of."""
        return ()

    def steps(self) -> tuple[str, ...]:
        """The ids of steps that it speaks of."""
        return ()

    def to_mapping(self) -> dict[str, Any]:
        """As `parse_condition` reads it."""
        values = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        return {self.name: values}

    def describe(self) -> str:
        """A few words for people."""
        words = [f"{name.replace('_', ' ')} {value}" for name, value in self.to_mapping()[self.name].items()]
        return " ".join([self.name.replace("_", " "), *words])


@dataclass(frozen=True, slots=True)
class NodeOccurrence(TriggerCondition):
    """An occurrence at a node."""

    node: str

    def holds(self, situation: Situation, since: int) -> bool:
        """Whether it occurred to the node."""
        return bool(self.happened_to(situation, since))

    def happened_to(self, situation: Situation, since: int) -> tuple[str, ...]:
        """The node itself, also where it stands for any."""
        events = situation.events[since:]
        return next(((event.subject,) for event in events if self._is_met_by(event, situation)), ())

    def nodes(self) -> tuple[str, ...]:
        """The node."""
        return () if self.node == ANY_NODE else (self.node,)

    def _is_met_by(self, event: Event, situation: Situation) -> bool:
        at_node = self.node == ANY_NODE or event.subject in situation.nodes_of(self.node)
        return event.kind == self.name and at_node


class Restarted(NodeOccurrence):
    """The process of a node starts again."""

    name = Occurrence.RESTARTED.value


class Registered(NodeOccurrence):
    """The controller registers a broker."""

    name = Occurrence.REGISTERED.value


class Fenced(NodeOccurrence):
    """The controller fences a broker."""

    name = Occurrence.FENCED.value


class Unfenced(NodeOccurrence):
    """The controller lets a broker take part again."""

    name = Occurrence.UNFENCED.value


class ControllerElected(NodeOccurrence):
    """A node becomes the active controller."""

    name = Occurrence.CONTROLLER_ELECTED.value


@dataclass(frozen=True, slots=True)
class PartitionOccurrence(NodeOccurrence):
    """An occurrence at a node in a partition; in any without `partition`."""

    partition: int | None = None

    def _is_met_by(self, event: Event, situation: Situation) -> bool:
        return self.partition in (None, event.partition) and NodeOccurrence._is_met_by(self, event, situation)


class Elected(PartitionOccurrence):
    """A node is elected leader."""

    name = Occurrence.ELECTED.value


class LeftIsr(PartitionOccurrence):
    """A replica leaves the ISR."""

    name = Occurrence.LEFT_ISR.value


class JoinedIsr(PartitionOccurrence):
    """A replica joins the ISR."""

    name = Occurrence.JOINED_ISR.value


class Truncated(PartitionOccurrence):
    """A replica cuts its log."""

    name = Occurrence.TRUNCATED.value
    in_trace_alone = True
    """Clients are not told."""


class ReplicaResigned(PartitionOccurrence):
    """A replica neither leads nor follows any more."""

    name = Occurrence.RESIGNED.value
    in_trace_alone = True
    """Clients see the change of replicas, not when the broker hears of it."""


class ReplicaDeleted(PartitionOccurrence):
    """A broker has deleted a replica that was taken off it."""

    name = Occurrence.REPLICA_DELETED.value
    in_trace_alone = True
    """Clients are not told."""


class LogStartMoved(PartitionOccurrence):
    """A replica has deleted the records at the start of its log."""

    name = Occurrence.LOG_START_MOVED.value
    in_trace_alone = True
    """Clients are told of the leader's alone, and not when."""


@dataclass(frozen=True, slots=True)
class Traced(NodeOccurrence):
    """A node writes an event of one of these kinds to its trace."""

    name = Occurrence.TRACED.value
    in_trace_alone = True
    """Nothing else shows it."""
    events: tuple[str, ...]

    def __post_init__(self) -> None:
        for event in self.events or ("",):
            if event not in KINDS:
                raise ValueError(f"events: {event!r} is no kind of event of the trace, such as group_storing")

    def _is_met_by(self, event: Event, situation: Situation) -> bool:
        return event.traced in self.events and NodeOccurrence._is_met_by(self, event, situation)


@dataclass(frozen=True, slots=True)
class StepOccurrence(TriggerCondition):
    """A step of the schedule goes on or ends."""

    id: str

    def holds(self, situation: Situation, since: int) -> bool:
        """Whether it has, at any time: a step happens once."""
        return any(event.kind == self.name and event.subject == self.id for event in situation.events)

    def steps(self) -> tuple[str, ...]:
        """Its id."""
        return (self.id,)


class Injected(StepOccurrence):
    """A fault has taken hold."""

    name = Occurrence.INJECTED.value


class Healed(StepOccurrence):
    """A fault has healed, or an operation has ended."""

    name = Occurrence.HEALED.value


@dataclass(frozen=True, slots=True)
class LedBy(TriggerCondition):
    """A partition is led by a node."""

    name: ClassVar[str] = "leader"
    node: str
    partition: int = 0

    def holds(self, situation: Situation, since: int) -> bool:
        """Whether it is."""
        state = situation.partition(self.partition)
        if self.node == NOBODY:
            return state.known and state.leader is None
        return state.leader in situation.nodes_of(self.node)

    def nodes(self) -> tuple[str, ...]:
        """The leader."""
        return () if self.node == NOBODY else (self.node,)


@dataclass(frozen=True, slots=True)
class Members(TriggerCondition):
    """A set of replicas of a partition has some size, a member, or not."""

    partition: int = 0
    below: int | None = None
    at_least: int | None = None
    has: str | None = None
    lacks: str | None = None

    def __post_init__(self) -> None:
        if not any(value is not None for value in (self.below, self.at_least, self.has, self.lacks)):
            raise ValueError("one of below, at_least, has, lacks is needed")

    def holds(self, situation: Situation, since: int) -> bool:
        """Whether all that is asked of it holds; not before it is known, and its names are bound."""
        state = situation.partition(self.partition)
        members = self.members(state)
        if not state.known or not all(situation.nodes_of(name) for name in self.nodes()):
            return False
        return (
            (self.below is None or len(members) < self.below)
            and (self.at_least is None or len(members) >= self.at_least)
            and (self.has is None or set(situation.nodes_of(self.has)) <= set(members))
            and (self.lacks is None or not set(situation.nodes_of(self.lacks)) & set(members))
        )

    @abstractmethod
    def members(self, state: PartitionSituation) -> tuple[str, ...]:
        """The set of replicas."""

    def nodes(self) -> tuple[str, ...]:
        """The members that it speaks of."""
        return tuple(node for node in (self.has, self.lacks) if node is not None)


@dataclass(frozen=True, slots=True)
class Isr(Members):
    """The in-sync replicas are fewer than `below`, `at_least` so many, include `has`, do not include `lacks`."""

    name: ClassVar[str] = "isr"

    def members(self, state: PartitionSituation) -> tuple[str, ...]:
        """As the controller has committed them."""
        return state.isr


@dataclass(frozen=True, slots=True)
class Elr(Members):
    """The eligible leader replicas, asked as those of `isr`."""

    name: ClassVar[str] = "elr"

    def members(self, state: PartitionSituation) -> tuple[str, ...]:
        """As the controller has committed them."""
        return state.elr


@dataclass(frozen=True, slots=True)
class ProposedIsr(Members):
    """The ISR that a leader has proposed and knows no answer about."""

    name: ClassVar[str] = "proposed_isr"
    in_trace_alone = True
    """Clients are told what is committed."""

    def members(self, state: PartitionSituation) -> tuple[str, ...]:
        """None while nothing is proposed."""
        return state.proposed_isr


@dataclass(frozen=True, slots=True)
class HighWatermark(TriggerCondition):
    """The high watermark reaches an offset: that of a replica, or of any."""

    name: ClassVar[str] = "high_watermark"
    at_least: int
    partition: int = 0
    node: str | None = None

    def holds(self, situation: Situation, since: int) -> bool:
        """Whether it does."""
        state = situation.partition(self.partition)
        if self.node is None:
            return state.high_watermark >= self.at_least
        return any(state.high_watermarks.get(node, -1) >= self.at_least for node in situation.nodes_of(self.node))

    def rests_on_trace(self) -> bool:
        """A single replica's does."""
        return self.node is not None

    def nodes(self) -> tuple[str, ...]:
        """The replica."""
        return () if self.node is None else (self.node,)


@dataclass(frozen=True, slots=True)
class LogEnd(TriggerCondition):
    """A replica's log reaches an offset."""

    name: ClassVar[str] = "log_end"
    in_trace_alone = True
    """Clients are told the leader's at most."""
    node: str
    at_least: int
    partition: int = 0

    def holds(self, situation: Situation, since: int) -> bool:
        """Whether it does."""
        ends = situation.partition(self.partition).log_ends
        return any(ends.get(node, -1) >= self.at_least for node in situation.nodes_of(self.node))

    def nodes(self) -> tuple[str, ...]:
        """The replica."""
        return (self.node,)


@dataclass(frozen=True, slots=True)
class Acknowledged(TriggerCondition):
    """Appends were acknowledged, so many: of a partition, or of all."""

    name: ClassVar[str] = "acknowledged"
    at_least: int
    partition: int | None = None

    def holds(self, situation: Situation, since: int) -> bool:
        """Whether they were."""
        counts = situation.acknowledged
        return (sum(counts.values()) if self.partition is None else counts.get(self.partition, 0)) >= self.at_least


@dataclass(frozen=True, slots=True)
class Combination(TriggerCondition):
    """Several conditions as one."""

    conditions: tuple[TriggerCondition, ...]

    def parts(self) -> Iterator[TriggerCondition]:
        """All conditions within."""
        for condition in self.conditions:
            yield from condition.parts()

    def happened_to(self, situation: Situation, since: int) -> tuple[str, ...]:
        """The nodes of all conditions within."""
        return tuple(dict.fromkeys(node for part in self.parts() for node in part.happened_to(situation, since)))

    def to_mapping(self) -> dict[str, Any]:
        """As it is read."""
        return {self.name: [condition.to_mapping() for condition in self.conditions]}

    def describe(self) -> str:
        """A few words for people."""
        return {"all": " and ", "any": " or "}[self.name].join(part.describe() for part in self.conditions)


@dataclass(frozen=True, slots=True)
class AllOf(Combination):
    """All of them at once."""

    name: ClassVar[str] = "all"

    def holds(self, situation: Situation, since: int) -> bool:
        """Whether all hold."""
        return all(condition.holds(situation, since) for condition in self.conditions)

    def lacking(self, situation: Situation, since: int) -> TriggerCondition:
        """Those that do not hold."""
        waiting = [each.lacking(situation, since) for each in self.conditions if not each.holds(situation, since)]
        return waiting[0] if len(waiting) == 1 else AllOf(tuple(waiting))


@dataclass(frozen=True, slots=True)
class AnyOf(Combination):
    """Any of them."""

    name: ClassVar[str] = "any"

    def holds(self, situation: Situation, since: int) -> bool:
        """Whether one holds."""
        return any(condition.holds(situation, since) for condition in self.conditions)


SINGLE: Final[Mapping[str, type[TriggerCondition]]] = {
    kind.name: kind
    for kind in (
        Elected, Restarted, Registered, Fenced, Unfenced, LeftIsr, JoinedIsr, Truncated, ReplicaResigned,
        ReplicaDeleted, LogStartMoved, ControllerElected, Traced, Injected, Healed, LedBy, Isr, Elr, ProposedIsr,
        HighWatermark, LogEnd, Acknowledged,
    )
}  # fmt: skip
"""Every condition but the combinations, by its name."""
COMBINED: Final[Mapping[str, type[Combination]]] = {kind.name: kind for kind in (AllOf, AnyOf)}


def parse_condition(value: object, where: str) -> TriggerCondition:
    """The condition that a mapping with one key stands for. Raises FieldError; messages begin with `where`."""
    known = ", ".join((*SINGLE, *COMBINED))
    if not isinstance(value, Mapping) or len(value) != 1:
        raise FieldError(f"{where}: {value!r} is not a condition such as {{elected: b2}}; one of: {known}")
    ((name, content),) = value.items()
    place = f"{where}.{name}"
    if name in COMBINED:
        if not isinstance(content, Sequence) or isinstance(content, str) or not content:
            raise FieldError(f"{place}: {content!r} is not a list of conditions")
        parts = tuple(parse_condition(part, f"{place}[{number}]") for number, part in enumerate(content))
        return COMBINED[name](parts)
    if name not in SINGLE:
        raise FieldError(f"{place}: unknown condition; one of: {known}")
    kind = SINGLE[name]
    if not isinstance(content, Mapping):
        content = {fields(kind)[0].name: content}
    return read(kind, content, place)
