"""Where runs go."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from results.run.paths import DEFAULT_STORE, new_run, run_name, runs, store_path

BEGAN = datetime(2026, 11, 21, 0, 15, tzinfo=UTC)


def test_the_option_outweighs_the_environment_which_outweighs_the_default() -> None:
    assert store_path("a", {"FAULTLINE_STORE": "b"}) == Path("a")
    assert store_path(None, {"FAULTLINE_STORE": "b"}) == Path("b")
    assert store_path(None, {"FAULTLINE_STORE": ""}) == DEFAULT_STORE


def test_a_name_sorts_by_time_and_is_safe_as_a_directory() -> None:
    assert run_name(BEGAN, "append", 7) == "20261121T001500-append-seed7"
    assert run_name(BEGAN, "../my spec", 7) == "20261121T001500-my-spec-seed7"


def test_runs_of_one_second_get_names_of_their_own_and_are_listed_in_order(tmp_path: Path) -> None:
    directories = [new_run(tmp_path, "append", 7, BEGAN) for _ in range(3)]
    assert len(set(directories)) == 3
    for run in directories:
        (run / "status.json").write_text("{}")
    (tmp_path / "not-a-run").mkdir()
    assert runs(tmp_path) == sorted(directories)
    assert (tmp_path / "latest").readlink() == Path(directories[-1].name)
    assert runs(tmp_path / "missing") == []
