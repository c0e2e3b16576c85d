"""Promises about what administrators are told, for `checkers.raft`, whose table has them.

The administrator of the faults records each change of the metadata that it asks for, with the times and the answer
(`requests` of the run's recovery). Some changes in the trace are made upon such a request alone: a topic that faults
create is created, deleted or gets more partitions, `configured`, `reassignment`, `reassignment_cancelled`,
`preferred_election`, `unclean_election`. Each of them belongs to a request:

- one that was answered as done, and the change came between request and answer; such a request is carried out once;
- or one in doubt: a broker that was asked did not answer, or could not pass it on for certain. It may be carried out at
  any time from its beginning on, and more than once.

So a change without such a request was made by one that was refused, was made twice, or is another one than was asked
for: partitions up to another number. The reverse: a topic is created
or deleted, or gets the partitions that were asked for, between a request and its answer `done`; the partition has the
replicas or the leader that were asked for at some moment between them, the topic the configuration. That they had it
before does not suffice: a controller that does not know yet that it is deposed would answer by old metadata that
nothing is to be changed, and what its successor has decided meanwhile would be in force. An unclean election that is
answered as done has been decided between them: it is for a partition without a leader. Such a request is refused only
where the partition had a leader at some moment between it and its answer, or had no replica that may lead: unfenced,
and not shutting down.

Example: a broker passes the creation of a topic on, the controller creates it, and its answer is lost. The broker may
say that the request timed out. If it asks once more, it is told TOPIC_ALREADY_EXISTS, and the administrator with it,
although nobody else has created the topic.

A change without such a request that a dry run had asked for is told as that (`checkers.raft.dry_runs`).

Added partitions follow those that the topic has, and have as many replicas as its first has then. What becomes of a
whole configuration is for `checkers.raft.configurations`.

Blind spot: changes that a successor has found committed, of which nothing says why they were made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkers.decided_metadata import (
    NO_LEADER,
    OF_BROKERS,
    DecidedChange,
    DecidedMetadata,
    DecidedPartition,
    MetadataReplay,
    changes_of,
)
from checkers.evidence import CheckSettings
from checkers.raft.configurations import Configurations, configuration_findings, may_become
from checkers.raft.dry_runs import DRY_RUN_OTHERWISE, AdminRecord, dry_run_findings, last_dry_run
from checkers.tables import TraceRow, trace_rows
from checkers.unclean_elections import ELECT_UNCLEAN, UNCLEAN_ELECTION
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
    UNCLEAN_ELECTION: ELECT_UNCLEAN,
}
"""Reason of a `partition_changed` → the request that it is made upon."""
_NOBODY_ELIGIBLE: Final = "ELIGIBLE_LEADERS_NOT_AVAILABLE"
_ELECTION_REFUSED: Final = ("ELECTION_NOT_NEEDED", _NOBODY_ELIGIBLE)
_NOTHING_DECIDED: Final = "no controller had decided on that by then"
_KINDS: Final = ("partition_changed", "partition_deleted", "topic_configured")
_OF_DRY_RUNS: Final = (*_KINDS, *OF_BROKERS)


class _Place(NamedTuple):
    """The change that a request asks for: of a topic, or of one partition."""

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

    def may_be(self, change: _MadeChange) -> bool:
        """Whether a change is one that it asks for, at whatever time."""
        return self.place == change.place and change.partition_count in (None, self.wanted)

    def __str__(self) -> str:
        answer = {_DONE: "done", _UNANSWERED: "no answer"}.get(self.outcome, self.outcome)
        ended = f"{self.ended_ns / 1e9:.6f} s" if self.ended_ns != NEVER else "never"
        what = f"{_named(self.place)} to {self.wanted}" if self.place.change == "grow" else _named(self.place)
        return f"{what}, asked for at {self.began_ns / 1e9:.6f} s, answered at {ended}: {answer}"


class _MadeChange(NamedTuple):
    place: _Place
    offset: int
    time_ns: int
    taken_over: bool
    described: str
    partition_count: int | None = None
    """Of added partitions: how many the topic has with them."""


class _Creations:
    """The creations of partitions among these events, of the topics that faults create."""

    def __init__(self, events: Iterable[TraceRow], side_topics: Collection[str]) -> None:
        self.of: dict[str, dict[int, TraceRow]] = {}
        """Topic, by its name in the trace → partition → its creation, as it was traced first."""
        self._first: dict[str, list[TraceRow]] = {}
        """Topic → every decision on its partition 0."""
        for event in events:
            if event.kind != "partition_changed" or event.topic_name not in side_topics:
                continue
            if event.details().get("reason") == "created":
                self.of.setdefault(event.topic, {}).setdefault(event.partition, event)
            if event.partition == 0:
                self._first.setdefault(event.topic, []).append(event)

    def changes(self) -> Iterator[_MadeChange]:
        """A topic begins with its partition 0; those that one change adds later are created up to one offset."""
        for partitions in self.of.values():
            last_of = {event.offset: number for number, event in sorted(partitions.items()) if number}
            for number, event in partitions.items():
                place = _Place("grow" if number else "create", event.topic_name, -1)
                yield _made(event, place, last_of[event.offset] + 1 if number else None)

    def findings(self) -> Iterator[Finding]:
        """Partitions behind a gap in the numbers, or with another number of replicas. Without the creation of a
        partition 0, which no request adds, the trace has no creation of the topic, and there may be others of it."""
        for topic, partitions in self.of.items():
            for number, event in sorted(partitions.items()):
                before = (each for each in self._first.get(topic, ()) if each.offset <= event.offset)
                first = max(before, key=lambda each: each.offset, default=None) if 0 in partitions else None
                did = (
                    f"{event.node} decided {event.at} to create {topic}-{number}, up to {event.offset} of the metadata"
                )
                if not all(below in partitions for below in range(1, number)):
                    line = f"of the topic there are {sorted(partitions)}"
                    yield Finding("partitions-added-otherwise", (did, line), time_ns=event.time_ns)
                elif first is not None and _replicas(event) != _replicas(first):
                    line = f"it has {_replicas(event)} replicas, and the topic's first had {_replicas(first)}"
                    yield Finding("partitions-added-otherwise", (did, line), time_ns=event.time_ns)


def administration_findings(trace: pa.Table, recovery: Mapping[str, Any], settings: CheckSettings) -> Iterator[Finding]:
    """Every broken promise of a run with these administrator's requests, in its trace (schema TRACE); none of a run
    that recorded no requests."""
    if not recovery.get("requests"):
        return
    requests, dry_runs = [_request(each) for each in recovery["requests"]], recovery.get("dry_runs", ())
    mixed_settings = settings.mixed_settings
    changed = list(trace_rows(trace.filter(pc.is_in(trace.column("kind"), value_set=pa.array(_OF_DRY_RUNS)))))
    events = [event for event in changed if event.kind in _KINDS]
    decided = changes_of(changed)
    creations = _Creations(events, settings.side_topics)
    changes = _once([*creations.changes(), *_changes(events, settings.side_topics)])
    yield from _unasked(changes, requests, dry_runs)
    yield from creations.findings()
    yield from configuration_findings(events, recovery["requests"], dry_runs, mixed_settings=mixed_settings)
    yield from dry_run_findings(changed, dry_runs, recovery["requests"], mixed_settings=mixed_settings)
    for request in requests:
        if request.outcome == _DONE and request.place.change in _OF_TOPICS:
            yield from _undone_of_topic(request, changes)
        elif request.outcome == _DONE:
            yield from _undone(request, events, mixed_settings)
        elif request.place.change == ELECT_UNCLEAN and request.outcome in _ELECTION_REFUSED:
            yield from _refused(request, decided)


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


def _changes(events: Iterable[TraceRow], side_topics: Collection[str]) -> Iterator[_MadeChange]:
    """The changes, but for creations, that are made upon requests alone."""
    for event in events:
        topic, reason = event.topic_name, event.details().get("reason")
        if event.kind == "partition_deleted" and topic in side_topics:
            yield _made(event, _Place("delete", topic, -1))
        elif reason in _CHANGE_OF:
            change = _CHANGE_OF[reason]
            yield _made(event, _Place(change, topic, -1 if change == "configure" else event.partition))


def _made(event: TraceRow, place: _Place, partition_count: int | None = None) -> _MadeChange:
    what = f"{_named(place)} to {partition_count}" if partition_count is not None else _named(place)
    described = f"{event.node} decided {event.at} on {what}, up to {event.offset} of the metadata"
    taken_over = bool(event.details().get("taken_over"))
    return _MadeChange(place, event.offset, event.time_ns, taken_over, described, partition_count)


def _once(changes: Iterable[_MadeChange]) -> list[_MadeChange]:
    """In order of time; of two traces of one change the first."""
    once: dict[tuple[_Place, int], _MadeChange] = {}
    for change in sorted(changes, key=lambda each: each.time_ns):
        once.setdefault((change.place, change.offset), change)
    return list(once.values())


def _unasked(
    changes: Iterable[_MadeChange], requests: Sequence[_AskedChange], dry_runs: Sequence[AdminRecord]
) -> Iterator[Finding]:
    for change in changes:
        asked = [each for each in requests if each.place == change.place and each.began_ns <= change.time_ns]
        done = [
            each
            for each in asked
            if each.outcome == _DONE
            and each.may_be(change)
            and not each.made
            and (each.ended_ns >= change.time_ns or change.taken_over)
        ]
        if done:
            min(done, key=lambda each: each.ended_ns).made = True
        elif not any(each.doubtful and each.may_be(change) for each in asked):
            told = [f"the administrator's last requests: {each}" for each in asked[-2:]]
            none = "no administrator had asked for that"
            dry_run = last_dry_run((each for each in dry_runs if _request(each).may_be(change)), change.time_ns)
            kind, lines = (DRY_RUN_OTHERWISE, [dry_run]) if dry_run else ("change-unasked", told or [none])
            yield Finding(kind, (change.described, *lines), time_ns=change.time_ns)


def _replicas(event: TraceRow) -> int:
    return len(event.details().get("replicas") or ())


def _undone_of_topic(request: _AskedChange, changes: Iterable[_MadeChange]) -> Iterator[Finding]:
    """A request that was answered as done, and that no such change follows by its answer."""
    made = [
        change
        for change in changes
        if change.place == request.place
        and request.began_ns <= change.time_ns
        and (change.time_ns <= request.ended_ns or change.taken_over)
    ]
    if not any(request.may_be(change) for change in made):
        lines = [change.described for change in made] or [_NOTHING_DECIDED]
        yield Finding("answered-undone", (str(request), *lines), time_ns=request.ended_ns)


def _undone(request: _AskedChange, events: Sequence[TraceRow], mixed_settings: bool) -> Iterator[Finding]:
    """A request that was answered as done, and whose partition or topic was in no such state by its answer."""
    first = Configurations(events).first_configurations
    states = [event for event in events if _concerns(request, event) and event.time_ns <= request.ended_ns]
    before = sum(event.time_ns < request.began_ns for event in states)
    since = before if request.place.change == ELECT_UNCLEAN else max(0, before - 1)
    if not any(_holds(request, event, first, mixed_settings) for event in states[since:]):
        yield Finding("answered-undone", (str(request), _NOTHING_DECIDED), time_ns=request.ended_ns)


def _refused(request: _AskedChange, changes: Sequence[DecidedChange]) -> Iterator[Finding]:
    """An unclean election that was refused although nobody led until the answer, or, too, a replica might."""
    place, able = (request.place.topic, request.place.partition), None
    for partition, metadata in _states(place, changes, request.began_ns, request.ended_ns):
        able = [replica for replica in partition.replicas if metadata.is_active(replica)]
        nobody_able = request.outcome == _NOBODY_ELIGIBLE and not able
        if partition.leader != NO_LEADER or nobody_able or not metadata.knows(partition.replicas):
            return
    if able is not None:
        might = ", ".join(f"b{replica}" for replica in able) or "nobody"
        line = f"the partition had no leader from before the request to the answer; at last {might} might lead"
        yield Finding("election-refused", (str(request), line), time_ns=request.ended_ns)


def _states(
    place: tuple[str, int], changes: Sequence[DecidedChange], began_ns: int, ended_ns: int
) -> Iterator[tuple[DecidedPartition, DecidedMetadata]]:
    """The states of a partition, and of the metadata, between these times, with the one that it had before them."""
    replay = MetadataReplay(list(changes))
    for change in changes:
        time_ns = min(each.event.time_ns for each in change.events)
        if time_ns > began_ns and place in replay.metadata.partitions:
            yield replay.metadata.partitions[place], replay.metadata
        if time_ns > ended_ns:
            return
        replay.read_to(change.offset)
    if place in replay.metadata.partitions:
        yield replay.metadata.partitions[place], replay.metadata


def _concerns(request: _AskedChange, event: TraceRow) -> bool:
    """Whether an event tells of the state that a request is to change."""
    change, topic, partition = request.place
    if change == "configure":
        return event.kind == "topic_configured" and event.details()["name"] == topic
    return event.kind == "partition_changed" and (event.topic_name, event.partition) == (topic, partition)


def _holds(
    request: _AskedChange, event: TraceRow, first: Mapping[str, Mapping[str, str]], mixed_settings: bool
) -> bool:
    """Whether this state of the partition, or of the topic, is as a request wants it. Topics have these `first`
    configurations."""
    change, leader, detail = request.place.change, event.leader, event.details()
    replicas, removing = detail.get("replicas") or [], detail.get("removing") or ()
    if change == "configure":
        config = detail["config"]
        return may_become(config, config, request.wanted, first[detail["id"]], mixed_settings=mixed_settings)
    if change == "elect":
        return bool(replicas[:1] == [leader])
    if change == ELECT_UNCLEAN:
        return leader != NO_LEADER
    if change == "cancel":
        return not detail.get("adding") and not removing
    return bool([replica for replica in replicas if replica not in removing] == request.wanted)


def _named(place: _Place) -> str:
    where = place.topic if place.partition < 0 else f"{place.topic}-{place.partition}"
    return f"{place.change} {where}"
