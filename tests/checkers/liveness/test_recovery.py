"""Whether a cluster recovers, what is missing where it does not, and when nobody is to blame for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checkers.evidence import CheckSettings, RunEvidence, longest_silence_ms
from checkers.liveness import checker as liveness
from checkers.liveness.log_starts import hears_within_ms
from checkers.verdict import Validity, Verdict
from tests.checkers import small_evidence
from tests.checkers.small_evidence import STUCK, WHOLE


def test_a_recovered_cluster_that_was_read_to_the_end_is_live() -> None:
    assert liveness.check(RunEvidence(recovery=WHOLE)).validity is Validity.VALID


def test_not_recovering_in_time_is_invalid_and_says_what_was_missing() -> None:
    verdict = liveness.check(RunEvidence(recovery=STUCK))
    assert verdict.validity is Validity.INVALID
    assert "still missing: no leader of t-0" in verdict.findings[0].lines


UNREADY: dict[str, Any] = {
    "ready": False,
    "limit_seconds": 120.0,
    "seconds": 121.0,
    "waiting_for": ["b1 sees 2 of 3 brokers unfenced"],
    "crashes": [],
}


def test_a_cluster_that_never_got_ready_is_invalid_and_says_what_was_missing() -> None:
    verdict = liveness.check(RunEvidence(recovery=UNREADY))
    assert (verdict.validity, verdict.findings[0].kind) == (Validity.INVALID, "not-ready")
    assert verdict.findings[0].lines == (
        "the cluster has not become ready, and no nearer to it for 120 s: nothing had been broken yet",
        "still missing: b1 sees 2 of 3 brokers unfenced",
    )


def test_a_process_that_ended_before_the_cluster_was_ready_is_named() -> None:
    crash = {"node": "c1", "time_ns": 5, "error": "KeyError: 1"}
    verdict = liveness.check(RunEvidence(recovery=UNREADY | {"crashes": [crash]}))
    assert verdict.findings[0].lines[0] == (
        "the cluster has not become ready, and c1 ended by itself: nothing had been broken yet"
    )


def test_a_fault_that_could_not_be_healed_leaves_liveness_unknown_and_is_named() -> None:
    for recovery in (STUCK, WHOLE):
        verdict = liveness.check(RunEvidence(recovery=recovery | {"unhealed": ["b2: no such container"]}))
        assert (verdict.validity, verdict.findings[0].kind) == (Validity.UNKNOWN, "not-healed")
        assert "b2: no such container" in verdict.findings[0].lines


def test_healing_has_a_figure_of_its_own() -> None:
    verdict = liveness.check(RunEvidence(recovery=WHOLE | {"healing_seconds": 54.0}))
    assert (verdict.validity, verdict.figures["healing_seconds"]) == (Validity.VALID, 54.0)


OUT = small_evidence.event(
    1, "c1", "partition_changed", {"replicas": [1, 2, 3]}, leader=2, leader_epoch=4, members=[2, 3]
)


@pytest.mark.parametrize(
    ("events", "line"),
    [
        (
            [small_evidence.event(2, "b2", "diverging", {"replica": 1, "epoch": 3}, offset=17)] * 2_316,
            "b1: 2,316 diverging answers at one offset, 17 of t-0, from b2",
        ),
        (
            [small_evidence.event(2, "b1", "registered"), small_evidence.event(3, "b1", "node_started")],
            "b1: has not registered since it started at 3.000 s",
        ),
        (
            [small_evidence.event(4, "c1", "broker_fenced", {"reason": "session"}, broker=1)],
            "b1: fenced by the controllers since 4.000 s (session)",
        ),
        (
            [small_evidence.event(5, "b2", "isr_rejected", {"error": "INELIGIBLE_REPLICA"}, members=[1, 2, 3])] * 3,
            "b1: b2 proposed it for the ISR of t-0 and was refused 3 times (INELIGIBLE_REPLICA)",
        ),
        (
            [
                small_evidence.event(6, "b1", "appended", offset=4, log_end=5),
                small_evidence.event(7, "b2", "appended", offset=8, log_end=9),
            ],
            "b1: its log of t-0 ends at 5 and last changed at 6.000 s; its leader's ends at 9",
        ),
    ],
)
def test_not_recovering_says_why_a_replica_is_out(events: list[dict[str, Any]], line: str) -> None:
    verdict = liveness.check(RunEvidence(recovery=STUCK, trace=small_evidence.trace(OUT, *events)))
    assert verdict.findings[0].kind == "not-recovered"
    assert line in verdict.findings[0].lines


def test_final_reads_that_do_not_finish_on_a_recovered_cluster_are_invalid() -> None:
    verdict = liveness.check(RunEvidence(recovery=WHOLE | {"final_reads": False}))
    assert verdict.findings[0].kind == "reads-not-finished"


def test_a_partition_that_takes_no_append_after_the_final_reads_is_invalid_and_named() -> None:
    assert liveness.check(RunEvidence(recovery=WHOLE | {"refused_appends": []})).validity is Validity.VALID
    recovery = WHOLE | {"refused_appends": ["t-1: NOT_ENOUGH_REPLICAS"]}
    verdict = liveness.check(RunEvidence(recovery=recovery))
    assert (verdict.validity, verdict.findings[0].kind) == (Validity.INVALID, "appends-not-accepted")
    assert "t-1: NOT_ENOUGH_REPLICAS" in verdict.findings[0].lines
    verdict = liveness.check(RunEvidence(recovery=recovery | {"vanished": [{"node": "b1", "time_ns": 5}]}))
    assert (verdict.validity, verdict.findings[0].kind) == (Validity.UNKNOWN, "node-vanished")
    assert "an append to t-1: NOT_ENOUGH_REPLICAS" in verdict.findings[0].lines


def test_a_cluster_that_is_not_whole_again_after_the_final_appends_is_invalid_and_says_what_is_missing() -> None:
    assert liveness.check(RunEvidence(recovery=WHOLE | {"left_again": []})).validity is Validity.VALID
    recovery = WHOLE | {"left_again": ["b1 sees t-0 with ISR {1, 2} of 3 replicas"]}
    verdict = liveness.check(RunEvidence(recovery=recovery))
    assert (verdict.validity, verdict.findings[0].kind) == (Validity.INVALID, "not-recovered")
    assert verdict.findings[0].lines == (
        "not whole 30 s after the final appends, as it had been 1.5 s after the last fault",
        "still missing: b1 sees t-0 with ISR {1, 2} of 3 replicas",
    )
    verdict = liveness.check(RunEvidence(recovery=recovery | {"vanished": [{"node": "b3", "time_ns": 5}]}))
    assert (verdict.validity, verdict.findings[0].kind) == (Validity.UNKNOWN, "node-vanished")
    assert "b1 sees t-0 with ISR {1, 2} of 3 replicas" in verdict.findings[0].lines


def test_a_run_that_ended_before_recovery_is_unknown() -> None:
    assert liveness.check(RunEvidence()).validity is Validity.UNKNOWN
    unread = {name: value for name, value in WHOLE.items() if name != "final_reads"}
    assert liveness.check(RunEvidence(recovery=unread)).validity is Validity.UNKNOWN


def test_a_partition_left_leaderless_by_as_many_unclean_shutdowns_as_min_isr_is_unknown() -> None:
    def stuck(killed: list[str], leader: int) -> Verdict:
        changed = small_evidence.event(9, "c1", "partition_changed", {"elr": []}, leader=leader, leader_epoch=3)
        fault = small_evidence.fault("kill", killed, 5, 6, {"killed": len(killed)})
        return liveness.check(
            RunEvidence(recovery=STUCK, trace=small_evidence.trace(changed), faults=small_evidence.faults(fault))
        )

    assert stuck(["b1", "b2"], -1).validity is Validity.UNKNOWN
    assert "still missing: no leader of t-0" in stuck(["b1", "b2"], -1).findings[0].lines
    assert stuck(["b1", "b2"], 3).validity is Validity.INVALID
    assert stuck(["b1"], -1).validity is Validity.INVALID
    assert stuck(["b1", "c1"], -1).validity is Validity.INVALID


@pytest.mark.parametrize(
    ("asked", "isrs", "validity"),
    [
        (True, [], Validity.UNKNOWN),
        (True, [(3,)], Validity.UNKNOWN),
        (True, [(1, 3)], Validity.INVALID),
        (False, [], Validity.INVALID),
    ],
    ids=["one leads", "and alone", "the ISR was large enough again", "nobody asked"],
)
def test_after_an_unclean_election_that_was_asked_for_one_unclean_shutdown_is_enough(
    asked: bool, isrs: list[tuple[int, ...]], validity: Validity
) -> None:
    def changed(time_s: float, leader: int, isr: tuple[int, ...], reason: str) -> dict[str, Any]:
        facts = {"elr": [], "replicas": [1, 2, 3], "min_isr": 2, "reason": reason}
        return small_evidence.event(time_s, "c1", "partition_changed", facts, leader=leader, members=list(isr))

    elected = changed(3, 3, (3,), "unclean_election")
    since = [changed(4 + number, 3, isr, "alter_partition") for number, isr in enumerate(isrs)]
    request = {"change": "elect-unclean", "topic": "t", "partition": 0, "began_ns": 2, "ended_ns": None}
    requests = [request | {"outcome": "UNANSWERED", "in_doubt": True}] if asked else []
    verdict = liveness.check(
        RunEvidence(
            recovery=STUCK | {"requests": requests},
            trace=small_evidence.trace(elected, *since, changed(9, -1, (), "registered")),
            faults=small_evidence.faults(small_evidence.fault("kill", ["b3"], 8, 8.5, {"killed": 1})),
        )
    )
    assert verdict.validity is validity


def test_a_broker_that_the_controllers_take_for_unclean_did_not_end_so_by_their_word() -> None:
    trace = small_evidence.trace(
        small_evidence.event(8, "b2", "clean_shutdown", broker_epoch=1),
        small_evidence.event(9, "c1", "broker_registered", {"clean": False, "previous": 1, "known": 23}, broker=2),
        small_evidence.event(9, "c1", "partition_changed", {"elr": []}, leader=-1, leader_epoch=3),
    )
    kill = small_evidence.fault("kill", ["b1"], 5, 6, {"killed": 1})
    verdict = liveness.check(RunEvidence(recovery=STUCK, trace=trace, faults=small_evidence.faults(kill)))
    assert [finding.kind for finding in verdict.findings] == ["not-recovered"]


@pytest.mark.parametrize(
    ("isr", "elr", "waiting", "validity"),
    [
        ((), (), ["b1 sees no leader of t-0", "b3 sees no leader of t-0"], Validity.UNKNOWN),
        ((1, 2, 3), (), ["b1 sees no leader of t-0"], Validity.INVALID),
        ((), (2,), ["b1 sees no leader of t-0"], Validity.INVALID),
        ((), (), ["b1 sees no leader of t-0", "b1 sees t-1 with ISR {1, 2} of 3 replicas"], Validity.INVALID),
        ((), (), ["b1 sees no leader of t-0", "b1 sees 2 of 3 brokers unfenced"], Validity.INVALID),
        ((), (), ["b1 sees no leader of t-01"], Validity.INVALID),
        ((), (), ["b1 sees no leader of the-t-0"], Validity.INVALID),
    ],
    ids=["by design", "an ISR", "an ELR", "another partition", "a broker", "a longer number", "a longer name"],
)
def test_only_what_is_missing_of_partitions_without_any_candidate_is_by_design(
    isr: tuple[int, ...], elr: tuple[int, ...], waiting: list[str], validity: Validity
) -> None:
    left = small_evidence.event(9, "c1", "partition_changed", {"elr": elr}, leader=-1, leader_epoch=3, members=isr)
    led = small_evidence.event(9, "c1", "partition_changed", {"elr": ()}, leader=1, members=[1, 2], partition=1)
    kills = small_evidence.fault("kill", ["b1", "b2"], 5, 6, {"killed": 2})
    verdict = liveness.check(
        RunEvidence(
            recovery=STUCK | {"waiting_for": waiting},
            trace=small_evidence.trace(left, led),
            faults=small_evidence.faults(kills),
        )
    )
    assert verdict.validity is validity


def test_an_isr_change_that_nothing_settles_is_invalid() -> None:
    def of(*later: tuple[float, str, dict[str, Any]]) -> list[str]:
        proposed = small_evidence.event(
            1, "b1", "isr_proposed", {"reason": "expand"}, topic="t", partition=0, members=[1, 2]
        )
        rest = [small_evidence.event(at, "b1", kind, detail, topic="t", partition=0) for at, kind, detail in later]
        end = small_evidence.event(9, "b2", "high_watermark", {}, topic="t", partition=0)
        verdict = liveness.check(RunEvidence(recovery=WHOLE, trace=small_evidence.trace(proposed, *rest, end)))
        return [finding.kind for finding in verdict.findings]

    assert of() == ["change-unsettled"]
    assert of((2, "isr_rejected", {"error": "invalid_update_version", "rolled_back": False})) == ["change-unsettled"]
    assert of((2, "isr_committed", {})) == []
    assert of((2, "isr_rejected", {"error": "ineligible_replica", "rolled_back": True})) == []
    assert of((2, "became_follower", {})) == []
    assert of((2, "node_started", {})) == []
    assert of((2, "isr_committed", {}), (8, "isr_proposed", {"reason": "shrink"})) == [], "it is on its way"
    assert of((8, "node_stalled", {"for_ms": 200})) == [], "its process did not run"
    assert of((5, "node_stalled", {"for_ms": 200})) == ["change-unsettled"]


@pytest.mark.parametrize(
    ("follower_start", "moved_s", "members", "heard"),
    [(7, 4, [1, 2], True), (9, 4, [1, 2], True), (3, 4, [1, 2], False), (3, 8, [1, 2], True), (3, 4, [1], True)],
)
def test_a_replica_in_the_isr_hears_where_its_leaders_log_starts(
    follower_start: int, moved_s: float, members: list[int], heard: bool
) -> None:
    trace = small_evidence.trace(
        small_evidence.event(1, "c1", "partition_changed", {"replicas": [1, 2]}, leader=1, members=members),
        small_evidence.event(2, "b1", "became_leader"),
        small_evidence.event(3, "b2", "log_start", offset=follower_start),
        small_evidence.event(moved_s, "b1", "log_start", offset=7),
        small_evidence.event(9, "b2", "high_watermark"),
    )
    verdict = liveness.check(RunEvidence(recovery=WHOLE, trace=trace))
    assert [finding.kind for finding in verdict.findings] == ([] if heard else ["log-start-unheard"])


@pytest.mark.parametrize(
    ("committed_s", "started_s", "healed_s", "follower", "heard"),
    [
        (4, 1, 5, ("c2", "metadata_appended", {"log_end": 7}), True),
        (4, 1, 5, ("c2", "metadata_appended", {"log_end": 6}), False),
        (4, 1, 5, ("c2", "metadata_truncated", {"log_end": 7, "offset": 6}), False),
        (4, 1, 5, ("c2", "metadata_restored", {"offset": 7}), True),
        (4, 1, 5, ("b2", "metadata_applied", {"log_end": 7}), True),
        (4, 1, 5, ("b2", "metadata_applied", {"log_end": 6}), False),
        (4, 1, 5, ("b2", "metadata_loaded", {"log_end": 7}), False),
        (8, 1, 5, ("c2", "metadata_appended", {"log_end": 6}), True),
        (4, 8, 5, ("c2", "metadata_appended", {"log_end": 6}), True),
        (4, 1, 8, ("c2", "metadata_appended", {"log_end": 6}), True),
        (4, 1, None, ("c2", "metadata_appended", {"log_end": 6}), True),
    ],
)
def test_every_node_hears_of_the_committed_metadata(
    committed_s: float, started_s: float, healed_s: float | None, follower: tuple[str, str, Any], heard: bool
) -> None:
    node, kind, fields = follower
    trace = small_evidence.trace(
        small_evidence.event(started_s, node, "node_started"),
        small_evidence.event(committed_s, "c1", "metadata_committed", high_watermark=7),
        small_evidence.event(max(started_s, 3), node, kind, **fields),
        small_evidence.event(9, "b1", "high_watermark"),
    )
    faults = small_evidence.faults(small_evidence.fault("kill", ["b1"], 2, healed_s, {"killed": 1}))
    settings = CheckSettings(controller_silence_ms=2_000)
    verdict = liveness.check(RunEvidence(recovery=WHOLE, trace=trace, faults=faults, settings=settings))
    assert [finding.kind for finding in verdict.findings] == ([] if heard else ["metadata-unheard"])


def test_a_node_whose_machine_vanished_hears_of_nothing() -> None:
    trace = small_evidence.trace(
        small_evidence.event(3, "c3", "metadata_appended", log_end=6),
        small_evidence.event(4, "c1", "metadata_committed", high_watermark=7),
        small_evidence.event(9, "b1", "high_watermark"),
    )
    settings = CheckSettings(controller_silence_ms=2_000)
    for vanished, found in (([], ["metadata-unheard"]), ([{"node": "c3", "time_ns": 3 * small_evidence.S}], [])):
        evidence = RunEvidence(recovery=WHOLE | {"vanished": vanished}, trace=trace, settings=settings)
        assert [finding.kind for finding in liveness.check(evidence).findings] == found


def test_a_node_waits_for_a_silent_controller_as_long_as_its_settings_say() -> None:
    kafkas = {
        "broker.session.timeout.ms": "9000",
        "replica.socket.timeout.ms": "30000",
        "controller.quorum.request.timeout.ms": "2000",
        "socket.connection.setup.timeout.ms": "10000",
    }
    assert longest_silence_ms(kafkas) == 10_000
    assert longest_silence_ms(kafkas | {"socket.connection.setup.timeout.ms": "1000"}) == 9_500
    assert longest_silence_ms({"replica.socket.timeout.ms": "30000"}) == -1


@pytest.mark.parametrize(("silence_ms", "found"), [(2_000, True), (4_500, False), (-1, False)])
def test_no_node_follows_while_it_may_wait_for_a_silent_controller(silence_ms: int, found: bool) -> None:
    trace = small_evidence.trace(
        small_evidence.event(4, "c1", "metadata_committed", high_watermark=7),
        small_evidence.event(4, "b1", "metadata_applied", log_end=6),
        small_evidence.event(9, "b1", "high_watermark"),
    )
    settings = CheckSettings(controller_silence_ms=silence_ms)
    verdict = liveness.check(RunEvidence(recovery=WHOLE, trace=trace, settings=settings))
    assert [finding.kind for finding in verdict.findings] == (["metadata-unheard"] if found else [])


def test_a_leader_that_has_just_begun_has_not_been_heard_yet() -> None:
    def of(began_s: float) -> list[str]:
        trace = small_evidence.trace(
            small_evidence.event(1, "b1", "log_start", offset=7),
            small_evidence.event(1, "b2", "log_recovered", {}, offset=0),
            small_evidence.event(2, "c1", "partition_changed", {"replicas": [1, 2]}, leader=1, members=[1, 2]),
            small_evidence.event(began_s, "b1", "became_leader"),
            small_evidence.event(9, "b2", "high_watermark"),
        )
        return [finding.kind for finding in liveness.check(RunEvidence(recovery=WHOLE, trace=trace)).findings]

    assert of(8) == []
    assert of(4) == ["log-start-unheard"]


def test_a_leader_that_has_just_been_elected_has_not_been_heard_yet_though_it_does_not_know() -> None:
    """A follower may have deleted more than others, by retention."""

    def of(elected_s: float) -> list[str]:
        trace = small_evidence.trace(
            small_evidence.event(1, "b2", "log_recovered", {}, offset=0),
            small_evidence.event(2, "c1", "partition_changed", {"replicas": [1, 2, 3]}, leader=3, members=[1, 2, 3]),
            small_evidence.event(3, "b1", "log_start", offset=7),
            small_evidence.event(elected_s, "c1", "partition_changed", {}, leader=1, members=[1, 2, 3]),
            small_evidence.event(elected_s, "c1", "partition_changed", {}, leader=1, members=[1, 2]),
            small_evidence.event(9, "b2", "high_watermark"),
        )
        return [finding.kind for finding in liveness.check(RunEvidence(recovery=WHOLE, trace=trace)).findings]

    assert of(8) == []
    assert of(4) == ["log-start-unheard"]


@pytest.mark.parametrize(("heard_ms", "found"), [(-1, True), (2_600, True), (3_000, False), (8_800, False)])
@pytest.mark.parametrize(("moved_s", "healed_s"), [(4, 5), (5, 4)])
def test_no_follower_hears_a_log_start_before_its_fetches_are_answered(
    moved_s: float, healed_s: float, heard_ms: int, found: bool
) -> None:
    trace = small_evidence.trace(
        small_evidence.event(1, "b2", "log_recovered", {}, offset=0),
        small_evidence.event(2, "c1", "partition_changed", {"replicas": [1, 2]}, leader=1, members=[1, 2]),
        small_evidence.event(moved_s, "b1", "log_start", offset=7),
        small_evidence.event(9, "b2", "high_watermark"),
    )
    faults = small_evidence.faults(small_evidence.fault("partition", ["b2"], 1, healed_s, {"held": 1}))
    settings = CheckSettings(leader_heard_ms=heard_ms)
    evidence = RunEvidence(recovery=WHOLE, trace=trace, faults=faults, settings=settings)
    kinds = [finding.kind for finding in liveness.check(evidence).findings]
    assert kinds == (["log-start-unheard"] if found else [])


def test_a_follower_hears_its_leader_within_the_waits_of_its_fetches_on_any_node() -> None:
    waits = {"replica.fetch.wait.max.ms": "500", "replica.fetch.backoff.ms": "100"}
    assert hears_within_ms([waits]) == 1_100
    assert hears_within_ms([waits, {"replica.fetch.wait.max.ms": "6000"}, {"log.dirs": "data"}]) == 12_100
    assert hears_within_ms([{"replica.fetch.wait.max.ms": "500"}]) == -1


@pytest.mark.parametrize(
    ("appends_s", "healed_s", "found"), [(8, 4, True), (6, 4, False), (8, 6, False), (None, 4, False)]
)
def test_a_log_start_is_to_be_heard_before_the_final_appends(
    appends_s: float | None, healed_s: float, found: bool
) -> None:
    trace = small_evidence.trace(
        small_evidence.event(1, "b2", "log_recovered", {}, offset=0),
        small_evidence.event(2, "c1", "partition_changed", {"replicas": [1, 2]}, leader=1, members=[1, 2]),
        small_evidence.event(3, "b1", "became_leader"),
        small_evidence.event(4, "b1", "log_start", offset=7),
        small_evidence.event(8.1, "b2", "log_start", offset=7),
        small_evidence.event(20, "b2", "high_watermark"),
    )
    recovery = WHOLE if appends_s is None else WHOLE | {"final_appends_seconds": appends_s}
    faults = small_evidence.faults(small_evidence.fault("partition", ["b2"], 1, healed_s, {"held": 1}))
    evidence = RunEvidence(recovery=recovery, trace=trace, faults=faults)
    assert [finding.kind for finding in liveness.check(evidence).findings] == (["log-start-unheard"] if found else [])


@pytest.mark.parametrize(("stalled_s", "collecting_s", "found"), [(None, 9, True), (7, 9, False), (None, 6, False)])
def test_nobody_hears_of_anything_while_processes_do_not_run(
    stalled_s: float | None, collecting_s: float, found: bool
) -> None:
    """On a busy machine they end one after the other, and what others do meanwhile is not for them to hear."""
    stalls = [] if stalled_s is None else [small_evidence.stalled(stalled_s, "b2", 1)]
    trace = small_evidence.trace(
        small_evidence.event(1, "b1", "log_start", offset=7),
        small_evidence.event(1, "b2", "log_recovered", {}, offset=0),
        small_evidence.event(2, "c1", "partition_changed", {"replicas": [1, 2]}, leader=1, members=[1, 2]),
        small_evidence.event(4, "b1", "became_leader"),
        small_evidence.event(4, "c1", "metadata_committed", high_watermark=7),
        small_evidence.event(4, "b1", "metadata_applied", log_end=6),
        *stalls,
        small_evidence.event(9, "b2", "high_watermark"),
    )
    recovery = WHOLE | {"collecting_seconds": collecting_s}
    evidence = RunEvidence(recovery=recovery, trace=trace, settings=CheckSettings(controller_silence_ms=2_000))
    assert [finding.kind for finding in liveness.check(evidence).findings] == (["log-start-unheard"] if found else [])
    without_log_start = replace(evidence, trace=trace.slice(2))
    found_then = [finding.kind for finding in liveness.check(without_log_start).findings]
    assert found_then == (["metadata-unheard"] if found else [])
