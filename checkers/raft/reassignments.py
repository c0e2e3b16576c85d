"""Promises about the reassignments that administrators are told of, for `checkers.raft`, whose table has them.

An administrator asks now and then each broker which reassignments are under way (ListPartitionReassignments), and
records the answers (`told_reassignments` of the run's recovery). A controller answers once the metadata that it answers
from have turned out to be the newest. So of every partition it tells what the controllers had decided at some moment
between the question and the answer: its replicas, and those that are being added and removed; or nothing, where no
reassignment was under way or the partition did not exist.

A controller traces a decision once that is committed, so an answer from the metadata before one that was traced before
the question is too old.

Example: c1 does not know that c2 leads by now. A reassignment is asked for and answered as done by c2. A broker that
still knows c1 as the controller passes the question on to it, and tells that none is under way.

Blind spots: partitions are judged one by one; answers of errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkers.decided_metadata import OF_PARTITIONS
from checkers.tables import TraceRow, trace_rows
from checkers.verdict import Finding

MISSTATED: Final = "reassignments-misstated"

_Place = tuple[str, int]
"""Topic, as brokers name it, and number of a partition."""


class _Reassignment(NamedTuple):
    """Replicas in order of preference, and which of them are being added and removed."""

    replicas: tuple[int, ...]
    adding: frozenset[int]
    removing: frozenset[int]

    @classmethod
    def of(cls, replicas: Iterable[int], adding: Iterable[int], removing: Iterable[int]) -> _Reassignment:
        return cls(tuple(replicas), frozenset(adding), frozenset(removing))

    def __str__(self) -> str:
        return f"of replicas {list(self.replicas)}, adding {sorted(self.adding)}, removing {sorted(self.removing)}"


class _Decision(NamedTuple):
    """What was under way for a partition from an offset of the metadata on, and when that was first traced."""

    offset: int
    time_ns: int
    reassignment: _Reassignment | None

    def __str__(self) -> str:
        what = f"a reassignment {self.reassignment}" if self.reassignment is not None else "no reassignment"
        return f"{what}, up to {self.offset} of the metadata, decided at {self.time_ns / 1e9:.6f} s"


def reassignment_findings(trace: pa.Table, told: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Every answer about reassignments that contradicts what was decided, in a run with this trace (schema TRACE)."""
    if not told:
        return
    of_partitions = pc.is_in(trace.column("kind"), value_set=pa.array(OF_PARTITIONS))
    decided = _decisions(sorted(trace_rows(trace.filter(of_partitions)), key=lambda event: event.time_ns))
    for answer in told:
        earlier = [each.offset for each in chain(*decided.values()) if each.time_ns < answer["began_ns"]]
        yield from _contradictions(answer, decided, max(earlier, default=-1))


def _decisions(events: Iterable[TraceRow]) -> Mapping[_Place, list[_Decision]]:
    """The decisions on every partition, in the order of the metadata log; of two traces of one the first counts."""
    first: dict[_Place, dict[int, _Decision]] = {}
    for event in events:
        reassignment, detail = None, event.details()
        adding, removing = detail.get("adding") or (), detail.get("removing") or ()
        if adding or removing:
            reassignment = _Reassignment.of(detail["replicas"], adding, removing)
        decision = _Decision(event.offset, event.time_ns, reassignment)
        first.setdefault((event.topic_name, event.partition), {}).setdefault(event.offset, decision)
    return {place: sorted(of_partition.values()) for place, of_partition in first.items()}


def _contradictions(
    answer: Mapping[str, Any], decided: Mapping[_Place, Sequence[_Decision]], known_end: int
) -> Iterator[Finding]:
    """The partitions of which an answer tells what held at no moment since the metadata up to `known_end`."""
    told = {(topic, number): _Reassignment.of(*facts) for topic, number, *facts in answer["reassignments"]}
    for place in sorted(told.keys() | decided.keys()):
        decisions = decided.get(place, ())
        count = sum(decision.offset <= known_end for decision in decisions)
        possible = [
            decision
            for decision in decisions[max(0, count - 1) :]
            if decision.offset <= known_end or decision.time_ns <= answer["ended_ns"]
        ]
        known = {decision.reassignment for decision in possible} | (set() if count else {None})
        if told.get(place) not in known:
            yield _contradiction(answer, place, told.get(place), possible, known_end)


def _contradiction(
    answer: Mapping[str, Any],
    place: _Place,
    told: _Reassignment | None,
    possible: Sequence[_Decision],
    known_end: int,
) -> Finding:
    topic, number = place
    began, ended = (answer[name] / 1e9 for name in ("began_ns", "ended_ns"))
    what = f"a reassignment {told}" if told is not None else "no reassignment"
    did = f"{answer['broker']}, asked from {began:.6f} to {ended:.6f} s, told of {what} of {topic}-{number}"
    known = f"before it was asked, the metadata were committed up to {known_end}"
    lines = [f"decided since then: {decision}" for decision in possible] or ["nothing was decided on it"]
    return Finding(MISSTATED, (did, known, *lines), topic=topic, partition=number, time_ns=answer["ended_ns"])
