"""`faultline compare`: a matrix of settings, systems and versions under paired schedules.

    reference: acks=all, min.isr 2      # the cell whose settings the faults are drawn for
    seeds: 40                           # 0, 1, 2 … so many runs a cell
    base: {rate: 30, faults: [kill]}    # a spec; see harness/spec.py
    cells:                              # name → what it has on top of the base
      acks=all, min.isr 2: {settings: {min.insync.replicas: 2}}
      acks=1: {acks: '1'}

It is a suite (`harness.suites.job`): made on Spark, stored, and resumed like any other. For each seed the schedule
of faults is drawn once, from the reference's spec, and used for every cell, so that two cells differ in their settings
and in nothing else; their runs are compared seed by seed. Cells of several systems (`system`, `version`) get a schedule
that each of them can carry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from harness.spec import Spec
from harness.suites.job import RunResult
from harness.suites.plan import Suite
from harness.suites.reading import (
    check_distinct,
    check_nodes,
    check_places,
    check_room,
    count_of_seeds,
    known,
    layered,
    mapping,
    one_of,
    read,
)
from harness.suites.record import SuiteRecord
from harness.yaml_document import SpecError
from results import measures
from results.atomic_files import put_text
from results.comparison import ComparedRun, Comparison, compare
from results.measures import Measure
from results.number_format import compact
from results.pages.comparison import render
from results.statistics import Interval
from results.store import tables
from results.store.schema import MEASURED
from results.store.spec_facts import spec_facts

SHIPPED = Path(str(files("harness"))) / "comparisons"
_FIELDS = ("reference", "seeds", "base", "cells")


def load(named: str, seeds: int | None = None) -> Suite:
    """The comparison in the file `named`, or the one shipped by that name. Raises SpecError."""
    name, document = read(named, SHIPPED)
    try:
        return _suite(name, document.values, seeds)
    except SpecError as error:
        if seeds is not None and str(error).startswith("seeds:"):
            raise
        raise SpecError(document.located(str(error))) from None


def _suite(name: str, values: object, seeds: int | None) -> Suite:
    fields = known("a comparison is a mapping with reference, seeds, base and cells", values, _FIELDS)
    base = mapping("base", fields.get("base"))
    specs = {
        str(cell): layered({"base": base, f"cells.{cell}": mapping(f"cells.{cell}", changes)})
        for cell, changes in mapping("cells", fields.get("cells")).items()
    }
    if not specs:
        raise SpecError("cells: there is none")
    check_distinct("cells", specs)
    check_places("cells", specs)
    check_nodes("cells", specs)
    reference = one_of(specs, fields.get("reference", next(iter(specs))))
    check_room("cells", specs, reference)
    count = count_of_seeds("seeds", fields.get("seeds", 20) if seeds is None else seeds, len(specs), least=2)
    return Suite(name, count, 0, specs, reference)


def compared(suite: SuiteRecord, runs: Sequence[RunResult]) -> Comparison:
    """The comparison of the cells of an ended suite. Raises RuntimeError when a run could not be carried out."""
    for run in runs:
        if run.validity == "failed":
            raise RuntimeError(f"{run.cell}, seed {run.seed}: {'; '.join(run.causes)}")
    figures: dict[str, dict[str, float]] = {}
    metrics = tables.read(suite.store, "metrics", suite.name)
    for damaged in metrics.damaged:
        raise RuntimeError(damaged.line)
    for row in metrics.table.filter(pc.field("checker") == MEASURED).to_pylist():
        figures.setdefault(row["run"], {})[row["figure"]] = row["value"]
    specs = suite.plan.cells
    return compare(
        suite.plan.name,
        suite.plan.reference,
        [
            ComparedRun(
                run.cell,
                run.seed,
                run.validity,
                _with_plan(figures.get(run.run), specs[run.cell]),
                str(suite.path / "runs" / run.run) if run.validity != "valid" else "",
                f"{suite.name}/{run.run}",
            )
            for run in runs
        ],
    )


def _with_plan(figures: Mapping[str, float] | None, spec: Spec) -> Mapping[str, float]:
    """The figures of a run, with the number of appends it planned; a run without figures was not measured."""
    return {**figures, **spec_facts(spec.to_yaml()).planned(figures)} if figures else {}


def save(comparison: Comparison, directory: Path) -> Iterator[Path]:
    """Write the comparison as JSON and as a page; their paths. Raises StoreError."""
    for name, text in (
        (f"{comparison.name}.json", json.dumps(comparison.to_json(), indent=2) + "\n"),
        (f"{comparison.name}.html", render(comparison)),
    ):
        path = directory / name
        put_text(path, text, parents=True)
        yield path


def shown(comparison: Comparison) -> Any:
    """The table for the terminal: each number, below it its interval, below that the difference to the reference."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = measures.per_run()
    for heading in ("setting", *(measure.heading for measure in columns)):
        table.add_column(heading, justify="left" if heading == "setting" else "right", min_width=12)
    for cell in comparison.cells:
        values = [_value(measure, cell.figures.get(measure.name)) for measure in columns]
        table.add_row(cell.name, *(value for value, _ in values))
        table.add_row("", *(bounds for _, bounds in values), style="dim")
        if cell.name == comparison.reference:
            continue
        differences = [cell.differences.get(measure.name) for measure in columns]
        values = [
            measure.written_difference(difference) if difference else ("–", "")
            for measure, difference in zip(columns, differences, strict=True)
        ]
        table.add_row("  Δ to the reference", *(value for value, _ in values))
        table.add_row("", *(bounds for _, bounds in values), style="dim")
    return table


def _value(measure: Measure, interval: Interval | None) -> tuple[str, str]:
    """`96.8 %` and `95.9 to 97.5`."""
    if interval is None:
        return "–", ""
    value, low, high = (compact(measure.scale * number) for number in (interval.value, interval.low, interval.high))
    return f"{value} {measure.unit}".rstrip(), f"{low} to {high}"
