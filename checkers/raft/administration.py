"""Promises about what administrators are told, for `checkers.raft`, whose table has them.

The administrator of the faults records each change of the metadata that it asks for, with the times and the answer
(`requests` of the run's recovery). Some changes in the trace are made upon such a request alone: a topic that faults
create is created, deleted or gets more partitions, `configured`, `reassignment`, `reassignment_cancelled`,
`preferred_election`. Each of them belongs to a request:

- one that was answered as done, and the change came between request and answer; such a request is carried out once;
- or one in doubt: a broker that was asked did not answer, or could not pass it on for certain. It may be carried out at
  any time from its beginning on, and more than once.

So a change without such a request was made by one that was refused, or was made twice. The reverse: a topic is created
or deleted, or gets the partitions that were asked for, between a request and its answer `done`; the partition has the
replicas or the leader that were asked for at some moment between them, the topic the configuration. Where a fault has
struck any controller, one that does not know yet that it is deposed may answer by old metadata that nothing is to be
changed; there they may have had it before.

Example: a broker passes the creation of a topic on, the controller creates it, and its answer is lost. The broker may
say that the request timed out. If it asks once more, it is told TOPIC_ALREADY_EXISTS, and the administrator with it,
although nobody else has created the topic.

Added partitions follow those that the topic has, and have as many replicas as its first. What becomes of a whole
configuration is for `checkers.raft.configurations`.

Blind spot: changes that a successor has found committed, of which nothing says why they were made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkers.raft.configurations import Configurations, altered, configuration_findings
from checkers.tables import TraceRow, trace_rows
from checkers.verdict import Finding
from workloads.columns import NEVER

_DONE: Final = ""
_UNANSWERED: Final = "UNANSWERED"
_OF_TOPICS: Final = ("create", "grow", "delete")
_CHANGE_OF: Final = {
    "configured": "configure",
    "reassignment": "reassign",
    "reassignment_cancelled": "cancel",
    "preferred_election": "elect",
}
"""Reason of a `partition_changed` → the request that it is made upon."""
_KINDS: Final = ("partition_changed", "partition_deleted", "topic_configured", "quorum_recovered")


class _Place(NamedTuple):
    """What a request is for: a change of a topic, or of one partition."""

    change: str
    topic: str
    partition: int


@dataclass(slots=True)
class _AskedChange:
    place: _Place
    wanted: Any
    began_ns: int
    ended_ns: int
    outcome: str
    doubtful: bool
    """Whether it may be carried out at any time, and more than once."""
    made: bool = False
    """Whether the one change that it was answered for is known."""

    def __str__(self) -> str:
        answer = {_DONE: "done", _UNANSWERED: "no answer"}.get(self.outcome, self.outcome)
        ended = f"{self.ended_ns / 1e9:.6f} s" if self.ended_ns != NEVER else "never"
        return f"{_named(self.place)}, asked for at {self.began_ns / 1e9:.6f} s, answered at {ended}: {answer}"


class _MadeChange(NamedTuple):
    place: _Place
    time_ns: int
    taken_over: bool
    described: str
    then: int | None = None
    """Of added partitions: how many the topic has then."""


def administration_findings(
    trace: pa.Table, recovery: Mapping[str, Any], side_topics: Sequence[str], struck: Collection[str] = ()
) -> Iterator[Finding]:
    """Every broken promise of a run with these administrator's requests, in its trace (schema TRACE); none of a run
    that recorded no requests. Faults have `struck` these nodes."""
    if not recovery.get("requests"):
        return
    requests = [_request(each) for each in recovery["requests"]]
    events = list(trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_KINDS)))))
    changes = list(_changes(events, side_topics))
    yield from _unasked(changes, requests)
    yield from _added_otherwise(events, side_topics)
    yield from configuration_findings(events, recovery["requests"], side_topics)
    up_to_date = not any(event.node in struck for event in events)
    yield from _undone(changes, requests, events, up_to_date)


def _request(recorded: Mapping[str, Any]) -> _AskedChange:
    outcome, ended_ns = recorded["outcome"], recorded.get("ended_ns")
    return _AskedChange(
        _Place(recorded["change"], recorded["topic"], recorded["partition"]),
        recorded.get("wanted"),
        recorded["began_ns"],
        NEVER if ended_ns is None else ended_ns,
        outcome,
        recorded["in_doubt"],
    )


def _changes(events: Sequence[TraceRow], side_topics: Sequence[str]) -> Iterator[_MadeChange]:
    """The changes that are made upon requests alone, in the order in which they were traced; of two traces of one the
    first."""
    seen: set[tuple[_Place, int]] = set()
    counts = _counts(events)
    for event in events:
        detail, topic = event.details(), event.topic.partition("#")[0]
        reason, side = detail.get("reason"), topic in side_topics
        if event.kind == "partition_deleted":
            place = _Place("delete", topic, -1) if side else None
        elif reason == "created":
            place = _Place("grow" if event.partition else "create", topic, -1) if side else None
        elif reason in _CHANGE_OF:
            change = _CHANGE_OF[reason]
            place = _Place(change, topic, -1 if change == "configure" else event.partition)
        else:
            place = None
        if place is None or (place, event.offset) in seen:
            continue
        seen.add((place, event.offset))
        described = f"{event.node} decided {event.at} on {_named(place)}, up to {event.offset} of the metadata"
        count = counts.get((event.topic, event.offset)) if place.change == "grow" else None
        yield _MadeChange(place, event.time_ns, bool(detail.get("taken_over")), described, count)


def _counts(events: Iterable[TraceRow]) -> dict[tuple[str, int], int]:
    """How many partitions a topic has once those are there that are created up to an offset of the metadata."""
    counts: dict[tuple[str, int], int] = {}
    for event in events:
        if event.kind == "partition_changed" and event.details().get("reason") == "created":
            place = event.topic, event.offset
            counts[place] = max(counts.get(place, 0), event.partition + 1)
    return counts


def _unasked(changes: Iterable[_MadeChange], requests: Sequence[_AskedChange]) -> Iterator[Finding]:
    for change in sorted(changes, key=lambda each: each.time_ns):
        asked = [each for each in requests if each.place == change.place and each.began_ns <= change.time_ns]
        done = [
            each
            for each in asked
            if each.outcome == _DONE and not each.made and (each.ended_ns >= change.time_ns or change.taken_over)
        ]
        if done:
            min(done, key=lambda each: each.ended_ns).made = True
        elif not any(each.doubtful for each in asked):
            told = [f"the administrator's last requests: {each}" for each in asked[-2:]]
            none = "no administrator had asked for that"
            yield Finding("change-unasked", (change.described, *(told or [none])), time_ns=change.time_ns)


def _added_otherwise(events: Iterable[TraceRow], side_topics: Sequence[str]) -> Iterator[Finding]:
    created: dict[str, dict[int, TraceRow]] = {}
    for event in events:
        reason = event.details().get("reason") if event.kind == "partition_changed" else None
        if reason == "created" and event.topic.partition("#")[0] in side_topics:
            created.setdefault(event.topic, {}).setdefault(event.partition, event)
    for topic, partitions in created.items():
        first = partitions.get(0)
        for number, event in sorted(partitions.items()):
            did = f"{event.node} decided {event.at} to create {topic}-{number}, up to {event.offset} of the metadata"
            if not all(below in partitions for below in range(1, number)):
                line = f"of the topic there are {sorted(partitions)}"
                yield Finding("partitions-added-otherwise", (did, line), time_ns=event.time_ns)
            elif first is not None and _replicas(event) != _replicas(first):
                line = f"it has {_replicas(event)} replicas, and the topic's first has {_replicas(first)}"
                yield Finding("partitions-added-otherwise", (did, line), time_ns=event.time_ns)


def _replicas(event: TraceRow) -> int:
    return len(event.details().get("replicas") or ())


def _undone(
    changes: Sequence[_MadeChange], requests: Iterable[_AskedChange], events: Sequence[TraceRow], up_to_date: bool
) -> Iterator[Finding]:
    born = Configurations(events).born
    for request in requests:
        if request.outcome != _DONE:
            continue
        if request.place.change in _OF_TOPICS:
            done = any(
                change.place == request.place
                and request.began_ns <= change.time_ns
                and (change.time_ns <= request.ended_ns or change.taken_over)
                and change.then in (None, request.wanted)
                for change in changes
            )
        else:
            states = [event for event in events if _concerns(request, event) and event.time_ns <= request.ended_ns]
            if up_to_date:
                before = sum(event.time_ns < request.began_ns for event in states)
                states = states[max(0, before - 1) :]
            done = any(_holds(request, event, born) for event in states)
        if not done:
            line = "no controller had decided on that by then"
            yield Finding("answered-undone", (str(request), line), time_ns=request.ended_ns)


def _concerns(request: _AskedChange, event: TraceRow) -> bool:
    """Whether an event tells of the state that a request is to change."""
    change, topic, partition = request.place
    if change == "configure":
        return event.kind == "topic_configured" and event.details()["name"] == topic
    return event.kind == "partition_changed" and (event.topic, event.partition) == (topic, partition)


def _holds(request: _AskedChange, event: TraceRow, born: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether this state of the partition, or of the topic, is as a request wants it. Topics were `born` with these
    configurations."""
    change, leader, detail = request.place.change, event.leader, event.details()
    replicas, removing = detail.get("replicas") or [], detail.get("removing") or ()
    if change == "configure":
        return altered(detail["config"], request.wanted, born[detail["id"]]) == detail["config"]
    if change == "elect":
        return bool(replicas[:1] == [leader])
    if change == "cancel":
        return not detail.get("adding") and not removing
    return bool([replica for replica in replicas if replica not in removing] == request.wanted)


def _named(place: _Place) -> str:
    where = place.topic if place.partition < 0 else f"{place.topic}-{place.partition}"
    return f"{place.change} {where}"
