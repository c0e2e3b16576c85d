"""The pages of situations: of all suites, of one, and of one beside another.

Each draws how many situations of the protocol the runs had reached, in the order in which they were made, against runs
and against processor time. The page of one suite beside another, such as a hunt beside random runs of the same worlds,
lists what only one of the two reached: in words, with the first run that did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from markupsafe import Markup

from results.figures.canvas import Figure
from results.figures.situations import over_time
from results.number_format import counted, numeral
from results.pages import page
from results.situations.situation import ProtocolSituation
from results.suites import SuiteSituations
from results.thoroughness import FirstVisit, ReachedSituations

LISTED_MAX = 200
"""Situations in a list."""
LATEST_MAX = 20
"""Situations in the list of those that were reached last."""
DRAWN_MAX = 8
"""Suites in a figure."""


def index(suites: Mapping[str, SuiteSituations], left_out: Collection[str]) -> Markup:
    """All suites that have situations, the newest first."""
    drawn = {name: suite.reached for name, suite in list(suites.items())[:DRAWN_MAX]}
    return page.render(
        "situations_index.html",
        suites=suites,
        left_out=left_out,
        pictures=_pictures(drawn),
        not_drawn=len(suites) - len(drawn),
        time=_time,
    )


def body(name: str, suite: SuiteSituations, others: Mapping[str, SuiteSituations]) -> Markup:
    """One suite, with what it has in common with each of the others."""
    latest = sorted(suite.reached.visits.items(), key=lambda item: (-item[1].at, item[0]))[:LATEST_MAX]
    return page.render(
        "situations.html",
        name=name,
        suite=suite,
        sentence=_sentence(suite),
        left_out=[file.line for file in suite.damaged],
        time=_time,
        pictures=_pictures({name: suite.reached}),
        latest=_rows(suite.reached, dict(latest), name),
        others=[
            {
                "name": other,
                "worlds": _worlds(suite, it),
                "seen": len(it.codes),
                "both": len(suite.codes & it.codes),
                "alone": len(suite.codes - it.codes),
                "missing": len(it.codes - suite.codes),
            }
            for other, it in others.items()
        ],
    )


def beside(name: str, suite: SuiteSituations, other_name: str, other: SuiteSituations) -> Markup:
    """What only one of two suites reached."""
    spent_s = min(suite.reached.cpu_s, other.reached.cpu_s)
    return page.render(
        "situations_beside.html",
        name=name,
        other=other_name,
        left_out=[file.line for file in (*suite.damaged, *other.damaged)],
        facts={
            "in both": len(suite.codes & other.codes),
            f"only in {name}": len(suite.codes - other.codes),
            f"only in {other_name}": len(other.codes - suite.codes),
            "worlds": _worlds(suite, other),
        },
        even=f"Within {_time(spent_s)} of processor time each, {name} reached "
        f"{counted(suite.reached.within(spent_s), 'situation')} and {other_name} "
        f"{numeral(other.reached.within(spent_s))}."
        if spent_s
        else "",
        notes=[
            f"{it}, {_time(found.reached.cpu_s)} of processor time. {_sentence(found)}"
            for it, found in ((name, suite), (other_name, other))
        ],
        pictures=_pictures({name: suite.reached, other_name: other.reached}),
        lists=[_alone(name, suite, other_name, other), _alone(other_name, other, name, suite)],
    )


def _alone(name: str, suite: SuiteSituations, other_name: str, other: SuiteSituations) -> dict[str, Any]:
    alone = suite.reached.missing_in(other.reached)
    shown = dict(list(alone.items())[:LISTED_MAX])
    return {
        "title": f"Only {name} reached: {counted(len(alone), 'situation')}",
        "none": f"{other_name} reached all situations of {name}.",
        "rows": _rows(suite.reached, shown, name),
        "left_out": len(alone) - len(shown),
    }


def _rows(reached: ReachedSituations, visits: Mapping[str, FirstVisit], name: str) -> list[dict[str, Any]]:
    return [
        {
            "code": code,
            "words": _words(code),
            "run": reached.runs[visit.at].run,
            "address": _run_address(name, reached.runs[visit.at].run),
            "number": visit.at + 1,
            "runs": visit.runs,
        }
        for code, visit in visits.items()
    ]


def _pictures(suites: Mapping[str, ReachedSituations]) -> list[tuple[str, Figure]]:
    pictures = [
        ("Situations over runs, in the order in which they were made.", over_time(suites, "runs", _run_address))
    ]
    if any(reached.cpu_s for reached in suites.values()):
        pictures.append(("The same over the processor time of the runs.", over_time(suites, "cpu", _run_address)))
    return pictures


def _run_address(suite: str, run: str) -> str:
    return page.address("suites", suite, run)


def _sentence(suite: SuiteSituations) -> str:
    """How thorough the suite was."""
    text = suite.thoroughness.sentence() if suite.thoroughness else "situations: none"
    return f"{text[0].upper()}{text[1:]}."


def _worlds(suite: SuiteSituations, other: SuiteSituations) -> str:
    """Whether the runs of both draw their worlds from the same values."""
    if not suite.worlds and not other.worlds:
        return "fixed"
    return "the same" if suite.worlds == other.worlds else "others"


def _words(code: str) -> str:
    """The situation in a sentence; empty for what a stranger's file calls a situation."""
    try:
        return ProtocolSituation(code).sentence
    except (IndexError, KeyError, ValueError):
        return ""


def _time(seconds: float) -> str:
    return f"{numeral(round(seconds))} s" if seconds >= 10 else f"{seconds:.1f} s"
