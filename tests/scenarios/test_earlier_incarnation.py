"""A fetch of a follower's earlier incarnation arrives in the same leader epoch, after the follower lost what it held.

b1 leads and b2 follows; min.insync.replicas is 2. Messages from b2 are slow when a record arrives, so the fetch that
confirms the record is still on its way when b2 loses power, and the record. b2 registers again and joins the ISR at the
high watermark; the record is on its way to it, slowly. Now the old fetch arrives, and b1 is cut off.
"""

from __future__ import annotations

import pytest

from checkers.verdict import Validity
from harness.runner.outcome import Outcome
from harness.runner.run import run_in_simulation
from harness.spec import parse

FAULTS = (
    {
        "at": "10s",
        "for": "0.3s",
        "fault": "packets",
        "nodes": ["b2"],
        "against": ["b1"],
        "one_way": True,
        "delay_ms": 9500,
    },
    {"at": "10.25s", "for": "0.2s", "fault": "power-loss", "nodes": ["b2"], "keep": "nothing"},
    {
        "at": "10.4s",
        "for": "14s",
        "fault": "packets",
        "nodes": ["b1"],
        "against": ["b2"],
        "one_way": True,
        "delay_ms": 4000,
    },
    {"at": "20.1s", "for": "6s", "fault": "partition", "shape": "isolate", "nodes": ["b1"], "flavour": "reset"},
)
SETTINGS = {
    "replica.socket.timeout.ms": "30000",
    "replica.lag.time.max.ms": "30000",
    "min.insync.replicas": "2",
    "flush.messages": "2",
}
"""Every second record is synced, so that b2 loses one record at most, and so none below the high watermark."""


def played(seed: int, *off: str) -> Outcome:
    return run_in_simulation(
        parse(
            {
                "seed": seed,
                "brokers": 2,
                "partitions": 1,
                "replication_factor": 2,
                "rate": 20,
                "time_limit": "30s",
                "without": list(off),
                "settings": SETTINGS,
                "faults": list(FAULTS),
            }
        )
    )


@pytest.mark.parametrize("off", [(), ("fence_fetch_broker_epoch",)])
def test_a_late_fetch_of_an_earlier_incarnation_commits_a_lost_record_exactly_without_the_rule(
    off: tuple[str, ...],
) -> None:
    outcomes = {seed: played(seed, *off) for seed in range(4)}
    assert all(outcome.time_s for outcome in outcomes.values())
    invalid = [seed for seed, outcome in outcomes.items() if outcome.validity is Validity.INVALID]
    others = {outcome.validity for seed, outcome in outcomes.items() if seed not in invalid}
    assert others == {Validity.VALID}
    if off:
        assert invalid
        found = [
            {verdict.checker for verdict in outcomes[seed].verdicts if verdict.validity is Validity.INVALID}
            for seed in invalid
        ]
        assert any({"linearizability", "protocol"} <= checkers for checkers in found)
    else:
        assert not invalid
