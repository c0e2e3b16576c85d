"""Change points: those that were planted are found, where nothing changed hardly any is, and chance is seeded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from results.change_points import UNITS_MAX, UNITS_MIN, change_points

Matrix = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Matrix]
DISTRIBUTIONS: dict[str, Draw] = {
    "availability": lambda random, shape: random.normal(0.97, 0.02, shape),
    "latency": lambda random, shape: random.lognormal(3, 1, shape),
    # The last digits tell runs apart, as a digest would; to the figure they are nothing.
    "failure": lambda random, shape: (random.random(shape) < 0.02) + 1e-9 * random.random(shape),
}
ROUNDS = 120
LEVEL = 0.05
FALSE_MAX = 14
"""Of ROUNDS at LEVEL: what is exceeded in one of a thousand experiments if the level is kept."""


def every_night(values: Matrix) -> tuple[Matrix, Matrix, npt.NDArray[np.bool_]]:
    """The same units every night, each a whole of 1; the same value is the same run."""
    same = np.zeros(values.shape, dtype=bool)
    same[:, 1:] = values[:, 1:] == values[:, :-1]
    return values, np.ones(values.shape), same


def each_once(values: Matrix) -> tuple[Matrix, Matrix, npt.NDArray[np.bool_]]:
    """New units every night."""
    units, nights = values.shape
    parts, wholes = np.zeros((units * nights, nights)), np.zeros((units * nights, nights))
    for night in range(nights):
        parts[night * units : (night + 1) * units, night] = values[:, night]
        wholes[night * units : (night + 1) * units, night] = 1
    return parts, wholes, np.zeros(parts.shape, dtype=bool)


def new_program_each_night(random: np.random.Generator, draw: Draw) -> Matrix:
    return draw(random, (30, 8))


def three_programs(random: np.random.Generator, draw: Draw) -> Matrix:
    """Each runs for some nights, and a seed on it is always the same run."""
    return draw(random, (30, 8))[:, np.sort(random.integers(0, 3, 8))]


def small_changes(random: np.random.Generator, draw: Draw) -> Matrix:
    """Each night's program runs three of four seeds as the one before did."""
    values = draw(random, (30, 8))
    for night in range(1, 8):
        kept = random.random(30) < 0.75
        values[kept, night] = values[kept, night - 1]
    return values


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(
    ("history", "arranged"),
    [
        (new_program_each_night, every_night),
        (new_program_each_night, each_once),
        (three_programs, every_night),
        (small_changes, every_night),
    ],
)
def test_where_nothing_changed_false_alarms_stay_within_the_level(
    distribution: str,
    history: Callable[[np.random.Generator, Draw], Matrix],
    arranged: Callable[[Matrix], tuple[Matrix, Matrix, npt.NDArray[np.bool_]]],
) -> None:
    alarms = 0
    for number in range(ROUNDS):
        values = history(np.random.default_rng([7, number]), DISTRIBUTIONS[distribution])
        alarms += bool(change_points(*arranged(values), level=LEVEL, seed=number))
    assert alarms <= FALSE_MAX


def test_nights_with_weather_of_their_own_raise_no_alarm_when_they_are_said_to_have_it() -> None:
    alarms, naive = 0, 0
    for number in range(ROUNDS // 2):
        random = np.random.default_rng([8, number])
        values = random.normal(100, 10, (20, 10)) + random.normal(0, 5, 10)
        alarms += bool(change_points(*every_night(values), level=LEVEL, nights_vary=True, seed=number))
        naive += bool(change_points(*every_night(values), level=LEVEL, seed=number))
    assert alarms <= FALSE_MAX // 2
    assert naive > ROUNDS // 4  # the weather was there to be mistaken


@pytest.mark.parametrize("arranged", [every_night, each_once])
@pytest.mark.parametrize("at", [1, 6, 11])
def test_a_planted_change_is_found_on_its_night_even_if_it_is_the_last(
    at: int, arranged: Callable[[Matrix], tuple[Matrix, Matrix, npt.NDArray[np.bool_]]]
) -> None:
    found = 0
    for number in range(10):
        values = np.random.default_rng([9, number]).normal(0.97, 0.02, (60, 12))
        values[:, at:] -= 0.02
        changes = change_points(*arranged(values), level=0.0025, seed=number)
        found += [change.at for change in changes] == [at]
        for change in changes:
            assert change.p <= 0.0025
            assert change.low < change.after - change.before < change.high < 0
    assert found >= 9


def test_two_changes_are_told_apart() -> None:
    values = np.random.default_rng(3).lognormal(3, 0.5, (100, 15))
    values[:, 5:] *= 1.6
    values[:, 10:] /= 1.6
    assert [change.at for change in change_points(*every_night(values), level=0.0025)] == [5, 10]


def test_failures_that_begin_are_found_and_a_change_of_weather_is_not_needed() -> None:
    random = np.random.default_rng(4)
    values = np.zeros((200, 14))
    values[:, 9:] = random.random((200, 5)) < 0.06
    wholes = np.ones(values.shape)
    (change,) = change_points(values, wholes, np.zeros(values.shape, dtype=bool), level=0.0025)
    assert change.at == 9
    assert change.before == 0
    (change,) = change_points(values, wholes, np.zeros(values.shape, dtype=bool), level=0.01, nights_vary=True)
    assert change.at == 9


def test_a_figure_that_is_a_share_weighs_each_run_by_its_whole() -> None:
    parts, wholes = np.zeros((60, 2)), np.ones((60, 2))
    wholes[0] = 1000
    parts[0] = (500, 501)
    (change,) = change_points(parts + 1e-6, wholes, np.zeros(parts.shape, dtype=bool), level=1.0)
    assert change.before == pytest.approx(500 / 1059, rel=1e-3)


def test_the_same_program_every_night_shows_no_change_at_any_level() -> None:
    values = np.repeat(np.random.default_rng(5).normal(1, 0.1, (40, 1)), 10, axis=1)
    assert change_points(*every_night(values), level=0.9) == []


def test_nothing_is_said_about_a_handful_of_runs() -> None:
    values = np.repeat([[1.0, 2.0]], UNITS_MIN - 1, axis=0)
    assert change_points(*every_night(values), level=1.0) == []
    assert change_points(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 0), dtype=bool), level=1.0) == []


def test_a_night_without_the_figure_is_passed_over() -> None:
    values, wholes, same = every_night(np.random.default_rng(6).normal(10, 1, (50, 9)))
    values[:, 5:] += 2
    values[:, 3] = wholes[:, 3] = 0
    assert [change.at for change in change_points(values, wholes, same, level=0.01)] == [5]


def test_the_same_seed_gives_the_same_answer() -> None:
    values = np.random.default_rng(7).normal(10, 1, (50, 9))
    values[:, 5:] += 0.3
    once, again = (change_points(*every_night(values), level=0.5, seed=1) for _ in range(2))
    assert once == again
    assert once


def test_thousands_of_units_are_grouped_and_a_change_is_still_found() -> None:
    values = np.random.default_rng(8).normal(10, 1, (20 * UNITS_MAX, 6))
    values[:, 4:] += 0.1
    for arranged in (every_night, each_once):
        assert [change.at for change in change_points(*arranged(values), level=0.01)] == [4]
