"""Output of a suite: progress, the final table, and files for programs.

On a terminal a bar tells runs done, what was not valid so far, and the time left; elsewhere a line is printed now and
then. The first runs that are not valid are shown as they come, each with its cause and where it lies.

The exit code is the worst of all runs: 1 when one was invalid, else 3 when one could not be carried out, else 2 when
one was unknown, else 0. `summary.json` has every count and every run that was not valid; `junit.xml` has a test suite a
cell and a test case a run: `failure` for invalid, `error` for not carried out, `skipped` for unknown.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self
from xml.etree import ElementTree

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from harness.exit_codes import EXIT_CODES, UNKNOWN
from harness.suites.job import RunResult
from harness.suites.record import SuiteRecord
from nemesis.registry import FAIR_FAMILIES
from results.coverage import RULES
from results.store.summary import Summary

SHOWN: Final = 10
"""Runs that are not valid and are shown at once; the rest is counted."""
_LINE_S: Final = 30.0
_COLOURS: Final = {"invalid": "bold red", "failed": "red", "unknown": "yellow", "valid": "green"}
_WORDS: Final = {"failed": "not carried out"}
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class LiveSuite:
    """Shows how far a suite is as long as it is entered; called for each run that has ended."""

    def __init__(self, console: Console, suite: SuiteRecord) -> None:
        self._console, self._suite = console, suite
        self._total = len(list(suite.plan.jobs()))
        self._counts: Counter[str] = Counter()
        self._told_s = monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(suite.name, total=self._total, told="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, run: RunResult) -> None:
        """Count it, and show it if it is one of the first that are not valid."""
        self._counts[run.validity] += 1
        if run.validity != "valid" and self._bad <= SHOWN:
            show(self._console, self._suite, run)
            if self._bad == SHOWN:
                self._console.print("further ones are counted", style="dim")
        self._bar.update(self._task, advance=1, told=self._told())
        now_s = monotonic()
        if not self._console.is_terminal and now_s - self._told_s >= _LINE_S:
            self._told_s = now_s
            self._console.print(f"{self._counts.total()} of {self._total} runs, {self._told()}", highlight=False)

    @property
    def _bad(self) -> int:
        return self._counts.total() - self._counts["valid"]

    def _told(self) -> str:
        return counted(self._counts) if self._bad else "all valid"


def show(console: Console, suite: SuiteRecord, run: RunResult) -> None:
    """Print the findings of one run that was not valid, and its directory."""
    head = Text.assemble((run.validity, _COLOURS[run.validity]), f" {run.run}: {'; '.join(run.causes) or 'no cause'}")
    console.print(head, soft_wrap=True)
    for line in run.lines[:3]:
        console.print(Text(f"    {line}"), soft_wrap=True)
    console.print(Text(f"    {suite.path / 'runs' / run.run}", style="dim"), soft_wrap=True)


def counted(counts: Mapping[str, int]) -> str:
    """`998 valid, 2 unknown`; the worst first."""
    return ", ".join(f"{counts[name]} {_WORDS.get(name, name)}" for name in EXIT_CODES if counts.get(name))


def exit_code(runs: Iterable[RunResult]) -> int:
    """See the module's docstring."""
    seen = {run.validity for run in runs}
    return next((code for name, code in EXIT_CODES.items() if name in seen), UNKNOWN)


def table(cells: Iterable[Mapping[str, Any]]) -> Table:
    """A line a cell, of those of a `results.store.summary.Summary`."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for heading in (
        "cell",
        "runs",
        *EXIT_CODES,
        "acknowledged",
        "unavailable",
        "longest",
        "recovery",
        "append p50, p99",
        "lost",
    ):
        drawn.add_column(_WORDS.get(heading, heading), justify="left" if heading == "cell" else "right")
    for cell in cells:
        drawn.add_row(
            cell["cell"],
            *(str(cell[name]) for name in ("runs", *EXIT_CODES)),
            _number(cell["available"], 100, " %"),
            _number(cell["unavailable"], 100, " %"),
            _number(cell["longest_s"], 1, " s"),
            _number(cell["recovery_s_p50"], 1, " s"),
            f"{_number(cell['append_ms_p50'], 1, '')}, {_number(cell['append_ms_p99'], 1, ' ms')}",
            f"{cell['lost'] or 0:,}",
        )
    return drawn


def _number(value: float | None, factor: float, unit: str) -> str:
    return "–" if value is None else f"{factor * value:.1f}{unit}"


def covered(summary: Summary) -> str:
    """The coverage of the runs, and the fair families and visible rules that no run exercised."""
    families, rules = summary.marked("family"), summary.marked("rule")
    missing = [f"family {name}" for name in FAIR_FAMILIES if name not in families]
    missing += [f"rule {name}" for name in RULES if name not in rules]
    kinds, cases = len(summary.marked("event")), len(summary.marked("case"))
    told = f"covered: {kinds} kinds of protocol events in {cases} cases, {len(families)} fault families that bit"
    return told + (f"; never: {', '.join(missing)}" if missing else "")


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
        "exit_code": exit_code(runs),
        "not_valid": [
            {
                "run": run.run,
                "cell": run.cell,
                "seed": run.seed,
                "validity": run.validity,
                "causes": list(run.causes),
                "lines": list(run.lines),
                "digest": run.digest,
                "directory": str(suite.path / "runs" / run.run),
            }
            for run in runs
            if run.validity != "valid"
        ],
        "figures": [dict(cell) for cell in figures.cells],
        "coverage": [dict(mark) for mark in figures.coverage],
    }


def save(
    suite: SuiteRecord, runs: Sequence[RunResult], figures: Summary, json_too: Path | None, junit_too: Path | None
) -> Iterator[Path]:
    """Write junit.xml and, last, summary.json, which makes the suite an ended one; and where else it is wanted."""
    told, cases = json.dumps(summary(suite, runs, figures), indent=2) + "\n", junit(suite, runs)
    for path, text in (
        (junit_too, cases),
        (json_too, told),
        (suite.path / "junit.xml", cases),
        (suite.path / "summary.json", told),
    ):
        if path is not None:
            path.write_text(text, encoding="utf-8")
            yield path


def junit(suite: SuiteRecord, runs: Sequence[RunResult]) -> str:
    """The runs as JUnit XML."""
    root = ElementTree.Element("testsuites", _totals(suite.name, runs))
    for cell in dict.fromkeys(run.cell for run in runs):
        mine = [run for run in runs if run.cell == cell]
        element = ElementTree.SubElement(root, "testsuite", _totals(_printable(f"{suite.plan.name}.{cell}"), mine))
        for run in mine:
            case = {
                "classname": _printable(f"{suite.plan.name}.{cell}"),
                "name": run.run,
                "time": f"{run.cpu_seconds:.3f}",
            }
            told = ElementTree.SubElement(element, "testcase", case)
            if run.validity == "valid":
                continue
            kind = {"invalid": "failure", "failed": "error"}.get(run.validity, "skipped")
            verdict = ElementTree.SubElement(
                told, kind, {"message": _printable(f"{run.validity}: {'; '.join(run.causes)}")}
            )
            where = suite.path / "runs" / run.run
            verdict.text = _printable("\n".join((*run.lines, str(where), f"again: faultline replay {where}")))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _totals(name: str, runs: Sequence[RunResult]) -> dict[str, str]:
    counts = Counter(run.validity for run in runs)
    return {
        "name": name,
        "tests": str(len(runs)),
        "failures": str(counts["invalid"]),
        "errors": str(counts["failed"]),
        "skipped": str(counts["unknown"]),
        "time": f"{sum(run.cpu_seconds for run in runs):.3f}",
    }


def _printable(text: str) -> str:
    """Without what XML 1.0 cannot hold, escaped or not."""
    return _NO_XML.sub("�", text)
