"""A decision of the controllers is in the trace once, whichever controller reports it first."""

from __future__ import annotations

from harness.environments.machines.trace_deduplicator import TraceDeduplicator
from images.trace import TraceEvent


def decided(offset: int, kind: str = "partition_changed", partition: int = 0, **detail: object) -> TraceEvent:
    return TraceEvent(kind, topic="t", partition=partition, offset=offset, detail=detail)


def kept_events(*events: TraceEvent) -> list[int]:
    """The positions of those events that are new."""
    decisions = TraceDeduplicator()
    return [number for number, event in enumerate(events) if decisions.is_new(event)]


def test_what_a_successor_tells_again_is_left_out() -> None:
    events = [decided(5), decided(6), decided(5, taken_over=True), decided(6, taken_over=True)]
    assert kept_events(*events) == [0, 1]


def test_what_only_the_successor_can_tell_is_heard_with_all_its_events() -> None:
    taken = [decided(7, partition=number, taken_over=True) for number in range(2)]
    assert kept_events(decided(5), *taken, *taken) == [0, 1, 2]


def test_several_events_of_one_change_are_all_heard() -> None:
    assert kept_events(*(decided(5, kind) for kind in ("broker_fenced", "broker_registered"))) == [0, 1]


def test_the_rest_of_a_change_that_was_traced_in_part_is_heard_from_the_successor() -> None:
    taken = [decided(5, partition=number, taken_over=True) for number in range(3)]
    assert kept_events(decided(5), *taken) == [0, 2, 3]
    topics = [TraceEvent("topic_configured", offset=5, detail={"name": name, "taken_over": True}) for name in "tu"]
    assert kept_events(TraceEvent("topic_configured", offset=5, detail={"name": "t"}), *topics) == [0, 2]


def test_a_controller_that_tells_of_its_own_change_late_is_heard() -> None:
    assert kept_events(decided(5, taken_over=True), decided(6), decided(5)) == [0, 1, 2]


def test_what_is_no_decision_is_always_heard() -> None:
    others = [TraceEvent("appended", offset=1), TraceEvent("alter_partition_refused")]
    assert kept_events(decided(5), *others, *others) == [0, 1, 2, 3, 4]


def test_what_a_controller_takes_over_twice_is_heard_once() -> None:
    """Seed 94000059 of varied runs of 20 s with the workload groups and `schedules: 4`: the only controller to take a
    registration over ends before it knows that to be committed, and takes it over again. `raft` called that a broker
    epoch that was given twice."""
    taken = decided(7, "broker_registered", taken_over=True)
    assert kept_events(TraceEvent("quorum_leader", leader_epoch=3), taken, taken) == [0, 1]
