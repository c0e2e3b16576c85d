"""Reports on a suite: progress on the terminal, a table at its end, and files for programs.

On a terminal a bar shows the runs done, how many were not valid, and the time left; elsewhere a line is printed every
half minute. The first runs that are not valid are shown as they end, each with its cause and its directory.

The exit code is the worst of all runs: 1 when one was invalid, else 3 when one could not be carried out, else 2 when
one was unknown, else 0. `summary.json` has every count and every run that was not valid; `junit.xml` has a test suite
for each cell and a test case for each run: `failure` for invalid, `error` for not carried out, `skipped` for unknown.

The runs of mutants are no failures, since a mutant is to be found: of each only the first find is shown, and in
`junit.xml` it is one test case, which fails when no run found it. With mutants or repeats the exit code is also 1 when
an expectation is not met (`harness.suites.expectations`).
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from xml.etree import ElementTree

from rich.console import Console
from rich.progress import TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from harness.cluster.systems import SYSTEMS
from harness.exit_codes import EXIT_CODES, INVALID, UNKNOWN, VALID
from harness.suites.expectations import expectations, has_expectations
from harness.suites.job import RunResult
from harness.suites.plan import Suite
from harness.suites.progress_bar import ProgressBar
from harness.suites.record import SuiteRecord
from nemesis.registry import FAIR_FAMILIES
from results import measures
from results.atomic_files import put_text
from results.coverage import RULE_READ, drawn_worlds, never_drawn
from results.store.summary import Summary

SHOWN: Final = 10
"""Runs that are not valid and are shown as they end; the rest is counted."""
FIRST_RUNS: Final = 3
"""Runs that are named of each signature."""
_COLOURS: Final = {"invalid": "bold red", "failed": "red", "unknown": "yellow", "valid": "green"}
_WORDS: Final = {"failed": "not carried out"}
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class LiveSuite:
    """Shows the progress of a suite while it is entered; called for each run that has ended."""

    def __init__(self, console: Console, suite: SuiteRecord, more: Callable[[], str] = lambda: "") -> None:
        """`more` says what else there is to say of the runs so far."""
        self._console, self._suite, self._more = console, suite, more
        self._counts: Counter[str] = Counter()
        self._of_mutants: Counter[str] = Counter()
        self._caught: set[str] = set()
        self._bar = ProgressBar(console, suite.name, self._total, "", TextColumn("left"), TimeRemainingColumn())

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.__exit__(kind, error, at)

    def __call__(self, run: RunResult) -> None:
        """Count a run, and show it if it is one of the first that are not valid, or the first that finds a mutant."""
        if run.cell in self._suite.plan.mutants:
            self._count_mutant(run)
        else:
            self._counts[run.validity] += 1
            if run.validity != "valid" and self._bad <= SHOWN:
                show(self._console, self._suite, run)
                if self._bad == SHOWN:
                    self._console.print("further runs that are not valid are only counted", style="dim")
        done = self._counts.total() + self._of_mutants.total()
        self._bar.update(done, self._total, f"{done} of {self._total} runs, {self._words()}")

    def _count_mutant(self, run: RunResult) -> None:
        self._of_mutants[run.cell] += 1
        if run.validity == "invalid" and run.cell not in self._caught:
            self._caught.add(run.cell)
            self._bar.found(f"{run.cell}, seed {run.seed}", run.causes)

    @property
    def _total(self) -> int:
        """The runs that are made at most, now that some mutants are found."""
        plan = self._suite.plan
        of_mutants = (self._of_mutants[cell] if cell in self._caught else plan.mutant_seeds for cell in plan.mutants)
        return plan.runs_at_most + sum(of_mutants)

    @property
    def _bad(self) -> int:
        return self._counts.total() - self._counts["valid"]

    def _words(self) -> str:
        mutants = self._suite.plan.mutants
        mutants_found = f"; {len(self._caught)} of {len(mutants)} mutants found" if mutants else ""
        return (counted(self._counts) if self._bad else "all valid") + mutants_found + self._more()


def show(console: Console, suite: SuiteRecord, run: RunResult) -> None:
    """The findings of one run that was not valid, and its directory."""
    causes = "; ".join(run.signatures or run.causes) or "no cause"
    head = Text.assemble((run.validity, _COLOURS[run.validity]), f" {run.run}: {causes}")
    console.print(head, soft_wrap=True)
    for line in run.lines[:3]:
        console.print(Text(f"    {line}"), soft_wrap=True)
    console.print(Text(f"    {suite.path / 'runs' / run.run}", style="dim"), soft_wrap=True)


def counted(counts: Mapping[str, int]) -> str:
    """`998 valid, 2 unknown`; the worst first."""
    return ", ".join(f"{counts[name]} {_WORDS.get(name, name)}" for name in EXIT_CODES if counts.get(name))


def exit_code(plan: Suite, runs: Sequence[RunResult]) -> int:
    """See the module's docstring."""
    if has_expectations(plan) and not expectations(plan, runs).met:
        return INVALID
    seen = {run.validity for run in runs if run.cell not in plan.mutants}
    if not seen and plan.mutants:
        return VALID
    return next((code for name, code in EXIT_CODES.items() if name in seen), UNKNOWN)


def table(cells: Iterable[Mapping[str, Any]]) -> Table:
    """One row for each cell of a `results.store.summary.Summary`."""
    rows = Table(box=None, pad_edge=False, header_style="dim")
    columns = [column for measure in measures.per_run() for column in measure.summary_columns if column.heading]
    for heading in ("cell", "runs", *EXIT_CODES, *(column.heading for column in columns)):
        rows.add_column(_WORDS.get(heading, heading), justify="left" if heading == "cell" else "right")
    for cell in cells:
        counts = (str(cell[name]) for name in ("runs", *EXIT_CODES))
        rows.add_row(cell["cell"], *counts, *(column.written(cell[column.name]) for column in columns))
    return rows


def by_signature(runs: Iterable[RunResult]) -> dict[str, list[RunResult]]:
    """The runs that fail from each cause, the most frequent first."""
    groups: dict[str, list[RunResult]] = {}
    for run in runs:
        for signature in run.signatures:
            groups.setdefault(signature, []).append(run)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))


def failures(plan: Suite, runs: Iterable[RunResult]) -> Table | None:
    """One row for each signature, with its first runs; None when no run but of mutants has one."""
    groups = by_signature(run for run in runs if run.cell not in plan.mutants)
    rows = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("failures by cause (check/finding/cause)", "runs", "first runs"):
        rows.add_column(heading, justify="right" if heading == "runs" else "left", overflow="fold")
    for signature, failed in groups.items():
        first = ", ".join(run.run for run in failed[:FIRST_RUNS])
        rows.add_row(Text(signature), str(len(failed)), Text(first + (" …" if len(failed) > FIRST_RUNS else "")))
    return rows if groups else None


def covered(plan: Suite, summary: Summary) -> str:
    """The events and fault families that the runs exercised, and the families that none did; the safety rules that no
    run needed; where worlds are drawn, a line for them; and one for the situations."""
    families = summary.marked("family")
    missing = [name for name in FAIR_FAMILIES if name not in families]
    kinds, cases = len(summary.marked("event")), len(summary.marked("case"))
    text = f"covered: {kinds} kinds of protocol events, with {cases} different reasons and errors; "
    text += f"{len(families)} fault families took effect"
    text += f"; never: {', '.join(missing)}" if missing else ""
    lines = [text]
    rules = [rule.name for system in plan.systems for rule in SYSTEMS[system].rules]
    if read := summary.marked(RULE_READ):
        unread = [rule for rule in rules if rule not in read]
        line = f"rules: {len(rules) - len(unread)} of {len(rules)} safety rules were read"
        lines.append(f"{line}; never: {', '.join(unread)}" if unread else line)
    lines += [drawn_worlds(plan.worlds, summary.marked("world"))] if plan.worlds else []
    if summary.thoroughness is not None:
        lines.append(summary.thoroughness.sentence())
    return "\n".join(lines)


def summary(suite: SuiteRecord, runs: Sequence[RunResult], figures: Summary) -> dict[str, Any]:
    """Counts by cell, every run that was not valid, figures and coverage, as JSON values."""
    cells = {
        cell: dict(sorted(Counter(run.validity for run in runs if run.cell == cell).items()))
        for cell in dict.fromkeys(run.cell for run in runs)
    }
    return {
        "suite": suite.name,
        "store": str(suite.store),
        **suite.facts,
        "seeds": suite.plan.seeds,
        "first_seed": suite.plan.first_seed,
        "runs": len(runs),
        "cells": cells,
        "exit_code": exit_code(suite.plan, runs),
        **({"expectations": expectations(suite.plan, runs).to_json()} if has_expectations(suite.plan) else {}),
        "not_valid": [
            {
                "run": run.run,
                "cell": run.cell,
                "seed": run.seed,
                "validity": run.validity,
                "causes": list(run.causes),
                "signatures": list(run.signatures),
                "lines": list(run.lines),
                "digest": run.digest,
                "directory": str(suite.path / "runs" / run.run),
            }
            for run in runs
            if run.validity != "valid" and run.cell not in suite.plan.mutants
        ],
        "signatures": {
            signature: [run.run for run in failed]
            for signature, failed in by_signature(run for run in runs if run.cell not in suite.plan.mutants).items()
        },
        "figures": [dict(cell) for cell in figures.cells],
        "coverage": [dict(mark) for mark in figures.coverage],
        "never_drawn": never_drawn(suite.plan.worlds, figures.marked("world")),
        "situations": figures.thoroughness and figures.thoroughness.to_json(),
    }


def save(
    suite: SuiteRecord, runs: Sequence[RunResult], figures: Summary, json_too: Path | None, junit_too: Path | None
) -> Iterator[Path]:
    """Write copies of both files, junit.xml and, last, summary.json, which marks the suite as ended; their paths.
    Raises StoreError."""
    totals, cases = json.dumps(summary(suite, runs, figures), indent=2) + "\n", junit(suite, runs)
    for copy, text in ((junit_too, cases), (json_too, totals)):
        if copy is not None:
            put_text(copy, text)
            yield copy
    for name, text in (("junit.xml", cases), ("summary.json", totals)):
        put_text(suite.path / name, text)
        yield suite.path / name


def junit(suite: SuiteRecord, runs: Sequence[RunResult]) -> str:
    """The runs as JUnit XML."""
    mutants = suite.plan.mutants
    cases = [run for run in runs if run.cell not in mutants]
    finds = expectations(suite.plan, runs).tallies if mutants else ()
    finds = tuple(tally for tally in finds if tally.mutant)
    unmet = sum(not tally.met for tally in finds)
    root = ElementTree.Element("testsuites", _totals(suite.name, cases, more=len(finds), failures=unmet))
    for cell in dict.fromkeys(run.cell for run in cases):
        _add_cell(root, suite, cell, [run for run in cases if run.cell == cell])
    if finds:
        name = f"{suite.plan.name}.mutants"
        element = ElementTree.SubElement(root, "testsuite", _totals(name, [], more=len(finds), failures=unmet))
        for tally in finds:
            case = {"classname": name, "name": _printable(tally.cell), "time": f"{tally.cpu_seconds:.3f}"}
            test_case = ElementTree.SubElement(element, "testcase", case)
            if not tally.met:
                ElementTree.SubElement(test_case, "failure", {"message": f"not found in {tally.runs} seeds"})
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_cell(root: ElementTree.Element, suite: SuiteRecord, cell: str, runs: Sequence[RunResult]) -> None:
    name = _printable(f"{suite.plan.name}.{cell}")
    element = ElementTree.SubElement(root, "testsuite", _totals(name, runs))
    for run in runs:
        case = {"classname": name, "name": run.run, "time": f"{run.cpu_seconds:.3f}"}
        testcase = ElementTree.SubElement(element, "testcase", case)
        if run.validity == "valid":
            continue
        kind = {"invalid": "failure", "failed": "error"}.get(run.validity, "skipped")
        message = _printable(f"{run.validity}: {'; '.join(run.causes)}")
        verdict = ElementTree.SubElement(testcase, kind, {"message": message})
        where = suite.path / "runs" / run.run
        words = ("replay", str(where)) if run.digest else ("run", f"{where}/spec.yaml")
        again = shlex.join(("faultline", *words))
        verdict.text = _printable("\n".join((*run.lines, str(where), f"again: {again}")))


def _totals(name: str, runs: Sequence[RunResult], *, more: int = 0, failures: int = 0) -> dict[str, str]:
    """Of the runs, and of `more` test cases besides, with `failures` among them."""
    counts = Counter(run.validity for run in runs)
    return {
        "name": name,
        "tests": str(len(runs) + more),
        "failures": str(counts["invalid"] + failures),
        "errors": str(counts["failed"]),
        "skipped": str(counts["unknown"]),
        "time": f"{sum(run.cpu_seconds for run in runs):.3f}",
    }


def _printable(text: str) -> str:
    """`text` with a replacement for each character that XML 1.0 cannot hold, escaped or not."""
    return _NO_XML.sub("�", text)
