"""An excuse for the loss of one replica excuses no bug of another."""

from __future__ import annotations

from typing import Any

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker import broker_node
from images.broker.ports import Files
from images.broker.runtime.shutdown_mark import ShutdownMark, leave_clean_shutdown


def test_a_replica_that_was_only_aimed_at_lost_nothing() -> None:
    """`stale-broker-epoch` aims at its victim and at the leader, and takes unsynced writes from the victim alone. Cut
    short before it stalls anything, it once charged the victim's loss to both, so that 120 lost records were excused
    and `reads` and `protocol` said `unknown`."""
    script = [
        {"at": 3, "for": 4.9, "fault": "stale-broker-epoch", "victim": "b3"},
        {"at": 8, "for": 5, "fault": "pause", "nodes": ["b1", "b2"]},
    ]
    without = ["broker_epoch_checked_in_alter_partition"]
    values = {"seed": 3, "time_limit": 14, "without": without, "partitions": 1, "rate": 40, "faults": script}
    outcome = run_in_simulation(parse(values))
    verdicts = {verdict.checker: verdict for verdict in outcome.verdicts}
    assert outcome.injections[0].nodes == ("b3", "b1")
    assert list(outcome.injections[0].evidence["nodes"]) == ["b3"]
    for checker in ("loss", "reads", "protocol", "linearizability"):
        assert verdicts[checker].validity == "invalid"
        assert verdicts[checker].figures["excused"] == 0


SESSION = {"broker.session.timeout.ms": 3000}
LOST: dict[str, Any] = {
    "time_limit": "45s",
    "settings": SESSION,
    "faults": [
        {"at": 3, "for": 38, "fault": "controlled-restart", "nodes": ["b3"]},
        {"at": 8, "for": 12, "fault": "controlled-restart", "nodes": ["b1"]},
        {"at": 12, "for": 20, "fault": "power-loss", "nodes": ["b2"], "keep": "nothing"},
        {"at": 19.5, "for": 3, "fault": "packets", "nodes": ["controllers"], "against": ["b1"], "delay_ms": 400}
        | {"one_way": True},
        {"at": 20.6, "for": 4.4, "fault": "controlled-restart", "nodes": ["b1"]},
    ],
}
"""b1 stops cleanly with every committed record, while b3 is away; b2 loses all it had, the one loss. b1 starts, the
answer to its registration is late, and it is told to stop."""
STUCK: dict[str, Any] = {
    "time_limit": "35s",
    "brokers": 2,
    "replication_factor": 2,
    "settings": SESSION | {"unclean.recovery.strategy": "manual"},
    "faults": [
        {"at": 3, "for": 27, "fault": "kill", "nodes": ["b2"]},
        {"at": 11, "for": 6, "fault": "message", "nodes": ["b1"], "against": ["controllers"], "count": 0}
        | {"api": "BrokerRegistration", "part": "response", "effect": "drop"},
        {"at": 12, "for": 1, "fault": "controlled-restart", "nodes": ["b1"]},
        {"at": 15, "for": 3, "fault": "controlled-restart", "nodes": ["b1"]},
    ],
}
"""The last member of the ISR stops cleanly twice, the second time before it hears that it is registered."""

DRAWN: dict[str, Any] = {
    "time_limit": "12s",
    "faults": [{"at": 3, "for": 3, "fault": "controlled-restart", "nodes": ["leader/0"], "unheard": True}],
}
"""As random runs do that."""


def _played(values: dict[str, Any]) -> Outcome:
    return run_in_simulation(parse({"seed": 1, "partitions": 1, "replication_factor": 3, **values}))


@pytest.mark.parametrize("values", [LOST, STUCK, DRAWN], ids=["one loss", "no loss", "drawn"])
def test_a_broker_that_stops_cleanly_before_it_hears_of_its_registration_stays_eligible(values: dict[str, Any]) -> None:
    """174 acknowledged records were lost with the one loss, and without any the partition had no leader for ever."""
    outcome = _played(values)
    assert outcome.validity is Validity.VALID, outcome.verdicts


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (LOST, {"clean-shutdown-forgotten"}),
        (STUCK, {"clean-shutdown-forgotten", "not-recovered"}),
        (DRAWN, {"clean-shutdown-forgotten"}),
    ],
    ids=["one loss", "no loss", "drawn"],
)
def test_a_clean_shutdown_that_the_controllers_forget_is_found_whatever_else_is_excused(
    values: dict[str, Any], expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark has the broker epoch alone, and the controllers have granted another one since."""

    def without_incarnation(files: Files, mark: ShutdownMark) -> None:
        leave_clean_shutdown(files, ShutdownMark(mark.broker_epoch))

    monkeypatch.setattr(broker_node, "leave_clean_shutdown", without_incarnation)
    outcome = _played(values)
    accused = [verdict for verdict in outcome.verdicts if verdict.validity is Validity.INVALID]
    assert {finding.kind for verdict in accused for finding in verdict.findings} == expected
