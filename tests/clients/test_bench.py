"""The broker's benchmark against real processes, with few records."""

from __future__ import annotations

import pytest

from harness.bench import broker


def test_every_setting_is_measured_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "RECORDS", {100: 2_000, 1_000: 500})
    monkeypatch.setattr(broker, "ROUNDS", 2)
    monkeypatch.setattr(broker, "_PACED_S", 0.1)
    monkeypatch.setattr(broker, "_ALONE", 10)
    steps: list[int] = []
    measured = broker.measure(lambda done, _: steps.append(done))
    assert steps == list(range(2 * len(broker.CASES)))
    assert [one.setting for one in measured] == list(broker.CASES)
    for one in measured:
        for values in (one.rates, one.rates_small_batches, one.broker_us):
            assert len(values) == 2
            assert min(values) > 0
        for latencies in (one.paced, one.alone, one.alone_no_linger):
            assert len(latencies) == 2
            assert all(0 < latency.p50_ms <= latency.p99_ms for latency in latencies)
