"""When the protocol was asked for more than it promises."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from checkers.evidence import CheckSettings, RunEvidence
from checkers.fault_model import ReplicaLoss, fault_model_excesses, node_failures, replica_losses, tolerances
from checkers.tables import injected_ns, stalls, wrong_timers
from tests.checkers import small_evidence
from tests.checkers.small_evidence import S
from tests.checkers.small_histories import append

T = ("t", 0)
NO_TRACE = small_evidence.trace()


def evidence(events: list[dict[str, Any]], *faults: dict[str, Any], **settings: Any) -> RunEvidence:
    return RunEvidence(
        history=small_evidence.history([append(1, 1, 2, 0)]),
        trace=small_evidence.trace(*events),
        faults=small_evidence.faults(*faults),
        settings=CheckSettings(**settings),
    )


def appended(time_s: float, node: str, offset: int, end: int) -> dict[str, Any]:
    return small_evidence.event(time_s, node, "appended", offset=offset, log_end=end, leader_epoch=1)


def recovered(time_s: float, node: str, end: int) -> dict[str, Any]:
    return small_evidence.event(time_s, node, "log_recovered", offset=0, log_end=end)


def power_loss(node: str, started_s: float) -> dict[str, Any]:
    return small_evidence.fault("power-loss", [node], started_s, started_s + 1, {"killed": 1, "lost_bytes": 100})


FULL = [appended(1, node, 0, 10) for node in ("b1", "b2", "b3")]


def test_two_replicas_without_one_record_at_one_time_exceed_min_isr_two() -> None:
    events = [*FULL, recovered(6, "b1", 4), recovered(8, "b2", 7)]
    (excess,) = tolerances(evidence(events, power_loss("b1", 5), power_loss("b2", 7)))[T].exceeded
    assert (excess.offset, excess.time_ns) == (7, 7 * small_evidence.S)


def decided(time_s: float, minimum: int, *isr: int, offset: int = -1, partition_epoch: int = 0) -> dict[str, Any]:
    detail = {"min_isr": minimum, "replicas": [1, 2, 3], "reason": "created" if time_s == 1 else "configured"}
    place = {"offset": int(10 * time_s) if offset < 0 else offset, "partition_epoch": partition_epoch}
    return small_evidence.event(time_s, "c1", "partition_changed", detail, members=list(isr), **place)


@pytest.mark.parametrize(("raised_s", "rejoined_s", "exceeded"), [(4.5, 7, True), (4, 4.5, False), (6, 7, True)])
def test_a_lowered_minimum_counts_until_the_isr_suffices(raised_s: float, rejoined_s: float, exceeded: bool) -> None:
    decisions = [decided(1, 2, 1, 2, 3), decided(2, 2, 1), decided(3, 1, 1), decided(raised_s, 2, 1)]
    events = [*FULL, *decisions, decided(rejoined_s, 2, 1, 2), recovered(6, "b1", 4)]
    assert bool(tolerances(evidence(events, power_loss("b1", 5)))) is exceeded


def test_each_decision_of_a_change_tells_of_the_minimum() -> None:
    """Both have the offset of their change."""
    of_one_change = [decided(3, 2, 1, offset=30, partition_epoch=1), decided(3, 1, 1, offset=30, partition_epoch=2)]
    events = [*FULL, decided(1, 2, 1, 2, 3), *of_one_change, recovered(6, "b1", 4)]
    assert tolerances(evidence(events, power_loss("b1", 5)))[T].exceeded


@pytest.mark.parametrize("place", [{"comparable_clocks": False}, {"has_trace": False, "has_decisions": True}])
def test_a_minimum_that_was_lowered_at_an_unknown_time_counts_always(place: dict[str, bool]) -> None:
    for lowest, exceeded in ((1, True), (2, False)):
        events = [*FULL, decided(1, 2, 1, 2, 3), decided(8, lowest, 1, 2, 3), decided(9, 2, 1, 2, 3)]
        assert bool(tolerances(evidence(events, power_loss("b1", 5), **place))[T].exceeded) is exceeded


def test_a_loss_after_the_first_replica_has_caught_up_does_not_exceed_the_fault_model() -> None:
    events = [*FULL, recovered(6, "b1", 4), appended(6.5, "b1", 4, 10), recovered(8, "b2", 4)]
    assert tolerances(evidence(events, power_loss("b1", 5), power_loss("b2", 7))) == {}


def test_a_replica_half_caught_up_exceeds_the_fault_model_from_its_log_end() -> None:
    events = [*FULL, recovered(6, "b1", 4), appended(6.5, "b1", 4, 6), recovered(8, "b2", 0)]
    (excess,) = tolerances(evidence(events, power_loss("b1", 5), power_loss("b2", 7)))[T].exceeded
    assert excess.offset == 6


def test_losses_of_different_tails_do_not_exceed_the_fault_model() -> None:
    events = [
        appended(1, "b1", 0, 10),
        appended(1, "b2", 0, 5),
        recovered(6, "b1", 8),
        recovered(6, "b2", 4),
    ]
    assert tolerances(evidence(events, power_loss("b1", 5), power_loss("b2", 5))) == {}


def deleted(time_s: float, node: str) -> dict[str, Any]:
    return small_evidence.event(time_s, node, "replica_deleted")


def test_a_broker_that_was_never_a_replica_has_lost_nothing_of_a_partition() -> None:
    """Of b4 and b5 no recovery of a log is traced, since they have none."""

    def decided(time_s: float, offset: int, reason: str, *replicas: int) -> dict[str, Any]:
        detail = {"reason": reason, "replicas": replicas}
        return small_evidence.event(time_s, "c1", "partition_changed", detail, offset=offset, members=[1, 2, 3])

    losses = [power_loss("b4", 5), power_loss("b5", 5)]
    created, grown = decided(0.5, 3, "created", 1, 2, 3), decided(4, 9, "reassignment", 1, 2, 3, 4, 5)

    def exceeded(*decisions: dict[str, Any], recovery: dict[str, Any]) -> bool:
        run = evidence([*decisions[:1], *FULL, *decisions[1:]], *losses)
        return T in tolerances(replace(run, recovery=recovery))

    assert not exceeded(created, recovery=small_evidence.WHOLE)
    assert exceeded(created, grown, recovery=small_evidence.WHOLE)
    assert exceeded(grown, recovery=small_evidence.WHOLE), "the first decisions are not known"
    assert exceeded(created, recovery={}), "nor the last ones of a run that was killed"


@pytest.mark.parametrize(
    "b1",
    [
        [deleted(3, "b1"), recovered(6, "b1", 0)],
        [deleted(3, "b1"), appended(4, "b1", 0, 4), recovered(6, "b1", 4)],
        [recovered(5.5, "b1", 4), deleted(5.6, "b1")],
    ],
    ids=["deleted before", "added again", "deleted after its loss"],
)
def test_a_replica_that_was_removed_lost_none_of_the_records_it_deleted(b1: list[dict[str, Any]]) -> None:
    events = [*FULL, *b1, recovered(7, "b2", 4)]
    assert tolerances(evidence(events, power_loss("b1", 5), power_loss("b2", 5.8))) == {}
    kept = [*FULL, recovered(6, "b1", 4), recovered(7, "b2", 4)]
    assert T in tolerances(evidence(kept, power_loss("b1", 5), power_loss("b2", 5.8)))


def elected(time_s: float, leader: int, reason: str = "last_known_leader") -> dict[str, Any]:
    detail = {"reason": reason, "unclean": True}
    return small_evidence.event(time_s, "c1", "partition_changed", leader=leader, leader_epoch=2, detail=detail)


def test_what_the_last_known_leader_lost_before_its_election_may_be_gone() -> None:
    events = [*FULL, recovered(6, "b1", 4), elected(7, 1)]
    (excess,) = tolerances(evidence(events, power_loss("b1", 5)))[T].exceeded
    assert (excess.offset, excess.time_ns) == (4, 7 * small_evidence.S)
    assert "last-known-leader" in excess.lines[0]


@pytest.mark.parametrize(
    "events",
    [
        [*FULL, recovered(6, "b1", 4), elected(7, 2)],
        [*FULL, recovered(6, "b1", 4), appended(6.5, "b1", 4, 10), elected(7, 1)],
        [*FULL, elected(4, 1), recovered(6, "b1", 4)],
        [*FULL, recovered(6, "b1", 4), elected(7, 1, "unclean_recovery")],
        [*FULL, recovered(6, "b1", 10), elected(7, 1)],
    ],
    ids=["another lost", "caught up since", "lost later", "another strategy", "nothing lost"],
)
def test_a_last_known_leader_excuses_nothing_that_it_did_not_lose_before(events: list[dict[str, Any]]) -> None:
    assert tolerances(evidence(events, power_loss("b1", 5))) == {}


def test_without_comparable_clocks_all_that_a_last_known_leader_may_have_lost_is_excused() -> None:
    events = [*FULL, recovered(6, "b1", 4), elected(7, 1)]
    (excess,) = tolerances(evidence(events, power_loss("b1", 5), comparable_clocks=False))[T].exceeded
    assert (excess.offset, excess.time_ns) == (0, 5 * small_evidence.S)


@pytest.mark.parametrize(
    ("elected_s", "clock_of", "excess_s"),
    [(4, None, None), (7, None, 6.9), (4, "c1", 5), (4, "c2", None)],
    ids=["before the loss", "after it", "by a wrong clock", "by another's clock"],
)
def test_a_decision_read_from_a_metadata_log_has_the_time_of_its_controller(
    elected_s: float, clock_of: str | None, excess_s: float | None
) -> None:
    """Without a trace b1 may have lost everything at 5 s."""
    clocks = [small_evidence.fault("clock", [clock_of], 1, 2, {"offset_ms": 5000})] if clock_of else []
    decided = {"has_trace": False, "has_decisions": True}
    found = tolerances(evidence([elected(elected_s, 1)], power_loss("b1", 5), *clocks, **decided))
    assert [excess.time_ns for excess in found[T].exceeded] == ([excess_s * S] if excess_s else [])


def test_a_log_that_comes_back_shorter_without_a_lossy_fault_is_no_loss() -> None:
    kill = small_evidence.fault("kill", ["b1"], 5, 6, {"killed": 1})
    assert replica_losses(evidence([*FULL, recovered(6, "b1", 4), recovered(6, "b2", 4)], kill)) == {}
    other_node = evidence([*FULL, recovered(6, "b1", 4), recovered(6, "b2", 4)], power_loss("b3", 5))
    assert not any(loss.node != "b3" for loss in replica_losses(other_node)[T])


def test_min_isr_one_is_exceeded_by_one_loss_and_min_isr_three_by_three() -> None:
    events = [*FULL, recovered(6, "b1", 4)]
    assert T in tolerances(evidence(events, power_loss("b1", 5), min_insync_replicas=1))
    events = [*FULL, *(recovered(6, node, 4) for node in ("b1", "b2"))]
    both = [power_loss("b1", 5), power_loss("b2", 5)]
    assert tolerances(evidence(events, *both, min_insync_replicas=3)) == {}
    one_replica = evidence([FULL[0], recovered(6, "b1", 4)], both[0], min_insync_replicas=2, replication_factor=1)
    assert T in tolerances(one_replica)


def test_without_a_traced_recovery_everything_counts_as_lost_for_good() -> None:
    (excess,) = tolerances(evidence([], power_loss("b1", 5), power_loss("b2", 30)))[T].exceeded
    assert (excess.offset, excess.time_ns) == (0, 30 * small_evidence.S)


@pytest.mark.parametrize(("settings", "lost"), [({"groups": True}, 1), ({"script_commits": True}, 1), ({}, 0)])
def test_without_a_trace_committed_offsets_may_be_lost_as_records_may(settings: dict[str, Any], lost: int) -> None:
    """Nothing in the evidence names their topic then."""
    both = [power_loss("b1", 5), power_loss("b2", 30)]
    of_offsets = tolerances(evidence([], *both, **settings)).of_committed_offsets()
    assert len(of_offsets.exceeded) == lost


def test_a_recovery_traced_without_comparable_clocks_does_not_tell_what_was_lost() -> None:
    events = [*FULL, recovered(6, "b1", 4), appended(6.5, "b1", 4, 10), recovered(8, "b2", 4)]
    both = [power_loss("b1", 5), power_loss("b2", 7)]
    (excess,) = tolerances(evidence(events, *both, comparable_clocks=False))[T].exceeded
    assert (excess.offset, excess.time_ns) == (0, 7 * small_evidence.S)


def test_each_node_is_charged_what_was_measured_on_it_and_not_the_sum() -> None:
    one = {"lost_bytes": 8, "killed": 1, "nodes": {"b1": {"lost_bytes": 8, "killed": 1, "down_ns": 5_500_000_000}}}
    (measured,) = node_failures(small_evidence.faults(small_evidence.fault("power-loss", ["b1", "b2"], 5, 6, one)))
    assert (measured.node, measured.lost_bytes, measured.started_ns) == ("b1", 8, 5_500_000_000)


def test_a_broker_that_had_stopped_cleanly_when_its_power_was_cut_lost_nothing_that_excuses() -> None:
    def charged(numbers: dict[str, float]) -> list[tuple[float, bool]]:
        of_node = {"nodes": {"b1": {"down_ns": 5 * S, **numbers}}}
        failures = node_failures(
            small_evidence.faults(small_evidence.fault("controlled-restart", ["b1"], 5, 6, of_node))
        )
        return [(failure.lost_bytes, failure.is_unknown) for failure in failures]

    assert charged({"stopped": 1, "killed": 0, "lost_bytes": 8}) == [(0, False)]
    assert charged({"stopped": 1, "unknown_lost_bytes": 1}) == [(0, False)]
    assert charged({"stopped": 0, "killed": 0, "lost_bytes": 8}) == [(8, False)]
    assert charged({"stopped": 1, "killed": 1, "lost_bytes": 8}) == [(8, False)]
    assert charged({"stopped": 1, "killed": 0, "lost_bytes": 8, "started_again": 1}) == [(8, False)]
    assert charged({"stopped": 1, "lost_bytes": 8, "stopped_in_part": 1}) == [(8, False)]
    lies = small_evidence.fault("fsync-lies", ["b1"], 1, 6, {"nodes": {"b1": {"lies": 3}}})
    cut = {"nodes": {"b1": {"down_ns": 5 * S, "stopped": 1, "lost_bytes": 8}}}
    both = small_evidence.faults(lies, small_evidence.fault("controlled-restart", ["b1"], 5, 6, cut))
    assert [failure.lost_bytes for failure in node_failures(both)] == [0, 8], "its disk had lied about what it synced"
    later = small_evidence.fault("fsync-lies", ["b1"], 20, 26, {"nodes": {"b1": {"lies": 3}}})
    both = small_evidence.faults(small_evidence.fault("controlled-restart", ["b1"], 5, 6, cut), later)
    assert [failure.lost_bytes for failure in node_failures(both)] == [0, 0], "its disk lied only afterwards"


def test_a_sum_over_several_nodes_leaves_unknown_what_each_of_them_lost() -> None:
    """As runs of earlier versions have it."""
    summed = node_failures(
        small_evidence.faults(small_evidence.fault("power-loss-all", ["b1", "b2"], 5, 6, {"lost_bytes": 8}))
    )
    assert [(failure.lost_bytes, failure.is_unknown) for failure in summed] == [(0, True), (0, True)]


def test_a_fault_may_take_what_a_life_wrote_that_began_after_its_first_step() -> None:
    numbers = {"down_ns": 3 * S, "loss_ns": 5 * S, "stopped": 1, "killed": 1, "lost_bytes": 8}
    short_life = small_evidence.fault("short-life", ["b1"], 3, 6, {"nodes": {"b1": numbers}})
    events = [appended(1, "b1", 0, 10), recovered(4, "b1", 10), appended(4.5, "b1", 10, 14)]
    (loss,) = replica_losses(evidence([*events, recovered(7, "b1", 10)], short_life))[T]
    assert (loss.first, loss.end, loss.since_ns) == (10, 14, 4 * S)
    later = [*events, recovered(5, "b1", 14), recovered(6.5, "b1", 14), recovered(8, "b1", 10)]
    assert replica_losses(evidence(later, short_life)) == {T: []}, "it was whole when the fault had taken its last"


def test_a_fault_that_goes_on_takes_nothing_from_a_life_that_began_after_its_last_loss() -> None:
    """The log is opened whole as the fault heals, and comes back shorter later, without any fault."""

    def losses(**numbers: Any) -> list[ReplicaLoss]:
        of_node = {"b1": {"down_ns": 3 * S, "killed": 1, "lost_bytes": 8, **numbers}}
        events = [appended(1, "b1", 0, 10), recovered(5.9, "b1", 10), appended(7, "b1", 10, 20)]
        lossy = small_evidence.fault("power-loss", ["b1"], 3, 6, {"nodes": of_node})
        return replica_losses(evidence([*events, recovered(12, "b1", 12)], lossy))[T]

    assert losses(loss_ns=3 * S) == []
    unknown = losses()
    assert [(loss.first, loss.end) for loss in unknown] == [(12, 20)], "as runs of earlier versions have it"
    assert losses(loss_ns=3 * S, unknown_lost_bytes=1) == unknown


def test_a_second_loss_on_two_replicas_is_an_excess_of_its_own() -> None:
    both = ("b1", "b2")
    events = [*FULL, *(recovered(6, node, 4) for node in both), *(appended(7, node, 4, 20) for node in both)]
    events += [recovered(16, node, 15) for node in both]
    twice = [power_loss(node, time_s) for node in both for time_s in (5, 15)]
    excesses = tolerances(evidence(events, *twice))[T].exceeded
    assert [(excess.offset, excess.time_ns // small_evidence.S) for excess in excesses] == [(4, 5), (15, 15)]


def test_a_loss_that_was_not_measured_excuses_by_name_what_the_trace_does_not_deny() -> None:
    """Two wiped disks, one of them without an answer: the verdict is unknown, and says whose effect is."""

    def fault(node: str, numbers: dict[str, float]) -> dict[str, Any]:
        return small_evidence.fault("wipe-disk", [node], 5, 6, {"nodes": {node: {"down_ns": 5 * S, **numbers}}})

    def losses(*events: dict[str, Any]) -> list[ReplicaLoss]:
        faults = small_evidence.faults(fault("b1", {"lost_bytes": 9}), fault("b2", {"unknown_lost_bytes": 1}))
        written = [small_evidence.event(1, node, "appended", offset=0, log_end=4) for node in ("b1", "b2")]
        empty = small_evidence.event(7, "b1", "log_recovered", offset=0, log_end=0)
        trace = small_evidence.trace(*written, empty, *events)
        return replica_losses(RunEvidence(trace=trace, faults=faults))["t", 0]

    (excess,) = fault_model_excesses(losses(), 1)
    assert "b2 from 0 on at 5.000 s (the effect of wipe-disk on it is unknown)" in excess.lines[1]
    assert "b1 from 0 on at 5.000 s," in excess.lines[1]
    unharmed = small_evidence.event(8, "b2", "log_recovered", offset=0, log_end=4)
    assert fault_model_excesses(losses(unharmed), 1) == ()


def test_timers_go_wrong_with_the_clock_and_not_with_the_wall_clock() -> None:
    """A clock that is wrong may keep its process from running, too; one of the wall alone keeps no process."""

    def clock(node: str, **detail: float) -> dict[str, Any]:
        return small_evidence.fault("clock", [node], 1, 2, {}) | {"detail": json.dumps(detail)}

    faults = small_evidence.faults(
        clock("b1", jump_ms=0, rate=1, wall_jump_ms=-9000),
        clock("b2", jump_ms=5, rate=1, wall_jump_ms=-9000),
        clock("b3", jump_ms=0, rate=0.5, wall_jump_ms=0),
        clock("b4"),
        small_evidence.fault("pause", ["b5"], 1, 2, {}),
        small_evidence.fault("partition", ["b6"], 1, 2, {}),
    )
    assert stalls(faults, NO_TRACE).times.keys() == {"b2", "b3", "b4", "b5"}
    wrong = wrong_timers(faults)
    assert wrong.times.keys() == {"b2", "b3", "b4"}
    assert wrong.between("b3", 3 * S, 9 * S)
    assert not wrong.between("b3", 5 * S, 9 * S)


def test_a_process_may_have_stood_still_shortly_before_and_after_the_recorded_times_of_a_fault() -> None:
    paused = stalls(small_evidence.faults(small_evidence.fault("pause", ["b1"], 10, 20, {})), NO_TRACE)
    assert paused.between("b1", 0, 9 * S)
    assert not paused.between("b1", 0, 7 * S)
    assert paused.between("b1", 21 * S, 30 * S)
    assert not paused.between("b1", 23 * S, 30 * S)


def test_a_process_has_stood_still_for_as_long_as_its_machine_was_busy() -> None:
    traced = stalls(small_evidence.faults(), small_evidence.trace(small_evidence.stalled(20, "b1", 2.8)))
    assert traced.times == {"b1": [(round(17.2 * S), 20 * S)]}


def test_a_fault_that_took_long_to_inject_may_have_stopped_a_process_before_it_counts() -> None:
    frozen = small_evidence.fault("pause", ["b1"], 20, 30, {"injection_seconds": 6})
    bent = small_evidence.fault("clock", ["b2"], 20, 30, {"injection_seconds": 6})
    held, wrong = stalls(small_evidence.faults(frozen), NO_TRACE), wrong_timers(small_evidence.faults(bent))
    for times, node in ((held, "b1"), (wrong, "b2")):
        assert times.between(node, 0, 14 * S)
        assert not times.between(node, 0, 13 * S)


def test_a_fault_may_have_held_on_its_first_node_for_as_long_as_it_took_to_inject_it() -> None:
    assert injected_ns(small_evidence.fault("pause", ["b1"], 20, 30, {"injection_seconds": 9})) == 11 * S
    assert injected_ns(small_evidence.fault("pause", ["b1"], 20, 30, {"injection_seconds": 1})) == 15 * S


def test_timers_are_right_again_once_their_own_fault_is_over_whatever_overlaps() -> None:
    """The wall clock is still wrong then."""

    def clock(began_s: float, ended_s: float, **detail: float) -> dict[str, Any]:
        return small_evidence.fault("clock", ["b1"], began_s, ended_s, {}) | {"detail": json.dumps(detail)}

    wall, fast, later = (
        clock(1, 20, wall_jump_ms=900, rate=1),
        clock(2, 3, rate=2),
        clock(30, 40, wall_jump_ms=9, rate=1),
    )
    for faults in ((wall, fast, later), (later, fast, wall)):
        wrong = wrong_timers(small_evidence.faults(*faults))
        assert wrong.between("b1", 3 * S, 4 * S)
        assert not wrong.between("b1", 6 * S, 50 * S)
        assert stalls(small_evidence.faults(*faults), NO_TRACE).times == wrong.times


def test_a_clock_that_was_set_back_stands_still_after_its_fault() -> None:
    back = small_evidence.fault("clock", ["b1"], 1, 2, {}) | {"detail": json.dumps({"jump_ms": -4000})}
    wrong = wrong_timers(small_evidence.faults(back))
    assert wrong.between("b1", 7 * S, 9 * S)
    assert not wrong.between("b1", 9 * S, 10 * S)


def test_a_node_that_vanished_has_lost_its_log() -> None:
    vanished = {"vanished": [{"node": "b3", "time_ns": 9 * S}]}
    written = small_evidence.event(1, "b3", "appended", offset=0, log_end=4)
    lost = replica_losses(RunEvidence(trace=small_evidence.trace(written), recovery=vanished))["t", 0]
    assert [(loss.node, loss.first, loss.since_ns, loss.unmeasured) for loss in lost] == [
        ("b3", 0, 9 * S, "it vanished")
    ]
