"""`faultline serve` as people meet it: in a browser, with a keyboard alone, on a narrow screen.

The system's own Chromium, headless. Without one the tests are skipped, unless FAULTLINE_REQUIRE_BROWSER=1: then they
fail. FAULTLINE_SCREENSHOTS=DIR keeps a picture of every page in each width.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from checkers.verdict import Finding, Validity, Verdict
from harness.serve import Server
from results import tables
from results.browsing.catalogue import Catalogue
from results.browsing.lists import address
from results.browsing.site import Site
from results.rundir import RunDirectory
from tests.results.conftest import INVALID, VALID, make_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<img src=x onerror=document.title='owned'>"
SCRIPT = "</script><script>document.title='owned'</script>"
WIDE, NARROW = 1180, 360
Open = Callable[..., Page]


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
    tables.add_run(store, "nightly", bad)
    tables.add_run(store, "nightly", RunDirectory.open(good))
    return store


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Server]:
    with Server(Site(Catalogue(store, store / "none")), 0) as server:
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


@pytest.fixture
def visit(server: Server, browser: Browser) -> Iterator[Open]:
    """Opens a page of the server; in the end nothing may have gone wrong, or been asked of anybody else."""
    wrong: list[str] = []
    contexts = []

    def tell(what: str) -> None:
        wrong.append(what)

    def visit(target: str, width: int = WIDE) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: tell(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: tell(str(error)))
        page.on("dialog", lambda dialog: tell(f"dialog {dialog.message}"))
        page.on("request", lambda it: None if it.url.startswith((server.url, "data:")) else tell(f"asked {it.url}"))
        page.goto(server.url + target.removeprefix("/"))
        page.wait_for_selector("html[data-drawn=true]", state="attached")
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
        f"/suites/nightly/{bad}",
        address("runs", hostile),
        address("runs", hostile, "logs", "b1"),
        "/comparisons",
    )


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_no_page_says_anything_on_the_console_or_is_wider_than_the_screen(visit: Open, store: Path, width: int) -> None:
    kept = os.environ.get("FAULTLINE_SCREENSHOTS")
    for number, target in enumerate(pages(store)):
        page = visit(target, width)
        beyond = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert beyond == 0, target
        assert page.evaluate("[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('svg'))")
        if kept:
            page.screenshot(path=Path(kept) / f"{number:02}-{width}.png", full_page=True)


def test_nothing_a_run_is_called_or_holds_runs_as_a_script(visit: Open, store: Path) -> None:
    for target in pages(store):
        page = visit(target)
        assert page.title() != "owned", target
        assert page.locator("main img").count() == 0
    page = visit(address("runs", HOSTILE.replace("/", "")))
    assert page.get_by_text(SCRIPT).count() >= 2


def test_a_script_that_gets_into_a_page_is_not_run_by_the_browser(server: Server, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    refused: list[str] = []
    page.on("console", lambda said: refused.append(said.text))
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
    assert page.evaluate("document.activeElement.id") == "content"
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
    assert page.locator("details[open]").get_by_text("min.insync.replicas: 2").is_visible()


def test_runs_are_found_by_typing(visit: Open, store: Path) -> None:
    page = visit("/runs")
    page.get_by_label("Find runs").press_sequentially("lost-append")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs?find=lost-append")
    assert page.locator("tbody tr").count() == 1
    assert page.get_by_label("Find runs").input_value() == "lost-append"
