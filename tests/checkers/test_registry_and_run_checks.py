"""Processes, faults, availability, and all checkers together."""

from __future__ import annotations

import asyncio
import json
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers import faults, processes, registry
from checkers.clients import availability
from checkers.evidence import CheckSettings, EvidenceGap, EvidencePart, RunEvidence
from checkers.verdict import Validity, Verdict, checker_name, worst
from harness.spec import parse
from results.run.json_encoding import verdicts_from_json
from tests.checkers import small_evidence
from tests.checkers.small_evidence import STUCK, WHOLE
from tests.checkers.small_histories import append, end_offset, poll
from workloads.columns import FAIL, INFO

# processes


def test_a_node_that_ended_over_an_exception_group_names_the_error_inside() -> None:
    async def fail() -> None:
        raise ValueError("the log is not readable")

    async def groups() -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup():
            outer.create_task(fail())

    try:
        asyncio.run(groups())
    except BaseExceptionGroup as error:
        text = "".join(traceback.format_exception(error))
    crash = {"node": "b2", "time_ns": 12 * 10**9, "error": text}
    (finding,) = processes.check(RunEvidence(recovery=WHOLE | {"crashes": [crash]})).findings
    assert finding.lines[1] == "ValueError: the log is not readable"
    assert finding.lines[2].endswith(", in fail")


NO_SPACE = "b2 failed: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("error", "fault", "nodes", "validity"),
    [
        (NO_SPACE, "disk-full", ["b2"], Validity.VALID),
        (f"listening\n{NO_SPACE}: '/var/lib/faultline/data/t-0/0.log'", "disk-full", ["b1", "b2"], Validity.VALID),
        (NO_SPACE, "disk-full", ["b1"], Validity.INVALID),
        (NO_SPACE, "failing-sync", ["b2"], Validity.VALID),
        (NO_SPACE, "slow-disk", ["b2"], Validity.INVALID),
        ("Traceback …\nOSError: [Errno 28] No space left on device", "disk-full", ["b2"], Validity.INVALID),
        ("b2 failed: [Errno 5] Input/output error", "disk-full", ["b2"], Validity.INVALID),
        ("", "disk-full", ["b2"], Validity.INVALID),
    ],
)
def test_a_node_that_says_in_one_line_that_its_full_disk_is_full_has_not_crashed(
    error: str, fault: str, nodes: list[str], validity: Validity
) -> None:
    crash = {"node": "b2", "time_ns": 12 * 10**9, "error": error}
    rows = small_evidence.faults(small_evidence.fault(fault, nodes, 10, 15, {}))
    assert processes.check(RunEvidence(recovery=WHOLE | {"crashes": [crash]}, faults=rows)).validity is validity


def test_a_process_that_gives_up_a_connection_has_an_answer_still_to_come() -> None:
    started = small_evidence.event(1, "b2", "node_started", topic="", partition=-1)
    sound = RunEvidence(recovery=WHOLE | {"crashes": []}, trace=small_evidence.trace(started))
    assert processes.check(sound).validity is Validity.VALID
    unheard = small_evidence.event(3.5, "b2", "answer_unheard", {"peer": "b1"}, topic="", partition=-1)
    (finding,) = processes.check(replace(sound, trace=small_evidence.trace(started, unheard))).findings
    assert (finding.kind, finding.time_ns) == ("answer-unheard", 3_500_000_000)
    assert finding.lines[0] == "b2 gave up a connection to b1 at 3.500000 s, as if an answer were missing"


KAFKA_FATAL = """2026-11-23T04:33:50.787 ERROR org.example.FaultHandler - Encountered fatal fault: Unexpected error
java.io.UncheckedIOException: Error while writing the Quorum status
\tat org.apache.kafka.raft.FileQuorumStateStore.writeElectionState(FileQuorumStateStore.java:144)
Caused by: java.io.IOException: {cause}
\t... 10 more
"""
KAFKA_APPEND = """2026-11-23T04:33:50.500 ERROR org.example.LogDirFailureChannel - Error while appending records
java.io.IOException: {cause}
2026-11-23T04:33:50.501 WARN kafka.log.LogManager - Stopping serving logs in dir /data
"""
KAFKA_LOGS = (
    "2026-11-23T04:33:50.600 ERROR kafka.log.LogManager - Shutdown broker because all log dirs in /a have failed\n"
)
KAFKA_INFO = "2026-11-23T04:33:50.900 INFO kafka.server.BrokerServer - something\n"
KAFKA_OTHER = "2026-11-23T04:33:50.950 ERROR kafka.Kafka$ - Exiting Kafka due to fatal exception\n"
FULL, OTHER = "No space left on device", "Input/output error"


@pytest.mark.parametrize(
    ("log", "validity"),
    [
        (KAFKA_FATAL.format(cause=FULL), Validity.VALID),
        (KAFKA_FATAL.format(cause=FULL) + KAFKA_INFO, Validity.VALID),
        (KAFKA_FATAL.format(cause=OTHER), Validity.INVALID),
        (KAFKA_APPEND.format(cause=FULL) + KAFKA_LOGS + KAFKA_INFO, Validity.VALID),
        (KAFKA_APPEND.format(cause=OTHER) + KAFKA_LOGS, Validity.INVALID),
        (KAFKA_APPEND.format(cause=FULL), Validity.INVALID),
        (KAFKA_APPEND.format(cause=FULL) + KAFKA_OTHER, Validity.INVALID),
    ],
)
def test_kafka_says_that_its_full_disk_is_full_in_the_last_error_of_its_log(log: str, validity: Validity) -> None:
    crash = {"node": "c1", "time_ns": 12 * 10**9, "error": log}
    rows = small_evidence.faults(small_evidence.fault("disk-full", ["c1"], 10, 15, {}))
    assert processes.check(RunEvidence(recovery=WHOLE | {"crashes": [crash]}, faults=rows)).validity is validity
    never_filled = RunEvidence(recovery=WHOLE | {"crashes": [crash]}, faults=rows.slice(0, 0))
    assert processes.check(never_filled).validity is Validity.INVALID


@pytest.mark.parametrize(
    ("ended_s", "validity"), [(40, Validity.VALID), (11, Validity.INVALID), (None, Validity.VALID)]
)
def test_a_disk_that_was_emptied_long_ago_excuses_nothing(ended_s: float | None, validity: Validity) -> None:
    crash = {"node": "b2", "time_ns": 90 * 10**9, "error": NO_SPACE}
    rows = small_evidence.faults(small_evidence.fault("disk-full", ["b2"], 10, ended_s, {}))
    assert processes.check(RunEvidence(recovery=WHOLE | {"crashes": [crash]}, faults=rows)).validity is validity


def test_a_disk_filled_later_excuses_nothing() -> None:
    crash = {"node": "b2", "time_ns": 12 * 10**9, "error": NO_SPACE}
    rows = small_evidence.faults(small_evidence.fault("disk-full", ["b2"], 30, 35, {}))
    verdict = processes.check(RunEvidence(recovery=WHOLE | {"crashes": [crash]}, faults=rows))
    assert verdict.validity is Validity.INVALID


# faults


def test_a_fault_that_missed_is_named_and_does_not_fail_the_run() -> None:
    rows = (
        small_evidence.fault("kill", ["b1"], 1, 2, {"killed": 1}),
        small_evidence.fault("pause", ["b2"], 1, 2, {"missed": 0}, bit=False),
    )
    verdict = faults.check(RunEvidence(faults=small_evidence.faults(*rows), settings=CheckSettings(faults_asked=True)))
    assert (verdict.validity, [finding.kind for finding in verdict.findings]) == (Validity.VALID, ["fault-missed"])
    assert [verdict.figures[f"took_effect{family}"] for family in ("", " kill", " pause")] == [1, 1, 0]


def test_a_fault_whose_condition_never_held_is_told_from_one_that_missed() -> None:
    row = small_evidence.fault("pause", ["b2"], 1, 1, {}, bit=False)
    row["detail"] = json.dumps({"nodes": ["b2"], "not_injected": "the condition did not hold within 5 s: elected b2"})
    settings = CheckSettings(faults_asked=True)
    verdict = faults.check(RunEvidence(faults=small_evidence.faults(row), settings=settings))
    assert verdict.validity is Validity.UNKNOWN
    assert [finding.kind for finding in verdict.findings] == ["nothing-took-effect", "not-injected"]
    assert (verdict.figures["injected"], verdict.figures["missed"], verdict.figures["not_injected"]) == (0, 0, 1)


@pytest.mark.parametrize(("killed", "validity"), [(1, Validity.VALID), (0, Validity.UNKNOWN)])
def test_a_power_loss_after_which_nothing_is_missing_has_ended_a_process(killed: int, validity: Validity) -> None:
    evidence = {"killed": killed, "unsynced_bytes": 120, "lost_bytes": 0}
    rows = small_evidence.faults(small_evidence.fault("power-loss", ["b1"], 1, 2, evidence, bit=False))
    verdict = faults.check(RunEvidence(faults=rows, settings=CheckSettings(faults_asked=True)))
    assert verdict.validity is validity
    assert verdict.findings[-1].kind == "fault-missed"


@pytest.mark.parametrize(
    ("evidence", "validity"),
    [
        ({"held": 2, "refused": 10}, Validity.VALID),
        ({"frozen_seconds": 5.5, "missed": 13}, Validity.VALID),
        ({"intercepted": 1}, Validity.VALID),
        ({"lost": 3}, Validity.VALID),
        ({"killed": 0, "interrupted": 0, "lost_bytes": 4_890}, Validity.VALID),
        ({"killed": 0, "interrupted": 0, "lost_bytes": 0, "lost_names": 1}, Validity.VALID),
        ({"held": 0, "frozen_seconds": 5.5, "missed": 0, "refused": 10}, Validity.UNKNOWN),
    ],
)
def test_a_fault_that_missed_its_aim_has_broken_something_on_the_way(
    evidence: dict[str, float], validity: Validity
) -> None:
    rows = small_evidence.faults(small_evidence.fault("late-isr-change", ["b1", "b2"], 1, 2, evidence, bit=False))
    verdict = faults.check(RunEvidence(faults=rows, settings=CheckSettings(faults_asked=True)))
    assert verdict.validity is validity
    assert verdict.findings[-1].kind == "fault-missed"


@pytest.mark.parametrize("injected", [0, 1])
def test_a_run_whose_requested_faults_had_no_effect_is_unknown(injected: int) -> None:
    rows = [small_evidence.fault("pause", ["b2"], 1, 2, {}, bit=False)] * injected
    asked = RunEvidence(faults=small_evidence.faults(*rows), settings=CheckSettings(faults_asked=True))
    assert faults.check(asked).validity is Validity.UNKNOWN
    assert faults.check(replace(asked, settings=CheckSettings())).validity is Validity.VALID


# availability


def test_availability_gives_the_share_the_longest_gap_and_latencies() -> None:
    rows = [append(1, 1, 2, 0), append(2, 3, outcome=INFO), append(3, 4, 5, outcome=FAIL), append(4, 11, 14, 1)]
    figures = availability.check(RunEvidence(history=small_evidence.history(rows, [poll(0, 50, 51, 1, 4)]))).figures
    assert (figures["acks_share"], figures["read"]) == (0.5, 0)
    assert figures["unavailable_seconds_longest"] == 11
    assert (figures["append_ms_max"], figures["append_ms_p50"]) == (3000, 2000)
    assert "poll_ms_p50" not in figures


def test_availability_counts_what_was_acknowledged_and_read_before_the_final_reads() -> None:
    rows = [append(1, 1, 2, 0), append(2, 3, outcome=INFO), append(3, 4, 5, 2), poll(0, 6, 7, 1, 2), poll(0, 6, 7, 1)]
    figures = availability.check(RunEvidence(history=small_evidence.history(rows, [poll(0, 8, 9, 1, 2, 3)]))).figures
    assert (figures["ok"], figures["read"]) == (2, 1)


def test_time_without_an_open_append_is_not_unavailability() -> None:
    rows = [append(1, 1, 2, 0), append(2, 100, 101, 1)]
    figures = availability.check(RunEvidence(history=small_evidence.history(rows))).figures
    assert figures["unavailable_seconds_longest"] == 1


WITHOUT_SUBJECT = frozenset({"groups", "coordinator", "time_offsets"})
"""Checkers that do not apply to the good run: it has neither a group nor clients that ask for offsets by time."""


def good_run() -> RunEvidence:
    replicas, ends = small_evidence.logs(b1=[(1, 7)], b2=[(1, 7)], b3=[(1, 7)])
    return RunEvidence(
        history=small_evidence.history([append(7, 1, 2, 0)], [end_offset(8, 9, 1), poll(0, 9, 10, 7)]),
        replicas=replicas,
        replica_ends=ends,
        trace=small_evidence.trace(
            small_evidence.event(0, "c1", "quorum_recovered", leader_epoch=0, offset=0, log_end=0),
            small_evidence.event(1, "b1", "appended", offset=0, log_end=1, leader_epoch=1),
            small_evidence.event(2, "b1", "acknowledged", offset=0, log_end=1, high_watermark=1),
        ),
        settings=CheckSettings(network_is_witness=True),
        recovery=WHOLE,
    )


def test_a_good_run_is_valid_by_every_checker() -> None:
    verdicts = registry.check(good_run())
    assert [verdict.checker for verdict in verdicts] == [
        name for name in registry.CHECKERS if name not in WITHOUT_SUBJECT
    ]
    assert worst(verdict.validity for verdict in verdicts) is Validity.VALID


def test_a_run_without_evidence_is_never_valid() -> None:
    verdicts = {verdict.checker: verdict for verdict in registry.check(RunEvidence())}
    assert {name for name, verdict in verdicts.items() if verdict.validity is Validity.VALID} == {"faults"}
    assert all(verdict.findings for name, verdict in verdicts.items() if name != "faults")


@pytest.mark.parametrize("settings", [{"has_trace": False}, {"comparable_clocks": False}])
def test_protocol_and_raft_are_left_out_without_a_trace_or_without_comparable_clocks(settings: dict[str, bool]) -> None:
    run = replace(good_run(), settings=CheckSettings(**settings))
    assert not {"protocol", "raft", "visibility"} & {verdict.checker for verdict in registry.check(run)}


def test_a_trace_that_a_system_has_but_nobody_recorded_is_unknown() -> None:
    run = replace(good_run(), trace=RunEvidence().trace)
    validity = {verdict.checker: verdict.validity for verdict in registry.check(run)}
    assert validity["protocol"] is validity["raft"] is Validity.UNKNOWN


def test_the_groups_checker_runs_where_consumers_form_a_group() -> None:
    run = replace(good_run(), settings=CheckSettings(groups=True))
    (verdict,) = [verdict for verdict in registry.check(run) if verdict.checker == "groups"]
    assert verdict.validity is Validity.UNKNOWN


@pytest.mark.parametrize(("operation", "applies"), [("commit 0", True), ("resume 0", True), ("poll 0", False)])
def test_the_groups_checker_runs_where_a_script_commits(operation: str, applies: bool) -> None:
    settings = parse({"clients": {"operations": [{"at": "1s", "do": operation}]}}).check_settings()
    assert ("groups" in registry.applicable_checkers(settings)) is applies


def test_a_node_that_vanished_accuses_nobody_and_is_named() -> None:
    """b1's container was removed: its log seems to end at 0, and the others committed without it."""
    events = [
        small_evidence.event(1, "c1", "partition_changed", {"min_isr": 1}, leader=2, members=[1, 2]),
        small_evidence.event(2, "b2", "became_leader", offset=0, log_end=0, leader_epoch=1, members=[1, 2]),
        small_evidence.event(3, "b2", "appended", offset=0, log_end=4, leader_epoch=1),
        small_evidence.event(
            4, "b2", "high_watermark", {"positions": {"1": 4, "2": 4}}, offset=0, high_watermark=4, members=[1, 2]
        ),
        small_evidence.event(5, "c1", "partition_changed", {"min_isr": 1}, leader=2, members=[1, 2]),
    ]
    stuck = STUCK | {"crashes": []}
    gone = stuck | {"vanished": [{"node": "b1", "time_ns": 9 * 10**9}]}
    names = {name: registry.CHECKERS[name] for name in ("protocol", "liveness", "processes")}

    def verdicts(recovery: dict[str, Any]) -> dict[str, Verdict]:
        evidence = RunEvidence(trace=small_evidence.trace(*events), recovery=recovery)
        return {verdict.checker: verdict for verdict in registry.check(evidence, names)}

    assert verdicts(stuck)["protocol"].validity is Validity.INVALID, "without knowing that it vanished"
    assert {name: verdict.validity for name, verdict in verdicts(gone).items()} == dict.fromkeys(
        names, Validity.UNKNOWN
    )
    for verdict in verdicts(gone).values():
        assert any("b1" in line and "9.000 s" in line for line in verdict.findings[0].lines)


def test_a_fault_whose_effect_was_not_read_back_is_not_called_a_miss() -> None:
    row = small_evidence.fault("wipe-disk", ["b2"], 5, 6, {"nodes": {"b2": {}}, "unknown_lost_bytes": 1.0}, bit=False)
    verdict = faults.check(RunEvidence(faults=small_evidence.faults(row)))
    assert [finding.kind for finding in verdict.findings] == ["effect-unknown"]
    assert "lost_bytes could not be read back" in verdict.findings[0].lines[0]


def test_a_checker_that_crashes_says_unknown_and_the_others_still_run() -> None:
    def crashing(_: RunEvidence) -> Verdict:
        raise ZeroDivisionError("by zero")

    verdicts = registry.check(good_run(), {"crashing": crashing, "faults": faults.check})
    assert [verdict.validity for verdict in verdicts] == [Validity.UNKNOWN, Validity.VALID]
    assert verdicts[0].findings[0].lines[0] == "the checker crashed: ZeroDivisionError: by zero"
    assert Path(__file__).name in verdicts[0].findings[0].lines[1]


def test_settings_are_read_from_json_of_any_version_and_bad_values_are_refused() -> None:
    settings: dict[str, Any] = CheckSettings(acks=1, recency="strict").to_json()
    assert CheckSettings.from_json(settings | {"of a later version": 1}) == CheckSettings(acks=1, recency="strict")
    assert CheckSettings.from_json({"trace_has_one_clock": False}) == CheckSettings(comparable_clocks=False)
    with pytest.raises(ValueError, match="recency: 'fast' is neither 'default' nor 'strict'"):
        CheckSettings(recency="fast")


def test_a_verdict_stored_as_quorum_is_read_as_raft() -> None:
    stored = {"checks": [{"checker": "quorum", "validity": "valid", "findings": [], "figures": {}}]}
    assert [verdict.checker for verdict in verdicts_from_json(stored)] == ["raft"]
    assert {checker_name(name) for name in registry.CHECKERS} == set(registry.CHECKERS)


# missing evidence


@pytest.mark.parametrize("part", sorted(set(EvidencePart) - {EvidencePart.LOSSES}))
def test_a_gap_makes_exactly_the_checkers_that_rest_on_its_part_unknown(part: EvidencePart) -> None:
    run = replace(good_run(), gaps=(EvidenceGap(part, "the disk was full"),))
    verdicts = {verdict.checker: verdict for verdict in registry.check(run)}
    unknown = {name for name, verdict in verdicts.items() if verdict.validity is Validity.UNKNOWN}
    assert unknown == {name for name in verdicts if part in registry.RESTS_ON[name]} != set()
    for name in unknown:
        (finding,) = verdicts[name].findings
        assert (finding.kind, finding.lines) == ("missing-evidence", (f"{part}: the disk was full",))
        assert part in verdicts[name].rests_on


def test_a_gap_of_the_trace_concerns_checkers_of_reads_only_in_a_run_that_lost_or_deleted_data() -> None:
    run = replace(good_run(), gaps=(EvidenceGap(EvidencePart.TRACE, "cut in half"),))
    lossy = small_evidence.faults(small_evidence.fault("power-loss", ["b1"], 1, 2, {"lost_bytes": 9}))
    resting_on_losses = {name for name, parts in registry.RESTS_ON.items() if EvidencePart.LOSSES in parts}
    own = {"protocol", "raft", "liveness", "visibility", "processes"}
    for faults_table, unknown in ((run.faults, own), (lossy, (own | resting_on_losses) - WITHOUT_SUBJECT)):
        verdicts = registry.check(replace(run, faults=faults_table))
        lacking = [each.checker for each in verdicts if each.findings and each.findings[0].kind == "missing-evidence"]
        assert set(lacking) == unknown


def test_a_crash_stands_beside_a_gap_of_the_trace_where_no_network_is_a_witness() -> None:
    crash = {"node": "c1", "time_ns": 1, "error": "OSError: no such file"}
    gaps = (EvidenceGap(EvidencePart.TRACE, "there is no event of c1"),)
    run = replace(good_run(), recovery=WHOLE | {"crashes": [crash]}, gaps=gaps)
    for is_witness, kind in ((False, "process-crashed"), (True, "missing-evidence")):
        settings = CheckSettings(network_is_witness=is_witness)
        (verdict,) = registry.check(replace(run, settings=settings), {"processes": processes.check})
        assert [finding.kind for finding in verdict.findings] == [kind]
        assert ("trace" in verdict.rests_on) == is_witness


def test_what_is_missing_accuses_nobody() -> None:
    lost = replace(good_run(), history=small_evidence.history([append(7, 1, 2, 0), append(8, 2, 3, 1)]))
    assert worst(verdict.validity for verdict in registry.check(lost)) is Validity.INVALID
    damaged = replace(lost, gaps=(EvidenceGap(EvidencePart.HISTORY, "its last line is torn"),))
    assert worst(verdict.validity for verdict in registry.check(damaged)) is Validity.UNKNOWN


def test_verdicts_of_partitions_merge_to_unknown_where_the_run_lacks_what_they_rest_on() -> None:
    run = good_run()
    verdicts = [*registry.check_partition(run, 9), registry.run_checker("faults", faults.check, run)]
    gaps = [EvidenceGap(EvidencePart.REPLICAS, "b2 is missing")]
    merged = {verdict.checker: verdict for verdict in registry.merge_partition_verdicts(run.settings, verdicts, gaps)}
    assert merged["logs"].findings[0].kind == merged["loss"].findings[0].kind == "missing-evidence"
    assert merged["linearizability"].validity is merged["faults"].validity is Validity.VALID


def test_with_unknown_settings_no_checker_is_left_out() -> None:
    gaps = (EvidenceGap(EvidencePart.SETTINGS, "settings.json is missing"),)
    verdicts = registry.check(RunEvidence(settings=CheckSettings(has_trace=False), gaps=gaps))
    assert [verdict.checker for verdict in verdicts] == list(registry.CHECKERS)
    assert worst(verdict.validity for verdict in verdicts) is Validity.UNKNOWN
