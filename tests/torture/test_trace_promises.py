"""A promise that the trace shows is found broken in a running cluster exactly when the rule that keeps it is off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import Spec
from nemesis.schedule import parse_faults

SEEDS = range(12)
"""Among them at least one run must break the promise."""


@dataclass(frozen=True, slots=True)
class _Promise:
    rule: str
    finding: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def run(self, seed: int, *without: str) -> Outcome:
        return run_in_simulation(Spec(seed=seed, time_limit_s=10.0, without=without, **self.fields))


SMALL_FETCHES = {"replica.fetch.max.bytes": "200", "replica.fetch.response.max.bytes": "400"}
"""A follower that was away catches up in many fetches, below its leader's high watermark."""
BALANCED = {"families": ("kill",), "settings": {"unclean.recovery.strategy": "balanced"}}
LAGGARD = {
    "families": (),
    "script": parse_faults([{"at": 2, "for": 8, "fault": "lagging-controller"}])[1],
    "partitions": 1,
}
LATE_FETCH = {"fault": "late-message", "nodes": ["controllers"], "against": ["controllers"], "at": 1}
LEADS_AGAIN = {"families": (), "script": parse_faults([LATE_FETCH | {"arrives_after": "leads_again"}])[1]}
LATE_QUORUM_FETCH = {"families": (), "script": parse_faults([{"at": 1, "for": 9, "fault": "late-quorum-fetch"}])[1]}
LATE_JOIN = {
    "families": (),
    "script": parse_faults([{"at": 0.5, "for": 9.5, "fault": "late-join", "victim": "b2"}])[1],
    "settings": {"broker.session.timeout.ms": "1000", "replica.lag.time.max.ms": "1000"},
    "partitions": 1,
}
HELD_FETCH = {
    "families": (),
    "script": parse_faults(
        [
            {"at": 2, "for": 6, "fault": "partition", "shape": "one-way", "nodes": ["b2"], "against": ["leader/0"]},
            {"at": 2.2, "for": 0.2, "fault": "kill", "nodes": ["b2"]},
        ]
    )[1],
    "settings": {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "200"},
    "partitions": 1,
}
"""The leader knows of the next life of its follower, which it has not heard of itself, when the last fetch comes."""
SLOW_CATCH_UP = {
    "families": (),
    "script": parse_faults([{"at": 1, "for": 9, "fault": "slow-catch-up"}])[1],
    "settings": {"replica.fetch.max.bytes": "300"},
    "partitions": 1,
    "rate": 40.0,
}
PROMISES = (
    _Promise(
        "follower_high_watermark_within_log",
        "high-watermark-above-log-end",
        {"families": ("kill", "partition"), "rate": 100.0, "settings": SMALL_FETCHES},
    ),
    _Promise("high_watermark_gates_isr_join", "isr-proposal-behind", {"families": ("kill", "pause", "partition")}),
    _Promise("latest_confirmed_by_isr", "latest-unconfirmed"),
    _Promise("fence_every_session_fetch", "fetch-of-another-epoch"),
    _Promise("fenced_stay_out_of_isr", "isr-proposal-of-absent", {"families": ("kill", "pause")}),
    _Promise("current_epoch_fetch_gates_isr_join", "isr-proposal-without-fetch", {"families": ("kill", "pause")}),
    _Promise("enter_leader_epoch_start", "leader-epoch-not-entered"),
    _Promise("truncate_in_every_leader_epoch", "logs-not-compared", {"families": ("admin",)}),
    _Promise("min_isr_gates_append", "appended-below-minimum", {"families": ("kill", "pause")}),
    _Promise("registration_waits_for_fencing", "registered-in-session", {"families": ("kill",)}),
    _Promise("clean_claim_after_flush", "clean-claim-unsynced", {"families": ("disk-full",)}),
    _Promise("recovery_keeps_last_known_elr", "last-known-elr-forgotten", BALANCED),
    _Promise("vote_needs_up_to_date_log", "vote-for-older-log", LAGGARD),
    _Promise("metadata_fetch_fenced", "position-of-another-epoch", LEADS_AGAIN),
    _Promise("metadata_fetch_fenced", "position-of-another-epoch", LATE_QUORUM_FETCH),
    _Promise("broker_epoch_checked_in_alter_partition", "isr-change-of-an-earlier-life", LATE_JOIN),
    _Promise("fence_fetch_broker_epoch", "fetch-of-an-earlier-life", HELD_FETCH),
    _Promise("applied_high_watermark", "latest-below-start", SLOW_CATCH_UP),
    _Promise("removal_bumps_leader_epoch", "leader-epoch-stood", {"families": ("admin",)}),
    _Promise("reassignment_keeps_isr", "reassignment-joins-isr", {"families": ("admin",)}),
    _Promise("reassignment_waits_for_isr", "reassignment-completed-early", {"families": ("admin",)}),
)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.rule)
def test_a_broken_promise_is_found_where_the_full_protocol_keeps_it(promise: _Promise) -> None:
    for seed in SEEDS:
        kinds = {finding.kind for verdict in promise.run(seed, promise.rule).verdicts for finding in verdict.findings}
        if promise.finding in kinds:
            assert promise.run(seed).validity is Validity.VALID
            return
    pytest.fail(f"{promise.finding} is in none of {len(SEEDS)} runs without {promise.rule}")


@pytest.mark.parametrize("seed", [2, 5])
def test_a_fetch_of_an_earlier_life_is_told_from_the_one_before_it(seed: int) -> None:
    """Both are of the same life and leader epoch; in between the leader read of a new registration."""
    outcome = run_in_simulation(Spec(seed=seed, time_limit_s=10.0, without=("fence_fetch_broker_epoch",), **HELD_FETCH))
    kinds = {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}
    assert "fetch-of-an-earlier-life" in kinds
