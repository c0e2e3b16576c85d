"""An excuse for the loss of one replica excuses no bug of another."""

from __future__ import annotations

from harness.runner.run import run_in_simulation
from harness.spec import parse


def test_a_replica_that_was_only_aimed_at_lost_nothing() -> None:
    """`stale-broker-epoch` aims at its victim and at the leader, and takes unsynced writes from the victim alone. Cut
    short before it stalls anything, it once charged the victim's loss to both, so that 120 lost records were excused
    and `reads` and `protocol` said `unknown`."""
    script = [
        {"at": 3, "for": 4.6, "fault": "stale-broker-epoch", "victim": "b3"},
        {"at": 7.75, "for": 5, "fault": "pause", "nodes": ["b1", "b2"]},
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
