"""Suites with mutants and repeats: their plan, their expectations, and `faultline torture`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.cli.main import main
from harness.exit_codes import INVALID, VALID
from harness.spec import Spec
from harness.suites.expectations import Tally, expectations
from harness.suites.job import RunResult
from harness.suites.plan import Suite, load
from harness.suites.record import SuiteRecord
from harness.suites.report import exit_code, junit
from nemesis.registry import FAIR_FAMILIES

FULL, MUTANT, REPEATED = "full protocol", "without maximal_isr", "full protocol, repeated"
SUITE = Suite(
    "torture",
    seeds=2,
    first_seed=10,
    cells={FULL: Spec()},
    mutants={MUTANT: Spec(without=("maximal_isr",))},
    mutant_seeds=20,
    repeats=1,
)


def result(
    seed: int,
    validity: str,
    cell: str = FULL,
    *,
    families: tuple[str, ...] = FAIR_FAMILIES,
    causes: tuple[str, ...] = ("loss: lost-append",),
    digest: str = "",
) -> RunResult:
    causes = () if validity == "valid" else causes
    return RunResult(f"{cell}-{seed}", cell, seed, validity, causes, families=families, digest=digest)


def tally_of(*results: RunResult, mutant: bool = False) -> Tally:
    tally = Tally(results[0].cell, mutant, () if mutant else FAIR_FAMILIES)
    for one in results:
        tally.add(one)
    return tally


def test_the_full_protocol_is_as_expected_when_no_run_is_invalid_and_every_family_took_effect() -> None:
    assert tally_of(result(0, "valid"), result(1, "unknown")).met
    assert not tally_of(result(0, "valid"), result(1, "invalid")).met
    assert not tally_of(result(0, "valid"), result(1, "failed")).met
    lazy = tally_of(result(0, "valid", families=("kill",)))
    assert not lazy.met
    assert "partition" in lazy.missing_families


def test_an_unknown_without_a_stated_cause_is_not_as_expected() -> None:
    assert not tally_of(result(0, "unknown", causes=())).met


def test_a_mutant_is_as_expected_once_a_run_finds_it() -> None:
    assert not tally_of(result(0, "valid", MUTANT), result(1, "unknown", MUTANT), mutant=True).met
    tally = tally_of(result(0, "valid", MUTANT), result(1, "invalid", MUTANT), mutant=True)
    assert tally.met
    assert (tally.first_found, tally.found_by) == (1, ("loss: lost-append",))


def test_a_repeat_with_another_digest_is_not_as_expected() -> None:
    first, found = result(10, "valid", digest="a"), result(10, "invalid", MUTANT)
    same = expectations(SUITE, [first, found, result(10, "valid", REPEATED, digest="a")])
    assert (same.met, same.repeats, same.different) == (True, 1, ())
    other = expectations(SUITE, [first, found, result(10, "valid", REPEATED, digest="b")])
    assert (other.met, other.different) == (False, ("full protocol, seed 10",))


def plan_after(validities: Mapping[str, str]) -> list[str]:
    return [run.run for run in SUITE.next_runs(validities)]


def test_a_mutant_is_run_in_growing_batches_until_a_run_finds_it() -> None:
    first = plan_after({})
    mutants = [f"without-maximal_isr-seed{seed}" for seed in range(10, 30)]
    assert first == ["full-protocol-seed10", "full-protocol-seed11", *mutants[:2]]
    done = dict.fromkeys(first, "valid")
    assert plan_after(done) == mutants[2:6]
    assert plan_after({**done, mutants[3]: "invalid"}) == [mutants[2], *mutants[4:6]], "a batch is made whole"
    batch = {**done, **dict.fromkeys(mutants[2:6], "valid")}
    assert plan_after(batch) == mutants[6:14]
    found = {**batch, mutants[3]: "invalid"}
    assert plan_after(found) == ["full-protocol-seed10-repeated"]
    assert plan_after({**found, "full-protocol-seed10-repeated": "valid"}) == []
    never = {**done, **dict.fromkeys(mutants, "unknown")}
    assert plan_after(never) == ["full-protocol-seed10-repeated"]


def test_an_expectation_that_is_not_met_is_exit_code_1() -> None:
    runs = [result(10, "valid"), result(10, "valid", REPEATED)]
    assert exit_code(SUITE, [*runs, result(10, "invalid", MUTANT)]) == VALID
    assert exit_code(SUITE, [*runs, result(10, "valid", MUTANT)]) == INVALID
    assert exit_code(replace(SUITE, mutants={}, repeats=0), runs) == VALID


def test_a_mutant_is_one_junit_case_which_fails_when_no_run_finds_it(tmp_path: Path) -> None:
    begun = SuiteRecord("torture-20260101T000000", tmp_path, SUITE)
    runs = [result(10, "valid"), result(10, "valid", MUTANT), result(11, "valid", MUTANT)]
    for results, failures in ((runs, "1"), ([*runs, result(12, "invalid", MUTANT)], "0")):
        root = ElementTree.fromstring(junit(begun, results).encode())
        assert (root.get("tests"), root.get("failures")) == ("2", failures)
        assert [case.get("name") for case in root.iter("testcase")] == ["full protocol-10", MUTANT]


def test_the_plan_of_a_suite_with_mutants_is_read_back_from_json() -> None:
    suite = load("torture", seeds=3)
    assert Suite.from_json(json.loads(json.dumps(suite.to_json()))) == suite
    assert all(spec.without == (cell.removeprefix("without "),) for cell, spec in suite.mutants.items())
    assert suite.mutants["without generation_fences_commits"].workload == "groups"


@pytest.mark.spark
def test_torture_finds_a_mutant_repeats_a_seed_and_writes_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "torture.json"
    rule = "ack_after_high_watermark"  # whose absence seed 2 shows, in little time
    counts = ["--seeds", "1", "--first-seed", "2", "--mutant", rule, "--mutant-seeds", "1", "--repeats", "1"]
    code = main(["torture", *counts, "--jobs", "2", "--out", str(out), "--store", str(tmp_path / "store")])
    written = json.loads(out.read_text())
    full, mutant = written["targets"]
    assert (written["repeated"], written["different"]) == (1, [])
    assert (full["runs"], full["validities"]) == (1, {"valid": 1})
    assert mutant["first_found"] is not None
    assert code == (VALID if not full["missing_families"] else INVALID)
    printed = capsys.readouterr().out
    assert "full protocol" in printed
    assert f"without {rule}" in printed
    assert "1 of 1 repeats ended in the same digest" in printed
