"""Torture: how results are counted, and when a target has passed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from harness.suites.torture import FULL, Result, Tally, torture
from nemesis.registry import FAIR_FAMILIES


def _result(seed: int, validity: str, mutant: str = FULL, bitten: tuple[str, ...] = FAIR_FAMILIES) -> Result:
    causes = () if validity == "valid" else ("loss: lost-append",)
    return Result(mutant, seed, validity, causes, bitten, "", 1.0)


def _tally(*results: Result, mutant: str = FULL) -> Tally:
    tally = Tally(mutant)
    for result in results:
        tally.add(result)
    return tally


def test_the_full_protocol_passes_when_nothing_is_invalid_and_every_family_bit() -> None:
    assert _tally(_result(0, "valid"), _result(1, "unknown")).passed
    assert not _tally(_result(0, "valid"), _result(1, "invalid")).passed
    assert not _tally(_result(0, "valid"), _result(1, "failed")).passed
    lazy = _tally(_result(0, "valid", bitten=("kill",)))
    assert not lazy.passed
    assert "partition" in lazy.missing_families


def test_an_unknown_without_a_stated_cause_does_not_pass() -> None:
    assert not _tally(Result(FULL, 0, "unknown", (), FAIR_FAMILIES, "", 1.0)).passed


def test_a_mutant_passes_once_it_is_found() -> None:
    mutant = "maximal_isr"
    assert not _tally(_result(0, "valid", mutant), _result(1, "unknown", mutant), mutant=mutant).passed
    found = _tally(_result(0, "valid", mutant), _result(1, "invalid", mutant), mutant=mutant)
    assert found.passed
    assert (found.first_found, found.found_by) == (1, ("loss: lost-append",))


def test_runs_are_dealt_to_processes_and_told_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    console = Console(record=True, width=200)
    out = tmp_path / "torture.json"
    torture(console, seeds=range(1), mutants=["idempotent_dedupe"], mutant_seeds=range(3), jobs=2, repeats=1, out=out)
    found = json.loads(out.read_text())
    full, mutant = found["targets"]
    assert (found["repeated"], found["different"]) == (1, [])
    assert (full["runs"], full["validities"]) == (1, {"valid": 1})
    assert mutant["first_found"] is not None
    told = console.export_text()
    assert "full protocol" in told
    assert "without idempotent_dedupe" in told
