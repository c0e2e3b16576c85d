"""Coverage marks of a run, counted over many runs: a suite has not tested what no run exercised.

kind        name                                    counts
----------  --------------------------------------  -----------------------------------------------------------------
event       a kind of protocol event                how often it was traced (images/trace.py)
case        kind/a field of its detail              the same, by reason, error or API: `partition_changed/reassigned`
rule_read   a safety rule (images/broker/rules.py)  lives of nodes in which it was read
fault       a fault                                 how often it was injected and took effect
family      a fault family                          the same
outcome     operation/outcome                       how many ended so: `append/info`
trigger     a condition (nemesis/conditions.py)     faults that waited for it and were injected
world       dimension=value (harness/worlds.py)     one: drawn for the world of the run
situation   its code (results/situations)           how often a partition came into it
transition  an event, the situations around it      how often it was so
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from checkers.evidence import RunEvidence
from results.situations.replay import RunSituations, situations_of

_CASE_FIELDS: Final[Mapping[str, str]] = {
    "request_fenced": "api",
    "isr_proposed": "reason",
    "isr_rejected": "error",
    "broker_fenced": "reason",
    "partition_changed": "reason",
    "alter_partition_refused": "error",
}
"""The field of an event's detail that distinguishes its cases."""

RULE_READ: Final = "rule_read"
"""Kind of marks, and of the events that they count."""
SITUATION, TRANSITION = "situation", "transition"
"""Kinds of marks of which a run has hundreds."""


def marks(evidence: RunEvidence, drawn: Mapping[str, str] = MappingProxyType({})) -> pa.Table:
    """One row a mark with `kind`, `name` and `count`, in order; nothing that did not happen. `drawn` is the world that
    was drawn for the run: dimension → value."""
    counts: Counter[tuple[str, str]] = Counter()
    for dimension, value in drawn.items():
        counts["world", f"{dimension}={value}"] = 1
    for kind, count in _counted(evidence.trace.column("kind")):
        if kind != RULE_READ:
            counts["event", kind] = count
    detailed = pa.array([RULE_READ, *_CASE_FIELDS])
    with_cases = evidence.trace.filter(pc.is_in(evidence.trace.column("kind"), value_set=detailed))
    for kind, detail in zip(
        with_cases.column("kind").to_pylist(), with_cases.column("detail").to_pylist(), strict=True
    ):
        values = json.loads(detail or "{}")
        if kind == RULE_READ:
            counts[RULE_READ, values["rule"]] += 1
        elif (case := values.get(_CASE_FIELDS[kind])) is not None:
            counts["case", f"{kind}/{case}"] += 1
    effective = evidence.faults.filter(evidence.faults.column("bit"))
    for column, kind in (("fault", "fault"), ("family", "family")):
        for name, count in _counted(effective.column(column)):
            counts[kind, name] = count
    for detail in evidence.faults.column("detail").to_pylist():
        values = json.loads(detail or "{}")
        if "not_injected" not in values:
            counts.update(("trigger", name) for name in values.get("when", ()))
    outcomes = evidence.history.select(["kind", "outcome"]).group_by(["kind", "outcome"]).aggregate([([], "count_all")])
    for row in outcomes.to_pylist():
        counts["outcome", f"{row['kind']}/{row['outcome']}"] = row["count_all"]
    if evidence.settings.has_ordered_trace:
        counts |= _of_situations(situations_of(evidence.trace))
    rows = [{"kind": kind, "name": name, "count": count} for (kind, name), count in sorted(counts.items()) if count]
    return pa.Table.from_pylist(rows, _SCHEMA)


def without_situations(marks: pa.Table) -> pa.Table:
    """The marks but those of situations and transitions, which are too many for a list."""
    return marks.filter(pc.invert(pc.is_in(marks.column("kind"), value_set=pa.array([SITUATION, TRANSITION]))))


def never_drawn(worlds: Mapping[str, Sequence[str]], marked: Collection[str]) -> list[str]:
    """The marks of kind `world` that no run has, of dimensions with these values."""
    missing = _missing_values(worlds, marked)
    return [f"{dimension}={value}" for dimension, values in missing.items() for value in values]


def drawn_worlds(worlds: Mapping[str, Sequence[str]], marked: Collection[str]) -> str:
    """In a line: how many values were drawn, and which never, by dimension."""
    missing = _missing_values(worlds, marked)
    possible = sum(len(values) for values in worlds.values())
    drawn = possible - sum(len(values) for values in missing.values())
    text = f"worlds: {drawn} of {possible} values drawn, in {len(worlds)} dimensions"
    never = "; ".join(f"{dimension} {', '.join(values)}" for dimension, values in missing.items() if values)
    return text + (f"; never: {never}" if never else "")


def _missing_values(worlds: Mapping[str, Sequence[str]], marked: Collection[str]) -> dict[str, list[str]]:
    return {
        dimension: [value for value in values if f"{dimension}={value}" not in marked]
        for dimension, values in worlds.items()
    }


_SCHEMA: Final = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
    ]
)


def _of_situations(run: RunSituations) -> Counter[tuple[str, str]]:
    situations = {(SITUATION, situation.code): count for situation, count in run.situations.items()}
    return Counter(situations | {(TRANSITION, it.name): count for it, count in run.transitions.items()})


def _counted(column: Any) -> list[tuple[str, int]]:
    return [(row["values"], row["counts"]) for row in pc.value_counts(column).to_pylist()]
