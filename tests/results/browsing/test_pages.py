"""The pages of `faultline serve`: all there, and each shows what it is about."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from results.comparison import ComparedRun, compare
from results.pages.browsing.routes import Router
from tests.results.browsing.pages import Page, bad_run, show
from tests.results.trend.nights import make_night


def test_every_link_of_every_page_leads_somewhere(site: Router, store: Path) -> None:
    (bad_run(store) / "nodes" / "b1" / "node.log").write_text("a line\n")
    seen, ahead = set(), ["/"]
    while ahead:
        target = ahead.pop()
        seen.add(target)
        answer = site.respond(target)
        assert answer.status == 200, target
        if isinstance(answer.body, bytes):
            links = [link.partition("#")[0] for link in Page(answer).links() if link.startswith("/")]
            ahead += [link for link in dict.fromkeys(links) if link not in seen and link not in ahead]
    assert len(seen) >= 10


def test_a_run_page_has_the_verdict_the_faults_the_pictures_and_the_logs(site: Router, store: Path) -> None:
    run = bad_run(store)
    (run / "nodes" / "b1" / "node.log").write_text("elected\n")
    page = show(site, f"/runs/{run.name}")
    for words in ("append, seed 7", "lost-append", "PowerLoss", "Replica logs, side by side", "faultline replay"):
        assert words in page.text
    assert sum(1 for tag, attributes in page.elements if attributes.get("class") == "plot") == 3
    assert f"/runs/{run.name}/logs/b1" in page.links()
    assert "elected" in show(site, f"/runs/{run.name}/logs/b1").text


def test_every_picture_has_a_name(site: Router, store: Path) -> None:
    make_night(store, 0, seeds=3)
    for target in (f"/runs/{bad_run(store).name}", "/suites/nightly-20261101T010000", "/trends/nightly", "/situations"):
        names = [a.get("aria-label") for tag, a in show(site, target).elements if a.get("class") == "plot"]
        assert 0 < len({name for name in names if name}) == len(names)


def test_a_run_that_its_suite_kept_is_shown_from_there_with_its_logs(site: Router, store: Path) -> None:
    kept = store / "suites" / "nightly" / "runs" / "20990101T000000-append-seed8"
    kept.parent.mkdir(parents=True)
    (store / kept.name).rename(kept)
    (kept / "nodes" / "b1" / "node.log").write_text("elected\n")
    page = show(site, f"/suites/nightly/{kept.name}")
    assert f"faultline replay {kept}" in page.text
    assert "elected" in show(site, f"/suites/nightly/{kept.name}/logs/b1").text
    (kept / "nodes" / "b1" / "link").symlink_to("/etc")
    assert site.respond(f"/suites/nightly/{kept.name}").status == 500


def test_of_a_valid_run_of_a_suite_its_figures_are_shown_and_that_no_more_is_kept(site: Router, store: Path) -> None:
    suite = make_night(store, 0)
    page = show(site, f"/suites/{suite}/append-seed3")
    assert "only verdicts and figures of this run are stored" in page.text
    assert "faultline run spec.yaml" in page.text
    assert "No operation was recorded" not in page.text


def test_a_suite_and_its_trend_are_shown_and_worked_out_anew_when_the_store_changes(site: Router, store: Path) -> None:
    first = make_night(store, 0)
    assert f"/suites/{first}/append-seed0" in show(site, f"/suites/{first}").links()
    assert "/trends/nightly" in show(site, "/trends").links()
    page = show(site, "/trends/nightly")
    assert show(site, "/trends/nightly").text == page.text
    second = make_night(store, 1)
    assert f"/suites/{second}" in show(site, "/trends/nightly").links()


def test_a_stored_run_is_shown_from_the_tables_alone(site: Router, store: Path) -> None:
    name = "20990101T000000-append-seed8"
    shutil.rmtree(store / name)
    page = show(site, f"/suites/nightly/{name}")
    assert f"faultline store export nightly/{name} {name}" in page.text
    assert "append-0" in show(site, f"/suites/nightly/{name}/replicas").text
    assert f"/suites/nightly/{name}" in show(site, "/runs").links()


def test_a_comparison_is_worked_out_anew_from_its_runs(site: Router, tmp_path: Path) -> None:
    figures = {"acknowledged": 90.0, "planned": 100.0, "main_s": 1.0, "lost": 0.0}
    kept = ["", "/elsewhere/suites/acks-1/runs/<all>", "javascript:alert(1)", "/etc"]
    runs = [ComparedRun(cell, seed, "valid", figures) for cell in ("all", "one") for seed in (1, 2)]
    comparison_of_runs = compare("acks", "all", [replace(run, kept=path) for run, path in zip(runs, kept, strict=True)])
    values = comparison_of_runs.to_json()
    values["sentences"] = ["a lie"]
    (tmp_path / "comparisons").mkdir()
    (tmp_path / "comparisons" / "acks.json").write_text(json.dumps(values))
    page = show(site, "/comparisons/acks")
    assert "all keeps 90.0 % of writes available" in page.text
    assert [link for link in page.links() if link.startswith("/suites/")] == ["/suites/acks-1/%3Call%3E"]
    for run, where in zip(values["runs"], ("nightly/x<y", "elsewhere/x", "../..", "/etc"), strict=True):
        run["stored"], run["kept"] = where, ""
    (tmp_path / "comparisons" / "acks.json").write_text(json.dumps(values))
    links = show(site, "/comparisons/acks").links()
    assert [link for link in links if link.startswith("/suites/")] == ["/suites/nightly/x%3Cy"]
    assert not [link for link in page.links() if "javascript" in link or "etc" in link]
    (tmp_path / "comparisons" / "acks.json").write_text('{"runs": [1], "reference": {}}')
    assert site.respond("/comparisons/acks").status == 500
