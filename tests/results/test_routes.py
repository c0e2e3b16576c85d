"""The pages of `faultline serve`: all there, failures first, and safe whatever a run or a file or an address is."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from checkers.verdict import Finding, Validity, Verdict
from results.comparison import ComparedRun, compare
from results.pages.browsing import store_browser
from results.pages.browsing.listing import directory_entry, listed
from results.pages.browsing.node_logs import LINES, excerpt
from results.pages.browsing.routes import Response, Router
from results.pages.browsing.store_browser import StoreBrowser
from results.pages.page import address
from results.run.directory import RunDirectory
from results.store import tables
from results.store.schema import SCHEMAS, batch_path
from results.suites import SuiteSituations, situations_of_suite
from tests.results.conftest import INVALID, VALID, make_run
from tests.results.trend.nights import SIGNATURE, make_night, plain

SCRIPT = "<script>alert(1)</script>"
SECRET = "the-secret-of-the-neighbour"


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        assert isinstance(answer.body, bytes)
        self.feed(answer.body.decode())
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def links(self) -> list[str]:
        return [str(attributes["href"]) for tag, attributes in self.elements if tag == "a"]

    def runs_only_our_scripts(self) -> bool:
        return all(
            attributes.get("src") in ("/assets/report.js", "/assets/plotly.js")
            or attributes.get("type") == "application/json"
            for tag, attributes in self.elements
            if tag == "script"
        ) and not any(name.startswith("on") for _, attributes in self.elements for name in attributes)


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that kept its promises, one that did not, and the former in a suite."""
    store = tmp_path_factory.mktemp("made")
    bad = make_run(store)
    bad.seal()
    good = bad.path.with_name("20990101T000000-append-seed8")
    shutil.copytree(bad.path, good)
    bad.write_verdict(INVALID)
    RunDirectory.open(good).write_verdict(VALID)
    tables.add_run(store, "nightly", RunDirectory.open(good))
    return store


@pytest.fixture
def store(tmp_path: Path, made_store: Path) -> Path:
    """A copy of it."""
    shutil.copytree(made_store, tmp_path / "store", symlinks=True)
    return tmp_path / "store"


@pytest.fixture
def site(store: Path, tmp_path: Path) -> Router:
    return Router(StoreBrowser(store, tmp_path / "comparisons"))


def bad_run(store: Path) -> Path:
    (path,) = [path for path in store.glob("2*seed7") if not path.is_symlink()]
    return path


def show(site: Router, target: str) -> Page:
    answer = site.respond(target)
    assert answer.status == 200, target
    page = Page(answer)
    assert page.runs_only_our_scripts()
    return page


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


HARD = "L= FI--i=sc Fo-u+<sb LI--p>rc"


def test_situations_are_shown_over_time_and_beside_another_suite(site: Router, store: Path) -> None:
    hunt = make_night(
        store, 0, name="hunt", seeds=3, situations={"append-seed1": [HARD, SCRIPT], "groups-seed2": [HARD]}
    )
    plain_suite = make_night(store, 1, seeds=3)
    assert f"/situations/{hunt}" in show(site, f"/suites/{hunt}").links()
    index = show(site, "/situations")
    assert index.links().index(f"/situations/{plain_suite}") < index.links().index(f"/situations/{hunt}")
    page = show(site, f"/situations/{hunt}")
    assert "Situations: 9 in 6 runs, 7 of them in one run only" in page.text
    assert "processor time 9.0 s" in page.text
    assert f"/situations/{hunt}/{plain_suite}" in page.links()
    assert sum(1 for tag, attributes in page.elements if attributes.get("class") == "plot") == 2
    page = show(site, f"/situations/{hunt}/{plain_suite}")
    assert "in both 7" in page.text
    assert f"Only {hunt} reached: 2 situations" in page.text
    assert f"{hunt} reached all situations of {plain_suite}." in page.text
    assert "the elected leader leads, the ISR is at min.insync.replicas" in page.text
    assert SCRIPT in page.text
    firsts = [link for link in page.links() if link.startswith(f"/suites/{hunt}/")]
    assert firsts == [f"/suites/{hunt}/append-seed1"] * 2
    assert f"Only {plain_suite} reached: 0 situations" in page.text
    for nothing in (f"/situations/{hunt}/{hunt}", "/situations/none", f"/situations/{hunt}/none"):
        assert site.respond(nothing).status == 404


def test_situations_are_counted_anew_when_their_suite_changes_and_only_then(
    site: Router, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suites = [make_night(store, night, seeds=2) for night in range(2)]
    counted = list[str]()

    def count(of: Path, name: str) -> SuiteSituations:
        counted.append(name)
        return situations_of_suite(of, name)

    monkeypatch.setattr(store_browser, "situations_of_suite", count)
    show(site, "/situations")
    assert {*suites} <= {*counted}
    counted.clear()
    show(site, f"/situations/{suites[0]}")
    assert counted == []
    rows = tables.read(store, "coverage", suites[1]).table.drop_columns(["suite"])
    path = batch_path(store, "coverage", suites[1], "batch-00001")
    path.write_bytes(b"PAR1")
    page = show(site, "/situations")
    assert counted == [suites[1]]
    assert suites[1] not in [link.rpartition("/")[2] for link in page.links()]
    pq.write_table(rows.filter(pc.field("name") != "append-seed1").cast(SCHEMAS["coverage"]), path)
    assert "Situations: 4 in 4 runs" in show(site, f"/situations/{suites[1]}").text


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


# ---- strangers -------------------------------------------------------------------------------------------------------


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


def test_a_damaged_file_of_the_store_is_named_on_the_first_page(site: Router, store: Path) -> None:
    (path,) = (store / "tables" / "v1" / "verdicts" / "suite=nightly").glob("*.parquet")
    path.write_bytes(b"PAR1")
    text = show(site, "/").text
    assert "Left out of the store: 1 file" in text
    assert path.name in text
    assert site.respond("/suites/nightly/20990101T000000-append-seed8").status == 500


# ---- a node's log ----------------------------------------------------------------------------------------------------


def test_a_log_is_shown_from_its_end_and_can_be_walked_to_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_text("".join(f"line {number}\n" for number in range(1, 2 * LINES + 11)))
    last = excerpt(path, "", None)
    assert (last.lines[0][0], last.lines[-1]) == (LINES + 11, (2 * LINES + 10, f"line {2 * LINES + 10}"))
    assert last.earlier == 11
    before = excerpt(path, "", last.earlier)
    assert (before.lines[0][0], before.later) == (11, LINES + 11)
    assert excerpt(path, "", before.earlier).lines[0][0] == 1


def test_only_the_lines_that_hold_the_words_are_shown_with_their_own_numbers(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_bytes(b"one\nELECTED b1\n\xff\xfe\nelected b2 of " + b"x" * 100_000 + b"\nlast\n")
    passage = excerpt(path, "Elected", None)
    assert [number for number, _ in passage.lines] == [2, 4]
    assert passage.lines[1][1].endswith(" … (cut)")
    assert excerpt(path, "last", None).lines == ((5, "last"),)


def test_what_comes_before_in_a_searched_log_are_the_lines_before_that_hold_the_words(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_text("".join(f"{'hit' if number % 10 == 0 else 'line'} {number}\n" for number in range(1, 25 * LINES)))
    last = excerpt(path, "hit", None)
    before = excerpt(path, "hit", last.earlier)
    assert [before.lines[-1][0], last.lines[0][0]] == [last.lines[0][0] - 10, 15 * LINES]
    first = excerpt(path, "hit", before.earlier)
    assert (first.lines[0][0], first.earlier, first.later) == (10, None, 10 * LINES + 10)
