"""The tables of docs/mutants.md, from the record of the campaign."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Final

from harness.search.mutants.mutant import GUARDED_BY, Method, all_mutants
from harness.search.mutants.record import CampaignRecord
from harness.search.mutants.summary import BoxFigures, MutantFigures, figures, find_words, promise
from harness.suites.boxes import BOXES
from results.statistics import Interval

RECORD: Final = Path(__file__).parents[2] / "docs" / "mutants.json"
FOUND: Final = ("mutant", "kind", *(f"`{method}`" for method in Method), "`explore`", *(f"{box}" for box in BOXES))
FIGURES: Final = (
    "mutant",
    "search",
    "ranges",
    "runs",
    *(f"{box}: {column}" for box in BOXES for column in ("found in", "runs", "CPU s", "first")),
)

Rows = list[tuple[str, ...]]


def state() -> str:
    """What the figures rest on, and how far the promise about every rule is shown."""
    record, every = CampaignRecord.load(RECORD), _figures()
    ranges = [seeds for methods in record.searches.values() for each in methods.values() for seeds in each]
    explorations = [each for scopes in record.explorations.values() for each in scopes.values()]
    made = record.full_runs + sum(each.runs - each.not_made for each in ranges)
    spent_s = record.full_cpu_s + sum(each.cpu_s - each.not_made_cpu_s for each in ranges)
    spent_s += sum(each.cpu_s for each in explorations)
    versions = sorted({commit for each in ranges for commit in each.commits} | {it.commit for it in explorations})
    wanted = sum(each.mutant.ranges * len(Method) for each in every)
    missing = [each for each in every if not each.found]
    searched = [
        each
        for each in missing
        if each.mutant.name in record.explorations or any(search.runs for search in each.searches.values())
    ]
    unsearched = [each for each in missing if each not in searched]
    lines = [
        f"{made:,} runs, {record.full_runs:,} of them with the full protocol, and {len(explorations)} explorations in "
        f"{spent_s / 3600:.1f} CPU hours; {sum(each.not_made for each in ranges):,} further runs need not be made. "
        f"{sum(each.complete for each in ranges)} of {wanted:,} ranges are complete. "
        f"[{RECORD.name}]({RECORD.name}) has the commit of each; there are {len(versions)}, "
        f"{sum(version.endswith('-dirty') for version in versions)} of them with uncommitted changes.",
        *promise(every),
        f"Searched for, and found by no search so far: {_names(searched)}.",
        f"Not searched for yet: {_names(unsearched)}.",
    ]
    return "".join(f"- {line}\n" for line in lines)


def found() -> Rows:
    """Every mutant, those found by nobody first."""
    return [
        (
            f"`{each.mutant.name}`" + (" (guarded)" if each.mutant.name in GUARDED_BY else ""),
            each.mutant.kind,
            *(find_words(search) for search in each.searches.values()),
            each.explored,
            *(f"`{check}`" if check else "—" for check in each.checks.values()),
        )
        for each in _figures()
    ]


def medians() -> Rows:
    """Every search with a range in which a box is known to find the mutant, or not to."""
    rows: Rows = []
    for each in _figures():
        for method, search in each.searches.items():
            boxes = [search.boxes[box] for box in BOXES]
            if not any(box.ranges for box in boxes):
                continue
            cells = [
                f"`{each.mutant.name}`",
                f"`{method}`",
                f"{search.complete} of {each.mutant.ranges}",
                str(search.runs),
            ]
            for box in boxes:
                cells += [
                    f"{box.found} of {box.ranges}",
                    _written(box, box.runs, ".0f"),
                    _written(box, box.cpu_s, ".1f"),
                    f"`{box.check}`" if box.check else "—",
                ]
            rows.append(tuple(cells))
    return rows


def _figures() -> list[MutantFigures]:
    return figures(CampaignRecord.load(RECORD), list(all_mutants().values()))


def _names(every: list[MutantFigures]) -> str:
    return ", ".join(f"`{each.mutant.name}`" for each in every) or "none"


def _written(box: BoxFigures, interval: Interval | None, form: str) -> str:
    if interval is None:
        return "—"
    if not box.found:
        return "not found"
    value, low, high = (
        "∞" if each == inf else format(each, form) for each in (interval.value, interval.low, interval.high)
    )
    return f"{value} ({low} to {high})"
