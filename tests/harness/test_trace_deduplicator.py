"""A decision of the controllers is in the trace once, whichever controller reports it first."""

from __future__ import annotations

from harness.environments.machines.trace_deduplicator import TraceDeduplicator
from images.trace import TraceEvent


def decided(offset: int, kind: str = "partition_changed", **detail: object) -> TraceEvent:
    return TraceEvent(kind, offset=offset, detail=detail)


def kept_events(*events: tuple[str, TraceEvent]) -> list[int]:
    """The positions of those events that are new."""
    decisions = TraceDeduplicator()
    return [number for number, (node, event) in enumerate(events) if decisions.is_new(node, event)]


def test_what_a_successor_tells_again_is_left_out() -> None:
    events = [("c1", decided(5)), ("c1", decided(6)), ("c2", decided(5, taken_over=True))]
    assert kept_events(*events, ("c2", decided(6, taken_over=True))) == [0, 1]


def test_what_only_the_successor_can_tell_is_heard_with_all_its_events() -> None:
    events = [("c1", decided(5)), *(("c2", decided(7, taken_over=True)) for _ in range(2))]
    assert kept_events(*events, ("c3", decided(7, taken_over=True))) == [0, 1, 2]


def test_several_events_of_one_change_are_all_heard() -> None:
    assert kept_events(*(("c1", decided(5, kind)) for kind in ("broker_fenced", "broker_registered"))) == [0, 1]


def test_what_is_no_decision_is_always_heard() -> None:
    others = [("b1", TraceEvent("appended", offset=1)), ("c1", TraceEvent("alter_partition_refused"))]
    assert kept_events(("c1", decided(5)), *others, *others) == [0, 1, 2, 3, 4]


def test_what_a_controller_takes_over_twice_is_heard_once() -> None:
    """Seed 94000059 of varied runs of 20 s with the workload groups and `schedules: 4`: the only controller to take a
    registration over ends before it knows that to be committed, and takes it over again. `raft` called that a broker
    epoch that was given twice."""
    leads = ("c1", TraceEvent("quorum_leader", leader_epoch=3))
    taken = ("c1", decided(7, "broker_registered", taken_over=True))
    assert kept_events(leads, taken, taken, leads, taken) == [0, 1, 2, 3]
