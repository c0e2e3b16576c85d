"""Messages delayed, held and dropped in simulated clusters: the fault takes effect, and the protocol withstands it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run, run_in_simulation
from harness.spec import parse
from harness.yaml_document import SpecError
from images.broker.broker_node import BrokerNode
from images.wire.messages import Api
from nemesis.cluster_shape import ClusterShape
from nemesis.drawing import Draws, RunProfile
from nemesis.faults.administrators.admin import Reassign
from nemesis.faults.administrators.delete_records import DeleteRecords
from nemesis.faults.late_isr_change import LateIsrChange
from nemesis.faults.late_message import LateMessage
from nemesis.faults.late_request import ClientRequest, LateRequest
from nemesis.faults.message import API_KEYS, MessageFault, NodeRequest
from nemesis.ports import EnvironmentCapability, KeepUnsynced, MessageEffect, MessagePart
from nemesis.schedule import Schedule, ScheduledFault
from nemesis.swarm import draw
from results.run.directory import RunDirectory

CLUSTER = ClusterShape(("b1", "b2", "b3"), ("c1", "c2", "c3"), partitions=2)


def outcome_of(*faults: dict[str, Any], **fields: Any) -> Outcome:
    return run_in_simulation(parse({"seed": 1, "time_limit": "8s", "faults": list(faults), **fields}))


def test_every_request_has_the_number_that_the_wire_has() -> None:
    assert {api.title().replace("_", ""): int(number) for api, number in Api.__members__.items()}.items() >= {
        str(api): key for api, key in API_KEYS.items()
    }.items()


@pytest.mark.parametrize("effect", MessageEffect)
@pytest.mark.parametrize("part", MessagePart)
def test_fetches_are_intercepted_and_nothing_is_lost(effect: MessageEffect, part: MessagePart) -> None:
    fault = {"fault": "message", "api": "Fetch", "part": part, "effect": effect, "nodes": ["b2"], "count": 2}
    if effect is MessageEffect.DELAY:
        fault["delay_ms"] = 1500
    outcome = outcome_of({"at": 2, "for": 3, **fault})
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (injection,) = outcome.injections
    assert injection.evidence["intercepted"] == 2


def test_a_heartbeat_that_is_held_for_long_costs_a_broker_its_leadership() -> None:
    fault = {"fault": "message", "api": "BrokerHeartbeat", "effect": "hold", "nodes": ["leader/0"], "count": 0}
    outcome = outcome_of({"at": 1, "for": 5, **fault, "against": ["controllers"]})
    assert outcome.validity is Validity.VALID, outcome.verdicts
    protocol = next(verdict for verdict in outcome.verdicts if verdict.checker == "protocol")
    assert protocol.figures["elections"] > 2


def test_an_accepted_isr_change_whose_response_is_lost_is_proposed_again_and_agreed_upon() -> None:
    lost = {"fault": "message", "api": "AlterPartition", "part": "response", "effect": "drop", "nodes": ["brokers"]}
    outcome = outcome_of(
        {"at": 0, "for": 8, **lost, "against": ["controllers"], "count": 3},
        {"at": 1, "for": 3, "fault": "pause", "nodes": ["follower/0"]},
    )
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (evidence,) = (each.evidence for each in outcome.injections if each.fault == "message")
    assert evidence["intercepted"] >= 2


def test_a_broker_that_loses_its_connection_keeps_its_session_though_other_controllers_are_silent(
    tmp_path: Path,
) -> None:
    """Trying the silent ones in turn would take longer than its session."""
    directory = RunDirectory.create(tmp_path, "run", 1)
    dropped = {"fault": "message", "api": "BrokerHeartbeat", "effect": "drop", "nodes": ["b1"]}
    faults = [
        {"at": 2, "for": 8, "fault": "pause", "nodes": ["c1", "c2"]},  # c5 is active, and these two come after it
        {"at": 3, "for": 1, **dropped, "against": ["controllers"]},
    ]
    outcome = run(parse({"seed": 1, "time_limit": "10s", "controllers": 5, "faults": faults}), directory)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (evidence,) = (each.evidence for each in outcome.injections if each.fault == "message")
    assert evidence["intercepted"] == 1
    kinds = directory.load().trace["kind"].to_pylist()
    assert "broker_unfenced" in kinds
    assert "broker_fenced" not in kinds


SENDER: dict[str, Any] = {"nodes": ["b1"], "victim": "b1", "keep": "nothing"}
MEMBER: dict[str, Any] = {"nodes": ["leader/0"], "victim": "b3", "keep": "nothing"}


@pytest.mark.parametrize(
    ("fault", "refusal", "error"),
    [
        ({**SENDER, "against": ["brokers"], "api": "Fetch"}, "request_fenced", "not_leader_or_follower"),
        ({**SENDER, "against": ["controllers"], "api": "BrokerHeartbeat"}, "heartbeat_refused", None),
        (
            {**SENDER, "against": ["controllers"], "api": "AlterPartition"},
            "alter_partition_refused",
            "stale_broker_epoch",
        ),
        (
            {**MEMBER, "against": ["controllers"], "api": "AlterPartition"},
            "alter_partition_refused",
            "ineligible_replica",
        ),
    ],
)
def test_a_late_message_of_an_earlier_life_is_held_until_the_later_one_takes_part_and_refused_then(
    fault: dict[str, Any], refusal: str, error: str | None, tmp_path: Path
) -> None:
    late = {"at": 1, "fault": "late-message", **fault, "arrives_after": "unfenced"}
    outcome = run_in_simulation(parse({"seed": 1, "time_limit": "9.5s", "faults": [late]}), tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (injection,) = outcome.injections
    assert injection.took_effect
    assert injection.evidence["late_ms"] > 1000, "a session of two seconds had to end first"
    assert outcome.directory is not None
    trace = RunDirectory.open(outcome.directory).load().trace.to_pylist()
    unfenced_ns = max(event["time_ns"] for event in trace if event["kind"] == "broker_unfenced")
    refused = [event for event in trace if event["kind"] == refusal and event["time_ns"] > unfenced_ns]
    assert error in [json.loads(event["detail"]).get("error") for event in refused]


@pytest.mark.parametrize(
    ("api", "rule", "finding"),
    [
        ("AlterPartition", "sender_epoch_checked_in_alter_partition", "isr-change-refused-otherwise"),
        ("BrokerHeartbeat", "stale_heartbeat_refused", "heartbeat-of-an-earlier-life"),
    ],
)
def test_a_late_message_of_an_earlier_life_is_not_refused_as_such_exactly_without_the_rule(
    api: str, rule: str, finding: str
) -> None:
    """The same faults as above. The proposal is of an earlier leader epoch, too, and is refused for that; the heartbeat
    renews a session that began before."""
    late = {"at": 1, "fault": "late-message", **SENDER, "against": ["controllers"], "api": api}
    values = {"seed": 1, "time_limit": "9.5s", "faults": [{**late, "arrives_after": "unfenced"}]}
    outcome = run_in_simulation(parse({**values, "without": [rule]}))
    assert outcome.validity is Validity.INVALID
    assert {each.kind for verdict in outcome.verdicts for each in verdict.findings} == {finding}


def test_a_message_whose_leader_stalls_arrives_once_another_leads() -> None:
    fault = {"fault": "late-message", "nodes": ["b2"], "against": ["brokers"], "arrives_after": "elected"}
    outcome = outcome_of({"at": 1, **fault})
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (injection,) = outcome.injections
    assert injection.evidence["missed"] > 0, "the leader of partition 0 stood still"
    assert injection.evidence["late_ms"] > 1000
    assert "not in time" not in injection.note


def test_a_fetch_of_a_controller_arrives_once_its_receiver_leads_again_in_a_later_epoch() -> None:
    fault = {"fault": "late-message", "nodes": ["controllers"], "against": ["controllers"]}
    outcome = outcome_of({"at": 1, **fault, "arrives_after": "leads_again"})
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (injection,) = outcome.injections
    assert injection.took_effect
    assert injection.evidence["missed"] > 0, "its sender stood still"
    assert "not in time" not in injection.note
    raft = next(verdict for verdict in outcome.verdicts if verdict.checker == "raft")
    assert raft.figures["elections"] >= 3


def test_the_active_controller_sends_no_fetch_that_could_be_late() -> None:
    fault = {"fault": "late-message", "nodes": ["controller"], "arrives_after": "leads_again"}
    (injection,) = outcome_of({"at": 1, **fault}).injections
    assert not injection.took_effect
    assert "is active, and fetches from nobody" in injection.note


def test_a_late_message_that_nobody_sends_is_waited_for_in_vain_and_not_for_ever() -> None:
    fault = {"fault": "late-message", "nodes": ["b2"], "against": ["brokers"], "api": "Vote", "patience_ms": 500}
    outcome = outcome_of({"at": 1, **fault})
    (injection,) = outcome.injections
    assert not injection.took_effect
    assert "no such message was sent" in injection.note
    assert injection.ended_ns is not None
    assert injection.ended_ns - injection.started_ns < 3e9


@pytest.mark.parametrize(
    ("appends", "off", "kinds"),
    [
        (50, [], set()),
        (50, ["producer_sequence_checked"], {"duplicate", "sequence-gap", "batch-out-of-sequence"}),
        # The copy is among the batches that the broker remembers, and is answered as such.
        (1, ["producer_sequence_checked"], set()),
    ],
)
def test_a_batch_arrives_a_second_time_behind_many_others_and_is_refused(
    appends: int, off: list[str], kinds: set[str]
) -> None:
    outcome = outcome_of({"at": 2, "fault": "late-request", "appends": appends}, time_limit="12s", without=off)
    (injection,) = outcome.injections
    assert injection.evidence["intercepted"] == 1
    assert {finding.kind for verdict in outcome.verdicts for finding in verdict.findings} == kinds
    assert outcome.validity is (Validity.INVALID if kinds else Validity.VALID)


@pytest.mark.parametrize("api", [api for api in ClientRequest if api is not ClientRequest.PRODUCE])
def test_a_request_of_a_member_that_has_gone_on_is_withstood(api: ClientRequest) -> None:
    late = {"at": 1, "fault": "late-request", "api": api}
    members = {"consumer_life": "6s", "consumer_rest": "500ms"}
    outcome = outcome_of(late, time_limit="20s", workload="groups", clients=members)
    (injection,) = outcome.injections
    assert injection.evidence["intercepted"] == 1
    assert outcome.validity is Validity.VALID, outcome.verdicts


def test_a_late_request_of_a_member_is_drawn_where_there_are_groups() -> None:
    profile = RunProfile((), leader_bias=0.5, held_share=0.5, keeps=())
    without, with_groups = (
        {each.api for seed in range(100) if (each := LateRequest.draw(Draws(Random(seed), cluster, profile)))}
        for cluster in (CLUSTER, replace(CLUSTER, has_groups=True))
    )
    assert (without, with_groups) == ({ClientRequest.PRODUCE}, set(ClientRequest))


@pytest.mark.parametrize("effect", [MessageEffect.DROP, MessageEffect.HOLD])
@pytest.mark.parametrize("part", MessagePart)
@pytest.mark.parametrize(
    ("api", "cause"),
    [
        ("AlterPartitionReassignments", {"fault": "reassign"}),
        ("ElectLeaders", {"fault": "elect-preferred"}),
        ("IncrementalAlterConfigs", {"fault": "raise-min-isr"}),
        ("DeleteTopics", {"fault": "recreate-topic"}),
        ("CreateTopics", {"fault": "recreate-topic"}),
    ],
)
def test_what_a_broker_forwards_is_lost_or_late_and_nothing_is_lost(
    api: str, cause: dict[str, Any], part: MessagePart, effect: MessageEffect
) -> None:
    fault = {"fault": "message", "api": api, "part": part, "effect": effect, "nodes": ["brokers"], "count": 1}
    outcome = outcome_of({"at": 1, "for": 4, **fault, "against": ["controllers"]}, {"at": 2, "for": 3, **cause})
    assert outcome.validity is Validity.VALID, outcome.verdicts
    (evidence,) = (each.evidence for each in outcome.injections if each.fault == "message")
    assert evidence["intercepted"] == 1


def requests_drawn(cluster: ClusterShape) -> dict[NodeRequest, set[tuple[str, ...]]]:
    profile = RunProfile((), leader_bias=0.5, held_share=0.5, keeps=())
    drawn = [MessageFault.draw(Draws(Random(seed), cluster, profile)) for seed in range(1000)]
    return {each.api: {other.against for other in drawn if other and other.api is each.api} for each in drawn if each}


def test_every_request_between_nodes_is_drawn_where_it_is_sent() -> None:
    everywhere = requests_drawn(replace(CLUSTER, queries_epochs=True, recovery_compares_logs=True))
    assert everywhere.keys() == set(NodeRequest)
    usual = requests_drawn(CLUSTER)
    assert everywhere.keys() - usual.keys() == {NodeRequest.OFFSET_FOR_LEADER_EPOCH, NodeRequest.GET_REPLICA_LOG_INFO}
    alone = requests_drawn(replace(CLUSTER, controllers=("c1",)))
    among_controllers = {NodeRequest.VOTE, NodeRequest.BEGIN_QUORUM_EPOCH, NodeRequest.END_QUORUM_EPOCH}
    assert usual.keys() - alone.keys() == among_controllers
    assert requests_drawn(replace(CLUSTER, controllers=())) == {NodeRequest.FETCH: {("brokers",)}}


@pytest.mark.parametrize("always_written", [True, False])
def test_what_waits_for_a_lagging_follower_is_drawn_where_clients_write(always_written: bool) -> None:
    """The follower of an idle partition never lags, so that nobody proposes another ISR there."""
    cluster = replace(CLUSTER, replication_factor=3, min_insync_replicas=2, always_written=always_written)
    profile = RunProfile(("b1",), leader_bias=0.5, held_share=0.5, keeps=(KeepUnsynced.NOTHING,))
    kinds = (LateMessage, LateIsrChange, DeleteRecords, Reassign)
    partitions: dict[tuple[str, bool], set[int]] = {}
    for kind, seed in product(kinds, range(200)):
        fault = kind.draw(Draws(Random(seed), cluster, profile))
        if fault is not None:
            partitions.setdefault((fault.name, waits_for_lag(fault)), set()).add(fault.partition)
    assert partitions.pop(("late-isr-change", True)) == ({0, 1} if always_written else {0})
    for kind in (LateMessage, DeleteRecords, Reassign):
        assert partitions.pop((kind.name, True)) == ({0, 1} if always_written else {0})
        assert partitions.pop((kind.name, False)) == {0, 1}
    assert not partitions


def waits_for_lag(fault: LateMessage | LateIsrChange | DeleteRecords | Reassign) -> bool:
    match fault:
        case LateMessage():
            return fault.api is NodeRequest.ALTER_PARTITION
        case DeleteRecords():
            return fault.behind
        case Reassign():
            return fault.short
    return True


def test_where_messages_cannot_be_told_apart_none_is_drawn_and_a_script_is_refused() -> None:
    lacking = replace(CLUSTER, unsupported=(EnvironmentCapability.MESSAGES,))
    for seed in range(50):
        assert not any(isinstance(each.fault, MessageFault | LateMessage) for each in draw(Random(seed), lacking, 60.0))
    schedule = Schedule((ScheduledFault(1.0, 2.0, MessageFault()),))
    reason = {EnvironmentCapability.MESSAGES: "packets are opaque"}
    assert schedule.unmet(reason) == "faults[0]: message needs messages, and packets are opaque"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"api": "Telegram"}, r"faults\[0\]\.api: 'Telegram' is not one of Fetch, "),
        ({"effect": "delay"}, "delay_ms: 0 with effect delay; a delay takes time"),
        ({"delay_ms": 5}, "delay_ms: 5 with effect drop; a delay takes time, others none"),
        ({"count": -1}, "count: -1 is not 0 or more"),
    ],
)
def test_a_message_fault_that_makes_no_sense_is_one_line(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError, match=line):
        parse({"faults": [{"at": 1, "for": 1, "fault": "message", **fields}]})


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"keep": "torn"}, "keep: torn without a victim that loses power"),
        ({"arrives_after": "registered"}, "arrives_after: registered without a victim that starts again"),
        (
            {"arrives_after": "leads_again", "api": "Vote"},
            "arrives_after: leads_again is for Fetch requests without a victim",
        ),
    ],
)
def test_a_late_message_that_makes_no_sense_is_one_line(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError, match=line):
        parse({"faults": [{"at": 1, "fault": "late-message", **fields}]})


@pytest.mark.parametrize("seed", range(2))
def test_random_message_faults_with_kills_and_pauses_are_withstood(seed: int) -> None:
    spec = parse({"seed": seed, "time_limit": "12s", "faults": ["message", "kill", "pause"]})
    outcome = run_in_simulation(spec)
    assert outcome.validity is Validity.VALID, outcome.verdicts


def test_a_broker_survives_the_late_registration_of_a_life_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is fenced meanwhile, so nothing refuses the late request. A broker that ended then would be missing
    for good, since nobody starts it again; and so would one that went on, whose heartbeats are refused."""
    faults = [
        {"at": "3s", "for": "2s", "fault": "kill", "nodes": ["b1"]},
        held_registration(at="3500ms", until="16s"),
        {"at": "7s", "for": "1s", "fault": "kill", "nodes": ["b1"], "id": "again"},
        {
            "when": {"all": [{"healed": "again"}, {"isr": {"has": "b1"}}]},
            "then_after": "1s",
            "for": "12s",
            "fault": "pause",
            "nodes": ["b1"],
        },
    ]
    spec = parse({"seed": 1, "time_limit": "30s", "partitions": 1, "faults": faults})
    outcome = run_in_simulation(spec, tmp_path)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert outcome.directory is not None
    trace = RunDirectory.open(outcome.directory).load().trace.to_pylist()
    lives = [event["time_ns"] for event in trace if (event["node"], event["kind"]) == ("b1", "node_started")]
    assert len(lives) == 4, "the last one begins without a start of the process"

    monkeypatch.setattr(BrokerNode, "_check_registration", lambda self: None)
    kinds = {finding.kind for verdict in run_in_simulation(spec).verdicts for finding in verdict.findings}
    assert "superseded-went-on" in kinds


@pytest.mark.parametrize("later_life", [True, False])
def test_a_late_registration_leaves_a_clean_shutdown_clean(later_life: bool) -> None:
    """b1 stops cleanly, and so does its next life, before it has heard of its registration. That arrives after a later
    life has stopped cleanly, or before the next one starts. If that one counted as unclean, b1 would end the only
    candidate of a partition, though nothing was ever lost: nobody would lead it any more."""
    restart = {"fault": "controlled-restart", "nodes": ["b1"]}
    faults = [
        {"at": "3s", "for": "1s", **restart},
        held_registration(at="3500ms", until="9s"),
        {"at": "4800ms", "for": "1s" if later_life else "12s", **restart},
        *([{"at": "9s", "for": "8s", **restart}] if later_life else []),
    ]
    outcome = outcome_of(
        *faults,
        time_limit="22s",
        partitions=3,
        replication_factor=1,
        settings={"unclean.recovery.strategy": "manual", "min.insync.replicas": 1},
    )
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert all(injection.took_effect for injection in outcome.injections)


def held_registration(at: str, until: str) -> dict[str, Any]:
    """The first registration of b1 from `at` on, held for the time `until`."""
    return {
        "at": at,
        "for": until,
        "fault": "message",
        "nodes": ["b1"],
        "against": ["controllers"],
        "api": "BrokerRegistration",
        "effect": "hold",
        "count": 1,
    }
