"""`faultline serve` as people meet it: in a browser, with a keyboard alone, on a narrow screen.

The system's own Chromium, headless. Without one the tests are skipped, unless FAULTLINE_REQUIRE_BROWSER=1: then they
fail. FAULTLINE_SCREENSHOTS=DIR keeps a picture of every page in each width.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from checkers.verdict import Finding, Validity, Verdict
from harness.cli.serve import StoreServer
from results.comparison import ComparedRun, compare
from results.pages import suite as suite_page
from results.pages.browsing.routes import Router
from results.pages.browsing.store_browser import StoreBrowser
from results.pages.page import address
from results.run.directory import RunDirectory
from results.store import tables
from results.store.schema import batch_path
from results.suites import SuiteResult, SuiteRun
from tests.results.conftest import INVALID, VALID, make_run
from tests.results.trend.nights import make_night, plain, suite_name

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<img src=x onerror=document.title='owned'>"
SCRIPT = "</script><script>document.title='owned'</script>"
LONG = "L= FI--i=sc FI-u-<sb Fo-u+<sb LI--p>rc foxuo<gb"
"""A situation."""
WIDE, NARROW = 1180, 360
PATIENCE_MS = 120_000
"""On a busy machine a page takes what it takes."""
expect.set_options(timeout=PATIENCE_MS)
Open = Callable[..., Page]


def lossy(random: np.random.Generator, cell: str, night: int) -> Mapping[str, float]:
    """Some runs of one cell lose something."""
    figures = plain(random, cell, night)
    return {**figures, "lost": 3.0 if cell == "append" and figures["acknowledged"] > 575 else 0.0}


def of_cell(cell: str, seed: int) -> ComparedRun:
    """A run of a comparison, whose page is one of the first night's."""
    figures = plain(np.random.default_rng(seed), cell, 0) | {"planned": 600.0, "lost": float(cell != "safe") * seed}
    return ComparedRun(
        cell, seed, "invalid" if figures["lost"] else "valid", figures, "", f"{suite_name(0)}/append-seed{seed}"
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that kept its promises, one that did not, one that calls itself and all it holds by hostile names."""
    store = tmp_path_factory.mktemp("served")
    bad = make_run(store)
    bad.seal()
    good, hostile = store / "20990101T000000-append-seed8", store / HOSTILE.replace("/", "")
    shutil.copytree(bad.path, good)
    shutil.copytree(bad.path, hostile)
    bad.write_verdict(INVALID)
    RunDirectory.open(good).write_verdict(VALID)
    stranger = RunDirectory.open(hostile)
    stranger.write_verdict([Verdict(SCRIPT, Validity.UNKNOWN, (Finding(SCRIPT, (HOSTILE, SCRIPT), HOSTILE, 0),))])
    stranger.write_spec(f"name: {SCRIPT}\n")
    for run in (bad, stranger):
        (run.nodes_path / "b1" / "node.log").write_text(f"0.1 elected\n0.2 {SCRIPT}{'x' * 3000}\n")
    for night in range(3):
        make_night(store, night, lossy, seeds=20, situations={f"append-seed{night}": [LONG, HOSTILE, SCRIPT]})
    batch_path(store, "verdicts", suite_name(2), "a-file-of-a-stranger-with-a-long-name").write_bytes(b"PAR1")
    comparison = compare("acks", "safe", [of_cell(cell, seed) for cell in ("safe", HOSTILE) for seed in range(20)])
    (store / "comparisons").mkdir()
    (store / "comparisons" / "acks.json").write_text(json.dumps(comparison.to_json()))
    tables.add_run(store, "nightly", bad)
    tables.add_run(store, "nightly", RunDirectory.open(good))
    return store


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[StoreServer]:
    with StoreServer(Router(StoreBrowser(store, store / "comparisons")), 0) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("FAULTLINE_REQUIRE_BROWSER") == "1":
            pytest.fail("no Chromium is installed, and FAULTLINE_REQUIRE_BROWSER=1 asks for one")
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        # As root Chromium has no sandbox of its own to offer, and would not start.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=os.geteuid() != 0)
        yield browser
        browser.close()


def go(page: Page, server: StoreServer, target: str) -> None:
    page.goto(server.url + target.removeprefix("/"))
    page.wait_for_selector("html[data-drawn=true]", state="attached")


@pytest.fixture
def visit(server: StoreServer, browser: Browser) -> Iterator[Open]:
    """Opens a page of the server; in the end nothing may have gone wrong, or been asked of anybody else."""
    wrong: list[str] = []
    contexts = []

    def tell(what: str) -> None:
        wrong.append(what)

    def visit(target: str, width: int = WIDE) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda printed: tell(printed.text) if printed.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: tell(str(error)))
        page.on("dialog", lambda dialog: tell(f"dialog {dialog.message}"))
        page.on("request", lambda it: None if it.url.startswith((server.url, "data:")) else tell(f"asked {it.url}"))
        go(page, server, target)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []


def pages(store: Path) -> Sequence[str]:
    bad = next(path.name for path in store.glob("2*seed7") if not path.is_symlink())
    hostile = HOSTILE.replace("/", "")
    return (
        "/",
        "/runs",
        "/runs?find=nothing-at-all",
        f"/runs/{bad}",
        f"/runs/{bad}/replicas",
        f"/runs/{bad}/logs/b1",
        "/suites/nightly",
        f"/suites/{suite_name(0)}",
        f"/suites/{suite_name(0)}/append-seed0",
        "/trends",
        "/trends/nightly",
        "/situations",
        f"/situations/{suite_name(0)}",
        f"/situations/{suite_name(0)}/{suite_name(1)}",
        f"/suites/nightly/{bad}",
        address("runs", hostile),
        address("runs", hostile, "logs", "b1"),
        "/comparisons",
        "/comparisons/acks",
    )


def test_every_page_fits_both_screens_says_nothing_on_the_console_and_runs_nothing_that_it_shows(
    visit: Open, server: StoreServer, store: Path
) -> None:
    """Each page is opened on the narrow screen, which then becomes wide. The store is full of hostile names."""
    kept = os.environ.get("FAULTLINE_SCREENSHOTS")
    page = visit("/", NARROW)
    for number, target in enumerate(pages(store)):
        page.set_viewport_size({"width": NARROW, "height": 800})
        go(page, server, target)
        for width in (NARROW, WIDE):
            page.set_viewport_size({"width": width, "height": 800})
            beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert beyond == 0, (target, width)
            assert page.evaluate("[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('svg'))")
            if kept:
                page.screenshot(path=Path(kept) / f"{number:02}-{width}.png", full_page=True)
        assert page.title() != "owned", target
        assert page.locator("main img").count() == 0
        if target == address("runs", HOSTILE.replace("/", "")):
            assert page.get_by_text(SCRIPT).count() >= 2


def test_a_script_that_gets_into_a_page_is_not_run_by_the_browser(server: StoreServer, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(server.url)
    refused: list[str] = []
    page.on("console", lambda printed: refused.append(printed.text))
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'document.title=1'}))"
    )
    assert page.title().startswith("Overview")
    assert any("Content Security Policy" in text for text in refused)
    context.close()


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent.trim()"))


def tab_to(page: Page, text: str) -> None:
    """Press Tab until what bears this text has the focus, which it must show."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if focused(page) == text:
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"{text}: the focus does not show"
            return
    raise AssertionError(f"{text!r} is not to be reached by the keyboard")


def test_from_the_first_page_to_a_diverged_log_and_back_by_keyboard_alone(visit: Open, store: Path) -> None:
    bad = next(path.name for path in store.glob("2*seed7") if not path.is_symlink())
    page = visit("/")
    page.keyboard.press("Tab")
    assert focused(page) == "To the content"
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    tab_to(page, bad)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{bad}")
    tab_to(page, "append-0")
    page.keyboard.press("Enter")
    page.wait_for_url("**/replicas#append-0")
    tab_to(page, f"← {bad}")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{bad}")
    tab_to(page, "The complete spec")
    page.keyboard.press("Enter")
    expect(page.locator("details[open]").get_by_text("min.insync.replicas: 2")).to_be_visible()


def test_runs_are_found_by_typing(visit: Open, store: Path) -> None:
    page = visit("/runs")
    page.get_by_label("Find runs").press_sequentially("acknowledged-loss")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs?find=acknowledged-loss")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.get_by_label("Find runs").input_value() == "acknowledged-loss"


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_picture_of_a_suite_names_every_cell_also_one_of_a_long_name(
    tmp_path: Path, browser: Browser, width: int
) -> None:
    cells = ["append", "groups", "without broker_epoch_checked_in_alter_partition", "without vote_once_per_epoch"]
    figures = plain(np.random.default_rng(0), "append", 0) | {"planned": 600.0}
    runs = tuple(SuiteRun(f"{cell}-seed0", cell, 0, "valid", (), (), figures) for cell in cells)
    path = tmp_path / "suite.html"
    path.write_text(suite_page.render(SuiteResult("made", "", "", "", runs, len(runs)), lambda run: ""))
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn=true]", state="attached", timeout=PATIENCE_MS)
    for plot in page.locator(".plot").all():
        edges = plot.bounding_box()
        for cell in cells:
            name = plot.get_by_text(cell, exact=True).bounding_box()
            assert edges is not None
            assert name is not None
            assert edges["x"] <= name["x"]
            assert name["x"] + name["width"] <= edges["x"] + edges["width"]
    page.close()


def test_a_click_on_the_bar_of_a_fault_stays_on_the_page(visit: Open, store: Path) -> None:
    page = visit(f"/runs/{next(path.name for path in store.glob('2*seed7') if not path.is_symlink())}")
    bar = page.locator(".plot .barlayer .point").first
    bar.scroll_into_view_if_needed()
    edges = bar.bounding_box()
    assert edges is not None
    page.mouse.move(edges["x"] + edges["width"] / 2, edges["y"] + edges["height"] / 2)
    expect(page.locator(".hoverlayer").first).to_contain_text("b1")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_timeout(500)
    assert "seed7" in page.url


def test_a_number_of_a_suite_leads_to_the_runs_behind_it_and_from_there_to_a_run(visit: Open) -> None:
    page = visit(f"/suites/{suite_name(0)}")
    rows = page.locator("#runs tbody tr:visible")
    everything = rows.count()
    number = page.locator("table.cells tbody tr").first.get_by_role("link").nth(1)
    bad = int(number.inner_text())
    number.click()
    expect(page.locator("#runs .narrowed")).to_contain_text(f"{bad} of {everything} runs: append, not valid.")
    expect(rows).to_have_count(bad)
    assert all("invalid" in text for text in rows.all_inner_texts())
    page.get_by_role("link", name="Show all").click()
    expect(rows).to_have_count(everything)
    page.goto(f"{page.url.partition('#')[0]}#runs?cell=groups&by=available&first=low")
    shares = page.locator("#runs tr:visible [data-by=available]")
    expect(shares).to_have_count(20)
    output = [float(text.split()[0]) for text in shares.all_inner_texts()]
    assert output == sorted(output)
    page.locator("#runs tbody tr:visible a").first.click()
    page.wait_for_url("**/groups-seed*")


def test_a_number_of_a_comparison_leads_to_the_runs_behind_it_by_keyboard_alone(visit: Open) -> None:
    page = visit("/comparisons/acks")
    rows = page.locator("#runs tbody tr:visible")
    expect(rows).to_have_count(40)
    tab_to(page, "19")
    page.keyboard.press("Enter")
    expect(page.locator("#runs .narrowed")).to_contain_text("19 of 40 runs:")
    expect(rows).to_have_count(19)
    assert all("invalid" in text for text in rows.all_inner_texts())
    tab_to(page, "seed 19")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/suites/{suite_name(0)}/append-seed19")


def test_a_point_of_a_picture_opens_what_it_stands_for_and_nothing_else(visit: Open) -> None:
    page = visit("/trends/nightly")
    click = "address => document.querySelector('.plot').emit('plotly_click', {points: [{customdata: address}]})"
    for foreign in ("javascript:alert(1)", "//evil.example/", "https://evil.example/", ""):
        page.evaluate(click, foreign)
    assert page.url.endswith("/trends/nightly")
    page.evaluate(click, page.evaluate("document.querySelector('.plot').data[0].customdata[0]"))
    page.wait_for_url(f"**/suites/{suite_name(0)}")
