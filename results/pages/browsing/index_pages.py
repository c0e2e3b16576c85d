"""The index pages: overview, runs, trends, comparisons. Failures come first."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from results.number_format import counted, numeral
from results.pages import page
from results.pages.browsing.listing import RunEntry, SuiteEntry
from results.pages.page import address
from results.store.tables import DamagedFile
from results.suites import FAILED, MUTANT_FOUND, MUTANT_MISSED, tally

RUNS_MAX = 500
FIRST_MAX = 12
"""Runs on the overview."""


def address_of_run(entry: RunEntry) -> str:
    """The address of a run's page."""
    return address("runs", entry.run) if entry.has_directory else address("suites", entry.suite, entry.run)


def overview(
    store: str,
    suites: Sequence[SuiteEntry],
    runs: Sequence[RunEntry],
    comparisons: Sequence[str],
    damaged: Sequence[DamagedFile],
) -> Markup:
    """The first page."""
    failing = [entry for entry in runs if entry.failed]
    worst = failing[0].validity if failing else "valid" if runs else ""
    counts = tally(entry.validity for entry in runs)
    return page.render(
        "overview.html",
        colour="invalid" if worst == FAILED else worst if worst in ("invalid", "unknown", "valid") else "",
        sentence=f"{counted(len(runs), 'run')} in {store}. {counts}." if runs else f"Nothing is in {store} yet.",
        damaged=[f"{file.path}: {file.reason}" for file in damaged],
        failing=failing,
        mutants=any(entry.validity in (MUTANT_FOUND, MUTANT_MISSED) for entry in runs),
        newest=sorted(runs, key=lambda entry: (entry.started, entry.run), reverse=True),
        suites=suites,
        comparisons=comparisons,
        first_max=FIRST_MAX,
        address_of_run=address_of_run,
        tally=tally,
    )


def run_list(entries: Sequence[RunEntry], words: str, number: int) -> Markup:
    """The runs that contain `words`; `number` is the number of all runs."""
    matches = f"{counted(len(entries), 'run')} of {numeral(number)} {'matches' if len(entries) == 1 else 'match'}."
    rest = f"The first {RUNS_MAX} are shown; search to narrow them down." if len(entries) > RUNS_MAX else ""
    return page.render(
        "runs.html",
        words=words,
        note=" ".join((matches if words else "", rest)).strip(),
        entries=entries[:RUNS_MAX],
        address_of_run=address_of_run,
    )


def comparison_list(names: Sequence[str]) -> Markup:
    """The page of comparisons."""
    otherwise = "faultline compare makes one."
    return page.render("names.html", title="Comparisons", names=names, step="comparisons", otherwise=otherwise)


def trend_list(names: Sequence[str]) -> Markup:
    """The page of trends."""
    otherwise = "faultline suite makes suites."
    return page.render("names.html", title="Trends", names=names, step="trends", otherwise=otherwise)


def trouble(title: str, reason: str) -> Markup:
    """The page shown instead of one that cannot be shown."""
    return page.render("trouble.html", title=title, reason=reason)
