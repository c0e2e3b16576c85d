"""Edits of the protocol trace: where an event can be changed or added, and the evidence after that."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa

from checkers.evidence import RunEvidence
from checkers.tables import TRACE
from tests.checkers.anomalies.anomaly import Injection
from tests.checkers.anomalies.places import Row, rows_of, shuffled


def events_of(evidence: RunEvidence) -> list[Row]:
    """The trace, in order."""
    events: list[Row] = evidence.trace.sort_by("seq").to_pylist()
    return events


def facts_of(event: Row) -> dict[str, Any]:
    """What the detail of an event says."""
    facts: dict[str, Any] = json.loads(event["detail"] or "{}")
    return facts


def places_in(evidence: RunEvidence, events: list[Row], random: Random, *kinds: str) -> Iterator[int]:
    """Positions of events of these kinds that happen while an operation of a client is open, in a random order."""
    open_between = [(row["invoked_ns"], row["completed_ns"] or row["invoked_ns"]) for row in rows_of(evidence.history)]
    first = min((begin for begin, _ in open_between), default=0)
    last = max((end for _, end in open_between), default=0)
    yield from shuffled(
        [place for place, event in enumerate(events) if event["kind"] in kinds and first <= event["time_ns"] <= last],
        random,
    )


def changed(evidence: RunEvidence, events: list[Row], line: str, event: Row, offset: int = -1) -> Injection:
    """The evidence with these events for its trace; `line` says what was done to `event`."""
    trace = pa.Table.from_pylist([row | {"seq": number} for number, row in enumerate(events)], TRACE)
    partition = event["partition"] if event["topic"] else -1
    return Injection(replace(evidence, trace=trace), line, event["topic"], partition, offset)


def edited(
    evidence: RunEvidence,
    random: Random,
    kinds: tuple[str, ...],
    edit: Callable[[list[Row], int], tuple[list[Row], str, int] | None],
) -> Injection | None:
    """The trace after `edit`, which returns the events, the edit in words and the offset to be named, at the first
    random place where it fits."""
    events = events_of(evidence)
    for place in places_in(evidence, events, random, *kinds):
        result = edit(events, place)
        if result is not None:
            edited_events, line, offset = result
            return changed(evidence, edited_events, line, events[place], offset)
    return None


def with_fields(events: list[Row], place: int, **fields: Any) -> list[Row]:
    """The events with other fields at a place."""
    return [*events[:place], events[place] | fields, *events[place + 1 :]]


def with_facts(events: list[Row], place: int, **facts: Any) -> list[Row]:
    """The events with another detail at a place."""
    return with_fields(events, place, detail=json.dumps(facts_of(events[place]) | facts))


def inserted(events: list[Row], place: int, event: Row) -> list[Row]:
    """The events with one more behind a place."""
    return [*events[: place + 1], event, *events[place + 1 :]]
