"""Lists of runs and suites: failures first, each with its cause, found by words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from checkers.verdict import Finding, Validity, Verdict
from results.pages.browsing.listing import directory_entry, listed
from results.pages.browsing.routes import Router
from results.pages.browsing.store_browser import StoreBrowser
from results.pages.report import subject_of
from results.run.directory import RunDirectory
from results.store import tables
from tests.results.browsing.pages import bad_run, show
from tests.results.trend.nights import SIGNATURE, make_night, plain


def test_the_overview_tells_of_failures_before_anything_else(site: Router, store: Path) -> None:
    page = show(site, "/")
    assert "2 runs in " in page.text
    assert "1 invalid, 1 valid." in page.text
    runs = [link for link in page.links() if link.startswith("/runs/")]
    assert runs[0] == f"/runs/{bad_run(store).name}"
    assert "acknowledged-loss: lost-append" in page.text
    assert page.text.count("started, UTC") == 3


def test_a_list_has_the_cause_of_a_run_before_its_consequences(tmp_path: Path) -> None:
    consequence = Verdict("linearizability", Validity.INVALID, (Finding("duplicate", ("again",)),))
    nearer = Verdict("protocol", Validity.INVALID, (Finding("batch-appended-twice", ("twice",)),))
    run = RunDirectory.create(tmp_path, "append", 7)
    run.write_status("finished")
    run.write_verdict([consequence, nearer])
    assert directory_entry(run.path, "").problem == "protocol: batch-appended-twice"
    told = "protocol/batch-appended-twice/batch-appended-again"
    run.write_stories({"stories": [{"signature": told}, {"signature": "reads/duplicate/duplicate"}]})
    assert directory_entry(run.path, "").problem == told
    for damaged in ({"stories": [7]}, {"stories": {}}, {"stories": [{"signature": 7}]}):
        run.write_stories(damaged)
        assert directory_entry(run.path, "").problem == "protocol: batch-appended-twice"


def test_the_list_of_stored_runs_has_their_signatures(tmp_path: Path) -> None:
    make_night(tmp_path, 0, lambda *which: {**plain(*which), "lost": 1.0}, seeds=1)
    problems = {entry.problem for entry in listed(tmp_path).entries if entry.validity == "invalid"}
    assert problems == {SIGNATURE}


def test_a_mutant_that_is_found_is_no_failure_in_a_list_and_one_that_is_missed_is(tmp_path: Path) -> None:
    def lost(random: np.random.Generator, cell: str, night: int) -> dict[str, float]:
        return {**plain(random, cell, night), "lost": float(cell == "groups")}

    make_night(tmp_path, 0, lost, seeds=3, mutants=("groups",))
    site = Router(StoreBrowser(tmp_path, tmp_path / "comparisons"))
    text = show(site, "/").text
    assert "3 mutant found, 3 valid. Failures first No run is a failure." in text
    assert "valid nightly-20261101T010000 6 3 mutant found, 3 valid" in text
    assert "3 runs of 6 match" in show(site, "/runs?find=mutant+found").text
    make_night(tmp_path, 1, lost, seeds=3, mutants=("groups", "another"))
    assert "invalid nightly-20261102T010000 6 3 mutant found, 3 valid" in show(site, "/").text


def test_runs_are_found_by_all_the_words_asked_for(site: Router, store: Path) -> None:
    page = show(site, "/runs?find=LOST-append+seed")
    assert f"/runs/{bad_run(store).name}" in page.links()
    assert "1 run of 2 matches." in page.text
    assert "No run matches." in show(site, "/runs?find=nothing-like-it").text


def test_a_number_that_is_asked_for_is_a_whole_one(tmp_path: Path) -> None:
    for seed in (7, 17, 70):
        RunDirectory.create(tmp_path, "append", seed).write_status("finished")
    site = Router(StoreBrowser(tmp_path, tmp_path / "comparisons"))
    for asked, number in (
        ("seed+7", 1),
        ("Seed+7+append", 1),
        ("seed7", 1),
        ("append-seed7", 1),
        ("7", 1),
        ("seed+1", 0),
        ("seed", 3),
    ):
        text = show(site, f"/runs?find={asked}").text
        assert f"{number} run" in text.partition("of 3 match")[0], asked


def test_runs_are_found_by_the_beginning_of_a_date_in_their_name_or_of_their_start(tmp_path: Path) -> None:
    for month, seed in ((11, 1), (11, 2), (12, 3)):
        run = tmp_path / f"2026{month}21T001500-append-seed{seed}"
        run.mkdir()
        (run / "status.json").write_text(json.dumps({"seed": seed, "started": f"2026-{month}-21T00:15:00+00:00"}))
    make_night(tmp_path, 29, seeds=1)  # on 30 November; its runs are named for cell and seed
    site = Router(StoreBrowser(tmp_path, tmp_path / "comparisons"))
    for asked, number in (
        ("2026112", 2),
        ("20261121", 2),
        ("2026-11-2", 2),
        ("2026-11-21T00:15", 2),
        ("20261121t0015", 2),
        ("20261121T1", 0),
        ("2026-12", 1),
        ("2026-12+seed+3", 1),
        ("2026-12+seed+1", 0),
        ("2026-11-30t01", 2),
        ("20261130", 2),
        ("202", 0),
        ("1121", 0),
    ):
        text = show(site, f"/runs?find={asked}").text
        assert f" {number} run" in text.partition(" match")[0], asked


def test_a_run_without_a_verdict_is_called_the_same_in_the_list_and_on_its_page(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    run.seal()
    run.write_status("finished")
    site = Router(StoreBrowser(tmp_path, tmp_path / "comparisons"))
    for path in ("/runs", f"/runs/{run.name}"):
        text = show(site, path).text
        assert "not checked" in text
        assert "unknown" not in text


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_a_run_that_was_not_carried_out_failed_in_every_list_and_on_its_pages_with_the_reason(
    state: str, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    run.write_spec("name: append\nseed: 7\n")
    run.seal()
    run.write_status(state, message="no broker came up")
    assert tables.add_run(tmp_path, "nightly", run)
    site = Router(StoreBrowser(tmp_path, tmp_path / "comparisons"))
    pages = {path: show(site, path).text for path in ("/runs", f"/runs/{run.name}", f"/suites/nightly/{run.name}")}
    shutil.rmtree(run.path)
    pages["/runs, of stored runs"] = show(site, "/runs").text
    for path, text in pages.items():
        assert "not checked" not in text, path
        assert "has not been checked" not in text, path
        assert f"{state}: no broker came up" in text, path
        assert "failed append" in text or "failed 20" in text, path


def test_a_violation_that_was_found_in_a_run_cut_short_is_not_hidden_by_that(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "append", 7)
    run.write_status("interrupted", message="interrupted")
    run.write_verdict([Verdict("loss", Validity.INVALID, (Finding("lost-append", ("one line",)),))])
    assert directory_entry(run.path, "").validity == "invalid"
    assert subject_of(run).validity == "invalid"
    run.write_spec("name: append\nseed: 7\n")
    run.seal()
    run.write_status("interrupted", message="interrupted")
    tables.add_run(tmp_path, "nightly", run)
    assert [entry.validity for entry in listed(tmp_path).entries] == ["invalid"]
    run.write_verdict([Verdict("loss", Validity.VALID)])
    assert directory_entry(run.path, "").validity == "failed"
    assert subject_of(run).validity == "failed"


def test_a_damaged_file_of_the_store_is_named_on_the_first_page(site: Router, store: Path) -> None:
    (path,) = (store / "tables" / "v1" / "verdicts" / "suite=nightly").glob("*.parquet")
    path.write_bytes(b"PAR1")
    text = show(site, "/").text
    assert "Left out of the store: 1 file" in text
    assert path.name in text
    assert site.respond("/suites/nightly/20990101T000000-append-seed8").status == 500
