"""The comparison of a hunt with random runs: both get the same time, and its tables say what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from checkers.verdict import Validity
from harness.search.hunt.corpus import FRESH, Candidate
from harness.search.hunt.features import RunFeatures
from harness.search.hunt.operators import fresh
from harness.spec import Spec
from tests.harness.hunt import comparison, finding, searches
from tests.harness.hunt.journal import Journal
from tests.harness.hunt.searches import MeasuredRun, Step

RULE = "fence_fetch_broker_epoch"
TEXT = fresh(finding.base(RULE, 5.0), 1).to_yaml()


def step(run: str, cpu_s: float, situations: str = "", validity: Validity = Validity.VALID) -> Step:
    few = frozenset(situations)
    result = MeasuredRun(RunFeatures(few, frozenset(), 1), validity, ("a-finding",), few, cpu_s)
    return Step(Candidate(run, FRESH, TEXT), result, cpu_s)


def test_both_searches_get_the_same_time_in_turns_and_a_run_that_ends_late_does_not_count() -> None:
    turns = []

    def cheap() -> Iterator[Step]:
        for number in range(100):
            turns.append("cheap")
            yield step(f"cheap {number}", 1.0, "abcdefghij"[number])

    def dear() -> Iterator[Step]:
        for number in range(100):
            turns.append("dear")
            yield step(f"dear {number}", 3.0, "xyz"[number])

    tallies = comparison.in_turns({"cheap": cheap(), "dear": dear()}, 7.0, lambda name, tally: None)
    assert turns[:8] == ["cheap", "dear", "cheap", "cheap", "cheap", "dear", "cheap", "cheap"]
    rows = {name: tally.to_json() for name, tally in tallies.items()}
    assert (rows["cheap"]["runs"], rows["cheap"]["situations"]) == (7, 7)
    assert (rows["dear"]["runs"], rows["dear"]["situations"]) == (2, 2)
    assert rows["dear"]["curve"] == [(3.0, 1), (6.0, 2)]


def test_the_spec_of_a_run_that_is_not_valid_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def searching(_spec: Spec, _number: int, _earlier: Sequence[Step]) -> Iterator[Step]:
        yield step("sound", 1.0)
        yield step("accused", 1.0, validity=Validity.UNKNOWN)
        yield from (step("sound", 1.0) for _ in range(9))

    monkeypatch.setattr(comparison, "hunted", searching)
    monkeypatch.setattr(comparison, "randomly", searching)
    journal = Journal(tmp_path / "steps")
    row = comparison.compared(7, 3.0, 5.0, lambda text: None, journal, dense=False, found=tmp_path / "found")
    assert row["hunt"]["not_valid"] == ["accused"]
    kept = {file.name: file.read_text() for file in (tmp_path / "found").iterdir()}
    assert kept == {"7-hunt-accused.yaml": TEXT, "7-random-accused.yaml": TEXT}


def test_a_range_that_was_killed_goes_on_as_if_it_had_not_been(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[str] = []

    def measured(text: str) -> MeasuredRun:
        made.append(text)
        shown = frozenset({f"{len(text)} {text[-9:]}"})
        return MeasuredRun(RunFeatures(shown, frozenset(), 1), Validity.VALID, (), shown, 100.0)

    def range_of(cpu_seconds: float, journal: Path) -> dict[str, Any]:
        row = comparison.compared(7, cpu_seconds, 5.0, lambda text: None, Journal(journal), found=tmp_path / "found")
        for search in comparison.SEARCHES:
            row[search]["curve"] = [seen for _, seen in row[search]["curve"]]
        return row

    monkeypatch.setattr(searches, "measured", measured)
    whole = range_of(3_050.0, tmp_path / "whole")
    of_whole = list(made)
    made.clear()
    range_of(2_050.0, tmp_path / "steps")
    with (tmp_path / "steps").open("ab") as torn:
        torn.write(b"\x40\x00\x00\x00half a step")
    assert range_of(3_050.0, tmp_path / "steps") == whole
    assert sorted(made) == sorted(of_whole)


def test_a_range_of_another_search_is_not_gone_on_with() -> None:
    search = searches.randomly(comparison.base(5.0), 7, [step("of-another-search", 1.0)])
    with pytest.raises(ValueError, match="of-another-search was made before"):
        next(search)


def test_a_search_has_found_a_broker_with_the_first_invalid_run_that_is_valid_with_the_rule() -> None:
    asked: list[Spec] = []

    def validity_of_full(spec: Spec) -> Validity:
        asked.append(spec)
        return Validity.INVALID if len(asked) == 1 else Validity.VALID

    def searching() -> Iterator[Step]:
        yield step("valid", 1.0)
        yield step("unknown", 1.0, validity=Validity.UNKNOWN)
        yield step("accused", 1.0, validity=Validity.INVALID)
        yield step("found", 1.0, validity=Validity.INVALID)

    def in_vain() -> Iterator[Step]:
        while True:
            yield step("valid", 4.0)

    searches = {"random": in_vain(), "hunt": searching()}
    tallies = finding.until_found(searches, RULE, 10.0, validity_of_full, lambda name, tally: None)
    assert [spec.without for spec in asked] == [(), ()]
    hunt = tallies["hunt"].to_json()
    assert (hunt["found"], hunt["cpu_s"], hunt["runs"]) == ("found", 4.0, 4)
    assert hunt["accused"] == ["accused"]
    assert (tallies["random"].found, tallies["random"].spent_s) == ("", 12.0)
    rows = [{"rule": RULE, "range": 1, "cap_s": 10.0, "commit": "abc", **{n: t.to_json() for n, t in tallies.items()}}]
    lines = finding.table(rows).splitlines()
    assert lines[2] == f"| `{RULE}` | 1 | not in 10 | 3 | 0 | 4 | 4 | 0 | `a-finding` | `abc` |"
    assert "random runs find it in 0 of 1 ranges, the hunt in 1" in lines[-1]
    assert "a ratio of 0.33" in lines[-1]


def test_what_a_find_takes_does_not_depend_on_where_a_search_is_stopped() -> None:
    def found(cpu_s: float, name: str = "a run") -> dict[str, object]:
        return {"cpu_s": cpu_s, "runs": 1, "read": 1, "accused": [], "found": name, "findings": []}

    shared = {"rule": RULE, "cap_s": 300.0, "commit": "abc"}
    rows = [
        {**shared, "range": 1, "random": found(300.0, ""), "hunt": found(100.0)},
        {**shared, "range": 2, "random": found(100.0), "hunt": found(100.0)},
    ]
    said = finding.table(rows).splitlines()[-1]
    assert "a ratio of 0.50; " in said
    assert said.endswith("For each find that is 400 and 100 s, a ratio of 0.25 (95% interval 0.00 to 4.80).")


def test_the_search_that_was_measured_last_is_summed_up_apart_from_those_before() -> None:
    def of(commit: str, number: int, hunt_s: float) -> dict[str, object]:
        spent = {"runs": 1, "read": 1, "accused": [], "found": "a run", "findings": []}
        searches = {"random": {"cpu_s": 100.0, **spent}, "hunt": {"cpu_s": hunt_s, **spent}}
        return {"rule": RULE, "cap_s": 300.0, "commit": commit, "range": number, **searches}

    rows = [of("abc", 1, 90.0), of("abc", 2, 110.0), of("def", 3, 20.0)]
    now, before = finding.table(rows), finding.table_before(rows)
    assert "in 1 of 1 ranges" in now
    assert "a ratio of 0.20; " in now
    assert "`abc`" not in now
    assert "in 2 of 2 ranges" in before
    assert "a ratio of 1.00; " in before
    assert "`def`" not in before


def test_the_specs_of_the_finds_lack_the_rule_and_have_no_stories() -> None:
    spec = finding.base(RULE, 60.0)
    assert spec.without == (RULE,)
    assert spec.families == finding.FAMILIES
    assert "scripted" not in spec.families


def test_the_table_of_the_comparison_says_when_the_hunt_has_seen_as_much() -> None:
    def searched(curve: list[tuple[float, int]]) -> dict[str, object]:
        few = {"of_few_replicas": 10, "not_valid": ["run"]}
        return {"runs": len(curve), "situations": curve[-1][1], "curve": curve, **few}

    row = {
        "range": 3,
        "cpu_seconds": 100.0,
        "time_limit_s": 20.0,
        "commit": "abc",
        "hunt": searched([(25.0, 50), (90.0, 80)]),
        "random": searched([(30.0, 20), (95.0, 40)]),
    }
    rows = [{**row, "range": 4, "hunt": searched([(99.0, 20)])}, row, {**row, "cpu_seconds": 50.0}]
    rows.append({**row, "range": 5, "commit": "aaa"})
    lines = comparison.table(rows).splitlines()
    after = "25 s, 25% of its time | `abc` |"
    assert lines[3] == f"| 3 | 100 | 40 |  | 80 | 2.00 | 10 |  | 10 | 1.00 | 2 |  | 2 | {after}"
    assert " | never | " in lines[4]
    assert "| `aaa` |" in lines[5]
    assert "`abc`, 50 s of CPU for each search, in runs of 20 s: 1. The" in lines[7]
    assert "`abc`, 100 s of CPU for each search, in runs of 20 s: 2. The" in lines[9]
    assert "The hunt sees 1.25 times (0.50 to 2.00) the distinct situations" in lines[9]
    assert "2 of the random ones, 2 of the hunt" in lines[9]
    assert "schedules at once" not in lines[9]
    assert "`aaa`, 100 s of CPU" in lines[11]
    (_, _, line, *_, said) = comparison.table([{**row, "dense": searched([(50.0, 60)])}]).splitlines()
    assert line == f"| 3 | 100 | 40 | 60 | 80 | 2.00 | 10 | 10 | 10 | 1.00 | 2 | 1 | 2 | {after}"
    assert "Random runs with 8 schedules at once see 1.50 times (1.50 to 1.50) those of runs with one" in said
