"""How thorough many runs were: estimates against published examples, and against what further runs show."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import fmean

import numpy as np
import plotly.graph_objects
import pyarrow as pa
import pytest

from results.figures.situations import accumulation, over_time
from results.statistics import Interval, none_in
from results.thoroughness import (
    MadeRun,
    ReachedSituations,
    Thoroughness,
    chao2,
    expected_distinct,
    reached,
    thoroughness,
)


def marks(runs: Sequence[Sequence[str]], kind: str = "situation") -> pa.Table:
    rows = [{"run": f"r{number}", "kind": kind, "name": name} for number, run in enumerate(runs) for name in run]
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in ("run", "kind", "name")]))


def of(runs: Sequence[Sequence[str]]) -> Thoroughness:
    found = thoroughness(marks(runs), [f"r{number}" for number in range(len(runs))])
    assert found is not None
    return found


RUNS = ["abc", "abd", "ab", "ace"]


def test_situations_are_counted_by_the_runs_that_have_them() -> None:
    found = of(RUNS)
    assert (found.runs, found.seen, found.once, found.runs_with_own) == (4, 5, 2, 2)
    assert found.frequencies == {1: 2, 2: 1, 3: 1, 4: 1}
    assert (found.expected_new, found.chance_of_new) == (0.5, 0.5)


def test_the_chance_of_a_new_situation_is_the_share_of_runs_that_would_have_shown_one_as_the_last() -> None:
    last = [bool(set(run) - {*"".join(RUNS[:at] + RUNS[at + 1 :])}) for at, run in enumerate(RUNS)]
    assert of(RUNS).chance_of_new == fmean(last)


def test_runs_that_do_not_count_and_other_marks_are_left_out() -> None:
    table = pa.concat_tables([marks(RUNS), marks(["xy"], "transition"), marks(["zz"], "event")])
    found = thoroughness(table, ["r0", "r1"])
    assert found is not None
    assert (found.runs, found.seen, found.transitions) == (2, 4, 2)
    assert thoroughness(table, []) is None
    assert thoroughness(marks(["a"], "event"), ["r0"]) is None


def test_chao2_is_that_of_vegan_for_the_trees_of_barro_colorado() -> None:
    """`specpool(BCI)`: 225 species in 50 plots; 21 of them in one plot and 19 in two; Chao 236.3732, error 6.54361."""
    estimate = chao2(50, 225, 21, 19)
    assert estimate.value == pytest.approx(236.3732, abs=1e-4)
    unseen, error = 236.3732 - 225, 6.54361
    spread = math.exp(1.959964 * math.sqrt(math.log(1 + (error / unseen) ** 2)))
    assert estimate.low == pytest.approx(225 + unseen / spread, abs=1e-3)
    assert estimate.high == pytest.approx(225 + unseen * spread, abs=1e-3)


def test_chao2_without_situations_in_two_runs_is_bias_corrected() -> None:
    estimate = chao2(10, 20, 5, 0)
    assert estimate.value == pytest.approx(20 + 0.9 * 5 * 4 / 2)
    assert 20 < estimate.low < estimate.value < estimate.high
    assert chao2(10, 20, 0, 3) == Interval(20, 20, 20)
    assert chao2(1, 7, 7, 0).value == 7


def test_chao2_is_a_lower_bound_that_holds_for_rare_situations() -> None:
    """Of 400 situations, of which many are rare, 100 runs show about three quarters."""
    draw = np.random.default_rng(4)
    held = 0
    for _ in range(50):
        has = draw.random((100, 400)) < np.geomspace(0.5, 0.003, 400)
        times = Counter(int(count) for count in has.sum(axis=0) if count)
        estimate = chao2(100, sum(times.values()), times[1], times[2])
        assert sum(times.values()) < estimate.low
        held += estimate.value < 400 * 1.1
    assert held >= 45


def test_the_curve_is_the_mean_over_all_choices_of_runs() -> None:
    found = of(RUNS)
    for count, distinct in found.curve():
        chosen = [len({*"".join(some)}) for some in combinations(RUNS, count)]
        assert distinct == pytest.approx(fmean(chosen))
    assert expected_distinct(3, {3: 7}, [1, 2, 3]) == pytest.approx([7, 7, 7])


def test_the_curve_of_thousands_of_runs_has_few_points_and_ends_with_all_situations() -> None:
    many = Thoroughness(10_000, {1: 300, 2: 80, 9_000: 100, 10_000: 20}, 250, 0)
    curve = many.curve()
    assert len(curve) <= 201
    assert curve[-1] == (10_000, pytest.approx(500))
    assert all(one <= other for (_, one), (_, other) in pairwise(curve))


def by_order(runs: Sequence[Sequence[str]], order: Sequence[int] = (), cpu_s: float = 2.0) -> ReachedSituations:
    return reached(marks(runs), [MadeRun(f"r{number}", cpu_s) for number in order or range(len(runs))])


def test_each_situation_is_known_by_the_first_run_that_was_in_it_and_by_how_many_were() -> None:
    assert by_order(RUNS).visits == {"a": (0, 4), "b": (0, 3), "c": (0, 2), "d": (1, 1), "e": (3, 1)}
    assert by_order(RUNS, [3, 2, 1, 0]).visits == {"a": (0, 4), "c": (0, 2), "e": (0, 1), "b": (1, 3), "d": (2, 1)}


def test_situations_over_time_are_those_of_all_runs_so_far() -> None:
    assert by_order(RUNS).curve() == [(1, 2.0, 3), (2, 4.0, 4), (3, 6.0, 4), (4, 8.0, 5)]
    assert by_order(["", "ab"]).curve() == [(1, 2.0, 0), (2, 4.0, 2)]
    assert [by_order(RUNS).within(s) for s in (0.0, 1.9, 2.0, 7.9, 8.0, 1e9)] == [0, 0, 3, 4, 5, 5]


def test_the_curve_over_time_of_thousands_of_runs_has_few_points_and_the_last() -> None:
    many = by_order([[str(number), "same"] for number in range(10_000)], cpu_s=0.5)
    curve = many.curve()
    assert len(curve) <= 201
    assert curve[0] == (1, 0.5, 2)
    assert curve[-1] == (10_000, 5_000.0, 10_001)


def test_what_only_one_of_two_reached_begins_with_what_most_of_its_runs_reached() -> None:
    assert list(by_order(RUNS).missing_in(by_order(["bx"]))) == ["a", "c", "d", "e"]
    assert by_order(["b"]).missing_in(by_order(RUNS)) == {}


def test_the_figure_over_time_is_one_that_plotly_takes_and_names_are_no_markup() -> None:
    figure = over_time({"<b>": by_order(RUNS)}, "cpu", lambda suite, run: f"/suites/{suite}/{run}")
    plotly.graph_objects.Figure(figure)
    (line,) = figure["data"]
    assert (line["x"], line["y"]) == ([0, 2.0, 4.0, 6.0, 8.0], [0, 3, 4, 4, 5])
    assert line["customdata"][1] == "/suites/<b>/r0"
    assert "<b>" not in line["name"] + line["hovertemplate"]


def test_the_sentence_says_how_much_is_left() -> None:
    assert of(RUNS).sentence() == (
        "situations: 5 in 4 runs, 2 of them in one run only; the next run shows a new one with probability 0.5 (0.5 "
        "new ones expected), and such runs can show at least 6 (Chao2; 95% interval 5 to 22)"
    )
    many = of(["".join(chr(100 * run + number) for number in range(100)) for run in range(1, 4)])
    assert "with probability 1 (100 new ones expected)" in many.sentence()
    assert of(["ab"]).sentence() == "situations: 2 in 1 run, 2 of them in one run only"
    again = of(["ab", "ab"])
    assert again.sentence().endswith(f"; the next run shows a new one with probability {none_in(2):.2g} at most")


def test_the_figure_is_one_that_plotly_takes() -> None:
    figure = accumulation(of(RUNS))
    plotly.graph_objects.Figure(figure)
    assert figure["data"][0]["y"][-1] == 5
