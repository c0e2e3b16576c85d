"""A comparison by hand-made runs: what it comes to, run by run, and its page."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

import plotly.graph_objects
import pytest

from harness.spec import parse
from results.comparison import ComparedRun, compare, from_json
from results.number_format import signed
from results.pages.comparison import render
from results.store.spec_facts import spec_facts
from tests.results.test_suites import Page

SEEDS = range(8)


def run(cell: str, seed: int, **figures: float) -> ComparedRun:
    told = {
        "acknowledged": 90.0,
        "planned": 100.0,
        "unavailable_s": 2.0,
        "main_s": 20.0,
        "lost": 0.0,
        "duplicated": 0.0,
    }
    validity = "invalid" if figures.get("lost") else "valid"
    return ComparedRun(cell, seed, validity, told | {"append_ms_p50": 3.0, "append_ms_p99": 40.0 + seed} | figures)


RUNS = [
    *(run("safe", seed) for seed in SEEDS),
    *(
        run("fast", seed, acknowledged=98.0, unavailable_s=1.0, lost=float(seed == 3), append_ms_p99=10.0 + seed)
        for seed in SEEDS
    ),
]


@pytest.mark.parametrize("seed", [float("inf"), float("nan"), [], None])
def test_a_file_with_a_seed_that_is_none_is_no_comparison(seed: object) -> None:
    values = {"reference": "safe", "runs": [{"cell": "safe", "seed": seed, "validity": "valid", "figures": {}}]}
    with pytest.raises(ValueError, match=r"cannot convert|int\(\)"):
        from_json("acks", values)


@pytest.mark.parametrize("runs", [RUNS[:-1], [*RUNS, run("fast", 8)], RUNS[8:]], ids=["less", "more", "no reference"])
def test_settings_that_were_run_on_other_seeds_are_not_compared(runs: list[ComparedRun]) -> None:
    with pytest.raises(ValueError, match="fast was not run on the seeds of safe"):
        compare("acks", "safe", runs)


@pytest.mark.parametrize("spec", ["[" * 100_000, "rate: 2026-13-45", f"rate: {'9' * 400}", f"rate: {'9' * 5000}"])
def test_a_stored_spec_that_is_damaged_says_nothing_and_ends_nothing(spec: str) -> None:
    assert spec_facts(spec).rate is None


def test_cells_without_producers_have_no_share_of_planned_writes() -> None:
    figures = {"appends": 10.0, "acknowledged": 10.0, "main_s": 20.0, "lost": 1.0}
    script = spec_facts(parse({"producers": 0, "clients": {"operations": ["produce 10 to 0"]}}).to_yaml())
    load = spec_facts(parse({"rate": 5}).to_yaml())
    assert (script.planned(figures), load.planned(figures)) == ({}, {"planned": 100.0})
    assert spec_facts("no spec").planned(figures) == {"planned": 10.0}
    comparison = compare("acks", "a", [ComparedRun(cell, 0, "invalid", figures) for cell in "ab"])
    assert all("available" not in cell.figures for cell in comparison.cells)
    assert comparison.sentences() == [f"{cell} lost 1 of 10 acknowledged records" for cell in "ab"]
    assert "% acknowledged, " not in render(comparison)


def test_every_figure_has_its_difference_to_the_reference_run_by_run() -> None:
    safe, fast = compare("acks", "safe", RUNS).cells
    differences = {name: interval.value for name, interval in fast.differences.items()}
    assert differences == pytest.approx(
        {"available": 0.08, "unavailable": -0.05, "lost": 1 / 8, "duplicated": 0, "p50": 0, "p99": -30}
    )
    # Seeds differ by up to 7 ms; within a seed the difference is always the same.
    assert (fast.differences["p99"].low, fast.differences["p99"].high) == (-30, -30)
    assert not safe.differences


def test_latency_is_compared_on_the_seeds_on_which_both_have_one() -> None:
    mute = ComparedRun("fast", 3, "valid", {**RUNS[3].figures, "acknowledged": 0.0})
    figures = {name: value for name, value in mute.figures.items() if not name.startswith("append_ms")}
    _, fast = compare("acks", "safe", [*RUNS[:11], ComparedRun("fast", 3, "valid", figures), *RUNS[12:]]).cells
    assert fast.differences["p99"].value == -30
    silent = [ComparedRun("fast", seed, "valid", figures) for seed in SEEDS]
    _, fast = compare("acks", "safe", [*RUNS[:8], *silent]).cells
    assert not {"p50", "p99"} & {*fast.figures, *fast.differences}
    links = [
        attributes.get("href") or ""
        for _, attributes in Page(render(compare("a", "safe", [*RUNS[:8], *silent]))).elements
    ]
    assert not [link for link in links if "cell=fast" in link and "by=p" in link]


def test_every_number_of_a_setting_leads_to_the_runs_behind_it() -> None:
    page = Page(render(compare("acks", "safe", RUNS)))
    links = [str(attributes["href"]) for tag, attributes in page.elements if tag == "a"]
    asked = [parse_qs(link.partition("?")[2]) for link in links if link.startswith("#runs?")]
    assert {"cell": ["fast"], "valid": ["no"]} in asked
    columns = ["available", "unavailable", "lost", "duplicated", "p50", "p99"]
    for cell in ("safe", "fast"):
        assert [it["by"][0] for it in asked if it.get("cell") == [cell] and "by" in it] == columns
    rows = [attributes for tag, attributes in page.elements if tag == "tr" and "data-cell" in attributes]
    assert (rows[0]["data-cell"], rows[0]["data-valid"]) == ("fast", "no"), "what lost most comes first"
    assert len(rows) == len(RUNS)
    assert {attributes["data-by"] for tag, attributes in page.elements if "data-by" in attributes} == set(columns)


def test_runs_without_figures_were_not_measured() -> None:
    unmeasured = [ComparedRun("fast", seed, "unknown", {}) for seed in SEEDS]
    _, fast = compare("acks", "safe", [*RUNS[:8], *unmeasured]).cells
    assert (fast.runs, fast.measured) == (8, 0)
    assert compare("acks", "fast", [*RUNS[:8], *unmeasured]).sentences() == [
        "safe keeps 90.0 % of writes available, and lost none of 720 acknowledged records",
        "fast has no figures",
    ]
    partly = [*RUNS[:6], *(ComparedRun("safe", seed, "unknown", {}) for seed in (6, 7)), *unmeasured]
    assert "Nothing was lost in any of 6 runs" in Page(render(compare("acks", "safe", partly))).text


def test_a_setting_that_lost_nothing_is_not_said_to_lose_nothing_ever() -> None:
    page = Page(render(compare("acks", "safe", RUNS)))
    assert "Nothing was lost in any of 8 runs: with 95 % confidence, fewer than 31 % of such runs" in page.text
    (figure,) = page.figures
    drawn = json.loads(figure)
    plotly.graph_objects.Figure(drawn)
    assert drawn["layout"]["xaxis"]["range"][0] < 0, "a point at 0 is to be seen whole"


def test_what_rounds_to_zero_has_no_sign() -> None:
    assert [signed(value) for value in (-0.001, 0.001, -0.0, -0.01, 12.34)] == ["0.00", "0.00", "0", "-0.01", "+12.3"]
