"""Broken steps of metadata that was loaded otherwise than record by record: from a snapshot, or by a controller that
takes charge. What it has up to an offset follows from the changes that controllers have committed below that offset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import TraceRow, trace_rows
from results.explanation.story import Step, StepKind

_OF_BROKERS: Final = ("broker_registered", "broker_fenced", "broker_unfenced", "broker_shutting_down")
_KINDS: Final = ("partition_changed", "partition_deleted", "metadata_loaded", "producer_ids_allocated", *_OF_BROKERS)
_SETS: Final = frozenset({"isr", "elr", "last_known_elr", "replicas", "adding", "removing"})


@dataclass(slots=True)
class _Committed:
    """What controllers have committed so far, each with the end of the metadata log with it."""

    partitions: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    brokers: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    producer_ids: list[tuple[int, int]] = field(default_factory=list)

    def apply(self, event: TraceRow) -> None:
        """Take in one change."""
        detail = event.details()
        if event.kind == "producer_ids_allocated":
            self.producer_ids.append((event.offset, detail["first"] + detail["count"]))
        elif event.kind == "partition_changed":
            state = {name: detail[name] for name in (*sorted(_SETS - {"isr"}), "min_isr") if name in detail}
            epochs = {"leader_epoch": event.leader_epoch, "partition_epoch": event.partition_epoch}
            place = f"{event.topic}-{event.partition}"
            change = {"leader": event.leader, **epochs, "isr": event.members, **state}
            self.partitions.setdefault(place, []).append((event.offset, change))
        elif event.kind == "partition_deleted":  # a later one of its name has a name of its own in the trace
            self.partitions.setdefault(f"{event.topic}-{event.partition}", []).append((event.offset, {}))
        else:
            fenced = event.kind in ("broker_registered", "broker_fenced")
            change = {"epoch": event.broker_epoch, "fenced": fenced}
            self.brokers.setdefault(str(event.broker), []).append((event.offset, change))


def image_steps(trace: pa.Table) -> Iterator[Step]:
    """The broken steps of loaded metadata."""
    committed, loads = _Committed(), list[TraceRow]()
    for event in trace_rows(trace.filter(pc.field("kind").isin(_KINDS))):
        if event.kind == "metadata_loaded":
            loads.append(event)
        else:
            committed.apply(event)
    for event in loads:  # a controller that was deposed may trace late what it had committed
        detail = event.details()
        for name, changes in (*sorted(committed.partitions.items()), *sorted(committed.brokers.items())):
            is_broker = name in committed.brokers
            loaded = detail["brokers" if is_broker else "partitions"].get(name)
            change = _last(changes, event.log_end)
            if is_broker and change is not None and loaded is None:
                yield _step(event, f"no broker b{name}, whose last change ends at {change[0]}")
            elif change is not None and loaded is not None:
                yield from _compared(event, f"broker b{name}" if is_broker else name, change, loaded)
        given = max((end for offset, end in committed.producer_ids if offset <= event.log_end), default=0)
        if detail["next_producer_id"] < given:
            yield _step(
                event, f"the next producer id {detail['next_producer_id']}, though ids below {given} were given"
            )


def _last(changes: list[tuple[int, dict[str, Any]]], end: int) -> tuple[int, dict[str, Any]] | None:
    """The last change of the metadata below `end`, and where it ends."""
    below = sorted((change for change in changes if change[0] <= end), key=lambda change: change[0])
    return below[-1] if below else None


def _compared(
    event: TraceRow, name: str, change: tuple[int, Mapping[str, Any]], loaded: Mapping[str, Any]
) -> Iterator[Step]:
    offset, committed = change
    differing = [
        f"{field.replace('_', ' ')} {_shown(field, loaded.get(field))}, and decided is {_shown(field, value)}"
        for field, value in committed.items()
        if _value(field, loaded.get(field)) != _value(field, value)
    ]
    if differing:
        yield _step(event, f"{name} with {'; '.join(differing)} (by the change that ends at {offset})")


def _step(event: TraceRow, what: str) -> Step:
    did = "took charge with the metadata" if event.number < 0 else "loaded a snapshot of the metadata"
    return Step(
        StepKind.LOADED_METADATA_DIFFERS,
        event.time_ns,
        event.node,
        f"{event.node} {did} up to {event.log_end}, and has in it {what}: what it read is not what was committed",
    )


def _value(field: str, value: Any) -> Any:
    return sorted(value) if field in _SETS and value is not None else value


def _shown(field: str, value: Any) -> str:
    if field in _SETS and value is not None:
        return "{" + ", ".join(f"b{member}" for member in sorted(value)) + "}"
    return f"b{value}" if field == "leader" else str(value)
