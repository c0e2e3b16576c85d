"""Intervals over runs."""

from __future__ import annotations

import numpy as np
import pytest

from results.statistics import Interval, difference, mean, share


def test_an_interval_holds_its_value_and_comes_back_the_same() -> None:
    values = np.random.default_rng(3).normal(10, 2, 50)
    found = mean(values, seed=5)
    assert found.value == pytest.approx(values.mean())
    assert found.low < found.value < found.high
    assert found == mean(values, seed=5)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    found = [mean(draw.exponential(3.0, 60), seed=number) for number in range(200)]
    covered = sum(interval.low <= 3.0 <= interval.high for interval in found)
    assert 175 <= covered <= 199


def test_a_run_counts_as_much_as_it_did() -> None:
    assert share([1, 0], [1, 99]).value == pytest.approx(0.01)
    assert share([0, 0], [0, 0]) == Interval(0.0, 0.0, 0.0)


def test_pairing_sees_what_two_averages_hide() -> None:
    draw = np.random.default_rng(2)
    luck = draw.normal(100, 30, 40)
    ours, theirs = luck + 1 + draw.normal(0, 0.5, 40), luck
    assert not mean(ours).apart_from(mean(theirs))
    assert difference(ours, theirs).low > 0


def test_without_runs_there_is_no_share() -> None:
    with pytest.raises(ValueError, match="0 parts of 0 wholes"):
        share([], [])
