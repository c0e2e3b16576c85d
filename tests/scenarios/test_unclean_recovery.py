"""Costs and losses of each strategy of unclean recovery, in whole clusters under one schedule each.

Three replicas, min.insync.replicas 2, so the protocol survives one loss at a time. A killed process loses nothing, a
power loss that keeps nothing empties a log; both come back as unclean shutdowns: the controller cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from checkers.verdict import Validity, Verdict
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.controller import unclean_recovery
from images.broker.controller.partition_change import PartitionChangeBuilder
from images.broker.controller.unclean_recovery import ReplicaLogEnd
from images.broker.log.leader_epochs import UNDEFINED
from images.broker.log.log import Log
from images.wire.field_values import NO_LEADER
from tests.broker.controller.early_strategies import begin_early, begin_early_with_all

Script = Sequence[dict[str, Any]]

ONE_LOSS: Script = (
    {"at": "4s", "for": "8s", "fault": "kill", "nodes": ["b3"]},
    {"at": "7s", "for": "6s", "fault": "kill", "nodes": ["b2"]},
    {"at": "7s", "for": "3s", "fault": "power-loss", "nodes": ["b1"], "keep": "nothing"},
)
"""b3 leaves early. b1 and b2, all that is left of the ISR, go down together; b1, which has lost everything, is back
first, then b3, which has most of it, and b2, which has everything, last."""

TWO_LOSSES: Script = (
    {"at": "4s", "for": "8s", "fault": "kill", "nodes": ["b3"]},
    {"at": "7s", "for": "3s", "fault": "power-loss", "nodes": ["b1", "b2"], "keep": "nothing"},
)
"""b1 and b2 have lost everything: one more than the protocol survives."""

TOGETHER: Script = (
    {"at": "4s", "for": "8s", "fault": "kill", "nodes": ["b3"]},
    {"at": "7s", "for": "3s", "fault": "kill", "nodes": ["b2"]},
    {"at": "7s", "for": "3s", "fault": "power-loss", "nodes": ["b1"], "keep": "nothing"},
)
"""b1 and b2 are back at the same time, and b1, which precedes b2 for most seeds, has lost everything."""

AWAY: Script = (
    {"at": "4s", "for": "5s", "fault": "kill", "nodes": ["b3"]},
    {"at": "8s", "for": "8s", "fault": "pause", "nodes": ["b1", "b2"]},
)
"""b3 is out of the ISR and back when b1 and b2 are merely silent for a while: nobody has lost anything."""

EMPTIED: Script = (
    {"at": "3s", "for": "13s", "fault": "kill", "nodes": ["b3"]},
    {"at": "8s", "for": "8s", "fault": "power-loss", "nodes": ["b1"], "keep": "prefix"},
    {"at": "10500ms", "for": "5500ms", "fault": "kill", "nodes": ["b2"]},
)
"""b3 leaves early. b1 loses its power, and with it the end of its log; before that is noticed, retention deletes all
records of b2, which has lost nothing, and b2 is killed. All are back at the same time."""
SHORT_RETENTION = {"broker.session.timeout.ms": "3000", "retention.ms": "1000", "segment.ms": "500"}


def played(
    script: Script,
    strategy: str,
    *,
    without: Sequence[str] = (),
    seed: int = 1,
    time_limit: str = "25s",
    **settings: str,
) -> Outcome:
    return run_in_simulation(
        parse(
            {
                "seed": seed,
                "partitions": 1,
                "time_limit": time_limit,
                "faults": list(script),
                "settings": {"unclean.recovery.strategy": strategy, **settings},
                "without": list(without),
            }
        )
    )


def of(outcome: Outcome, checker: str) -> Verdict:
    (found,) = (verdict for verdict in outcome.verdicts if verdict.checker == checker)
    return found


def kinds(outcome: Outcome) -> set[str]:
    return {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}


KILLS: Script = (
    {"at": "4s", "for": "8s", "fault": "kill", "nodes": ["b3"]},
    {"at": "7s", "for": "3s", "fault": "kill", "nodes": ["b1", "b2"]},
)
"""The ISR goes down, and nobody loses anything."""

LAST_LOSES: Script = (
    {"at": "4s", "for": "12s", "fault": "kill", "nodes": ["b3"]},
    {"at": "5s", "for": "9s", "fault": "kill", "nodes": ["b2"]},
    {"at": "9s", "for": "3s", "fault": "power-loss", "nodes": ["b1"], "keep": "nothing"},
)
"""b1 leads alone, since b2 leaves first, and is the only one that loses anything."""


def test_the_last_known_leader_leads_again_and_what_it_had_lost_is_reported_not_called_wrong() -> None:
    outcome = played(LAST_LOSES, "last-known-leader")
    assert outcome.validity is Validity.UNKNOWN, outcome.verdicts
    assert kinds(outcome) == {"fault-model-exceeded"}
    assert of(outcome, "loss").figures["excused"] > 10
    assert of(outcome, "liveness").validity is Validity.VALID


def test_the_last_known_leader_loses_nothing_when_brokers_are_merely_killed() -> None:
    outcome = played(KILLS, "last-known-leader")
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert of(outcome, "loss").figures["lost"] == 0


@pytest.mark.parametrize("strategy", [None, "manual"])
def test_a_single_replica_leads_again_after_a_kill_by_default(strategy: str | None) -> None:
    kill = {"at": "4s", "for": "3s", "fault": "kill", "nodes": ["b1"]}
    one = {"brokers": 1, "replication_factor": 1, "partitions": 1, "seed": 1, "time_limit": "15s", "faults": [kill]}
    settings = {"min.insync.replicas": "1"} | ({"unclean.recovery.strategy": strategy} if strategy else {})
    outcome = run_in_simulation(parse({**one, "settings": settings}))
    assert outcome.validity is (Validity.UNKNOWN if strategy else Validity.VALID), outcome.verdicts
    assert of(outcome, "loss").figures["promised"] > 50
    assert kinds(outcome) == ({"leaderless-by-design", "not-finally-read"} if strategy else set())


def test_manual_recovery_leaves_the_partition_without_a_leader_and_says_why() -> None:
    outcome = played(ONE_LOSS, "manual")
    assert outcome.validity is Validity.UNKNOWN
    (finding,) = of(outcome, "liveness").findings
    assert finding.kind == "leaderless-by-design"
    assert of(outcome, "loss").figures["lost"] == 0


def test_6_8_balanced_recovery_waits_for_the_replica_that_lost_nothing_and_loses_nothing() -> None:
    outcome = played(ONE_LOSS, "balanced")
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert of(outcome, "loss").figures["promised"] > 100


@pytest.mark.parametrize("epochs_alone", [False, True])
def test_6_8_balanced_recovery_elects_a_replica_whose_records_have_all_been_deleted_before_one_that_lost_some(
    epochs_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their epochs alone b1 would be elected, and give offsets of acknowledged records to others, where a log
    forgets the epoch of its last deleted record."""

    def by_epochs(logs: Mapping[int, ReplicaLogEnd]) -> int:
        return max(logs, key=lambda replica: (logs[replica].last_epoch, logs[replica].end))

    if epochs_alone:
        monkeypatch.setattr(unclean_recovery, "greatest_log", by_epochs)
        monkeypatch.setattr(Log, "_epoch_before_start", UNDEFINED)
    outcome = played(EMPTIED, "balanced", seed=3, **SHORT_RETENTION)
    assert outcome.validity is (Validity.INVALID if epochs_alone else Validity.VALID), outcome.verdicts
    assert ("conflicting-offset" in kinds(outcome)) is epochs_alone
    assert outcome.injections[1].evidence["lost_bytes"] > 0


def test_6_8_balanced_recovery_beyond_the_fault_model_reports_the_loss_and_its_cause() -> None:
    outcome = played(TWO_LOSSES, "balanced")
    assert outcome.validity is Validity.UNKNOWN
    assert of(outcome, "loss").figures["excused"] > 100
    assert kinds(outcome) == {"fault-model-exceeded"}
    assert of(outcome, "liveness").validity is Validity.VALID


@pytest.mark.parametrize("script", [ONE_LOSS, AWAY], ids=["one loss", "away"])
def test_proactive_recovery_may_lose_what_was_acknowledged_although_nobody_lost_too_much(script: Script) -> None:
    outcome = played(script, "proactive")
    assert outcome.validity is Validity.VALID, "it promises no durability"
    assert of(outcome, "loss").figures["allowed"] > 0, "and what it lost is counted"


@pytest.mark.parametrize("strategy", ["manual", "balanced"])
def test_replicas_that_are_merely_away_are_waited_for(strategy: str) -> None:
    outcome = played(AWAY, strategy)
    assert outcome.validity is Validity.VALID, outcome.verdicts
    assert of(outcome, "loss").figures["lost"] == 0


def test_unclean_election_under_manual_recovery_elects_whoever_lives_and_counts_the_loss() -> None:
    outcome = played(AWAY, "manual", **{"unclean.leader.election.enable": "true"})
    assert outcome.validity is Validity.VALID
    assert of(outcome, "loss").figures["allowed"] > 0


@pytest.mark.parametrize(
    ("mutant", "script"),
    [("recovery_waits_for_last_known_elr", ONE_LOSS), ("recovery_elects_greatest_log", TOGETHER)],
    ids=["waits", "greatest"],
)
def test_balanced_recovery_loses_acknowledged_records_without_either_of_its_rules(mutant: str, script: Script) -> None:
    """Of a few seeds, since the second case takes one in which b1 precedes b2."""
    for seed in range(1, 9):
        outcome = played(script, "balanced", seed=seed, without=[mutant])
        if outcome.validity is Validity.INVALID:
            break
    assert played(script, "balanced", seed=seed).validity is Validity.VALID
    assert outcome.validity is Validity.INVALID
    assert "lost-append" in kinds(outcome)


def test_without_an_elr_one_loss_on_the_last_member_of_the_isr_loses_acknowledged_records() -> None:
    assert played(LAST_LOSES, "balanced").validity is Validity.VALID
    outcome = played(LAST_LOSES, "balanced", without=["eligible_leader_replicas"])
    assert outcome.validity is Validity.INVALID
    assert "lost-append" in kinds(outcome)


@pytest.mark.parametrize("without", [[], ["last_known_elr_kept"]])
def test_without_the_last_known_elr_a_single_replica_never_leads_again(without: Sequence[str]) -> None:
    kill = {"at": "4s", "for": "3s", "fault": "kill", "nodes": ["b1"]}
    one = {"brokers": 1, "replication_factor": 1, "partitions": 1, "seed": 1, "time_limit": "15s", "faults": [kill]}
    outcome = run_in_simulation(parse({**one, "settings": {"min.insync.replicas": "1"}, "without": list(without)}))
    assert of(outcome, "liveness").validity is (Validity.INVALID if without else Validity.VALID)
    assert ("not-recovered" in kinds(outcome)) is bool(without)


@pytest.mark.parametrize("without", [[], ["reassignment_keeps_isr"]])
def test_a_reassignment_that_adds_to_the_isr_makes_a_candidate_of_an_empty_replica(without: Sequence[str]) -> None:
    reassign = {"at": "2s", "for": "10s", "fault": "reassign"}
    outcome = run_in_simulation(
        parse({"seed": 5, "brokers": 4, "time_limit": "15s", "faults": [reassign], "without": list(without)})
    )
    assert outcome.validity is (Validity.INVALID if without else Validity.VALID), outcome.verdicts
    assert ("candidate-incomplete" in kinds(outcome)) is bool(without)


# ---- a topic that is configured anew ---------------------------------------------------------------------------------


def together(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"all": list(conditions)}


def configured(key: str, value: str) -> dict[str, Any]:
    return {"fault": "alter-config", "key": key, "value": value, "id": value}


TO_BALANCED = configured("unclean.recovery.strategy", "balanced")
WITHOUT_B3: Script = (
    {"when": {"acknowledged": 40}, "for": "20s", "fault": "kill", "nodes": ["b3"], "id": "three"},
    {
        "when": together({"injected": "three"}, {"isr": {"lacks": "b3"}}),
        "then_after": "1s",
        "for": "20s",
        "fault": "partition",
        "shape": "leader-only",
        "nodes": ["b1"],
        "id": "cut",
    },
    {"when": {"injected": "cut"}, "for": "4s", "fault": "kill", "nodes": ["b2"], "id": "two"},
)
"""b1 leads alone. b2, which had acknowledged all with it, comes back from a kill and does not catch up."""
WHILE_ONE_LEADS: Script = (
    *WITHOUT_B3,
    {"when": together({"injected": "two"}, {"unfenced": "b2"}), **TO_BALANCED},
    {
        "after": "balanced",
        "then_after": "500ms",
        "for": "3s",
        "fault": "power-loss",
        "nodes": ["b1"],
        "keep": "nothing",
    },
)
"""The strategy changes while b1 leads; then b1, and nobody else, loses all that it has."""
WHILE_NOBODY_LEADS: Script = (
    *WITHOUT_B3,
    {
        "when": together({"injected": "cut"}, {"isr": {"lacks": "b2"}}),
        "then_after": "200ms",
        "for": "12s",
        "fault": "kill",
        "nodes": ["b1"],
        "id": "one",
    },
    {"when": together({"injected": "one"}, {"leader": "none"}, {"elr": {"lacks": "b2"}}), **TO_BALANCED},
    {
        "when": together({"injected": "balanced"}, {"leader": "b1"}),
        "then_after": "100ms",
        "for": "3s",
        "fault": "power-loss",
        "nodes": ["b1"],
        "keep": "nothing",
    },
)
"""The strategy changes while nobody leads; b1 is back, leads again, and then loses all that it has."""


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("script", [WHILE_ONE_LEADS, WHILE_NOBODY_LEADS], ids=["one leads", "nobody leads"])
def test_balanced_recovery_begins_where_it_is_known_whose_logs_it_needs(
    script: Script, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it begins at once, the recovery asks b1 alone, which has lost what b2 still has: that is lost, although one
    loss is not too much for balanced recovery."""
    if early:
        begin_early(monkeypatch)
    outcome = played(script, "last-known-leader", time_limit="40s")
    assert outcome.validity is (Validity.INVALID if early else Validity.VALID), outcome.verdicts
    assert all(injection.took_effect for injection in outcome.injections)
    expected = {"strategy-changed-early", "lost-append"} if early else set()
    assert kinds(outcome) >= expected, kinds(outcome)


GREATER_LOG: Script = (
    {"after": "ten", "fault": "place-replicas", "nodes": ["b2", "b1", "b3"], "id": "b2-first"},
    {"after": "b2-first", "for": "500ms", "fault": "elect-preferred", "id": "b2-leads"},
    {
        "after": "b2-leads",
        "until": {"healed": "twenty"},
        "fault": "partition",
        "shape": "leader-only",
        "nodes": ["b1"],
        "id": "cut-1",
    },
    {"after": "five", "fault": "place-replicas", "nodes": ["b1", "b2", "b3"], "id": "b1-first"},
    {"after": "b1-first", "for": "500ms", "fault": "elect-preferred"},
    {"after": "twenty", "until": {"injected": "kill-2"}, "fault": "kill", "nodes": ["b1"]},
    {"after": "polled", "for": "6s", "fault": "partition", "shape": "leader-only", "nodes": ["b2"], "id": "cut-2"},
    {"when": {"injected": "cut-2"}, "for": "1s", "fault": "kill", "nodes": ["b3"], "id": "kill-3"},
    {"after": "kill-3", "when": {"unfenced": "b3"}, **TO_BALANCED},
    {"after": "balanced", "then_after": "500ms", "for": "4s", "fault": "kill", "nodes": ["b2"], "id": "kill-2"},
)
"""b2 leads, and has five records that b1 does not get. b1 leads after it, in a greater epoch, takes twenty that nobody
else gets, and is killed. b2 leads again, without b1 its five are committed, and b3 and b2 are killed. Nobody loses
anything, and b1, which has been out of the ISR since, has the greatest log, without the five."""


def with_greater_log() -> Outcome:
    operations = [
        {"do": "produce 10 to 0", "id": "ten"},
        {"do": "produce 5 to 0 by second", "when": together({"injected": "cut-1"}, {"leader": "b2"}), "id": "five"},
        {"do": "produce 20 to 0 by third", "when": {"leader": "b1"}, "id": "twenty"},
        {"do": "poll 0 until 11", "when": {"high_watermark": {"at_least": 11}}, "id": "polled"},
    ]
    unused = dict.fromkeys(("producers", "consumers", "end_offset_readers"), 0)
    return run_in_simulation(
        parse(
            {
                "seed": 1,
                "partitions": 1,
                "time_limit": "24s",
                "clients": {**unused, "delivery_timeout": 2, "request_timeout": 1, "operations": operations},
                "faults": list(GREATER_LOG),
                "settings": {"broker.session.timeout.ms": "1000", "replica.lag.time.max.ms": "60000"},
            }
        )
    )


@pytest.mark.parametrize("early", [False, True])
def test_balanced_recovery_asks_no_replica_that_may_never_have_had_what_is_committed(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all replicas are taken for former members of the ELR, b1 is elected by its greater log."""
    if early:
        begin_early_with_all(monkeypatch)
    outcome = with_greater_log()
    assert outcome.validity is (Validity.INVALID if early else Validity.VALID), outcome.verdicts
    assert all(injection.took_effect for injection in outcome.injections)
    expected = {"strategy-changed-early", "last-known-elr-otherwise", "candidate-incomplete", "lost-read"}
    assert kinds(outcome) >= expected if early else not kinds(outcome)


@pytest.mark.parametrize(
    ("first", "then", "validity"),
    [("balanced", "manual", Validity.UNKNOWN), ("manual", "balanced", Validity.VALID)],
)
def test_a_run_is_judged_by_the_strategy_that_its_topic_has_then(first: str, then: str, validity: Validity) -> None:
    change = {"at": "1s", **configured("unclean.recovery.strategy", then)}
    outcome = played((change, *ONE_LOSS), first)
    assert outcome.validity is validity, outcome.verdicts
    by_design = {"leaderless-by-design", "not-finally-read"} & kinds(outcome)
    assert bool(by_design) is (then == "manual")
    assert of(outcome, "loss").figures["lost"] == 0


LOWERED: Script = (
    {"when": {"acknowledged": 40}, "for": "40s", "fault": "kill", "nodes": ["b3"], "id": "three"},
    {**WITHOUT_B3[1], "for": "35s"},
    {**WITHOUT_B3[2], "for": "12s"},
    {
        "when": together({"injected": "cut"}, {"isr": {"lacks": "b2"}}),
        "then_after": "200ms",
        "for": "4s",
        "fault": "kill",
        "nodes": ["b1"],
        "id": "one",
    },
    {
        "when": together({"injected": "one"}, {"leader": "none"}),
        "then_after": "1s",
        **configured("min.insync.replicas", "1"),
        "id": "low",
    },
    {
        "when": together({"injected": "low"}, {"leader": "b1"}),
        "then_after": "3s",
        "for": "30s",
        "fault": "kill",
        "nodes": ["b2"],
        "id": "gone",
    },
    {"when": {"injected": "gone"}, "then_after": "3s", "for": "3s", "fault": "kill", "nodes": ["b1"]},
)
"""While nobody leads, one replica in the ISR becomes enough. b1 is elected, takes records alone, and is killed again
while b2, which has none of these, is away for long."""


@pytest.mark.parametrize("kept", [False, True])
def test_a_recovery_that_makes_an_isr_that_suffices_leaves_nobody_to_wait_for(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With b2 in the LastKnownELR still, b1 is not elected again before b2 is back: no record is lost, and the clients
    write no more until the end."""
    eligible_replicas = PartitionChangeBuilder._eligible_replicas

    def keep(builder: Any, partition: Any, candidates: Any, elr: Any, election: Any) -> Any:
        if election.unclean:
            return (), tuple(each for each in partition.last_known_elr if each != election.leader)
        return eligible_replicas(builder, partition, candidates, elr, election)

    if kept:
        monkeypatch.setattr(PartitionChangeBuilder, "_eligible_replicas", keep)
    outcome = played(LOWERED, "balanced", time_limit="45s")
    assert outcome.validity is (Validity.INVALID if kept else Validity.VALID), outcome.verdicts
    assert kinds(outcome) == ({"last-known-elr-otherwise"} if kept else set())
    longest = of(outcome, "availability").figures["unavailable_seconds_longest"]
    assert (longest > 20) is kept


# ---- the last known leader -------------------------------------------------------------------------------------------


def killed_alone() -> Outcome:
    """The only replica of a partition is killed; it comes back, and is fenced until it has read the metadata."""
    faults = [{"at": "3s", "for": "4s", "fault": "kill", "nodes": ["leader/0"]}]
    spec = {"seed": 3, "time_limit": 12, "partitions": 1, "replication_factor": 1, "faults": faults}
    return run_in_simulation(parse(spec | {"settings": {"min.insync.replicas": "1"}}))


def test_the_last_known_leader_leads_again_once_it_is_unfenced() -> None:
    outcome = killed_alone()
    assert outcome.validity is Validity.VALID
    assert not kinds(outcome)


def test_a_last_known_leader_that_is_elected_while_it_is_fenced_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    elect = PartitionChangeBuilder._elect

    def elect_the_last_known_leader(builder: Any, partition: Any, isr: Any, elr: Any) -> Any:
        election = elect(builder, partition, isr, elr)
        if election.leader == NO_LEADER and not isr and not elr and partition.last_known_elr:
            builder._eligible = lambda _: True
            election = elect(builder, partition, isr, elr)
        return election

    monkeypatch.setattr(PartitionChangeBuilder, "_elect", elect_the_last_known_leader)
    outcome = killed_alone()
    assert outcome.validity is Validity.INVALID
    assert "fenced-broker-elected" in kinds(outcome)
