"""A suite over many nights: what changed is told with the night, the commit and the way it went; chance is not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects
import pytest

from harness.cli.main import main
from results.pages import trend as trend_page
from results.store.schema import batch_path
from results.trend import read_trend, trend
from tests.results.trend.nights import Figures, make_night, plain, suite_name

NIGHTS = 8


def less_available(random: np.random.Generator, cell: str, night: int) -> Mapping[str, float]:
    """From the sixth night on appends are acknowledged less often."""
    figures = plain(random, cell, night)
    return {**figures, "acknowledged": figures["acknowledged"] - (20 if cell == "append" and night >= 5 else 0)}


def make_nights(store: Path, figures: Figures, *, nights: int = NIGHTS, seeds: int = 30) -> Path:
    for night in range(nights):
        make_night(store, night, figures, seeds=seeds)
    return store


def test_a_planted_change_is_told_with_its_cell_its_night_and_the_way_it_went(tmp_path: Path) -> None:
    (flag,) = read_trend(make_nights(tmp_path, less_available), "nightly").flags
    assert (flag.cell, flag.measure.name, flag.worse) == ("append", "available", True)
    assert (flag.until, flag.since) == (suite_name(4), suite_name(5))
    assert re.match(r"append: planned writes acknowledged fell from 9\d\.\d\d % to 9\d\.\d\d %", flag.sentence())
    assert not flag.other_spec


def test_mutants_are_not_compared_and_a_night_that_misses_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def losing(random: np.random.Generator, cell: str, night: int) -> Mapping[str, float]:
        return {**plain(random, cell, night), "lost": 1.0 + 100 * (night > 4)}

    for night in range(NIGHTS):
        missed = ("without maximal_isr",) if night == 6 else ()
        make_night(tmp_path, night, losing, mutants=("groups", "append", *missed))
    result = read_trend(tmp_path, "nightly")
    assert (result.cells, result.flags) == ((), ())
    line = f"{suite_name(6)} did not find 1 mutant: without maximal_isr"
    assert result.missed_mutants == (line,)
    assert main(["trend", "nightly", "--store", str(tmp_path)]) == 0
    assert line in " ".join(capsys.readouterr().out.split())
    assert line in (tmp_path / "trends" / "nightly.html").read_text()


def test_nights_without_a_change_have_no_flag(tmp_path: Path) -> None:
    assert read_trend(make_nights(tmp_path, plain), "nightly").flags == ()


def test_a_cell_that_is_added_later_shifts_nothing(tmp_path: Path) -> None:
    def slower_groups(random: np.random.Generator, cell: str, night: int) -> Mapping[str, float]:
        figures = plain(random, cell, night)
        return {**figures, "append_ms_p50": figures["append_ms_p50"] * (10 if cell == "groups" else 1)}

    make_nights(tmp_path, slower_groups)
    longer = read_trend(tmp_path, "nightly")
    without = [
        replace(suite, runs=tuple(run for run in suite.runs if run.cell != "groups")) if number < 4 else suite
        for number, suite in enumerate(longer.suites)
    ]
    again = trend("nightly", without)
    assert again.flags == ()
    assert [len(nights) for _, nights in again.cells] == [NIGHTS, NIGHTS - 4]


def test_a_change_of_the_spec_is_told_with_the_change(tmp_path: Path) -> None:
    found = read_trend(make_nights(tmp_path, less_available), "nightly")
    other = [
        replace(suite, runs=tuple(replace(run, setting="other") for run in suite.runs)) if number >= 5 else suite
        for number, suite in enumerate(found.suites)
    ]
    (flag,) = trend("nightly", other).flags
    assert flag.sentence().endswith("; its spec changed as well")


def test_other_seeds_are_no_change_of_the_spec(tmp_path: Path) -> None:
    """Each has its own world, and so a spec of its own."""
    found = read_trend(make_nights(tmp_path, less_available), "nightly")
    last = max(run.seed for run in found.suites[0].runs)
    varied = [
        replace(
            suite,
            runs=tuple(
                replace(run, seed=last + 1, setting="another world") if number >= 5 and run.seed == last else run
                for run in suite.runs
            ),
        )
        for number, suite in enumerate(found.suites)
    ]
    (flag,) = trend("nightly", varied).flags
    assert "its spec changed" not in flag.sentence()


def test_only_nights_of_the_name_count_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    make_night(tmp_path, 2)
    make_night(tmp_path, 0)
    make_night(tmp_path, 1, name="smoke")
    assert [suite.name for suite in read_trend(tmp_path, "nightly").suites] == [suite_name(0), suite_name(2)]


def test_the_command_prints_every_night_and_what_changed_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_nights(tmp_path, less_available)
    assert main(["trend", "nightly", "--store", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert all(suite_name(night) in output for night in range(NIGHTS))
    assert re.search(rf"^{suite_name(5)} .* % ▼ worse ", output, re.MULTILINE)
    assert f"worse since {suite_name(5)}: append: planned writes acknowledged fell" in output
    assert output.splitlines()[-1] == f"report: {tmp_path / 'trends' / 'nightly.html'}"
    assert main(["trend", "nightly", "--store", str(tmp_path), "--seed", "0"]) == 0
    assert capsys.readouterr().out == output


def test_a_night_of_which_nothing_can_be_read_is_named_and_the_others_are_told(tmp_path: Path) -> None:
    first, second = make_night(tmp_path, 0), make_night(tmp_path, 1)
    unread = batch_path(tmp_path, "runs", first, "batch-00001")
    unread.write_bytes(b"PAR1")
    trend = read_trend(tmp_path, "nightly")
    assert [suite.name for suite in trend.suites] == [second]
    assert unread in {file.path for file in trend.damaged}


def test_of_one_night_or_of_few_seeds_it_is_said_that_nothing_can_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_night(tmp_path, 0)
    assert main(["trend", "nightly", "--store", str(tmp_path)]) == 0
    assert "groups: only one night has it\nnothing to compare yet\n" in capsys.readouterr().out
    make_nights(tmp_path / "few", less_available, nights=2, seeds=5)
    trend = read_trend(tmp_path / "few", "nightly")
    assert trend.not_compared[0] == "append: 5 seeds are too few to tell a change from chance; 20 are needed"
    assert trend.sentence() == "nothing to compare yet"


def test_a_seed_below_zero_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trend", "nightly", "--store", str(tmp_path), "--seed", "-1"]) == 64
    assert capsys.readouterr().err == "faultline trend: --seed: -1 is below 0\n"


def test_the_page_marks_the_change_in_words_and_pictures_and_escapes_names(tmp_path: Path) -> None:
    trend = read_trend(make_nights(tmp_path, less_available), "nightly")
    page = trend_page.render(trend, lambda suite: f"suites/{suite}?<>")
    assert "8 suites, 2 cells: 1 change, 1 for the worse." in page
    assert "▼ worse" in page
    assert "suites/nightly-20261106T010000?&lt;&gt;" in page
    figures = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    assert len(figures) == 7
    for figure in figures:
        plotly.graph_objects.Figure(figure)
    symbols = [trace["marker"]["symbol"] for trace in figures[1]["data"]]
    assert symbols == [["circle"] * 5 + ["diamond"] + ["circle"] * 2, ["circle"] * 8]
