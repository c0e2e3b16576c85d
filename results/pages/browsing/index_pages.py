"""The index pages: overview, runs, trends, comparisons. Failures come first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import quote

from results.number_format import counted, numeral
from results.pages import page
from results.pages.browsing.listing import ORDER, RunEntry, SuiteEntry
from results.store.stored_runs import tally
from results.store.tables import DamagedFile

RUNS_MAX = 500
FIRST_MAX = 12
"""Runs shown on the first page."""


def address(*parts: str) -> str:
    """The address of a page: each part is one step of the path, whatever it holds."""
    return "/" + "/".join(quote(os.fsencode(part), safe="") for part in parts)


def of_run(entry: RunEntry) -> str:
    """The address of a run's page."""
    return address("runs", entry.run) if entry.has_directory else address("suites", entry.suite, entry.run)


def navigation(current: str) -> str:
    """The links on top of every page; `current` is the first step of the page's own address."""
    links = (("", "Overview"), ("runs", "Runs"), ("trends", "Trends"), ("comparisons", "Comparisons"))
    items = "".join(
        f'<a href="/{path}"{" aria-current=page" if path == current else ""}>{escape(text)}</a>' for path, text in links
    )
    return f'<nav aria-label="Main"><a class="brand" href="/">Faultline</a>{items}</nav>'


def overview(
    store: str,
    suites: Sequence[SuiteEntry],
    runs: Sequence[RunEntry],
    comparisons: Sequence[str],
    damaged: Sequence[DamagedFile],
) -> str:
    """The first page."""
    failing = [entry for entry in runs if entry.validity != "valid"]
    newest = sorted(runs, key=lambda entry: (entry.started, entry.run), reverse=True)
    worst = runs[0].validity if runs else ""
    words = f"{counted(len(runs), 'run')} in {store}. " if runs else f"Nothing is in {store} yet. "
    words += f"{tally(entry.validity for entry in runs)}." if runs else ""
    kind = worst if worst in ("invalid", "unknown", "valid") else ""
    return "\n".join(
        (
            f'<header class="{kind}"><h1>Runs and suites</h1><p>{escape(words)}</p></header>',
            _left_out(damaged),
            _runs_section("Failures first", failing, "Every run is valid." if runs else "", more="/runs"),
            _suites(suites),
            _runs_section("Newest runs", newest, "faultline run makes one.", more="/runs"),
            _comparisons(comparisons),
        )
    )


def run_list(entries: Sequence[RunEntry], find: str, number: int) -> str:
    """The runs that fit what was looked for; `number` is how many there are in all."""
    search = (
        '<form class="find" role="search" method="get" action="/runs">'
        f'<input type="search" name="find" value="{escape(find)}" aria-label="Find runs" '
        'placeholder="Find runs: a name, a verdict, seed 7, a finding …"><button>Find</button></form>'
    )
    fitting = f"{counted(len(entries), 'run')} of {numeral(number)} fit." if find else ""
    rest = f"The first {RUNS_MAX} are shown; look for something to narrow them down." if len(entries) > RUNS_MAX else ""
    return page.section(
        "Runs",
        search,
        page.note(" ".join((fitting, rest)).strip()),
        run_table(entries[:RUNS_MAX]) if entries else page.note("No run fits." if find else "There is no run yet."),
    )


def run_table(entries: Iterable[RunEntry]) -> str:
    """Runs in the order given."""
    rows = (
        f'<tr class="{entry.validity.replace(" ", "-")}"><td>{page.pill(entry.validity)}</td>'
        f'<td class="run">{page.link(entry.run, of_run(entry))}<span class="dim">{escape(entry.told)}</span></td>'
        f'<td>{escape(entry.spec)}</td><td data-head="seed">{escape(entry.seed)}</td>'
        f"<td>{page.link(entry.suite, address('suites', entry.suite)) if entry.suite else ''}</td>"
        f'<td class="dim">{escape(moment(entry.started))}</td></tr>'
        for entry in entries
    )
    return page.table(("verdict", "run", "spec", "seed", "suite", "started"), rows, "list")


def comparison_list(names: Sequence[str]) -> str:
    """The page of comparisons."""
    return _comparisons(names) or page.section("Comparisons", page.note("faultline compare makes one."))


def trend_list(names: Sequence[str]) -> str:
    """The page of trends."""
    items = "".join(f"<li>{page.link(name, address('trends', name))}</li>" for name in names)
    return page.section("Trends", f"<ul>{items}</ul>" if items else page.note("faultline suite makes suites."))


def trouble(title: str, reason: str) -> str:
    """What is shown in place of a page that cannot be."""
    return f"<header><h1>{escape(title)}</h1><p>{escape(reason)}</p><p>{page.link('To the overview', '/')}</p></header>"


def moment(iso: str) -> str:
    """`2026-11-21 00:15:00`, from ISO 8601."""
    return iso.replace("T", " ").replace("+00:00", "")


def _runs_section(title: str, entries: Sequence[RunEntry], otherwise: str, more: str) -> str:
    if not entries:
        return page.section(title, page.note(otherwise)) if otherwise else ""
    rest = len(entries) - FIRST_MAX
    link = f"<p>{page.link(f'All runs ({rest} more here)', more)}</p>" if rest > 0 else ""
    return page.section(title, run_table(entries[:FIRST_MAX]), link)


def _suites(suites: Sequence[SuiteEntry]) -> str:
    rows = (
        f"<tr><td>{page.pill(min(suite.validities, key=ORDER.__getitem__))}</td>"
        f'<td class="run">{page.link(suite.name, address("suites", suite.name))}</td>'
        f'<td data-head="runs">{len(suite.validities)}</td><td>{escape(tally(suite.validities))}</td>'
        f'<td>{escape(", ".join(suite.versions))}</td><td class="dim">{escape(moment(suite.started))}</td></tr>'
        for suite in suites
    )
    heads = ("verdict", "suite", "runs", "verdicts", "version", "started")
    return page.section("Suites", page.table(heads, rows, "list")) if suites else ""


def _comparisons(names: Sequence[str]) -> str:
    items = "".join(f"<li>{page.link(name, address('comparisons', name))}</li>" for name in names)
    return page.section("Comparisons", f"<ul>{items}</ul>") if names else ""


def _left_out(damaged: Sequence[DamagedFile]) -> str:
    if not damaged:
        return ""
    told = page.bullets(f"{file.path}: {file.reason}" for file in damaged[:FIRST_MAX])
    rest = len(damaged) - FIRST_MAX
    return page.section(
        f"Left out of the store: {counted(len(damaged), 'file')}",
        told,
        page.note(f"And {rest} more; faultline store verify names them all." if rest > 0 else ""),
    )
