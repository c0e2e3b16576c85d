"""The report of the broker's benchmark, from its measurements; a measurement itself is in tests/clients."""

from __future__ import annotations

import pytest

from harness.bench.broker import LatencyPercentiles, ProduceCase, medians
from harness.bench.resources import Processors


def test_percentiles_are_told_in_milliseconds() -> None:
    latency = LatencyPercentiles.of([number / 1000 for number in range(1, 200)])
    assert latency.p50_ms == pytest.approx(100)
    assert latency.p99_ms == pytest.approx(198)


def test_a_round_that_was_disturbed_does_not_move_the_median() -> None:
    assert medians(
        [LatencyPercentiles(1, 2), LatencyPercentiles(90, 900), LatencyPercentiles(1.5, 3)]
    ) == LatencyPercentiles(1.5, 3)


def test_what_others_took_is_neither_idle_nor_ours() -> None:
    before = Processors(all_s=100, idle_s=50, ours_s=10, nodes_s=5)
    taken = Processors(all_s=120, idle_s=55, ours_s=20, nodes_s=12) - before
    assert taken.others_share == pytest.approx(0.25)
    assert taken.nodes_s == 7


def test_ticks_of_the_clock_never_make_others_take_less_than_nothing() -> None:
    assert Processors(all_s=2, idle_s=0, ours_s=2.01, nodes_s=1).others_share == 0


def test_latency_is_measured_at_half_the_least_that_kafka_did() -> None:
    assert (ProduceCase(100, 3).rate_aimed_for, ProduceCase(1_000, 12).rate_aimed_for) == (40_000, 12_000)
