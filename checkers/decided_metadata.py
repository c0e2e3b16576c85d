"""The metadata as the controllers decided it, in the order of the metadata log: what the changes in a trace add up to.

A change is one batch, and all of its events have the offset at which the log ends with it. A controller that takes over
traces what it finds committed, perhaps once more and without the reason; a deposed one may trace its change late, and
one that is killed may have traced the first events of a change alone. So the changes are put in the order of their
offsets, each is all that any controller has traced of it, and of two traces of one event the one that knows the reason
counts.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import TraceRow, trace_rows
from workloads.history import TopicPartition

OF_BROKERS: Final = ("broker_registered", "broker_fenced", "broker_unfenced", "broker_shutting_down")
OF_PARTITIONS: Final = ("partition_changed", "partition_deleted")
OF_TOPICS: Final = ("topic_configured",)
NO_LEADER: Final = -1
_IN_ORDER: Final = "replicas"
"""The one fact of a partition that is a list in an order, of preference."""


@dataclass(frozen=True, slots=True)
class DecidedPartition:
    """One partition. Replicas are in order of preference."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: frozenset[int]
    elr: frozenset[int]
    last_known_elr: frozenset[int]
    adding: frozenset[int]
    removing: frozenset[int]
    min_isr: int

    @classmethod
    def of(cls, event: TraceRow, detail: Mapping[str, Any]) -> DecidedPartition:
        """The partition after a `partition_changed` event with these facts."""
        return cls(
            event.leader,
            event.leader_epoch,
            event.partition_epoch,
            tuple(detail.get("replicas") or ()),
            frozenset(event.members),
            frozenset(detail.get("elr") or ()),
            frozenset(detail.get("last_known_elr") or ()),
            frozenset(detail.get("adding") or ()),
            frozenset(detail.get("removing") or ()),
            detail.get("min_isr", 1),
        )

    def facts(self) -> dict[str, object]:
        """As events and answers have them; sets as sorted lists."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: sorted(value) if isinstance(value, frozenset) else list(value) if name == _IN_ORDER else value
            for name, value in values.items()
        }


def differences(decided: Mapping[str, object], other: Mapping[str, Any]) -> Iterator[str]:
    """How facts differ from those decided, a line for each that is among both."""
    for name, value in decided.items():
        has = other.get(name, value)
        if isinstance(has, list) and name != _IN_ORDER:
            has = sorted(has)
        if has != value:
            yield f"{name} {has}, and decided is {value}"


@dataclass(frozen=True, slots=True)
class DecidedBroker:
    """One broker. It is not known whether a broker is shutting down that a successor found fenced."""

    epoch: int
    fenced: bool
    shutting_down: bool | None

    @property
    def active(self) -> bool:
        """Whether it may lead and join an ISR."""
        return not self.fenced and not self.shutting_down


@dataclass(frozen=True, slots=True)
class DecidedEvent:
    """One event of a change, with its facts."""

    event: TraceRow
    detail: Mapping[str, Any]

    @property
    def place(self) -> tuple[str, int]:
        """Topic and number of its partition."""
        return self.event.topic, self.event.partition

    @property
    def identity(self) -> tuple[object, ...]:
        """The fields that all traces of this event share, and no other event of its change has."""
        event = self.event
        return event.kind, *self.place, event.partition_epoch, event.broker, event.broker_epoch, self.detail.get("name")

    @property
    def taken_over(self) -> bool:
        """Whether a successor of the controller that decided has found it committed."""
        return bool(self.detail.get("taken_over"))


@dataclass(frozen=True, slots=True)
class DecidedChange:
    """One change: its events in the order of its records."""

    offset: int
    events: tuple[DecidedEvent, ...]

    @property
    def of_brokers(self) -> Iterator[DecidedEvent]:
        """Its events that concern brokers."""
        return (each for each in self.events if each.event.kind in OF_BROKERS)

    @property
    def configured(self) -> Iterator[DecidedEvent]:
        """Its events that concern the configurations of topics."""
        return (each for each in self.events if each.event.kind in OF_TOPICS)


@dataclass(slots=True)
class DecidedMetadata:
    """The metadata after the changes so far."""

    partitions: dict[tuple[str, int], DecidedPartition] = field(default_factory=dict)
    brokers: dict[int, DecidedBroker] = field(default_factory=dict)

    def knows(self, brokers: Iterable[int]) -> bool:
        """Whether the changes so far tell of all these brokers."""
        return all(broker in self.brokers for broker in brokers)

    def is_active(self, broker: int) -> bool:
        """Whether a broker may lead and join an ISR."""
        return broker in self.brokers and self.brokers[broker].active

    def apply_to_brokers(self, change: DecidedChange) -> None:
        """Take in what a change says of brokers."""
        for each in change.of_brokers:
            event, known = each.event, self.brokers.get(each.event.broker)
            if event.kind == "broker_registered":
                broker = DecidedBroker(event.broker_epoch, fenced=True, shutting_down=False)
            elif event.kind == "broker_fenced":
                reason = each.detail.get("reason")
                leaves = None if each.taken_over else reason == "controlled_shutdown"
                before = known.shutting_down if known is not None else None
                broker = DecidedBroker(event.broker_epoch, fenced=True, shutting_down=leaves or before or leaves)
            else:
                leaves = event.kind == "broker_shutting_down"
                broker = DecidedBroker(event.broker_epoch, fenced=False, shutting_down=leaves)
            self.brokers[event.broker] = broker

    def apply(self, event: DecidedEvent) -> None:
        """Take in what one event says of a partition."""
        if event.event.kind == "partition_changed":
            self.partitions[event.place] = DecidedPartition.of(event.event, event.detail)
        elif event.event.kind == "partition_deleted":
            self.partitions.pop(event.place, None)

    def apply_all(self, change: DecidedChange) -> None:
        """Take in a whole change."""
        self.apply_to_brokers(change)
        for event in change.events:
            self.apply(event)


@dataclass(slots=True)
class MetadataReplay:
    """Takes changes in as far as the metadata log is read."""

    changes: list[DecidedChange]
    metadata: DecidedMetadata = field(default_factory=DecidedMetadata)
    _done: int = 0

    def read_to(self, end: int) -> bool:
        """Take in the changes that end at `end` or before; whether there were any left."""
        before = self._done
        while self._done < len(self.changes) and self.changes[self._done].offset <= end:
            self.metadata.apply_all(self.changes[self._done])
            self._done += 1
        return self._done > before


class DecidedConfigurations:
    """The configurations of topics that a trace (schema TRACE) tells of, in the order of the metadata log."""

    def __init__(self, trace: pa.Table) -> None:
        self._of: dict[str, dict[int, Mapping[str, str]]] = {}
        """Name of a topic → the end of a change → the configuration since then. One topic at a time has the name."""
        for event in trace_rows(trace.filter(pc.equal(trace.column("kind"), "topic_configured"))):
            detail = event.details()
            self._of.setdefault(detail["name"], {})[event.offset] = detail["config"]
        self._ends = {name: sorted(configurations) for name, configurations in self._of.items()}

    def at(self, topic: str, offset: int) -> Mapping[str, str]:
        """The configuration of a topic (or of `name#2`) in the metadata up to `offset`; empty if it is not known."""
        name = topic.partition("#")[0]
        ends = self._ends.get(name, [])
        place = bisect_right(ends, offset)
        return self._of[name][ends[place - 1]] if place else {}


def decisions_of_partitions(
    trace: pa.Table, kinds: Collection[str] = OF_PARTITIONS
) -> dict[TopicPartition, list[dict[str, Any]]]:
    """The decisions on each partition in a trace (schema TRACE), in the order of the metadata log: rows of these kinds,
    with the facts of their details."""
    wanted = trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(kinds)))
    decided: dict[TopicPartition, list[dict[str, Any]]] = {}
    for row in wanted.sort_by([("offset", "ascending"), ("seq", "ascending")]).to_pylist():
        decided.setdefault((row["topic"], row["partition"]), []).append(row | json.loads(row["detail"] or "{}"))
    return decided


def decided_changes(trace: pa.Table) -> list[DecidedChange]:
    """The changes in a trace (schema TRACE), in the order of the metadata log."""
    kinds = pa.array([*OF_BROKERS, *OF_PARTITIONS, *OF_TOPICS])
    wanted = pc.and_(pc.is_in(trace.column("kind"), value_set=kinds), pc.greater_equal(trace.column("offset"), 0))
    return changes_of(trace_rows(trace.filter(wanted)))


def changes_of(events: Iterable[TraceRow]) -> list[DecidedChange]:
    """The changes of these events, in the order of the metadata log."""
    traced: dict[int, list[DecidedEvent]] = {}
    for event in events:
        traced.setdefault(event.offset, []).append(DecidedEvent(event, event.details()))
    changes = []
    for offset, of_change in sorted(traced.items()):
        known: dict[object, DecidedEvent] = {}
        for each in sorted(of_change, key=lambda each: each.taken_over):
            known.setdefault(each.identity, each)
        changes.append(DecidedChange(offset, tuple(known.values())))
    return changes
