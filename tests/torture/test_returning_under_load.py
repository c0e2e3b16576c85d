"""A broker that comes back over a slow link joins the ISR under steady load: the high watermark waits for it."""

from __future__ import annotations

import pytest

from checkers.verdict import Validity
from harness.runner.run import run_in_simulation
from harness.spec import parse
from images.broker.replication import leader

LOAD = {
    "seed": 1,
    "time_limit": "6s",
    "partitions": 1,
    "producers": 8,
    "consumers": 0,
    "rate": 1500,
    "clients": {"pipeline": 50},
    "settings": {"min.insync.replicas": 2},
}
BACK_OVER_A_SLOW_LINK = [
    {"at": "1s", "for": "0.5s", "fault": "kill", "nodes": ["b3"]},
    {"at": "1.4s", "for": "4s", "fault": "packets", "nodes": ["b3"], "against": ["b1", "b2"], "delay_ms": 10},
    {"at": "2s", "for": "4s", "fault": "pause", "nodes": ["c3"], "when": {"joined_isr": "b3"}},
]
"""What is paused once b3 has joined is not needed: the pause shows when that was."""
HEALED_S = 5.4


@pytest.mark.parametrize("waits", [True, False])
def test_a_broker_that_returns_under_load_joins_the_isr_as_the_high_watermark_waits_for_it(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not waits:
        monkeypatch.setattr(leader, "_await_caught_up", lambda partition, *_: partition)
    outcome = run_in_simulation(parse(LOAD | {"faults": BACK_OVER_A_SLOW_LINK}))
    assert outcome.validity is Validity.VALID
    (joined_s,) = (each.detail["struck_s"] for each in outcome.injections if each.fault == "pause")
    assert (joined_s < HEALED_S) is waits
