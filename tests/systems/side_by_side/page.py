"""The part of docs/kafka.md about the same ten specs on both systems: the specs, the table, and why the systems differ.

`reasons.yaml` has the explanations, written by hand: of each spec a list with a sentence, the line of a trace or log
that shows it, and where that stands, beginning with the name of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import yaml

from results import measures
from results.comparison import ComparedRun
from results.measures import Measure, SummaryColumn
from results.run_figures import UNAVAILABLE_LONGEST_S
from tests.systems.campaign import FAILED, Row
from tests.systems.side_by_side.runs import PairedSpec

REASONS: Final = Path(__file__).parent / "reasons.yaml"
NONE: Final = "–"
_PARTS: Final = {"says", "line", "from"}
Reasons = Mapping[str, Sequence[Mapping[str, str]]]
Rows = Mapping[tuple[str, str], Row]
"""By spec and system."""


def read_reasons() -> Reasons:
    """By spec."""
    reasons: Reasons = yaml.safe_load(REASONS.read_text(encoding="utf-8"))
    return reasons


def mistakes(pairs: Mapping[str, PairedSpec], rows: Rows, reasons: Reasons) -> Iterator[str]:
    """A line for every spec whose verdicts differ without a reason, and every reason that is about no run here."""
    for name, pair in pairs.items():
        if len(_verdicts(name, pair, rows)) > 1 and not reasons.get(name):
            yield f"{name}: the verdicts differ, and reasons.yaml does not say why"
    for name, given in reasons.items():
        runs = {row["run"] for (spec, _), row in rows.items() if spec == name}
        for reason in given:
            if set(reason) != _PARTS or not all(reason.values()):
                yield f"{name}: a reason has {', '.join(sorted(_PARTS))}, not {dict(reason)}"
            elif reason["from"].partition("/")[0] not in runs:
                yield f"{name}: {reason['from']} is of no run in the table"


def _verdicts(name: str, pair: PairedSpec, rows: Rows) -> set[str]:
    return {rows[name, system]["verdict"] for system in pair.by_system if (name, system) in rows}


def part(
    pairs: Mapping[str, PairedSpec],
    rows: Rows,
    reasons: Reasons,
    table: Callable[[tuple[str, ...], list[tuple[str, ...]]], str],
) -> str:
    """In Markdown; `table` writes a table of its head and its rows."""
    systems = list(next(iter(pairs.values())).by_system)
    columns = _columns()
    made = [name for name, pair in pairs.items() if any((name, system) in rows for system in pair.by_system)]
    specs = table(("spec", "what happens"), [(f"`{name}`", pair.title) for name, pair in pairs.items()])
    if not made:
        return f"{specs}\nNone of these runs was made yet.\n"
    head = ("spec", "verdict", *columns, "load")
    cells = [
        (f"`{name}`", *(_beside(column, rows, name, systems) for column in (_verdict, *columns.values(), _load)))
        for name in made
    ]
    words = "; ".join(f"`{measure.name}` {measure.words}" for measure in measures.per_run())
    lines = [
        specs,
        f"Each cell has {' / '.join(systems)}, {NONE} where there is no value. {words}; `longest` the longest time in "
        "`unavailable`; `load` the load average of the machine when the run began.\n",
        table(head, cells),
        *_notes(made, pairs, rows, reasons),
    ]
    return "\n".join(lines)


def _columns() -> dict[str, Callable[[Row], str]]:
    """Heading → the cell of a row: every measure of one run, and the longest time without an acknowledgement."""
    columns: dict[str, Callable[[Row], str]] = {}
    for measure in measures.per_run():
        columns[measure.name] = partial(_value, measure)
        for column in measure.summary_columns:
            if column.figure is UNAVAILABLE_LONGEST_S:
                columns["longest"] = partial(_longest, column)
    return columns


def _longest(column: SummaryColumn, row: Row) -> str:
    return column.written(row["figures"].get(UNAVAILABLE_LONGEST_S.name))


def _value(measure: Measure, row: Row) -> str:
    run = ComparedRun(row["system"], 0, row["verdict"], row["figures"])
    pair, value = measure.pair(run), measure.value(run)
    if pair is None or value is None:
        return NONE
    return f"{pair[0]:g} of {pair[1]:g}" if measure.counts_records else measure.written(value)


def _verdict(row: Row) -> str:
    checks = ", ".join(f"`{name}`" for name in row["not_valid"])
    return f"{row['verdict']} ({checks})" if checks else str(row["verdict"])


def _load(row: Row) -> str:
    return f"{row['load']:g}"


def _beside(column: Callable[[Row], str], rows: Rows, name: str, systems: Sequence[str]) -> str:
    present = (rows.get((name, system)) for system in systems)
    return " / ".join(NONE if row is None else column(row) for row in present)


def _notes(made: Sequence[str], pairs: Mapping[str, PairedSpec], rows: Rows, reasons: Reasons) -> Iterator[str]:
    """Why the systems differ, then what a reader of the table must know beside it."""
    reasoned = [name for name in made if reasons.get(name)]
    if reasoned:
        yield "".join(
            f"- `{name}`: {each['says']}: `{each['line']}` (`{each['from']}`)\n"
            for name in reasoned
            for each in reasons[name]
        )
    if unreasoned := [f"`{name}`" for name in made if name not in reasoned]:
        yield f"Not explained yet: {', '.join(unreasoned)}.\n"
    shown = [
        (name, system, rows[name, system])
        for name in made
        for system in pairs[name].by_system
        if (name, system) in rows
    ]
    remarks = [
        f"- `{name}`, {system}: {remark}\n"
        for name, system, row in shown
        for remark in ([row["failure"]] if row["verdict"] == FAILED else row["deviations"])
    ]
    if remarks:
        yield f"Where a run did not go as its spec says:\n\n{''.join(remarks)}"
    if absent := [f"`{name}`" for name in pairs if any((name, system) not in rows for system in pairs[name].by_system)]:
        yield f"Not made yet, or on one system alone: {', '.join(absent)}.\n"
    releases = sorted({f"{system} {row['release']}".strip() for _, system, row in shown})
    sources = sorted({f"`{row['sources'][:8]}`" for *_, row in shown})
    yield f"Releases: {', '.join(releases)}; sources {', '.join(sources)}.\n"
