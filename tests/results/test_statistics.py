"""Intervals over runs."""

from __future__ import annotations

import tracemalloc
from math import inf

import numpy as np
import pytest

from results.statistics import Interval, difference, mean, median, none_in, share


def test_an_interval_holds_its_value_and_comes_back_the_same() -> None:
    values = np.random.default_rng(3).normal(10, 2, 50)
    interval = mean(values, seed=5)
    assert interval.value == pytest.approx(values.mean())
    assert interval.low < interval.value < interval.high
    assert interval == mean(values, seed=5)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    intervals = [mean(draw.exponential(3.0, 60), seed=number) for number in range(200)]
    covered = sum(interval.low <= 3.0 <= interval.high for interval in intervals)
    assert 175 <= covered <= 199


def test_an_interval_over_few_runs_of_which_most_lose_nothing_covers_more_than_a_plain_one_would() -> None:
    """The plain percentile interval of these holds the truth 344 times of 400, Student's would 365 at best."""
    draw = np.random.default_rng(3)
    plain = covered = 0
    for number in range(400):
        lost = np.where(draw.random(40) < 0.25, draw.geometric(1 / 40, 40), 0)
        interval = share(lost, np.full(40, 500), seed=number, resamples=1000)
        again = np.random.default_rng(number).integers(0, 40, size=(1000, 40))
        low, high = np.quantile(lost[again].sum(axis=1) / (40 * 500), (0.025, 0.975))
        plain += low <= 0.02 <= high
        covered += interval.low <= 0.02 <= interval.high
    assert covered >= 360
    assert covered > plain


@pytest.mark.parametrize("values", [[1.0], [1.0, 3.0], [0.0, 0.0, 9.0], [5.0] * 30, [0.0] * 10 + [1e9]])
def test_an_interval_over_a_handful_of_runs_stays_within_them_and_holds_its_value(values: list[float]) -> None:
    interval = mean(values)
    assert min(values) <= interval.low <= interval.value <= interval.high <= max(values)


def test_what_was_never_seen_may_still_happen() -> None:
    assert none_in(120) == pytest.approx(3 / 120, rel=0.02)
    assert (1 - none_in(16)) ** 16 == pytest.approx(0.05)


def test_a_run_counts_as_much_as_it_did() -> None:
    assert share([1, 0], [1, 99]).value == pytest.approx(0.01)
    assert share([0, 0], [0, 0]) == Interval(0.0, 0.0, 0.0)


def test_an_interval_over_thousands_of_runs_takes_little_memory() -> None:
    values = np.random.default_rng(3).normal(10, 2, 3000)
    mean(values[:3])  # what SciPy needs once
    tracemalloc.start()
    share(values, np.ones(3000), resamples=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 * 2**20


def test_pairing_sees_what_two_averages_hide() -> None:
    draw = np.random.default_rng(2)
    luck = draw.normal(100, 30, 40)
    ours, theirs = luck + 1 + draw.normal(0, 0.5, 40), luck
    assert mean(ours).low < mean(theirs).high
    assert mean(theirs).low < mean(ours).high
    assert difference(ours, theirs).low > 0


def test_without_runs_there_is_no_share() -> None:
    with pytest.raises(ValueError, match="0 parts of 0 wholes"):
        share([], [])


def test_a_median_lies_between_values_that_leave_out_as_many_as_chance_allows() -> None:
    twenty = median(range(20))
    assert (twenty.value, twenty.low, twenty.high) == (9.5, 5, 14), "the sixth and the fifteenth: 95.9 %"
    assert median([3, 1, inf, 2, inf]) == Interval(3, 1, inf), "five values: all of them"
    assert median([1, inf]).value == inf, "not found in half of the ranges"
    with pytest.raises(ValueError, match="no median"):
        median([])
