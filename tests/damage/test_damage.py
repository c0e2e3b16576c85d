"""Damage to a run makes what rests on it unknown, by name; a change that damages nothing changes no verdict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from checkers.registry import MISSING_EVIDENCE
from harness.cli.main import main
from tests.damage.damages import DAMAGES, Damage
from tests.damage.perturbations import PERTURBATIONS
from tests.damage.recorded_runs import RUNS, record

Answer = tuple[int, Mapping[str, Any]]
"""Exit code, and the checks of the summary by checker."""


def check(run: Path) -> Answer:
    """The output of `faultline check` on a run directory."""
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        code = main(["check", str(run), "--json"])
    assert errors.getvalue() == ""
    checks = {each["checker"]: each for each in json.loads(output.getvalue())["checks"]}
    crashed = [name for name, each in checks.items() if any(one["kind"] == "crashed" for one in each["findings"])]
    assert crashed == []
    return code, checks


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Answer]]:
    """Each run by its name, and its check; it is recorded when it is first asked for."""

    def once(name: str) -> tuple[Path, Answer]:
        run = record(name, tmp_path_factory.mktemp("runs"))
        answer = check(run)
        for derived in ("report.html", "verdict.json"):
            (run / derived).unlink()
        return run, answer

    return cache(once)


def test_there_are_sixty_ways_of_damage_and_twenty_legal_changes() -> None:
    assert len({damage.name for damage in DAMAGES}) == len(DAMAGES) >= 60
    assert len(PERTURBATIONS) >= 20


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_damage_makes_exactly_what_rests_on_it_unknown(
    damage: Damage, name: str, recorded: Callable[[str], tuple[Path, Answer]], tmp_path: Path
) -> None:
    source, (_, before) = recorded(name)
    other, _ = recorded("append" if name == "lossy" else "lossy")
    run = shutil.copytree(source, tmp_path / "run")
    damage.apply(run, other)
    code, after = check(run)
    touched = {part.value for part in damage.parts}
    assert after.keys() >= before.keys()
    for checker, verdict in after.items():
        kinds = [finding["kind"] for finding in verdict["findings"]]
        if touched & set(verdict["rests_on"]):
            assert (verdict["validity"], kinds) == ("unknown", [MISSING_EVIDENCE]), checker
            assert verdict["findings"][0]["lines"], checker
        else:
            assert verdict["findings"] == before[checker]["findings"], checker
            assert verdict["validity"] == before[checker]["validity"], checker
    stands = any(verdict["validity"] == "invalid" for verdict in after.values())
    assert code == (1 if stands else 2)
    assert not stands or name == "mutant"


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("change", PERTURBATIONS)
def test_a_change_that_damages_nothing_changes_no_verdict(
    change: str, name: str, recorded: Callable[[str], tuple[Path, Answer]], tmp_path: Path
) -> None:
    source, before = recorded(name)
    PERTURBATIONS[change](shutil.copytree(source, tmp_path / "run"))
    (changed,) = tmp_path.iterdir()
    assert check(changed) == before
    assert before[0] == (1 if name == "mutant" else 0)
