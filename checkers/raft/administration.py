"""Promises about what administrators are told, for `checkers.raft`, whose table has them.

The administrator of the faults records each change of the metadata that it asks for, with the times and the answer
(`requests` of the run's recovery). Some changes in the trace are made upon such a request alone: a topic that faults
create is created or deleted, `configured`, `reassignment`, `reassignment_cancelled`, `preferred_election`. Each of them
belongs to a request:

- one that was answered as done, and the change came between request and answer; such a request is carried out once;
- or one in doubt: a broker that was asked did not answer, or could not pass it on for certain. It may be carried out at
  any time from its beginning on, and more than once.

So a change without such a request was made by one that was refused, or was made twice. The reverse: a topic is created
or deleted between a request and its answer `done`; a partition has had by then the replicas, the leader or the minimum
that were asked for. It may have had them long before, since a controller that does not know yet that it is deposed
answers by old metadata where nothing is to be changed.

Example: a broker passes the creation of a topic on, the controller creates it, and its answer is lost. The broker may
say that the request timed out. If it asks once more, it is told TOPIC_ALREADY_EXISTS, and the administrator with it,
although nobody else has created the topic.

Blind spot: changes that a successor has found committed, of which nothing says why they were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkers.tables import TraceRow, trace_rows
from checkers.verdict import Finding
from workloads.columns import NEVER

_DONE: Final = ""
_UNANSWERED: Final = "UNANSWERED"
_OF_TOPICS: Final = ("create", "delete")
_CHANGE_OF: Final = {
    "configured": "configure",
    "reassignment": "reassign",
    "reassignment_cancelled": "cancel",
    "preferred_election": "elect",
}
"""Reason of a `partition_changed` → the request that it is made upon."""
_MINIMUM: Final = "min.insync.replicas"


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


def administration_findings(
    trace: pa.Table, recovery: Mapping[str, Any], side_topics: Sequence[str]
) -> Iterator[Finding]:
    """Every broken promise of a run with these administrator's requests, in its trace (schema TRACE); none of a run
    that recorded no requests."""
    if not recovery.get("requests"):
        return
    requests = [_request(each) for each in recovery["requests"]]
    kinds = pa.array(["partition_changed", "partition_deleted"])
    events = list(trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=kinds))))
    changes = list(_changes(events, side_topics))
    yield from _unasked(changes, requests)
    yield from _undone(changes, requests, events)


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


def _changes(events: Iterable[TraceRow], side_topics: Sequence[str]) -> Iterator[_MadeChange]:
    """The changes that are made upon requests alone, in the order in which they were traced; of two traces of one the
    first."""
    seen: set[tuple[_Place, int]] = set()
    for event in events:
        detail, topic = event.details(), event.topic.partition("#")[0]
        reason, side = detail.get("reason"), topic in side_topics
        if event.kind == "partition_deleted":
            place = _Place("delete", topic, -1) if side else None
        elif reason == "created":
            place = _Place("create", topic, -1) if side else None
        elif reason in _CHANGE_OF:
            change = _CHANGE_OF[reason]
            place = _Place(change, topic, -1 if change == "configure" else event.partition)
        else:
            place = None
        if place is None or (place, event.offset) in seen:
            continue
        seen.add((place, event.offset))
        described = f"{event.node} decided {event.at} on {_named(place)}, up to {event.offset} of the metadata"
        yield _MadeChange(place, event.time_ns, bool(detail.get("taken_over")), described)


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


def _undone(
    changes: Sequence[_MadeChange], requests: Iterable[_AskedChange], events: Sequence[TraceRow]
) -> Iterator[Finding]:
    for request in requests:
        if request.outcome != _DONE:
            continue
        if request.place.change in _OF_TOPICS:
            done = any(
                change.place == request.place
                and request.began_ns <= change.time_ns
                and (change.time_ns <= request.ended_ns or change.taken_over)
                for change in changes
            )
        else:
            states = (event for event in events if event.time_ns <= request.ended_ns)
            done = any(_holds(request, event) for event in states)
        if not done:
            line = "no controller had decided on that by then"
            yield Finding("answered-undone", (str(request), line), time_ns=request.ended_ns)


def _holds(request: _AskedChange, event: TraceRow) -> bool:
    """Whether a partition is, after a change, as a request wants it; what nothing is known of counts as wanted."""
    change, topic, partition = request.place
    if event.kind != "partition_changed" or event.topic != topic or partition not in (-1, event.partition):
        return False
    detail = event.details()
    replicas = list(detail.get("replicas") or ())
    if change == "configure":
        key, value = request.wanted
        return key != _MINIMUM or detail.get("min_isr") == min(int(value), len(replicas))
    if change == "elect":
        return event.leader == (replicas or [event.leader])[0]
    if change == "cancel":
        return not detail.get("adding") and not detail.get("removing")
    removing = detail.get("removing") or ()
    return [replica for replica in replicas if replica not in removing] == request.wanted


def _named(place: _Place) -> str:
    where = place.topic if place.partition < 0 else f"{place.topic}-{place.partition}"
    return f"{place.change} {where}"
