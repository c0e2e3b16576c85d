"""Pages are safe whatever an address, a name or a file of a run is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from checkers.verdict import Finding, Validity, Verdict
from results.pages.browsing.routes import Router
from results.pages.page import address
from results.run.directory import RunDirectory
from tests.results.browsing.pages import SCRIPT, Page, bad_run, show
from tests.results.conftest import make_run

SECRET = "the-secret-of-the-neighbour"


@pytest.mark.parametrize(
    "target",
    [
        "/../../etc/passwd",
        "/runs/../../etc/passwd",
        "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/%2e%2e/%2e%2e/neighbour",
        "/runs/%252e%252e%252fneighbour",
        "/runs/..",
        "/runs/.",
        "/runs/latest/../../neighbour",
        "/runs/RUN/logs/..%2f..%2f..%2f..%2fneighbour",
        "/runs/RUN/logs/../../../neighbour",
        "/runs/RUN/text/..",
        "/runs/RUN/text/b1%00.txt",
        "/runs/%00",
        "/runs/RUN%00",
        "/runs/%ff%fe",
        "/runs/%",
        "/runs/%zz",
        "/suites/..%2f..%2f..",
        "/suites/..%2f../runs",
        "/trends/..%2f..",
        "/suites/nightly/..%2f..%2fRUN",
        "/comparisons/..%2fstore%2fRUN%2fverdict",
        "/assets/..%2freport.py",
        "/assets/report.css%00",
        "/assets//etc/passwd",
        "/runs/\\..\\..\\neighbour",
        "/" + "a/" * 4000,
    ],
)
def test_no_address_reaches_what_is_not_listed(site: Router, store: Path, target: str) -> None:
    (store.parent / "neighbour").write_text(SECRET)
    answer = site.respond(target.replace("RUN", bad_run(store).name))
    assert answer.status == 404
    assert isinstance(answer.body, bytes)
    assert SECRET.encode() not in answer.body
    assert b"root:" not in answer.body


@pytest.mark.parametrize(
    "name",
    [
        SCRIPT.replace("/", "∕"),
        "<img src=x onerror=alert(1)>",
        '"><b a="',
        "a b?c#d%2e%2e",
        "..%2f",
        "\n\t",
        "é",
        "javascript:alert(1)",
    ],
)
def test_a_run_of_any_name_is_listed_linked_and_shown_as_text(site: Router, store: Path, name: str) -> None:
    bad_run(store).rename(store / name)
    assert address("runs", name) in show(site, "/").links()
    page = show(site, address("runs", name))
    assert " ".join(name.split()) in page.text
    assert not [tag for tag, attributes in page.elements if tag in ("img", "b") and attributes]


def test_a_run_whose_name_is_no_utf8_is_listed_and_its_logs_are_shown(site: Router, store: Path) -> None:
    (bad_run(store) / "nodes" / "b1" / "node.log").write_text("elected\n")
    bad_run(store).rename(store / os.fsdecode(b"run-\xff"))
    assert "/runs/run-%FF" in show(site, "/").links()
    assert "elected" in show(site, "/runs/run-%FF/logs/b1").text
    assert "append" in show(site, "/runs/run-%FF").text


def test_whatever_is_in_a_runs_files_stays_text(site: Router, store: Path) -> None:
    run = RunDirectory.open(bad_run(store))
    run.write_verdict([Verdict(SCRIPT, Validity.INVALID, (Finding(SCRIPT, (SCRIPT,), SCRIPT, 0),), {SCRIPT: 1.0})])
    run.write_status("failed", message=SCRIPT, stage=SCRIPT, **{SCRIPT: SCRIPT})
    run.write_spec(f"name: {SCRIPT}\n")
    (run.nodes_path / "b1").rename(run.nodes_path / "<b onclick=x>")
    (run.nodes_path / "<b onclick=x>" / "node.log").write_text(f"{SCRIPT}\n\x00\x1b[31m\n")
    for target in ("/", "/runs", f"/runs?find={SCRIPT}", f"/runs/{run.name}", f"/runs/{run.name}/replicas"):
        page = show(site, target)
        assert "alert(1)" in page.text or target.endswith("replicas")
    assert SCRIPT in show(site, address("runs", run.name, "logs", "<b onclick=x>")).text


@pytest.mark.parametrize(
    "damage",
    [
        {"status.json": '{"state": 1, "started": [], "facts": 3, "seed": {"a": 1}}'},
        {"status.json": "[" * 100_000},
        {"status.json": '"\\ud800"', "verdict.json": '{"validity": {"a": 1}, "checks": {"a": 1}}'},
        {"verdict.json": '{"checks": [3, {"validity": "invalid", "findings": 3, "checker": "\\ud800"}]}'},
        {"settings.json": '{"acks": 77}'},
        {"history.parquet": "PAR1"},
        {"spec.yaml": "&a [*a]"},
        {"spec.yaml": "[" * 100_000},
        {"spec.yaml": "started: 2026-13-45"},
        {"spec.yaml": f"time_limit: {'9' * 400}\nrate: {'9' * 400}"},
        {"recovery.json": '{"seconds": NaN, "waiting_for": 3}'},
    ],
)
def test_a_damaged_run_is_told_of_and_the_others_are_still_browsed(
    site: Router, store: Path, damage: dict[str, str]
) -> None:
    run = bad_run(store)
    for name, text in damage.items():
        (run / name).write_text(text)
    assert site.respond(f"/runs/{run.name}").status in (200, 500)
    assert f"/runs/{run.name}" in show(site, "/runs").links()
    assert site.respond("/runs/20990101T000000-append-seed8").status == 200


@pytest.mark.parametrize("where", ["spec.yaml", "nodes/b1/node.log", "nodes/b2", "history.parquet", "deep"])
def test_a_run_with_a_link_that_leads_out_is_not_opened(site: Router, store: Path, where: str) -> None:
    outside = store.parent / "outside"
    outside.mkdir()
    (outside / "node.log").write_text(SECRET)
    run = bad_run(store)
    link = run / ("nodes/b1/data/append-0/link" if where == "deep" else where)
    link.unlink(missing_ok=True)
    link.symlink_to(outside if where == "nodes/b2" else outside / "node.log")
    for target in (f"/runs/{run.name}", f"/runs/{run.name}/logs/b1", f"/runs/{run.name}/text/b2"):
        answer = site.respond(target)
        assert answer.status == 500
        assert isinstance(answer.body, bytes)
        assert b"leads out of the run" in answer.body
        assert SECRET.encode() not in answer.body


def test_links_and_pipes_in_place_of_the_small_files_are_neither_read_nor_waited_for(site: Router, store: Path) -> None:
    secret = store.parent / "secret.json"
    secret.write_text(json.dumps({"state": "finished", "name": SECRET}))
    run = bad_run(store)
    (run / "status.json").unlink()
    (run / "status.json").symlink_to(secret)
    (run / "verdict.json").unlink()
    os.mkfifo(run / "verdict.json")
    assert SECRET not in show(site, "/runs").text
    assert site.respond(f"/runs/{run.name}").status == 500


def test_a_run_with_a_pipe_among_the_files_of_its_nodes_is_not_opened(site: Router, store: Path) -> None:
    run = bad_run(store)
    os.mkfifo(run / "nodes" / "pipe")
    answer = site.respond(f"/runs/{run.name}")
    assert (answer.status, isinstance(answer.body, bytes)) == (500, True)
    assert "nodes/pipe is neither file nor directory; the run is not opened" in Page(answer).text


def test_a_link_to_a_run_or_to_a_comparison_elsewhere_is_not_there(site: Router, store: Path, tmp_path: Path) -> None:
    elsewhere = make_run(tmp_path / "elsewhere")
    (store / "linked").symlink_to(elsewhere.path)
    (tmp_path / "comparisons").mkdir()
    (tmp_path / "comparisons" / "c.json").symlink_to(elsewhere.path / "settings.json")
    assert site.respond("/runs/linked").status == 404
    assert site.respond("/comparisons/c").status == 404
    assert "/runs/linked" not in show(site, "/").links()
