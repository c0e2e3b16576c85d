"""`faultline report` and `faultline trend`: a stored suite, or all nights of one, as a page in a file.

The page of a suite stands beside what the suite kept, `STORE/suites/<suite>/report.html`, that of a trend in
`STORE/trends/<name>.html`, unless another file is named. Runs link to the reports of the directories that their suite
kept; of valid runs it kept none, so they have no link. A trend links to the suites whose pages were written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from results import measures
from results.atomic_files import put_text
from results.errors import StoreError
from results.measures import FAILURES, Measure
from results.pages import suite as suite_page
from results.pages import trend as trend_page
from results.store.tables import DamagedFile
from results.suites import newest, read_suite

if TYPE_CHECKING:
    from rich.table import Table

    from results.trend import Night, Trend


def suite_report(store: Path, named: str, out: Path | None) -> tuple[Path, Sequence[DamagedFile]]:
    """Write the page; its path, and the damaged files that it had to leave out.

    BadName when there is no such suite, StoreError when the file cannot be written."""
    name = newest(store, named)
    suite = read_suite(store, name)
    if suite is None:
        raise StoreError(f"{name!r}: every file of it in the table runs is damaged; faultline store verify names them")
    home = store / "suites" / name
    target = out or home / "report.html"
    kept = {path.parent.name for path in (home / "runs").glob("*/report.html")}
    way = _way(home / "runs", target)
    text = suite_page.render(suite, lambda run: f"{way}/{quote(run, safe='')}/report.html" if run in kept else "")
    put_text(target, text, parents=out is None)
    return target, suite.damaged


def trend_report(store: Path, trend: Trend, out: Path | None) -> Path:
    """Write the page and return its path. StoreError when it cannot be written."""
    target = out or store / "trends" / f"{trend.name}.html"
    written = {path.parent.name for path in (store / "suites").glob("*/report.html")}
    way = _way(store / "suites", target)
    text = trend_page.render(trend, lambda suite: f"{way}/{quote(suite)}/report.html" if suite in written else "")
    put_text(target, text, parents=out is None)
    return target


def shown_trend(trend: Trend) -> Iterator[Table | str]:
    """For the terminal: a table a cell, the newest night last, then what changed."""
    from rich.table import Table

    for cell, nights in trend.cells:
        table = Table(
            box=None, pad_edge=False, header_style="dim", title=cell, title_justify="left", title_style="bold"
        )
        for heading in ("suite", "commit", "runs", "not valid", *(it.heading for it in measures.per_run())):
            table.add_column(heading, no_wrap=heading == "suite")
        for night in nights:
            table.add_row(
                night.suite.name,
                trend_page.source(night),
                str(len(night.runs)),
                *(_cell(trend, cell, night, measure) for measure in measures.MEASURES),
            )
        yield table
    for flag in trend.flags:
        yield f"{'worse' if flag.worse else 'better'} since {flag.since}: {flag.sentence()}"
    yield from trend.missed_mutants
    yield from trend.not_compared
    yield trend.sentence()


def _cell(trend: Trend, cell: str, night: Night, measure: Measure) -> str:
    figure = night.figures.get(measure.name)
    if figure is None:
        return ""
    bad = sum(not run.good for run in night.runs)
    marks = [flag for flag in trend.flags_at(cell, night.suite.name) if flag.measure is measure]
    text = str(bad) if measure is FAILURES else measure.written(figure.value)
    return " ".join((text, *map(trend_page.mark_of, marks)))


def _way(there: Path, target: Path) -> str:
    """The relative link from the file `target` to the directory `there`."""
    return quote(os.path.relpath(there, target.parent))
