"""Routes of `faultline serve`: the page of each address.

address                                 page
--------------------------------------  ---------------------------------------------
/                                       the overview
/runs?find=WORDS                        runs, failures first
/runs/RUN                               a run directory: its report, and what is beside it
/runs/RUN/replicas                      its replica logs, side by side
/runs/RUN/logs/NODE?find=WORDS&from=N   a node's log
/runs/RUN/text/NODE                     the same as plain text
/suites/SUITE                           a suite
/suites/SUITE/RUN                       a run of it, from its directory if it was kept, else from the tables
                 /replicas, /logs …     as of a run directory
/trends[/NAME]                          the suites of many nights that share a name
/situations                             situations of the protocol that each suite reached over time
/situations/SUITE[/OTHER]               of one suite; beside another
/comparisons[/NAME]                     comparisons
/assets/NAME                            style and scripts

The steps of an address are names to look up (`results.pages.browsing.store_browser`), each decoded once and by itself,
so neither `..` nor an encoded slash has a meaning. The response is a page whatever a run's files hold: an unreadable
file is reported in a line, with status 500.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote_to_bytes

from markupsafe import Markup

from results.comparison import ComparedRun
from results.errors import StoreError
from results.pages import comparison as comparison_page
from results.pages import page, report
from results.pages import situations as situations_page
from results.pages import suite as suite_page
from results.pages import trend as trend_page
from results.pages.browsing import index_pages, node_logs, replica_diff
from results.pages.browsing.listing import search_terms
from results.pages.browsing.store_browser import StoreBrowser, node_log_names, node_log_path
from results.pages.report import Subject
from results.run.directory import RunDirectory

HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


_TitledPage = tuple[str, Markup]


@dataclass(frozen=True, slots=True)
class Response:
    """A response to a request."""

    status: int
    content_type: str
    body: bytes | Path
    """A path is of a file to be sent as it is."""
    keep: bool = False
    """True when the browser may cache it for a day."""


QUERY_LENGTH_MAX = 2_000
"""Characters of a query."""


class Router:
    """Answers requests for the pages of one store."""

    def __init__(self, browser: StoreBrowser) -> None:
        self._browser = browser

    def respond(self, target: str) -> Response:
        """The answer to a GET of `target`, as it stood in the request. Raises nothing."""
        path, _, query_text = target.partition("?")
        steps = tuple(os.fsdecode(unquote_to_bytes(step)) for step in path.split("/")[1:] if step)
        query = _query(query_text)
        if query is None:
            return Response(400, TEXT, b"This address cannot be read.\n")
        current = steps[0] if steps else ""
        try:
            answer = self._page(steps, query)
        except StoreError as error:
            return _html(500, "Cannot be shown", current, index_pages.trouble("This cannot be shown", str(error)))
        except Exception as error:  # a stranger's files may hold anything, and the others are still to be browsed
            reason = f"What is kept of it is damaged ({type(error).__name__})."
            return _html(500, "Cannot be shown", current, index_pages.trouble("This cannot be shown", reason))
        if answer is None:
            return _html(
                404, "Not found", current, index_pages.trouble("Not found", "There is nothing at this address.")
            )
        if isinstance(answer, Response):
            return answer
        title, body = answer
        return _html(200, title, current, body)

    def _page(self, steps: tuple[str, ...], query: dict[str, str]) -> Response | _TitledPage | None:
        match steps:
            case ():
                return self._overview()
            case ("runs",):
                return self._runs(query.get("find", ""))
            case ("runs", name, *rest):
                run = self._browser.directory(name)
                return None if run is None else _of_directory(run, ("runs", name), tuple(rest), query)
            case ("suites", suite):
                return self._suite(suite)
            case ("suites", suite, name, *rest):
                run = self._browser.suite_directory(suite, name)
                if run is not None:
                    return _of_directory(run, ("suites", suite, name), tuple(rest), query)
                return self._of_stored(suite, name, tuple(rest))
            case ("trends",):
                return "Trends", index_pages.trend_list(self._browser.trends())
            case ("trends", name):
                return self._trend(name)
            case ("situations",):
                suites, left_out = self._browser.all_situations()
                return "Situations", situations_page.index(suites, left_out)
            case ("situations", name):
                return self._situations(name)
            case ("situations", name, other):
                return self._situations_beside(name, other)
            case ("comparisons",):
                return "Comparisons", index_pages.comparison_list(self._browser.comparisons())
            case ("comparisons", name):
                comparison = self._browser.comparison(name)
                if comparison is None:
                    return None
                stored = self._browser.suite_names()
                return name, comparison_page.body(comparison, lambda run: _in_suite(run, stored))
            case ("assets", name) if name in page.ASSETS:
                return Response(200, _TYPES[Path(name).suffix], page.asset(name).encode(), keep=True)
        return None

    def _overview(self) -> _TitledPage:
        browser = self._browser
        return "Overview", index_pages.overview(
            str(browser.store),
            browser.suites(),
            browser.runs(),
            browser.comparisons(),
            browser.damaged(),
        )

    def _runs(self, find: str) -> _TitledPage:
        entries = self._browser.runs()
        terms = search_terms(find)
        return "Runs", index_pages.run_list([entry for entry in entries if entry.fits(terms)], find, len(entries))

    def _suite(self, suite: str) -> _TitledPage | None:
        stored = self._browser.suite(suite)
        if stored is None:
            return None
        situations = page.address("situations", suite)
        return suite, suite_page.body(stored, lambda run: page.address("suites", suite, run), situations)

    def _situations(self, name: str) -> _TitledPage | None:
        others, _ = self._browser.all_situations()
        suite = others.pop(name, None)
        return None if suite is None else (f"Situations of {name}", situations_page.body(name, suite, others))

    def _situations_beside(self, name: str, other_name: str) -> _TitledPage | None:
        suite, other = (self._browser.situations(it) for it in (name, other_name))
        if suite is None or other is None or name == other_name:
            return None
        return f"{name} beside {other_name}", situations_page.beside(name, suite, other_name, other)

    def _trend(self, name: str) -> _TitledPage | None:
        trend = self._browser.trend(name)
        if trend is None:
            return None
        return f"{name} over time", trend_page.body(trend, lambda suite: page.address("suites", suite))

    def _of_stored(self, suite: str, name: str, rest: tuple[str, ...]) -> _TitledPage | None:
        run = self._browser.stored_run(suite, name)
        if run is None or rest not in ((), ("replicas",)):
            return None
        whole = run.row["evidence"]
        subject = Subject(
            path=Path(run.name),
            status=run.status,
            spec_text=run.row["spec"],
            digest=run.row["digest"],
            gaps=run.gaps if whole else (*run.gaps, _NO_EVIDENCE),
            verdicts=run.verdicts,
            evidence=run.evidence,
            whole=whole,
            commands=_of_exported(f"{suite}/{name}", name) if whole else _FROM_SPEC,
        )
        steps = ("suites", suite, name)
        return _replicas(subject, steps) if rest else (name, report.body(subject, _beside(subject, steps, [])))


def _query(text: str) -> dict[str, str] | None:
    """The fields of a query, each given once; None when it has another field, a byte that is no UTF-8, a control
    character, a place in a log that is no number, or is longer than any that a page links to."""
    if len(text) > QUERY_LENGTH_MAX:
        return None
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=2)
    except ValueError:  # a UnicodeDecodeError is one, too
        return None
    query = dict(pairs)
    if len(query) != len(pairs) or not query.keys() <= {"find", "from"}:
        return None
    if not all(value.isprintable() for value in query.values()):
        return None
    place = query.get("from", "")
    if place and not (place.isascii() and place.isdecimal() and len(place) < 18):
        return None
    return query


def _in_suite(run: ComparedRun, stored: Collection[str]) -> str:
    """The page of a compared run, if its suite is one of those stored, or else of a run that its suite kept; other
    paths that a file may name are no addresses here."""
    of, _, called = run.stored.partition("/")
    if called and of in stored:
        return page.address("suites", of, called)
    match Path(run.kept).parts:
        case (*_, "suites", suite, "runs", name):
            return page.address("suites", suite, name)
    return ""


_NO_EVIDENCE = "only verdicts and figures of this run are stored, as for every valid run of a suite"
_FROM_SPEC = (("Save the complete spec, below, as spec.yaml, and run it again:", "faultline run spec.yaml"),)


def _of_exported(stored_as: str, name: str) -> tuple[tuple[str, str], ...]:
    place = shlex.quote(name)
    return (
        ("Take it out of the store:", f"faultline store export {shlex.quote(stored_as)} {place}"),
        ("Run it again and compare:", f"faultline replay {place}"),
        ("Check the recorded evidence again:", f"faultline check {place}"),
    )


def _of_directory(
    run: RunDirectory, steps: tuple[str, ...], rest: tuple[str, ...], query: dict[str, str]
) -> Response | _TitledPage | None:
    match rest:
        case ():
            subject = report.subject_of(run)
            return run.name, report.body(subject, _beside(subject, steps, node_log_names(run)))
        case ("replicas",):
            return _replicas(report.subject_of(run), steps)
        case ("logs" | "text" as kind, node):
            path = node_log_path(run, node)
            if path is None or kind == "text":
                return None if path is None else Response(200, TEXT, path)
            words, begin = query.get("find", ""), query.get("from", "")
            excerpt = node_logs.excerpt(path, words, int(begin) if begin else None)
            here, raw = (page.address(*steps, part, node) for part in ("logs", "text"))
            lines = {"node": node, "excerpt": excerpt, "words": words, "here": here, "raw": raw}
            return f"{node} · {run.name}", page.render("node_log.html", **lines, **_trail(steps))
    return None


def _beside(subject: Subject, steps: tuple[str, ...], nodes: list[str]) -> Markup:
    """The links to a run's replica logs and node logs."""
    ends = subject.evidence.replica_ends
    replicas = []
    for topic, partition in replica_diff.partitions(ends):
        aligned = replica_diff.align(subject.evidence.replicas, ends, topic, partition)
        name = f"{topic}-{partition}"
        replicas.append(
            {
                "name": name,
                "address": f"{page.address(*steps, 'replicas')}#{name}",
                "replicas": len(aligned.ends),
                "differing": len(aligned.differing),
            }
        )
    logs = [(node, page.address(*steps, "logs", node)) for node in nodes]
    return page.render("run_logs.html", replicas=replicas, nodes=logs)


def _replicas(subject: Subject, steps: tuple[str, ...]) -> _TitledPage:
    evidence = subject.evidence
    sections = []
    for topic, partition in replica_diff.partitions(evidence.replica_ends):
        name = f"{topic}-{partition}"
        aligned = replica_diff.align(evidence.replicas, evidence.replica_ends, topic, partition)
        sections.append((-len(aligned.differing), name, replica_diff.section(aligned, name)))
    parts = [section for _, _, section in sorted(sections)]
    return f"Replica logs · {steps[-1]}", page.render("replicas.html", sections=parts, **_trail(steps))


def _trail(steps: tuple[str, ...]) -> dict[str, str]:
    """The name and the address of the run that a page belongs to."""
    return {"run": steps[-1], "run_address": page.address(*steps)}


def _html(status: int, title: str, current: str, body: Markup) -> Response:
    text = page.served(title, current, body)
    return Response(status, HTML, text.encode("utf-8", errors="replace"))
