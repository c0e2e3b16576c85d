"""A reassignment is cancelled while ISR and ELR are empty, so that the LastKnownELR alone names the replica that it was
to add, which may hold all that is committed. Found by reading; no random run had shown it.

Replicas (b1, b3) are to move to (b2, b5). b5 is down, so the move stays open; b2 joins the ISR, and b3 leaves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.controller import reassignment

Script = Sequence[dict[str, Any]]


def together(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"all": list(conditions)}


def opened(away: str) -> Script:
    """The move begins; b3 is away for so long."""
    joined, left = together({"injected": "move"}, {"isr": {"has": "b2"}}), {"isr": {"lacks": "b3"}}
    return (
        {"at": "1s", "fault": "place-replicas", "nodes": ["b1", "b3"]},
        {"at": "4s", "for": "30s", "fault": "kill", "nodes": ["b5"]},
        {"when": {"fenced": "b5"}, "fault": "place-replicas", "nodes": ["b2", "b5"], "id": "move"},
        {"when": joined, "for": away, "fault": "controlled-restart", "nodes": ["b3"], "id": "three"},
        {"when": together({"injected": "three"}, left), "then_after": "2s", "for": "4s", "nodes": ["b1"], "id": "one"},
    )


def cancelled(when: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"when": when, "fault": "cancel-placement", "id": "cancel", **more}


def loss() -> Script:
    """b1 loses all it has, the only one that loses anything; b2 is killed, and neither has led again when the move is
    cancelled. b2 alone has what both acknowledged."""
    *move, one = opened("20s")
    return (
        *move,
        {**one, "fault": "power-loss", "keep": "nothing"},
        {"when": {"injected": "one"}, "for": "7s", "fault": "kill", "nodes": ["b2"], "id": "two"},
        {"when": together({"injected": "one"}, {"registered": "b1"}), "for": "7s", "fault": "kill", "nodes": ["b1"]},
        cancelled(together({"injected": "two"}, {"unfenced": "b2"})),
    )


def kills() -> Script:
    """Nobody loses anything. b1 and b2 are killed, each again before it can lead; b2 led last."""
    *move, one = opened("24s")
    again = together({"injected": "one"}, {"registered": "b1"})
    two_again = together({"injected": "two"}, {"registered": "b2"})
    return (
        *move,
        {**one, "fault": "kill"},
        {"when": again, "for": "12s", "fault": "kill", "nodes": ["b1"], "id": "again"},
        {
            "when": {"injected": "again"},
            "then_after": "200ms",
            "for": "4s",
            "fault": "kill",
            "nodes": ["b2"],
            "id": "two",
        },
        {"when": two_again, "for": "6s", "fault": "kill", "nodes": ["b2"], "id": "two-again"},
        cancelled({"injected": "two-again"}, then_after="500ms"),
    )


def restarts() -> Script:
    """Nobody loses anything. Replicas (b1, b3) are to move to (b2, b4, b5), of which b5 is down; b3 and b1 restart, so
    that b2 and b4 alone have what is acknowledged from then on."""
    joined = together({"injected": "move"}, {"isr": {"has": "b2"}}, {"isr": {"has": "b4"}})
    three_left = together({"injected": "three"}, {"isr": {"lacks": "b3"}})
    left = together({"injected": "one"}, {"isr": {"lacks": "b1"}}, {"isr": {"lacks": "b3"}})
    return (
        {"at": "1s", "fault": "place-replicas", "nodes": ["b1", "b3"]},
        {"at": "4s", "for": "30s", "fault": "kill", "nodes": ["b5"]},
        {"when": {"fenced": "b5"}, "fault": "place-replicas", "nodes": ["b2", "b4", "b5"], "id": "move"},
        {"when": joined, "for": "12s", "fault": "controlled-restart", "nodes": ["b3"], "id": "three"},
        {"when": three_left, "for": "12s", "fault": "controlled-restart", "nodes": ["b1"], "id": "one"},
        cancelled(left, then_after="3s"),
    )


def repeated() -> Script:
    """Nobody loses anything. Replicas (b1, b3) are to move to (b5, b2); b5 hears nothing of the other brokers, b2 joins
    the ISR, and b3 and b1 are away. Then the same move is asked for once more."""
    target = ["b5", "b2"]
    joined = together({"injected": "move"}, {"isr": {"has": "b2"}})
    three_left = together({"injected": "three"}, {"isr": {"lacks": "b3"}})
    left = together({"injected": "one"}, {"isr": {"lacks": "b1"}}, {"isr": {"lacks": "b3"}})
    cut = {"fault": "partition", "shape": "one-way", "nodes": ["b5"], "against": ["b1", "b2", "b3", "b4"], "id": "cut"}
    return (
        {"at": "1s", "fault": "place-replicas", "nodes": ["b1", "b3"]},
        {"at": "4s", "for": "30s", **cut},
        {"when": {"injected": "cut"}, "then_after": "1s", "fault": "place-replicas", "nodes": target, "id": "move"},
        {"when": joined, "for": "12s", "fault": "controlled-restart", "nodes": ["b3"], "id": "three"},
        {"when": three_left, "for": "12s", "fault": "controlled-restart", "nodes": ["b1"], "id": "one"},
        {"when": left, "then_after": "2s", "fault": "place-replicas", "nodes": target},
    )


def played(script: Script, strategy: str, **more: str) -> Outcome:
    settings = {"unclean.recovery.strategy": strategy, "min.insync.replicas": "2", **more}
    shape = {"brokers": 5, "replication_factor": 2, "partitions": 1, "rate": 20, "seed": 1, "time_limit": "40s"}
    return run_in_simulation(parse({**shape, "settings": settings, "faults": list(script)}))


@pytest.mark.parametrize(("strategy", "script"), [("balanced", loss()), ("last-known-leader", kills())])
def test_a_cancellation_is_refused_while_the_new_replica_may_alone_hold_what_is_committed(
    strategy: str, script: Script
) -> None:
    outcome = played(script, strategy)
    assert outcome.validity is Validity.VALID, outcome.verdicts


@pytest.mark.parametrize(
    ("strategy", "script", "found"),
    [("balanced", loss(), "lost-append"), ("last-known-leader", kills(), "not-recovered")],
)
def test_without_the_refusal_it_takes_the_only_log(
    strategy: str, script: Script, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "may_cancel", lambda topic, partition, rules: True)
    outcome = played(script, strategy)
    assert outcome.validity is Validity.INVALID
    kinds = {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}
    assert kinds >= {found, "reassignment-drops-last-known"}, kinds


@pytest.mark.parametrize(
    ("script", "found"),
    [(loss(), "reassignment-drops-last-known"), (restarts(), "reassignment-shrinks-isr")],
    ids=["loss", "restarts"],
)
@pytest.mark.parametrize("asked", [True, False], ids=["the strategy is asked for", "the setting alone"])
def test_a_setting_that_does_not_count_under_the_strategy_allows_no_cancellation(
    script: Script, found: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`balanced` elects nobody at once, so the setting gives no committed record up. Where it alone decides, the logs
    that hold what was acknowledged are deleted, and nothing permits that."""
    if not asked:
        monkeypatch.setattr(reassignment, "unclean_election_allowed", lambda topic: topic.unclean_election)
    outcome = played(script, "balanced", **{"unclean.leader.election.enable": "true"})
    assert outcome.validity is (Validity.VALID if asked else Validity.INVALID), outcome.verdicts
    (lost,) = (verdict for verdict in outcome.verdicts if verdict.checker == "loss")
    assert (lost.figures["lost"] == 0, lost.figures["allowed"]) == (asked, 0), lost.figures
    kinds = {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}
    assert kinds >= (set() if asked else {found, "lost-append"}), kinds


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "cancelled first"])
def test_a_move_that_is_asked_for_again_keeps_the_replicas_that_have_caught_up(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the move was cancelled first, the empty b5 was elected while b2, which has everything, was alive."""
    start, may_cancel = reassignment.start_reassignment, reassignment.may_cancel
    if not kept:
        cancel = reassignment.cancel_reassignment
        monkeypatch.setattr(reassignment, "start_reassignment", lambda moving, target: start(cancel(moving), target))
        monkeypatch.setattr(
            reassignment, "may_replace", lambda topic, moving, _, rules: may_cancel(topic, moving, rules)
        )
    settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    outcome = played(repeated(), "last-known-leader", **settings)
    assert outcome.validity is (Validity.VALID if kept else Validity.INVALID), outcome.verdicts
    kinds = {finding.kind for verdict in outcome.verdicts for finding in verdict.findings}
    assert kinds == (set() if kept else {"leader-otherwise"}), kinds
    (lost,) = (verdict for verdict in outcome.verdicts if verdict.checker == "loss")
    assert (lost.figures["lost"] == 0) == kept, lost.figures
